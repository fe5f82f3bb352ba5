"""Where do the histories of two logs part? Behind that place no vote counts: the later epoch is the group's.

Epoch files say where. The bytes have to confirm it: a file that lacks an epoch says the same of one history.
A file that cannot be right says nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from audit.compare import Cursor, covering_start
from audit.plan import covered
from audit.reading.layout import ALL, Replica, segment_reader
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval, in_both

NEVER: Final = ALL
_ASKED: Final = 8
"""So many records of two logs are compared."""


class Histories:
    """The replicas' histories. The ``reference``'s, which has the last epoch of all, is the group's."""

    def __init__(self, replicas: list[Replica], reference: int) -> None:
        self._replicas, self._reference = replicas, reference
        self._asked: dict[tuple[int, int], tuple[int, bool | None]] = {}
        self._left: dict[int, int] = {}

    def left(self, at: int) -> int:
        """From where on a log is of a history that the group left. Raises OSError."""
        if at not in self._left:
            begin, apart = self._ask(self._reference, at)
            untold = begin < NEVER and apart is None
            self._left[at] = self._left_by_others(at) if untold else self.parted(self._reference, at)
        return self._left[at]

    def _left_by_others(self, at: int) -> int:
        """The same, where the reference holds too little to tell: by a log of a later epoch that is of the
        group's history up to behind that place."""
        later = [
            other
            for other, r in enumerate(self._replicas)
            if other != at and last_epoch(r) > last_epoch(self._replicas[at])
        ]
        places = ((self.parted(other, at), self.shared(self._reference, other)) for other in later)
        return min((place for place, shared in places if place < shared), default=NEVER)

    def reach(self, at: int) -> int:
        """Up to where a log may hold what the group has. Behind a place where epoch files part it does not,
        also if no log is left whose bytes would prove it. Raises OSError."""
        return min(self._replicas[at].end, self.left(at), self.shared(self._reference, at))

    def with_group(self, at: int, offset: int) -> bool:
        """Is a place of the log, or a stretch that ends there, of the group's history?"""
        return self.left(at) > offset

    def parted(self, one: int, other: int) -> int:
        """From where on two logs are of two histories; ``NEVER``: nothing says so. Raises OSError."""
        begin, apart = self._ask(one, other)
        return begin if apart else NEVER

    def shared(self, one: int, other: int) -> int:
        """How far two logs are of one history. Where their epoch files part, and nothing that both have is
        sound enough to tell, nobody knows of what is behind. Raises OSError."""
        begin, apart = self._ask(one, other)
        return NEVER if apart is False else begin

    def _ask(self, one: int, other: int) -> tuple[int, bool | None]:
        """Where epoch files part, and whether the logs do; None: what they hold does not tell."""
        pair = min(one, other), max(one, other)
        if pair not in self._asked:
            a, b = self._replicas[pair[0]], self._replicas[pair[1]]
            begin = parted_by_epochs(a, b)
            earlier, later = (a, b) if last_epoch(a) < last_epoch(b) else (b, a)
            self._asked[pair] = begin, begin < NEVER and _go_apart(later, earlier, begin)
        return self._asked[pair]

    def untold(self, one: int, other: int) -> bool:
        """May two logs be of two histories, of which the epoch file of one would tell?"""
        told = [tells(self._replicas[at]) for at in (one, other)]
        return any(tells(r) for r in self._replicas) and not all(told)


def tells(r: Replica) -> bool:
    """Does a log say of which epochs it is?"""
    return bool(r.epochs) and not r.epoch_problem and not r.empty


def last_epoch(r: Replica) -> int:
    """The last one of its file, also if it wrote nothing yet: it begins at the log's end then."""
    return r.epoch_at(r.end)


def parted_by_epochs(a: Replica, b: Replica) -> int:
    """From where on two epoch files tell two histories, of which one ends in a later epoch; ``NEVER``: they
    do not. One whose last epoch is behind its log's end lost that end, and is of that epoch's history."""
    if not (tells(a) and tells(b)) or last_epoch(a) == last_epoch(b) or a.epochs[-1] == b.epochs[-1]:
        return NEVER
    point = consistent_point(a, b)
    return point if point >= 0 else max(0, a.epochs[0][1], b.epochs[0][1])


def consistent_point(a: Replica, b: Replica) -> int:
    """How far two logs agree by their epochs: newest shared (epoch, start), the nearer of its ends. Of an
    epoch that began before one of the logs does, that one may tell its own start."""
    begin = max(a.start, b.start)
    ends_a, ends_b = _epoch_ends(a, begin), _epoch_ends(b, begin)
    for entry in sorted(set(ends_a) & set(ends_b), reverse=True):
        return min(ends_a[entry], ends_b[entry])
    return -1


def _epoch_ends(replica: Replica, begin: int) -> dict[tuple[int, int], int]:
    """Where each epoch, told as if the log began there, ends."""
    if not replica.epochs:
        return {}
    lost = replica.epochs[-1][1] > replica.end
    starts = [start for _, start in replica.epochs[1:]] + [NEVER if lost else replica.end]
    told = zip(replica.epochs, starts, strict=True)
    return {(epoch, max(start, begin)): end for (epoch, start), end in told}


def _go_apart(later: Replica, earlier: Replica, begin: int) -> bool | None:
    """Are two logs of two histories, in what both hold from ``begin`` on? Two histories share no record:
    their times and hosts differ. So one that is equal proves one history, and of those that differ only sound
    ones prove two: the first, the last and some between are asked. None: neither is proved."""
    both = [(max(a, begin), b) for a, b in in_both(covered(later), covered(earlier)) if b > begin]
    apart = False
    for place in _places(both):
        one, other = (_record_over(r, place, begin) for r in (later, earlier))
        if one.raw and one[:2] == other[:2]:
            return False
        # One place, size and time: a record of which bytes changed that no CRC covers.
        alike = (one.start, len(one.raw), one.stamp_ms) == (other.start, len(other.raw), other.stamp_ms)
        apart |= one.sound and other.sound and not alike
    return apart or None


def _places(stretches: list[Interval]) -> list[int]:
    """The first byte, the last one, and some between."""
    size = sum(end - begin for begin, end in stretches)
    found, before = [], 0
    wanted = sorted({n * (size - 1) // (_ASKED - 1) for n in range(_ASKED)}) if size else []
    for begin, end in stretches:
        found += [begin + at - before for at in wanted if before <= at < before + end - begin]
        before += end - begin
    return found


class _Record(NamedTuple):
    start: int
    raw: bytes
    stamp_ms: int
    sound: bool


_NOT_THERE: Final = _Record(-1, b"", -1, sound=False)


def _record_over(r: Replica, place: int, begin: int) -> _Record:
    """The record that covers ``place``, from ``begin`` on. Behind a blank anything may stand: the one before
    it, or if there is none, the one behind it; the blank, if it is the last there is."""
    storage = open_storage(r.location)
    try:
        for _ in range(4):
            segment = r.segment_at(place)
            if segment is None or place >= r.end:
                return _NOT_THERE
            read, end = segment_reader(storage, segment), r.segment_end(segment)
            cursor, start = Cursor(read, end, end), covering_start(read, place, segment.base, end)
            while (following := cursor.step(start)[0]) <= place:  # behind unreadable bytes
                start = following
            parsed = cursor.parse(start)
            blank = parsed.problem == "blank"
            if parsed.record is not None and start >= begin:
                raw = read(start, parsed.size)
                return _Record(start, raw, parsed.record.store_timestamp_ms, sound=parsed.damage is None)
            if blank and max(begin, segment.base) < start:
                place = start - 1
            elif blank and (end >= r.end or r.segment_at(end) is None):
                return _Record(start, b"", -1, sound=True)
            elif parsed.size:
                place = start + parsed.size
            else:
                return _NOT_THERE
        return _NOT_THERE
    finally:
        storage.close()
