"""Where are the rows of a scan on a cluster? What pieces of the log tell is kept; records are read again, and
kept, only for a question that the pieces do not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD

from audit.engines.on_spark.cluster import KEPT, Cluster, Keyed, collected, in_turn, release
from audit.engines.on_spark.reads import read_near
from audit.engines.pieces import KEYS, PIECE, PIECES, TWICE_MAX, PieceTask, packed, twice, unpacked
from audit.engines.told import Told
from audit.tables import CHUNK, DAMAGE, LOG, EngineError, Task, View, bytes_of

PART_BYTES: Final = 256 * 1024 * 1024
"""Of the log, whose keys' hashes one task compares: 20 MB, where records are of 100 bytes."""
PARTS_MAX: Final = 1024
NEAR_BYTES_MIN: Final = 64 * 1024 * 1024
"""Of the log; what is smaller is read whole."""
NEAR_MAX: Final = 2
"""Of some of the records."""
TABLE_ROWS: Final = 8_000
_PLACE: Final = ["replica", "offset"]
_TOLD: Final = pa.schema([PIECES.field(name) for name in ("replica", "offset", "told")])


class PiecedRows:
    """What the pieces of each task tell, kept: some rows a queue and piece, and eight bytes a key."""

    def __init__(self, cluster: Cluster, tasks: list[Task]) -> None:
        self._cluster, self.tasks = cluster, tasks
        self._bytes = bytes_of(tasks)
        self._parts = min(PARTS_MAX, self._bytes // PART_BYTES + 1)
        jobs = [PieceTask(task, self._parts) for task in tasks]
        self._kept = cluster.read("pieces", jobs, self._bytes).persist(KEPT)
        self._read: dict[tuple[str, ...], RDD[bytes]] = {}
        try:
            heads = collected(self._kept.flatMap(partial(_rows_of, (CHUNK, PIECE), LOG)), LOG)
        except BaseException:
            release(self._kept)  # the session may be the program's
            raise
        self.chunks = heads.filter(pc.equal(heads["row"], CHUNK))
        self.told = Told(heads.filter(pc.equal(heads["row"], PIECE)), self._fetch)

    def _fetch(self) -> pa.Table:
        return collected(self._kept.flatMap(partial(_rows_of, (PIECE,), _TOLD)), _TOLD)

    def damage(self) -> Iterator[pa.Table]:
        """LOG rows, of each replica by offset and kind; those of one offset are in one table."""
        starts: dict[int, list[int]] = {}
        for replica, offset in sorted(zip(*(self.chunks[n].to_pylist() for n in _PLACE), strict=True)):
            starts.setdefault(replica, []).append(offset)
        count = self._cluster.partitions(len(self.chunks))
        rows = self._kept.flatMap(partial(_rows_of, (DAMAGE,), LOG))
        placed = rows.flatMap(partial(_by_place, starts, count)).partitionBy(count, int)
        return in_turn(placed.mapPartitions(_in_order))

    def twice(self, view: View) -> list[int] | None:
        """Hashes of all keys of users that may stand twice in a view; None: not known."""
        pieces = self.told.of(view)
        if pieces is None:
            return None
        if not pieces:
            return []
        taken = None
        if len(pieces) < len(self.told.pieces):
            taken = {(piece.replica, piece.first) for piece in pieces}
        rows = self._kept.flatMap(partial(_keys, taken)).partitionBy(self._parts, int)
        found: list[int] = rows.mapPartitions(_twice).take(TWICE_MAX)
        return found if len(found) < TWICE_MAX else None

    def whole(self) -> RDD[bytes]:
        """LOG rows, kept; each task's in log order."""
        return self._again((), lambda: self._cluster.read("scan", self.tasks, self._bytes))

    def near(self, topics: Sequence[str]) -> RDD[bytes]:
        """At least those of the records of these topics."""
        key = tuple(topics)
        many = len(self._read) >= NEAR_MAX and key not in self._read
        if () in self._read or self._bytes < NEAR_BYTES_MIN or many:
            return self.whole()
        tasks = self._cluster.each(self.tasks, self._bytes)
        return self._again(key, lambda: tasks.flatMap(partial(read_near, key, ())))

    def _again(self, key: tuple[str, ...], read: Callable[[], RDD[bytes]]) -> RDD[bytes]:
        if key not in self._read:
            rows = self._read[key] = read().persist(KEPT)
            check_same(collected(rows.flatMap(partial(_rows_of, (CHUNK,), LOG)), LOG), self.chunks)
        return self._read[key]

    def close(self) -> None:
        release(*self._read.values(), self._kept)


def check_same(chunks: pa.Table, before: pa.Table) -> None:
    """Whether tasks met the same records, and as much damage. Raises EngineError."""
    order = [("replica", "ascending"), ("offset", "ascending")]
    if not chunks.sort_by(order).equals(before.sort_by(order)):
        raise EngineError("a log was read again, and was not the same")


def _rows_of(kinds: tuple[int, ...], schema: pa.Schema, raw: bytes) -> Iterator[bytes]:
    (rows,) = unpacked(raw, 1)
    rows = rows.filter(pc.is_in(rows["row"], pa.array(kinds, pa.int8())))
    if len(rows):
        yield packed(rows.select(schema.names))


def _by_place(starts: Mapping[int, list[int]], count: int, raw: bytes) -> Iterator[Keyed]:
    """Rows by the stretch in which they are; stretches of each replica by offset, in ``count`` parts."""
    (rows,) = unpacked(raw, 1)
    replicas, before, whole = rows["replica"].to_numpy(), 0, sum(map(len, starts.values()))
    for replica, own in sorted(starts.items()):
        here = rows.filter(pa.array(replicas == replica))
        number = np.searchsorted(np.array(own), here["offset"].to_numpy(), "right") - 1
        part = (before + np.maximum(number, 0)) * count // whole
        for at in np.unique(part).tolist():
            yield at, packed(here.filter(pa.array(part == at)))
        before += len(own)


def _in_order(rows: Iterable[Keyed]) -> Iterator[bytes]:
    found = [unpacked(raw, 1)[0] for _, raw in rows]
    if not found:
        return
    every = pa.concat_tables(found).sort_by([(name, "ascending") for name in (*_PLACE, "kind")])
    offset = every["offset"].to_numpy()
    at = 0
    while at < len(every):
        end = min(at + TABLE_ROWS, len(every))
        (others,) = np.nonzero(offset[end:] != offset[end - 1])
        end = end + int(others[0]) if len(others) else len(every)
        yield packed(every.slice(at, end - at))
        at = end


def _keys(taken: set[tuple[int, int]] | None, raw: bytes) -> Iterator[Keyed]:
    """Hashes of keys of the pieces that are ``taken``, by part."""
    (rows,) = unpacked(raw, 1)
    rows = rows.filter(pc.equal(rows["row"], KEYS)).select(["replica", "offset", "queue_id", "told"])
    for replica, offset, part, told in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        if taken is None or (replica, offset) in taken:
            yield part, told


def _twice(rows: Iterable[Keyed]) -> list[int]:
    return twice(told for _, told in rows)
