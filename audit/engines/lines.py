"""A ledger as rows of Spark: JSON lines by ranges of bytes, Parquet by files, the history of a drill whole.

A range has the lines that begin in it, so that any number of tasks reads a file once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from audit.ledger import CRC_MASK, LEDGER, from_rows, json_object, of_parquet
from model.errors import ConfigError

LINES: Final = LEDGER.remove(0)
"""LEDGER without the number of the line, which no task knows of a range."""
_RANGE_BYTES: Final = 64 * 1024 * 1024
_BATCH: Final = 20_000


def ranges(path: str, size: int = _RANGE_BYTES) -> list[dict[str, Any]]:
    """What the tasks read of a ledger: a file or a folder of Parquet. Raises OSError."""
    if os.path.isdir(path) or path.endswith(".parquet"):
        return [{"path": file, "how": "parquet"} for file in ds.dataset(path, format="parquet").files]
    if _is_history(path):
        return [{"path": path, "how": "history"}]
    whole = os.path.getsize(path)
    return [
        {"path": path, "how": "lines", "begin": at, "end": min(at + size, whole)}
        for at in range(0, whole, size)
    ]


def read_lines(part: dict[str, Any]) -> Iterator[pa.Table]:
    """LINES rows. Raises ConfigError naming what is no line of a ledger, OSError."""
    path = part["path"]
    if part["how"] == "parquet":
        for table in of_parquet(path, ds.dataset(path, format="parquet")):
            yield table.drop_columns(["line"])
        return
    rows = _history(path) if part["how"] == "history" else _objects(path, part["begin"], part["end"])
    while batch := list(islice(rows, _BATCH)):
        yield from_rows(batch).drop_columns(["line"])


def _objects(path: str, begin: int, end: int) -> Iterator[tuple[str, dict[str, Any]]]:
    with open(path, "rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # the rest of a line that begins before
        at = file.tell()
        for line in iter(file.readline, b""):
            if at >= end:
                return
            if line.strip():
                yield f"{path} at byte {at}", json_object(line, f"{path} at byte {at}")
            at += len(line)


def _is_history(path: str) -> bool:
    """Its lines are events, each with a type; those of a ledger are messages."""
    with open(path, "rb") as file:
        first: Iterable[bytes] = islice((line for line in file if line.strip()), 1)
        return any(json_object(line, path).get("type") is not None for line in first)


def _history(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sends that were acknowledged, in the order in which they were."""
    begun: dict[str, dict[str, Any]] = {}
    size = os.path.getsize(path)
    for where, event in _objects(path, 0, size):
        try:
            if event.get("type") == "invoke":
                begun[event["key"]] = event
            elif event.get("type") in ("fail", "unknown"):
                begun.pop(event["key"], None)
            elif event.get("type") == "ok":
                yield where, _acknowledged(begun.pop(event["key"]), event)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{where}: not an event of a history: {error!r}") from None


def _acknowledged(sent: dict[str, Any], ok: dict[str, Any]) -> dict[str, Any]:
    topic, _, queue_id = ok["queue"]
    return {
        "uniq_key": ok["key"],
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": ok["queue_offset"],
        "phys_offset": ok["physical_offset"],
        "body_crc": sent["body_crc"] & CRC_MASK,
        "begun_ms": sent["at_ms"],
        "acked_ms": ok["at_ms"],
    }
