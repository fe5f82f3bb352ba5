"""What can be taken of a stretch of a log in which no copy is right everywhere, and from whom?

One record that nobody has right keeps none of those beside it from being taken. A part begins and ends where
records do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from audit.reading.layout import Replica
from audit.results.blame.right import PARTS_MAX, Right, border_before
from audit.results.steps.stretches import common_end
from audit.rows.intervals import Interval


class Part(NamedTuple):
    begin: int
    until: int
    source: Replica


def by_segment(begin: int, end: int, size: int) -> Iterator[Interval]:
    """A stretch, file by file."""
    while begin < end:
        until = min(end, begin // size * size + size)
        yield begin, until
        begin = until


def parts(
    right: Right, own: Replica, begin: int, end: int, *, sure: bool
) -> tuple[list[Part], list[Interval]]:
    """Of a stretch of one file: what to take, and what is left, both in log order, up to what was looked at.
    ``sure``: copies of the whole stretch are known to be of this log; else epochs, or what is behind, have to
    tell of each."""
    taken: list[Part] = []
    left: list[Interval] = []
    able = right.partly(own, begin, end, sure=sure)
    whole = end
    end = min([end, *(spans[-1][1] for _, spans in able if len(spans) >= PARTS_MAX)])  # there may be more
    at = begin
    while at < end:
        part, until = _from(able, at, end)
        if part is not None and until == whole:
            part = _with_its_end(right, own, part)
        if part is not None:
            taken.append(part)
            at = part.until
        if at < until:
            left.append((at, until))
            at = until
    return taken, left


def _from(able: Sequence[tuple[Replica, list[Interval]]], at: int, end: int) -> tuple[Part | None, int]:
    """What to take from a place on, of whoever is right farthest; or None, and where one is right again."""
    here = [(until, -n) for n, (_, spans) in enumerate(able) for a, until in spans if a <= at < until]
    if here:
        until, n = max(here)
        return Part(at, until, able[-n][0]), until
    return None, min((a for _, spans in able for a, _ in spans if a > at), default=end)


def _with_its_end(right: Right, own: Replica, part: Part) -> Part | None:
    """The last part, up to where a record ends in both logs; where the source is not right up to there, up to
    where one ends in it."""
    try:
        until = common_end(own, part.source, part.until)
        if until == part.until or right.is_right(part.source, part.until, min(until, part.source.end)):
            return part._replace(until=until)
        until = border_before(part.source, part.until)
    except OSError:
        return None
    return part._replace(until=until) if part.begin < until else None
