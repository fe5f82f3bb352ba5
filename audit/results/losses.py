"""What is lost or different, in which stretches, and since when? Many findings of one fault are one window.

A window is findings of one kind on one replica, in one queue and one epoch, with less than a segment of log
between one and the next. Its times are those at which the records there were stored, by any replica that
still says so: a lost message lies between the records before and behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from audit.findings import ERROR, INFO, WARN, Finding, without_absent
from audit.kinds.made import entries
from audit.reading.layout import Replica
from audit.results.times import lost_between, stored_between
from audit.rows.intervals import Interval
from audit.rows.numbers import LAST

TIMED_MAX: Final = 100
"""Windows that are given times; each costs a few reads, of 8 MiB at most."""
_CONSECUTIVE: Final = entries.KINDS | {"queue_gap"}
"""A row of these stands for places of its queue that follow each other."""
_RANK: Final = {ERROR: 0, WARN: 1, INFO: 2}


@dataclass(frozen=True, slots=True)
class Window:
    """Offsets are physical, bytes; times are ms since 1970; -1 and empty text, in files null: unknown, or of
    no queue. ``segment``: the file, of what is about a file and no place in the log."""

    kind: str
    severity: str
    replica: str
    topic: str
    queue_id: int
    epoch: int
    phys_offset: int
    until: int
    records: int
    copies: int  # replicas that hold it right
    ambiguous: bool
    first_key: str
    last_key: str
    first_queue_offset: int
    last_queue_offset: int
    segment: str
    since_ms: int = -1
    until_ms: int = -1

    @property
    def lost(self) -> bool:
        """Are these acknowledged messages that no replica holds?"""
        return self.kind == "acked_missing" and self.copies == 0 and bool(self.topic)

    def to_json(self) -> dict[str, Any]:
        return without_absent(asdict(self))


def windows(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Window]:
    """What is lost first, then by severity, kind and place. Raises nothing: what cannot be read has no
    time."""
    size = max((r.segment_bytes for r in replicas), default=0)
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for f in findings:
        lost = f.kind == "acked_missing" and f.copies == 0
        if f.severity != INFO or lost:
            # What has no place is no part of a stretch.
            file = f.segment if f.phys_offset < 0 else None
            key = (f.kind, f.severity, f.replica, f.topic, f.queue_id, f.epoch, f.copies, f.ambiguous, file)
            groups.setdefault(key, []).append(f)
    found = [(_window(run), run) for rows in groups.values() for run in _runs(rows, size)]
    found.sort(key=lambda told: _rank(told[0]))
    causes = _stretches(findings)
    timed = [_timed(w, run, causes, replicas) for w, run in found[:TIMED_MAX]]
    return timed + [w for w, _ in found[TIMED_MAX:]]


def _rank(w: Window) -> tuple[Any, ...]:
    return not w.lost, _RANK[w.severity], w.kind, w.replica, w.phys_offset, w.topic


def _stretches(findings: Iterable[Finding]) -> dict[str, Interval]:
    """By id, those that may be the cause of others."""
    found: dict[str, Interval] = {}
    for f in findings:
        if f.phys_offset >= 0 and not f.caused_by:
            begin, end = found.get(f.id, (f.phys_offset, f.until))
            found[f.id] = min(begin, f.phys_offset), max(end, f.until)
    return found


def _runs(rows: list[Finding], size: int) -> Iterable[list[Finding]]:
    run: list[Finding] = []
    reach = -1
    for f in sorted(rows, key=lambda f: (f.phys_offset, f.queue_offset)):
        if run and reach >= 0 and f.phys_offset > reach + size:
            yield run
            run = []
        run.append(f)
        reach = max(reach, f.until)
    if run:
        yield run


def _window(run: list[Finding]) -> Window:
    first, last = run[0], run[-1]
    places = [f.queue_offset for f in run if f.queue_offset >= 0]
    return Window(
        first.kind,
        first.severity,
        first.replica,
        first.topic,
        first.queue_id,
        first.epoch,
        first.phys_offset,
        max(f.until for f in run),
        sum(f.records for f in run),
        first.copies,
        first.ambiguous,
        first.uniq_key,
        # Of a row that stands for several only the first is known.
        last.uniq_key if last.records <= 1 else "",
        min(places, default=-1),
        _last_place(run),
        first.segment if first.phys_offset < 0 else "",
    )


def _last_place(run: list[Finding]) -> int:
    """-1: a row stands for places that nothing tells."""
    reach = -1
    for f in run:
        if f.records > 1 and f.kind not in _CONSECUTIVE:
            return -1
        if f.queue_offset >= 0:
            reach = max(reach, min(f.queue_offset + max(f.records, 1) - 1, LAST))
    return reach


def _timed(
    w: Window, run: Sequence[Finding], causes: Mapping[str, Interval], replicas: Sequence[Replica]
) -> Window:
    if w.phys_offset < 0:
        return w
    if w.lost:
        # All of the cause is gone, so no record inside of it tells a time that all of the window lies behind.
        gone = [causes.get(f.caused_by, (f.phys_offset, f.until)) for f in run]
        begin = min(w.phys_offset, *(a for a, _ in gone))
        since, until = lost_between(replicas, begin, max(w.until, *(b for _, b in gone)))
    else:
        # The replica that is blamed is asked last: its record may be another one.
        others = sorted(replicas, key=lambda r: r.name == w.replica)
        since, until = stored_between(others, w.phys_offset, w.until)
    # What a queue skips was stored before the record that tells of it, and nothing tells how long before.
    return replace(w, since_ms=-1 if w.kind == "queue_gap" else since, until_ms=until)
