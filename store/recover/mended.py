"""Which ranges of the ledger of damage are whole again?

A crash may come between a repair and its note, and bytes may have been put back by hand. A range may begin
inside a record, where damage before it said where the next one is: then the records before it tell.
"""

from __future__ import annotations

from typing import Final

from model.errors import DiskError
from store.files.commit_log import CommitLog
from store.files.damage import RECORD_BYTES_MAX, DamagedRange, DamageLedger, resync
from store.files.record import BadRecord

LOOK_BACK_BYTES: Final = (1 << 16, 8 << 20)
"""How far before a range a record is looked for: first where most are found, then where the longest is."""
LOOKED_BYTES_MAX: Final = 64 << 20
"""Read before ranges at one start: what is left of them the next start, or a repair, takes off."""


def forget_mended(commit_log: CommitLog, damage: DamageLedger) -> None:
    """Take ranges off the ledger whose bytes are whole. What differs from replicas (``bytes_differ``) is
    whole by its CRC, and yet another record than its queue has there."""
    left = LOOKED_BYTES_MAX
    for item in list(damage.ranges):
        if item.kind == "bytes_differ":
            continue
        mended = _is_whole(commit_log, item.begin, item.until)
        for back in LOOK_BACK_BYTES if not mended else ():
            border = _border_before(commit_log, item, back) if back <= left else None
            if border is not None:
                left -= item.until - border
                mended = _is_whole(commit_log, border, item.until)
                break
        if mended:
            damage.clear(item)


def _border_before(commit_log: CommitLog, item: DamagedRange, back: int) -> int | None:
    """Where a whole record begins up to ``back`` bytes before a range, in its segment. The rest of one that
    had come in part may have come since."""
    for segment in commit_log.segments:
        at = item.begin - segment.start
        if 0 <= at < commit_log.segment_bytes:
            size = min(commit_log.segment_bytes, commit_log.end - segment.start)
            try:
                found = resync(segment.read, segment.start, max(at - back, 0) - 1, size)
            except DiskError:  # unreadable still
                return None
            return None if found is None or found >= at else segment.start + found
    return None


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
