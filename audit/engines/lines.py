"""A ledger as rows of Spark: JSON lines by ranges of bytes, Parquet by files, the history of a drill whole.

A range has the lines that begin in it, so that any number of tasks reads a file once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from audit.ledgers.columns import LEDGER, from_rows
from audit.ledgers.history import acknowledged, is_history, objects, sent
from audit.ledgers.ledger import is_parquet, json_files, of_parquet, parquet_of
from audit.ledgers.watched import Stamp, changed, stamp_of
from audit.reading.storage import codec_of, open_file
from audit.sources.location import shown

LINES: Final = LEDGER.remove(0)
"""LEDGER without the number of the line, which no task knows of a range."""
_RANGE_BYTES: Final = 64 * 1024 * 1024
_BATCH: Final = 20_000
_FILE_ROWS: Final = 1 << 40
"""More than a file of a folder has, of rows or of bytes."""


def ranges(path: str, size: int = _RANGE_BYTES) -> list[dict[str, Any]]:
    """What the tasks read of a ledger: a file, or a folder. Raises ConfigError, OSError."""
    if is_parquet(path):
        if "://" in path:  # its files are known to its file system alone
            return [{"path": path, "how": "parquet", "first": 0}]
        files = parquet_of(path).files
        return [
            {"path": file, "how": "parquet", "first": n * _FILE_ROWS, "stamp": list(stamp_of(file))}
            for n, file in enumerate(files)
        ]
    if "://" not in path and os.path.isdir(path):
        files = list(enumerate(json_files(path)))
        return [
            {**part, "first": n * _FILE_ROWS + part["first"]} for n, f in files for part in ranges(f, size)
        ]
    if is_history(path):
        return [{"path": path, "how": "history", "first": 0, "stamp": list(stamp_of(path))}]
    file, whole = open_file(path)
    file.close()
    if codec_of(path):  # it cannot be sought in
        return [{"path": path, "how": "lines", "begin": 0, "end": 1 << 62, "first": 0}]
    return [
        {"path": path, "how": "lines", "begin": at, "end": min(at + size, whole), "first": at, "whole": whole}
        for at in range(0, whole, size)
    ]


def sent_ranges(path: str) -> list[dict[str, Any]]:
    """What a task reads of a history to know what was sent: all of it. Raises OSError."""
    return [{"path": path, "stamp": list(stamp_of(path))}]


def read_sent(part: dict[str, Any]) -> Iterator[pa.Table]:
    """SENT rows. Raises ConfigError, OSError."""
    _still_there(part)
    yield from sent(part["path"])


def read_lines(part: dict[str, Any]) -> Iterator[pa.Table]:
    """LINES rows. Raises ConfigError naming what is no line of a ledger, OSError."""
    for table in read_ordered(part):
        yield table.drop_columns(["line"])


def read_ordered(part: dict[str, Any]) -> Iterator[pa.Table]:
    """LEDGER rows. What they have for the number of a line is none, but ascends through all parts: no range
    has more lines than bytes. Raises ConfigError naming what is no line of a ledger, OSError."""
    path, first = part["path"], part["first"]
    _still_there(part)
    if part["how"] == "parquet":
        for table in of_parquet(shown(path), parquet_of(path)):
            yield table.set_column(0, LEDGER.field("line"), pc.add(table["line"], first))
        return
    rows = acknowledged(path) if part["how"] == "history" else objects(path, part["begin"], part["end"])
    while batch := list(islice(rows, _BATCH)):
        yield from_rows(batch, first)
        first += len(batch)


def _still_there(part: dict[str, Any]) -> None:
    """Is the file no shorter than it was planned, and of Parquet and histories the same? One that was cut has
    fewer lines. Raises OSError."""
    if "whole" not in part and "stamp" not in part:
        return
    now = stamp_of(part["path"])
    if "stamp" in part and now != (planned := Stamp(*part["stamp"])):
        raise changed(part["path"], planned, now)
    if now.size < part.get("whole", 0):
        raise changed(part["path"], Stamp(part["whole"], 0), now)
