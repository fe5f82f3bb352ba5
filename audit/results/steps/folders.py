"""Which folder of a queue stands under another one's number?

All its entries then name records of a queue of which the store has no folder. A repair makes that one anew,
and leaves the other, which names nothing: it ends with 2 each time. A folder that has one entry of its own
stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from audit.findings import Finding
from audit.kinds.made.entries import NO_QUEUE
from audit.reading.derived.queue_files import look, read_entries
from audit.reading.layout import Replica, record_at
from audit.reading.records.record import parse

Folder = tuple[str, str, int]
"""Replica, topic, number."""


def moved(findings: Sequence[Finding], replicas: Sequence[Replica]) -> set[Folder]:
    by_name = {r.name: r for r in replicas}
    gone = {_folder(f) for f in findings if f.kind == "cq_missing" and f.found == NO_QUEUE}
    topics = {(name, topic) for name, topic, _ in gone}
    rows = [f for f in findings if f.kind == "cq_dangling" and (f.replica, f.topic) in topics]
    dangling = Counter[Folder]()
    for f in rows:
        dangling[_folder(f)] += f.records
    found = {_folder(f) for f in rows if f.replica in by_name and _is_of(f, by_name[f.replica], gone)}
    return {folder for folder in found if _entries_of(folder, by_name[folder[0]]) == dangling[folder]}


def _entries_of(folder: Folder, r: Replica) -> int:
    """How many it has; -1: nobody can tell."""
    _, topic, queue_id = folder
    try:
        there = look(r.location)
        files = () if there is None else there.files
        return sum(
            len(batch)
            for file in files
            if (file.topic, file.queue_id) == (topic, queue_id)
            for batch in read_entries(file)
        )
    except OSError:
        return -1


def _is_of(f: Finding, r: Replica, gone: set[Folder]) -> bool:
    """Does its first entry name a record of the place, in a queue that is gone?"""
    try:
        raw = record_at(r, f.phys_offset)
    except OSError:
        return False
    record = parse(raw, 0, f.phys_offset, f.phys_offset + len(raw)).record if raw else None
    if record is None or record.queue_id == f.queue_id or record.queue_offset != f.queue_offset:
        return False
    return (f.replica, record.topic, record.queue_id) in gone and record.topic == f.topic


def _folder(f: Finding) -> Folder:
    return f.replica, f.topic, f.queue_id
