"""Where do the records of a file belong whose name tells no place of the log?

Each record names its own place. A file that was renamed holds them still: no retention took them.
"""

from __future__ import annotations

import struct
from typing import Final

from audit.intervals import Interval
from audit.reading.record import MAGIC_V1, MAGIC_V2, parse
from audit.reading.scan import WINDOW_BYTES
from audit.reading.storage import Storage

_HEAD_BYTES: Final = 36
_MAGICS: Final = tuple(magic.to_bytes(4) for magic in (MAGIC_V1, MAGIC_V2))


def belongs(storage: Storage, file: str, segment_bytes: int, most: int = 1 << 62) -> Interval | None:
    """The segment of which a file holds a sound record, by that record, in its first ``most`` bytes; None if
    there is none. Raises OSError."""
    at = 0
    while at < most and (data := storage.read(file, at, WINDOW_BYTES)):
        for head in _heads(data):
            base = _base(data, head, at, segment_bytes)
            if base >= 0:
                return base, base + segment_bytes
        if len(data) < WINDOW_BYTES:
            return None
        at += WINDOW_BYTES // 2  # what the window's edge cuts is whole in the next one
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
