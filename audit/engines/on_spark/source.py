"""How do Spark's workers read every byte? A Python data source over the plain functions that the local engine
calls, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from audit.engines.lines import read_ordered, read_sent
from audit.engines.pieces import PIECES, NearTask, PieceTask, run_near, run_pieces
from audit.ledgers.columns import LEDGER
from audit.ledgers.history import SENT
from audit.reading.derived.index_files import INDEX, IndexTask, run_index
from audit.reading.derived.others import DerivedTask, run_derived
from audit.reading.derived.queue_files import ENTRIES, QueueFile, read_entries
from audit.reading.derived.queue_prefix import PREFIX, PrefixTask, run_prefix
from audit.reading.derived.queue_slices import PROVED, SliceTask, run_slices
from audit.tables import DIGEST, LOG, Task, run_digests, run_scan

SOURCE: Final = "keelmq_log"
_SCHEMAS: Final = {
    "digests": DIGEST,
    "scan": LOG,
    "near": LOG,
    "pieces": PIECES,
    "entries": ENTRIES,
    "index": INDEX,
    "derived": INDEX,
    "prefixes": PREFIX,
    "slices": PROVED,
    "lines": LEDGER,
    "sent": SENT,
}
PARTITIONS_MAX: Final = 64
"""Of queue files."""
SLICES_BYTES: Final = 64 * 1024 * 1024
"""Of queue files, that a task compares with digests."""


class LogSource(DataSource):
    """``spark.read.format("keelmq_log").option("kind", one of _SCHEMAS).option("tasks", JSON)``."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> Any:
        return from_arrow_schema(_SCHEMAS[self.options["kind"]])

    def reader(self, schema: Any) -> DataSourceReader:
        kind, tasks = self.options["kind"], self.options["tasks"]
        # Spark sends both, source and reader, to each task: of a large log's tasks that is their square.
        self.options = {"kind": kind, "tasks": "[]"}
        return LogReader(kind, json.loads(tasks))


class LogReader(DataSourceReader):
    """One partition a task."""

    def __init__(self, kind: str, tasks: list[dict[str, Any]]) -> None:
        self._kind = kind
        self._tasks = tasks

    def __getstate__(self) -> dict[str, Any]:
        """What reads one partition needs."""
        return {"_kind": self._kind, "_tasks": []}

    def partitions(self) -> list[InputPartition]:
        if self._kind == "slices":
            return [InputPartition(tasks) for tasks in _by_bytes(self._tasks)]
        if self._kind in ("entries", "prefixes"):  # many and small: a few files a partition
            few = len(self._tasks) // PARTITIONS_MAX + 1
            return [InputPartition(self._tasks[at : at + few]) for at in range(0, len(self._tasks), few)]
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:
            return  # no tasks: Spark reads one partition that is none
        yield from _READ[self._kind](partition.value)


def _by_bytes(tasks: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Many and small: some MiB of files a partition."""
    few: list[dict[str, Any]] = []
    room = SLICES_BYTES
    for task in tasks:
        size = SliceTask.from_json(task).bytes
        if few and size > room:
            yield few
            few, room = [], SLICES_BYTES
        few.append(task)
        room -= size
    if few:
        yield few


def _entries(files: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from read_entries(QueueFile.from_json(file))


def _of_ledger(read: Callable[[dict[str, Any]], Iterator[pa.Table]], part: Any) -> Iterator[pa.RecordBatch]:
    for table in read(part):
        yield from table.to_batches()


_READ: Final[dict[str, Callable[[Any], Iterator[pa.RecordBatch]]]] = {
    "digests": lambda task: iter([run_digests(Task.from_json(task))]),
    "scan": lambda task: run_scan(Task.from_json(task)),
    "near": lambda task: run_near(NearTask.from_json(task)),
    "pieces": lambda task: run_pieces(PieceTask.from_json(task)),
    "entries": _entries,
    "index": lambda task: iter([run_index(IndexTask.from_json(task))]),
    "derived": lambda task: iter([run_derived(DerivedTask.from_json(task))]),
    "prefixes": lambda tasks: (run_prefix(PrefixTask.from_json(task)) for task in tasks),
    "slices": lambda tasks: (run_slices(SliceTask.from_json(task)) for task in tasks),
    "lines": partial(_of_ledger, read_ordered),
    "sent": partial(_of_ledger, read_sent),
}


def load(session: SparkSession, kind: str, tasks: list[dict[str, Any]]) -> DataFrame:
    return session.read.format(SOURCE).option("kind", kind).option("tasks", json.dumps(tasks)).load()
