"""Which bytes of a file may a command write over, or cut off, so that nothing is left of half a record?"""

from __future__ import annotations

from typing import Final

from audit.compare import STEPS_MAX, Cursor, covering_start
from audit.reading.layout import ALL, Replica, Segment, segment_reader
from audit.reading.records.record import MISPLACED
from audit.reading.records.search import WINDOW_BYTES, Read, find_record
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval

_LOOKED_BYTES: Final = 16 * 1024 * 1024


def common_end(own: Replica, source: Replica, end: int) -> int:
    """Where a record ends in both logs, from ``end`` on, which is a border in ``own``. Of a file that is not
    the log's the rest goes, too: its records would be the log's again. Raises OSError."""
    segment, twin = own.segment_at(end - 1), source.segment_at(end - 1)
    if segment is None or twin is None or end == own.segment_end(segment):
        return end
    one, two = open_storage(own.location), open_storage(source.location)
    try:
        readers = segment_reader(one, segment), segment_reader(two, twin)
        span = segment.base, own.segment_end(segment)
        until, whole = _meeting(*readers, span, end, (own.end, min(source.end, span[1])))
        last = own.reach < ALL and own.end <= span[1]
        left = until < span[1] and (last or not whole or _is_misplaced(readers[0], until, span[1]))
        return span[1] if left and find_record(readers[0], until, span[1], span[1]) < 0 else until
    finally:
        one.close()
        two.close()


def _meeting(own: Read, source: Read, span: Interval, end: int, ends: Interval) -> tuple[int, bool]:
    """Where both have a border, at the latest where the log of ``source`` ends; and whether no record of
    ``own`` reaches over that."""
    one, two = Cursor(own, span[1], span[1]), Cursor(source, span[1], ends[1])
    at, other = end, covering_start(source, end, *span)
    for _ in range(STEPS_MAX):
        if other < min(max(end, at), ends[1]):
            other, _ = two.step(other)
        elif at < min(other, ends[0]) and other < ends[1]:
            at, _ = one.step(at)
        else:
            break
    until = min(max(at, other), ends[1])
    return until, at <= until


def _is_misplaced(read: Read, at: int, segment_end: int) -> bool:
    return Cursor(read, segment_end, segment_end).parse(at).problem == MISPLACED


def is_blank_behind(r: Replica, segment: Segment) -> bool:
    """Are there but zeros behind a segment in its file, which is too long? Of what cannot be read nobody
    knows."""
    if segment.size_bytes - r.segment_bytes > _LOOKED_BYTES:
        return False
    storage = open_storage(r.location)
    try:
        at = r.segment_bytes
        while at < segment.size_bytes and (data := storage.read(segment.file, at, WINDOW_BYTES)):
            if any(data):
                return False
            at += len(data)
        return at >= segment.size_bytes
    except OSError:
        return False
    finally:
        storage.close()
