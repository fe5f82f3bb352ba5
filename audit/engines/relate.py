"""Do queues, keys and acknowledgements agree with the records? Asked of rows in files, in Arrow and numpy.

Rows are read in log order, a chunk at a time; what is kept grows with queues and with what is wrong, not with
records. ``audit.engines.on_spark`` runs these functions on a cluster; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.engines.acknowledged import Joined, faults, told_bodies
from audit.engines.entries import entered
from audit.engines.queue_runs import QueueCodes, QueueRuns
from audit.engines.spill import EVERYWHERE, Rows, Spilled, others_of, spill
from audit.ledgers.history import REFUSED, UNKNOWN
from audit.ledgers.ledger import Ledger
from audit.reading.derived.queue_files import QueueFile
from audit.rows.numbers import sums
from audit.rows.parts import Folder, Parts, hashes
from audit.tables import (
    COPIES,
    DUPLICATES,
    EXTENTS,
    LOG,
    QUEUES,
    STRANGERS,
    TAKEN,
    Again,
    Entered,
    EntryBounds,
    SearchedView,
    Tail,
    View,
)
from model.message import INNER_BATCH

# Topics in which one message may stand more than once.
SYSTEM_TOPIC: Final = r"^(%RETRY%|%DLQ%|SCHEDULE_TOPIC_XXXX$|rmq_sys_|RMQ_SYS_|TRANS_CHECK_MAX_TIME_TOPIC$)"
PREPARED: Final = 0x4
ROLLBACK: Final = 0xC

CHUNK_ROWS: Final = 200_000
HASHES_MAX: Final = 8_000_000
"""Of keys that are compared in one pass over the log."""
COPIES_MAX: Final = 100_000
"""Keys that stand more than once and are looked at in one pass."""


def lawful(rows: pa.RecordBatch | pa.Table) -> Any:
    """Which records belong into queues: none of transactions that are prepared or undone."""
    kind = rows["sys_flag"].to_numpy() & ROLLBACK
    return (kind != PREPARED) & (kind != ROLLBACK)


def of_users(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records with a key, of topics in which a message stands once."""
    topics = batch["topic"].dictionary_encode()
    system = [bool(re.match(SYSTEM_TOPIC, name)) for name in topics.dictionary.to_pylist()]
    keep = pc.not_equal(batch["uniq_key"], "")
    if any(system):
        users = ~np.array(system)[topics.indices.to_numpy()]
        keep = pc.and_(keep, pa.array(users))
    return batch.filter(keep)


SEEN: Final = pa.schema([*DUPLICATES, LOG.field("body_crc")])


class LocalLog:
    """Records and damage in files, of each task in the order of the tasks."""

    def __init__(self, folder: Folder, spilled: Sequence[Spilled]) -> None:
        pieces = [piece for one in spilled for piece in one.pieces]
        self._chunks = pa.concat_tables([LOG.empty_table(), *(one.chunks for one in spilled)])
        self._damage = [one.damage for one in spilled if one.damage]
        self._records = sum(piece.rows for piece in pieces)
        ended = [one.ended for one in spilled if one.ended]
        self._rows = Rows(pieces, ended, self._damage)
        self._folder = folder
        self._joined: dict[View, Joined] = {}

    def chunks(self) -> pa.Table:
        return self._chunks

    def damage(self) -> Iterator[pa.Table]:
        yield from others_of(self._damage)

    def record_count(self) -> int:
        return self._records

    def close(self) -> None:
        self._joined.clear()
        self._rows.release()
        self._folder.close()

    def queued(
        self, view: View, columns: Sequence[str], within: tuple[int, int] = EVERYWHERE
    ) -> Iterator[pa.Table]:
        """Records that belong into queues, in chunks: none of transactions that are prepared or undone."""
        waiting: list[pa.RecordBatch] = []
        for batch in self._rows.batches(view, [*dict.fromkeys([*columns, "offset", "sys_flag"])], within):
            own = lawful(batch)
            waiting.append(batch if own.all() else batch.filter(pa.array(own)))
            if sum(map(len, waiting)) >= CHUNK_ROWS:
                yield pa.Table.from_batches(waiting).combine_chunks()
                waiting = []
        if waiting:
            yield pa.Table.from_batches(waiting).combine_chunks()

    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table:
        runs = QueueRuns(before, most)
        for table in self.queued(view, QUEUES.names):
            runs.take(table)
        return runs.broken(whole=whole)

    def first_taken(self, view: View, places: pa.Table) -> pa.Table:
        found = []
        for table in self.queued(view, TAKEN.names[:3]):
            near = pc.is_in(table["queue_offset"], value_set=places["queue_offset"].combine_chunks())
            rows = places.join(
                table.filter(near).drop_columns(["sys_flag"]), TAKEN.names[:3], join_type="inner"
            )
            found.append(rows.filter(pc.greater_equal(rows["offset"], rows["since"])))
        if not found:
            return pa.table({**{name: [] for name in TAKEN.names}, "offset": []})
        rows = pa.concat_tables(found)
        return (
            rows.group_by(TAKEN.names).aggregate([("offset", "min")]).rename_columns([*TAKEN.names, "offset"])
        )

    def last_places(self, view: View, begin: int, end: int, size: int) -> pa.Table:
        codes = QueueCodes()
        last: dict[tuple[int, int], dict[str, Any]] = {}
        for table in self.queued(view, QUEUES.names, (begin, end)):
            segment = table["offset"].to_numpy() // size
            for at in np.unique(segment).tolist():
                own = table.select(QUEUES.names).filter(pa.array(segment == at))
                queue = codes.of(own)
                numbers, behind = np.unique(queue[::-1], return_index=True)
                rows = own.take(pa.array(len(queue) - 1 - behind)).to_pylist()
                last.update(zip(((at, number) for number in numbers.tolist()), rows, strict=True))
        return pa.Table.from_pylist(list(last.values()), schema=QUEUES)

    def _of_users(
        self, view: View, columns: Sequence[str], within: tuple[int, int] = EVERYWHERE
    ) -> Iterator[pa.RecordBatch]:
        """Records with a key, of topics in which a message stands once."""
        for batch in self._rows.batches(view, columns, within):
            yield of_users(batch)

    def keyed(self, view: View, begin: int, end: int) -> pa.Table:
        batches = list(self._of_users(view, DUPLICATES.names, (begin, end)))
        return pa.Table.from_batches(batches, schema=DUPLICATES)

    def copies(self, view: View) -> Iterator[pa.Table]:
        passes = (self._rows.count(view.base) + self._rows.count(view.replica)) // HASHES_MAX + 1
        for n in range(passes):
            twice = self._hashes_twice(view, n, passes)
            for at in range(0, len(twice), COPIES_MAX):
                yield self._copies_of(view, twice[at : at + COPIES_MAX])

    def _hashes_twice(self, view: View, n: int, passes: int) -> Any:
        """Hashes of keys that more than one record has, ascending; of all, one in ``passes``."""
        found = [np.zeros(0, np.uint64)]
        for batch in self._of_users(view, ["offset", "topic", "uniq_key"]):
            own = hashes(batch["uniq_key"])
            found.append(own if passes == 1 else own[own % np.uint64(passes) == n])
        every = np.concatenate(found)
        found.clear()
        every.sort()
        return np.unique(every[1:][every[1:] == every[:-1]])

    def _copies_of(self, view: View, twice: Any) -> pa.Table:
        """COPIES of the messages whose keys have these hashes: one topic, one key, not only one hash."""
        found = []
        for batch in self._of_users(view, DUPLICATES.names):
            own = hashes(batch["uniq_key"])
            at = np.minimum(np.searchsorted(twice, own), len(twice) - 1)
            if (hit := twice[at] == own).any():
                found.append(batch.filter(pa.array(hit)))
        return further(pa.Table.from_batches(found, schema=DUPLICATES))

    def strangers(self, ledger: Ledger, view: View) -> Iterator[pa.Table]:
        found = Parts(self._folder, SEEN, ledger.parts)
        for own in seen(self._rows, view, sorted(ledger.topics)):
            found.add(own, ledger.part_of(own["uniq_key"]))
        for n in range(ledger.parts):
            yield strange(found.part(n), ledger.sent(n))

    def _join(self, ledger: Ledger, view: View) -> Joined:
        if view not in self._joined:
            self._joined[view] = Joined(self._rows, ledger, view, self._folder)
        return self._joined[view]

    def acked(
        self, ledger: Ledger, asked: Sequence[SearchedView], again: tuple[Again, ...]
    ) -> Iterator[pa.Table]:
        joined = [self._join(ledger, ask.view) for ask in asked]
        yield from faults(joined, asked, again, self._folder)

    def acked_behind(self, ledger: Ledger, view: View, offset: int, lacking: View | None = None) -> Tail:
        other = self._join(ledger, lacking) if lacking is not None else None
        return self._join(ledger, view).behind(offset, other)

    def asked_all(self) -> bool:
        """The lines are in files of this audit's own."""
        return True

    def queue_starts(self, view: View, *, placed: bool = False) -> pa.Table:
        return self._of_queues(view, [], [("queue_offset", "min")], ["queue_offset"], placed=placed)

    def queue_ends(self, view: View, *, placed: bool = False) -> pa.Table:
        return self._of_queues(view, ["advance"], [("end", "max")], ["queue_offset"], placed=placed)

    def queue_extents(self, view: View, *, placed: bool = False) -> pa.Table:
        asked = [("offset", "min"), ("until", "max"), ("queue_offset", "min"), ("one", "sum")]
        return self._of_queues(view, ["until"], asked, EXTENTS[2:], batches=False, placed=placed)

    def _of_queues(
        self,
        view: View,
        columns: list[str],
        asked: list[tuple[str, str]],
        names: list[str],
        *,
        batches: bool = True,
        placed: bool,
    ) -> pa.Table:
        """``asked`` of each queue, as ``names``; without ``batches`` no inner batches count, with ``placed``
        only records that name the place where they stand."""
        queue = ["topic", "queue_id"]
        found = []
        for table in self.queued(view, ["replica", *queue, "queue_offset", *columns]):
            if placed and (misplaced := self._rows.misplaced(table)).any():
                table = table.filter(pa.array(~misplaced))
            if not batches:
                table = table.filter(pa.array((table["sys_flag"].to_numpy() & INNER_BATCH) == 0))
                table = table.append_column("one", pa.array(np.ones(len(table), np.int64)))
            if "advance" in columns:
                end = sums(table["queue_offset"].to_numpy(), table["advance"].to_numpy())
                table = table.append_column("end", pa.array(end))
            rows = table.group_by(queue).aggregate(asked)
            found.append(rows.select([*queue, *[f"{a}_{b}" for a, b in asked]]))
        if not found:
            return pa.table({name: [] for name in [*queue, *names]})
        again = [(f"{column}_{how}", how) for column, how in asked]
        rows = pa.concat_tables(found).group_by(queue).aggregate(again)
        return rows.select([*queue, *[f"{a}_{b}" for a, b in again]]).rename_columns([*queue, *names])

    def entered(self, view: View, files: Sequence[QueueFile], bounds: EntryBounds) -> Entered:
        borders = self._rows.borders(view, CHUNK_ROWS)
        return entered(lambda columns, within: self.queued(view, columns, within), borders, files, bounds)


def further(table: pa.Table) -> pa.Table:
    """COPIES of DUPLICATES rows, of which all of a key are there."""
    pairs = table.group_by(["topic", "uniq_key"], use_threads=False).aggregate([("offset", "min")])
    pairs = pairs.rename_columns(["topic", "uniq_key", "first"])
    rows = table.join(pairs, ["topic", "uniq_key"], join_type="inner", use_threads=False)
    rows = rows.filter(pc.greater(rows["offset"], rows["first"]))
    return rows.select(COPIES.names).cast(COPIES).sort_by("offset")


def seen(rows: Rows, view: View, topics: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """SEEN rows of these topics."""
    known = pa.array(topics, pa.string())
    for batch in rows.batches(view, [*SEEN.names, "plain_crc", "sys_flag"]):
        own = told_bodies(batch.filter(pc.is_in(batch["topic"], value_set=known)))
        yield own.select(SEEN.names)


def strange(there: pa.Table, sent: pa.Table) -> pa.Table:
    """STRANGERS of SEEN rows, and SENT rows of their keys. A key that was sent twice may be there if either
    send allows it."""
    rows = there.join(sent, ["topic", "uniq_key"], join_type="left outer")
    rows = rows.append_column("same", pc.fill_null(pc.equal(rows["body_crc"], rows["sent_crc"]), False))
    rows = rows.group_by(DUPLICATES.names).aggregate([("outcome", "min"), ("same", "any")])
    rows = rows.rename_columns([*DUPLICATES.names, "outcome", "same"])
    outcome = pc.fill_null(rows["outcome"], -1)
    other = pc.and_(pc.equal(outcome, UNKNOWN), pc.invert(rows["same"]))
    strange = pc.or_(pc.is_in(outcome, value_set=pa.array([-1, REFUSED], pa.int8())), other)
    rows = rows.set_column(rows.schema.get_field_index("outcome"), "outcome", outcome).filter(strange)
    return rows.select(STRANGERS.names).cast(STRANGERS).sort_by("offset")


def collect(batches: Iterable[pa.RecordBatch], inside: str | None = None) -> LocalLog:
    """The log of LOG batches, each replica's records in log order. ``inside``: where its files are."""
    folder = Folder(inside)
    return LocalLog(folder, [spill(folder.file("records"), batches)])
