"""Is a record that is not whole one that never came whole?

A slave flushes what came over the link, which is cut anywhere: what is safe on its disk may end in a record.
"""

from __future__ import annotations

from collections.abc import Callable

from store.files.record import BODY_LENGTH_AT, HEAD, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN


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
