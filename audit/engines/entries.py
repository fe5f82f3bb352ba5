"""Which entries of ConsumeQueues name another record than the log has there? In Arrow and numpy.

Log and entries are cut into stretches by physical offset, and one stretch of both is looked at, at a time.
``audit.engines.on_spark.entries`` asks the same of a cluster; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.reading.derived.queue_files import ENTRIES, EXTENSION_BELOW, Queue, QueueFile, read_entries
from audit.reading.records.record import STORED_FROM
from audit.rows.numbers import differences
from audit.rows.parts import Folder, Parts
from audit.tables import LACKING, UNENTERED, Entered, EntryBounds
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC

Read = Callable[[Sequence[str], tuple[int, int]], Iterable[pa.Table]]
"""(columns, (from, to)) -> the records of one log that belong into queues, by physical offset."""

ENTRY: Final = ENTRIES.append(pa.field("extended", pa.bool_()))
_END: Final = 1 << 62


def entered(
    records: Read, borders: Sequence[int], files: Sequence[QueueFile], bounds: EntryBounds
) -> Entered:
    """``borders``: offsets that cut the log into stretches."""
    folder = Folder()
    try:
        return _Entries(folder, records, borders, files).judged(bounds)
    finally:
        folder.close()


Odd = dict[Queue, Any]
"""Places of delayed messages that are due before they were stored, or otherwise than both their neighbours,
which agree."""


class Judged(NamedTuple):
    """Of a stretch."""

    wrong: pa.Table  # ENTRIES
    unentered: pa.Table  # UNENTERED, by the entries of this stretch
    last: pa.Table  # topic, queue id and the last place with a right entry


class _Entries:
    """The entries of the files, by the stretch of the log that they name."""

    def __init__(
        self, folder: Folder, records: Read, borders: Sequence[int], files: Sequence[QueueFile]
    ) -> None:
        self._records, self._borders = records, borders
        self._queues = {(file.topic, file.queue_id) for file in files}
        self._parts = Parts(folder, ENTRY, len(borders))
        for file in files:
            for batch in read_entries(file):
                if len(batch):
                    part = np.searchsorted(np.array(borders), batch["entry_offset"].to_numpy(), "right") - 1
                    extended = pa.array(np.full(len(batch), file.extended))
                    rows = pa.table(batch).append_column("extended", extended)
                    self._parts.add(rows, np.maximum(part, 0))
        delayed = any(file.topic == SCHEDULE_TOPIC for file in files)
        self._odd: Odd = self._odd_dues() if delayed else {}

    def _stretches(self) -> Iterator[Stretch]:
        for n, begin in enumerate(self._borders):
            end = self._borders[n + 1] if n + 1 < len(self._borders) else _END
            tables = [table.select(UNENTERED.names) for table in self._records(UNENTERED.names, (begin, end))]
            records = pa.concat_tables(tables) if tables else UNENTERED.empty_table()
            yield Stretch(records.combine_chunks(), self._parts.part(n).combine_chunks())

    def _odd_dues(self) -> Odd:
        """Places of delayed messages that are due before they were stored, or otherwise than both their
        neighbours, which agree.

        A level has one delay, until its broker gets another one: that begins anywhere, and goes on.
        """
        found: dict[Queue, list[tuple[Any, Any]]] = {}
        for stretch in self._stretches():
            for queue, places, delays in stretch.delays():
                found.setdefault(queue, []).append((places, delays))
        return {
            queue: odd_places(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            for queue, parts in found.items()
        }

    def judged(self, bounds: EntryBounds) -> Entered:
        wrong, unentered = [ENTRIES.empty_table()], [UNENTERED.empty_table()]
        last: dict[Queue, int] = {}
        for stretch in self._stretches():
            found = stretch.judged(self._odd, bounds, self._queues)
            wrong.append(found.wrong)
            unentered.append(found.unentered)
            for row in found.last.to_pylist():
                queue = (row["topic"], row["queue_id"])
                last[queue] = max(last.get(queue, -1), row["queue_offset"])
        rows = self._without_taken(pa.concat_tables(unentered))
        each = pa.array(np.ones(len(rows), np.int64))
        runs = pa.table([*rows.columns, rows["until"], each], schema=LACKING)
        return Entered(pa.concat_tables(wrong), runs, last)

    def _without_taken(self, lacking: pa.Table) -> pa.Table:
        """Those of the records at whose places no entry is right either, for another record."""
        if not len(lacking):
            return lacking
        by_place = lacking.select(UNENTERED.names[:3])
        taken = []
        for stretch in self._stretches():
            right, _ = stretch.right(self._odd)
            places = stretch.entries.filter(pa.array(right)).select(UNENTERED.names[:3])
            taken.append(places.join(by_place, UNENTERED.names[:3], join_type="left semi"))
        places = pa.concat_tables(taken)
        if not len(places):
            return lacking
        return lacking.join(places, UNENTERED.names[:3], join_type="left anti").cast(UNENTERED)


def odd_places(places: Any, delays: Any) -> Any:
    """Of the delayed messages of a queue, by how long they are delayed."""
    order = np.argsort(places)
    places, delays = places[order], delays[order]
    alone = delays < 0
    alone[1:-1] |= (delays[1:-1] != delays[:-2]) & (delays[:-2] == delays[2:])
    return places[alone]


def of_queues(rows: pa.Table, queues: AbstractSet[Queue]) -> Any:
    """Which rows are of one of the queues."""
    if not len(rows):
        return np.zeros(0, bool)
    topics = rows["topic"].combine_chunks().dictionary_encode()
    ids = rows["queue_id"].to_numpy()
    keep = np.zeros(len(rows), bool)
    for code, topic in enumerate(topics.dictionary.to_pylist()):
        own = topics.indices.to_numpy() == code
        keep[own] = np.isin(ids[own], [queue_id for name, queue_id in queues if name == topic])
    return keep


class Stretch:
    """The records of a stretch of a log, and the entries that name a place in it."""

    def __init__(self, records: pa.Table, entries: pa.Table) -> None:
        self.records, self.entries = records, entries
        self.offset = records["offset"].to_numpy()

    def right(self, odd: Odd) -> tuple[Any, Any]:
        """Which entries name a record of their place as it is, and the index of the record at each offset."""
        entries = self.entries
        offset = entries["entry_offset"].to_numpy()
        if not len(self.offset) or not len(offset):
            return np.zeros(len(offset), bool), np.zeros(len(offset), np.int64)
        at = np.minimum(np.searchsorted(self.offset, offset), len(self.offset) - 1)
        named = self.records.take(pa.array(at))
        right = named["offset"].to_numpy() == offset
        right &= named["until"].to_numpy() - named["offset"].to_numpy() == entries["entry_size"].to_numpy()
        place = pc.equal(named["topic"], entries["topic"]).to_numpy()
        for name in ("queue_id", "queue_offset"):
            place = place & (named[name].to_numpy() == entries[name].to_numpy())
        tags = entries["entry_tags"].to_numpy()
        same = named["tags_code"].to_numpy() == tags
        same |= (tags < EXTENSION_BELOW) & entries["extended"].to_numpy()
        delayed = pc.equal(entries["topic"], SCHEDULE_TOPIC).to_numpy()
        if delayed.any():
            same |= delayed
            for (_, queue_id), places in odd.items():
                own = delayed & (entries["queue_id"].to_numpy() == queue_id)
                same[own & np.isin(entries["queue_offset"].to_numpy(), places)] = False
        # A light queue's record names its own queue.
        light = pc.starts_with(entries["topic"], LMQ_PREFIX).to_numpy()
        return right & (light | (place & same)), at

    def judged(self, odd: Odd, bounds: EntryBounds, queues: AbstractSet[Queue]) -> Judged:
        right, at = self.right(odd)
        entries = self.entries.select(ENTRIES.names)
        ends = entries.filter(pa.array(right)).group_by(["topic", "queue_id"])
        last = ends.aggregate([("queue_offset", "max")]).select(["topic", "queue_id", "queue_offset_max"])
        there = np.zeros(len(self.records), dtype=bool)
        # A light queue's entry names a record of another queue, whose own may be missing.
        light = pc.starts_with(entries["topic"], LMQ_PREFIX).to_numpy()
        there[at[right & ~light]] = True
        lacking = self.records.filter(pa.array(~there & (self.offset >= bounds.start)))
        return Judged(
            entries.filter(pa.array(~right & bounds.concern(entries))),
            lacking.filter(pa.array(of_queues(lacking, queues))),
            last.rename_columns(["topic", "queue_id", "queue_offset"]),
        )

    def delays(self) -> Iterator[tuple[Queue, Any, Any]]:
        """Of each queue of delayed messages the places with a record, and how long it is delayed, ms."""
        right, at = self.right({})
        if not len(self.offset) or not len(right):
            return
        stored = self.records["tags_code"].to_numpy()[at]
        right = right & pc.equal(self.entries["topic"], SCHEDULE_TOPIC).to_numpy() & (stored >= STORED_FROM)
        ids = self.entries["queue_id"].to_numpy()
        for queue_id in np.unique(ids[right]).tolist():
            own = right & (ids == queue_id)
            delays = differences(self.entries["entry_tags"].to_numpy()[own], stored[own])
            yield (SCHEDULE_TOPIC, queue_id), self.entries["queue_offset"].to_numpy()[own], delays
