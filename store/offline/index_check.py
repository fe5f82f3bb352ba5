"""Do the index files of a store say what its log says: entries, chains, slots, headers, and of every record?

The log's records are taken in their order, and the entries with them: both are read once, and what is kept
grows with the holes between them only. Where files and log go apart for long, judging ends: one row is enough
to make the index anew. How many slots a file has stands in its broker's configuration only; its first entry
tells.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.message import (
    KEYS,
    TAGS,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    UNIQ_KEY,
    VALUE_END,
    decode_properties,
)
from store.files.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES, Header
from store.files.key_hash import KeyHash
from store.files.record import Record
from store.offline.directory import Damage, StoreDirectory

OWED_MAX: Final = 10_000
"""Records whose entries may still come: what a broker repaired is entered late."""
ROWS_MAX: Final = 20
_BLOCK_BYTES: Final = 1 << 20
_BLOCK_ENTRIES: Final = 4096
_SECONDS_MAX: Final = 0x7FFFFFFF
_SEARCHED_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """Of every index file of a store."""

    slots: int
    entries: int

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * self.entries


class _Entry(NamedTuple):
    file: str
    begin_ms: int
    number: int
    key_hash: int
    offset: int
    seconds: int


def shape_of(store: StoreDirectory, configured: Shape) -> Shape:
    """The shape most index files have; ``configured`` when none tells."""
    found: Counter[Shape] = Counter()
    hash_of = KeyHash()
    for path in store.index_files():
        size = store.size(path)
        head = _head(store, path)
        if size == configured.file_bytes:
            found[configured] += 1
        elif head.count > 1 and (shape := _searched(store, path, size, head, hash_of)):
            found[shape] += 1
    return max(found, key=lambda shape: (found[shape], shape == configured), default=configured)


def _head(store: StoreDirectory, path: str) -> Header:
    raw = store.read(path, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")
    return Header(*HEADER.unpack(raw))


def _searched(store: StoreDirectory, path: str, size: int, head: Header, hash_of: KeyHash) -> Shape | None:
    """The shape by the place of the first entry: it names the header's first record, at second 0."""
    record = store.record_at(head.begin_offset)
    if record is None:
        return None
    firsts = [ENTRY.pack(value, head.begin_offset, 0, 0) for value in hashes(hash_of, record)[1]]
    for at in range(HEADER_BYTES, min(size, _SEARCHED_BYTES_MAX), _BLOCK_BYTES):
        raw = store.read(path, _BLOCK_BYTES + ENTRY_BYTES - 1, at)
        for here in sorted(place for first in firsts for place in _places(raw, first)):
            slots, odd = divmod(at + here - HEADER_BYTES - ENTRY_BYTES, SLOT_BYTES)
            room, rest = divmod(size - HEADER_BYTES - SLOT_BYTES * slots, ENTRY_BYTES)
            if slots > 0 and not odd and not rest and room >= head.count:
                return Shape(slots, room)
    return None


def _places(raw: bytes, part: bytes) -> Iterator[int]:
    at = raw.find(part)
    while at >= 0:
        yield at
        at = raw.find(part, at + 1)


def hashes(hash_of: KeyHash, record: Record) -> tuple[set[int], set[int]]:
    """What an index must hold of a record, and what it may: RocketMQ 5.4 and newer also has tags.

    Of a property that a client gave twice brokers read the last; keelmq's first ones read the first.
    """
    last = decode_properties(record.properties)
    first = decode_properties(VALUE_END.join(reversed(record.properties.split(VALUE_END))))
    read = [{hash_of(record.topic, key) for key in _keys_of(one) if key} for one in (first, last)]
    tags = {f"T#{one[TAGS]}" for one in (first, last) if one.get(TAGS)}
    may = read[0] | read[1] | {hash_of(record.topic, tag) for tag in tags}
    rolled_back = record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
    return (set() if rolled_back else read[0] & read[1]), may


def _keys_of(properties: Mapping[str, str]) -> list[str]:
    return [properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" ")]


class IndexCheck:
    """Hears of every record and every hole of the log, in order, then ``finish``; ``rows`` is what is wrong.

    ``log``: the bytes that segments have. ``until``: records that end by it must be found; None: those before
    the last entry. After an unclean stop, slots may name entries that no header counts.
    """

    def __init__(self, store: StoreDirectory, shape: Shape, log: range, until: int | None) -> None:
        self.rows: list[Damage] = []
        self._store = store
        self._shape = shape
        self._log = log
        self._until = until
        self._hash_of = KeyHash()
        self._holes: list[tuple[int, int]] = []  # in their order, none touches another
        self._owed: dict[int, set[int]] = {}
        self._beyond: _Entry | None = None  # the last entry that names no byte of the log
        self._entries = self._all()
        self._head = next(self._entries, None)
        self._at_sea = False  # too much is wrong: no more is judged

    def hole(self, begin: int, until: int) -> None:
        """Nothing is said about entries of records in [``begin``, ``until``)."""
        first = bisect_left(self._holes, begin, key=lambda hole: hole[1])
        last = bisect_right(self._holes, until, key=lambda hole: hole[0])
        touched = self._holes[first:last]
        if touched:
            begin, until = min(begin, touched[0][0]), max(until, touched[-1][1])
        self._holes[first:last] = [(begin, until)]

    def _in_hole(self, offset: int) -> bool:
        at = bisect_right(self._holes, offset, key=lambda hole: hole[0]) - 1
        return at >= 0 and offset < self._holes[at][1]

    def take(self, record: Record) -> None:
        if self._at_sea:
            return
        at = record.physical_offset
        must, may = hashes(self._hash_of, record)
        rows = len(self.rows)
        while self._head is not None and self._head.offset <= at:
            entry = self._head
            if entry.offset == at:
                must.discard(entry.key_hash)
                self._judge(entry, record, may, late=False)
            else:
                self._late(entry)
            self._head = next(self._entries, None)
        if len(self.rows) > rows:
            return  # one row for one fault
        if must and (self._head is not None if self._until is None else at + record.size <= self._until):
            self._owed[at] = must
            if len(self._owed) > OWED_MAX:
                self._report_owed()
                self._at_sea = True

    def finish(self, end: int) -> None:
        """``end``: of the log; entries behind it, if none before it follows, are what a cut left."""
        beyond = None
        while self._head is not None and not self._at_sea and len(self.rows) < ROWS_MAX:
            if self._head.offset >= end:
                beyond = self._head
            else:
                if beyond is not None:
                    self._wrong(beyond, "names no record of the log")
                    beyond = None
                self._late(self._head)
            self._head = next(self._entries, None)
        self._report_owed()

    def _report_owed(self) -> None:
        for at in sorted(self._owed)[:ROWS_MAX]:
            self._note(Damage("index_missing", at, at, "index", f"{len(self._owed[at])} keys have no entry"))
        self._owed.clear()

    def _note(self, damage: Damage) -> None:
        if len(self.rows) < ROWS_MAX:
            self.rows.append(damage)

    def _wrong(self, entry: _Entry, text: str) -> None:
        self._note(
            Damage("index_wrong", entry.offset, entry.offset, entry.file, f"entry {entry.number} {text}")
        )

    def _late(self, entry: _Entry) -> None:
        """An entry of a record that was passed already: what a repair brought back, or a wrong one."""
        if entry.offset < self._log.start or self._in_hole(entry.offset):
            return
        owed = self._owed.get(entry.offset)
        if owed is not None:
            owed.discard(entry.key_hash)
            if not owed:
                del self._owed[entry.offset]
        record = self._store.record_at(entry.offset)
        if record is None:
            self._wrong(entry, "names no record of the log")
        else:
            self._judge(entry, record, hashes(self._hash_of, record)[1], late=True)

    def _judge(self, entry: _Entry, record: Record, may: set[int], *, late: bool) -> None:
        due = min(max((record.store_timestamp_ms - entry.begin_ms) // 1000, 0), _SECONDS_MAX)
        if entry.key_hash not in may:
            self._wrong(entry, "has the hash of none of its record's keys")
        elif entry.seconds < due or (entry.seconds > due and not late):
            self._wrong(entry, f"says {entry.seconds} s since the first, its record {due} s")

    # -- the files -------------------------------------------------------------------------------------

    def _all(self) -> Iterator[_Entry]:
        for path in self._in_order():
            # A crash left it before its first flush.
            if not self._store.stopped_cleanly and _head(self._store, path).count <= 1:
                continue
            for entry in self._file(path):
                if entry.offset in self._log or entry.offset < self._log.start:
                    if self._beyond is not None:
                        self._wrong(self._beyond, "names no byte of the log")
                        self._beyond = None
                    yield entry
                else:
                    self._beyond = entry

    def _in_order(self) -> list[str]:
        """The files by what they hold. A name is local time: an hour comes twice in autumn, and clocks are
        set back. One whose first entry and header do not both tell where it begins stays behind the one
        before."""
        found, begin = [], -1
        for path in self._store.index_files():
            head = _head(self._store, path)
            for _, (_, offset, _, _) in self._raw(path, min(head.count, 2)):
                if offset == head.begin_offset:
                    begin = offset
            found.append((begin, path))
        return [path for _, path in sorted(found, key=lambda one: one[0])]

    def _file(self, path: str) -> Iterator[_Entry]:
        """The entries of one file; its header, chains and slots are judged on the way."""
        name = "index/" + path.rpartition("/")[2]
        head, slots = _head(self._store, path), self._shape.slots
        size = self._store.size(path)
        count = max(head.count, 1)
        if size != self._shape.file_bytes or not 0 <= head.count <= self._shape.entries:
            text = f"{size} bytes, {head.count - 1} entries: no file of this store"
            self._note(Damage("index_wrong", 0, 0, name, text))
            return
        newest_of = array("i", bytes(SLOT_BYTES)) * slots
        used = odd = first = last = newest = number = 0
        for number, (key_hash, offset, seconds, before) in self._raw(path, count):
            slot = key_hash % slots
            odd += before != newest_of[slot]
            used += not newest_of[slot]
            newest_of[slot] = number
            first, last, newest = (first if number > 1 else offset), offset, max(newest, offset)
            yield _Entry(name, head.begin_timestamp_ms, number, key_hash, offset, seconds)
        odd += self._wrong_slots(path, newest_of, count)
        if odd or used != head.slots_used or number != count - 1:
            self._note(Damage("index_wrong", 0, 0, name, f"{odd} slots and chains do not fit its entries"))
        if count > 1 and (head.begin_offset != first or head.end_offset not in (last, newest)):
            self._note(Damage("index_wrong", 0, 0, name, f"its header does not fit its {count - 1} entries"))
        elif count > 1:
            self._times(name, head, seconds)

    def _times(self, name: str, head: Header, last_seconds: int) -> None:
        """A cut leaves the last message's time to the second."""
        begin, end = self._store.record_at(head.begin_offset), self._store.record_at(head.end_offset)
        cut_ms = head.begin_timestamp_ms + last_seconds * 1000
        if (begin is not None and begin.store_timestamp_ms != head.begin_timestamp_ms) or (
            end is not None and head.end_timestamp_ms not in (end.store_timestamp_ms, cut_ms)
        ):
            self._note(Damage("index_wrong", 0, 0, name, "its header has other times than its records"))

    def _raw(self, path: str, count: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        base = HEADER_BYTES + SLOT_BYTES * self._shape.slots
        for number in range(1, count, _BLOCK_ENTRIES):
            entries = min(_BLOCK_ENTRIES, count - number)
            raw = self._store.read(path, entries * ENTRY_BYTES, base + number * ENTRY_BYTES)
            yield from enumerate(ENTRY.iter_unpack(raw[: len(raw) - len(raw) % ENTRY_BYTES]), number)

    def _wrong_slots(self, path: str, newest_of: array[int], count: int) -> int:
        wrong = 0
        for at in range(0, len(newest_of) * SLOT_BYTES, _BLOCK_BYTES):
            due = newest_of[at // SLOT_BYTES : (at + _BLOCK_BYTES) // SLOT_BYTES]
            raw = self._store.read(path, len(due) * SLOT_BYTES, HEADER_BYTES + at)
            found = array("i", raw.ljust(len(due) * SLOT_BYTES, b"\0"))
            if sys.byteorder == "little":
                found.byteswap()
            if found != due:
                wrong += sum(
                    self._followed(path, a, count) != b for a, b in zip(found, due, strict=True) if a != b
                )
        return wrong

    def _followed(self, path: str, number: int, count: int) -> int:
        """After an unclean stop: the entry that a reader comes to from ``number``, which no header counts."""
        base = HEADER_BYTES + SLOT_BYTES * self._shape.slots
        while number >= count and not self._store.stopped_cleanly:
            if number >= self._shape.entries:
                return 0
            raw = self._store.read(path, ENTRY_BYTES, base + number * ENTRY_BYTES)
            before = int(ENTRY.unpack(raw)[3])
            number = before if 0 <= before < number else 0
        return number
