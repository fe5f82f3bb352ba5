"""Which segments need not be read again? What is known of sealed ones is kept between audits, with size and
mtime: their digests, and (``audit.earlier.carried``) the queues and keys of those in which nothing was wrong.

A disk that rots does not change a file's mtime: what was trusted is said in the report, and a full audit
reads everything again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from audit.earlier.carried import NOTHING, Carries, Clean, bytes_of, replace, rows_of
from audit.earlier.folding import Folded, Stretch
from audit.earlier.trusted_files import NAME, TrustedFiles
from audit.earlier.trusted_files import of as _of
from audit.findings import INFO, Finding
from audit.reading.layout import Replica, Segment
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval, joined
from audit.tables import Engine, ScannedLog, Task, View

STATE: Final = pa.schema(
    [
        ("location", pa.string()),
        ("file", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("ranges", pa.int64()),
        ("shortest", pa.int32()),
        ("longest", pa.int32()),
        ("digest", pa.binary()),
    ]
)
"""One row a segment of a replica: of all digests of its ranges as one (``audit.earlier.folding``)."""
File = tuple[str, str]
"""A replica's name and location as ``_of`` tells them, and a path below it."""
Stamp = tuple[int, int]
"""Size and mtime in ns."""


@dataclass(slots=True)
class Trusted:
    """What an audit took from earlier ones, as its report says it."""

    border: int = 0  # no record before this offset was read
    segments: list[str] = field(default_factory=list)  # which those are, as replica/segment
    since: str = ""  # when the first of them was read
    queues: int = 0  # ends of queues, and
    keys: int = 0  # keys of messages that were carried across the border
    digests: list[str] = field(default_factory=list)  # files whose bytes were not read
    changed: dict[str, str] = field(default_factory=dict)  # files that did not stay as they were

    def to_json(self) -> dict[str, Any]:
        """Without the segments, which the summary had before it had this."""
        return {
            "border": self.border,
            "since": self.since,
            "queues": self.queues,
            "keys": self.keys,
            "digests": self.digests,
            "changed": self.changed,
        }


def forget(state: Path) -> bool:
    """Take away what earlier audits left, whatever it says; whether there was anything. Raises OSError."""
    files = [state, *state.with_suffix("").glob("*.parquet")]
    there = [path for path in files if path.exists()]
    for path in there:
        path.unlink()
    return bool(there)


class Trust:
    """What earlier audits knew of segments that are full and have not changed since."""

    def __init__(self, state: Path | None, replicas: list[Replica]) -> None:
        self._state = state
        self._replicas = replicas
        self._stamps: dict[File, Stamp] = {}
        self._known: dict[File, dict[Interval, Folded]] = {}
        self._former: dict[File, dict[Interval, Folded]] = {}  # of files that changed since
        self._learned: list[dict[str, Any]] = []
        self._carries = Carries(state.with_suffix("") if state else Path())
        self._clean: dict[File, Clean] = {}
        self.carried = NOTHING
        self.said = Trusted()
        self.files = TrustedFiles(state.with_suffix("") / NAME if state else None, replicas)
        if state is None:
            return
        for replica in replicas:
            storage = open_storage(replica.location)
            try:
                for segment in _sealed(replica):
                    stamp = (storage.size(segment.file), storage.mtime_ns(segment.file))
                    if stamp[1] > 0:  # else no time is told, and a size alone says nothing
                        self._stamps[_of(replica), segment.file] = stamp
            finally:
                storage.close()
        self._read(state)

    def _read(self, state: Path) -> None:
        self._clean = {clean.key: clean for clean in self._carries.read()}
        for row in rows_of(state, STATE):
            file = (row["location"], row["file"])
            same = self._stamps.get(file) == (row["size"], row["mtime_ns"])
            of = self._known if same else self._former
            if row["ranges"] is not None:  # else an older release kept a row a MiB
                of.setdefault(file, {})[row["start"], row["end"]] = Folded.of(row)
        for file, clean in list(self._clean.items()):
            if self._stamps.get(file) != clean.stamp:
                self._former.setdefault(file, {})
                del self._clean[file]

    @property
    def keeps(self) -> bool:
        """Is what the digests say kept for an audit to come?"""
        return self._state is not None

    @property
    def segment_bytes(self) -> int:
        return _segment_bytes(self._replicas)

    def kept(self, whole: list[list[Stretch]]) -> dict[Stretch, Folded]:
        """What is known of stretches that are the same as when they were read."""
        found = {}
        for one in (one for of in whole for one in of):
            known = self._known.get((_of(self._replicas[one.replica]), one.file), {})
            if (one.start, one.end) in known:
                found[one] = known[one.start, one.end]
        return found

    def learn(self, found: dict[Stretch, Folded], *, read: Iterable[Stretch], rest: Iterable[Task]) -> None:
        """Keep what is known of sealed segments for the next audit. ``read``: stretches whose bytes were read
        now; ``rest``: tasks of other segments."""
        if self._state is None:
            return
        seen = {(one.replica, one.file) for one in read} | {(task.replica, task.file) for task in rest}
        files = {(one.replica, one.file) for one in found}
        self.said.digests = [
            f"{self._replicas[at].name}/{file.rpartition('/')[2]}" for at, file in sorted(files - seen)
        ]
        for one, folded in found.items():
            file = (_of(self._replicas[one.replica]), one.file)
            if file not in self._stamps:
                continue
            size, mtime_ns = self._stamps[file]
            row = {"location": file[0], "file": file[1], "size": size, "mtime_ns": mtime_ns}
            self._learned.append({**row, "start": one.start, "end": one.end, **folded._asdict()})

    def carry(self, differ: Iterable[Interval], engine: Engine, *, ledger: bool) -> int:
        """Trust the oldest segments in which nothing was wrong, on which all replicas still agree, and whose
        queues are on each as they were read there. Returns where the rest begins, which has to be read; 0
        when nothing is trusted, as with a ``ledger``. Raises OSError."""
        if self._state is None:
            return 0
        self._say_changed()
        doubted = self.files.doubted(engine)
        if ledger:
            return 0
        differs = joined(differ)
        held = [r for r in self._replicas if not r.empty]
        until = first = min((r.start for r in held), default=0)
        trusted: list[tuple[str, Clean]] = []
        # Not where a queue may not be as it was.
        while (found := self._clean_at(held, until)) and found[1].end <= doubted:
            if not self._is_as_it_was(held, differs, until, found[1].end):
                break
            trusted.append(found)
            until = found[1].end
        if until == first:
            return 0
        self._take(trusted, until)
        return until

    def _is_as_it_was(self, held: list[Replica], differs: list[Interval], begin: int, end: int) -> bool:
        """On all replicas? What is gone of one's files is compared with nothing."""
        if any(a < end and begin < b for r in held for a, b in r.gaps):
            return False
        differ_here = any(a < end and begin < b for a, b in differs)
        return not differ_here or self._known_alike(held, begin, end)

    def _take(self, trusted: list[tuple[str, Clean]], until: int) -> None:
        self.carried = self._carries.load([clean for _, clean in trusted])
        self.said.border = until
        self.said.segments = [name for name, _ in trusted]
        self.said.since = min(clean.since for _, clean in trusted)
        self.said.queues, self.said.keys = len(self.carried.queues), self.carried.keys

    def _clean_at(self, held: list[Replica], begin: int) -> tuple[str, Clean] | None:
        """The segment that begins there, of a replica of which it is known to be clean."""
        for r in held:
            segment = next((s for s in _sealed(r) if s.base == begin), None)
            clean = self._clean.get((_of(r), segment.file)) if segment else None
            if segment is not None and clean is not None and clean.end == r.segment_end(segment):
                return f"{r.name}/{segment.name}", clean
        return None

    def _known_alike(self, held: list[Replica], begin: int, end: int) -> bool:
        """Is each replica's file of the stretch as it was when they all held the same records in it?"""
        holders = [r for r in held if r.start < end and begin < r.end]
        found = [self._clean_at([r], begin) for r in holders]
        return len({clean[1].content if clean else "" for clean in found}) == 1 and None not in found

    def _say_changed(self) -> None:
        """Files that were known once and did not stay as they were; those that retention took are none."""
        now: dict[File, dict[Interval, Folded]] = {}
        for row in self._learned:
            file = (row["location"], row["file"])
            now.setdefault(file, {})[row["start"], row["end"]] = Folded.of(row)
        for r in self._replicas:
            for segment in r.segments:
                file = (_of(r), segment.file)
                if file not in self._former or file in self._known:
                    continue
                before, after = self._former[file], now.get(file, {})
                if file not in self._stamps:
                    how = "no longer full" if segment not in _sealed(r) else "its time is not told"
                elif not before or before.keys() != after.keys():
                    how = "not known how"
                else:
                    how = "the same bytes" if before == after else "other bytes"
                self.said.changed[f"{r.name}/{segment.name}"] = how

    def save(self, findings: list[Finding], scanned: ScannedLog, unions: list[View], waits: int) -> None:
        """Keep what was learned, and what full segments without a fault hold. ``waits``: the first record
        that a queue may lack still, so whether it comes was not seen."""
        if self._state is None:
            return
        counted = [f for f in findings if f.severity != INFO or f.caused_by]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        size = _segment_bytes(self._replicas)
        held = {
            begin: holders
            for begin, holders in sorted(self._holders().items())
            if begin + size <= waits and not any(_concerns(f, begin, begin + size) for f in counted)
        }
        rows = [
            Clean(_of(r), segment.file, *stamp, begin + size, content, since or now)
            for begin, (content, since) in self._contents(held, size, scanned, unions).items()
            for r, segment in held[begin]
            if (stamp := self._stamps.get((_of(r), segment.file)))
        ]
        self._carries.write(rows)
        self.files.save(findings)
        replace(self._state, bytes_of(pa.Table.from_pylist(self._learned, schema=STATE)))

    def _holders(self) -> dict[int, list[tuple[Replica, Segment]]]:
        """The replicas that have each full segment, by its first offset."""
        found: dict[int, list[tuple[Replica, Segment]]] = {}
        for r in self._replicas:
            for segment in _sealed(r):
                found.setdefault(segment.base, []).append((r, segment))
        return found

    def _contents(
        self,
        held: dict[int, list[tuple[Replica, Segment]]],
        size: int,
        scanned: ScannedLog,
        unions: list[View],
    ) -> dict[int, tuple[str, str]]:
        """What segments hold, and since when that is known: empty if they were read now."""
        found: dict[int, tuple[str, str]] = {}
        read: dict[View, list[int]] = {}
        for begin, holders in held.items():
            if begin < self.said.border:
                clean = self._clean_at([r for r, _ in holders], begin)
                if clean is not None:
                    found[begin] = clean[1].content, clean[1].since
            elif (view := _view_of(unions, self._replicas, begin, begin + size)) is not None:
                read.setdefault(view, []).append(begin)
        for view, begins in read.items():
            kept = self._carries.keep(scanned, view, begins, size)
            found |= {begin: (content, "") for begin, content in kept.items()}
        return found


BESIDE: Final = frozenset(
    {"file_corrupt", "file_missing", "files_unseen", "epoch_file_corrupt", "consumer_offset_beyond"}
)
"""What each audit looks at, whatever it trusts."""


def _concerns(f: Finding, begin: int, end: int) -> bool:
    """Would an audit that trusts this stretch not find it again? A gap shows in the record behind it, as the
    last place of each queue is carried."""
    if f.kind == "queue_gap" and f.phys_offset >= 0:
        return begin < f.until <= end
    return f.overlaps(begin, end) or (f.phys_offset < 0 and f.kind not in BESIDE)


def _sealed(replica: Replica) -> list[Segment]:
    return [s for s in replica.segments if replica.segment_end(s) <= replica.end]


def _segment_bytes(replicas: list[Replica]) -> int:
    return max((r.segment_bytes for r in replicas), default=1) or 1


def _view_of(unions: list[View], replicas: list[Replica], begin: int, end: int) -> View | None:
    """The view in which a stretch was read."""
    for view in unions:
        if replicas[view.base].covers(begin, end) or replicas[view.replica].covers(begin, end):
            return view
    return None
