"""How do the records of a store leave it as a table: lines of JSON, or a Parquet file?

The columns are those of ``keelmq store dump``; ``body`` is added on request, decompressed, in Base64 in JSON.
pyarrow is imported only when Parquet is asked for: a broker installs without it.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

from model.compression import plain_body
from model.errors import MqError
from store.files.record import Record
from store.offline.directory import dump

BATCH_ROWS: Final = 8192
_COLUMNS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "storeSize",
    "sysFlag",
    "flag",
    "bodyCRC",
    "msgId",
    "offsetMsgId",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "properties",
    "bodyLen",
    "bodySha256",
    "bodyUnread",
)
_STRINGS: Final = ("topic", "msgId", "offsetMsgId", "bornHost", "storeHost", "bodySha256", "bodyUnread")


def rows(records: Iterable[Record], bodies: bool) -> Iterator[dict[str, Any]]:
    """One flat dict a record; with ``bodies`` the body as bytes, None where it cannot be unpacked."""
    for record in records:
        row = dump(record)
        if bodies:
            row["body"] = None if "bodyUnread" in row else plain_body(record.body, record.sys_flag)
        yield row


def write_json(out: IO[str], records: Iterable[Record], bodies: bool) -> int:
    """A line of JSON a record; returns how many."""
    count = 0
    for row in rows(records, bodies):
        if row.get("body") is not None:
            row["body"] = base64.b64encode(row["body"]).decode()
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
        count += 1
    return count


def parquet_library() -> tuple[Any, Any]:
    """pyarrow and its Parquet part. Raises MqError that says how to get them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        text = "Parquet needs pyarrow, which is not installed: pip install 'keelmq[audit]'"
        raise MqError(f"{text}, or take --format jsonl") from error


def write_parquet(path: str, records: Iterable[Record], bodies: bool) -> int:
    """One Parquet file, BATCH_ROWS rows a group; returns how many. Raises MqError, OSError."""
    arrow, parquet = parquet_library()
    schema = _schema(arrow, bodies)
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in _batches(rows(records, bodies)):
            for row in batch:
                row["properties"] = list(row["properties"].items())
                row.setdefault("bodyUnread", None)
            writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _schema(arrow: Any, bodies: bool) -> Any:
    types = {name: arrow.string() for name in _STRINGS}
    types["properties"] = arrow.map_(arrow.string(), arrow.string())
    fields = [arrow.field(name, types.get(name, arrow.int64())) for name in _COLUMNS]
    return arrow.schema([*fields, arrow.field("body", arrow.binary())] if bodies else fields)


def _batches(all_rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in all_rows:
        batch.append(row)
        if len(batch) >= BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch
