"""What every kind of finding is decided from: the replicas, and where they are known to agree."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Any

from audit.compare import Ranges
from audit.findings import Finding
from audit.kinds.logs.histories import Histories, tells
from audit.reading.layout import Replica
from audit.reading.storage import inode
from audit.rows.intervals import Interval, joined


class Facts:
    """The replicas and what is known about where they agree."""

    def __init__(self, replicas: list[Replica], reference: int, ranges: Ranges) -> None:
        self.replicas = replicas
        self.reference = reference
        self.ranges = ranges
        self.histories = Histories(replicas, reference)
        told = [at for at, r in enumerate(replicas) if tells(r)]
        edges = (edge for at in told for edge in (replicas[at].start, replicas[at].end))
        starts = (start for at in told for _, start in replicas[at].epochs)
        self._borders = sorted({0, *starts, *edges})
        self._epochs = [self._epoch(told, begin) for begin in self._borders]

    def at(self, kind: str, severity: str, replica: int, begin: int, end: int, **columns: Any) -> Finding:
        r = self.replicas[replica]
        return Finding(
            kind,
            severity,
            r.name,
            r.segment_name(begin),
            self.epoch_at(begin),
            begin,
            end,
            **columns,
        )

    def epoch_at(self, offset: int) -> int:
        """The group's epoch that wrote ``offset``; -1: unknown."""
        return self._epochs[bisect_right(self._borders, offset) - 1] if offset >= 0 else -1

    def _epoch(self, told: list[int], offset: int) -> int:
        """What most of the replicas that hold the place say, of those that no later epoch left before; of as
        many, what the reference says."""
        left = [at for at in told if self.histories.with_group(at, offset)]
        there = [at for at in left if self.replicas[at].start <= offset < self.replicas[at].end]
        says = Counter(self.replicas[at].epoch_at(offset) for at in there or left or told)
        own = self.replicas[self.reference].epoch_at(offset)
        return max(says, key=lambda epoch: (says[epoch], epoch == own, epoch), default=-1)

    def holders(self, begin: int, end: int) -> list[int]:
        return [at for at, r in enumerate(self.replicas) if not r.empty and r.covers(begin, end)]

    def copies(self, at: int, begin: int, end: int) -> list[int]:
        """The others that hold what a replica should hold there: of the same history, for all that is
        known."""
        shared = self.histories.shared
        return [b for b in self.holders(begin, end) if b != at and shared(at, b) >= end]

    def pieces(self, at: int, begin: int, end: int) -> list[Interval]:
        """A stretch, cut where the log left the group's history, and where another one begins or ends: of
        each piece a copy holds all or nothing."""
        edges = {self.histories.left(at), *(edge for r in self.replicas for edge in (r.start, r.end))}
        return list(pairwise(sorted({begin, end, *(edge for edge in edges if begin < edge < end)})))

    @cached_property
    def owners(self) -> dict[tuple[int, str], int]:
        """Of each segment's file, by replica: whose it was first. A file by two names, as a hard link or a
        link makes it, is one copy."""
        first: dict[tuple[int, int], int] = {}
        owners = {}
        for at, r in enumerate(self.replicas):
            for segment in r.segments:
                number = inode(r.location, segment.file)
                owners[at, segment.file] = first.setdefault(number, at) if number is not None else at
        return owners

    @property
    def differing_bytes(self) -> int:
        """Of the ranges in which copies differ from their base: a file by two names is one copy."""
        found: dict[tuple[int, int], list[Interval]] = {}
        for (base, other), intervals in self.ranges.differ.items():
            r = self.replicas[other]
            for begin, until in intervals:
                while begin < until and (segment := r.segment_at(begin)) is not None:
                    end = min(until, r.segment_end(segment))
                    found.setdefault((base, self._owner(other, begin)), []).append((begin, end))
                    begin = end
        return sum(b - a for intervals in found.values() for a, b in joined(intervals))

    def votes(self, holders: Iterable[int], offset: int) -> int:
        """How many copies these replicas are, by the files in which each holds the place."""
        return len({self._owner(at, offset) for at in holders})

    def _owner(self, at: int, offset: int) -> int:
        segment = self.replicas[at].segment_at(offset)
        return at if segment is None else self.owners[at, segment.file]

    def whose(self, at: int, *stretches: Interval) -> tuple[str, int]:
        """Whose fault is one of these stretches of a replica's log, and how many hold them: ``*`` where each
        that does, two at least, holds the same bytes as the reference."""
        held = [
            b for b, r in enumerate(self.replicas) if not r.empty and all(r.covers(*s) for s in stretches)
        ]
        same = [b for b in held if b == self.reference or all(self._equal(b, *s) for s in stretches)]
        shared = len(same) > 1 and same == held and at in same
        copies = self.votes(same, stretches[0][0]) if at in same else 1
        return ("*" if shared else self.replicas[at].name), copies

    def _equal(self, at: int, begin: int, end: int) -> bool:
        equal = self.ranges.equal.get(at, [])
        n = bisect_right(equal, begin, key=lambda interval: interval[0]) - 1
        return n >= 0 and end <= equal[n][1]
