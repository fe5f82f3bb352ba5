"""Entries of ConsumeQueues that do not agree with their own replica's log.

``cq_wrong``, ``cq_missing``, ``cq_dangling``. Warnings: queues are made of the log, so no message is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from audit.findings import INFO, WARN, Finding
from audit.kinds.facts import Facts
from audit.reading.derived.queue_files import Queue, QueueFile, QueueFolder
from audit.reading.layout import ALL, Replica, record_at
from audit.reading.records.record import parse
from audit.tables import Entered
from model.queue_sizes import Told, opens, told_by

KINDS: Final = frozenset({"cq_wrong", "cq_missing", "cq_dangling"})
NO_ENTRY: Final = "no entry"
NO_QUEUE: Final = "no such queue"
MULTIPLE: Final = "a name that is a multiple of "
Place = tuple[str, int, int]
Row = dict[str, Any]


def tail_from(replica: Replica) -> int:
    """From which physical offset on records need not be in their queues yet.

    A stopped broker entered what was confirmed (RocketMQ enters nothing else); one that runs, or was killed,
    is less than a segment behind, and keelmq has on its disk what its checkpoint says is settled: what it
    confirmed may wait for its flush while the log goes on. Without epochs the checkpoint names the last
    record, else the end of it. Where a running broker's checkpoint does not say what was confirmed, its
    queues do: all that they name.
    """
    confirmed = replica.confirmed + (0 if replica.of_epochs else 1) if replica.confirmed else 1 << 62
    if not replica.clean and replica.promised >= ALL and replica.entered:
        confirmed = replica.entered
    settled = replica.settled if replica.settled >= 0 else confirmed
    return confirmed if replica.clean else min(confirmed, settled, replica.end - replica.segment_bytes)


def cuts(
    replica: Replica, found: Sequence[Finding], causes: Sequence[str], again: Mapping[Queue, int]
) -> tuple[int, ...]:
    """Offsets between which all records without an entry are judged alike: by what may be their cause, by
    what need not be entered yet, and by topics that were created again."""
    roots = [f for f in found if f.kind in causes and f.replica in (replica.name, "*") and f.phys_offset >= 0]
    edges = {edge for f in roots for edge in (f.phys_offset, f.until)}
    return tuple(sorted(edges | {tail_from(replica), *again.values()}))


def entries(
    facts: Facts,
    at: int,
    told: Entered,
    again: Mapping[Queue, int],
    wait: Callable[[int], None] = lambda offset: None,
) -> list[Finding]:
    """``again``: where a queue's topic was created again; what stands before has no entries any more.
    ``wait`` is told the records that need not be entered yet, and are not."""
    wrong = {_place(row): row for row in told.wrong.to_pylist()}
    records: dict[Place, Row] = {}
    for row in sorted(told.unentered.to_pylist(), key=lambda row: int(row["offset"])):
        if row["offset"] >= again.get((row["topic"], row["queue_id"]), 0):
            records[_place(row)] = row
    tail = tail_from(facts.replicas[at])
    found = []
    for place, record in sorted(records.items()):
        entry = wrong.pop(place, None)
        unentered = record["offset"] >= tail and _ends(place, told)
        if unentered and (entry is None or _left_over(facts.replicas[at], entry)):
            wait(int(record["offset"]))
            continue
        if entry is not None:
            found.append(_at_record(facts, "cq_wrong", at, record, _said(entry)))
        else:
            found.append(_at_record(facts, "cq_missing", at, record, NO_ENTRY))
    return found + [
        _dangling(facts, at, entry, at_end=_ends(place, told)) for place, entry in sorted(wrong.items())
    ]


def _ends(place: Place, told: Entered) -> bool:
    """Is no entry right from this place of its queue on?"""
    return place[2] > told.last.get(place[:2], -1)


def sizes(facts: Facts, at: int, folders: Mapping[int, QueueFolder]) -> list[Finding]:
    """Files of another size than the store's others, or of a name that is no multiple of it: their brokers
    open none of these. One file that was cut alone tells no size: other replicas may."""
    folder, told = folders[at], _told(folders, at)
    usual = told.size
    odd = {file for file in folder.files if told.sure and int(_name(file)) % usual}
    return [
        replace(
            facts.at("cq_wrong", WARN, at, -1, -1, topic=file.topic, queue_id=file.queue_id, records=1),
            segment=file.file,
            expected=f"{MULTIPLE}{usual}" if file in odd else f"a file of {usual} bytes",
            found=_name(file) if file in odd else f"{file.size} bytes",
        )
        for file in folder.files
        if file in odd or (usual and file.size != usual)
    ]


def _told(folders: Mapping[int, QueueFolder], at: int) -> Told:
    """How large the files of a replica are: by its own, else by others' where none of its own denies it."""
    own = _files(folders[at])
    told = told_by(own)
    if told.sure:
        return told
    theirs = told_by([files for other, its in folders.items() if other != at for files in _files(its)])
    denied = any(not opens(theirs.size, file) for files in own for file in files) if theirs.size else True
    return theirs if theirs.sure and not denied else told


class _File(NamedTuple):
    start: int
    size: int


def _files(folder: QueueFolder) -> list[list[_File]]:
    """Of each queue, oldest first."""
    found: dict[Queue, list[_File]] = {}
    for file in folder.files:
        found.setdefault((file.topic, file.queue_id), []).append(_File(int(_name(file)), file.size))
    return [sorted(files) for files in found.values()]


def is_misnamed_file(f: Finding) -> bool:
    """Is it a file of a queue with which no broker starts, by its name?"""
    return f.kind == "cq_wrong" and f.expected.startswith(MULTIPLE)


def _name(file: QueueFile) -> str:
    return file.file.rpartition("/")[2]


def absent(
    facts: Facts,
    at: int,
    folder: QueueFolder,
    others: set[Queue],
    extents: Sequence[Row],
    wait: Callable[[int], None] = lambda offset: None,
) -> list[Finding]:
    """Queues that have records and no file, although topics.json or another replica has them. ``wait`` is
    told where those begin that need not be there yet."""
    tail = tail_from(facts.replicas[at])
    there = folder.queues
    found = []
    for row in sorted(extents, key=_queue):
        queue = _queue(row)
        expected = queue in others or row["queue_id"] < folder.queues_of.get(row["topic"], 0)
        if queue in there or not expected or row["topic"] in folder.elsewhere:
            continue
        if row["offset"] >= tail:
            wait(int(row["offset"]))
            continue
        records = int(row["records"])
        found.append(
            facts.at(
                "cq_missing",
                WARN,
                at,
                row["offset"],
                row["until"],
                topic=row["topic"],
                queue_id=row["queue_id"],
                queue_offset=row["queue_offset"],
                expected=f"entries of {records} records",
                found=NO_QUEUE,
                records=records,
            )
        )
    return found


def joined(findings: Sequence[Finding]) -> list[Finding]:
    """One row for consecutive places of a queue that no other finding explains."""
    kept: list[Finding] = []
    rest = [f for f in findings if f.kind not in KINDS or f.caused_by or f.queue_offset < 0]
    rows = sorted(
        (f for f in findings if f.kind in KINDS and not f.caused_by and f.queue_offset >= 0),
        key=lambda f: (f.kind, f.replica, f.topic, f.queue_id, f.queue_offset),
    )
    for f in rows:
        last = kept[-1] if kept else None
        if last is not None and _goes_on(last, f):
            begin, end = min(last.phys_offset, f.phys_offset), max(last.until, f.until)
            kept[-1] = replace(last, phys_offset=begin, until=end, records=last.records + f.records)
        else:
            kept.append(f)
    return rest + kept


def _goes_on(last: Finding, f: Finding) -> bool:
    place = (last.topic, last.queue_id, last.queue_offset + last.records)
    return (last.kind, last.severity, last.replica, *place) == (
        f.kind,
        f.severity,
        f.replica,
        f.topic,
        f.queue_id,
        f.queue_offset,
    )


def _queue(row: Row) -> Queue:
    return row["topic"], row["queue_id"]


def _place(row: Row) -> Place:
    return row["topic"], row["queue_id"], row["queue_offset"]


def _said(entry: Row) -> str:
    return f"offset {entry['entry_offset']} size {entry['entry_size']} tag {entry['entry_tags']}"


def _at_record(facts: Facts, kind: str, at: int, record: Row, found: str) -> Finding:
    begin, end = int(record["offset"]), int(record["until"])
    return facts.at(
        kind,
        WARN,
        at,
        begin,
        int(record["reach"]),
        topic=record["topic"],
        queue_id=record["queue_id"],
        queue_offset=record["queue_offset"],
        uniq_key=record["uniq_key"],
        expected=f"offset {begin} size {end - begin} tag {record['tags_code']}",
        found=found,
        records=int(record["records"]),
    )


def _left_over(replica: Replica, entry: Row) -> bool:
    """May it be of a log that was cut? No log is before the second epoch began."""
    return len(replica.epochs) > 1 and int(entry["entry_offset"]) >= replica.epochs[1][1]


def _names_a_record(replica: Replica, entry: Row) -> bool:
    """Does it name a sound record of the log, size and all?"""
    begin, size = int(entry["entry_offset"]), int(entry["entry_size"])
    if size <= 0 or not replica.covers(begin, begin + size):
        return False
    try:
        data = record_at(replica, begin)
    except OSError:
        return False
    return len(data) == size and parse(data, 0, begin, begin + size).record is not None


def _dangling(facts: Facts, at: int, entry: Row, *, at_end: bool) -> Finding:
    """RocketMQ leaves the entries of a log that it cut short, in the files behind the ends of
    their queues: information only, though another record of their size may stand there now. keelmq leaves
    none of those."""
    begin, own = int(entry["entry_offset"]), facts.replicas[at]
    left_over = at_end and _left_over(own, entry) and not (own.sealed and _names_a_record(own, entry))
    return facts.at(
        "cq_dangling",
        INFO if left_over else WARN,
        at,
        begin,
        begin + max(1, int(entry["entry_size"])),
        topic=entry["topic"],
        queue_id=entry["queue_id"],
        queue_offset=entry["queue_offset"],
        expected="no entry: the log has no record of this place",
        found=_said(entry),
        records=1,
    )
