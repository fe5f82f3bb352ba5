"""Which stores may hold the only copy of a message elsewhere than it says to be? No command writes over such
a one before that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from audit.findings import Finding
from audit.kinds.acked import STRAYED
from audit.reading.layout import Replica, Segment, segment_reader
from audit.reading.records.search import find_record
from audit.reading.storage import open_storage
from audit.results.steps import advice
from audit.results.steps.advice import Advice
from audit.results.steps.stretches import is_blank_behind
from audit.rows.intervals import Interval

MISPLACED: Final = "phys_offset_mismatch"
_LOOKED_BYTES: Final = 16 * 1024 * 1024
"""Of a file of another name, behind where all logs end."""


def is_lost(f: Finding) -> bool:
    return f.kind == "acked_missing" and f.copies == 0 and bool(f.topic)


def is_strayed(f: Finding) -> bool:
    """Is nothing left of a message but a record that stands elsewhere than it says?"""
    return is_lost(f) and f.found == STRAYED


def is_misnamed(f: Finding) -> bool:
    return f.kind == "file_corrupt" and f.segment.startswith("commitlog/")


def kept(findings: Sequence[Finding], replicas: Sequence[Replica]) -> set[str]:
    """The replicas that may hold the only copy of a message elsewhere than it says to be."""
    lost = any(map(is_lost, findings))
    misplaced = {f.replica for f in findings if lost and f.kind == MISPLACED}
    alone = (r for r in replicas if (lost and r.misnamed) or r.elsewhere or _holds_alone(r, replicas))
    return misplaced | {r.name for r in alone}


def _holds_alone(r: Replica, replicas: Sequence[Replica]) -> bool:
    """Has it a segment under another one's name that no other log begins?"""
    return any(not any(o is not r and o.start <= begin < o.end for o in replicas) for begin, _ in r.moved)


def bearers(findings: Sequence[Finding], replicas: Sequence[Replica]) -> set[str]:
    """The replicas of which files of wrong names, or misplaced records, hold what is lost."""
    gone = [f for f in findings if is_lost(f)]
    strayed = any(map(is_strayed, gone))
    return {r.name for r in replicas if (strayed and r.elsewhere) or any(map(partial(is_held, r), gone))}


def is_held(r: Replica, f: Finding) -> bool:
    """Do files of wrong names, or misplaced records, hold what is lost?"""
    return any(f.overlaps(*span) for span in (*r.misnamed, *r.elsewhere))


def reaching(replicas: Sequence[Replica]) -> dict[str, set[str]]:
    """By replica, the files under another name of which the records go on behind where any log has them: that
    another one has the segment's begin brings none of them back."""
    held = {
        r.name: {s.file for s, home in r.stray if home and _goes_on(r, s, home, replicas)} for r in replicas
    }
    return {name: files for name, files in held.items() if files}


def _goes_on(r: Replica, file: Segment, home: Interval, replicas: Sequence[Replica]) -> bool:
    begin, end = home
    ends = [o.end for o in replicas if o.covers(begin, begin + 1)]
    reach = max(ends, default=end)
    if reach >= end:  # all of it is there, or nothing: then the file is the segment
        return False
    storage = open_storage(r.location)
    try:
        read = segment_reader(storage, replace(file, base=begin))
        return find_record(read, reach, min(end, reach + _LOOKED_BYTES), end) >= 0
    except OSError:
        return False
    finally:
        storage.close()


def kept_words(f: Finding, own: Replica, *, of_bytes: bool) -> Advice:
    """Of a file that is another segment as a whole there is one step, as its place is not its own; and of one
    that lacks what another file has. What stands behind a segment goes by that file's own step. ``of_bytes``:
    it is about bytes of the log."""
    if of_bytes:
        long = {s.file for s in too_long(own)}
        bearing = {s.file for s, span in own.stray if span is not None and f.overlaps(*span)}
        if bearing & long or f"commitlog/{f.segment}" in long:
            return advice.TOO_LONG
        whole = {file.name for file, _ in own.moved_files if file.base == int(file.name)}
        if bearing or f.segment in whole:
            return advice.ASIDE
    return advice.MISPLACED if own.elsewhere or f.kind == MISPLACED else advice.MADE_BEHIND


def too_long(r: Replica) -> list[Segment]:
    return [s for s in r.segments if s.size_bytes > r.segment_bytes]


def is_too_long(r: Replica) -> bool:
    """Has it a file that no command cuts? A repair takes it for damage."""
    return not all(is_blank_behind(r, segment) for segment in too_long(r))
