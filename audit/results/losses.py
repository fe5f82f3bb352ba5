"""What is lost or different, in which stretches, and since when? Many findings of one fault are one window.

A window is findings of one kind on one replica, in one queue and one epoch, with less than a segment of log
between one and the next. Its times are those at which the records there were stored, by any replica that
still says so: a lost message lies between the records before and behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from audit.compare import covering_start
from audit.findings import ERROR, INFO, WARN, Finding, without_absent
from audit.reading.layout import Replica, bytes_at, segment_reader
from audit.reading.record import MAGIC_V1, MAGIC_V2
from audit.reading.scan import sync
from audit.reading.storage import open_storage

TIMED_MAX: Final = 100
"""Windows that are given times; each costs a few reads, of 8 MiB at most."""
_HEAD_BYTES: Final = 80
_NEAR_BYTES: Final = 1024 * 1024
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


def windows(findings: Iterable[Finding], replicas: Sequence[Replica]) -> list[Window]:
    """What is lost first, then by severity, kind and place. Raises nothing: what cannot be read has no
    time."""
    size = max((r.segment_bytes for r in replicas), default=0)
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for f in findings:
        lost = f.kind == "acked_missing" and f.copies == 0
        if f.severity != INFO or lost:
            file = f.segment if f.phys_offset < 0 else ""
            key = (f.kind, f.severity, f.replica, f.topic, f.queue_id, f.epoch, f.copies, f.ambiguous, file)
            groups.setdefault(key, []).append(f)
    found = [_window(run) for rows in groups.values() for run in _runs(rows, size)]
    found.sort(key=lambda w: (not w.lost, _RANK[w.severity], w.kind, w.replica, w.phys_offset, w.topic))
    return [_timed(w, replicas) for w in found[:TIMED_MAX]] + found[TIMED_MAX:]


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
    first = run[0]
    keys = [f.uniq_key for f in run if f.uniq_key]
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
        keys[0] if keys else "",
        keys[-1] if keys else "",
        min(places, default=-1),
        max(places, default=-1),
        first.segment if first.phys_offset < 0 else "",
    )


def _timed(w: Window, replicas: Sequence[Replica]) -> Window:
    if w.phys_offset < 0:
        return w
    since = stored_ms(replicas, w.phys_offset)
    until = stored_ms(replicas, max(w.phys_offset, w.until - 1), last=True) if w.records > 1 else since
    values = {**asdict(w), "since_ms": since, "until_ms": max(since, until)}
    return Window(**values)


def stored_ms(replicas: Sequence[Replica], offset: int, *, last: bool = False) -> int:
    """When the record that begins at a physical offset was stored, else the next one behind it, else the one
    before; with ``last`` the one that covers the offset. -1 if no replica tells."""
    for near in (_before, _behind) if last else (_at, _behind, _before):
        for r in replicas:
            try:
                found = near(r, offset)
            except OSError:
                continue
            if found > 0:
                return found
    return -1


def _at(r: Replica, offset: int) -> int:
    return _stamp(bytes_at(r, offset, _HEAD_BYTES), offset) if r.start <= offset < r.end else -1


def _behind(r: Replica, offset: int) -> int:
    segment = r.segment_at(offset)
    if segment is None or not r.start <= offset < r.end:
        return -1
    data = bytes_at(r, offset, _NEAR_BYTES)
    at = sync(data, 0, offset, r.segment_end(segment))
    return _stamp(data[at : at + _HEAD_BYTES], offset + at) if at >= 0 else -1


def _before(r: Replica, offset: int) -> int:
    if r.empty:
        return -1
    last = min(offset, r.end - 1)
    segment = r.segment_at(last)
    if segment is None:
        return -1
    storage = open_storage(r.location)
    try:
        start = covering_start(segment_reader(storage, segment), last, segment.base, r.segment_end(segment))
    finally:
        storage.close()
    return _stamp(bytes_at(r, start, _HEAD_BYTES), start)


def _stamp(head: bytes, offset: int) -> int:
    """The store timestamp of the record that ``head`` begins; -1 when it begins none."""
    if len(head) < _HEAD_BYTES:
        return -1
    magic, physical, sys_flag = struct.unpack_from(">I20xqi", head, 4)
    if magic not in (MAGIC_V1, MAGIC_V2) or physical != offset:
        return -1
    return int(struct.unpack_from(">q", head, 68 if sys_flag & 0x10 else 56)[0])
