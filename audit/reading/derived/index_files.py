"""Does one IndexFile name every message of its stretch of the log by its keys, and nothing else?

    at  size  field                                  40 + 4 i               slot i: newest entry of its keys
     0   8+8  store time of first and last, ms       40 + 4 slots + 20 k    entry k, k from 1 on:
    16   8+8  physical offset of first and last          0     4  hash of TOPIC#KEY, never negative
    32     4  slots in use                               4     8  physical offset
    36     4  number of the next entry                  12     4  seconds since the first message
                                                        16     4  entry before it in its slot, 0 = none

Every field follows from the entries' hashes and the log's records, so each is computed and compared. How many
slots a file has stands in its broker's configuration only: ``slots_of`` finds it by the first entry.
Source: Apache RocketMQ 5.x, ``store/index``.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from audit.compare import Cursor
from audit.reading.records.record import Record, Words, indexed_words
from audit.reading.records.search import WINDOW_BYTES
from audit.reading.storage import Storage, names_in, open_storage
from model.message import java_hash

HEADER: Final = struct.Struct(">qqqqii")
ENTRY_BYTES: Final = 20
HEADER_BYTES: Final = 40
_FIRST: Final = struct.Struct(">qii")
ENTRY: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
assert (HEADER.size, ENTRY.itemsize) == (HEADER_BYTES, ENTRY_BYTES)
_DEFAULT_SLOTS: Final = 5_000_000
_DEFAULT_ENTRIES: Final = 20_000_000
_ROLLBACK: Final = 0xC
_SEARCHED_BYTES_MAX: Final = 64 * 1024 * 1024
_NAME_CHARS: Final = 17

INDEX: Final = pa.schema(
    [
        ("replica", pa.int32()),
        ("file", pa.string()),
        ("kind", pa.string()),
        ("offset", pa.int64()),  # of the record, -1 when it is about the file
        ("until", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("uniq_key", pa.string()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ]
)

INDEX_ORDER: Final = [(name, "ascending") for name in ("replica", "file", "offset", "kind", "found")]


@dataclass(frozen=True, slots=True)
class Log:
    """Where one replica's records stand: [``start``, ``end``), in files of (base, name)."""

    start: int
    end: int
    segment_bytes: int
    segments: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One file, and the stretch [``begin``, ``until``) of the log whose records must be in it."""

    replica: int
    location: str
    file: str  # empty: no file has this stretch
    slots: int
    begin: int
    until: int
    log: Log
    before: str = ""  # the file before; the record at ``begin`` may have entries in it, too
    moving: bool = (
        False  # its broker runs, or was killed: the file may be ahead of the log's end as we know it
    )


class Head(NamedTuple):
    """What a file says of itself, and its first and last entry's offsets, -1 without entries."""

    file: str
    size: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used: int
    following: int  # number of the next entry


def heads(storage: Storage) -> list[Head]:
    """Of every file of a store, by name."""
    found = []
    for name in names_in(storage, "index"):
        if len(name) == _NAME_CHARS and name.isdigit():
            file = f"index/{name}"
            with contextlib.suppress(FileNotFoundError):  # retention removed it meanwhile
                raw = storage.read(file, 0, HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
                found.append(Head(file, storage.size(file), *HEADER.unpack(raw)))
    return found


def entries_max(size: int, slots: int) -> int:
    """How many entries, entry 0 too, a file of ``size`` bytes has; 0 when it cannot have these slots."""
    room, rest = divmod(size - HEADER_BYTES - 4 * slots, ENTRY_BYTES)
    return room if rest == 0 and room > 0 else 0


def slots_of(storage: Storage, head: Head, hashes: frozenset[int]) -> int:
    """How many slots a file has: its first entry stands behind them. 0 when it is not found.

    ``hashes``: of the record the file begins with; empty when the log has it no more."""
    if head.following <= 1:
        return 0
    if head.size == HEADER_BYTES + 4 * _DEFAULT_SLOTS + ENTRY_BYTES * _DEFAULT_ENTRIES:
        return _DEFAULT_SLOTS
    raw = storage.read(head.file, 0, min(head.size, _SEARCHED_BYTES_MAX))
    first = _FIRST.pack(head.begin_offset, 0, 0)
    at = raw.find(first, HEADER_BYTES + 4 + ENTRY_BYTES + 4)
    while at >= 0:
        slots, rest = divmod(at - 4 - ENTRY_BYTES - HEADER_BYTES, 4)
        number = entries_max(head.size, slots)
        value = int.from_bytes(raw[at - 4 : at])
        known = value in hashes if hashes else head.begin_offset > 0 and value > 0
        if rest == 0 and number >= head.following and known and _fits(raw, slots, number):
            return slots
        at = raw.find(first, at + 1)
    return 0


def _fits(raw: bytes, slots: int, number: int) -> bool:
    table = np.frombuffer(raw, ">i4", slots, HEADER_BYTES)
    end = HEADER_BYTES + 4 * slots
    return bool(((table >= 0) & (table < number)).all()) and not any(raw[end : end + ENTRY_BYTES])


def last_offset(storage: Storage, head: Head, slots: int, low: int, high: int) -> int:
    """The physical offset of the newest record in [``low``, ``high``) that the file has entries of, or -1."""
    count = min(head.following, entries_max(head.size, slots))
    if count <= 1:
        return -1
    raw = storage.read(head.file, HEADER_BYTES + 4 * slots, ENTRY_BYTES * count)
    offsets = np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)["offset"][1:]
    offsets = offsets[(offsets >= low) & (offsets < high)]
    return int(offsets.max()) if len(offsets) else -1


def run_index(task: IndexTask) -> pa.RecordBatch:
    """INDEX rows of what is wrong with one file, or is missing from it. Raises OSError."""
    storage = open_storage(task.location)
    try:
        rows = _Check(storage, task).rows()
    finally:
        storage.close()
    return pa.RecordBatch.from_pylist(rows, schema=INDEX)


@lru_cache(maxsize=1 << 16)
def key_hash(topic: str, key: str) -> int:
    """|String.hashCode| of topic#key; 0 for the smallest number, which has no positive counterpart."""
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value < 1 << 31 else 0


class _Logged(NamedTuple):
    """A record of the log: the hashes an index must hold of it, and those it may."""

    record: Record
    must: frozenset[int]
    may: frozenset[int]


class _Check:
    def __init__(self, storage: Storage, task: IndexTask) -> None:
        self._storage, self._task = storage, task
        self._rows: list[dict[str, Any]] = []
        self._records: dict[int, _Logged] = {}

    def rows(self) -> list[dict[str, Any]]:
        task = self._task
        if not task.file:
            self._walk(task.begin, task.until)
            for logged in self._records.values():
                self._missing(logged, logged.must)
            return self._rows
        raw = self._storage.read(task.file, 0, HEADER_BYTES)
        size = self._storage.size(task.file)
        room = entries_max(size, task.slots)
        if not task.slots or not room:
            self._wrong("a file of the size and shape of the others", f"{size} bytes")
            entries, head = np.zeros(0, ENTRY), Head(task.file, size, 0, 0, 0, 0, 0, 1)
        else:
            head = Head(task.file, size, *HEADER.unpack(raw))
            count = min(max(head.following, 1), room)
            if count != head.following and not (task.moving and _is_blank(self._storage, task.file, size)):
                self._wrong(f"1 to {room} entries", f"{head.following}")
            table = HEADER_BYTES + 4 * task.slots
            raw = self._storage.read(task.file, table, ENTRY_BYTES * count)
            entries = np.frombuffer(raw, ENTRY)[1:]
        self._judge(entries, head)
        return self._rows

    def _judge(self, entries: Any, head: Head) -> None:
        task = self._task
        offsets = entries["offset"].astype(np.int64)
        inside = offsets[(offsets >= task.log.start) & (offsets < task.log.end)]
        low = min(task.begin, int(inside.min()) if len(inside) else task.begin)
        high = max(task.until, int(inside.max()) + 1 if len(inside) else task.until)
        self._walk(low, high)
        held = self._held_before()
        newest = 0
        for number, (value, offset, seconds, _) in enumerate(self._known(entries, offsets).tolist(), 1):
            held.setdefault(offset, set()).add(value)
            if 0 <= offset < task.log.start:
                continue  # retention removed its record
            logged = self._records.get(offset)
            if logged is None:
                self._wrong("a record of the log", f"entry {number} names {offset}", offset)
            elif value not in logged.may:
                self._wrong("a hash of its keys", f"entry {number} has {value}", offset)
            else:
                stored_ms = logged.record.store_timestamp_ms
                due = min(max((stored_ms - head.begin_ms) // 1000, 0), 0x7FFFFFFF)
                # What is indexed late carries the time of the newest.
                if seconds != due and not (offset < newest and seconds >= due):
                    self._wrong(f"{due} s since the first", f"entry {number} has {seconds} s", offset)
            newest = max(newest, offset)
        for offset, logged in self._records.items():
            if task.begin <= offset < task.until:
                self._missing(logged, logged.must - held.get(offset, set()))
        if task.slots:
            self._chains(entries, head)
            self._ends(entries, head)

    def _known(self, entries: Any, offsets: Any) -> Any:
        """The entries to be judged: those at the end that name what came after the log's end was noted are
        not. Where one behind them names an earlier record, it is the log that would have to be longer."""
        if not self._task.moving:
            return entries
        inside = np.flatnonzero(offsets < self._task.log.end)
        return entries[: int(inside[-1]) + 1 if len(inside) else 0]

    def _held_before(self) -> dict[int, set[int]]:
        """The hashes that the file before has of the record with which this one begins."""
        task = self._task
        held: dict[int, set[int]] = {}
        if task.before:
            at, room = HEADER_BYTES + 4 * task.slots, self._storage.size(task.before)
            room = entries_max(room, task.slots)
            raw = self._storage.read(task.before, at, ENTRY_BYTES * room)
            entries = np.frombuffer(raw, ENTRY)
            held[task.begin] = set(entries["hash"][entries["offset"] == task.begin].tolist())
        return held

    def _chains(self, entries: Any, head: Head) -> None:
        """Slots, and what each entry says came before it, follow from the hashes."""
        slots = self._task.slots
        table = np.zeros(slots, np.int64)
        newest: dict[int, int] = {}
        wrong = 0
        for number, (value, _, _, before) in enumerate(entries.tolist(), 1):
            slot = value % slots
            wrong += before != newest.get(slot, 0)
            newest[slot] = number
        for slot, number in newest.items():
            table[slot] = number
        raw = self._storage.read(self._task.file, HEADER_BYTES, 4 * slots)
        told = np.frombuffer(raw, ">i4", len(raw) // 4)
        differ = told != table[: len(told)]
        if self._task.moving:
            differ &= told <= len(entries)  # others are of entries that came since they were read
        wrong += int(differ.sum())
        if wrong:
            self._wrong("slots and chains that follow from the hashes", f"{wrong} that do not")
        if head.used != len(newest):
            self._wrong(f"{len(newest)} slots in use", f"{head.used}")

    def _ends(self, entries: Any, head: Head) -> None:
        """The header's first and last message are those of the entries."""
        if not len(entries):
            return
        first, last = int(entries["offset"][0]), int(entries["offset"][-1])
        newest = int(entries["offset"].max())
        if head.begin_offset != first or head.end_offset not in (last, newest):
            self._wrong(f"messages from {first} to {newest}", f"{head.begin_offset} to {head.end_offset}")
        begin, end = self._records.get(head.begin_offset), self._records.get(head.end_offset)
        if begin is not None and begin.record.store_timestamp_ms != head.begin_ms:
            self._wrong(f"begins at {begin.record.store_timestamp_ms} ms", f"{head.begin_ms} ms")
        # A cut leaves the last message's time to the second.
        cut_ms = head.begin_ms + int(entries["seconds"][-1]) * 1000
        if end is not None and head.end_ms not in (end.record.store_timestamp_ms, cut_ms):
            self._wrong(f"ends at {end.record.store_timestamp_ms} ms", f"{head.end_ms} ms")

    def _walk(self, begin: int, until: int) -> None:
        for record, words in records(self._storage, self._task.log, begin, until):
            if record.sys_flag & _ROLLBACK == _ROLLBACK:
                must: frozenset[int] = frozenset()
            else:
                must = hashes_of(record, words)
            # RocketMQ 5.4 and newer index tags, too.
            tag = {key_hash(record.topic, f"T#{words.tags}")} if words.tags else set()
            self._records[record.offset] = _Logged(record, must, must | tag)

    def _missing(self, logged: _Logged, hashes: frozenset[int]) -> None:
        if hashes:
            r = logged.record
            self._row("index_missing", r.offset, "an entry for each of its keys", f"{len(hashes)} missing", r)

    def _wrong(self, expected: str, found: str, offset: int = -1) -> None:
        logged = self._records.get(offset)
        self._row("index_wrong", offset, expected, found, logged.record if logged is not None else None)

    def _row(self, kind: str, offset: int, expected: str, found: str, record: Record | None) -> None:
        self._rows.append(
            {
                "replica": self._task.replica,
                "file": self._task.file,
                "kind": kind,
                "offset": offset,
                "until": offset + record.size if record is not None else offset + (offset >= 0),
                "topic": record.topic if record is not None else "",
                "queue_id": record.queue_id if record is not None else -1,
                "queue_offset": record.queue_offset if record is not None else -1,
                "uniq_key": record.uniq_key if record is not None else "",
                "expected": expected,
                "found": found,
            }
        )


def _is_blank(storage: Storage, file: str, size: int) -> bool:
    """Nothing but zeros: a broker that runs, or was killed, flushed nothing of it yet."""
    at = storage.data_from(file, 0)
    while at is not None and at < size:
        raw = storage.read(file, at, WINDOW_BYTES)
        if not raw:
            return True
        if any(raw):
            return False
        at = storage.data_from(file, at + len(raw))
    return True


def shapes(storage: Storage, log: Log) -> list[tuple[Head, int]]:
    """Each file of a store and its slots, 0 where that cannot be told: in the order of what they hold.

    A name is local time: an hour comes twice in autumn, and clocks are set back. A file whose first entry and
    header do not both tell where it begins stays behind the one before it by name."""
    found: list[tuple[int, Head, int]] = []
    begin = -1
    for head in heads(storage):
        slots = slots_of(storage, head, hashes_at(storage, log, head.begin_offset))
        if slots and _first_offset(storage, head, slots) == head.begin_offset:
            begin = head.begin_offset
        found.append((begin, head, slots))
    return [(head, slots) for _, head, slots in sorted(found, key=lambda row: row[0])]


def _first_offset(storage: Storage, head: Head, slots: int) -> int:
    raw = storage.read(head.file, HEADER_BYTES + 4 * slots + ENTRY_BYTES + 4, 8)
    return int.from_bytes(raw, signed=True) if len(raw) == 8 else -1


def hashes_of(record: Record, words: Words) -> frozenset[int]:
    """What an index must have of it."""
    keys = (record.uniq_key, *words.keys)
    return frozenset(key_hash(record.topic, key) for key in keys if key)


def hashes_at(storage: Storage, log: Log, offset: int) -> frozenset[int]:
    """What an index has of the record at ``offset``; nothing when there is none."""
    for record, words in records(storage, log, offset, offset + 1):
        tags = [f"T#{words.tags}"] if words.tags else []
        return frozenset(key_hash(record.topic, key) for key in (record.uniq_key, *words.keys, *tags) if key)
    return frozenset()


def records(storage: Storage, log: Log, begin: int, until: int) -> Iterator[tuple[Record, Words]]:
    """The records that begin in [``begin``, ``until``), and the words an index has of each."""
    for base, file in log.segments:
        end = base + log.segment_bytes
        if end <= begin or base >= until:
            continue
        limit = min(end, log.end)

        def read(offset: int, size: int, base: int = base, file: str = file) -> bytes:
            return storage.read(file, offset - base, size)

        cursor = Cursor(read, end, limit)
        at = max(begin, base)
        while at < min(until, limit):
            parsed = cursor.parse(at)
            if parsed.record is not None and parsed.record.offset >= begin:
                yield parsed.record, indexed_words(cursor.bytes_at(at, parsed.size))
            at += parsed.size or cursor.next_start(at) - at
