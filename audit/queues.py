"""Which places of a queue are missing, taken twice or out of order? One queue's records in log order.

A queue is given as runs, so its length does not matter, and of a queue that is broken all over the first runs
only: what is wrong behind them is counted.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

RUNS_MAX: Final = 1000
"""Of one queue that are looked at one by one."""


class Run(NamedTuple):
    """Records of one queue that follow each other along the log, each at the place behind the one before."""

    offset: int  # physical, of the first record
    queue_offset: int  # the first place, and
    end: int  # the place behind the last
    uniq_key: str  # of the first record
    last: int  # physical, of the last record
    wrong: bool = False  # other replicas have others there: no place of theirs need be the queue's

    @property
    def alone(self) -> bool:
        return self.last == self.offset


@dataclass(frozen=True, slots=True)
class Runs:
    """A queue's first runs; ``more`` of them follow, up to the record at ``last``.

    ``remade``: a physical offset: at runs up to there the queue may begin again, as the topic was deleted and
    created again; -1 when nothing tells of that."""

    listed: Sequence[Run]
    more: int = 0
    last: int = -1
    remade: int = -1


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
    taken_since: int = -1  # from which physical offset on the place has been taken before
    misfit: bool = False  # the places around tell which one it should have


def explain(runs: Runs, *, whole: bool) -> list[Fault]:
    """Name every break of one queue. ``whole``: the log begins at 0, so the queue must too. What it lacks
    then may have stood from there on.

    A queue that starts again at 0 and goes on at 1 is a topic that was deleted and created again: no fault if
    something tells of that, else in doubt.
    """
    if not runs.listed:
        return []
    first = next((run for run in runs.listed if not run.wrong), runs.listed[0])
    walk = _Walk(0 if whole else _begins_at(runs, first), first)
    for at, run in enumerate(runs.listed):
        if _is_misfit(runs, at, walk.expected) and not walk.is_open(run.queue_offset):
            walk.take_misfit(run)
            continue
        walk.take(run, begins_again=_begins_again(runs, at, walk.expected), remade=run.offset <= runs.remade)
    faults = walk.faults + [
        Fault("queue_gap", left, right.offset + 1, begin, "", str(begin), str(end), end - begin)
        for begin, end, left, right in walk.gaps
    ]
    if runs.more:
        begin, more = runs.listed[-1].last + 1, f"{runs.more} more places that do not follow the one before"
        faults.append(
            Fault("queue_order", begin, runs.last + 1, -1, "", "places that ascend", more, runs.more)
        )
    return sorted(faults, key=lambda f: (f.offset, f.kind))


Gap = tuple[int, int, int, Run]
"""[from, to) was skipped between a physical offset and a run."""


class _Walk:
    """Follows a queue run by run. ``expected``: the place that comes next.

    Runs that are wrong count for nothing, but where they and what is sound behind them follow each other."""

    def __init__(self, expected: int, first: Run) -> None:
        self.expected = expected
        self.faults: list[Fault] = []
        self._gaps: list[Gap] = []  # of this life of the topic, ascending
        self._closed: list[Gap] = []  # of earlier ones
        self._since = first.offset  # where this life begins
        self._lowest = first.queue_offset  # the first place taken in it
        self._before = 0  # physical offset of the last record before that is right
        self._reached = expected  # the place that comes next if wrong runs that follow it are right
        self._wrong = (-1, -1)  # places of the wrong runs before, which follow each other

    @property
    def gaps(self) -> list[Gap]:
        return self._closed + self._gaps

    def take(self, run: Run, *, begins_again: bool, remade: bool) -> None:
        if run.wrong:  # the place that it should have stays open: a gap with this record in it
            self._take_wrong(run)
            return
        if run.queue_offset >= self.expected:
            if run.queue_offset > self._reached:
                begin, end = self._wrong
                until = begin if end == run.queue_offset and begin >= self._reached else run.queue_offset
                if self._reached < until:
                    self._gaps.append((self._reached, until, self._before, run))
            self.expected = run.end
        elif begins_again:
            if not remade:
                count = min(run.end, self.expected)
                or_again = f"{self.expected}, or a topic that was created again"
                self._fault("dup_queue_offset", run, 0, count, or_again, doubtful=True)
            self._closed += self._gaps
            self._gaps, self._since, self._lowest = [], run.offset, 0
            self.expected = run.end
        else:
            self._below(run)
            self.expected = max(self.expected, run.end)
        self._before, self._reached, self._wrong = run.last, self.expected, (-1, -1)

    def is_open(self, place: int) -> bool:
        """Was it skipped before?"""
        near = bisect_right(self._gaps, place, key=lambda gap: gap[0]) - 1
        return near >= 0 and place < self._gaps[near][1]

    def take_misfit(self, run: Run) -> None:
        """A record whose place is wrong: nothing else is."""
        if run.queue_offset < self.expected:
            self._below(run)
        else:
            self._fault("queue_order", run, run.queue_offset, run.end, str(self.expected))
            self.faults[-1] = self.faults[-1]._replace(misfit=True)
        self.expected += run.end - run.queue_offset
        self._before, self._reached, self._wrong = run.last, self.expected, (-1, -1)

    def _take_wrong(self, run: Run) -> None:
        if run.queue_offset == self._reached:
            self._reached = run.end
        begin, end = self._wrong
        self._wrong = (begin if end == run.queue_offset else run.queue_offset), run.end

    def _below(self, run: Run) -> None:
        """The places of a run that come too late: they fill gaps, or are taken."""
        at, end = run.queue_offset, min(run.end, self.expected)
        while at < end:
            near = bisect_right(self._gaps, at, key=lambda gap: gap[0]) - 1
            inside = near >= 0 and at < self._gaps[near][1]
            if inside:
                until = min(end, self._gaps[near][1])
                self._fault("queue_order", run, at, until, str(self.expected))
                self._fill(near, at, until)
            else:
                behind = self._gaps[near + 1][0] if near + 1 < len(self._gaps) else end
                until = min(end, behind)
                taken = self._since if at >= self._lowest else -1
                self._fault("dup_queue_offset", run, at, until, str(self.expected), taken_since=taken)
            at = until

    def _fill(self, near: int, begin: int, end: int) -> None:
        gap = self._gaps.pop(near)
        for part in ((gap[0], begin, *gap[2:]), (end, gap[1], *gap[2:])):
            if part[0] < part[1]:
                insort(self._gaps, part, key=lambda gap: gap[0])

    def _fault(
        self,
        kind: str,
        run: Run,
        begin: int,
        end: int,
        expected: str,
        *,
        doubtful: bool = False,
        taken_since: int = -1,
    ) -> None:
        found = str(begin) if end == begin + 1 else f"{begin} to {end - 1}"
        until = run.offset + 1 if end == begin + 1 and begin == run.queue_offset else run.last + 1
        self.faults.append(
            Fault(
                kind,
                run.offset,
                until,
                begin,
                run.uniq_key if begin == run.queue_offset else "",
                expected,
                found,
                end - begin,
                doubtful,
                taken_since,
            )
        )


def _is_misfit(runs: Runs, at: int, expected: int) -> bool:
    """Has one record another place than the one that is free for it between those around? The last one has if
    it skips more places than the log before it has bytes."""
    run = runs.listed[at]
    if not run.alone or run.wrong or run.queue_offset == expected:
        return False
    if at + 1 < len(runs.listed):
        following = runs.listed[at + 1]
        return not following.wrong and following.queue_offset == expected + run.end - run.queue_offset
    return at > 0 and not runs.more and run.queue_offset - expected > run.offset


def _begins_at(runs: Runs, first: Run) -> int:
    """Where a queue begins whose first records were removed: the first one's place is wrong if those behind
    it go back, and not to the queue's begin."""
    at = runs.listed.index(first)
    following = runs.listed[at + 1] if at + 1 < len(runs.listed) else None
    if following is None or not first.alone or following.alone or following.wrong:
        return first.queue_offset
    begin = following.queue_offset - (first.end - first.queue_offset)
    return begin if 0 <= begin < first.queue_offset else first.queue_offset


def _begins_again(runs: Runs, at: int, expected: int) -> bool:
    run = runs.listed[at]
    ends_here = at + 1 == len(runs.listed) and not runs.more
    return not run.wrong and run.queue_offset == 0 and expected > 1 and (ends_here or not run.alone)


def begins_again(runs: Runs) -> list[int]:
    """Physical offsets at which the queue of a topic that was deleted begins again."""
    found = []
    expected = 0
    for at, run in enumerate(runs.listed):
        if at and _begins_again(runs, at, expected):
            found.append(run.offset)
            expected = 0
        if not run.wrong:
            expected = max(expected, run.end)
    return found
