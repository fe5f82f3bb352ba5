"""How do Spark's workers read every byte? A Python data source over the plain functions that the local engine
calls, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from audit.engines.lines import read_ordered, read_sent
from audit.ledger_columns import LEDGER
from audit.reading.derived import DerivedTask, run_derived
from audit.reading.history import SENT
from audit.reading.index_files import INDEX, IndexTask, run_index
from audit.reading.queue_files import ENTRIES, QueueFile, read_entries
from audit.reading.queue_prefix import PREFIX, PrefixTask, run_prefix
from audit.tables import DIGEST, LOG, Task, run_digests, run_scan

SOURCE: Final = "keelmq_log"
_SCHEMAS: Final = {
    "digests": DIGEST,
    "scan": LOG,
    "entries": ENTRIES,
    "index": INDEX,
    "derived": INDEX,
    "prefixes": PREFIX,
    "lines": LEDGER,
    "sent": SENT,
}
PARTITIONS_MAX: Final = 64
"""Of queue files."""


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
        if self._kind in ("entries", "prefixes"):  # many and small: a few files a partition
            few = len(self._tasks) // PARTITIONS_MAX + 1
            return [InputPartition(self._tasks[at : at + few]) for at in range(0, len(self._tasks), few)]
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:
            return  # no tasks: Spark reads one partition that is none
        if self._kind == "entries":
            for file in partition.value:
                yield from read_entries(QueueFile.from_json(file))
            return
        if self._kind == "prefixes":
            for file in partition.value:
                yield run_prefix(PrefixTask.from_json(file))
            return
        if self._kind == "index":
            yield run_index(IndexTask.from_json(partition.value))
            return
        if self._kind == "derived":
            yield run_derived(DerivedTask.from_json(partition.value))
            return
        if self._kind in ("lines", "sent"):
            read = read_ordered if self._kind == "lines" else read_sent
            for table in read(partition.value):
                yield from table.to_batches()
            return
        task = Task.from_json(partition.value)
        if self._kind == "digests":
            yield run_digests(task)
        else:
            yield from run_scan(task)


def load(session: SparkSession, kind: str, tasks: list[dict[str, Any]]) -> DataFrame:
    return session.read.format(SOURCE).option("kind", kind).option("tasks", json.dumps(tasks)).load()
