"""IndexFiles that do not agree with their own replica's log: ``index_wrong``, ``index_missing``.

Warnings: an index is made of the log, so no message is lost, but a look-up by key does not find it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from audit.findings import INFO, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.made.entries import tail_from
from audit.reading.derived.index_files import Head, IndexTask, Log, last_offset, shapes
from audit.reading.layout import Replica
from audit.reading.small.beside import Beside
from audit.reading.storage import open_storage

Shape = tuple[int, int]
"""Bytes of a file, and its slots."""

KINDS: Final = frozenset({"index_wrong", "index_missing"})


def tasks(replicas: Sequence[Replica], looked: dict[int, Beside]) -> list[IndexTask]:
    """What has to be read: one task a file, and one for a log that no file has. None of a store without any
    file unless another one has files, or its own note says what was indexed. Raises OSError."""
    of = {at: _heads(replicas[at]) for at in looked}
    shapes: Counter[Shape] = Counter(
        (head.size, slots) for rows in of.values() for head, slots in rows if slots
    )
    found: list[IndexTask] = []
    if not shapes:
        for at, rows in sorted(of.items()):
            found += _shapeless(at, replicas[at], rows) if rows else _noted(at, replicas[at], looked[at])
        return found
    for at, rows in sorted(of.items()):
        r = replicas[at]
        if not r.empty:
            own: Counter[Shape] = Counter((head.size, slots) for head, slots in rows if slots)
            # All files of a store have one size, which its configuration gives.
            shape = max(own or shapes, key=lambda shape: (own[shape], shapes[shape], shape))
            found += _of_replica(
                at, r, [head for head, _ in rows], shape, _end(r, looked[at]), looked[at].indexed
            )
    return found


def removed(tasks: Sequence[IndexTask]) -> bool:
    """Was any of the files removed since they were planned, as retention does? Raises OSError."""
    for location in dict.fromkeys(task.location for task in tasks):
        storage = open_storage(location)
        try:
            files = {f for task in tasks if task.location == location for f in (task.file, task.before) if f}
            if not all(storage.exists(file) for file in files):
                return True
        finally:
            storage.close()
    return False


def _shapeless(at: int, r: Replica, rows: list[tuple[Head, int]]) -> list[IndexTask]:
    """No file begins with the record it says: those that have entries of what the log holds are wrong."""
    return [
        IndexTask(at, r.location, head.file, 0, 0, 0, log_of(r))
        for head, _ in rows
        if head.following > 1 and r.start <= head.begin_offset < r.end
    ]


def _noted(at: int, r: Replica, own: Beside) -> list[IndexTask]:
    """A store without a file: what was indexed when its broker stopped, by its checkpoint."""
    return _of_replica(at, r, [], (0, 0), _end(r, own)) if own.indexed > 0 and not r.empty else []


def log_of(r: Replica) -> Log:
    return Log(r.start, r.end, r.segment_bytes, tuple((s.base, s.file) for s in r.segments))


def _heads(r: Replica) -> list[tuple[Head, int]]:
    storage, where = open_storage(r.location), log_of(r)
    try:
        return shapes(storage, where)
    finally:
        storage.close()


def _end(r: Replica, own: Beside) -> int:
    """Records before this offset must be indexed; -1: no more than there are entries of. Whose broker noted 0
    keeps no index."""
    if not r.clean:
        return -1
    return min(r.end, tail_from(r), own.indexed if own.indexed >= 0 else r.end)


def _of_replica(
    at: int, r: Replica, files: list[Head], shape: Shape, end: int, durable: int = -1
) -> list[IndexTask]:
    """``durable``: up to where the index was, whether its broker runs or not, by its checkpoint; a last file
    of which nothing is flushed is asked for that."""
    where, size, own_slots = log_of(r), *shape
    if not files:
        whole = IndexTask(at, r.location, "", 0, r.start, end, where)
        return [whole] if end > r.start else []
    found: list[IndexTask] = []
    begin, before = r.start, ""
    storage = open_storage(r.location)
    try:
        for number, head in enumerate(files):
            slots = own_slots if head.size == size else 0
            last = last_offset(storage, head, slots, begin, r.end) if slots else -1
            # The last message of a full file may have entries in the next one, which is asked for it.
            until = max(begin, last) if number + 1 < len(files) else max(begin, last + 1, end)
            if number + 1 == len(files) and not head.following and not r.clean:
                until = max(until, min(durable, r.end))
            found.append(
                IndexTask(at, r.location, head.file, slots, begin, until, where, before, not r.clean)
            )
            if last >= 0:
                begin, before = last, head.file
    finally:
        storage.close()
    return found


def findings(facts: Facts, table: pa.Table, looked: dict[int, Beside]) -> list[Finding]:
    return [_finding(facts, row, looked) for row in table.to_pylist()]


def _finding(facts: Facts, row: dict[str, Any], looked: dict[int, Beside]) -> Finding:
    at, begin = row["replica"], row["offset"]
    epochs = facts.replicas[at].epochs
    # RocketMQ cuts a log and leaves the index as it is.
    left_over = not looked[at].ours and len(epochs) > 1 and begin >= epochs[1][1]
    return of_row(facts, row, INFO if left_over else WARN)


def of_row(facts: Facts, row: dict[str, Any], severity: str) -> Finding:
    """What an INDEX row says, as a finding about its file."""
    names = ("topic", "queue_id", "queue_offset", "uniq_key", "expected", "found")
    columns = {name: row[name] for name in names}
    where = (row["replica"], row["offset"], row["until"])
    return replace(
        facts.at(row["kind"], severity, *where, **columns, records=1), segment=row["file"] or "index"
    )


def joined(findings: Sequence[Finding]) -> list[Finding]:
    """One row a file and kind of what no other finding explains."""
    rest = [f for f in findings if f.kind not in KINDS or f.caused_by]
    kept: dict[tuple[str, str, str, str], Finding] = {}
    for f in sorted(
        (f for f in findings if f.kind in KINDS and not f.caused_by), key=lambda f: (f.phys_offset, f.found)
    ):
        of = (f.kind, f.replica, f.segment, f.severity)
        first = kept.get(of)
        if first is None:
            kept[of] = f
            continue
        # A row about the file itself has no place; one with a place says more.
        base = f if first.phys_offset < 0 <= f.phys_offset else first
        until = max(first.until, f.until)
        kept[of] = replace(base, until=until, records=first.records + 1)
    return rest + list(kept.values())
