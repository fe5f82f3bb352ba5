"""How do rows of several kinds come together by the parts of a ledger? As elements (part, (kind, rows)) that
are shuffled once, so that a task has all of one part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import RDD, TaskContext

from audit.engines.pieces import packed, unpacked
from audit.engines.spill import of_view
from audit.rows.parts import Folder, Parts, hashes
from audit.tables import EngineError, View

Element = tuple[int, tuple[str, bytes]]
OfPart = Callable[[int, Iterable[Element]], Iterator[Any]]

CHUNKS: Final = "chunks"
"""The kind of a task's seams, by which a log that is read again is compared."""
SLICE_ROWS: Final = 8_000
"""Of an element: Python and the JVM hold some of them at once."""


def part_of(keys: pa.Array | pa.ChunkedArray, parts: int) -> Any:
    """Number of the part of each key, as the ledger has it."""
    return (hashes(keys) % np.uint64(parts)).astype(np.int64)


def queue_part(rows: pa.Table, parts: int) -> Any:
    """Number of the part of each row's queue."""
    return (part_of(rows["topic"], 1 << 32) + rows["queue_id"].to_numpy()) % parts


def spread_out(kind: str, rows: pa.Table | pa.RecordBatch, part: Any) -> Iterator[Element]:
    """``part``: of each row."""
    if not len(rows):
        return
    order = np.argsort(part, kind="stable")
    numbers, begins = np.unique(part[order], return_index=True)
    rows = pa.table(rows).take(pa.array(order))
    for number, begin, end in zip(
        numbers.tolist(), begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True
    ):
        for at in range(begin, end, SLICE_ROWS):
            yield number, (kind, packed(rows.slice(at, min(SLICE_ROWS, end - at))))


def shuffled(elements: RDD[Element], parts: int) -> RDD[Element]:
    """All elements of a part in its own partition."""
    return elements.partitionBy(parts, int)


def workers_folder() -> str | None:
    """Where a task has its files: in a folder that Spark removes, as it kills the workers of a job that
    failed. None: this is no worker."""
    if TaskContext.get() is None:
        return None
    return os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or None


def in_parts(of: OfPart, *elements: RDD[Element], stay: bool = True) -> RDD[Any]:
    """``of`` each part and its elements in all of these, which were shuffled into the same parts. ``stay``:
    what is made of a part has its number."""
    every: RDD[Element] = reduce(lambda one, other: one.union(other), elements)
    if every.getNumPartitions() != elements[0].getNumPartitions():
        raise EngineError("Spark put rows of a part apart that were shuffled alike")
    return every.mapPartitionsWithIndex(of, preservesPartitioning=stay)


class Waiting:
    """The rows of one part, by kind, in temporary files: a part may have more rows than a task has memory. A
    context manager."""

    def __init__(
        self,
        elements: Iterable[Element],
        schemas: dict[str, pa.Schema],
        view: View | None,
        number: Callable[[pa.Table], Any] = lambda rows: np.zeros(len(rows), np.int64),
        count: int = 1,
    ) -> None:
        """``view``: of which the rows of kinds with a replica are wanted. ``number``: which of ``count`` lots
        each row is in."""
        self._number = number
        self.folder = Folder(workers_folder())
        try:
            self._parts = {kind: Parts(self.folder, schema, count) for kind, schema in schemas.items()}
            for _, (kind, raw) in elements:
                if kind in schemas:
                    self._add(kind, unpacked(raw, 1)[0], view)
        except BaseException:
            self.folder.close()
            raise

    def _add(self, kind: str, rows: pa.Table, view: View | None) -> None:
        if view is not None and "replica" in rows.column_names:
            rows = rows.filter(pa.array(of_view(view, rows)))
        self._parts[kind].add(rows, self._number(rows))

    def batches(self, kind: str) -> Iterator[pa.Table]:
        """Of the first lot."""
        return self._parts[kind].batches(0)

    def all(self, kind: str, lot: int = 0) -> pa.Table:
        return self._parts[kind].part(lot)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *told: object) -> None:
        self.folder.close()


def tables(kind: str, elements: Iterable[Element]) -> list[pa.Table]:
    """The rows of a kind."""
    return [unpacked(raw, 1)[0] for _, (own, raw) in elements if own == kind]
