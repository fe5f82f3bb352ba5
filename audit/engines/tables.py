"""Which rows does a table of a store have, and which of its bytes must be read for them?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from audit.intervals import in_both
from audit.plan import CHUNK_BYTES_MIN, covered, tasks
from audit.reading.beside import look_beside
from audit.reading.layout import Replica, find_ends, load
from audit.reading.queue_files import ENTRIES, QueueFile, look, read_entries
from audit.reading.storage import parse_stores
from audit.tables import DAMAGE, DIGEST, LOG, RECORD, Task, run_digests, run_scan
from model.errors import ConfigError

NAME: Final = "commitlog"
_STORE: Final = pa.field("store", pa.string())
_MESSAGE: Final = ("offset", "until", "topic", "queue_id", "queue_offset", "uniq_key")
_OF_RECORDS: Final = (*_MESSAGE, "body_crc", "plain_crc", "sys_flag", "advance", "tags_code")
_OF_DAMAGE: Final = (*_MESSAGE, "kind", "expected", "found")
TABLES: Final = {
    "records": pa.schema([_STORE, *(LOG.field(name) for name in _OF_RECORDS)]),
    "damage": pa.schema([_STORE, *(LOG.field(name) for name in _OF_DAMAGE)]),
    "digests": pa.schema([_STORE, *(field for field in DIGEST if field.name != "replica")]),
    "consumequeue": pa.schema([_STORE, *ENTRIES]),
    "epochs": pa.schema([_STORE, ("epoch", pa.int64()), ("offset", pa.int64())]),
    "offsets": pa.schema(
        [
            _STORE,
            ("topic", pa.string()),
            ("consumer_group", pa.string()),
            ("queue_id", pa.int32()),
            ("queue_offset", pa.int64()),
        ]
    ),
}
_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of a table is read; ``topic`` and ``queue_id`` None: any."""

    begin: int = 0
    end: int = _END
    topic: str | None = None
    queue_id: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Wanted:
        """Raises ConfigError on what is no number."""
        given = {name.lower(): value for name, value in options.items()}
        try:
            queue_id = int(given["queueid"]) if "queueid" in given else None
            begin, end = int(given.get("offsetfrom", 0)), int(given.get("offsetuntil", _END))
        except ValueError as error:
            raise ConfigError(f"format {NAME}: {error}") from None
        return cls(begin, end, given.get("topic"), queue_id)

    def within(self, found: Filter) -> Wanted | None:
        """With one of Spark's filters as well; None when it is of another kind."""
        column, value = getattr(found, "attribute", None), getattr(found, "value", None)
        if column == ("topic",) and isinstance(found, EqualTo) and self.topic in (None, value):
            return replace(self, topic=value)
        if column == ("queue_id",) and isinstance(found, EqualTo) and self.queue_id in (None, value):
            return replace(self, queue_id=value)
        if column != ("offset",) or not isinstance(value, int):
            return None
        begin = {GreaterThan: value + 1, GreaterThanOrEqual: value, EqualTo: value}.get(type(found))
        end = {LessThan: value, LessThanOrEqual: value + 1, EqualTo: value + 1}.get(type(found))
        if begin is None and end is None:
            return None
        end = _END if end is None else end
        return replace(self, begin=max(self.begin, begin or 0), end=min(self.end, end))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a table with these columns."""
        keep = None
        if "offset" in batch.schema.names:
            keep = pc.and_(pc.greater_equal(batch["offset"], self.begin), pc.less(batch["offset"], self.end))
        for name, value in (("topic", self.topic), ("queue_id", self.queue_id)):
            if value is not None and name in batch.schema.names:
                same = pc.fill_null(pc.equal(batch[name], value), False)
                keep = same if keep is None else pc.and_(keep, same)
        return batch if keep is None else batch.filter(keep)


class TableReader(DataSourceReader):
    """One partition a stretch of a log, or a file of entries, or a store."""

    def __init__(self, table: str, paths: Sequence[str], wanted: Wanted) -> None:
        self.table, self.paths, self.wanted = table, list(paths), wanted

    def partitions(self) -> list[InputPartition]:
        specs = parse_stores(self.paths)
        found: list[tuple[str, dict[str, Any]]] = []
        if self.table in ("records", "damage", "digests"):
            replicas = [load(spec) for spec in specs]
            find_ends(replicas)
            return self.stretches(replicas)
        elif self.table == "consumequeue":
            for spec in specs:
                folder = look(spec.location)
                files = folder.files if folder is not None else ()
                found += [(spec.name, file.to_json()) for file in files if self._names(file)]
        else:
            found = [(spec.name, {"name": spec.name, "location": spec.location}) for spec in specs]
        return [InputPartition(part) for part in found]

    def stretches(self, replicas: list[Replica], begin: int = 0) -> list[InputPartition]:
        """Of the logs from ``begin`` on, which is where a record does."""
        return [InputPartition((replicas[t.replica].name, t.to_json())) for t in self._tasks(replicas, begin)]

    def _tasks(self, replicas: list[Replica], begin: int) -> list[Task]:
        low = max(begin, self.wanted.begin)
        wanted = {
            at: in_both(covered(replica), [(low, max(low, self.wanted.end))])
            for at, replica in enumerate(replicas)
            if not replica.empty
        }
        planned = tasks(replicas, wanted, chunk=CHUNK_BYTES_MIN)
        # A stretch that was cut out need not begin where a record does: then the first one is looked for.
        return [
            replace(t, aligned=t.start in (begin, replicas[t.replica].start, t.segment_base)) for t in planned
        ]

    def _names(self, file: QueueFile) -> bool:
        same = self.wanted.topic in (None, file.topic)
        return same and self.wanted.queue_id in (None, file.queue_id)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:
            return  # no partitions: Spark reads one that is none
        store, told = partition.value
        for batch in self._batches(told):
            rows = self.wanted.rows(batch)
            names = TABLES[self.table].names[1:]
            columns = [pa.array([store] * len(rows), pa.string()), *(rows[name] for name in names)]
            yield pa.RecordBatch.from_arrays(columns, schema=TABLES[self.table])

    def _batches(self, told: dict[str, Any]) -> Iterable[pa.RecordBatch]:
        if self.table == "digests":
            yield run_digests(Task.from_json(told))
        elif self.table in ("records", "damage"):
            row = RECORD if self.table == "records" else DAMAGE
            for batch in run_scan(Task.from_json(told)):
                yield batch.filter(pc.equal(batch["row"], row))
        elif self.table == "consumequeue":
            yield from read_entries(QueueFile.from_json(told))
        elif self.table == "epochs":
            (spec,) = parse_stores([told["location"]])
            rows = [{"epoch": epoch, "offset": start} for epoch, start in load(spec).epochs]
            yield pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(TABLES["epochs"])[1:]))
        else:
            offsets = look_beside(told["location"]).offsets
            names = TABLES["offsets"].names[1:]
            told_rows: list[tuple[Any, ...]] = [(*key, value) for key, value in sorted(offsets.items())]
            rows = [dict(zip(names, row, strict=True)) for row in told_rows]
            yield pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(TABLES["offsets"])[1:]))


class PushingReader(TableReader):
    """Takes Spark's filters on offset, topic and queue id: what they exclude is not read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Those that are not taken."""
        for one in filters:
            narrower = self.wanted.within(one)
            if narrower is None:
                yield one
            else:
                self.wanted = narrower
