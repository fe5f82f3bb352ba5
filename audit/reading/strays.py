"""Where do the records of a file belong whose name tells no place of the log?

Each record names its own place. A file that was renamed holds them still: no retention took them.
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any, Final

from audit.reading.layout import Readable
from audit.reading.records.search import Search
from audit.rows.intervals import Interval
from audit.sources.location import CODECS
from audit.sources.storage import Storage, StoredFile
from audit.sources.unpacked import stream_of

OTHERS_BYTES_MAX: Final = 16 << 30
"""So much is read of a store's files whose names tell no place, and of its log for them."""
_PART_BYTES: Final = 4096
"""Of a compressed file at once: where it breaks, so much before is lost with it."""


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
    search = Search(lambda offset, size: storage.read(file, offset, size), most, once=True)
    base = search.find_home(most, segment_bytes)
    return (base, base + segment_bytes) if base >= 0 else None
