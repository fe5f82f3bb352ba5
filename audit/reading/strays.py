"""Where do the records of a file belong whose name tells no place of the log?

Each record names its own place. A file that was renamed holds them still: no retention took them.
"""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from typing import Any, Final, Protocol

from audit.intervals import Interval
from audit.reading.record import MAGIC_V1, MAGIC_V2, parse
from audit.reading.scan import WINDOW_BYTES
from audit.sources.location import CODECS
from audit.sources.storage import Storage, StoredFile
from audit.sources.unpacked import stream_of

OTHERS_BYTES_MAX: Final = 16 << 30
"""So much is read of a store's files whose names tell no place."""
_HEAD_BYTES: Final = 36
_PART_BYTES: Final = 4096
"""Of a compressed file at once: where it breaks, so much before is lost with it."""
_MAGICS: Final = tuple(magic.to_bytes(4) for magic in (MAGIC_V1, MAGIC_V2))


class Readable(Protocol):
    """What can read files: a storage does."""

    def read(self, name: str, offset: int, size: int, /) -> bytes: ...


class Metered:
    """Reads files that may hold anything, all together up to so many bytes; behind those they have none. Of a
    compressed one, which is read from its begin on, it gives what was compressed, as far as it is decoded.
    ``refused``: some were asked for."""

    def __init__(self, storage: Storage) -> None:
        self.refused = False
        self._storage, self._left = storage, OTHERS_BYTES_MAX
        self._unpacked: dict[str, Any] = {}

    def read(self, name: str, offset: int, size: int) -> bytes:
        self.refused = self.refused or self._left <= 0
        data = b"" if self._left <= 0 else self._plain(name, offset, size)
        self._left -= len(data)
        return data

    def _plain(self, name: str, offset: int, size: int) -> bytes:
        codec = CODECS.get(name.rpartition(".")[2])
        if codec is not None and not offset:
            self._unpacked = {name: stream_of(_Lent(self._storage, name), codec)}
            if data := self._decoded(name, size):
                return data
            del self._unpacked[name]  # its name says more than it is
        if name in self._unpacked:
            return self._decoded(name, size)
        return self._storage.read(name, offset, size)

    def _decoded(self, name: str, size: int) -> bytes:
        parts: list[bytes] = []
        with suppress(OSError):  # damaged, or cut: what comes before is told
            while size > 0 and (part := self._unpacked[name].read(min(size, _PART_BYTES))):
                parts.append(part)
                size -= len(part)
        return b"".join(parts)


class _Lent(StoredFile):
    """A file of a storage that goes on without it."""

    def close(self) -> None:
        io.RawIOBase.close(self)


class Behind:
    """A file from an offset on."""

    def __init__(self, storage: Readable, begin: int) -> None:
        self._storage, self._begin = storage, begin

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._storage.read(name, self._begin + offset, size)


def belongs(storage: Readable, file: str, segment_bytes: int, most: int = 1 << 62) -> Interval | None:
    """The segment of which a file holds a sound record, by that record, in its first ``most`` bytes; None if
    there is none. Each byte is read once. Raises OSError."""
    at, data = 0, b""
    while at < most and (more := storage.read(file, at, WINDOW_BYTES)):
        data = data[-(WINDOW_BYTES // 2) :] + more  # what the window's edge cut is whole now
        at += len(more)
        for head in _heads(data):
            base = _base(data, head, at - len(data), segment_bytes)
            if base >= 0:
                return base, base + segment_bytes
        if len(more) < WINDOW_BYTES:
            return None
    return None


def _heads(data: bytes) -> list[int]:
    """Where records may begin, by their magic."""
    found = []
    for magic in _MAGICS:
        at = data.find(magic, 4)
        while at >= 0:
            found.append(at - 4)
            at = data.find(magic, at + 4)
    return sorted(found)


def place_of(data: bytes, at: int) -> int:
    """Where a record says that it stands."""
    return int(struct.unpack_from(">q", data, at + 28)[0])


def _base(data: bytes, head: int, at: int, segment_bytes: int) -> int:
    """Where the segment begins in which a record says that it stands; -1: here is no sound one of a
    segment."""
    if len(data) - head < _HEAD_BYTES:
        return -1
    place = place_of(data, head)
    base = place - head - at
    if base < 0 or base % segment_bytes:
        return -1
    parsed = parse(data, head, place, base + segment_bytes)
    return base if parsed.record is not None and parsed.damage is None else -1
