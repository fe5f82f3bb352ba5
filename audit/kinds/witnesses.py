"""Which copies of a stretch does the ledger speak for?

It confirms a message by its key, topic, queue, place and body; one that waits, by key and body; and only one
that consumers get. A copy that only others outnumber is not wrong by that. What queues and indexes name is no
evidence here: a damaged record changes what is asked of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from audit.compare import covering_start
from audit.intervals import Interval
from audit.ledger_columns import WAITING_TOPIC
from audit.reading.layout import Replica, segment_reader
from audit.reading.record import Record, parse
from audit.reading.scan import window
from audit.reading.storage import open_storage
from model.message import COMPRESSED, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

Group = list[int]
"""Replicas with the same bytes."""
Line = tuple[str, int, int, int]
"""Of a ledger: topic, queue, place, CRC of the body."""

_LOOKED_BYTES: Final = 1024 * 1024
_BACK_BYTES: Final = 64 * 1024


class Witness:
    """``lines`` asks the ledger for a message's; None: there is no ledger."""

    def __init__(self, replicas: Sequence[Replica], lines: Callable[[str], Collection[Line]] | None) -> None:
        self._replicas, self._lines = replicas, lines

    def left(self, groups: list[Group], span: Interval) -> tuple[list[Group], str]:
        """The groups that are not contradicted, and by what others are. Raises OSError."""
        if self._lines is None:
            return groups, ""
        begin, until = span[0], min(span[1], span[0] + _LOOKED_BYTES)
        scores = [self._confirmed(self._replicas[group[0]], begin, until) for group in groups]
        most = max(scores)
        if min(scores) == most:
            return groups, ""
        return [group for group, own in zip(groups, scores, strict=True) if own == most], "the ledger"

    def _confirmed(self, r: Replica, begin: int, until: int) -> int:
        """How many acknowledged messages are there."""
        return sum(map(self._is_confirmed, records(r, begin, until)))

    def _is_confirmed(self, record: Record) -> bool:
        assert self._lines is not None, "asked with a ledger only"
        lines = self._lines(record.uniq_key) if record.uniq_key else ()
        return any(_is_told(record, line) for line in lines)


def _is_told(record: Record, line: Line) -> bool:
    """A sender is told where its message goes, not where it waits. No consumer gets there what is prepared or
    rolled back, nor a body that is said to be compressed and cannot be decompressed."""
    waits = re.match(WAITING_TOPIC, record.topic) is not None
    undone = record.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    there = line[:3] == (record.topic, record.queue_id, record.queue_offset) and not undone
    sent = record.plain_crc if record.sys_flag & COMPRESSED else record.body_crc
    return (waits or there) and line[3] == sent


def backwards(r: Replica, end: int, begin: int) -> Iterator[Record]:
    """The records of [``begin``, ``end``), the last one first; of each piece up to what cannot be read.

    Raises OSError."""
    storage = open_storage(r.location)
    try:
        while end > begin and (segment := r.segment_at(end - 1)) is not None:
            near = max(segment.base, begin, end - _BACK_BYTES)
            read = segment_reader(storage, segment)
            first = covering_start(read, near, segment.base, r.segment_end(segment))
            found = list(records(r, first, end))
            yield from (record for record in reversed(found) if record.offset >= begin)
            end = first
    finally:
        storage.close()


def records(r: Replica, begin: int, until: int) -> Iterator[Record]:
    """Those that begin in [``begin``, ``until``), from a border on, up to what cannot be read. Raises
    OSError."""
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
                if parsed.record is not None and parsed.damage is None:
                    yield parsed.record
                at += parsed.size
    finally:
        storage.close()
