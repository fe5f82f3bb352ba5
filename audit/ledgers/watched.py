"""Is a ledger still what it was when it was looked at first? By sizes and times, and by its bytes if it grew.

A smaller ledger asks for fewer messages, so one that was cut meanwhile may not be read on in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, NamedTuple
from zlib import crc32

from audit.reading.storage import codec_of, open_file, open_folder
from audit.sources.location import in_folder, shown

_READ_BYTES: Final = 1 << 20
_NO_END: Final = 1 << 62


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
    storage = open_folder(folder)
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

    @property
    def size(self) -> int:
        """As it is stored, at the begin."""
        return self._before.size

    def open(self, path: str) -> tuple[Any, int]:
        """As ``open_file``. Of a file that is not compressed, what was there at the begin is read, no more:
        what others append meanwhile is not asked for, be its last line whole or not. A compressed one that
        was cut may still be whole parts. Raises OSError."""
        file, size = open_file(path)
        if codec_of(path) and size != self._before.size:
            file.close()
            raise changed(path, self._before, Stamp(size, 0))
        self._passes.append(_Counted(file, _NO_END if codec_of(path) else self._before.size))
        return self._passes[-1], size

    def check(self) -> None:
        """Raises OSError if it is another file now, or if a pass read another one. A file that only grew is
        none: its first lines are the same, and those behind them were acknowledged later."""
        packed = bool(codec_of(self._path))
        for one in self._passes:
            # A file may be cut under a pass and whole again behind it.
            if (one.size, one.crc) != (self._passes[0].size, self._passes[0].crc):
                raise changed(self._path, self._before, self._before, "two readings gave different bytes")
            if not packed and one.size < self._before.size:
                read = f"{self._before.size} bytes, {one.size} of them could be read"
                raise changed(self._path, self._before, self._before, read)
        now = stamp_of(self._path)
        if now == self._before:
            return
        if packed or now.size <= self._before.size or not all(map(self._has, self._passes[:1])):
            raise changed(self._path, self._before, now)

    def _has(self, one: _Counted) -> bool:
        """Does the file still begin with what this pass read?"""
        again = _Counted(open_file(self._path)[0], one.size)
        with again:
            while again.read(_READ_BYTES):
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


def changed(path: str, before: Stamp, now: Stamp, how: str = "") -> OSError:
    """What to say of a file that is not what it was."""
    if not how:
        how = (
            f"{before.size} bytes, then {now.size}" if before.size != now.size else "its time is another one"
        )
    return OSError(5, f"it changed while it was read ({how}): give a copy that nobody writes", shown(path))


class _Counted:
    """A file that is only read on, and no further than ``end``; knows how much was read, and its CRC."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._end = file, end
        self.size, self.crc = 0, 0

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._end - self.size))
        self.size += len(data)
        self.crc = crc32(data, self.crc)
        return data
