"""Where do records stand in a file? What is searched is read once, and of heads side by side that all say how
long they are, each byte is hashed once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from audit.reading.records.record import (
    MAGIC_PREFIX,
    MAGIC_V1,
    MAGIC_V2,
    crc32,
    is_whole,
    plausible,
)
from model.read_ahead import Ahead, Sums

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""So much is read at once."""
_PREFIX: Final = struct.Struct(">iI")
_JUMP: Final = struct.Struct(">iI20xq")  # size, magic, physical offset
_LEAST_BYTES: Final = 128
"""What a head may need, and more than what is looked at again where a window ends."""
_AGAIN_BYTES: Final = 64
_NOWHERE: Final = 1 << 62

Read = Callable[[int, int], bytes]
"""(physical offset, size) -> bytes; fewer only at the end of the file."""


def window(read: Read, offset: int, room: int) -> bytes:
    """A window of the ``room`` bytes from ``offset`` on, and all of the record there if it is longer."""
    data = read(offset, min(WINDOW_BYTES, room))
    if len(data) >= WINDOW_BYTES:
        size, magic = _PREFIX.unpack_from(data)
        if size > len(data) and magic in (MAGIC_V1, MAGIC_V2) and plausible(size, room):
            data = read(offset, size)
    return data


def sync(data: bytes, begin: int, offset: int, segment_end: int) -> int:
    """Index in ``data`` of the first record start at or after ``begin``, or -1.

    ``offset`` is the physical offset of ``data[0]``. A start counts only if its physical offset field says
    so.
    """
    at = data.find(MAGIC_PREFIX, begin + 4)
    while at >= 0:
        start = at - 4
        if start + _JUMP.size > len(data):
            return -1
        size, magic, physical = _JUMP.unpack_from(data, start)
        fits = magic in (MAGIC_V1, MAGIC_V2) and plausible(size, segment_end - offset - start)
        if fits and physical == offset + start:
            return start
        at = data.find(MAGIC_PREFIX, at + 1)
    return -1


def find_record(read: Read, begin: int, end: int, segment_end: int) -> int:
    """Physical offset of the first record start in [begin, end) by ``sync``, or -1. Reads in windows."""
    return Search(read, segment_end).find_record(begin, end)


class Search(Ahead):
    """Bytes of one segment, and the records in them. ``segment_end``: where the file ends, at the latest."""

    def __init__(self, read: Read, segment_end: int, *, once: bool = False) -> None:
        super().__init__(read, segment_end, WINDOW_BYTES, once=once)
        self._segment_end, self._sums = segment_end, Sums(crc32)
        self._none = (0, -1, False)  # no record begins in this stretch; does one behind it?

    def record(self, offset: int) -> int:
        """As ``at``, with all of the record that says that it stands there."""
        here = self.at(offset, _LEAST_BYTES)
        if len(self.data) - here >= _PREFIX.size:
            size, magic = _PREFIX.unpack_from(self.data, here)
            if magic in (MAGIC_V1, MAGIC_V2) and plausible(size, self._segment_end - offset):
                here = self.at(offset, size)
        return here

    def find_record(self, begin: int, end: int) -> int:
        """As the function. What was searched is not searched again."""
        at = first = begin
        known, until, stands = self._none
        if known <= begin <= until:
            if stands:
                return until if until < end else -1
            first, at = known, until
        while at < end:
            here = self.at(at, _LEAST_BYTES)
            found = sync(self.data, here, self.base, self._segment_end)
            if found >= 0:
                self._none = first, self.base + found, True
                return self.base + found if self.base + found < end else -1
            at = self.base + len(self.data) - _AGAIN_BYTES if not self.whole else _NOWHERE
        self._none = first, at, False
        return -1

    def find_moved(self, begin: int, end: int, segment_bytes: int) -> int:
        """Physical offset of the first sound record in [begin, end) that stands as in the file of another
        segment; or -1."""
        for start in self._heads(begin, end):
            place = self.place_of(start)
            moved = place >= 0 and place != start and (place - start) % segment_bytes == 0
            if moved and self._is_whole(start, place, self._segment_end - start):
                return start
        return -1

    def find_home(self, end: int, segment_bytes: int) -> int:
        """Where the segment begins in which the first sound record before ``end`` says that it stands, of a
        file that is read from 0 on; or -1."""
        for start in self._heads(0, end):
            place = self.place_of(start)
            base = place - start
            named = base >= 0 and base % segment_bytes == 0
            if named and self._is_whole(start, place, segment_bytes - start):
                return base
        return -1

    def place_of(self, start: int) -> int:
        """Where the head in memory says that it stands."""
        return int(_JUMP.unpack_from(self.data, start - self.base)[2])

    def _heads(self, begin: int, end: int) -> Iterator[int]:
        """Where records may begin, by their magic; each with its head in memory."""
        at = begin
        while at < end:
            here = self.at(at, _LEAST_BYTES)
            reach = end - self.base + 6  # the magic of one that begins before the end
            found = self.data.find(MAGIC_PREFIX, here + 4, min(len(self.data), reach))
            if found < 0:
                if self.whole or len(self.data) >= reach:
                    return
                at = self.base + len(self.data) - 6
                continue
            at = self.base + found - 4
            here = self.at(at, _JUMP.size)
            if len(self.data) - here < _JUMP.size:
                return
            if _PREFIX.unpack_from(self.data, here)[1] in (MAGIC_V1, MAGIC_V2):
                yield at
            at += 1

    def _is_whole(self, start: int, place: int, room: int) -> bool:
        size = int.from_bytes(self.data[start - self.base : start - self.base + 4], signed=True)
        if not plausible(size, room):
            return False
        here = self.at(start, size)
        data, base = self.data, self.base
        return is_whole(data, here, place, lambda a, b: self._sums.crc(data, base, base + a, base + b))
