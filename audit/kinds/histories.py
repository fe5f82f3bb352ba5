"""Where do the histories of two logs part? Behind that place no vote counts: the later epoch is the group's.

Epoch files say where. The bytes have to confirm it: a file that lacks an epoch says the same of one history.
A file that cannot be right says nothing.
"""

from __future__ import annotations

from typing import Final

from audit.compare import Cursor, covering_start
from audit.intervals import Interval, in_both
from audit.plan import covered
from audit.reading.layout import Replica, Segment, bytes_at, segment_reader
from audit.reading.storage import open_storage

NEVER: Final = 1 << 62
"""Behind every log's end."""


class Histories:
    """The replicas' histories. The ``reference``'s, which has the last epoch of all, is the group's."""

    def __init__(self, replicas: list[Replica], reference: int) -> None:
        self._replicas, self._reference = replicas, reference
        self._parted: dict[tuple[int, int], int] = {}

    def left(self, at: int) -> int:
        """From where on a log is of a history that the group left. Raises OSError."""
        return self.parted(self._reference, at)

    def with_group(self, at: int, offset: int) -> bool:
        """Is a place of the log, or a stretch that ends there, of the group's history?"""
        return self.left(at) > offset

    def parted(self, one: int, other: int) -> int:
        """From where on two logs are of two histories; ``NEVER``: nothing says so. Raises OSError."""
        pair = min(one, other), max(one, other)
        if pair not in self._parted:
            a, b = self._replicas[pair[0]], self._replicas[pair[1]]
            begin = parted_by_epochs(a, b)
            earlier, later = (a, b) if last_epoch(a) < last_epoch(b) else (b, a)
            apart = begin < NEVER and _end_apart(later, earlier, begin)
            self._parted[pair] = begin if apart else NEVER
        return self._parted[pair]

    def untold(self, one: int, other: int) -> bool:
        """May two logs be of two histories, of which the epoch file of one would tell?"""
        told = [tells(self._replicas[at]) for at in (one, other)]
        return any(tells(r) for r in self._replicas) and not all(told)


def tells(r: Replica) -> bool:
    """Does a log say of which epochs it is?"""
    return bool(r.epochs) and not r.epoch_problem and not r.empty


def last_epoch(r: Replica) -> int:
    """The one that wrote its last byte."""
    return r.epoch_at(r.end - 1)


def parted_by_epochs(a: Replica, b: Replica) -> int:
    """From where on two epoch files tell two histories, of which one ends in a later epoch; ``NEVER``: they
    do not."""
    if not (tells(a) and tells(b)) or last_epoch(a) == last_epoch(b):
        return NEVER
    point = consistent_point(a, b)
    return point if point >= 0 else max(0, a.epochs[0][1], b.epochs[0][1])


def consistent_point(a: Replica, b: Replica) -> int:
    """How far two logs agree by their epochs: newest shared (epoch, start), the nearer of its ends."""
    ends_a, ends_b = _epoch_ends(a), _epoch_ends(b)
    for entry in sorted(set(ends_a) & set(ends_b), reverse=True):
        return min(ends_a[entry], ends_b[entry])
    return -1


def _epoch_ends(replica: Replica) -> dict[tuple[int, int], int]:
    starts = [start for _, start in replica.epochs[1:]] + [replica.end]
    return dict(zip(replica.epochs, starts, strict=True)) if replica.epochs else {}


def _end_apart(later: Replica, earlier: Replica, begin: int) -> bool:
    """Do two logs end differently, in what both hold from ``begin`` on? Two histories share no record: their
    times and hosts differ. One history that is damaged in a place goes on alike behind it."""
    both = [(max(a, begin), b) for a, b in in_both(covered(later), covered(earlier)) if b > begin]
    if not both:
        return False
    start, end = both[-1]
    segment = later.segment_at(end - 1)
    assert segment is not None, "what is covered lies in a segment"
    first, until = _last_record(later, segment, (max(start, segment.base), end))
    return bytes_at(later, first, until - first) != bytes_at(earlier, first, until - first)


def _last_record(r: Replica, segment: Segment, span: Interval) -> Interval:
    """The last whole record within ``span``, which begins at a border: no blank, behind which anything may
    stand. Of unreadable bytes, all of them."""
    storage = open_storage(r.location)
    try:
        read, end = segment_reader(storage, segment), r.segment_end(segment)
        cursor, until = Cursor(read, end, end), span[1]
        while True:
            start = covering_start(read, until - 1, segment.base, end)
            if start <= span[0]:
                return span[0], until
            parsed = cursor.parse(start)
            if parsed.problem != "blank" and start + parsed.size <= span[1]:
                return start, until
            until = start
    finally:
        storage.close()
