"""Rows that wait in temporary files, in parts: what is in memory at once does not grow with their number."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

WRITTEN: Final = pa.ipc.IpcWriteOptions(compression="lz4")
T = TypeVar("T")

_WAITING_ROWS_MAX: Final = 50_000
_SPOOLED_MAX: Final = 10_000
_AT_ONCE_MAX: Final = 256
"""Parts that are written side by side."""
_NUMBER: Final = pa.field("part of the second step", pa.int64())


class Folder:
    """A temporary folder; gone with ``close``, or with its last user. ``inside``: another one, else
    ``TMPDIR``."""

    def __init__(self, inside: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="keelmq-audit-", dir=inside))
        self._files = 0
        self._gone = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def file(self, name: str) -> str:
        self._files += 1
        return str(self.path / f"{name}-{self._files}.arrow")

    def close(self) -> None:
        self._gone()


class Parts:
    """Rows spread over parts of a file by number; each is read as a whole, so it has to be small. Many parts
    are made in two steps: each time that rows are written, each part gets a batch of its own, and many small
    batches would take more room than the rows."""

    def __init__(self, folder: Folder, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._width = -(-count // _AT_ONCE_MAX)  # parts to one of the first step
        first = schema.append(_NUMBER)
        self._first = Parts(folder, first, -(-count // self._width)) if self._width > 1 else None
        self._waiting: list[tuple[pa.Table, Any]] = []
        self._waiting_rows = 0
        self._path = folder.file("parts")
        self._sink = pa.OSFile(self._path, "wb")
        self._writer: Any = pa.ipc.new_file(self._sink, schema, options=WRITTEN)
        self._numbers: list[list[int]] = [[] for _ in range(count)]
        self._counts = [0] * count
        self._written = 0
        self._reader: Any = None

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, batch: pa.RecordBatch | pa.Table, part: Any) -> None:
        """``part``: the number of each row's part."""
        if not len(part):
            return
        if self._first is not None:
            numbered = (
                pa.table(batch)
                .select(self._schema.names)
                .append_column(_NUMBER, pa.array(part, _NUMBER.type))
            )
            self._first.add(numbered, part // self._width)
        else:
            self._wait(pa.table(batch), part)

    def _wait(self, rows: pa.Table, part: Any) -> None:
        self._waiting.append((rows, part))
        self._waiting_rows += len(part)
        if self._waiting_rows >= _WAITING_ROWS_MAX:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        part = np.concatenate([part for _, part in self._waiting])
        rows = pa.concat_tables([table.select(self._schema.names) for table, _ in self._waiting])
        self._waiting.clear()
        self._waiting_rows = 0
        order = np.argsort(part, kind="stable")
        numbers, begins = np.unique(part[order], return_index=True)
        (batch,) = rows.take(pa.array(order)).combine_chunks().to_batches()
        for number, begin, end in zip(numbers, begins, [*begins[1:], len(order)], strict=True):
            self._writer.write_batch(batch.slice(int(begin), int(end - begin)))
            self._numbers[int(number)].append(self._written)
            self._counts[int(number)] += int(end - begin)
            self._written += 1

    def part(self, number: int) -> pa.Table:
        """All rows of a part, in the order in which they came; none are added any more."""
        return pa.concat_tables([self._schema.empty_table(), *self.batches(number)])

    def batches(self, number: int) -> Iterator[pa.Table]:
        """The same, one after the other."""
        reader = self._open()
        for at in self._numbers[number]:
            yield pa.Table.from_batches([reader.get_batch(at)], schema=self._schema)

    def rows(self, number: int) -> int:
        """How many a part has; none are added any more."""
        self._open()
        return self._counts[number]

    def _open(self) -> Any:
        if self._reader is None:
            self._split()
            self._flush()
            self._writer.close()
            self._sink.close()
            options = pa.ipc.IpcReadOptions(use_threads=False)
            self._reader = pa.ipc.open_file(pa.OSFile(self._path, "rb"), options=options)
        return self._reader

    def _split(self) -> None:
        """The second step: the rows of one part of the first after those of the other."""
        if self._first is None:
            return
        for number in range(len(self._first)):
            for rows in self._first.batches(number):
                self._wait(rows.select(self._schema.names), rows[_NUMBER.name].to_numpy())
            self._flush()
        Path(self._first._path).unlink()
        self._first = None


class Spool(Generic[T]):
    """Things in the order in which they came; those behind the first wait in a file. Gone with its last
    user."""

    def __init__(self, most: int = _SPOOLED_MAX) -> None:
        self._most = most
        self._waiting: list[T] = []
        self._file: Any = None

    def append(self, item: T) -> None:
        self._waiting.append(item)
        if len(self._waiting) >= self._most:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="keelmq-audit-")  # noqa: SIM115 - read later
                weakref.finalize(self, self._file.close)
            self._file.seek(0, os.SEEK_END)
            pickle.dump(self._waiting, self._file)
            self._waiting = []

    def __iter__(self) -> Iterator[T]:
        """Those that are there now. Several may be under way, and any may stop early."""
        waiting, at = list(self._waiting), 0
        end = self._file.seek(0, os.SEEK_END) if self._file is not None else 0
        while at < end:
            self._file.seek(at)
            items = pickle.load(self._file)
            at = self._file.tell()
            yield from items
        yield from waiting


def hashes(keys: pa.ChunkedArray | pa.Array) -> Any:
    """64 bits of each text, numpy uint64; equal texts have equal ones."""
    column = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if isinstance(column, pa.ChunkedArray):  # of no chunk
        return np.zeros(0, np.uint64)
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    raw = column.buffers()[2]
    data = np.frombuffer(raw, np.uint8) if raw is not None else np.zeros(0, np.uint8)
    lengths = np.diff(ends)
    out = np.zeros(len(column), np.uint64)
    sizes = np.unique(lengths)
    for length in sizes:
        (rows,) = np.nonzero(lengths == length)
        words = np.zeros((len(rows), (int(length) + 7) // 8 * 8), np.uint8)
        if len(sizes) == 1:  # they stand side by side
            words[:, :length] = data[ends[0] : ends[-1]].reshape(len(rows), length)
        else:
            words[:, :length] = data[ends[rows][:, None] + np.arange(length)]
        matrix = words.view("<u8")
        out[rows] = (matrix * _weights(matrix.shape[1])).sum(axis=1, dtype=np.uint64) + np.uint64(length)
    out ^= out >> np.uint64(32)
    out *= np.uint64(0x9E3779B97F4A7C15)
    return out ^ out >> np.uint64(29)


@lru_cache(maxsize=256)
def _weights(count: int) -> Any:
    """Odd numbers without a pattern, the same in every process."""
    odd = [pow(0x9E3779B97F4A7C15, at + 1, 1 << 64) | 1 for at in range(count)]
    return np.array(odd, np.uint64)
