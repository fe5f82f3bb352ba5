"""Which records do the queue entries of their own store contradict?

An entry was made of a record when it was written. Where it names a record's place in the log, size and all,
but another place in a queue than the record does now, and none is at the place that the record tells, the
record or the entry was changed. Of rows of many entries it is the queue that moved, not each of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from audit.findings import INFO, Finding
from audit.reading.layout import Replica, record_at

_LOOKED_MAX: Final = 1000
"""Rows whose records are read."""


def contradicted(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Finding]:
    """The rows of such entries, each over its record."""
    by_name = {r.name: r for r in replicas}
    alone = [f for f in findings if f.records == 1 and not f.caused_by and f.severity != INFO]
    without = {_stretch(f) for f in alone if f.kind in ("cq_missing", "cq_wrong")}
    entries = [f for f in alone if f.kind == "cq_dangling" and _stretch(f) in without]
    return [f for f in entries[:_LOOKED_MAX] if f.replica in by_name and _is_record(f, by_name[f.replica])]


def _stretch(f: Finding) -> tuple[str, int, int]:
    return f.replica, f.phys_offset, f.until


def _is_record(f: Finding, r: Replica) -> bool:
    try:
        return (
            r.covers(f.phys_offset, f.until) and len(record_at(r, f.phys_offset)) == f.until - f.phys_offset
        )
    except OSError:
        return False
