"""Which records do the queue entries of their own store contradict?

An entry was made of a record when it was written. Where it names a record's place in the log, size and all,
but another place in a queue than the record does now, the record or the entry was changed: if none is at the
place that the record tells, or, of a group, which can confirm the record, if both are of one queue. A finding
tells of the former only if the record's queue has files, and the place is no other record's: else the queue
is read. Not where one number differs alone: a repair puts that back by the entry, or, where nothing beside it
tells which is right, leaves both. Of rows of many entries it is the queue that moved, not each of the
records. And where it tells another tag, one of both was changed: only a group can tell which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from audit.findings import INFO, Finding
from audit.reading.derived.queue_files import is_entered
from audit.reading.layout import Replica, record_at
from audit.reading.records.record import Record, parse
from model.message import SCHEDULE_TOPIC

_LOOKED_MAX: Final = 1000
"""Rows whose records are read."""


def contradicted(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Finding]:
    """The rows of such entries, each over its record."""
    by_name = {r.name: r for r in replicas}
    alone = _alone(findings)
    without = {_stretch(f) for f in alone if f.kind in ("cq_missing", "cq_wrong")}
    entries = [f for f in alone if f.kind == "cq_dangling" and f.replica in by_name][:_LOOKED_MAX]
    confirmable = len(replicas) > 1
    return [f for f in entries if _speaks_against(f, by_name[f.replica], _stretch(f) in without, confirmable)]


def of_other_tags(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Finding]:
    """The rows of entries that name their record for another tag: none of a store alone."""
    rows = _alone(findings) if len(replicas) > 1 else []
    return [f for f in rows if f.kind == "cq_wrong" and _is_of_another_tag(f)]


def _alone(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.records == 1 and not f.caused_by and f.severity != INFO]


def of_open_records(findings: Sequence[Finding]) -> list[Finding]:
    """The rows of entries that follow from a record of which it is open which copy is right."""
    is_open = {f.id for f in findings if f.kind == "bytes_differ" and f.ambiguous}
    kinds = ("cq_wrong", "cq_dangling", "index_wrong")
    return [f for f in findings if f.kind in kinds and f.caused_by in is_open]


def _speaks_against(f: Finding, r: Replica, unentered: bool, confirmable: bool) -> bool:
    record = _record_of(f, r)
    if record is None:
        return False
    if unentered or (confirmable and _is_of_queue(record, f)):
        return True
    return not _is_put_back(record, f) and not _is_entered(r, record)


def _is_of_another_tag(f: Finding) -> bool:
    """Does the entry name the record, size and all, for another tag? Of a delayed one it tells the time."""
    named = f"offset {f.phys_offset} size {f.until - f.phys_offset} tag "
    return f.found.startswith(named) and f.topic != SCHEDULE_TOPIC


def _is_put_back(record: Record, f: Finding) -> bool:
    """Is one number of its place another than the entry's? Then ``store.offline.queues.misplaced`` judges."""
    differ = record.queue_id != f.queue_id, record.queue_offset != f.queue_offset
    return record.topic == f.topic and sum(differ) == 1


def _is_entered(r: Replica, record: Record) -> bool:
    """Does an entry at the place that it tells name it? What cannot be read may."""
    place = record.topic, record.queue_id, record.queue_offset
    try:
        return is_entered(r.location, place, record.offset)
    except OSError:
        return True


def _is_of_queue(record: Record, f: Finding) -> bool:
    return (record.topic, record.queue_id) == (f.topic, f.queue_id)


def _stretch(f: Finding) -> tuple[str, int, int]:
    return f.replica, f.phys_offset, f.until


def _record_of(f: Finding, r: Replica) -> Record | None:
    """The sound record that an entry names, if it is of the entry's size."""
    try:
        data = record_at(r, f.phys_offset) if r.covers(f.phys_offset, f.until) else b""
    except OSError:
        return None
    return parse(data, 0, f.phys_offset, f.until).record if len(data) == f.until - f.phys_offset else None
