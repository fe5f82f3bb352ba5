"""Which messages were acknowledged? Reads ledgers: JSON lines or Parquet, one line a message.

``{"uniq_key","topic","queue_id","queue_offset","body_crc"}`` are needed; ``phys_offset`` is optional, as are
``begun_ms`` and ``acked_ms`` (any one clock): with both, a message acknowledged before another was begun must
stand before it in its queue. ``body_crc`` is crc32 & 0x7fffffff of the body as sent (before compression).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from audit.tables import LEDGER
from model.errors import ConfigError

CRC_MASK: Final = 0x7FFFFFFF  # a record keeps 31 bits
_NEEDED: Final = ("uniq_key", "topic", "queue_id", "queue_offset", "body_crc")
_OPTIONAL: Final = ("phys_offset", "begun_ms", "acked_ms")


def read_ledger(path: str) -> pa.Table:
    """A LEDGER table. Raises ConfigError naming the line that cannot be right, or when there is none: a wrong
    file would prove anything. Raises OSError when unreadable."""
    if os.path.isdir(path) or path.endswith(".parquet"):
        table = _from_parquet(path)
    else:
        with open(path, "rb") as file:
            table = from_rows(_json_lines(path, file))
    if not len(table):
        raise ConfigError(f"{path}: no message is listed in this ledger")
    return table


def _json_lines(path: str, lines: Iterable[bytes]) -> Iterable[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: not a JSON object: {error}") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: expected a JSON object, found {type(row).__name__}")
        yield where, row


def from_rows(rows: Iterable[tuple[str, dict[str, Any]]]) -> pa.Table:
    """Build the table from (where, row) pairs; ``where`` names the row in errors. Raises ConfigError."""
    columns: dict[str, list[Any]] = {name: [] for name in LEDGER.names}
    for line, (where, row) in enumerate(rows):
        missing = [name for name in _NEEDED if row.get(name) is None]
        if missing:
            raise ConfigError(f"{where}: {missing[0]} is missing")
        try:
            columns["line"].append(line)
            columns["uniq_key"].append(_text(row["uniq_key"]))
            columns["topic"].append(_text(row["topic"]))
            columns["queue_id"].append(_number(row["queue_id"]))
            columns["queue_offset"].append(_number(row["queue_offset"]))
            columns["body_crc"].append(_number(row["body_crc"]) & CRC_MASK)
            columns["phys_offset"].append(_number(_or(row.get("phys_offset"), -1)))
            columns["begun_ms"].append(float(_or(row.get("begun_ms"), -1)))
            columns["acked_ms"].append(float(_or(row.get("acked_ms"), -1)))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from None
    try:
        return pa.table(columns, schema=LEDGER)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise ConfigError(f"ledger: {error}") from None


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {value!r}")
    value.encode()  # half of a surrogate pair is no text: a UnicodeEncodeError is a ValueError
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, found {value!r}")
    return value


def _from_parquet(path: str) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise ConfigError(f"{path}: {error}") from None
    missing = [name for name in _NEEDED if name not in table.column_names]
    if missing:
        raise ConfigError(f"{path}: column {missing[0]} is missing")
    n = len(table)
    columns: list[pa.ChunkedArray | pa.Array] = []
    for field in LEDGER:
        if field.name == "line":
            columns.append(pa.array(range(n), pa.int64()))
        elif field.name in table.column_names:
            try:
                column = table[field.name].cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigError(f"{path}: column {field.name}: {error}") from None
            if column.null_count and field.name in _NEEDED:
                raise ConfigError(f"{path}: column {field.name} has empty values")
            columns.append(column.fill_null(-1) if field.name in _OPTIONAL else column)
        else:
            columns.append(pa.array([-1] * n, field.type))
    return pa.table(columns, schema=LEDGER)
