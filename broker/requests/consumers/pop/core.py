"""Which popped messages were not acknowledged in time? The decisions of the revive service; pure.

A revive queue is read from its start to its end. Whoever reads it anew, as a successor does, comes to the
same: what was popped and not acknowledged is open, and due when its invisible time is over.

That is told by the clock. What was popped more than ``AHEAD_MAX_MS`` ahead of now was popped by a clock that
was wrong, or the one of now is. It is due when its invisible time went by since that was seen: neither
before, whatever clocks do, nor only when the clock is there.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final

from broker.requests.consumers.pop.codec import Ack, Checkpoint, Key

GRACE_MS: Final = 1000
"""A checkpoint is due so long after its time: an acknowledgement made in time may be on its way."""
AHEAD_MAX_MS: Final = 60_000
"""A pop time is ahead of a successor's clock by at most so much, where clocks are in step."""
FAR_MIN: Final = 10_000
"""An open checkpoint so many records behind what is read is written anew: else all of them would be read
again after a failover."""
SETTLING_MAX: Final = 1024
LATE_MAX: Final = 1000
"""So many checkpoints that are late are counted: who watches needs no more to act."""


class OpenCheckpoints:
    """What one revive queue says.

    In: records in their order, what was done about those that are due, how far the log is confirmed. Out:
    which are due, and up to where the queue need not be read again.
    Holds: ``progress`` never passes an open checkpoint, nor one whose messages are not safe elsewhere.
    """

    def __init__(self) -> None:
        self.read = 0
        """The next offset to read."""
        self._open: dict[Key, Checkpoint] = {}  # in the order of the revive queue
        self._due: list[tuple[float, int, Key]] = []  # by the clock
        self._waits: list[tuple[float, int, Key]] = []  # by time that went by, whatever the clock says
        self._newest_ms = 0  # not below the pop time of any that is open and not among those
        self._settling: dict[int, int] = {}  # revive offset -> where the log must be confirmed up to
        self._moving: dict[Key, None] = {}
        self._put_off: dict[Key, int] = {}  # said ``later`` of: when they were due at first
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._open)

    def on_checkpoint(self, point: Checkpoint, at: int) -> None:
        """A checkpoint stands at ``at`` of the revive queue."""
        key = point.key
        former = self._open.pop(key, None)
        if key in self._moving:
            del self._moving[key]
            if former is None:
                return  # it was due before it was read at its new place
        point.revive_offset = at
        self.read = max(self.read, at + 1)
        if former is not None:
            point.bits |= former.bits
        if point.unacked():
            self._open[key] = point
            self._newest_ms = max(self._newest_ms, point.pop_time_ms)
            self._push(self._due, point, point.revive_time_ms + GRACE_MS)

    def on_ack(self, ack: Ack) -> None:
        """One of an unknown checkpoint says nothing: that is done, or its messages came back already."""
        point = self._open.get(ack.key)
        if point is not None:
            for offset in ack.offsets:
                point.ack(offset)
            if not point.unacked():
                del self._open[ack.key]

    def due(self, now_ms: int, monotonic_ms: float) -> Checkpoint | None:
        """The first one whose time is over, until ``settled`` or ``later`` is said of it."""
        if self._newest_ms > now_ms + AHEAD_MAX_MS:
            self._find_ahead(now_ms, monotonic_ms)
        while self._due and self._due[0][0] <= now_ms and len(self._settling) < SETTLING_MAX:
            point = self._open.get(self._due[0][2])
            if point is not None:
                return point
            heapq.heappop(self._due)
        while self._waits and self._waits[0][0] <= monotonic_ms and len(self._settling) < SETTLING_MAX:
            point = self._open.get(self._waits[0][2])
            if point is not None:
                if point.key in self._put_off or point.pop_time_ms > now_ms + AHEAD_MAX_MS:
                    return point
                self._newest_ms = max(self._newest_ms, point.pop_time_ms)  # the clock tells of it again
            heapq.heappop(self._waits)
        return None

    def _find_ahead(self, now_ms: int, monotonic_ms: float) -> None:
        self._newest_ms = 0
        waiting = {row[2] for row in self._waits}
        for key, point in self._open.items():
            if point.pop_time_ms <= now_ms + AHEAD_MAX_MS:
                self._newest_ms = max(self._newest_ms, point.pop_time_ms)
            elif key not in waiting:
                self._push(self._waits, point, monotonic_ms + point.invisible_ms + GRACE_MS)

    def settled(self, point: Checkpoint, end: int) -> None:
        """Its messages are in the retry topic, safe when the log is confirmed up to ``end``."""
        del self._open[point.key]
        if end:
            self._settling[point.revive_offset] = end

    def later(self, point: Checkpoint, now_ms: int, monotonic_ms: float) -> None:
        """Its messages cannot be read now: try again at ``monotonic_ms``."""
        self._put_off = {key: due_ms for key, due_ms in self._put_off.items() if key in self._open}
        self._put_off.setdefault(point.key, min(now_ms, point.revive_time_ms + GRACE_MS))
        for rows in (self._due, self._waits):
            rows[:] = [row for row in rows if row[2] != point.key]
            heapq.heapify(rows)
        self._push(self._waits, point, monotonic_ms)

    def far(self) -> Checkpoint | None:
        """One to be written anew at the end of the queue; it is open at its old place until it is read."""
        for key, point in self._open.items():
            if key not in self._moving:
                is_far = self.read - point.revive_offset > FAR_MIN + 4 * len(self._open)
                if is_far:
                    self._moving[key] = None
                return point if is_far else None
        return None

    def late(self, now_ms: int) -> tuple[int, int]:
        """How many are due and open all the same (LATE_MAX at most), and since when the first is (ms ago)."""
        put_off = (row for row in self._put_off.items() if row[0] in self._open)
        since = dict(islice(put_off, LATE_MAX))
        places = [0]  # of the heap: below what is not due nothing is
        while places and len(since) < LATE_MAX:
            at = places.pop()
            if at < len(self._due) and self._due[at][0] <= now_ms:
                due_ms, _, key = self._due[at]
                if key in self._open:
                    since.setdefault(key, int(due_ms))
                places += (2 * at + 2, 2 * at + 1)
        return len(since), now_ms - min(since.values(), default=now_ms)

    def progress(self, confirmed: int) -> int:
        """The last offset of the revive queue that need not be read again; -1: none."""
        self._settling = {at: end for at, end in self._settling.items() if end > confirmed}
        first = next(iter(self._open.values()), None)
        places = [self.read, *self._settling]
        return min(places if first is None else [*places, first.revive_offset]) - 1

    def _push(self, rows: list[tuple[float, int, Key]], point: Checkpoint, at_ms: float) -> None:
        self._pushed += 1
        heapq.heappush(rows, (at_ms, self._pushed, point.key))

    def check_invariants(self) -> None:
        places = [point.revive_offset for point in self._open.values()]
        assert places == sorted(places), "checkpoints are open in the order of the queue"
        assert all(place < self.read for place in places), "what is open was read"
        assert all(point.unacked() for point in self._open.values()), "what is acknowledged is not open"
        rows = [*self._due, *self._waits]
        assert set(self._open) <= {row[2] for row in rows}, "each is due at some time"
