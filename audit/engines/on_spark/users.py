"""Which messages of users have a key, and which stand twice? The log is read once more, and of its records
what a duplicate is told by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD

from audit.engines.on_spark.cluster import KEPT, Cluster, in_turn, release
from audit.engines.on_spark.reads import read_near
from audit.engines.on_spark.records import check_same
from audit.engines.on_spark.spreading import CHUNKS, Element, in_parts, shuffled, spread_out, tables
from audit.engines.pieces import packed, unpacked
from audit.engines.relate import further, of_users
from audit.engines.spill import of_view
from audit.rows.parts import hashes
from audit.tables import CHUNK, DUPLICATES, LOG, RECORD, Task, View, bytes_of

ROWS: Final = "rows"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of a view, the records that begin in it; and into how many parts their keys go."""

    view: View
    begin: int
    end: int
    parts: int


class Users:
    """``tasks``: of one scan, which met ``chunks``."""

    def __init__(self, cluster: Cluster, tasks: list[Task], chunks: pa.Table) -> None:
        self._cluster, self._tasks, self._chunks = cluster, tasks, chunks

    def keyed(self, view: View, begin: int, end: int) -> pa.Table:
        """DUPLICATES rows of all that begin there."""
        # A task tells a record that begins before its stretch, but in its segment.
        near = [task for task in self._tasks if task.segment_base < end and begin < task.end]
        read = self._cluster.read("scan", near, bytes_of(near))
        rows = self._spread(read, Stretch(view, begin, end, 1))
        try:
            self._check(rows, near)
            found = tables(ROWS, rows.collect())
        finally:
            release(rows)
        return pa.concat_tables([DUPLICATES.empty_table(), *found])

    def copies(self, view: View, hashes: Sequence[int] | None) -> Iterator[pa.Table]:
        """COPIES rows. ``hashes``: that keys have which stand twice; None: not known."""
        own = Stretch(view, -1, 1 << 62, self._cluster.partitions(1 << 20))
        size = bytes_of(self._tasks)
        if hashes is None:
            read = self._cluster.read("scan", self._tasks, size)
        else:
            read = self._cluster.each(self._tasks, size).flatMap(partial(read_near, (), tuple(hashes)))
        rows = self._spread(read, own)
        try:
            self._check(rows, self._tasks)
            yield from in_turn(in_parts(_copies, rows))
        finally:
            release(rows)

    def _spread(self, read: RDD[bytes], own: Stretch) -> RDD[Element]:
        return shuffled(read.flatMap(partial(_spread, own)), own.parts).persist(KEPT)

    def _check(self, rows: RDD[Element], tasks: list[Task]) -> None:
        """What was read is what the scan read."""
        met = [unpacked(raw, 1)[0] for raw in in_parts(_chunks, rows).collect()]
        starts = {(task.replica, task.start) for task in tasks}
        places = zip(*(self._chunks[name].to_pylist() for name in ("replica", "offset")), strict=True)
        before = self._chunks.filter(pa.array([place in starts for place in places], pa.bool_()))
        check_same(pa.concat_tables([LOG.empty_table(), *met]), before)


def _spread(own: Stretch, raw: bytes) -> Iterator[Element]:
    (rows,) = unpacked(raw, 1)
    chunks = rows.filter(pc.equal(rows["row"], CHUNK))
    yield from spread_out(CHUNKS, chunks, np.zeros(len(chunks), np.int64))
    rows = rows.filter(pc.equal(rows["row"], RECORD))
    offset = rows["offset"].to_numpy()
    rows = rows.filter(pa.array(of_view(own.view, rows) & (own.begin <= offset) & (offset < own.end)))
    for batch in rows.to_batches():
        found = of_users(batch).select(DUPLICATES.names)
        part = hashes(found["uniq_key"]) % np.uint64(own.parts)
        yield from spread_out(ROWS, found, part.astype(np.int64))


def _chunks(part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    return (packed(table) for table in tables(CHUNKS, elements))


def _copies(part: int, elements: Iterable[Element]) -> Iterator[bytes]:
    found = further(pa.concat_tables([DUPLICATES.empty_table(), *tables(ROWS, elements)]))
    for at in range(0, len(found), 8_000):
        yield packed(found.slice(at, 8_000))
