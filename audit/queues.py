"""Which places of a queue are missing, taken twice or out of order? One queue's records in log order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """One record's place in its queue."""

    offset: int  # physical, bytes
    queue_offset: int
    advance: int
    uniq_key: str


class Fault(NamedTuple):
    """``dup_queue_offset``, ``queue_gap`` or ``queue_order`` at [offset, until) of the log."""

    kind: str
    offset: int
    until: int
    queue_offset: int
    uniq_key: str
    expected: str
    found: str
    records: int
    doubtful: bool = False  # lawful if the topic was deleted and created again


def explain(places: Sequence[Place], *, whole: bool) -> list[Fault]:
    """Name every break of one queue. ``whole``: the log begins at 0, so the queue must too.

    A queue that starts again at 0 and goes on at 1 is a topic that was deleted and created again: no fault.
    One that starts again and has not gone on yet is in doubt.
    """
    if not places:
        return []
    walk = _Walk(0 if whole else places[0].queue_offset, places[0])
    for at, place in enumerate(places):
        walk.take(place, begins_again=_begins_again(places, at, walk.expected), last=at + 1 == len(places))
    faults = walk.faults + [
        Fault("queue_gap", left.offset, right.offset + 1, begin, "", str(begin), str(end), end - begin)
        for begin, end, left, right in walk.gaps
    ]
    return sorted(faults, key=lambda f: (f.offset, f.kind))


class _Walk:
    """Follows a queue place by place. ``expected``: the place that comes next; ``gaps``: [from, to) that were
    skipped between two records."""

    def __init__(self, expected: int, first: Place) -> None:
        self.expected = expected
        self.gaps: list[tuple[int, int, Place, Place]] = []
        self.faults: list[Fault] = []
        self._taken: dict[int, Place] = {}
        self._before = first

    def take(self, place: Place, *, begins_again: bool, last: bool) -> None:
        at = place.queue_offset
        if at >= self.expected:
            if at > self.expected:
                self.gaps.append((self.expected, at, self._before, place))
            self.expected = at + place.advance
        elif begins_again:
            if last:
                or_again = f"{self.expected}, or a topic that was created again"
                self._fault("dup_queue_offset", place, or_again, doubtful=True)
            self.expected, self._taken = place.advance, {}
        elif at not in self._taken and self._fills_a_gap(place):
            self._fault("queue_order", place, str(self.expected))
        else:
            first = self._taken.get(at)
            where = f"{at} stands at {first.offset} already" if first is not None else str(self.expected)
            self._fault("dup_queue_offset", place, where)
        self._taken.setdefault(at, place)
        self._before = place

    def _fills_a_gap(self, place: Place) -> bool:
        at = place.queue_offset
        gap = next((gap for gap in self.gaps if gap[0] <= at < gap[1]), None)
        if gap is None:
            return False
        self.gaps.remove(gap)
        parts = ((gap[0], at, *gap[2:]), (at + place.advance, gap[1], *gap[2:]))
        self.gaps += [part for part in parts if part[0] < part[1]]
        return True

    def _fault(self, kind: str, place: Place, expected: str, *, doubtful: bool = False) -> None:
        at, found = place.queue_offset, str(place.queue_offset)
        self.faults.append(
            Fault(kind, place.offset, place.offset + 1, at, place.uniq_key, expected, found, 1, doubtful)
        )


def _begins_again(places: Sequence[Place], at: int, expected: int) -> bool:
    place = places[at]
    on = place.advance if at + 1 == len(places) else places[at + 1].queue_offset
    return place.queue_offset == 0 and expected > 1 and on == place.advance


def begins_again(places: Sequence[Place]) -> list[int]:
    """Physical offsets at which the queue of a topic that was deleted begins again."""
    found = []
    expected = 0
    for at, place in enumerate(places):
        if at and _begins_again(places, at, expected):
            found.append(place.offset)
            expected = 0
        expected = max(expected, place.queue_offset + place.advance)
    return found
