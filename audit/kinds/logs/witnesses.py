"""Which copies of a stretch does the ledger speak for?

It confirms a message by its key, topic, queue, place and body, where it says that it stands; one that waits,
by key and body; and only one that consumers get. A line that does not say where its message stands speaks for
no copy of it while a log holds it elsewhere, or held it there before retention took that: what both hold
proves nothing. A copy that only others outnumber
is not wrong by that. What queues and indexes name is no evidence here: a damaged record changes what is asked
of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from audit.compare import covering_start
from audit.ledgers.columns import WAITING_TOPIC
from audit.ledgers.ledger import Line
from audit.reading.derived.queue_files import Queue
from audit.reading.layout import Replica, segment_reader
from audit.reading.records.record import Record, parse
from audit.reading.records.search import window
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval
from audit.tables import TAKEN
from model.message import COMPRESSED, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

Group = list[int]
"""Replicas with the same bytes."""
Told = tuple[str, Line]
"""A message's key, and what a line says of it."""
Taken = Callable[[int, pa.Table], list[dict[str, Any]]]
"""Of TAKEN places in a replica's log: with ``offset``, the first record from ``since`` on in each."""
Begins = Callable[[int, Queue], tuple[int, int] | None]
"""Of a queue in a replica's log: where its first record begins, and the lowest of its places."""

_LOOKED_BYTES: Final = 1024 * 1024
_BACK_BYTES: Final = 64 * 1024
_ASKED_MAX: Final = 100
"""Stretches for which whole logs are asked where else a message stands: each time all of them are read."""
_LEDGER: Final = "the ledger"


class Weighed(NamedTuple):
    """The groups that no evidence contradicts, and what contradicts the others. Not ``told``: no majority
    decides either, as evidence that may contradict it was not looked at."""

    groups: list[Group]
    by: str = ""
    told: bool = True


class Witness:
    """``lines`` asks the ledger for a message's; None: there is no ledger."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        lines: Callable[[str], Collection[Line]] | None,
        taken: Taken,
        begins: Begins = lambda at, queue: None,
    ) -> None:
        self._replicas, self._lines, self._taken, self._begins = replicas, lines, taken, begins
        self._asked = 0

    def left(self, groups: list[Group], span: Interval) -> Weighed:
        """Raises OSError."""
        if self._lines is None:
            return Weighed(groups)
        span = span[0], min(span[1], span[0] + _LOOKED_BYTES)
        held = [list(records(self._replicas[group[0]], *span)) for group in groups]
        sure = [{told: record for record in own for told in self._confirming(record)} for own in held]
        maybe = [{told: record for record in own for told in self._untold(record)} for own in held]
        maybe, unsure = self._in_reach(groups, span[0], maybe)
        told = self._without_elsewhere(groups, span, sure, maybe)
        if told is None:
            return Weighed(groups, told=False)
        left, by = _most(groups, list(map(len, told)))
        if unsure and max(map(len, left)) < max(map(len, groups)):
            return Weighed(groups, told=False)
        return Weighed(left, by) if by else Weighed(*_most(groups, self._of_one_message(held, span[0])))

    def _confirming(self, record: Record) -> Iterator[Told]:
        """The lines that say that the record stands where it does."""
        for line in self._lines_of(record):
            if line.phys_offset == record.offset and _is_told(record, line):
                yield record.uniq_key, line

    def _untold(self, record: Record) -> Iterator[Told]:
        """The lines whose message the record is, which do not say where it stands; or where it waited
        first."""
        for line in self._lines_of(record):
            elsewhere = line.phys_offset >= 0 and not _waits(record)
            if not elsewhere and line.phys_offset != record.offset and _is_told(record, line):
                yield record.uniq_key, line

    def _lines_of(self, record: Record) -> Collection[Line]:
        assert self._lines is not None, "asked with a ledger only"
        return self._lines(record.uniq_key) if record.uniq_key else ()

    def _in_reach(
        self, groups: list[Group], begin: int, maybe: list[dict[Told, Record]]
    ) -> tuple[list[dict[Told, Record]], bool]:
        """Without the messages that stood before the logs that lack them begin, by the places of their
        queues; and whether of others nothing tells that they did not."""
        unsure, left = False, []
        for own in maybe:
            kept = {}
            for told, record in own.items():
                logs = [group[0] for group, other in zip(groups, maybe, strict=True) if told not in other]
                known = [self._was_before(at, record, begin) for at in logs]
                unsure = unsure or None in known
                if True not in known:
                    kept[told] = record
            left.append(kept)
        return left, unsure

    def _was_before(self, at: int, record: Record, begin: int) -> bool | None:
        """Did a record stand before a log's begin? It did not stand at ``begin`` if the queue's records
        before that have higher places. None: nothing tells."""
        if not self._replicas[at].start:
            return False
        found = self._begins(at, (record.topic, record.queue_id))
        return found if found is None else found[0] < begin and record.queue_offset < found[1]

    def _without_elsewhere(
        self,
        groups: list[Group],
        span: Interval,
        sure: list[dict[Told, Record]],
        maybe: list[dict[Told, Record]],
    ) -> list[set[Told]] | None:
        """The messages that the ledger confirms in each group: of ``maybe`` those that no log holds elsewhere
        as well. None: whole logs were asked often enough."""
        common = set.intersection(*map(set, maybe))
        doubtful = {told: record for own in maybe for told, record in own.items() if told not in common}
        if not doubtful:
            return list(map(set, sure))
        if self._asked >= _ASKED_MAX:
            return None
        self._asked += 1
        elsewhere = {told for group in groups for told in self._elsewhere(group[0], doubtful, span)}
        return [
            {*own, *(others.keys() & doubtful.keys()) - elsewhere}
            for own, others in zip(sure, maybe, strict=True)
        ]

    def _elsewhere(self, at: int, doubtful: dict[Told, Record], span: Interval) -> Iterator[Told]:
        """Those messages that stand outside of the stretch in a replica's log as well."""
        by_place: dict[tuple[str, int, int], list[Told]] = {}
        for told, record in doubtful.items():
            by_place.setdefault((record.topic, record.queue_id, record.queue_offset), []).append(told)
        rows = [
            dict(zip(TAKEN.names, (*place, since), strict=True))
            for place in by_place
            for since in (0, span[1])
        ]
        for row in self._taken(at, pa.Table.from_pylist(rows, schema=TAKEN)):
            if span[0] <= row["offset"] < span[1]:
                continue
            there = next(records(self._replicas[at], row["offset"], row["offset"] + 1), None)
            for key, line in by_place[row["topic"], row["queue_id"], row["queue_offset"]]:
                if there is not None and there.uniq_key == key and line.body_crc == _sent_crc(there):
                    yield key, line

    def _of_one_message(self, held: list[list[Record]], begin: int) -> list[int]:
        """Where all hold one message there, also one that was delivered elsewhere than its sender was told:
        which have the body that was sent?"""
        first = [next((r for r in own if r.offset == begin), None) for own in held]
        about = {r and (r.uniq_key, r.topic, r.queue_id, r.queue_offset) for r in first}
        if len(about) > 1 or first[0] is None:
            return [0] * len(held)
        bodies = {line.body_crc for line in self._lines_of(first[0])}
        return [int(r is not None and _sent_crc(r) in bodies) for r in first]


def _most(groups: list[Group], scores: list[int]) -> tuple[list[Group], str]:
    most = max(scores)
    if min(scores) == most:
        return groups, ""
    return [group for group, own in zip(groups, scores, strict=True) if own == most], _LEDGER


def _waits(record: Record) -> bool:
    return re.match(WAITING_TOPIC, record.topic) is not None


def _sent_crc(record: Record) -> int:
    return record.plain_crc if record.sys_flag & COMPRESSED else record.body_crc


def _is_told(record: Record, line: Line) -> bool:
    """A sender is told where its message goes, not where it waits. No consumer gets there what is prepared or
    rolled back, nor a body that is said to be compressed and cannot be decompressed."""
    undone = record.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    there = line[:3] == (record.topic, record.queue_id, record.queue_offset) and not undone
    return (_waits(record) or there) and line.body_crc == _sent_crc(record)


def backwards(r: Replica, end: int, begin: int, *, every: bool = False) -> Iterator[Record]:
    """The records of [``begin``, ``end``), the last one first; of each piece up to what cannot be read.

    Raises OSError."""
    storage = open_storage(r.location)
    try:
        while end > begin and (segment := r.segment_at(end - 1)) is not None:
            near = max(segment.base, begin, end - _BACK_BYTES)
            read = segment_reader(storage, segment)
            first = covering_start(read, near, segment.base, r.segment_end(segment))
            found = list(records(r, first, end, every=every))
            yield from (record for record in reversed(found) if record.offset >= begin)
            end = first
    finally:
        storage.close()


def records(r: Replica, begin: int, until: int, *, every: bool = False) -> Iterator[Record]:
    """Those that begin in [``begin``, ``until``), from a border on, up to what cannot be read; ``every``: the
    damaged ones, too. Raises OSError."""
    storage = open_storage(r.location)
    try:
        for segment in r.segments:
            end = r.segment_end(segment)
            at, stop = max(begin, segment.base), min(until, end, r.end)
            read = segment_reader(storage, segment)
            data, base = b"", at
            while at < stop:
                parsed = parse(data, at - base, at, end, plain=True)
                if (parsed.problem in ("incomplete", "fewer than 8 bytes") and base < at) or not data:
                    data, base = read(at, min(stop - at, _LOOKED_BYTES)), at
                    parsed = parse(data, 0, at, end, plain=True)
                if parsed.problem in ("incomplete", "fewer than 8 bytes"):
                    data, base = window(read, at, end - at), at
                    parsed = parse(data, 0, at, end, plain=True)
                if not parsed.size:
                    return
                if parsed.record is not None and (every or parsed.damage is None):
                    yield parsed.record
                at += parsed.size
    finally:
        storage.close()
