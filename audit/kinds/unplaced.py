"""Where may a message have stood of which nothing tells the place in the log?

Its queue's places tell: it stood behind the records of lower places, and before those of higher ones. What no
log reaches between them retention took, if nothing there was taken otherwise. What lies there and cannot be
read may have held the last places before a record, and the first ones behind one: no more than have room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from audit.kinds.facts import Facts
from audit.kinds.logs.damage import Damages
from audit.kinds.moved import held_in
from audit.reading.derived.queue_files import Queue
from audit.reading.records.record import Record
from audit.rows.intervals import Interval, in_both, joined, without
from audit.tables import ScannedLog, View
from model.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

RECORD_BYTES_MIN: Final = 91
"""And the topic's name."""
_UNDONE: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
"""No queue has these."""


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
        self._of_logs = joined((r.start, reach) for r, reach in logs if not r.empty)
        # What files of other segments' names hold is known as if a log had it.
        self._reached = joined([*self._of_logs, *(span for r in facts.replicas for span in r.moved)])
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
            rows = self._log.queue_starts(self._views[at], placed=True).to_pylist()
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
        for r in facts.replicas:
            pieces = (piece for piece in held_in(r) if not isinstance(piece, Record))
            spans += [span for piece in pieces for span in without(piece, self._of_logs)]
        return joined([*spans, *(s for one in self._taken for s in without(one, self._reached))])

    @cached_property
    def _extents(self) -> list[dict[Queue, _Extent]]:
        """Of each stretch that logs reach without a break, oldest first."""
        found: list[dict[Queue, _Extent]] = [{} for _ in self._reached]
        for at, view in self._views.items():
            r = self._facts.replicas[at]
            if r.empty or self._reach[at] <= r.start:
                continue
            of = self._stretch(r.start)
            extents = self._of(view, *self._reached[of])
            if self._reach[at] < r.end:
                extents = self._up_to(self._reach[at], extents, view)
            for queue, extent in extents.items():
                known = found[of].setdefault(queue, extent)
                known.join(extent)
        for queue, own in self._of_moved():
            found[self._stretch(own.begin)].setdefault(queue, own).join(own)
        return found

    def _stretch(self, offset: int) -> int:
        return next(n for n, (begin, end) in enumerate(self._reached) if begin <= offset < end)

    def _of_moved(self) -> Iterator[tuple[Queue, _Extent]]:
        """Of each record of files that have another segment's name."""
        for r in self._facts.replicas:
            for record in held_in(r):
                if isinstance(record, Record) and record.sys_flag & TRANSACTION_MASK not in _UNDONE:
                    places = record.queue_offset, record.queue_offset + record.advance
                    extent = _Extent(places[0], record.offset, places[1], record.offset + record.size)
                    yield (record.topic, record.queue_id), extent

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
        placed = {_queue(row): row for row in self._log.queue_extents(view, placed=True).to_pylist()}
        rows = self._log.queue_ends(view, placed=True).to_pylist()
        ends = {_queue(row): int(row["queue_offset"]) for row in rows}
        found = {}
        for row in self._log.queue_starts(view, placed=True).to_pylist():
            queue, at = _queue(row), placed.get(_queue(row))
            low, high = (int(at["offset"]), int(at["until"])) if at is not None else (end, begin)
            found[queue] = _Extent(int(row["queue_offset"]), low, ends.get(queue, 0), high)
        return found


def _queue(row: dict[str, Any]) -> Queue:
    return row["topic"], row["queue_id"]
