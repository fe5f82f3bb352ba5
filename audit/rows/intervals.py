"""Arithmetic of stretches of a log: joined, cut out, shared. An interval is [from, to) in physical bytes."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Ascending, with touching and overlapping ones made one."""
    out: list[Interval] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif start < end:
            out.append((start, end))
    return out


def without(whole: Interval, taken: Iterable[Interval]) -> list[Interval]:
    """What is left of ``whole`` when the ascending, disjoint ``taken`` are cut out."""
    rest: list[Interval] = []
    at = whole[0]
    for start, end in taken:
        if start > at:
            rest.append((at, min(start, whole[1])))
        at = max(at, end)
        if at >= whole[1]:
            break
    if at < whole[1]:
        rest.append((at, whole[1]))
    return [r for r in rest if r[0] < r[1]]


def in_both(one: Iterable[Interval], other: Iterable[Interval]) -> list[Interval]:
    """What lies in both."""
    others = list(other)
    return joined((max(a, c), min(b, d)) for a, b in one for c, d in others if max(a, c) < min(b, d))
