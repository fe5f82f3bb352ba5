"""What stands in a stretch of a CommitLog: records, damage, digests? Plain functions over bytes.

A segment is split anywhere: a task owns the records whose first byte lies in its stretch, and finds the first
one by ``sync``: the magic bytes plus a physical offset field that names the very position. Nothing here
starts a JVM or a process.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from audit.reading.records import compiled
from audit.reading.records import plain as columns
from audit.reading.records.plain import Plain
from audit.reading.records.record import (
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
from audit.reading.records.search import WINDOW_BYTES, Read, Search

if TYPE_CHECKING:
    from runtime.native._native import Columns

DIGEST_BYTES: Final = 1024 * 1024
"""Digests cover ranges aligned to this, in physical offsets."""

# size magic crc queueId | queueOffset physicalOffset sysFlag | storeTimestamp | bodyLength; hosts in IPv4
_HEAD: Final = struct.Struct(">iIIi4xqqi16xq20xi")
assert _HEAD.size == 88, "the fixed part of a record with IPv4 hosts, up to its body"
COLUMNS_MIN: Final = 64
"""Records that are worth columns."""
COLUMNS_BYTES_MIN: Final = 65536
COLUMNS_PATIENCE_MAX: Final = 4096
_JUMP: Final = struct.Struct(">iI20xq")  # size, magic, physical offset


class Chunk(NamedTuple):
    """What one task covered: the seams of neighbours must meet."""

    start: int
    end: int
    first: int  # first record owned, or -1
    last_end: int  # where the task's last record or damage ends, or -1
    records: int


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


def scan(
    read: Read,
    *bounds: int,
    aligned: bool = False,
    onward: bool = False,
    plain: bool = False,
    batch: int = 65536,
) -> Generator[list[Record], None, tuple[Chunk, list[Damage]]]:
    """As ``scan_columns``, of the same bounds, record by record: slower, and what that is held to."""
    start, end, *segment = bounds
    run = _Walk(read, (start, end), *segment, plain=plain, batch=batch).run(aligned=aligned, onward=onward)
    while True:
        try:
            found = next(run)
        except StopIteration as stop:
            told: tuple[Chunk, list[Damage]] = stop.value
            return told
        assert isinstance(found, list), "no columns were asked for"
        yield found


def scan_columns(
    read: Read,
    start: int,
    end: int,
    segment_base: int,
    segment_end: int,
    log_end: int,
    *,
    aligned: bool = False,
    onward: bool = False,
    plain: bool = False,
    batch: int = 65536,
) -> Generator[list[Record] | Plain, None, tuple[Chunk, list[Damage]]]:
    """Walk the records whose first byte is in [start, end): yield them in batches, return seams and damage.

    Where there is compiled code all come as columns, else long runs of plain records, the others record by
    record. ``aligned``: a record is known to start at ``start``, or damage is; else the first is searched.
    ``onward``: what stands behind ``end`` and before the first record that is found there is walked, too: who
    searches from ``end`` on passes it.
    A CRC property that does not match is damage only where others match: a store without
    ``enabledAppendPropCRC`` holds what its clients wrote under that name.

    ``segment_end`` is where the file ends, ``log_end`` where the log ends (nothing from there on counts).
    Memory is bounded by a few windows, or longest records, and one batch, whatever the size of the segment.
    """
    span, rows = (start, end), compiled.columns(batch)
    walk: _Walk
    if rows is not None:
        walk = _CompiledWalk(rows, read, span, segment_base, segment_end, log_end, plain=plain, batch=batch)
    else:
        walk = _ColumnsWalk(read, span, segment_base, segment_end, log_end, plain=plain, batch=batch)
    return walk.run(aligned=aligned, onward=onward)


class _Walk:
    """One stretch's records, in log order, one by one."""

    def __init__(
        self,
        read: Read,
        span: tuple[int, int],
        segment_base: int,
        segment_end: int,
        log_end: int,
        *,
        plain: bool,
        batch: int,
    ) -> None:
        self._span = (*span, segment_base)
        self._segment_end, self._log_end = segment_end, log_end
        self._plain, self._batch = plain, batch
        self._rows: list[Record] = []
        self._count = 0
        self._damage, self._topics = _Damages(), dict[bytes, str]()
        self._search = Search(read, segment_end)
        self._data, self._base = b"", 0
        self._filled_at = -1  # of the record here all is in memory, or the file ends

    def run(
        self, *, aligned: bool, onward: bool
    ) -> Generator[list[Record] | Plain, None, tuple[Chunk, list[Damage]]]:
        start, end, segment_base = self._span
        stop, position = min(end, self._log_end), start
        if start != segment_base and not aligned:
            position = self._search.find_record(start, stop)
            if position < 0:
                return Chunk(start, end, -1, -1, 0), []
        first = position if position < stop else -1
        self._base = position
        position = yield from self._along(position, stop)
        if onward and first >= 0 and position < self._log_end:
            found = self._search.find_record(position, self._log_end)
            position = yield from self._along(position, found if found >= 0 else self._log_end)
        return Chunk(start, end, first, position if first >= 0 else -1, self._count), self._damage.all()

    def _along(self, position: int, stop: int) -> Generator[list[Record] | Plain, None, int]:
        """The records from ``position`` on; where they end."""
        while position < stop:
            position = self._plain_ones(position, stop, self._batch)
            if len(self._rows) >= self._batch:
                yield self._flushed()
            elif position < stop:
                position = self._one(position)
        if self._rows:
            yield self._flushed()
        return position

    def _plain_ones(self, position: int, stop: int, room: int) -> int:
        return _plain_records(self._data, self._base, position, stop, room, self._rows, self._topics)

    def _flushed(self) -> list[Record]:
        rows, self._rows = self._rows, []
        self._count += len(rows)
        return rows

    def _one(self, position: int) -> int:
        """The record here, whatever it is; where the next thing begins."""
        at = position - self._base
        parsed = parse(self._data, at, position, self._segment_end, plain=self._plain)
        if parsed.problem in ("incomplete", "fewer than 8 bytes") and self._filled_at != position:
            self._search.record(position)
            self._data, self._base, self._filled_at = self._search.data, self._search.base, position
            return position
        if parsed.record is not None:
            self._damage.note(parsed, self._data.startswith(PROPERTY_CRC, at + parsed.size - 20))
            self._rows.append(parsed.record)
        if parsed.size:
            return position + parsed.size
        # Nothing readable here. The next record may be the neighbour's: the stretch still ends there, once.
        following = self._search.find_record(position + 1, self._log_end)
        until = following if following >= 0 else self._log_end
        # Nor need it name this place: in a file that is another segment's in part.
        moved = self._search.find_moved(position + 1, until, self._segment_end - self._span[2])
        return self._damage.unreadable(position, moved if moved >= 0 else until, parsed.problem)


class _ColumnsWalk(_Walk):
    """Long runs of plain records as columns, by numpy."""

    # Columns are not tried again before so many records: where few are plain, trying costs more.
    _patience = 0
    _again_at = 0

    def _along(self, position: int, stop: int) -> Generator[list[Record] | Plain, None, int]:
        while position < stop:
            if (taken := self._columns(position, stop)) is not None:
                if self._rows:
                    yield self._flushed()
                self._count += len(taken)
                position = int(taken.until[-1])
                yield taken
                continue
            position = self._plain_ones(position, stop, self._room())
            if len(self._rows) >= self._batch:
                yield self._flushed()
                continue
            if position < stop:
                position = self._one(position)
        if self._rows:
            yield self._flushed()
        return position

    def _room(self) -> int:
        """How many rows there may be before something else is done."""
        soon = self._again_at - self._count if self._again_at > self._count else self._batch
        return max(len(self._rows), min(self._batch, soon))

    def _columns(self, position: int, stop: int) -> Plain | None:
        """The plain records from here on, if they are many."""
        left = len(self._data) - (position - self._base)
        if left < COLUMNS_BYTES_MIN or self._count + len(self._rows) < self._again_at:
            return None
        taken = columns.take(self._data, self._base, position, stop)
        if taken is not None and len(taken) >= COLUMNS_MIN:
            self._patience = 0
            return taken
        self._patience = min(COLUMNS_PATIENCE_MAX, max(COLUMNS_MIN, self._patience * 4))
        self._again_at = self._count + len(self._rows) + self._patience
        return None


class _CompiledWalk(_Walk):
    """All records as columns, by compiled code; what it leaves is looked at alone, and put into its place."""

    def __init__(self, found: Columns, read: Read, *bounds: Any, plain: bool, batch: int) -> None:
        super().__init__(read, *bounds, plain=plain, batch=batch)
        self._found = found

    def _along(self, position: int, stop: int) -> Generator[list[Record] | Plain, None, int]:
        found = self._found
        while position < stop:
            position = found.take(self._data, self._base, position, stop, not self._plain)
            if not found.full and position < stop:
                position = self._one(position)
                for record in self._rows:
                    compiled.add(found, record)
                self._rows.clear()
            if found.full:
                yield self._taken()
        if len(found):
            yield self._taken()
        self._damage.carries_crc |= found.carries_crc
        return position

    def _taken(self) -> Plain:
        self._count += len(self._found)
        return compiled.plain(self._found)


class _Damages:
    """Collects a stretch's damage, and whether its records carry CRC properties of the broker's own."""

    def __init__(self) -> None:
        self.found: list[Damage] = []
        self._of_property: list[Damage] = []
        self.carries_crc = False

    def note(self, parsed: Parsed, has_property: bool) -> None:
        if parsed.damage is None:
            self.carries_crc |= has_property
        elif parsed.problem == "property CRC":
            self._of_property.append(parsed.damage)
        else:
            self.found.append(parsed.damage)

    def unreadable(self, begin: int, until: int, problem: str) -> int:
        """Note a stretch without a record; returns where it ends."""
        self.found.append(Damage("unreadable_region", begin, until, 0, "a record", problem))
        return until

    def all(self) -> list[Damage]:
        if not self.carries_crc:
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
            (magic, physical) == (MAGIC_V1, position)
            and RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
            and record_end <= len(data)
            and not sys_flag & 0xB1  # compressed, IPv6 hosts, inner batch: the general way
            and 0 <= body_size <= size - RECORD_BYTES_MIN
        ):
            break
        topic_at = at + 88 + body_size
        name_end = topic_at + 1 + data[topic_at]
        if not (
            name_end + 2 <= record_end
            and name_end + 2 + (data[name_end] << 8 | data[name_end + 1]) == record_end
            and data[record_end - 1]  # else there are no properties, or not their end
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
