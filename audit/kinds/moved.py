"""What stands in a store elsewhere than it says? In a file under another segment's name, or in a part of one.

Nobody else may have it: retention takes files as a whole, and moves none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from audit.compare import Cursor
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import Damages
from audit.reading.layout import Replica, Segment, bytes_at, segment_reader
from audit.reading.records.record import MISPLACED, Record, parse
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval, joined

_COMPARED_MAX: Final = 1000
"""Runs of misplaced records of a replica. What is behind them counts as if it were nowhere else."""
_PLACE: Final = slice(28, 36)
"""Of a record's bytes."""


def held_in(r: Replica) -> Iterator[Record | Interval]:
    """The records of files that have another segment's name, and the stretches of their own segments in which
    there is none. Raises OSError."""
    for file, home in r.moved_files:
        before = file.base - int(file.name)  # what stands in it before is another segment
        yield from _records(r.location, Segment(home[0] - before, file.file, before + file.size_bytes), home)


def _records(location: str, segment: Segment, home: Interval) -> Iterator[Record | Interval]:
    storage = open_storage(location)
    try:
        cursor = Cursor(segment_reader(storage, segment), home[1], home[1])
        at, end = home[0], min(home[1], segment.base + segment.size_bytes)
        while at < end:
            parsed = cursor.parse(at)
            following = at + parsed.size if parsed.size else cursor.next_start(at)
            if parsed.record is not None and parsed.problem != MISPLACED:
                yield parsed.record
            elif parsed.problem != "blank":
                yield at, min(following, end)
            at = following
    finally:
        storage.close()
    if end < home[1]:
        yield end, home[1]


class _Run(NamedTuple):
    """Misplaced records in a row that were moved by as much. ``first``: where the first of them ends."""

    begin: int
    first: int
    until: int
    place: int


def note_elsewhere(facts: Facts, damages: Damages) -> None:
    """Tell each replica what its misplaced records name, and no log has undamaged. Raises OSError."""
    for at, r in enumerate(facts.replicas):
        r.elsewhere = joined(_elsewhere(facts, damages, at))


def _elsewhere(facts: Facts, damages: Damages, at: int) -> Iterator[Interval]:
    top = max(max(r.end, r.confirmed) for r in facts.replicas)
    compared = 0
    for run in _runs(damages.misplaced(at)):
        begin, end = run.place, min(run.place + run.until - run.begin, top)
        if not 0 <= begin < end:
            continue
        pieces = facts.pieces(at, begin, end)
        lacking = [piece for piece in pieces if not damages.sound(facts.holders(*piece), *piece)]
        compared += bool(lacking)
        if lacking and (compared > _COMPARED_MAX or _was_moved(facts, damages, at, run)):
            yield from lacking


def _runs(rows: Iterable[dict[str, Any]]) -> Iterator[_Run]:
    run: _Run | None = None
    for row in rows:
        own = _Run(row["offset"], int(row["until"]), int(row["until"]), int(row["found"]))
        if run is not None and (run.until, run.place - run.begin) == (own.begin, own.place - own.begin):
            run = run._replace(until=own.until)
            continue
        if run is not None:
            yield run
        run = own
    if run is not None:
        yield run


def _was_moved(facts: Facts, damages: Damages, at: int, run: _Run) -> bool:
    """Is it no record that stands where it was written, with another place in it? One alone is a copy only if
    it is sound where it says to be."""
    own = bytearray(bytes_at(facts.replicas[at], run.begin, run.first - run.begin))
    parsed = parse(bytes(own), 0, run.place, run.place + len(own))
    if run.first == run.until and (parsed.record is None or parsed.damage is not None):
        return False
    del own[parsed.size :]
    span = run.begin, run.begin + len(own)
    for b in damages.sound(facts.copies(at, *span), *span):
        other = bytearray(bytes_at(facts.replicas[b], run.begin, len(own)))
        other[_PLACE] = own[_PLACE]
        if other == own:
            return False
    return True
