"""What stands in a stretch of a CommitLog: records, damage, digests? Plain functions over bytes.

A segment is split anywhere: a task owns the records whose first byte lies in its stretch, and finds the first
one by ``sync``: the magic bytes plus a physical offset field that names the very position. Nothing here
starts a JVM or a process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

from audit.reading.record import (
    MAGIC_PREFIX,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_CRC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    UNIQ,
    Damage,
    Parsed,
    Record,
    crc32,
    new_hasher,
    parse,
    plausible,
    tags_code,
    text_property,
)

WINDOW_BYTES: Final = 8 * 1024 * 1024
DIGEST_BYTES: Final = 1024 * 1024
"""Digests cover ranges aligned to this, in physical offsets."""

# size magic crc queueId | queueOffset physicalOffset sysFlag | storeTimestamp | bodyLength; hosts in IPv4
_HEAD: Final = struct.Struct(">iIIi4xqqi16xq20xi")
assert _HEAD.size == 88, "the fixed part of a record with IPv4 hosts, up to its body"
_PREFIX: Final = struct.Struct(">iI")
_JUMP: Final = struct.Struct(">iI20xq")  # size, magic, physical offset

Read = Callable[[int, int], bytes]
"""(physical offset, size) -> bytes; fewer only at the end of the file."""


class Chunk(NamedTuple):
    """What one task covered: the seams of neighbours must meet."""

    start: int
    end: int
    first: int  # first record owned, or -1
    last_end: int  # where the task's last record or damage ends, or -1
    records: int


def window(read: Read, offset: int, room: int) -> bytes:
    """A window of the ``room`` bytes from ``offset`` on, and all of the record there if it is longer."""
    data = read(offset, min(WINDOW_BYTES, room))
    if len(data) >= WINDOW_BYTES:
        size, magic = _PREFIX.unpack_from(data)
        if size > len(data) and magic in (MAGIC_V1, MAGIC_V2) and plausible(size, room):
            data = read(offset, size)
    return data


def sync(data: bytes, begin: int, offset: int, segment_end: int) -> int:
    """Index in ``data`` of the first record start at or after ``begin``, or -1.

    ``offset`` is the physical offset of ``data[0]``. A start counts only if its physical offset field says
    so.
    """
    at = data.find(MAGIC_PREFIX, begin + 4)
    while at >= 0:
        start = at - 4
        if start + 36 > len(data):
            return -1
        size, magic = _PREFIX.unpack_from(data, start)
        if magic in (MAGIC_V1, MAGIC_V2) and plausible(size, segment_end - offset - start):
            (physical,) = struct.unpack_from(">q", data, start + 28)
            if physical == offset + start:
                return start
        at = data.find(MAGIC_PREFIX, at + 1)
    return -1


def skip_sound(data: bytes, base: int, position: int, stop: int, segment_end: int) -> int:
    """Jump from header to header; the start of the last record whose header is sound.

    From the record at ``position``; ``data`` begins at ``base``. Jumps stay within ``data`` and do not
    pass ``stop``. Bodies are not looked at.
    """
    unpack = _JUMP.unpack_from
    last = len(data) - _JUMP.size
    while True:
        at = position - base
        if at > last:
            return position
        size = unpack(data, at)[0]
        following = position + size
        at += size
        if size < RECORD_BYTES_MIN or following > stop or at > last:
            return position
        next_size, magic, physical = unpack(data, at)
        if physical != following or (magic != MAGIC_V1 and magic != MAGIC_V2):
            return position
        if not plausible(next_size, segment_end - following):
            return position
        position = following


def find_record(read: Read, begin: int, end: int, segment_end: int) -> int:
    """Physical offset of the first record start in [begin, end) by ``sync``, or -1. Reads in windows."""
    at = begin
    while at < end:
        data = read(at, WINDOW_BYTES)
        found = sync(data, 0, at, segment_end)
        if found >= 0:
            return at + found if at + found < end else -1
        if len(data) < WINDOW_BYTES:
            return -1
        at += len(data) - 64  # a start may be cut by the window's edge
    return -1


def scan(
    read: Read,
    start: int,
    end: int,
    segment_base: int,
    segment_end: int,
    log_end: int,
    *,
    aligned: bool = False,
    plain: bool = False,
    batch: int = 65536,
) -> Generator[list[Record], None, tuple[Chunk, list[Damage]]]:
    """Walk the records whose first byte is in [start, end): yield them in batches, return seams and damage.

    ``aligned``: a record is known to start at ``start``, or damage is; else the first one is searched.
    A CRC property that does not match is damage only where others match: a store without
    ``enabledAppendPropCRC`` holds what its clients wrote under that name.

    ``segment_end`` is where the file ends, ``log_end`` where the log ends (nothing from there on counts).
    Memory is bounded by one window and one batch, whatever the size of the segment.
    """
    rows: list[Record] = []
    damage, topics = _Damages(), dict[bytes, str]()
    stop, position = min(end, log_end), start
    if start != segment_base and not aligned:
        position = find_record(read, start, stop, segment_end)
        if position < 0:
            return Chunk(start, end, -1, -1, 0), []
    first = position if position < stop else -1
    count, data, base = 0, b"", position
    filled_at = -1  # a window that begins at the record holds all of it, or the file ends
    while position < stop:
        position = _plain_records(data, base, position, stop, batch, rows, topics)
        if len(rows) >= batch:
            count += len(rows)
            yield rows
            rows = []
            continue
        if position >= stop:
            break
        at = position - base
        parsed = parse(data, at, position, segment_end, plain=plain)
        if parsed.problem in ("incomplete", "fewer than 8 bytes") and filled_at != position:
            data = window(read, position, segment_end - position)
            base = filled_at = position
            continue
        if parsed.record is not None:
            damage.note(parsed, data.startswith(PROPERTY_CRC, at + parsed.size - 20))
            rows.append(parsed.record)
        if parsed.size:
            position += parsed.size
            continue
        # Nothing readable here. The next record may be the neighbour's: the stretch still ends there, once.
        following = find_record(read, position + 1, log_end, segment_end)
        position = damage.unreadable(position, following if following >= 0 else log_end, parsed.problem)
    if rows:
        count += len(rows)
        yield rows
    return Chunk(start, end, first, position if first >= 0 else -1, count), damage.all()


class _Damages:
    """Collects a stretch's damage, and whether its records carry CRC properties of the broker's own."""

    def __init__(self) -> None:
        self.found: list[Damage] = []
        self._of_property: list[Damage] = []
        self._carries_crc = False

    def note(self, parsed: Parsed, has_property: bool) -> None:
        if parsed.damage is None:
            self._carries_crc |= has_property
        elif parsed.problem == "property CRC":
            self._of_property.append(parsed.damage)
        else:
            self.found.append(parsed.damage)

    def unreadable(self, begin: int, until: int, problem: str) -> int:
        """Note a stretch without a record; returns where it ends."""
        self.found.append(Damage("unreadable_region", begin, until, 0, "a record", problem))
        return until

    def all(self) -> list[Damage]:
        if not self._carries_crc:
            return self.found
        return sorted(self.found + self._of_property, key=lambda damage: damage.offset)


def _plain_records(
    data: bytes, base: int, position: int, stop: int, batch: int, rows: list[Record], topics: dict[bytes, str]
) -> int:
    """Take the sound, plain records from ``position`` on into ``rows``; where the first other one stands.

    What ``parse`` says of them, without its calls: nearly every record of a log is plain, and an audit's
    time is this loop. ``data`` begins at ``base``.
    """
    head = _HEAD.unpack_from
    new = tuple.__new__  # a third of what the named constructor takes, for every record
    last = len(data) - RECORD_BYTES_MIN
    room = batch - len(rows)
    while room > 0 and position < stop and position - base <= last:
        at = position - base
        size, magic, crc, queue_id, queue_offset, physical, sys_flag, stamp, body_size = head(data, at)
        record_end = at + size
        if not (
            magic == MAGIC_V1
            and RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
            and record_end <= len(data)
            and physical == position
            and not sys_flag & 0xB1  # compressed, IPv6 hosts, inner batch: the general way
            and 0 <= body_size <= size - RECORD_BYTES_MIN
        ):
            break
        topic_at = at + 88 + body_size
        name_end = topic_at + 1 + data[topic_at]
        if not (
            name_end + 2 <= record_end
            and name_end + 2 + (data[name_end] << 8 | data[name_end + 1]) == record_end
            and crc32(data[at + 88 : topic_at]) & 0x7FFFFFFF == crc
            and not data.startswith(PROPERTY_CRC, record_end - 20)
        ):
            break
        name = data[topic_at + 1 : name_end]
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = name.decode("utf-8", "replace")
        key = text_property(data, UNIQ, name_end + 2, record_end)
        tags = tags_code(data, name_end + 2, record_end, topic, stamp)
        fields = (position, size, topic, queue_id, queue_offset, key, crc, -1, sys_flag, stamp, 1, tags)
        rows.append(new(Record, fields))
        position += size
        room -= 1
    return position


class DigestRange(NamedTuple):
    start: int
    end: int
    digest: bytes


def digests(
    read: Read, start: int, end: int, cuts: list[int], *, everywhere: bool = False
) -> Iterator[DigestRange]:
    """xxh3-128 of every range of [start, end): aligned to DIGEST_BYTES and cut at ``cuts`` as well.
    ``everywhere``: a digest that each machine can make.

    The cuts are the starts and ends of all replicas, so that a range lies wholly inside or outside each.
    """
    edges = sorted({c for c in cuts if start < c < end})
    at = start
    window = b""
    window_at = start
    while at < end:
        until = min(end, (at // DIGEST_BYTES + 1) * DIGEST_BYTES)
        while edges and edges[0] <= at:
            edges.pop(0)
        if edges and edges[0] < until:
            until = edges[0]
        if until > window_at + len(window):
            window_at = at
            window = read(at, min(WINDOW_BYTES, end - at))
            if window_at + len(window) < until:
                raise OSError(5, f"the file ends at {window_at + len(window)}, expected bytes up to {until}")
        hasher = new_hasher(everywhere=everywhere)
        hasher.update(memoryview(window)[at - window_at : until - window_at])
        yield DigestRange(at, until, hasher.digest())
        at = until
