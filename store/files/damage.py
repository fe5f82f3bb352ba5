"""Which bytes of the log are damaged, where do good records go on, and what is known of the lost ones?

A damaged range stays in the log: nothing behind it moves, and no queue offset in it is handed out again. The
ranges are kept in ``damagedRanges`` under the store's root, a file RocketMQ does not look at:

    {"crc": CRC-32 of the text of "ranges", "ranges": [{"begin", "until", "kind", "foundMs", "lost",
                                                        "bytesCrc"}]}

``lost`` holds one row a record known to have been there, from its queue entry or its readable head:
[offset, size, topic, queue id, queue offset, tags code]. ``bytesCrc``, of ``bytes_differ`` alone, is the
CRC-32 of the bytes that are doubted; older notes have none. A range leaves the file when it was repaired, cut
off or deleted with its segment, and when other whole records stand there than those that were doubted.

The file has no second copy. One flipped bit is turned back; what is damaged more is forgotten, and found
again: what is no record by a scrub or a reader, what differs from replicas (``bytes_differ``) by the
comparison with them. Which queue offsets had lost records without a queue entry is not.
"""

from __future__ import annotations

import json
import logging
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from zlib import crc32

from model.errors import DiskError
from model.ids import PhysicalOffset, QueueOffset
from model.read_ahead import Ahead, Sums
from runtime.env import Disk, read_file, write_file
from store.files.record import (
    BLANK_BYTES,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    BadRecord,
    Dispatch,
    body_of,
    measure,
)
from store.files.sealed import one_bit_off, turn_back

log = logging.getLogger(__name__)

FILE_NAME: Final = "damagedRanges"
RECORD_BYTES_MAX: Final = 128 << 20
"""A size above this is not believed: nothing lets a client send such a record."""
SECTOR_BYTES: Final = 512
"""What a power failure loses, it loses in whole blocks of this size."""
_BLOCK_BYTES: Final = 1 << 20
_SEARCHED_BYTES: Final = 16 << 10
"""So far is looked for each magic at once: heads of one kind may stand side by side, and none of another."""
_PREFIX: Final = struct.Struct(">iI")
Interval = tuple[int, int]
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


def may_have(says: int, left: int) -> bool:
    """Can a record, or a blank, have ``says`` bytes where ``left`` are left, in its segment or up to damage?
    Whoever reads a length from the disk asks this before it reads, or waits for, so many bytes."""
    return BLANK_BYTES <= says <= min(RECORD_BYTES_MAX, left)


_CRC: Final = b'{"crc":'
_RANGES: Final = b',"ranges":'
_TAIL: Final = b"}\n"


class Lost(NamedTuple):
    """A record that was in a damaged range: what its queue entry said. Offsets and sizes in bytes."""

    offset: PhysicalOffset
    size: int
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    tags_code: int

    def dispatch(self) -> Dispatch:
        """The same for the dispatcher; it goes into no index, and has no store time."""
        return Dispatch(*self, "", "", 0, 0)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [``begin``, ``until``); ``kind`` is the audit's word for what is wrong."""

    begin: int
    until: int
    kind: str
    found_ms: int = 0
    lost: tuple[Lost, ...] = ()
    bytes_crc: int | None = None

    def were_replaced(self, data: bytes) -> bool:
        """Are ``data``, the bytes there, others than those doubted? They are to be compared anew. Of several
        records nothing tells whether all were replaced."""
        doubted = self.kind == "bytes_differ" and self.bytes_crc is not None
        is_one = len(data) == self.until - self.begin == int.from_bytes(data[:4], "big")
        return doubted and is_one and crc32(data) != self.bytes_crc

    def lost_from(self, offset: int) -> list[Dispatch]:
        """The lost records at or behind ``offset``: a range that grew may begin before it."""
        return [one.dispatch() for one in self.lost if one.offset >= offset]

    def to_json(self) -> dict[str, Any]:
        row = {
            "begin": self.begin,
            "until": self.until,
            "kind": self.kind,
            "foundMs": self.found_ms,
            "lost": [list(item) for item in self.lost],
        }
        return row if self.bytes_crc is None else row | {"bytesCrc": self.bytes_crc}


class DamageLedger:
    """The damaged ranges of one store, oldest first, never overlapping; durable before a call returns.

    ``on_change`` hears of ranges that are new. Calls that write raise DiskError.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self.ranges: list[DamagedRange] = []
        self.on_change: list[Callable[[], None]] = []
        self._disk = disk
        self._path = f"{root}/{FILE_NAME}"

    def load(self) -> None:
        """Read the file; see ``load_ranges``. Raises DiskError when it cannot be read."""
        self.ranges = load_ranges(self._disk, self._path)

    def at(self, offset: int) -> DamagedRange | None:
        """The range that holds byte ``offset``, or None."""
        index = bisect_right(self.ranges, offset, key=lambda item: item.begin) - 1
        if index >= 0 and offset < self.ranges[index].until:
            return self.ranges[index]
        return None

    def next_begin(self, offset: int, default: int) -> int:
        """Where the first range behind ``offset`` begins; ``default`` when there is none before it."""
        index = bisect_right(self.ranges, offset, key=lambda item: item.begin)
        return min(self.ranges[index].begin, default) if index < len(self.ranges) else default

    def overlaps(self, begin: int, until: int) -> bool:
        """Is any byte of [``begin``, ``until``) damaged?"""
        return any(item.begin < until and begin < item.until for item in self.ranges)

    def note(self, found: Iterable[DamagedRange]) -> None:
        """Add ranges; those that overlap what is known become one with it. Ranges that only touch are two: of
        two records side by side each may be mended by another replica (``store.recover.lost`` tells when
        they are one)."""
        ranges = list(self.ranges)
        for item in found:
            _add(ranges, item)
        if ranges != self.ranges:
            self._store(ranges)
            for item in ranges:
                log.error("the log is damaged in [%d, %d): %s", item.begin, item.until, item.kind)
            for hook in self.on_change:
                hook()

    def narrow(self, damaged: Iterable[Interval]) -> None:
        """Of ranges in which some of ``damaged`` lies, nothing else is: sound records were noted with them.
        One whose bytes are whole, and others than elsewhere (``bytes_differ``), stays as it is."""
        intervals = sorted(damaged)
        self._store([part for item in self.ranges for part in _narrowed(item, intervals)])

    def clear(self, gone: Iterable[DamagedRange]) -> None:
        """All of ``gone`` are whole again. The file is written once for them, as it may hold thousands."""
        begins = {item.begin for item in gone}
        self._store([item for item in self.ranges if item.begin not in begins])

    def doubt_as_written(self, crcs: Mapping[int, int | None]) -> None:
        """The doubted records that begin at these offsets get other bytes, and stay doubted; the CRC-32 of
        the bytes, or None while they are being written."""
        of = {item.begin for item in self.ranges if item.kind == "bytes_differ"} & crcs.keys()
        self._store([replace(x, bytes_crc=crcs[x.begin]) if x.begin in of else x for x in self.ranges])

    def truncate(self, offset: int) -> None:
        """The log ends at ``offset`` now."""
        kept = [
            item
            if item.until <= offset
            else DamagedRange(
                item.begin,
                offset,
                item.kind,
                item.found_ms,
                tuple(one for one in item.lost if one.offset + one.size <= offset),
            )
            for item in self.ranges
            if item.begin < offset
        ]
        self._store(kept)

    def drop_below(self, offset: int) -> None:
        """The log starts at ``offset`` now."""
        self._store([item for item in self.ranges if item.until > offset])

    def check_invariants(self) -> None:
        """Raise unless ranges are in order, do not overlap, and hold what was lost in them."""
        before = 0
        for item in self.ranges:
            assert before <= item.begin < item.until, f"[{item.begin}, {item.until}) lies before {before}"
            before = item.until
            for one in item.lost:
                assert item.begin <= one.offset <= one.offset + one.size <= item.until, (
                    f"the record lost at {one.offset} is not in [{item.begin}, {item.until})"
                )

    def _store(self, ranges: list[DamagedRange]) -> None:
        if ranges == self.ranges:
            return
        try:
            write_file(self._disk, self._path, encode_ranges(ranges))
        except OSError as error:
            raise DiskError(f"writing {self._path} failed: {error.strerror or error}") from error
        self.ranges = ranges


def _add(ranges: list[DamagedRange], item: DamagedRange) -> None:
    """Put ``item`` into ``ranges``, as one with those it overlaps: they were found first, and say what it
    is."""
    place = bisect_right(ranges, item.begin, key=lambda other: other.until)
    stop = max(bisect_left(ranges, item.until, key=lambda other: other.begin), place)
    near = ranges[place:stop]
    first = near[0] if near else item
    lost = {one.offset: one for other in (item, *near) for one in other.lost}
    merged = DamagedRange(
        min(other.begin for other in (item, *near)),
        max(other.until for other in (item, *near)),
        first.kind,
        first.found_ms,
        tuple(lost[offset] for offset in sorted(lost)),
    )
    ranges[place:stop] = [replace(merged, bytes_crc=_bytes_crc(merged, (item, *near)))]


def _bytes_crc(merged: DamagedRange, parts: Iterable[DamagedRange]) -> int | None:
    """That of the first part that is about all bytes of ``merged``."""
    of_all = (part.bytes_crc for part in parts if (part.begin, part.until) == (merged.begin, merged.until))
    return next((crc for crc in of_all if crc is not None), None) if merged.kind == "bytes_differ" else None


def _narrowed(item: DamagedRange, damaged: list[Interval]) -> list[DamagedRange]:
    parts: list[Interval] = []
    for begin, until in damaged if item.kind != "bytes_differ" else ():
        begin, until = max(begin, item.begin), min(until, item.until)
        if begin >= until:
            continue
        if parts and begin <= parts[-1][1]:
            begin, until = parts[-1][0], max(until, parts.pop()[1])
        parts.append((begin, until))
    return [
        replace(
            item,
            begin=begin,
            until=until,
            lost=tuple(one for one in item.lost if begin <= one.offset and one.offset + one.size <= until),
        )
        for begin, until in parts or [(item.begin, item.until)]
    ]


def encode_ranges(ranges: Iterable[DamagedRange]) -> bytes:
    """The content of the file."""
    text = json.dumps([item.to_json() for item in ranges], separators=(",", ":"))
    return b"%b%d%b%b%b" % (_CRC, crc32(text.encode()), _RANGES, text.encode(), _TAIL)


def load_ranges(disk: Disk, path: str) -> list[DamagedRange]:
    """The ranges the file at ``path`` names; none when it is absent, or damaged in more than a bit. Raises
    DiskError."""
    if not disk.exists(path):
        return []
    try:
        data = read_file(disk, path)
    except OSError as error:
        raise DiskError(f"reading {path} failed: {error.strerror or error}") from error
    try:
        return _ranges_in(data)
    except ValueError as error:
        log.error("%s is damaged: %s", path, error)
    found = _ranges_but_for_a_bit(data)
    if found is None:
        log.error("%s is ignored; scrub and comparison find the ranges again", path)
    return found or []


def _ranges_in(data: bytes) -> list[DamagedRange]:
    """Raises ValueError when they are not as they were written."""
    try:
        value = json.loads(data)
        rows = value["ranges"]
        if crc32(json.dumps(rows, separators=(",", ":")).encode()) != value["crc"]:
            raise ValueError("its CRC is another")
        return [
            DamagedRange(
                r["begin"],
                r["until"],
                r["kind"],
                r["foundMs"],
                tuple(Lost(*x) for x in r["lost"]),
                r.get("bytesCrc"),
            )
            for r in rows
        ]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(repr(error)) from error


def _ranges_but_for_a_bit(data: bytes) -> list[DamagedRange] | None:
    """What ``data`` says with the one flipped bit turned back; None when that does not explain it."""
    head, mark, text = data.partition(_RANGES)
    if mark and head.startswith(_CRC) and (digits := head.removeprefix(_CRC)).isdigit():
        with suppress(ValueError):
            rows = turn_back(text.removesuffix(_TAIL), int(digits))
            return _ranges_in(head + mark + rows + _TAIL)
    return one_bit_off(data, _ranges_in)  # of a short one any bit may be it, also of the CRC


def resync(read: Callable[[int, int], bytes], base: int, at: int, size: int) -> int | None:
    """Position of the next whole record, or right blank, behind position ``at`` of a segment; or None.

    ``read(size, position)`` gives bytes of the segment, which starts at physical ``base`` and has ``size``
    bytes. See ``Resync``.
    """
    ahead = Ahead(lambda position, count: read(count, position), size, _BLOCK_BYTES)
    return Resync(ahead, base, size).behind(at)


class Resync:
    """Finds where whole records go on in one segment. What lies in memory of it is shared by all searches,
    and what many heads claim to have is hashed once.

    A candidate must carry magic, its own physical offset, parts that add up and the right CRC, so that a body
    with the bytes of another record in it is not taken for one.
    """

    def __init__(
        self, ahead: Ahead, base: int, size: int, data_from: Callable[[int], Interval | None] | None = None
    ) -> None:
        """``data_from``: as that of a file, where zeros that were never written need not be read."""
        self._ahead, self._base, self._size = ahead, base, size
        self._data_from, self._data_until = data_from, 0 if data_from is not None else size
        self._sums = Sums()

    def behind(self, at: int, until: int | None = None) -> int | None:
        """Position of the next whole record, or right blank, behind ``at``; or None. ``until``: only what
        begins before that is of use, wherever it ends."""
        ahead, probe = self._ahead, at + 1
        end = self._size - BLANK_BYTES + 1
        if until is not None:
            end = min(end, until)
        while probe < end:
            probe = self._written(probe)
            if probe >= end:
                break
            here = ahead.at(probe, BLANK_BYTES)
            data, stop = ahead.data, here + _SEARCHED_BYTES
            if len(data) - here < BLANK_BYTES:
                break  # somebody cut the file
            places = [p for magic in _MAGICS if (p := data.find(magic, here + 4, stop)) >= 0]
            if not places:
                # Three bytes of a magic may stand at the end of this piece: look at them again in the next.
                probe += max(min(stop, len(data)) - here - BLANK_BYTES + 1, 1)
                continue
            probe += min(places) - 4 - here
            if probe < end and self._is_whole(probe):
                return probe
            probe += 1
        return None

    def _written(self, probe: int) -> int:
        """The first position from ``probe`` on at which a record may begin: not in a hole. A few bytes of its
        size may lie there."""
        if self._data_from is not None and probe + BLANK_BYTES > self._data_until:
            found = self._data_from(probe)
            begin, self._data_until = found if found is not None else (self._size, self._size)
            return max(probe, begin - 4)
        return probe

    def _is_whole(self, at: int) -> bool:
        ahead, left = self._ahead, self._size - at
        here = ahead.at(at, HEAD.size)
        says, magic = _PREFIX.unpack_from(ahead.data, here)
        if magic == MAGIC_BLANK:
            return bool(says == left)
        if not RECORD_BYTES_MIN <= says <= min(left, RECORD_BYTES_MAX):
            return False
        offset = self._base + at
        if len(ahead.data) - here < HEAD.size or HEAD.unpack_from(ahead.data, here)[6] != offset:
            return False
        here = ahead.at(at, says)
        try:
            if measure(ahead.data, here, offset, False) != says:
                return False
        except BadRecord:
            return False
        begin, size = body_of(ahead.data, here)
        begin += ahead.base
        found = self._sums.crc(ahead.data, ahead.base, begin, begin + size) & 0x7FFFFFFF
        return found == int.from_bytes(ahead.data[here + 8 : here + 12], signed=True)


def lost_a_page(read: Callable[[int, int], bytes], begin: int, until: int) -> bool:
    """Does [``begin``, ``until``) (positions in a segment) look like a write that a power failure cut short?

    Then a block, or what of it was new, is zeros; rot changes bits and leaves the rest. Up to three of the
    zeros may lie behind ``until``, where a record's size begins with them anyway.
    """
    at = begin
    until += 3
    while at < until:
        stop = min(at - at % SECTOR_BYTES + SECTOR_BYTES, until)
        # Fewer than four bytes of a record's start are zeros anyway: the high bytes of its size.
        if stop % SECTOR_BYTES == 0 and stop - at >= 4 and not any(read(stop - at, at)):
            return True
        at = stop
    return False
