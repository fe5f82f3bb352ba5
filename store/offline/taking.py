"""How do a replica's bytes come into the place of damaged ones: proven first, then copied, piece by piece?

What they must prove is what a running broker asks of them (``store.heal.repair.check``). Damage may be as
long as a segment: of it, and of what the replica has there, no more than a record is in memory at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from model.read_ahead import Ahead
from runtime.env import File
from store.files.record import BadRecord
from store.heal.repair import NEIGHBOUR_BYTES
from store.offline.directory import BLOCK_BYTES, SegmentInfo, StoreDirectory, whole_at

_END: Final = "unreadable_region"


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes [``begin``, ``until``) of ``segment``, and what stands ``before`` and ``behind`` them; ``limit``:
    from there on nothing proves anything."""

    segment: SegmentInfo
    begin: int
    until: int
    limit: int
    before: bytes
    behind: bytes


def gap_at(store: StoreDirectory, segment: SegmentInfo, begin: int, until: int, limit: int) -> Gap:
    """``limit``: other damage is there, or the torn tail."""
    first = max(begin - NEIGHBOUR_BYTES, segment.start)
    stop = min(until + NEIGHBOUR_BYTES, segment.end, limit)
    before = store.read(segment.path, begin - first, first - segment.start)
    behind = store.read(segment.path, max(stop - until, 0), until - segment.start)
    # Where the log ends here, it may go on there.
    return Gap(segment, begin, until, min(limit, segment.end), before, behind.rstrip(b"\0"))


def proven(store: StoreDirectory, gap: Gap, peer: StoreDirectory, *, prop_crc: bool) -> int:
    """Where the records end with which ``peer`` fills the gap. Raises BadRecord when they are not whole, or
    what is around them is not ours; DiskError."""
    for at, ours in ((gap.begin - len(gap.before), gap.before), (gap.until, gap.behind)):
        theirs = peer.log_bytes(at, at + len(ours))
        if len(theirs) < len(ours):
            raise BadRecord(_END, f"its log has no bytes at {at + len(theirs)}")
        if theirs != ours:
            text = f"the bytes around [{gap.begin}, {gap.until}) are not ours"
            raise BadRecord("divergent_suffix", text)
    start = gap.segment.start
    ahead = Ahead(
        lambda at, size: peer.log_bytes(start + at, start + at + size), gap.segment.size, BLOCK_BYTES
    )
    at = gap.begin
    while at < gap.until:
        at += abs(whole_at(ahead, at - start, gap.segment, prop_crc=prop_crc))
    if at > gap.until and not _goes_on(store, gap, at):
        raise BadRecord(_END, f"no record ends at {gap.until}")
    return at


def _goes_on(store: StoreDirectory, gap: Gap, until: int) -> bool:
    """May the gap's last record end at ``until``? What came of a log's last one ends anywhere: then nothing
    stands behind it."""
    return until <= gap.limit and store.written_until(gap.segment, gap.until) == gap.until


def copy(peer: StoreDirectory, gap: Gap, until: int, file: File) -> None:
    """Put the peer's bytes into the gap; the caller syncs the file, once for all. Raises DiskError, OSError;
    what was copied by then is whole records, and the rest is still damaged."""
    for at in range(gap.begin, until, BLOCK_BYTES):
        file.pwrite(peer.log_bytes(at, min(at + BLOCK_BYTES, until)), at - gap.segment.start)
