"""Which ranges of the ledger of damage are whole again?

A crash may come between a repair and its note, and bytes may have been put back by hand. A range may begin
inside a record, where damage before it said where the next one is: then the records before it tell.
"""

from __future__ import annotations

from typing import Final

from model.errors import DiskError
from model.read_ahead import Ahead
from store.files.commit_log import CommitLog
from store.files.damage import RECORD_BYTES_MAX, DamagedRange, DamageLedger, Resync
from store.files.record import BadRecord

LOOK_BACK_BYTES: Final = (1 << 16, 8 << 20)
"""How far before a range a record is looked for: first where most are found, then where the longest is."""
LOOKED_BYTES_MAX: Final = 64 << 20
"""Read before ranges at one start: what is left of them the next start, or a repair, takes off."""
_PIECE_BYTES: Final = LOOK_BACK_BYTES[0]


def forget_mended(commit_log: CommitLog, damage: DamageLedger) -> None:
    """Take ranges off the ledger whose bytes are whole. What differs from replicas (``bytes_differ``) is
    whole by its CRC, and yet another record than its queue has there: that goes when other bytes were put
    in its place, which are compared anew."""
    left, gone = LOOKED_BYTES_MAX, []
    for item in damage.ranges:
        if item.kind == "bytes_differ":
            if _was_replaced(commit_log, item):
                gone.append(item)
            continue
        mended = _is_whole(commit_log, item.begin, item.until)
        for back in LOOK_BACK_BYTES if not mended else ():
            if back > left:
                break
            border, read_bytes = _border_before(commit_log, item, back)
            left -= read_bytes
            if border is not None:
                left -= item.until - border
                mended = _is_whole(commit_log, border, item.until)
                break
        if mended:
            gone.append(item)
    damage.clear(gone)


def _was_replaced(commit_log: CommitLog, item: DamagedRange) -> bool:
    try:
        there = commit_log.read(item.begin, item.until - item.begin)
    except DiskError:  # unreadable
        return False
    return item.were_replaced(there) and _is_whole(commit_log, item.begin, item.until)


def _border_before(commit_log: CommitLog, item: DamagedRange, back: int) -> tuple[int | None, int]:
    """Where a whole record begins up to ``back`` bytes before a range, in its segment; and how much was read
    for that. The rest of one that had come in part may have come since."""
    segment = next(
        (s for s in commit_log.segments if 0 <= item.begin - s.start < commit_log.segment_bytes), None
    )
    if segment is None:
        return None, 0
    read_bytes = 0

    def read(position: int, count: int) -> bytes:
        nonlocal read_bytes
        read_bytes += count
        return segment.read(count, position)

    at = item.begin - segment.start
    size = min(commit_log.segment_bytes, commit_log.end - segment.start)
    resync = Resync(Ahead(read, size, _PIECE_BYTES), segment.start, size)
    try:
        found = resync.behind(max(at - back, 0) - 1, at)
    except DiskError:  # unreadable still
        found = None
    return None if found is None else segment.start + found, read_bytes


def _is_whole(commit_log: CommitLog, at: int, until: int) -> bool:
    """Do whole records follow each other from ``at`` to ``until`` or beyond?"""
    try:
        while at < until:
            says = int.from_bytes(commit_log.read(at, 4), "big", signed=True)
            if not 0 < says <= RECORD_BYTES_MAX:
                return False
            size = commit_log.whole(commit_log.read(at, says), 0, at)
            if not size:
                return False
            at += abs(size)
    except (BadRecord, DiskError):  # or unreadable still
        return False
    return True
