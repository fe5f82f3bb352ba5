"""Which segments need not be read again? Digests of sealed segments, kept between audits with size and mtime.

A disk that rots does not change a file's mtime: what was trusted is said in the report, and a full audit
reads everything again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from audit.findings import INFO, Finding
from audit.intervals import Interval
from audit.reading.layout import Replica, Segment
from audit.reading.storage import open_storage, shown
from audit.tables import DIGEST, Task
from model.errors import ConfigError

STATE: Final = pa.schema(
    [
        ("location", pa.string()),
        ("file", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("clean", pa.bool_()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("digest", pa.binary()),
    ]
)


class Trust:
    """Digests of an earlier audit for segments that are full and have not changed since."""

    def __init__(self, state: Path | None, replicas: list[Replica]) -> None:
        self._state = state
        self._replicas = replicas
        self._stamps: dict[tuple[str, str], tuple[int, int]] = {}
        self._known: dict[tuple[str, str], dict[Interval, bytes]] = {}
        self._clean: set[tuple[str, str]] = set()
        self._learned: list[dict[str, Any]] = []
        if state is None:
            return
        for replica in replicas:
            storage = open_storage(replica.location)
            try:
                for segment in self._sealed(replica):
                    stamp = (storage.size(segment.file), storage.mtime_ns(segment.file))
                    self._stamps[shown(replica.location), segment.file] = stamp
            finally:
                storage.close()
        if state.exists():
            self._read(state)

    @staticmethod
    def _sealed(replica: Replica) -> list[Segment]:
        return [s for s in replica.segments if replica.segment_end(s) <= replica.end]

    def _read(self, state: Path) -> None:
        try:
            rows = pq.read_table(state, schema=STATE).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{state}: not the state of an earlier audit: {error}; use --full") from None
        for row in rows:
            key = (row["location"], row["file"])
            if self._stamps.get(key) == (row["size"], row["mtime_ns"]):
                self._known.setdefault(key, {})[row["start"], row["end"]] = row["digest"]
                if row["clean"]:
                    self._clean.add(key)

    def split(self, planned: list[Task]) -> tuple[pa.Table, list[Task]]:
        """Digests already known, and the tasks still to run."""
        rows: list[dict[str, Any]] = []
        todo = []
        for task in planned:
            known = self._known.get((shown(task.location), task.file), {})
            inside = sorted(k for k in known if task.start <= k[0] and k[1] <= task.end)
            edges = [task.start, *(end for _, end in inside)]
            whole = [start for start, _ in inside] == edges[:-1] and edges[-1] == task.end
            if whole and set(task.cuts) <= set(edges):
                rows += [
                    {"replica": task.replica, "start": a, "end": b, "digest": known[a, b]} for a, b in inside
                ]
            else:
                todo.append(task)
        return pa.Table.from_pylist(rows, schema=DIGEST), todo

    def learn(self, planned: list[Task], table: pa.Table) -> None:
        """Keep the digests of sealed segments for the next audit."""
        if self._state is None:
            return
        files = {(t.replica, t.segment_base): t for t in planned}
        size = max((r.segment_bytes for r in self._replicas), default=1) or 1
        for row in table.to_pylist():
            base = row["start"] // size * size
            task = files.get((row["replica"], base))
            if task is None or (shown(task.location), task.file) not in self._stamps:
                continue
            stamp = self._stamps[shown(task.location), task.file]
            self._learned.append(
                {
                    "location": shown(task.location),
                    "file": task.file,
                    "size": stamp[0],
                    "mtime_ns": stamp[1],
                    "start": row["start"],
                    "end": row["end"],
                    "digest": row["digest"],
                }
            )

    def skip(self, reference: int, wanted: list[Interval]) -> tuple[list[Interval], list[str]]:
        """``wanted`` without the reference's oldest segments found clean before, and their names."""
        replica = self._replicas[reference]
        until = replica.start
        names = []
        for segment in self._sealed(replica):
            if segment.base != until or (shown(replica.location), segment.file) not in self._clean:
                break
            until = replica.segment_end(segment)
            names.append(f"{replica.name}/{segment.name}")
        return [(max(a, until), b) for a, b in wanted if b > until], names

    def save(self, findings: list[Finding]) -> None:
        if self._state is None:
            return
        names = {shown(r.location): r for r in self._replicas}
        rows = []
        for row in self._learned:
            replica = names[row["location"]]
            base = int(row["file"].rpartition("/")[2])
            end = base + replica.segment_bytes
            clean = not any(
                f.severity != INFO and (f.phys_offset < 0 or f.overlaps(base, end)) for f in findings
            )
            rows.append({**row, "clean": clean})
        temporary = self._state.with_suffix(".tmp")
        pq.write_table(pa.Table.from_pylist(rows, schema=STATE), temporary)
        temporary.replace(self._state)
