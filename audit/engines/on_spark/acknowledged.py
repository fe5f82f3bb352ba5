"""Which record is each acknowledged message, and what did nobody send? ``audit.engines.acknowledged``, a part
of the ledger a task.

The log is read once for all views. Its records go to the parts of their keys, halves of transactions first to
those of their places, where op records name them; and lines that have their message to the parts of their
queues, where their order is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD

from audit.engines.acknowledged import (
    ENDS,
    FOUND,
    RECORDS,
    best,
    candidates,
    ended_halves,
    ends_of,
    opened,
    part_faults,
    placed,
    tail,
    together,
)
from audit.engines.acknowledged import JOINED as JOINED_ROWS
from audit.engines.on_spark.cluster import KEPT, Cluster, release
from audit.engines.on_spark.ledger import LINES, SENT, LedgerRows
from audit.engines.on_spark.records import check_same
from audit.engines.on_spark.spreading import (
    CHUNKS,
    Element,
    Waiting,
    in_parts,
    part_of,
    queue_part,
    shuffled,
    spread_out,
    tables,
    workers_folder,
)
from audit.engines.order import out_of_order
from audit.engines.pieces import packed, unpacked
from audit.engines.relate import SEEN, seen, strange
from audit.engines.spill import Rows, SpillTask, spill_scan
from audit.ledgers.columns import LEDGER
from audit.ledgers.history import SENT as SENT_ROWS
from audit.ledgers.ledger import Ledger
from audit.reading.records.transactions import HALF_TOPIC
from audit.rows.parts import Folder, hashes
from audit.tables import LOG, Again, SearchedView, Tail, Task, View, bytes_of

BODIES: Final = "records"
HALVES: Final = "halves"
OPS: Final = "ends"
TOLD: Final = "told"
STRANGE: Final = "seen"
JOINED: Final = "joined"
PLACED: Final = "placed"
LATE: Final = "late"
"""Kinds of rows."""

_REPLICA: Final = LOG.field("replica")
_OFFSET: Final = LOG.field("offset")
_OF_LOG: Final = {
    BODIES: RECORDS.append(_REPLICA),
    HALVES: RECORDS.append(_REPLICA),
    OPS: ENDS.append(_REPLICA).append(_OFFSET),
    STRANGE: SEEN.append(_REPLICA),
}
_PLACED: Final = pa.schema(
    [
        JOINED_ROWS.field(name)
        for name in (
            *("line", "uniq_key", "topic", "queue_id", "queue_offset"),
            *("offset", "begun_ms", "acked_ms"),
        )
    ]
)
LOTS: Final = 32
"""Of the halves of a part, that are looked at one after the other."""
KEYS_MAX: Final = 1_000_000
"""Lines of a ledger, of which workers know all keys' hashes: no other record leaves them."""
BORDERS_MAX: Final = 256
"""Stretches of the log in which one task looks at the order of its queues."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a ledger asks of the log. ``topics``: of which each send is known; ``keys``: the hashes of all,
    ascending; none: of any."""

    parts: int
    unnamed: bool
    topics: tuple[str, ...]
    keys: Any

    @classmethod
    def of(cls, ledger: Ledger) -> Wanted:
        few = len(ledger) <= KEYS_MAX
        own = [hashes(ledger.part(n)["uniq_key"]) for n in range(ledger.parts)] if few else []
        keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *own]))
        return cls(ledger.parts, ledger.has_unnamed, tuple(sorted(ledger.topics)), keys)

    def near(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose keys may be asked for."""
        if not len(self.keys) or not len(rows):
            return rows
        own = hashes(rows["uniq_key"])
        at = np.minimum(np.searchsorted(self.keys, own), len(self.keys) - 1)
        return rows.filter(pa.array(self.keys[at] == own))


class Acknowledged:
    """One ledger, and the log of these tasks. ``chunks``: what an earlier scan met there."""

    def __init__(self, cluster: Cluster, ledger: Ledger, tasks: list[Task], chunks: pa.Table) -> None:
        self.lines = LedgerRows(cluster, ledger)
        self._cluster, self._chunks = cluster, chunks
        self._wanted = Wanted.of(ledger)
        self._joined: dict[View, RDD[Element]] = {}
        log = cluster.each(tasks, bytes_of(tasks)).flatMap(partial(_scanned, self._wanted))
        self._log = self._kept(log)
        self._halves = False
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _kept(self, elements: RDD[Element]) -> RDD[Element]:
        return shuffled(elements, self._wanted.parts).persist(KEPT)

    def _check(self) -> None:
        """The log is the one that was scanned before."""
        found = in_parts(_facts, self._log).collect()
        self._halves = any(kind == HALVES for kind, _ in found)
        chunks = [unpacked(raw, 1)[0] for kind, raw in found if kind == CHUNKS]
        check_same(pa.concat_tables([LOG.empty_table(), *chunks]), self._chunks)

    def joined(self, view: View) -> RDD[Element]:
        """JOINED rows of the ledger's parts."""
        if view not in self._joined:
            rows = [self._log, self.lines.lines()]
            if self._halves:
                told = in_parts(partial(_told, view, self._wanted.parts), self._log, stay=False)
                rows.append(shuffled(told, self._wanted.parts))
            self._joined[view] = in_parts(partial(_joined, view), *rows).persist(KEPT)
        return self._joined[view]

    def faults(self, asked: Sequence[SearchedView], again: tuple[Again, ...]) -> RDD[bytes]:
        """ACKED rows; those of a line are in one element."""
        rows, parts = [], self._wanted.parts
        for at, ask in enumerate(asked):
            joined = self.joined(ask.view)
            of_queues = in_parts(partial(_placed, ask, parts), joined, stay=False)
            late = partial(_late, at, self._borders(ask.view), again, parts)
            rows.append(in_parts(partial(_numbered, at), joined))
            rows.append(shuffled(in_parts(late, shuffled(of_queues, parts), stay=False), parts))
        return in_parts(partial(_faults, tuple(asked)), *rows)

    def _borders(self, view: View) -> list[int]:
        of = pc.is_in(self._chunks["replica"], pa.array({view.base, view.replica}, pa.int32()))
        starts = sorted(set(self._chunks.filter(of)["offset"].to_pylist()))
        return [-1, *starts[1 :: len(starts) // BORDERS_MAX + 1]]

    def behind(self, view: View, offset: int, lacking: View | None) -> Tail:
        rows = [in_parts(partial(_numbered, 0), self.joined(view))]
        if lacking is not None:
            rows.append(in_parts(partial(_numbered, 1), self.joined(lacking)))
        return together(in_parts(partial(_tail, offset, lacking is not None), *rows).collect())

    def strangers(self, view: View) -> RDD[bytes]:
        """STRANGERS rows."""
        return in_parts(partial(_strangers, view), self._log, self.lines.sent())

    def close(self) -> None:
        release(*self._joined.values(), self._log)
        self._joined.clear()
        self.lines.close()


def _scanned(wanted: Wanted, task: Task) -> Iterator[Element]:
    """What a stretch of the log has for the parts of a ledger."""
    own = View(task.replica, task.replica, ())
    folder = Folder(workers_folder())
    try:
        spilled = spill_scan(SpillTask(task, folder.file("records")))
        yield from spread_out(CHUNKS, spilled.chunks, np.zeros(len(spilled.chunks), np.int64))
        rows = Rows(spilled.pieces, *([one] if one else [] for one in (spilled.ended, spilled.damage)))
        for batch in candidates(rows, own, unnamed=wanted.unnamed):
            yield from _bodies(_of_replica(task.replica, wanted.near(batch)), wanted.parts)
        for ended in rows.ended(own):
            ops = ends_of(ended).append_column(_REPLICA, ended["replica"])
            yield from _by_place(OPS, ops.append_column(_OFFSET, ended["offset"]), wanted.parts)
        if wanted.topics:
            for batch in seen(rows, own, wanted.topics):
                there = _of_replica(task.replica, batch)
                yield from spread_out(STRANGE, there, part_of(there["uniq_key"], wanted.parts))
    finally:
        folder.close()


def _of_replica(replica: int, batch: pa.RecordBatch) -> pa.Table:
    return pa.table(batch).append_column(_REPLICA, pa.array(np.full(len(batch), replica, np.int32)))


def _bodies(rows: pa.Table, parts: int) -> Iterator[Element]:
    is_half = pc.equal(rows["found_topic"], HALF_TOPIC)
    if pc.any(is_half, min_count=0).as_py():
        yield from _by_place(HALVES, rows.filter(is_half), parts)
        rows = rows.filter(pc.invert(is_half))
    yield from spread_out(BODIES, rows, part_of(rows["uniq_key"], parts))


def _by_place(kind: str, rows: pa.Table, parts: int) -> Iterator[Element]:
    yield from spread_out(kind, rows, rows["found_queue_offset"].to_numpy() % parts)


def _facts(part: int, elements: Iterable[Element]) -> Iterator[tuple[str, bytes]]:
    """The chunks, and whether there are halves."""
    halves = False
    for _, (kind, raw) in elements:
        if kind == CHUNKS:
            yield kind, raw
        halves |= kind == HALVES
    if halves:
        yield HALVES, b""


def _told(view: View, parts: int, part: int, elements: Iterable[Element]) -> Iterator[Element]:
    """The halves of a view, each with how its transaction ended, for the parts of their keys."""
    schemas = {kind: _OF_LOG[kind] for kind in (HALVES, OPS)}
    with Waiting(elements, schemas, view, partial(_lot, parts), LOTS) as rows:
        for lot in range(LOTS):
            halves, ends = (rows.all(kind, lot) for kind in (HALVES, OPS))
            told = ended_halves(halves.select(RECORDS.names), ends.select(ENDS.names))
            yield from spread_out(TOLD, told, part_of(told["uniq_key"], parts))


def _lot(parts: int, rows: pa.Table) -> Any:
    """By place, as the part."""
    return rows["found_queue_offset"].to_numpy() // parts % LOTS


def _joined(view: View, part: int, elements: Iterable[Element]) -> Iterator[Element]:
    schemas = {LINES: LEDGER, BODIES: _OF_LOG[BODIES], TOLD: FOUND}
    with Waiting(elements, schemas, view) as rows:
        lines = rows.all(LINES).sort_by("line")
        joined = best(lines, chain(map(_opened, rows.batches(BODIES)), rows.batches(TOLD)))
        if len(joined):
            yield part, (JOINED, packed(joined))


def _opened(rows: pa.Table) -> pa.Table:
    return pa.table(opened(rows.select(RECORDS.names)))


def _placed(ask: SearchedView, parts: int, part: int, elements: Iterable[Element]) -> Iterator[Element]:
    """The lines whose messages tell their order, for the parts of their queues."""
    for table in tables(JOINED, elements):
        rows = placed(table, ask).select(_PLACED.names)
        yield from spread_out(PLACED, rows, queue_part(rows, parts))


def _late(
    at: int,
    borders: list[int],
    again: tuple[Again, ...],
    parts: int,
    part: int,
    elements: Iterable[Element],
) -> Iterator[Element]:
    """The lines of these queues that stand in a wrong order, for the parts of their keys."""
    with Waiting(elements, {PLACED: _PLACED}, None) as rows:
        late = out_of_order(rows.batches(PLACED), borders, again, rows.folder)
        for table in rows.batches(PLACED):
            own = table.filter(pa.array(np.isin(table["line"].to_numpy(), late)))
            yield from spread_out(f"{LATE} {at}", own.select(["line"]), part_of(own["uniq_key"], parts))


def _numbered(at: int, part: int, elements: Iterable[Element]) -> Iterator[Element]:
    for _, (_, raw) in elements:
        yield part, (f"{JOINED} {at}", raw)


def _faults(asked: tuple[SearchedView, ...], part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    every = list(elements)
    parts = [tables(f"{JOINED} {at}", every) for at in range(len(asked))]
    if not parts[0]:
        return
    late = [tables(f"{LATE} {at}", every) for at in range(len(asked))]
    none = np.zeros(0, np.int64)
    orders = [np.concatenate([none, *(rows["line"].to_numpy() for rows in own)]) for own in late]
    for table in part_faults([pa.concat_tables(own) for own in parts], asked, orders):
        yield packed(table)


def _tail(offset: int, both: bool, part: int, elements: Iterable[Element]) -> Iterator[Tail]:
    every = list(elements)
    own, other = tables(f"{JOINED} 0", every), tables(f"{JOINED} 1", every)
    if own:
        yield tail(pa.concat_tables(own), offset, pa.concat_tables(other) if both else None)


def _strangers(view: View, part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    with Waiting(elements, {STRANGE: _OF_LOG[STRANGE], SENT: SENT_ROWS}, view) as rows:
        found = strange(rows.all(STRANGE).select(SEEN.names), rows.all(SENT))
        if len(found):
            yield packed(found)
