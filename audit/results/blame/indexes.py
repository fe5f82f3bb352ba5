"""What do a store's IndexFiles say of one record, and does its own index contradict it?

An entry has a hash of one of the record's keys, made when it was written, and hangs in the chain of that
hash's slot. Where it does, and the record has no such key but one without an entry, the record or its keys
were changed: a flipped hash is in no chain. It is the index that is wrong if another copy of the record has
entries of just its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from audit.findings import INFO, Finding
from audit.kinds.logs.witnesses import records
from audit.kinds.made.index import log_of
from audit.reading.derived.index_files import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    entries_max,
    hashes_of,
    key_hash,
    shapes,
)
from audit.reading.layout import Replica, bytes_at
from audit.reading.records.record import Record, indexed_words
from audit.reading.storage import Storage, open_storage

_NEAR_MAX: Final = 256
"""Entries of one record, and of one chain, that are read."""
_LOOKED_MAX: Final = 1000
"""Records that are read, of all rows."""
_FEW: Final = 16
"""Of a store alone: with more it is another log's index."""
IsRight = Callable[[Replica, int, int], bool]


class _File(NamedTuple):
    """``room``: of its entries, entry 0 too, which name records from ``first`` to ``last``."""

    name: str
    slots: int
    room: int
    first: int
    last: int


class Hashes(NamedTuple):
    """Those that an index must have of a record, and those that it may."""

    must: frozenset[int]
    may: frozenset[int]

    @classmethod
    def of(cls, record: Record, raw: bytes) -> Hashes:
        words = indexed_words(raw)
        must = hashes_of(record, words)
        return cls(must, must | {key_hash(record.topic, f"T#{words.tags}")} if words.tags else must)


class Indexes:
    """Of one report."""

    def __init__(self) -> None:
        self._files: dict[str, list[_File]] = {}

    def hashes(self, r: Replica, offset: int) -> frozenset[int]:
        """Those of the entries that name a record, in the files of its store that can be read: of such as
        hang where their hash says."""
        storage = open_storage(r.location)
        try:
            if r.name not in self._files:
                self._files[r.name] = list(_files(storage, r))
            held = (file for file in self._files[r.name] if file.first <= offset <= file.last)
            return frozenset(value for file in held for value in _named(storage, file, offset))
        except OSError:
            return frozenset()
        finally:
            storage.close()


def contradicted_by_index(
    findings: Sequence[Finding], replicas: Sequence[Replica], indexes: Indexes, is_right: IsRight
) -> list[Finding]:
    """The rows of such entries, each over one record."""
    told = []
    for f, own, record, hashes in islice(_asked(findings, replicas), _LOOKED_MAX):
        span = record.offset, record.offset + record.size
        others = [r for r in replicas if r is not own and is_right(r, *span)]
        if _contradicts(indexes.hashes(own, span[0]), hashes) and not any(
            _confirms(indexes.hashes(r, span[0]), hashes) for r in others
        ):
            told.append(Finding(f.kind, f.severity, f.replica, f.segment, -1, *span, records=1))
    return told


def _asked(
    findings: Sequence[Finding], replicas: Sequence[Replica]
) -> Iterator[tuple[Finding, Replica, Record, Hashes]]:
    """The records in the rows of indexes that are wrong, and lack some."""
    by_name = {r.name: r for r in replicas}
    rows = [f for f in findings if not f.caused_by and f.severity != INFO and f.replica in by_name]
    lacking = {f.replica for f in rows if f.kind == "index_missing"}
    for f in rows:
        few = len(replicas) > 1 or f.records <= _FEW
        if f.kind == "index_wrong" and f.phys_offset >= 0 and f.replica in lacking and few:
            own = by_name[f.replica]
            yield from ((f, own, *told) for told in _records(own, f))


def _confirms(held: frozenset[int], hashes: Hashes) -> bool:
    return bool(held) and hashes.must <= held <= hashes.may


def _contradicts(held: frozenset[int], hashes: Hashes) -> bool:
    return bool(held - hashes.may) and bool(hashes.must - held)


def _records(r: Replica, f: Finding) -> Iterator[tuple[Record, Hashes]]:
    """The sound records of a row, up to what cannot be read."""
    try:
        for record in records(r, f.phys_offset, f.until):
            yield record, Hashes.of(record, bytes_at(r, record.offset, record.size))
    except OSError:
        return


def _files(storage: Storage, r: Replica) -> Iterator[_File]:
    """Raises OSError."""
    for head, slots in shapes(storage, log_of(r)):
        count = min(head.following, entries_max(head.size, slots)) if slots else 0
        if count > 1:
            own = _File(head.file, slots, count, 0, 0)
            ends = _entries(storage, own, 1, 1), _entries(storage, own, count - 1, 1)
            if all(map(len, ends)):
                first, last = (int(rows["offset"][0]) for rows in ends)
                yield own._replace(first=first, last=last)


def _named(storage: Storage, file: _File, offset: int) -> Iterator[int]:
    """Raises OSError."""
    low, high = 1, file.room
    while low < high:  # they ascend along the log
        middle = (low + high) // 2
        rows = _entries(storage, file, middle, 1)
        if len(rows) and int(rows["offset"][0]) < offset:
            low = middle + 1
        else:
            high = middle
    near = _entries(storage, file, low, min(_NEAR_MAX, file.room - low))
    for number, row in enumerate(near, low):
        if row["offset"] != offset:
            return
        if _hangs(storage, file, number, int(row["hash"])):
            yield int(row["hash"])


def _hangs(storage: Storage, file: _File, number: int, value: int) -> bool:
    """Is an entry in the chain of its hash? Of a long one nobody knows: it may. Raises OSError."""
    raw = storage.read(file.name, HEADER_BYTES + 4 * (value % file.slots), 4)
    at = int.from_bytes(raw, signed=True)
    for _ in range(_NEAR_MAX):
        if at <= number:
            return at == number
        rows = _entries(storage, file, at, 1)
        before = int(rows["before"][0]) if len(rows) else 0
        if before >= at:
            return False
        at = before
    return True


def _entries(storage: Storage, file: _File, number: int, count: int) -> Any:
    """As many as there are. Raises OSError."""
    raw = storage.read(
        file.name, HEADER_BYTES + 4 * file.slots + ENTRY_BYTES * number, ENTRY_BYTES * max(count, 0)
    )
    return np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)
