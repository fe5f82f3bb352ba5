"""Where may a message have stood of which nothing tells the place in the log?

Its queue's places tell: it stood behind the records of lower places, and before those of higher ones. What no
log reaches between them retention took, if nothing there was taken otherwise. What lies there and cannot be
read may have held the last places before a record, and the first ones behind one: no more than have room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from audit.intervals import Interval, in_both, joined, without
from audit.kinds.damage import Damages
from audit.kinds.facts import Facts
from audit.reading.queue_files import Queue
from audit.tables import ScannedLog, View

RECORD_BYTES_MIN: Final = 91
"""And the topic's name."""


@dataclass(slots=True)
class _Extent:
    """Of a queue's records in some logs: the first place and its offset, the place behind the last one, and
    where that ends."""

    first: int
    begin: int
    behind: int
    end: int

    def join(self, other: _Extent) -> None:
        self.first, self.begin = min((self.first, self.begin), (other.first, other.begin))
        self.behind, self.end = max((self.behind, self.end), (other.behind, other.end))


class Unplaced:
    """``taken``: what logs lack, and no retention removed."""

    def __init__(
        self,
        facts: Facts,
        log: ScannedLog,
        views: dict[int, View],
        damages: Damages,
        taken: Sequence[Interval],
    ) -> None:
        self._facts, self._log, self._views, self._damages = facts, log, views, damages
        self._taken = taken
        self._reach = [facts.histories.reach(at) for at in range(len(facts.replicas))]
        logs = zip(facts.replicas, self._reach, strict=True)
        self._reached = joined((r.start, reach) for r, reach in logs if not r.empty)
        self._rooms: dict[Interval, int] = {}
        self._starts: dict[int, dict[Queue, int]] = {}

    def expired(self, topic: str, queue_id: int, place: int) -> bool:
        """Did retention take what stood at this place of the queue from every log?"""
        before, behind = None, None
        for at, extents in enumerate(self._extents):
            extent = extents.get((topic, queue_id))
            if extent is None:
                continue
            if place < extent.first:
                behind = at, extent
                break
            if place < extent.behind:
                return False
            before = at, extent
        if behind is None:
            return False  # without a record behind it nothing tells that it is old
        begin = before[1].end if before is not None else 0
        end = behind[1].begin
        low = self._reached[before[0]][1] if before is not None else 0
        high = self._reached[behind[0]][0]
        if low >= high:
            return False  # a log reaches all between the two
        size = RECORD_BYTES_MIN + len(topic.encode())
        first = 0 if before is None else before[1].behind + self._room(begin, low) // size
        last = behind[1].first - self._room(high, end) // size
        return first <= place < last and not self._room(low, high)

    def before(self, at: int, topic: str, queue_id: int, place: int) -> bool:
        """Did what stood at this place of the queue stand before a log's begin, by the log's own records?"""
        if not self._facts.replicas[at].start or at not in self._views:
            return False
        if at not in self._starts:
            rows = self._log.queue_starts(self._views[at]).to_pylist()
            self._starts[at] = {_queue(row): int(row["queue_offset"]) for row in rows}
        return place < self._starts[at].get((topic, queue_id), 0)

    def _room(self, begin: int, end: int) -> int:
        """How many bytes of a stretch are in no log to be read, and were not taken by retention."""
        span = begin, end
        if span not in self._rooms:
            self._rooms[span] = sum(b - a for a, b in in_both(self._unknown, [span]))
        return self._rooms[span]

    @cached_property
    def _unknown(self) -> list[Interval]:
        """What retention did not take, and no log has to be read."""
        facts, damages = self._facts, self._damages
        spans = [*damages.unheld()]
        for at, r in enumerate(facts.replicas):
            for begin, end in r.gaps:
                spans += [span for span in facts.pieces(at, begin, end) if not damages.held(at, *span)]
        return joined([*spans, *(s for one in self._taken for s in without(one, self._reached))])

    @cached_property
    def _extents(self) -> list[dict[Queue, _Extent]]:
        """Of each stretch that logs reach without a break, oldest first."""
        found: list[dict[Queue, _Extent]] = [{} for _ in self._reached]
        for at, view in self._views.items():
            r = self._facts.replicas[at]
            if r.empty or self._reach[at] <= r.start:
                continue
            of = next(n for n, (begin, end) in enumerate(self._reached) if begin <= r.start < end)
            extents = self._of(view, *self._reached[of])
            if self._reach[at] < r.end:
                extents = self._up_to(self._reach[at], extents, view)
            for queue, extent in extents.items():
                known = found[of].setdefault(queue, extent)
                known.join(extent)
        return found

    def _up_to(self, reach: int, extents: dict[Queue, _Extent], view: View) -> dict[Queue, _Extent]:
        """Of a log that left the group: what stands before, up to where the last record of each begins."""
        found = {}
        for row in self._log.last_places(view, 0, reach, reach).to_pylist():
            whole = extents.get(_queue(row))
            if whole is not None and whole.begin < reach:
                behind = int(row["queue_offset"] + row["advance"])
                found[_queue(row)] = _Extent(whole.first, whole.begin, behind, int(row["offset"]))
        return found

    def _of(self, view: View, begin: int, end: int) -> dict[Queue, _Extent]:
        """Where a queue's records stand; of inner batches nothing but the log tells that."""
        placed = {_queue(row): row for row in self._log.queue_extents(view).to_pylist()}
        ends = {_queue(row): int(row["queue_offset"]) for row in self._log.queue_ends(view).to_pylist()}
        found = {}
        for row in self._log.queue_starts(view).to_pylist():
            queue, at = _queue(row), placed.get(_queue(row))
            low, high = (int(at["offset"]), int(at["until"])) if at is not None else (end, begin)
            found[queue] = _Extent(int(row["queue_offset"]), low, ends.get(queue, 0), high)
        return found


def _queue(row: dict[str, Any]) -> Queue:
    return row["topic"], row["queue_id"]
