"""How far may a reader of a live store go, and is what it has read still there?

``look`` takes a store's end: behind a whole record, and by default no further than the store says that its
group confirmed. A position keeps marks: where a few records stand, with the CRC of their bytes. A log that
was cut and written anew below a position no longer has the marks behind the cut; a log is only ever changed
by cutting its end, so that what stands before a mark that is still right is what was read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from audit.reading.aside import find_own_ends
from audit.reading.layout import UNREADABLE, Replica, Segment, bytes_at, load, segment_reader
from audit.reading.records.record import (
    MAGIC_BLANK,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    crc32,
    ends_whole,
    parse,
)
from audit.reading.records.search import Read, Search
from audit.reading.storage import StoreSpec, open_storage, shown

CONFIRMED: Final = "confirmed"
WRITTEN: Final = "written"
_MARKED_SEGMENTS: Final = 8
_MARKS_MAX: Final = 32
_PREFIX: Final = struct.Struct(">iI")


class Mark(NamedTuple):
    """A record that was there: physical offsets, and the CRC-32 of its bytes."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a store was read: ``offset`` is physical, bytes; ``marks`` ascend and none is behind it."""

    offset: int
    segment: str = ""  # the file that holds the offset
    epoch: int = -1  # that wrote what stands before it; -1: the store does not say
    marks: tuple[Mark, ...] = ()

    def at(self, offset: int) -> Self:
        """The same store at another place."""
        return replace(self, offset=offset, marks=tuple(mark for mark in self.marks if mark.end <= offset))

    def to_json(self) -> dict[str, Any]:
        marks = [list(mark) for mark in self.marks]
        return {"offset": self.offset, "segment": self.segment, "epoch": self.epoch, "marks": marks}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        marks = tuple(Mark(*mark) for mark in values["marks"])
        return cls(values["offset"], values["segment"], values["epoch"], marks)


def look(spec: StoreSpec, up_to: str = "", before: Position | None = None) -> tuple[Replica, Position]:
    """The store as it is, and how far it may be read. Raises OSError, ConfigError.

    ``up_to``: ``confirmed`` is what the checkpoint says, ``written`` each whole record; by default the former
    where the store has epochs and so a group. ``before``: an earlier position, whose marks are kept.
    """
    replica = load(spec)
    find_own_ends([replica])
    _refuse_unread(replica, confirmed=up_to in ("", CONFIRMED))
    limit = replica.end
    if up_to == CONFIRMED or (not up_to and replica.of_epochs and replica.confirmed):
        limit = min(limit, replica.confirmed)
    earlier = [mark for mark in (before.marks if before else ()) if _stands(replica, mark)]
    end, last = _whole_records(replica, max(limit, replica.start), [mark.start for mark in earlier])
    marks = {mark.start: mark for mark in _segment_marks(replica, end)}
    marks |= {mark.start: mark for mark in (*earlier, *([last] if last else [])) if mark.end <= end}
    kept = tuple(marks[start] for start in sorted(marks)[-_MARKS_MAX:])
    return replica, Position(end, replica.segment_name(end), replica.epoch_at(end - 1), kept)


def _refuse_unread(replica: Replica, *, confirmed: bool) -> None:
    """Raises OSError where checkpoint or epochs cannot be read, or what the group ``confirmed`` is asked of a
    checkpoint that is not as it was written."""
    unread = replica.epoch_problem.startswith(UNREADABLE)
    unsealed = replica.checkpoint_problem if confirmed and replica.of_epochs else ""
    if unread or replica.closed or unsealed:
        why = replica.epoch_problem if unread else unsealed or str(replica.closed)
        raise OSError(5, why, shown(replica.location))


def proven(replica: Replica, position: Position) -> int:
    """Up to where the log still is what it was at ``position``: its offset when nothing was cut, else the end
    of the last mark that stands, or the log's start. Raises OSError."""
    for mark in reversed(position.marks):
        if _stands(replica, mark):
            # Only filler stands between the last mark and the offset.
            return position.offset if mark is position.marks[-1] else mark.end
    known = any(mark.start >= replica.start for mark in position.marks)
    return replica.start if known or position.offset > replica.end else max(position.offset, replica.start)


def _stands(replica: Replica, mark: Mark) -> bool:
    if mark.start < replica.start:
        return False
    try:
        return crc32(bytes_at(replica, mark.start, mark.end - mark.start)) == mark.crc
    except FileNotFoundError:  # retention removed it meanwhile
        return False


def _whole_records(replica: Replica, limit: int, known: list[int]) -> tuple[int, Mark | None]:
    """Behind the last whole record that ends at or before ``limit``, and that record. At each of ``known``
    begins a record."""
    held = [segment for segment in replica.segments if segment.base < limit]
    for segment in reversed(held):
        storage = open_storage(replica.location)
        try:
            begin = max((at for at in known if segment.base <= at < limit), default=segment.base)
            found = _last_in(replica, segment, begin, limit, segment_reader(storage, segment))
        finally:
            storage.close()
        if found is not None:
            # A segment that is full ends behind its filler.
            until = replica.segment_end(segment)
            return (until if limit >= until else found.end), found
    return replica.start, None


def _last_in(replica: Replica, segment: Segment, begin: int, limit: int, read: Read) -> Mark | None:
    """The last whole record of a segment, from the one at ``begin`` on, that ends at or before ``limit``."""
    segment_end = replica.segment_end(segment)
    stop, search = min(limit, segment_end), Search(read, segment_end)
    at, recent = begin, list[tuple[int, int]]()
    while at + RECORD_BYTES_MIN <= stop:
        here = search.at(at, _PREFIX.size)
        there = len(search.data) - here >= _PREFIX.size
        size, magic = _PREFIX.unpack_from(search.data, here) if there else (0, 0)
        if magic == MAGIC_BLANK:
            break
        if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX and at + size <= stop:
            recent = [*recent[-1:], (at, size)]
            at += size
            continue
        following = search.find_record(at + 1, stop)
        whole = RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
        # A size that reaches behind what may be read is damaged if a record begins before it.
        if following < 0 or (whole and following >= at + size):
            break
        at = following
    for start, size in reversed(recent):
        data = read(start, size)
        if start + size < replica.end or _is_whole(data, start, segment_end):
            return Mark(start, start + size, crc32(data))
    return None


def _is_whole(data: bytes, start: int, segment_end: int) -> bool:
    parsed = parse(data, 0, start, segment_end)
    return parsed.record is not None and parsed.damage is None and ends_whole(data)


def _segment_marks(replica: Replica, end: int) -> Iterator[Mark]:
    """The first record of each of the newest segments before ``end``."""
    for segment in [segment for segment in replica.segments if segment.base < end][-_MARKED_SEGMENTS:]:
        head = bytes_at(replica, segment.base, 8)
        size, magic = _PREFIX.unpack(head) if len(head) == 8 else (0, 0)
        if magic != MAGIC_BLANK and RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, end - segment.base):
            yield Mark(segment.base, segment.base + size, crc32(bytes_at(replica, segment.base, size)))
