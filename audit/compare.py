"""Where do two replicas differ, and which one is wrong? Digests first, then only the ranges that differ.

Digests of 1 MiB ranges are compared as plain values. In ranges that differ, both logs are walked side by side
from the record that covers the range's start; a stretch between two record boundaries both logs share is one
``Difference``. Fillers behind a blank record belong to no record, so they never differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from audit.reading.layout import Replica, segment_reader
from audit.reading.records.record import RECORD_BYTES_MAX, RECORD_BYTES_MIN, Parsed, Record, parse
from audit.reading.records.search import Read, Search, sync
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval, joined
from audit.rows.parts import Spool

STEPS_MAX: Final = 200_000
"""Records walked without meeting again before the rest counts as different."""

_READ_BYTES: Final = 1 << 22
_BLANK_BYTES: Final = 8

CHANGED_BYTES_MAX: Final = 8
"""Records that differ in no more bytes are one message, damaged; another history differs in more."""


_NO_RECORD: Final = Record(-1, 0, "", -1, -1, "", -1, -1, 0, 0, 1, 0)


class Difference(NamedTuple):
    """[start, until) differs between ``base`` and ``replica``; both borders are record boundaries of both."""

    base: int
    replica: int
    start: int
    until: int
    records: int
    same_message: bool  # both hold one record with the same key: damage rather than another history
    base_sound: bool  # every record of the stretch is readable with the right CRC
    replica_sound: bool
    uniq_key: str
    topic: str
    queue_id: int
    queue_offset: int
    base_crc: int  # of the stretch's first body, -1 when there is none
    replica_crc: int
    behind: int  # where records go on in both: at ``until``, or behind a blank there that both have alike


@dataclass(slots=True)
class Ranges:
    """What the digests say: the base of each range, and where the others differ from it."""

    base_of: list[tuple[int, int, int]]  # start, end, base replica
    differ: dict[tuple[int, int], list[Interval]]  # (base, replica) -> merged ranges
    equal: dict[int, list[Interval]]  # replica -> ranges equal to the reference's


def compare_digests(table: pa.Table, reference: int) -> Ranges:
    """Group digests by range. A range's base is the reference, or the first that holds it."""
    by_range: dict[Interval, dict[int, bytes]] = {}
    for replica, start, end, digest in zip(
        table["replica"].to_pylist(),
        table["start"].to_pylist(),
        table["end"].to_pylist(),
        table["digest"].to_pylist(),
        strict=True,
    ):
        by_range.setdefault((start, end), {})[replica] = digest
    ranges = Ranges([], {}, {})
    for (start, end), found in sorted(by_range.items()):
        base = reference if reference in found else min(found)
        ranges.base_of.append((start, end, base))
        for replica, digest in sorted(found.items()):
            if replica == base:
                continue
            if digest == found[base]:
                if base == reference:
                    ranges.equal.setdefault(replica, []).append((start, end))
            else:
                ranges.differ.setdefault((base, replica), []).append((start, end))
    ranges.differ = {pair: joined(rows) for pair, rows in ranges.differ.items()}
    ranges.equal = {replica: joined(rows) for replica, rows in ranges.equal.items()}
    return ranges


def covering_start(read: Read, offset: int, segment_base: int, segment_end: int) -> int:
    """Start of the record that covers ``offset``, found from a sync point before it.

    Unreadable bytes before the offset: where they begin. No sync point within two records' length: the
    segment's base.
    """
    if offset <= segment_base:
        return segment_base
    for back in (65536, 1 << 20, RECORD_BYTES_MAX * 2):
        begin = max(segment_base, offset - back)
        data = read(begin, offset - begin + 64)
        at = 0 if begin == segment_base else sync(data, 0, begin, segment_end)
        if at < 0 or begin + at > offset:
            continue
        cursor = Cursor(read, segment_end, segment_end)
        position = begin + at
        while position < offset:
            parsed = cursor.parse(position)
            if not parsed.size or position + parsed.size > offset:
                break
            position += parsed.size
        return position
    return segment_base


class Cursor:
    """One log of a pair, parsed at any boundary."""

    def __init__(self, read: Read, segment_end: int, limit: int) -> None:
        self._search = Search(read, segment_end)
        self._segment_end = segment_end
        self._limit = limit

    def bytes_at(self, offset: int, size: int) -> bytes:
        at = self._search.at(offset, size)
        return self._search.data[at : at + size]

    def parse(self, offset: int) -> Parsed:
        at = self._search.at(offset, RECORD_BYTES_MIN)
        parsed = parse(self._search.data, at, offset, self._segment_end)
        if parsed.problem in ("incomplete", "fewer than 8 bytes"):
            at = self._search.record(offset)
            parsed = parse(self._search.data, at, offset, self._segment_end)
        return parsed

    def step(self, offset: int) -> tuple[int, bool]:
        """Where the next record starts, and whether the one at ``offset`` is sound."""
        parsed = self.parse(offset)
        following = offset + parsed.size if parsed.size else self.next_start(offset)
        return following, bool(parsed.size) and parsed.damage is None

    def next_start(self, offset: int) -> int:
        """Where a record starts again after unreadable bytes at ``offset``; the limit if none does."""
        found = self._search.find_record(offset + 1, self._limit)
        return found if found >= 0 else self._limit


def drill_down(
    replicas: list[Replica], base: int, other: int, ranges: list[Interval], parted: int = 1 << 62
) -> Iterator[Difference]:
    """Every stretch of ``ranges`` in which the two logs differ, record by record, in log order. None reaches
    over ``parted``, from where on they are of two histories: a record of one is none of the other, however
    alike they are."""
    a, b = replicas[base], replicas[other]
    storage_a, storage_b = open_storage(a.location), open_storage(b.location)
    reach = -1
    try:
        for begin, end in ranges:
            for segment in a.segments:
                segment_end = a.segment_end(segment)
                if segment_end <= begin or end <= segment.base:
                    continue
                twin = b.segment_at(segment.base)
                if twin is None:
                    continue
                files = segment_reader(storage_a, segment), segment_reader(storage_b, twin)
                for after, before in ((0, parted), (parted, 1 << 62)):
                    lo = max(begin, segment.base, reach, after)
                    hi, limit = min(end, segment_end, a.end, b.end, before), min(a.end, b.end, before)
                    if lo >= hi:
                        continue
                    first, last = max(segment.base, after), min(segment_end, limit)
                    for d in _drill(*files, (base, other), (lo, hi), (first, last), segment_end):
                        reach = d.until
                        yield d if d.start < parted else d._replace(same_message=False)
    finally:
        storage_a.close()
        storage_b.close()


def drill_between(
    replicas: Sequence[Replica], base: int, other: int, borders: Interval
) -> Iterator[Difference]:
    """As ``drill_down``, of a stretch of one file between borders of both."""
    a, b = replicas[base], replicas[other]
    segment, twin = a.segment_at(borders[0]), b.segment_at(borders[0])
    if segment is None or twin is None:
        return
    storage_a, storage_b = open_storage(a.location), open_storage(b.location)
    try:
        files = segment_reader(storage_a, segment), segment_reader(storage_b, twin)
        yield from _drill(*files, (base, other), borders, borders, a.segment_end(segment))
    finally:
        storage_a.close()
        storage_b.close()


def _drill(
    read_a: Read,
    read_b: Read,
    pair: tuple[int, int],
    span: Interval,
    within: Interval,
    segment_end: int,
) -> Iterator[Difference]:
    """``within``: borders of records that no stretch reaches over."""
    (lo, hi), (first, limit) = span, within
    one, two = Cursor(read_a, segment_end, limit), Cursor(read_b, segment_end, limit)
    position = min(
        covering_start(read_a, lo, first, segment_end),
        covering_start(read_b, lo, first, segment_end),
    )
    while position < hi:
        pa_, pb = one.parse(position), two.parse(position)
        if pa_.size and pa_.size == pb.size:
            if _same_blank(one, two, position, limit):
                break  # what stands behind is nobody's
            if pa_.record is not None and one.bytes_at(position, pa_.size) == two.bytes_at(
                position, pa_.size
            ):
                position += pa_.size
                continue
        difference = _stretch(one, two, pair, position, limit)
        if _same_blank(one, two, difference.until, limit):
            difference = difference._replace(behind=segment_end)
        yield difference
        position = difference.until


def _same_blank(one: Cursor, two: Cursor, position: int, limit: int) -> bool:
    """Do both logs end their segment there, alike?"""
    if position >= limit:
        return False
    blank = one.parse(position).problem == two.parse(position).problem == "blank"
    return blank and one.bytes_at(position, 8) == two.bytes_at(position, 8)


def _stretch(one: Cursor, two: Cursor, pair: tuple[int, int], position: int, limit: int) -> Difference:
    """Walk both from a shared boundary to the next one both share."""
    first_a, first_b = one.parse(position), two.parse(position)
    at_a, sound_a = one.step(position)
    at_b, sound_b = two.step(position)
    records = 1
    for _ in range(STEPS_MAX):
        if at_a == at_b or min(at_a, at_b) >= limit:
            break
        if at_a < at_b:
            at_a, sound = one.step(at_a)
            sound_a &= sound
            records += 1
        else:
            at_b, sound = two.step(at_b)
            sound_b &= sound
    until = min(at_a, limit) if at_a == at_b else limit
    a, b = first_a.record, first_b.record
    shown = a or b or _NO_RECORD
    same = not (sound_a and sound_b) or (records == 1 and _same_message(one, two, position, first_a, first_b))
    return Difference(
        *pair,
        position,
        until,
        records,
        same,
        sound_a,
        sound_b,
        shown.uniq_key,
        shown.topic,
        shown.queue_id,
        shown.queue_offset,
        a.body_crc if a else -1,
        b.body_crc if b else -1,
        until,
    )


def _same_message(one: Cursor, two: Cursor, position: int, first: Parsed, second: Parsed) -> bool:
    """Whether two sound records (or blanks) of one size are one message with some bytes changed."""
    a, b = first.record, second.record
    if a is None and b is None:
        return True
    if a is None or b is None or first.size != second.size:
        return False
    if a.uniq_key == b.uniq_key and a.store_timestamp_ms == b.store_timestamp_ms:
        return True
    raw_a, raw_b = one.bytes_at(position, first.size), two.bytes_at(position, second.size)
    return sum(x != y for x, y in zip(raw_a, raw_b, strict=True)) <= CHANGED_BYTES_MAX


class Run:
    """Differences with nothing between them, in order; there may be as many as records."""

    def __init__(self, first: Difference) -> None:
        self.start, self.until, self.records = first.start, first.start, 0
        self._of_another = False
        self._behind = first.start
        self._all: Spool[Difference] = Spool()
        self.append(first)

    def append(self, d: Difference) -> None:
        self.until = d.until
        self.records += d.records
        self._of_another |= not d.same_message
        # Histories of records of equal sizes end their segments alike. Damage of one message is none.
        self._behind = d.until if d.same_message else d.behind
        self._all.append(d)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self._all)

    def goes_on_with(self, d: Difference) -> bool:
        return self.until >= d.start or (self._behind >= d.start and not d.same_message)

    def reaches(self, common_end: int) -> bool:
        """Does it reach the end of both logs?"""
        return max(self.until, self._behind) >= common_end

    def is_suffix(self, common_end: int) -> bool:
        """Does it reach the end of both logs, and hold another history, not damage of one message?"""
        return self.reaches(common_end) and self._of_another


def runs(differences: Iterable[Difference], parted: int = 1 << 62) -> Iterator[Run]:
    """Of differences in log order. None reaches from before ``parted`` to what begins behind it; all behind
    it is one, whatever file is missing between."""
    run: Run | None = None
    for d in differences:
        one = run is not None and (run.start >= parted or (run.goes_on_with(d) and d.start < parted))
        if run is not None and one:
            run.append(d)
            continue
        if run is not None:
            yield run
        run = Run(d)
    if run is not None:
        yield run


def same_bytes(replicas: list[Replica]) -> Callable[[int, int, Interval], bool]:
    """Do two of them hold the same bytes of a stretch that begins at a border? Fillers are nobody's."""

    def same(a: int, b: int, span: Interval) -> bool:
        one, two = replicas[a], replicas[b]
        storage_a, storage_b = open_storage(one.location), open_storage(two.location)
        try:
            position = span[0]
            while position < span[1]:
                segment, twin = one.segment_at(position), two.segment_at(position)
                if segment is None or twin is None:
                    return False
                end = one.segment_end(segment)
                files = segment_reader(storage_a, segment), segment_reader(storage_b, twin)
                if not _same_records(*files, (position, min(end, span[1])), end):
                    return False
                position = end
        finally:
            storage_a.close()
            storage_b.close()
        return True

    return same


def _same_records(read_a: Read, read_b: Read, span: Interval, segment_end: int) -> bool:
    """In one segment. Behind a blank that both have, anything may stand."""
    for at in range(*span, _READ_BYTES):
        size = min(_READ_BYTES, span[1] - at)
        one, two = read_a(at, size), read_b(at, size)
        if one != two:
            return _is_filler(read_a, span[0], at + _alike_bytes(one, two), segment_end)
    return True


def _alike_bytes(one: bytes, two: bytes) -> int:
    """How many are alike before the first that is not."""
    shorter = range(min(len(one), len(two)))
    return bisect_left(shorter, True, key=lambda n: one[: n + 1] != two[: n + 1])


def _is_filler(read: Read, begin: int, offset: int, segment_end: int) -> bool:
    """Does ``offset`` lie behind a blank record, walked to from the border ``begin``?"""
    cursor = Cursor(read, segment_end, segment_end)
    position = begin
    while position < offset:
        if cursor.parse(position).problem == "blank":
            return position + _BLANK_BYTES <= offset
        position, _ = cursor.step(position)
    return False
