"""A ledger as rows of Spark: JSON lines by ranges of bytes, Parquet by files, the history of a drill whole.

A range has the lines that begin in it, so that any number of tasks reads a file once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from audit.ledger import LEDGER, from_rows, is_parquet, of_parquet, parquet_of
from audit.reading.history import acknowledged, is_history, objects
from audit.reading.storage import codec_of, open_file
from audit.sources.location import shown

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
    if is_history(path):
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
    rows = acknowledged(path) if part["how"] == "history" else objects(path, part["begin"], part["end"])
    while batch := list(islice(rows, _BATCH)):
        yield from_rows(batch).drop_columns(["line"])
