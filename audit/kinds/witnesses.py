"""Which copies of a stretch does anything but their number speak for?

Asked in this order, each of the copies that the one before left: the ledger, which confirms messages; the
places of queues, which ascend by one along a log; queue entries, and then index entries, of replicas whose
own copy does not have what they name. A copy that only others outnumber is not wrong by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Final

from audit.compare import covering_start
from audit.intervals import Interval
from audit.kinds.index import log_of
from audit.reading.index_files import Head, hashes_of, names, shapes
from audit.reading.layout import Replica, segment_reader
from audit.reading.queue_files import entry_at
from audit.reading.record import Record, indexed_words, parse
from audit.reading.scan import window
from audit.reading.storage import open_storage

Group = list[int]
"""Replicas with the same bytes."""
Rows = list[tuple[Record, bytes]]
"""Records and their bytes."""
Held = dict[int, Rows]
"""What each group has of the stretch, by its first replica."""
Named = tuple[str, int, int, int, int, int]
"""A record as a queue's entry names it: topic, queue, place, offset, size, tag code."""

_LOOKED_BYTES: Final = 1024 * 1024
_NEAR_BYTES: Final = 256 * 1024
_ASKED_MAX: Final = 1000
"""Stretches of which all is asked; each costs some reads. Of those behind them only the ledger is."""
_NAMED_MAX: Final = 64
"""Records of a stretch whose entries are looked up."""
_UNPLACED: Final = 0x4
"""Of sysFlag: a prepared message, or one that was rolled back, takes no place in its queue."""


class Witnesses:
    """``body_crc`` asks the ledger for a message; None: there is no ledger."""

    def __init__(self, replicas: Sequence[Replica], body_crc: Callable[[str], int | None] | None) -> None:
        self._replicas, self._body_crc = replicas, body_crc
        self._asked = 0
        self._indexes: dict[int, list[tuple[Head, int]]] = {}

    def left(self, groups: list[Group], span: Interval) -> tuple[list[Group], str]:
        """The groups that are not contradicted, and by what others are. Raises OSError."""
        span = (span[0], min(span[1], span[0] + _LOOKED_BYTES))
        self._asked += 1
        ways = [("the ledger", self._confirmed)] if self._body_crc is not None else []
        if self._asked <= _ASKED_MAX:
            ways += [
                ("places of queues", self._in_place),
                ("queue entries", self._named),
                ("the index", self._indexed),
            ]
        held = {group[0]: records(self._replicas[group[0]], *span) for group in groups if ways}
        by = ""
        for name, score in ways:
            scores = score(groups, held, span)
            most = max(scores)
            if min(scores) < most:
                groups = [group for group, own in zip(groups, scores, strict=True) if own == most]
                by = by or name
            if len(groups) == 1:
                break
        return groups, by

    def _confirmed(self, groups: list[Group], held: Held, span: Interval) -> list[int]:
        """How many acknowledged messages each has with their bodies."""
        assert self._body_crc is not None, "asked with a ledger only"
        ask = self._body_crc
        return [
            sum(
                ask(record.uniq_key) in (record.body_crc, record.plain_crc)
                for record, _ in held[group[0]]
                if record.uniq_key
            )
            for group in groups
        ]

    def _in_place(self, groups: list[Group], held: Held, span: Interval) -> list[int]:
        logs = [self._replicas[group[0]] for group in groups]
        before = _agreed(records(r, _border_before(r, span[0]), span[0]) for r in logs)
        behind = _agreed(records(r, span[1], span[1] + _NEAR_BYTES) for r in logs)
        return [-_breaks([*before, *_of(held[group[0]]), *behind], span) for group in groups]

    def _named(self, groups: list[Group], held: Held, span: Interval) -> list[int]:
        """How many entries of the other replicas name what only this copy has."""
        named = {first: {_name(record) for record, _ in rows} for first, rows in held.items()}
        told: list[int] = []
        for group in groups:
            others = [other for other in groups if other is not group]
            told.append(
                sum(
                    self._names(at, name)
                    for other in others
                    for at in other
                    for name in sorted(named[group[0]] - named[other[0]])[:_NAMED_MAX]
                )
            )
        return told

    def _names(self, at: int, name: Named) -> bool:
        """Does the replica's own queue name that record?"""
        storage = open_storage(self._replicas[at].location)
        try:
            return entry_at(storage, *name[:3]) == name[3:]
        except OSError:
            return False  # that its queues cannot be read has its own row
        finally:
            storage.close()

    def _indexed(self, groups: list[Group], held: Held, span: Interval) -> list[int]:
        """How many index entries of the other replicas name a key that only this copy has there."""
        keys = {
            first: {
                (value, record.offset)
                for record, raw in rows
                for value in hashes_of(record, indexed_words(raw))
            }
            for first, rows in held.items()
        }
        return [
            sum(
                self._has_entry(at, *key)
                for other in groups
                if other is not group
                for at in other
                for key in sorted(keys[group[0]] - keys[other[0]])[:_NAMED_MAX]
            )
            for group in groups
        ]

    def _has_entry(self, at: int, value: int, offset: int) -> bool:
        # The record with which a file begins may be the wrong one: then another file of its size tells.
        known = sorted(
            (slots, head.size) for of in range(len(self._replicas)) for head, slots in self._shapes(of)
        )
        slots_of = {size: slots for slots, size in known}
        storage = open_storage(self._replicas[at].location)
        try:
            return any(
                names(storage, head, slots or slots_of[head.size], value, offset)
                for head, slots in self._shapes(at)
            )
        except OSError:
            return False  # that its index cannot be read has its own row
        finally:
            storage.close()

    def _shapes(self, at: int) -> list[tuple[Head, int]]:
        if at not in self._indexes:
            self._indexes[at] = []
            storage = open_storage(self._replicas[at].location)
            with closing(storage), suppress(OSError):
                self._indexes[at] = shapes(storage, log_of(self._replicas[at]))
        return self._indexes[at]


def _of(rows: Rows) -> list[Record]:
    return [record for record, _ in rows]


def _agreed(held: Iterable[Rows]) -> list[Record]:
    """What the copies have around a stretch, by place: each may be damaged there, and lack some of it. Where
    they have different records, none."""
    found: dict[int, Record | None] = {}
    for record in (record for rows in held for record in _of(rows)):
        known = found.setdefault(record.offset, record)
        if known is not None and _name(known) != _name(record):
            found[record.offset] = None
    return [record for _, record in sorted(found.items()) if record is not None]


def _breaks(rows: Iterable[Record], span: Interval) -> int:
    """How often a queue's places do not go on, into the stretch, in it and out of it."""
    following: dict[tuple[str, int], int] = {}
    left: set[tuple[str, int]] = set()  # queues that were followed out of the stretch
    broken = 0
    for record in rows:
        queue = (record.topic, record.queue_id)
        if record.sys_flag & _UNPLACED or queue in left:
            continue
        goes_on = following.get(queue, record.queue_offset) == record.queue_offset
        broken += record.offset >= span[0] and not goes_on
        following[queue] = record.queue_offset + record.advance
        if record.offset >= span[1]:
            left.add(queue)
    return broken


def _name(record: Record) -> Named:
    return (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.offset,
        record.size,
        record.tags_code,
    )


def records(r: Replica, begin: int, until: int) -> Rows:
    """Those that begin in [``begin``, ``until``), from a border on, up to what cannot be read. Raises
    OSError."""
    found: Rows = []
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
                    return found
                if parsed.record is not None and parsed.damage is None:
                    found.append((parsed.record, data[at - base : at - base + parsed.size]))
                at += parsed.size
    finally:
        storage.close()
    return found


def _border_before(r: Replica, offset: int) -> int:
    """Where a record begins some way before a border; the border itself if nothing is there."""
    near = max(r.start, offset - _NEAR_BYTES)
    segment = r.segment_at(near)
    if segment is None or near >= offset:
        return offset
    storage = open_storage(r.location)
    try:
        return covering_start(segment_reader(storage, segment), near, segment.base, r.segment_end(segment))
    finally:
        storage.close()
