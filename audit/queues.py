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
    faults: list[Fault] = []
    gaps: list[tuple[int, int, Place, Place]] = []  # [from, to) skipped between two records
    if not places:
        return faults
    expected = 0 if whole else places[0].queue_offset
    taken: dict[int, Place] = {}
    before = places[0]
    for at, place in enumerate(places):
        q = place.queue_offset
        if q == expected:
            expected = q + place.advance
        elif q > expected:
            gaps.append((expected, q, before, place))
            expected = q + place.advance
        elif _begins_again(places, at, expected):
            if at + 1 == len(places):
                where = f"{expected}, or a topic that was created again"
                faults.append(
                    Fault(
                        "dup_queue_offset",
                        place.offset,
                        place.offset + 1,
                        q,
                        place.uniq_key,
                        where,
                        str(q),
                        1,
                        True,
                    )
                )
            expected, taken = place.advance, {}
        elif (gap := next((g for g in gaps if g[0] <= q < g[1]), None)) is not None and q not in taken:
            gaps.remove(gap)
            gaps += [
                part
                for part in ((gap[0], q, gap[2], gap[3]), (q + place.advance, gap[1], gap[2], gap[3]))
                if part[0] < part[1]
            ]
            faults.append(
                Fault(
                    "queue_order", place.offset, place.offset + 1, q, place.uniq_key, str(expected), str(q), 1
                )
            )
        else:
            first = taken.get(q)
            where = f"{q} stands at {first.offset} already" if first is not None else str(expected)
            faults.append(
                Fault("dup_queue_offset", place.offset, place.offset + 1, q, place.uniq_key, where, str(q), 1)
            )
        taken.setdefault(q, place)
        before = place
    for begin, end, left, right in gaps:
        faults.append(
            Fault("queue_gap", left.offset, right.offset + 1, begin, "", str(begin), str(end), end - begin)
        )
    return sorted(faults, key=lambda f: (f.offset, f.kind))


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
