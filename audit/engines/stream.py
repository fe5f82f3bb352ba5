"""Live stores as a stream: ``spark.readStream.format("commitlog").load("/data/b0,/data/b1")``.

A batch is what each store has more than before: whole records, by default confirmed ones
(``audit.reading.live``). A checkpoint holds a position for each store. Where a log was cut below its
position, or retention removed what was not read yet, the query fails, or with ``failOnDataLoss`` =
``false`` tells it as a row and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from audit.engines.options import NAME, STREAMED
from audit.engines.tables import TableReader, Wanted, schema_of
from audit.reading.aside import find_own_ends
from audit.reading.layout import Replica, load
from audit.reading.live import CONFIRMED, WRITTEN, Position, look, proven
from audit.reading.storage import StoreSpec, parse_stores
from model.errors import ConfigError, MqError

EVENT: Final = pa.field("event", pa.string())
RECORD_EVENT: Final = "record"
TRUNCATED: Final = "truncated"
EXPIRED: Final = "expired"
_NEWEST: Final = "latest"


class DataLossError(MqError):
    """A log no longer holds what was read of it, or was to be read."""


class StreamReader(DataSourceStreamReader):
    """Offsets are ``{"stores": {identity: Position}}``, see ``StoreSpec``. Options:
    ``startingOffsets`` (``earliest``, ``latest``), ``upTo`` (``confirmed``, ``written``),
    ``failOnDataLoss``."""

    def __init__(self, table: str, paths: Sequence[str], wanted: Wanted, options: Mapping[str, str]) -> None:
        if table not in STREAMED:
            raise ConfigError(f"format {NAME}: a stream has the tables {', '.join(STREAMED)}, not {table!r}")
        self._tables = TableReader(table, paths, wanted)
        self._specs = parse_stores(list(paths))
        self._fails = fails_on_loss(options)
        self._up_to = _one_of(options, "upto", ("", CONFIRMED, WRITTEN))
        self._starting = _one_of(options, "startingoffsets", ("", "earliest", _NEWEST))

    def initialOffset(self) -> dict[str, Any]:
        found = {}
        for spec in self._specs:
            if self._starting == _NEWEST:
                found[spec.identity] = look(spec, self._up_to)[1].to_json()
            else:
                found[spec.identity] = self._first(spec).to_json()
        return {"stores": found}

    def latestOffset(self, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        """Raises DataLossError, unless it is told as rows; ConfigError when ``start`` is of other stores."""
        found = {}
        if start["stores"] and not any(spec.identity in start["stores"] for spec in self._specs):
            raise ConfigError(
                f"format {NAME}: the checkpoint is of other stores, {', '.join(start['stores'])}: give the"
                " same paths, or take a new checkpointLocation (a store that is given as NAME=PATH may move)"
            )
        for spec in self._specs:
            before = self._position(start, spec)
            replica, now = look(spec, self._up_to, before)
            events, resumed = _losses(replica, before)
            self._refuse(spec.name, events)
            # What is confirmed may be told late, as after a restart: a position does not go back for that.
            if not events and now.offset <= resumed:
                now = before
            found[spec.identity] = (now if now.offset >= resumed else now.at(resumed)).to_json()
        return {"stores": found}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A stretch of a log each, and one for each loss. Raises DataLossError, unless it is told as rows."""
        found = []
        for spec in self._specs:
            if spec.identity not in end["stores"]:
                continue
            replica = load(spec)
            find_own_ends([replica])
            events, resumed = _losses(replica, self._position(start, spec))
            self._refuse(spec.name, events)
            found += [InputPartition((spec.name, {"event": event})) for event in events]
            # Cut since the batch was planned: the next one tells it.
            until = Position.from_json(end["stores"][spec.identity])
            replica.end = min(until.offset, max(resumed, proven(replica, until)), replica.end)
            found += self._tables.stretches([replica], resumed)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store, told = partition.value
        if "event" in told:
            kind, begin, until = told["event"]
            row = {"store": store, "offset": begin, "until": until, "event": kind}
            schema = schema_of(self._tables.table, self._tables.wanted.columns)
            yield pa.RecordBatch.from_pylist([row], schema=schema.append(EVENT))
            return
        for batch in self._tables.read(partition):
            if self._fails:
                yield batch
            else:
                yield batch.append_column(EVENT, pa.array([RECORD_EVENT] * len(batch), pa.string()))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept here for what is done."""

    def stop(self) -> None:
        """Nothing stays open."""

    def _first(self, spec: StoreSpec) -> Position:
        replica = load(spec)
        find_own_ends([replica])
        return Position(replica.start)

    def _position(self, offsets: dict[str, Any], spec: StoreSpec) -> Position:
        """A store that is new to the query begins where its log does."""
        told = offsets["stores"].get(spec.identity)
        return Position.from_json(told) if told else self._first(spec)

    def _refuse(self, name: str, events: list[tuple[str, int, int]]) -> None:
        if events and self._fails:
            kind, begin, until = events[0]
            how = {
                TRUNCATED: "the log was cut below what was read:"
                f" it had been read up to {until}, and is the same up to {begin}",
                EXPIRED: f"retention removed {begin} to {until} before it was read",
            }[kind]
            raise DataLossError(
                f"format {NAME}: store {name}: {how} (failOnDataLoss = false tells it as a row)"
            )


def fails_on_loss(options: Mapping[str, str]) -> bool:
    """Raises ConfigError on what is neither true nor false."""
    return _one_of(options, "failondataloss", ("", "true", "false")) != "false"


def _one_of(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    value = {key.lower(): text for key, text in options.items()}.get(name, "").lower()
    if value not in known:
        raise ConfigError(f"format {NAME}: {name}={value!r} is none of {', '.join(filter(None, known))}")
    return value


def _losses(replica: Replica, position: Position) -> tuple[list[tuple[str, int, int]], int]:
    """What is gone of what a position stands for, as (event, begin, until), and where reading goes on."""
    resumed = proven(replica, position)
    if resumed < position.offset:
        return [(TRUNCATED, resumed, position.offset)], resumed
    if resumed > position.offset:
        return [(EXPIRED, position.offset, resumed)], resumed
    return [], resumed
