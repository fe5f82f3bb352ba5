"""``audit.engines.entries`` on a cluster: a task looks at some stretches of the log, and at the entries that
name a place in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD

from audit.engines.entries import ENTRY, Odd, Stretch, odd_places
from audit.engines.on_spark.cluster import KEPT, Cluster, collected, in_turn, release
from audit.engines.on_spark.spreading import (
    Element,
    in_parts,
    queue_part,
    shuffled,
    spread_out,
    tables,
    workers_folder,
)
from audit.engines.pieces import packed, unpacked
from audit.engines.relate import lawful
from audit.engines.spill import of_view
from audit.reading.derived.queue_files import ENTRIES, Queue, QueueFile, read_entries
from audit.rows.numbers import sums
from audit.rows.parts import Folder, Parts
from audit.tables import LACKING, RECORD, UNENTERED, Entered, EntryBounds, View
from model.message import SCHEDULE_TOPIC

RECORDS: Final = "records"
NAMING: Final = "entries"
WRONG: Final = "wrong"
RIGHT: Final = "right"
LAST: Final = "last"
DELAYS: Final = "delays"
LACKED: Final = "lacked"
"""Kinds of rows."""

STRETCH_ROWS: Final = 200_000
"""Records of a stretch, about."""
STRETCH_PLACES: Final = 1_000_000
"""Of a queue, whose runs one task looks for."""
_PLACE: Final = UNENTERED.names[:3]
_PLACES: Final = pa.schema([UNENTERED.field(name) for name in _PLACE])
_DELAYS: Final = _PLACES.append(pa.field("delay", pa.int64()))


@dataclass(frozen=True, slots=True)
class Cut:
    """The stretches of a log begin at ``borders``; so many tasks share them, each those that follow each
    other."""

    borders: tuple[int, ...]
    parts: int

    def numbers(self, offsets: Any) -> Any:
        """Of the stretch of each offset."""
        return np.maximum(np.searchsorted(np.array(self.borders, np.int64), offsets, "right") - 1, 0)

    def part_of(self, numbers: Any) -> Any:
        return numbers * self.parts // len(self.borders)

    def of_part(self, part: int) -> tuple[int, int]:
        """From which stretch to which."""
        count = len(self.borders)
        return -(-part * count // self.parts), -(-(part + 1) * count // self.parts)


def cut(chunks: pa.Table, view: View, parts: int) -> Cut:
    """``chunks``: CHUNK rows of all replicas."""
    own = chunks.filter(pc.is_in(chunks["replica"], pa.array({view.base, view.replica}, pa.int32())))
    borders = {-1}
    for begin, end, count in zip(*(own[n].to_pylist() for n in ("offset", "until", "records")), strict=True):
        steps = -(-count // STRETCH_ROWS)
        borders |= {begin + (end - begin) * n // steps for n in range(steps)}
    return Cut(tuple(sorted(borders)), max(1, min(parts, len(borders))))


class EnteredRows:
    """``rows``: LOG rows at least of the files' topics, of a log."""

    def __init__(
        self, cluster: Cluster, rows: RDD[bytes], cuts: Cut, view: View, files: Sequence[QueueFile]
    ) -> None:
        self._cut = cuts
        self._delayed = any(file.topic == SCHEDULE_TOPIC for file in files)
        self._queues = frozenset((file.topic, file.queue_id) for file in files)
        records = rows.flatMap(partial(_records, cuts, view))
        entries = cluster.each(files, sum(file.size for file in files)).flatMap(partial(_entries, cuts))
        self._rows = shuffled(records.union(entries), cuts.parts).persist(KEPT)

    def judged(self, bounds: EntryBounds) -> Entered:
        parts = self._cut.parts
        odd = self._odd_dues() if self._delayed else {}
        judged = in_parts(partial(_judged, self._cut, odd, bounds, self._queues), self._rows).persist(KEPT)
        try:
            told = judged.filter(_is_told).collect()
            wrong = pa.concat_tables([ENTRIES.empty_table(), *tables(WRONG, told)])
            lacking = [LACKING.empty_table()]
            if any(kind == LACKED for _, (kind, _) in told):
                right = in_parts(partial(_right, self._cut, odd), self._rows)
                every = judged.union(right).flatMap(partial(_by_place, parts))
                runs = in_parts(partial(_lacking, bounds.cuts), shuffled(every, parts))
                lacking += in_turn(runs)
        finally:
            release(judged)
        last: dict[Queue, int] = {}
        for rows in tables(LAST, told):
            _take_last(last, rows)
        return Entered(wrong, pa.concat_tables(lacking), last)

    def _odd_dues(self) -> Odd:
        delays = shuffled(in_parts(partial(_delays, self._cut), self._rows, stay=False), self._cut.parts)
        rows = collected(in_parts(_odd, delays), _PLACES)
        found: dict[Queue, list[int]] = {}
        for topic, queue_id, place in zip(*(rows[name].to_pylist() for name in _PLACE), strict=True):
            found.setdefault((topic, queue_id), []).append(place)
        return {queue: np.array(places, np.int64) for queue, places in found.items()}

    def close(self) -> None:
        release(self._rows)


def _records(cuts: Cut, view: View, raw: bytes) -> Iterator[Element]:
    (rows,) = unpacked(raw, 1)
    rows = rows.filter(pc.equal(rows["row"], RECORD))
    rows = rows.filter(pa.array(of_view(view, rows) & lawful(rows)))
    number = cuts.numbers(rows["offset"].to_numpy())
    yield from spread_out(RECORDS, rows.select(UNENTERED.names), cuts.part_of(number))


def _entries(cuts: Cut, file: QueueFile) -> Iterator[Element]:
    for batch in read_entries(file):
        extended = pa.array(np.full(len(batch), file.extended))
        rows = pa.table(batch).append_column(ENTRY.field("extended"), extended)
        number = cuts.numbers(rows["entry_offset"].to_numpy())
        yield from spread_out(NAMING, rows, cuts.part_of(number))


def _stretches(cuts: Cut, part: int, elements: Iterable[Element]) -> Iterator[Stretch]:
    begin, end = cuts.of_part(part)
    folder = Folder(workers_folder())
    try:
        records, entries = Parts(folder, UNENTERED, end - begin), Parts(folder, ENTRY, end - begin)
        for _, (kind, raw) in elements:
            (rows,) = unpacked(raw, 1)
            if kind == RECORDS:
                records.add(rows, cuts.numbers(rows["offset"].to_numpy()) - begin)
            else:
                entries.add(rows, cuts.numbers(rows["entry_offset"].to_numpy()) - begin)
        for n in range(end - begin):
            own = records.part(n).sort_by("offset")
            yield Stretch(own.combine_chunks(), entries.part(n).combine_chunks())
    finally:
        folder.close()


def _delays(cuts: Cut, part: int, elements: Iterable[Element]) -> Iterator[Element]:
    """By queue: neighbours are compared."""
    for stretch in _stretches(cuts, part, elements):
        for (topic, queue_id), places, delays in stretch.delays():
            count = len(places)
            columns = [pa.repeat(topic, count), pa.array(np.full(count, queue_id, np.int32)), places, delays]
            rows = pa.table([pa.array(column) for column in columns], schema=_DELAYS)
            yield from spread_out(DELAYS, rows, queue_part(rows, cuts.parts))


def _odd(part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    by_queue: dict[Queue, list[pa.Table]] = {}
    for rows in tables(DELAYS, elements):
        ids = rows["queue_id"].to_numpy()
        for queue_id in np.unique(ids).tolist():
            own = rows.filter(pa.array(ids == queue_id))
            by_queue.setdefault((SCHEDULE_TOPIC, queue_id), []).append(own)
    for (topic, queue_id), own in by_queue.items():
        rows = pa.concat_tables(own)
        places = odd_places(rows["queue_offset"].to_numpy(), rows["delay"].to_numpy())
        count = len(places)
        columns = [pa.repeat(topic, count), pa.array(np.full(count, queue_id, np.int32)), pa.array(places)]
        yield packed(pa.table(columns, schema=_PLACES))


def _judged(
    cuts: Cut,
    odd: Odd,
    bounds: EntryBounds,
    queues: frozenset[Queue],
    part: int,
    elements: Iterable[Element],
) -> Iterator[Element]:
    """What is wrong in each stretch, the last right place of each queue, and records without a right entry
    there."""
    lacks = False
    last: dict[Queue, int] = {}
    for stretch in _stretches(cuts, part, elements):
        found = stretch.judged(odd, bounds, queues)
        for kind, rows in ((WRONG, found.wrong), (RECORDS, found.unentered)):
            if len(rows):
                yield part, (kind, packed(rows))
        lacks |= len(found.unentered) > 0
        _take_last(last, found.last)
    if last:
        rows = [dict(zip(_PLACE, (*queue, place), strict=True)) for queue, place in last.items()]
        yield part, (LAST, packed(pa.Table.from_pylist(rows, schema=_PLACES)))
    if lacks:
        yield part, (LACKED, b"")


def _is_told(element: Element) -> bool:
    return element[1][0] != RECORDS


def _take_last(last: dict[Queue, int], rows: pa.Table) -> None:
    for topic, queue_id, place in zip(*(rows[name].to_pylist() for name in _PLACE), strict=True):
        last[topic, queue_id] = max(last.get((topic, queue_id), -1), place)


def _right(cuts: Cut, odd: Odd, part: int, elements: Iterable[Element]) -> Iterator[Element]:
    """The places of right entries."""
    for stretch in _stretches(cuts, part, elements):
        right, _ = stretch.right(odd)
        rows = stretch.entries.filter(pa.array(right)).select(_PLACE)
        if len(rows):
            yield part, (RIGHT, packed(rows))


def _by_place(parts: int, element: Element) -> Iterator[Element]:
    """Records without a right entry, entries that are right, and those that are not, of the same places."""
    kind, raw = element[1]
    if kind not in (RECORDS, RIGHT, WRONG):
        return
    (rows,) = unpacked(raw, 1)
    stretch = rows["queue_offset"].to_numpy() // STRETCH_PLACES
    yield from spread_out(kind, rows, (queue_part(rows, parts) + stretch) % parts)


def _lacking(cuts: Sequence[int], part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    every = list(elements)
    if not (records := tables(RECORDS, every)):
        return
    rows = pa.concat_tables(records)
    near = rows.select(_PLACE)
    right = [
        table.join(near, _PLACE, join_type="left semi", use_threads=False) for table in tables(RIGHT, every)
    ]
    if right:
        taken = pa.concat_tables(right)
        rows = rows.join(taken, _PLACE, join_type="left anti", use_threads=False).cast(UNENTERED)
    wrong = pa.concat_tables([_PLACES.empty_table(), *(t.select(_PLACE) for t in tables(WRONG, every))])
    if len(rows):
        yield packed(runs(rows, wrong, cuts))


def runs(lacking: pa.Table, wrong: pa.Table, cuts: Sequence[int]) -> pa.Table:
    """LACKING rows: consecutive places whose records ascend are one, for the driver may not hold each record
    of a store that has no entries. Alone is a record that a wrong entry names, or that reaches over a cut."""
    named = wrong.group_by(_PLACE, use_threads=False).aggregate([])
    named = named.append_column("named", pa.array(np.ones(len(named), bool)))
    rows = lacking.join(named, _PLACE, join_type="left outer", use_threads=False)
    rows = rows.sort_by([(name, "ascending") for name in (*_PLACE, "offset")])
    place, offset = rows["queue_offset"].to_numpy(), rows["offset"].to_numpy()
    queue = queue_number(rows)
    follows = np.concatenate(([False], queue[1:] == queue[:-1]))
    # Of several records at one place the last has it.
    taken = np.concatenate((follows[1:] & (place[1:] == place[:-1]), [False]))
    rows, place, offset, queue = rows.filter(pa.array(~taken)), place[~taken], offset[~taken], queue[~taken]
    edges = np.array(cuts, np.int64)
    first = np.searchsorted(edges, offset, "right")
    alone = first != np.searchsorted(edges, rows["until"].to_numpy() - 1, "right")
    alone |= np.asarray(pc.fill_null(rows["named"], False))
    goes_on = (queue[1:] == queue[:-1]) & (place[1:] // STRETCH_PLACES == place[:-1] // STRETCH_PLACES)
    goes_on &= (sums(place[:-1], np.ones(len(place) - 1, np.int64)) == place[1:]) & (offset[:-1] < offset[1:])
    goes_on &= (first[1:] == first[:-1]) & ~alone[1:] & ~alone[:-1]
    begins = np.concatenate(([True], ~goes_on))
    (at,) = np.nonzero(begins)
    reach = np.maximum.reduceat(rows["until"].to_numpy(), at)
    counts = np.diff(np.append(at, len(begins)))
    found = rows.select(UNENTERED.names).take(pa.array(at))
    return pa.table([*found.columns, pa.array(reach), pa.array(counts)], schema=LACKING)


def queue_number(rows: pa.Table) -> Any:
    """Rows of one queue have one number."""
    topics = rows["topic"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return topics << 32 | rows["queue_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF
