"""How are stretches of a file looked at that lie over each other? Each byte is read once, and hashed once.

Whoever searches a file for records asks at each place that may be one, and each says how long it is: heads
side by side may all say that they reach to the file's end.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any, Final

_STEP_BYTES: Final = 1024
"""From one known CRC to the next: at either end of a stretch less than this is hashed for it alone."""


class Ahead:
    """Bytes of a file from a place on, which moves on. Nothing is read from ``end`` on."""

    def __init__(
        self, read: Callable[[int, int], bytes], end: int, piece_bytes: int, *, once: bool = False
    ) -> None:
        """``read(offset, size)``: fewer bytes only where the file ends. ``piece_bytes``: so many are read at
        once, or more where more are asked for. ``once``: a few bytes that are there are not read again, as
        the file can only be read on."""
        self.data, self.base = b"", 0
        self._read, self._end, self._piece, self._once = read, end, piece_bytes, once

    def at(self, offset: int, size: int) -> int:
        """Where in ``data`` the byte at ``offset`` is, with ``size`` bytes from there on; fewer only where
        the file ends. Raises OSError."""
        here = offset - self.base
        if not 0 <= here <= len(self.data):
            self.data, self.base, here = b"", offset, 0
        until = min(offset + size, self._end)
        if until > self.base + len(self.data):
            self._load(here, until)
            here = offset - self.base
        return here

    def _load(self, here: int, until: int) -> None:
        kept = len(self.data) - here
        if not self._once and kept <= self._piece // 2:
            kept = 0  # to read it again is cheaper than to copy the rest
        behind = self.base + here + kept
        wanted = min(self._end - behind, max(until - behind, self._piece))
        data = self._read(behind, wanted)
        self.data, self.base = (self.data[here:] + data if kept else data), behind - kept
        if len(data) < wanted:
            self._end = behind + len(data)

    @property
    def whole(self) -> bool:
        """Is everything in ``data`` that is there?"""
        return self.base + len(self.data) >= self._end


class Sums:
    """CRC-32 of stretches, asked for in the order of their begins: of some that lie over each other a byte is
    hashed once, and near their ends once more."""

    def __init__(self, crc32: Callable[[Any, int], int] = zlib.crc32) -> None:
        self._crc32 = crc32
        self._begin = 0  # the first step
        self._known = array("I")  # CRCs of what lies between it and each other one

    def crc(self, data: bytes, base: int, begin: int, until: int) -> int:
        """Of [``begin``, ``until``), which lies in ``data``, as that begins at ``base``."""
        view = memoryview(data)
        if until - begin <= 2 * _STEP_BYTES:
            return self._crc32(view[begin - base : until - base], 0)
        first, last = -(-begin // _STEP_BYTES), until // _STEP_BYTES
        if not self._begin <= first < self._begin + len(self._known):
            self._begin, self._known = first, array("I", [0])
        known, crc32 = self._known, self._crc32
        for step in range(self._begin + len(known) - 1, last):
            at = step * _STEP_BYTES - base
            known.append(crc32(view[at : at + _STEP_BYTES], known[-1]))
        head = crc32(view[begin - base : first * _STEP_BYTES - base], 0)
        # CRCs are linear: what came before is moved on by the length, and taken out.
        before = head ^ known[first - self._begin]
        found = known[last - self._begin] ^ _moved(before, (last - first) * _STEP_BYTES)
        return crc32(view[last * _STEP_BYTES - base : until - base], found)


def _moved(crc: int, size: int) -> int:
    """What a CRC adds to that of ``size`` bytes more."""
    power = 0
    while size:
        if size & 1:
            a, b, c, d = _tables(power)
            crc = a[crc & 255] ^ b[crc >> 8 & 255] ^ c[crc >> 16 & 255] ^ d[crc >> 24]
        size, power = size >> 1, power + 1
    return crc


@cache
def _tables(power: int) -> list[list[int]]:
    """For each of a CRC's bytes what it becomes behind 2 ** ``power`` bytes."""
    bits = [1 << bit for bit in range(32)]
    if power:
        bits = [_moved(_moved(bit, 1 << power - 1), 1 << power - 1) for bit in bits]
    else:
        # A zero more, without the turning over of all bits with which CRC-32 begins and ends.
        bits = [zlib.crc32(b"\0", bit) ^ zlib.crc32(b"\0", 0) for bit in bits]
    found = []
    for byte in range(4):
        table = [0]
        for bit in bits[8 * byte : 8 * byte + 8]:
            table += [value ^ bit for value in table]
        found.append(table)
    return found
