"""Which rows does a table of a store have, and which of its bytes must be read for them?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
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

from audit.engines import options as told
from audit.engines.lines import LINES, ranges, read_lines
from audit.engines.options import NAME
from audit.plan import CHUNK_BYTES_MIN, covered, tasks
from audit.reading.aside import find_own_ends
from audit.reading.derived.index_rows import INDEXED, index_parts, read_index
from audit.reading.derived.queue_files import ENTRIES, QueueFile, look, read_entries
from audit.reading.layout import Replica, Segment, bytes_at, load, segment_reader
from audit.reading.records.record import RECORD_BYTES_MAX, Record, parse
from audit.reading.records.search import Search
from audit.reading.small.beside import look_beside
from audit.reading.storage import StoreSpec, open_storage, parse_stores
from audit.rows.intervals import Interval, in_both
from audit.tables import DAMAGE, DIGEST, LOG, Task, run_digests, run_scan, scanned_records
from model.errors import ConfigError

_STORE: Final = pa.field("store", pa.string())
_MESSAGE: Final = ("offset", "until", "topic", "queue_id", "queue_offset", "uniq_key")
_OF_RECORDS: Final = (*_MESSAGE, "body_crc", "plain_crc", "sys_flag", "advance", "tags_code")
_STORED: Final = pa.field("stored_ms", pa.int64())
_OF_DAMAGE: Final = (*_MESSAGE, "kind", "expected", "found")
TABLES: Final = {
    "records": pa.schema([_STORE, *(LOG.field(name) for name in _OF_RECORDS), _STORED]),
    "damage": pa.schema([_STORE, *(LOG.field(name) for name in _OF_DAMAGE)]),
    "digests": pa.schema([_STORE, *(field for field in DIGEST if field.name != "replica")]),
    "consumequeue": pa.schema([_STORE, *ENTRIES]),
    "index": pa.schema([_STORE, *INDEXED]),
    "ledger": pa.schema([_STORE, *LINES]),
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
_LEAST: Final = -(1 << 63)
_MOST: Final = 1 << 63
"""Bounds that exclude nothing: what an entry says may have rotted."""
CLOCKS_MS: Final = 10 * 60 * 1000
"""By so much the clocks of a group's masters differ at most: a log's times ascend but for that."""
_NUMBERS: Final = {"offset": ("begin", "end"), "stored_ms": ("since_ms", "until_ms")}
"""Columns of which a range is read, and its bounds in ``Wanted``."""
_OPTIONS: Final = {
    "offsetFrom": "begin",
    "offsetUntil": "end",
    "queueId": "queue_id",
    "timeFrom": "since_ms",
    "timeUntil": "until_ms",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of a table is read; ``topic`` and ``queue_id`` None: any. ``columns`` empty: all."""

    begin: int = _LEAST
    end: int = _MOST
    topic: str | None = None
    queue_id: int | None = None
    since_ms: int = _LEAST
    until_ms: int = _MOST
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Wanted:
        """Raises ConfigError on what is no number, or ends before it begins."""
        given = told.lowered(options)
        numbers = {name: told.number(name, given[name.lower()]) for name in _OPTIONS if name.lower() in given}
        told.ascending(numbers)
        fields: dict[str, Any] = {_OPTIONS[name]: value for name, value in numbers.items()}
        return cls(**fields, topic=given.get("topic"), columns=told.columns(options))

    def within(self, found: Filter) -> Wanted | None:
        """With one of Spark's filters as well; None when it is of another kind."""
        column, value = getattr(found, "attribute", None), getattr(found, "value", None)
        if column == ("topic",) and isinstance(found, EqualTo) and self.topic in (None, value):
            return replace(self, topic=value)
        if column == ("queue_id",) and isinstance(found, EqualTo) and self.queue_id in (None, value):
            return replace(self, queue_id=value)
        if column is None or len(column) != 1 or column[0] not in _NUMBERS or not isinstance(value, int):
            return None
        begin = {GreaterThan: value + 1, GreaterThanOrEqual: value, EqualTo: value}.get(type(found))
        end = {LessThan: value, LessThanOrEqual: value + 1, EqualTo: value + 1}.get(type(found))
        if begin is None and end is None:
            return None
        low, high = _NUMBERS[column[0]]
        narrower: dict[str, Any] = {}
        if begin is not None:
            narrower[low] = max(getattr(self, low), begin)
        if end is not None:
            narrower[high] = min(getattr(self, high), end)
        return replace(self, **narrower)

    @property
    def timed(self) -> bool:
        return self.since_ms > _LEAST or self.until_ms < _MOST

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of a table with these columns."""
        conditions: list[Any] = []
        for name, (low, high) in _NUMBERS.items():
            if name in batch.schema.names:
                from_, until = getattr(self, low), getattr(self, high)
                if from_ > _LEAST:
                    conditions.append(pc.greater_equal(batch[name], from_))
                if until < _MOST:
                    conditions.append(pc.less(batch[name], until))
        for name, value in (("topic", self.topic), ("queue_id", self.queue_id)):
            if value is not None and name in batch.schema.names:
                conditions.append(pc.fill_null(pc.equal(batch[name], value), False))
        return batch.filter(reduce(pc.and_, conditions)) if conditions else batch


def schema_of(table: str, columns: Sequence[str] = ()) -> pa.Schema:
    """Of a table, or of these columns of it, in their order there. Raises ConfigError on others."""
    schema = TABLES[table]
    if unknown := [name for name in columns if name not in schema.names]:
        raise ConfigError(f"format {NAME}: table {table} has no column {unknown[0]!r}")
    return pa.schema([field for field in schema if field.name in columns]) if columns else schema


def _then(replica: Replica, wanted: Wanted) -> list[Interval]:
    """The segments that may hold records stored then, by the first record of each."""
    first = [(segment.base, _first_ms(replica, segment)) for segment in replica.segments]
    found = []
    for at, (base, begins_ms) in enumerate(first):
        later = [ms for _, ms in first[at + 1 :] if ms >= 0]
        over = bool(later) and max(later[0], begins_ms) + CLOCKS_MS < wanted.since_ms
        if not over and begins_ms - CLOCKS_MS < wanted.until_ms:
            found.append((base, base + replica.segment_bytes))
    return found


def _seam(replica: Replica, offset: int) -> int:
    """From where on all is found that begins at ``offset`` or behind, with the partitions of the whole log:
    there, where a sound record does. Else it may be damage, which is of the last partition before that begins
    with one."""
    segment = replica.segment_at(offset)
    if segment is None or offset <= segment.base:
        return offset
    storage = open_storage(replica.location)
    try:
        search = Search(segment_reader(storage, segment), replica.segment_end(segment))
        at = offset
        while at > segment.base and search.find_record(at, offset + 1) < 0:
            at = max(segment.base, (at - 1) // CHUNK_BYTES_MIN * CHUNK_BYTES_MIN)
    finally:
        storage.close()
    return at


def _first_ms(replica: Replica, segment: Segment) -> int:
    """When its first record was stored; -1 when that cannot be told."""
    head = bytes_at(replica, segment.base, 4)
    data = bytes_at(replica, segment.base, min(int.from_bytes(head), RECORD_BYTES_MAX))
    parsed = parse(data, 0, segment.base, replica.segment_end(segment))
    return parsed.record.store_timestamp_ms if parsed.record is not None and parsed.damage is None else -1


_TYPES: Final = {field.name: field.type for field in TABLES["records"]}
_FIELD_OF: Final = {
    **{name: name for name in _OF_RECORDS if name != "until"},
    "stored_ms": "store_timestamp_ms",
}


def _records(task: Task, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The columns that are asked for, and those by which rows are told."""
    names = schema_of("records", wanted.columns).names
    names = [name for name in _TYPES if name != "store" and (name in names or name in _TOLD_BY)]
    for rows in scanned_records(task):
        fields: dict[str, Any] = dict(zip(Record._fields, zip(*rows, strict=True), strict=True))
        fields["until"] = [row.offset + row.size for row in rows] if "until" in names else ()
        columns = [pa.array(fields[_FIELD_OF.get(name, name)], _TYPES[name]) for name in names]
        yield pa.RecordBatch.from_arrays(columns, names=names)


_TOLD_BY: Final = ("offset", "stored_ms", "topic", "queue_id")


class TableReader(DataSourceReader):
    """One partition a stretch of a log, or a file of entries, or a store."""

    def __init__(self, table: str, paths: Sequence[str], wanted: Wanted) -> None:
        self.table, self.paths, self.wanted = table, list(paths), wanted

    def partitions(self) -> list[InputPartition]:
        if self.table == "ledger":
            parts = [
                (os.path.basename(path.rstrip("/")), part) for path in self.paths for part in ranges(path)
            ]
            return [InputPartition(part) for part in parts]
        specs = parse_stores(self.paths)
        if self.table in ("records", "damage", "digests", "index"):
            replicas = [load(spec) for spec in specs]
            find_own_ends(replicas)
            if self.table != "index":
                return self.stretches(replicas)
            return [
                InputPartition((replica.name, part)) for replica in replicas for part in index_parts(replica)
            ]
        if self.table == "consumequeue":
            return [InputPartition((spec.name, file)) for spec in specs for file in self._queue_files(spec)]
        return [InputPartition((spec.name, {"name": spec.name, "location": spec.location})) for spec in specs]

    def _queue_files(self, spec: StoreSpec) -> list[dict[str, Any]]:
        folder = look(spec.location)
        files = folder.files if folder is not None else ()
        return [file.to_json() for file in files if self._names(file)]

    def stretches(self, replicas: list[Replica], begin: int = 0) -> list[InputPartition]:
        """Of the logs from ``begin`` on, which is where a record does."""
        return [InputPartition((replicas[t.replica].name, t.to_json())) for t in self._tasks(replicas, begin)]

    def _tasks(self, replicas: list[Replica], begin: int) -> list[Task]:
        low = max(begin, self.wanted.begin)
        wanted = {}
        for at, replica in enumerate(replicas):
            if not replica.empty:
                at_seam = low if self.table == "digests" or low <= begin else max(begin, _seam(replica, low))
                wanted[at] = in_both(covered(replica), [(at_seam, max(low, self.wanted.end))])
        if self.wanted.timed and self.table == "records":
            wanted = {at: in_both(rows, _then(replicas[at], self.wanted)) for at, rows in wanted.items()}
        planned = tasks(replicas, wanted, chunk=CHUNK_BYTES_MIN)
        begins = {(task.replica, task.start) for task in planned}
        # A stretch that was cut out need not begin where a record does: then the first one is looked for.
        return [
            replace(
                task,
                aligned=task.start in (begin, replicas[task.replica].start, task.segment_base),
                onward=(task.replica, task.end) in begins and task.end < task.segment_end,
            )
            for task in planned
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
            schema = schema_of(self.table, self.wanted.columns)
            stores = pa.array([store] * len(rows), pa.string())
            columns = [stores if name == "store" else rows[name] for name in schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _batches(self, told: dict[str, Any]) -> Iterable[pa.RecordBatch]:
        if self.table == "digests":  # to be compared, with those of other workers, too
            yield run_digests(replace(Task.from_json(told), everywhere=True))
        elif self.table == "records":
            yield from _records(Task.from_json(told), self.wanted)
        elif self.table == "damage":
            for batch in run_scan(Task.from_json(told)):
                yield batch.filter(pc.equal(batch["row"], DAMAGE))
        elif self.table == "index":
            yield from read_index(told)
        elif self.table == "ledger":
            for table in read_lines(told):
                yield from table.to_batches()
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
