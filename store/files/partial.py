"""Is a record that is not whole one that never came whole?

A slave flushes what came over the link, which is cut anywhere: what is safe on its disk may end in a record.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from store.files.damage import may_have
from store.files.record import (
    BLANK_BYTES,
    BODY_LENGTH_AT,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    BadRecord,
    measure,
)

_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_PLACE: Final = slice(28, 36)
"""Where a record says its own physical offset."""
PROVEN_BYTES: Final = _PLACE.stop
"""So many bytes of a record tell that it begins there."""
_BLOCK_BYTES: Final = 1 << 20


def claimed_end(read: Callable[[int, int], bytes], at: int, offset: int, came: int) -> int | None:
    """Where the record at physical ``offset``, of which ``came`` bytes are there, says that it ends: behind
    them. None when what came contradicts itself or that, so that it is rot. ``read``: (bytes, position in the
    segment); ``at``: the record's position there. Real layout: ``CommitLog`` of RocketMQ, as ``measure``."""
    if came < RECORD_BYTES_MIN:
        return offset + RECORD_BYTES_MIN
    head = read(HEAD.size, at)
    size, magic, _, _, _, _, said, _, _ = HEAD.unpack(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or said != offset or size <= came:
        return None
    place = BODY_LENGTH_AT[head[39] >> 4 & 3]
    for length_bytes in (4, 1 if magic == MAGIC_V1 else 2, 2):  # body, topic, properties
        if place + length_bytes > size:
            return None
        if place + length_bytes > came:
            return int(offset + size)
        place += length_bytes + int.from_bytes(read(length_bytes, at + place), "big")
    return int(offset + size) if place == size else None


def partial_behind(read: Callable[[int, int], bytes], at: int, base: int, stop: int) -> int | None:
    """Position of the first record behind position ``at`` that says that it goes on behind ``stop``, where
    what came ends: magic and its own physical offset prove that it begins there. None when there is none, or
    too little of it came. ``base``: the segment's physical start."""
    probe = at + 1
    while probe + _PLACE.stop <= stop:
        data = read(min(_BLOCK_BYTES, stop - probe), probe)
        place = min((p for magic in _MAGICS if (p := data.find(magic, 4)) >= 0), default=-1)
        if place < 0 or len(data) < _PLACE.stop:
            # What a magic at the end of this piece belongs to begins before its last bytes.
            probe += max(len(data) - BLANK_BYTES + 1, 1)
            continue
        probe += place - 4
        head = read(min(HEAD.size, stop - probe), probe)
        if int.from_bytes(head[_PLACE], "big") == base + probe:
            says = int.from_bytes(head[:4], "big", signed=True)
            if says > stop - probe and claimed_end(read, probe, base + probe, stop - probe) is not None:
                return probe
        probe += 1
    return None


def damaged_end(
    read: Callable[[int, int], bytes], at: int, base: int, stop: int, segment_bytes: int
) -> int | None:
    """Position where the damaged record at position ``at`` ends, when no good one follows it before
    ``stop``, where what came ends: as its lengths say, else where one begins of which a part came. None when
    both are unknown."""
    says = int.from_bytes(read(4, at), "big", signed=True)
    left = segment_bytes - at
    if says >= RECORD_BYTES_MIN and may_have(says, left) and _adds_up(read(says, at), base + at):
        return at + says
    return partial_behind(read, at, base, stop) if stop < segment_bytes else None


def _adds_up(record: bytes, offset: int) -> bool:
    """Do the lengths of a record tell that it ends where ``record`` does, whatever else of it rotted?"""
    tried = bytearray(record)
    tried[_PLACE] = offset.to_bytes(8, "big")
    for magic in _MAGICS:
        tried[4:8] = magic
        with suppress(BadRecord):
            if measure(tried, 0, offset, False) == len(tried):
                return True
    return False
