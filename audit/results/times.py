"""When were the records of a stretch of log stored? Sound ones tell, on any replica that still has them.

What is lost lies between the record before and the one behind it: so a range that is told contains it, and an
end of which no record tells is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from audit.reading.layout import Replica, bytes_at, record_at
from audit.reading.records.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MAX
from audit.reading.records.search import sync

_HEAD_BYTES: Final = 80
_READS: Final = (64 * 1024, 1024 * 1024, 8 * 1024 * 1024, 8 * 1024 * 1024)
"""How much is read to find a record, one after the other; none is longer than 4 MiB."""
_DAMAGED_MAX: Final = 64
"""So many records that cannot tell are passed over in one read."""


class Stored(NamedTuple):
    """A record: where it stands, and when it was stored, ms since 1970."""

    offset: int
    end: int
    ms: int


Near = Callable[[Replica, int], Stored | None]


def lost_between(replicas: Sequence[Replica], begin: int, end: int) -> tuple[int, int]:
    """When the records before and behind a stretch were stored that no replica has; -1: no record tells."""
    before, behind = _nearest(replicas, _before, begin), _nearest(replicas, _behind, end)
    return _range(before, behind)


def stored_between(replicas: Sequence[Replica], begin: int, end: int) -> tuple[int, int]:
    """When the first and the last record of a stretch were stored; where no replica has one, that before or
    behind it. -1: no record tells."""
    last = max(begin, end - 1)
    first = _first(replicas, _at, begin) or _nearest(replicas, _before, begin)
    return _range(first, _first(replicas, _covering, last) or _nearest(replicas, _behind, last + 1))


def _range(since: Stored | None, until: Stored | None) -> tuple[int, int]:
    """A clock may have gone back between them."""
    begins = since.ms if since is not None else -1
    return begins, max(begins, until.ms) if until is not None else -1


def _first(replicas: Sequence[Replica], near: Near, offset: int) -> Stored | None:
    return next((found for r in replicas if (found := _read(near, r, offset)) is not None), None)


def _nearest(replicas: Sequence[Replica], near: Near, offset: int) -> Stored | None:
    found = [one for r in replicas if (one := _read(near, r, offset)) is not None]
    return min(found, key=lambda one: abs(one.offset - offset), default=None)


def _read(near: Near, r: Replica, offset: int) -> Stored | None:
    """What cannot be read tells nothing."""
    try:
        return near(r, offset)
    except OSError:
        return None


def _at(r: Replica, offset: int) -> Stored | None:
    return _stored(r, bytes_at(r, offset, _HEAD_BYTES), offset) if r.start <= offset < r.end else None


def _covering(r: Replica, offset: int) -> Stored | None:
    if not r.start <= offset < r.end:
        return None
    found = _before(r, offset + 1)
    return found if found is not None and offset < found.end else None


def _before(r: Replica, offset: int) -> Stored | None:
    """The last record that begins before an offset."""
    end = min(offset, r.end)
    for size in _READS:
        segment = r.segment_at(end - 1) if end > r.start else None
        if segment is None:  # one that is missing, or the log's begin
            end = max((r.segment_end(s) for s in r.segments if s.base < end), default=r.start)
            segment = r.segment_at(end - 1) if end > r.start else None
        if segment is None:
            return None
        begin = max(segment.base, end - size)
        found = _last(r, bytes_at(r, begin, end - begin + _HEAD_BYTES), begin, end)
        if found is not None:
            return found
        end = begin
    return None


def _last(r: Replica, data: bytes, begin: int, end: int) -> Stored | None:
    """The last record of ``data``, which stands at ``begin``, that begins before ``end``."""
    magics = [struct.pack(">I", magic) for magic in (MAGIC_V1, MAGIC_V2)]
    stop = min(len(data), end - begin + 3 + 4)
    for _ in range(_DAMAGED_MAX):
        at = max(data.rfind(magic, 4, stop) for magic in magics) - 4
        if at < 0:
            return None
        found = _stored(r, data[at : at + _HEAD_BYTES], begin + at)
        if found is not None:
            return found
        stop = at + 4 + 3  # the next one begins before
    return None


def _behind(r: Replica, offset: int) -> Stored | None:
    """The first record that begins at an offset or behind it."""
    begin = max(offset, r.start)
    for size in _READS:
        if begin >= r.end:
            return None
        segment = r.segment_at(begin)
        if segment is None:  # one that is missing
            begin = min((s.base for s in r.segments if s.base > begin), default=r.end)
            segment = r.segment_at(begin) if begin < r.end else None
        if segment is None:
            return None
        stop = min(begin + size, r.segment_end(segment), r.end)
        data = bytes_at(r, begin, stop - begin + _HEAD_BYTES)
        found = _next(r, data, begin, stop)
        if found is not None:
            return found
        begin = stop
    return None


def _next(r: Replica, data: bytes, begin: int, stop: int) -> Stored | None:
    """The first record of ``data``, which stands at ``begin``, that begins before ``stop``."""
    at = -1
    for _ in range(_DAMAGED_MAX):
        at = sync(data, at + 1, begin, begin + len(data) + RECORD_BYTES_MAX)
        if at < 0 or begin + at >= stop:
            return None
        found = _stored(r, data[at : at + _HEAD_BYTES], begin + at)
        if found is not None:
            return found
    return None


def _stored(r: Replica, head: bytes, offset: int) -> Stored | None:
    """The sound record that ``head`` begins: what is damaged may say any time."""
    if len(head) < _HEAD_BYTES:
        return None
    magic, physical, sys_flag = struct.unpack_from(">I20xqi", head, 4)
    if magic not in (MAGIC_V1, MAGIC_V2) or physical != offset:
        return None
    ms = int(struct.unpack_from(">q", head, 68 if sys_flag & 0x10 else 56)[0])
    size = len(record_at(r, offset)) if ms > 0 else 0
    return Stored(offset, offset + size, ms) if size else None
