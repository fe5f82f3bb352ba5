"""Where copies outnumber one that differs, was theirs changed after its entries were made?

A queue's entry (size, tag code) and an index's (hashes of keys) were made of a record when it was written. If
one in a store with the majority's bytes tells what the minority's record says and theirs does not, and none
of the minority's tells otherwise than its record, their number proves nothing. What has no entry, as in an
index that was not flushed, says nothing; what no entry covers only the vote can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from audit.findings import Finding
from audit.reading.derived.queue_files import entry_at
from audit.reading.layout import Replica, record_at
from audit.reading.records.record import RECORD_BYTES_MIN, Record, parse
from audit.results.blame.indexes import Hashes, Indexes
from audit.rows.intervals import Interval

_LOOKED_MAX: Final = 1000
"""Records that are read, of all rows."""


class _Made(NamedTuple):
    """What entries of a record have to tell."""

    place: tuple[str, int, int]
    entry: tuple[int, int, int]
    hashes: frozenset[int]


class Outvoted:
    """Of one report. ``wrong``: the replicas whose records entries contradict so, with the stretches;
    ``spans``: where."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica], indexes: Indexes) -> None:
        self._by_name = {r.name: r for r in replicas}
        self._indexes = indexes
        rows = (f for f in findings if f.kind == "bytes_differ" and f.replica in self._by_name)
        told = {f.replica for f in findings if f.kind.startswith(("cq_", "index_"))}
        self.wrong: set[tuple[str, Interval]] = set()
        if told:
            looked = 0
            for f in rows:
                for at, own in _records(self._by_name[f.replica], f):
                    looked += 1
                    if looked > _LOOKED_MAX:
                        return
                    self._weigh(f, at, own)

    @property
    def spans(self) -> set[Interval]:
        return {span for _, span in self.wrong}

    def _weigh(self, f: Finding, at: int, own: bytes) -> None:
        minor = _made(own, at)
        alike: list[Replica] = []
        groups: dict[bytes, list[Replica]] = {}
        for r in self._by_name.values():
            if r.covers(at, at + 1):
                raw = _bytes_of(r, at)
                (alike if raw == own else groups.setdefault(raw, [])).append(r)
        if minor is None or any(self._tells_otherwise(r, minor) for r in alike):
            return
        for raw, group in groups.items():
            major = _made(raw, at)
            if major is not None and any(self._speaks_for(r, minor, major) for r in group):
                self.wrong |= {(r.name, (at, at + max(len(raw), len(own)))) for r in group}

    def _speaks_for(self, r: Replica, minor: _Made, major: _Made) -> bool:
        """Does an entry of its store tell what the one record says, and the other does not?"""
        changed = (minor.place, minor.entry) != (major.place, major.entry)
        if changed and self._entry(r, minor) == minor.entry:
            return True
        hashes = self._indexes.hashes(r, minor.entry[0])
        return bool(hashes) and hashes <= minor.hashes and not hashes <= major.hashes

    def _tells_otherwise(self, r: Replica, made: _Made) -> bool:
        entry = self._entry(r, made)
        return entry not in (None, made.entry) or not self._indexes.hashes(r, made.entry[0]) <= made.hashes

    def _entry(self, r: Replica, made: _Made) -> tuple[int, int, int] | None:
        try:
            return entry_at(r.location, made.place)
        except OSError:
            return None


def _records(r: Replica, f: Finding) -> Iterator[tuple[int, bytes]]:
    """The sound records of a row, up to what is none."""
    at = f.phys_offset
    while at < f.until and len(raw := _bytes_of(r, at)) >= RECORD_BYTES_MIN:
        yield at, raw
        at += len(raw)


def _bytes_of(r: Replica, at: int) -> bytes:
    try:
        return record_at(r, at)
    except OSError:
        return b""


def _made(raw: bytes, at: int) -> _Made | None:
    """None: it is no record."""
    record: Record | None = parse(raw, 0, at, at + len(raw)).record if raw else None
    if record is None:
        return None
    return _Made(
        (record.topic, record.queue_id, record.queue_offset),
        (record.offset, record.size, record.tags_code),
        Hashes.of(record, raw).may,
    )
