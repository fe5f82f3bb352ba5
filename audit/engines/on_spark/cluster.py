"""How are workers asked? By plain jobs over tables in bytes, whose functions are the local engine's.

None of them needs Spark's SQL, whose classes alone would take a hundred MiB of the driver's JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.sql import SparkSession

from audit.engines.on_spark.reads import SCHEMAS, read
from audit.engines.on_spark.session import LEAST, PARTITIONS, partitions
from audit.engines.pieces import packed, unpacked
from audit.tables import EngineError

KEPT: Final = StorageLevel.DISK_ONLY
"""Where rows wait for the next job: in a JVM's heap they would grow with the logs."""
PARTITION_BYTES: Final = 16 * 1024 * 1024
"""That a task reads at least: its start takes as long as some of them."""
ALONE: Final = 1 << 62
"""Bytes: each thing has a partition."""
_PARTITIONS: Final = "200"
"""Of a shuffle: Spark's own choice, which a session tells where nobody has said anything."""

TABLES_AT_ONCE: Final = 8
"""Of some thousand rows."""

Keyed = tuple[int, bytes]
"""Rows of one key."""


class Cluster:
    """``session``: the program's, or None."""

    def __init__(self, context: SparkContext, session: SparkSession | None = None) -> None:
        self.context = context
        self._session = session
        self._rows = 0

    @property
    def reads_here(self) -> bool:
        """Do the workers read this machine's files?"""
        return str(self.context.master).startswith("local")

    def describe(self, what: str) -> None:
        """What Spark's pages and event log call the jobs that come now. Raises EngineError."""
        if self.is_stopped:
            raise EngineError("Spark failed: its context was stopped by the program that made it")
        self.context.setJobDescription(f"keelmq audit: {what}")

    @property
    def is_stopped(self) -> bool:
        return self.context._jsc is None

    def spread(self, rows: int) -> None:
        """Shuffle for about so many rows from now on, unless the user's configuration says otherwise."""
        self._rows = rows

    def partitions(self, keys: int) -> int:
        """Of a shuffle by so many keys."""
        least, wanted = self._said(LEAST), self._said(PARTITIONS)
        if least is None and wanted is not None and not (self._session and wanted == _PARTITIONS):
            return max(1, min(int(wanted), keys))
        return max(1, min(partitions(int(least or _PARTITIONS), self._rows), keys))

    def _said(self, name: str) -> str | None:
        if self._session is not None:
            return self._session.conf.get(name, None)
        return self.context.getConf().get(name, None)

    def each(self, things: Sequence[Any], size: int) -> RDD[Any]:
        """A partition for each, or for some whose share of so many bytes is small."""
        return self.context.parallelize(things, max(1, min(len(things), size // PARTITION_BYTES + 1)))

    def read(self, kind: str, tasks: Sequence[Any], size: int) -> RDD[bytes]:
        """The rows of these tasks, which read so many bytes: a batch an element."""
        return self.each(tasks, size).flatMap(partial(read, kind))

    def table(self, kind: str, tasks: Sequence[Any], size: int) -> pa.Table:
        """The rows of these tasks here, which are to be few."""
        return collected(self.read(kind, tasks, size), SCHEMAS[kind])


def release(*rows: RDD[Any]) -> None:
    """They are not kept any more. Of a context that ended nothing is."""
    for one in rows:
        with suppress(Py4JError, ConnectionError):
            one.unpersist()


def collected(rows: RDD[bytes], schema: pa.Schema) -> pa.Table:
    """All of them, here."""
    tables = [unpacked(raw, 1)[0] for raw in rows.collect()]
    return pa.concat_tables([schema.empty_table(), *tables]).cast(schema)


def by_key(rows: RDD[Keyed], count: int, of: Callable[[pa.Table], pa.Table]) -> RDD[bytes]:
    """``of`` all rows of each key, in ``count`` partitions."""
    return rows.partitionBy(count, int).mapPartitions(partial(_by_key, of))


def _by_key(of: Callable[[pa.Table], pa.Table], rows: Iterable[Keyed]) -> Iterator[bytes]:
    found: dict[int, list[bytes]] = {}
    for key, raw in rows:
        found.setdefault(key, []).append(raw)
    for _, own in sorted(found.items()):
        yield packed(of(pa.concat_tables([unpacked(raw, 1)[0] for raw in own])))


def in_turn(rows: RDD[bytes]) -> Iterator[pa.Table]:
    """The tables, some at a time here."""
    kept = rows.persist(KEPT)
    try:
        counts = kept.mapPartitions(_count).collect()
        if sum(counts) <= TABLES_AT_ONCE:
            yield from (unpacked(raw, 1)[0] for raw in kept.collect())
            return
        # Not Spark's iterator, for which a whole partition is in the driver's heap at once.
        for part, count in enumerate(counts):
            for at in range(0, count, TABLES_AT_ONCE):
                found = kept.context.runJob(kept, partial(_some, at, at + TABLES_AT_ONCE), [part])
                if len(found) != min(TABLES_AT_ONCE, count - at):
                    raise EngineError("Spark made rows again that it had lost, and they were not the same")
                yield from (unpacked(raw, 1)[0] for raw in found)
    finally:
        release(kept)


def _count(rows: Iterable[bytes]) -> list[int]:
    return [sum(1 for _ in rows)]


def _some(begin: int, end: int, rows: Iterable[bytes]) -> list[bytes]:
    return list(islice(rows, begin, end))
