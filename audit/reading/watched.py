"""Is a ledger still what it was when it was looked at first? By sizes and times, and by its bytes if it grew.

A smaller ledger asks for fewer messages, so one that was cut meanwhile may not be read on in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, NamedTuple
from zlib import crc32

from audit.reading.storage import codec_of, open_file, open_storage
from audit.sources.location import in_folder, shown

_READ_BYTES: Final = 1 << 20


class Stamp(NamedTuple):
    """What a file system tells of a file; ``mtime_ns`` is 0 where it tells no time."""

    size: int
    mtime_ns: int


def stamp_of(path: str) -> Stamp:
    """Of a single file, as it is stored. Raises OSError."""
    if "://" not in path:
        told = os.stat(path)
        return Stamp(told.st_size, told.st_mtime_ns)
    folder, name = in_folder(path)
    storage = open_storage(folder)
    try:
        return Stamp(storage.size(name), storage.mtime_ns(name))
    finally:
        storage.close()


class WatchedFile:
    """A ledger of lines, opened once a pass. ``check`` behind the last pass."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = stamp_of(path)
        self._passes: list[_Counted] = []

    def open(self, path: str) -> tuple[Any, int]:
        """As ``open_file``; what is read is counted."""
        file, size = open_file(path)
        self._passes.append(_Counted(file))
        return self._passes[-1], size

    def check(self) -> None:
        """Raises OSError if it is another file now. One that only grew is none: its first lines are the same,
        and those behind them were acknowledged later."""
        now = stamp_of(self._path)
        if now == self._before:
            return
        grown = now.size > self._before.size and not codec_of(self._path)
        if not (grown and all(one.size <= now.size and self._has(one) for one in self._passes)):
            raise changed(self._path, self._before, now)

    def _has(self, one: _Counted) -> bool:
        """Does the file still begin with what this pass read?"""
        again = _Counted(open_file(self._path)[0])
        with again:
            while again.size < one.size and again.read(min(_READ_BYTES, one.size - again.size)):
                pass
        return (again.size, again.crc) == (one.size, one.crc)


class WatchedFolder:
    """The files of a Parquet ledger, which are written once: one more is no part of what is asked."""

    def __init__(self, path: str, files: Iterable[str], look: Callable[[list[str]], list[Any]]) -> None:
        self._path, self._files, self._look = path, list(files), look
        self._before = self._stamps()

    def _stamps(self) -> list[Stamp]:
        found = self._look(self._files) if self._files else []
        return [Stamp(int(info.size or 0), int(info.mtime_ns or 0)) for info in found]

    def check(self) -> None:
        """Raises OSError if one of them is another file now, or is gone."""
        for file, before, now in zip(self._files, self._before, self._stamps(), strict=True):
            if before != now:
                raise changed(self._path if "://" in self._path else file, before, now)


def changed(path: str, before: Stamp, now: Stamp) -> OSError:
    """What to say of a file that is not what it was."""
    how = f"{before.size} bytes, then {now.size}" if before.size != now.size else "its time is another one"
    return OSError(5, f"it changed while it was read ({how}): give a copy that nobody writes", shown(path))


class _Counted:
    """A file that is only read on; knows how much was read, and its CRC."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size, self.crc = 0, 0

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.size += len(data)
        self.crc = crc32(data, self.crc)
        return data
