"""Damage that the scan of one log met: ``crc_mismatch``, ``phys_offset_mismatch``, ``unreadable_region``.

There may be as much of it as there are records: its rows lie in files, the first ones are listed, and of all
of it is kept, in files too, where it is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from audit.findings import ERROR, Finding, Merging
from audit.kinds.facts import Facts
from audit.reading.layout import bytes_at
from audit.reading.records.record import parse
from audit.rows.bounded import Bounded, Rest
from audit.rows.intervals import Interval
from audit.rows.parts import Folder, Parts
from audit.rows.places import Places
from audit.tables import LOG, View

DAMAGE: Final = frozenset(
    {"crc_mismatch", "phys_offset_mismatch", "unreadable_region", "missing_segment", "file_unreadable"}
)
"""Only a row of these kinds says all that is wrong with the bytes under it."""

MISPLACED: Final = "phys_offset_mismatch"
MERGED: Final = frozenset({"crc_mismatch", "bytes_differ", MISPLACED, "unreadable_region"})
"""Rows of these kinds that touch are one row."""

Sound = Callable[[Iterable[int], int, int], list[int]]
"""Of replicas that hold a stretch, those whose bytes there are not damaged."""
ANY: Final = ""
"""In ``Places``: whatever the kind."""
Row = dict[str, Any]


class Damages:
    """The damage of all replicas. What the reference has, every replica proved equal there has as well: where
    it was not scanned itself, as it was where equal bytes end inside a record."""

    def __init__(
        self,
        facts: Facts,
        views: Mapping[int, View],
        tables: Iterable[pa.Table],
        folder: Folder,
        rest: Rest,
    ) -> None:
        """``tables``: LOG rows, of each replica in log order."""
        self._facts, self._views = facts, views
        self._rows = Parts(folder, LOG, len(facts.replicas))
        for table in tables:
            self._rows.add(table, table["replica"].to_numpy())
        self._places = Places(folder)
        damaged = [at for at in range(len(facts.replicas)) if self._has(at)]
        for at in damaged:
            for row in self._of(at):
                self._places.add(ANY, facts.replicas[at].name, row["offset"], row["until"])
        rows = rest.bounded("damaged stretches", by=(), each_replica=True)
        merging = Merging(MERGED)
        for at in damaged:
            left = facts.histories.left(at)
            for row in self._of(at):
                for begin, end in self._pieces(at, row):
                    if begin == left:  # what belongs to two histories is two stretches
                        _keep(rows, merging.rest())
                    _keep(rows, merging.take(self._finding(at, row | {"offset": begin, "until": end})))
        _keep(rows, merging.rest())
        self.findings = list(rows.findings())

    def overlap(self, replica: str, begin: int, end: int) -> bool:
        """Is there damage?"""
        return self._places.overlap(ANY, replica, begin, end)

    def sound(self, holders: Iterable[int], begin: int, end: int) -> list[int]:
        """Those whose bytes there are not damaged."""
        names = ((at, self._facts.replicas[at].name) for at in holders)
        return [at for at, name in names if not self.overlap(name, begin, end)]

    def unheld(self) -> Iterator[Interval]:
        """What cannot be read on any replica that holds it, and may have been any record. One whose bytes do
        not match their CRC still tells which it was."""
        for at in range(len(self._facts.replicas)):
            for row in self._of(at) if self._has(at) else ():
                if row["kind"] != "crc_mismatch":
                    yield from (span for span in self._pieces(at, row) if not self.held(at, *span))

    def misplaced(self, at: int) -> Iterator[Row]:
        """The records of a replica that name another place than where they stand, in log order."""
        rows = self._of(at) if self._has(at) else ()
        return (row for row in rows if row["kind"] == MISPLACED)

    def held(self, at: int, begin: int, end: int) -> bool:
        """Has another replica undamaged what this one should have there?"""
        return bool(self.sound(self._facts.copies(at, begin, end), begin, end))

    def _has(self, at: int) -> bool:
        reference = self._facts.reference
        return any(self._rows.rows(of) for of in (at, reference) if of == at or self._equal(at))

    def _equal(self, at: int) -> Sequence[Interval]:
        return self._views[at].equal if at in self._views and at != self._facts.reference else ()

    def _of(self, at: int) -> Iterator[Row]:
        """Its damage in log order; of what was scanned of both, its own."""
        last: tuple[str, int] | None = None
        shared = _inside(self._read(self._facts.reference), self._equal(at)) if self._equal(at) else ()
        before: Row | None = None
        for row in heapq.merge(self._read(at), shared, key=_place):
            if (row["kind"], row["offset"]) != last:
                if before is not None:
                    yield self._with_blank(at, before, row["offset"])
                before = row
            last = (row["kind"], row["offset"])
        if before is not None:
            yield self._with_blank(at, before, -1)

    def _with_blank(self, at: int, row: Row, following: int) -> Row:
        """A blank record behind one of another segment's file is of that file. Raises OSError."""
        r, until = self._facts.replicas[at], int(row["until"])
        asked = row["kind"] == MISPLACED and until != following
        segment = r.segment_at(row["offset"]) if asked else None
        moved = segment is not None and (int(row["found"]) - row["offset"]) % r.segment_bytes == 0
        if segment is None or not moved or until >= r.segment_end(segment):
            return row
        end = r.segment_end(segment)
        blank = parse(bytes_at(r, until, 8), 0, until, end).problem == "blank"
        return row | {"until": max(until, min(end, r.end))} if blank else row

    def _read(self, at: int) -> Iterator[Row]:
        for table in self._rows.batches(at):
            yield from table.to_pylist()

    def _pieces(self, at: int, row: Row) -> list[Interval]:
        span = row["offset"], int(row["until"])
        return (
            self._facts.pieces(at, *span)
            if row["kind"] == "unreadable_region" and span[0] < span[1]
            else [span]
        )

    def _finding(self, at: int, row: Row) -> Finding:
        facts, offset, until = self._facts, row["offset"], int(row["until"])
        sound = self.sound(facts.copies(at, offset, until), offset, until)
        columns = ("topic", "queue_id", "queue_offset", "uniq_key", "expected", "found", "records")
        return facts.at(
            row["kind"],
            ERROR,
            at,
            offset,
            until,
            copies=facts.votes(sound, offset),
            **{name: row[name] for name in columns},
        )


def _keep(rows: Bounded, found: Iterable[Finding]) -> None:
    for f in found:
        rows.add(f.phys_offset, f)


def _place(row: Row) -> tuple[int, str]:
    return row["offset"], row["kind"]


def _inside(rows: Iterable[Row], intervals: Sequence[Interval]) -> Iterator[Row]:
    """Those that lie in one of the ascending intervals."""
    for row in rows:
        at = bisect_right(intervals, row["offset"], key=lambda interval: interval[0]) - 1
        if at >= 0 and row["until"] <= intervals[at][1]:
            yield row
