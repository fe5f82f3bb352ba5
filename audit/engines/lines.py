"""A ledger as rows of Spark: JSON lines by ranges of bytes, Parquet by files, the history of a drill whole.

A range has the lines that begin in it, so that any number of tasks reads a file once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from audit.ledger import (
    CRC_MASK,
    LEDGER,
    from_rows,
    is_parquet,
    json_object,
    lines_of,
    of_parquet,
    parquet_of,
)
from audit.reading.storage import codec_of, open_file
from audit.sources.location import shown
from model.errors import ConfigError

LINES: Final = LEDGER.remove(0)
"""LEDGER without the number of the line, which no task knows of a range."""
_RANGE_BYTES: Final = 64 * 1024 * 1024
_BATCH: Final = 20_000


def ranges(path: str, size: int = _RANGE_BYTES) -> list[dict[str, Any]]:
    """What the tasks read of a ledger: a file or a folder of Parquet. Raises OSError."""
    if is_parquet(path):
        if "://" in path:  # its files are known to its file system alone
            return [{"path": path, "how": "parquet"}]
        return [{"path": file, "how": "parquet"} for file in parquet_of(path).files]
    if _is_history(path):
        return [{"path": path, "how": "history"}]
    file, whole = open_file(path)
    file.close()
    if codec_of(path):  # it cannot be sought in
        return [{"path": path, "how": "lines", "begin": 0, "end": 1 << 62}]
    return [
        {"path": path, "how": "lines", "begin": at, "end": min(at + size, whole)}
        for at in range(0, whole, size)
    ]


def read_lines(part: dict[str, Any]) -> Iterator[pa.Table]:
    """LINES rows. Raises ConfigError naming what is no line of a ledger, OSError."""
    path = part["path"]
    if part["how"] == "parquet":
        for table in of_parquet(shown(path), parquet_of(path)):
            yield table.drop_columns(["line"])
        return
    rows = _history(path) if part["how"] == "history" else _objects(path, part["begin"], part["end"])
    while batch := list(islice(rows, _BATCH)):
        yield from_rows(batch).drop_columns(["line"])


def _objects(path: str, begin: int, end: int) -> Iterator[tuple[str, dict[str, Any]]]:
    file, _ = open_file(path)
    name = shown(path)
    with file:
        if begin:
            file.seek(begin - 1)
        lines = lines_of(file)
        # In a range, what stands first is the rest of a line that begins before.
        at = begin - 1 + len(next(lines, b"")) + 1 if begin else 0
        for line in lines:
            if at >= end:
                return
            if line.strip():
                yield f"{name} at byte {at}", json_object(line, f"{name} at byte {at}")
            at += len(line) + 1


def _is_history(path: str) -> bool:
    """Its lines are events, each with a type; those of a ledger are messages."""
    file, _ = open_file(path)
    with file:
        first: Iterable[bytes] = islice((line for line in lines_of(file) if line.strip()), 1)
        return any(json_object(line, shown(path)).get("type") is not None for line in first)


def _history(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sends that were acknowledged, in the order in which they were."""
    begun: dict[str, dict[str, Any]] = {}
    for where, event in _objects(path, 0, 1 << 62):
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
