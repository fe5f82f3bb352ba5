"""Which files made of the log were read on their own replica, and are as they were?

Equal logs say nothing of the queues and indexes beside them. So these are known by replica: an index file by
size and time, a queue's file, which grows, also by what it began with. What is not known is read: of an
index file the file itself, of a queue's file the records that it names or named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from audit.earlier.carried import bytes_of, replace, rows_of
from audit.findings import INFO, Finding, as_text
from audit.reading.derived.index_files import IndexTask
from audit.reading.derived.queue_files import QueueFile, look
from audit.reading.derived.queue_prefix import PrefixTask
from audit.reading.layout import Replica
from audit.reading.storage import Storage, open_storage
from audit.sources.location import identity
from audit.tables import Engine

FILES: Final = pa.schema(
    [
        ("location", pa.string()),
        ("file", pa.string()),  # empty: the replica itself, whose folders were looked at
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("bytes", pa.int64()),
        ("digest", pa.string()),
        ("lowest", pa.int64()),
        ("reach", pa.int64()),
        ("asked", pa.string()),
    ]
)
NAME: Final = "files.parquet"
NOWHERE: Final = 1 << 62
Stamp = tuple[int, int]
"""Size and mtime in ns."""


@dataclass(frozen=True, slots=True)
class Known:
    """``bytes``, ``digest``, ``lowest``, ``reach`` of a queue's file: PREFIX; ``asked`` of an index file: for
    which stretch of the log it was read. Of the replica itself ``lowest`` and ``reach`` are the log that it
    held."""

    location: str
    file: str
    size: int = -1
    mtime_ns: int = -1
    bytes: int = 0
    digest: str = ""
    lowest: int = -1
    reach: int = -1
    asked: str = ""

    @property
    def stamp(self) -> Stamp:
        return self.size, self.mtime_ns


def of(replica: Replica) -> str:
    """Two replicas that are shown alike share no trust."""
    return as_text(f"{replica.name} {identity(replica.location)}")


class TrustedFiles:
    """``path``: what an earlier audit left; None keeps nothing, and knows nothing."""

    def __init__(self, path: Path | None, replicas: Sequence[Replica]) -> None:
        self._path = path
        self._replicas = replicas
        rows = [Known(**row) for row in rows_of(path, FILES)] if path is not None else []
        self._known = {(row.location, row.file): row for row in rows}
        self._now: dict[tuple[str, str], Known] = {}
        self._stamps: dict[tuple[int, str], Stamp] = {}

    def doubted(self, engine: Engine) -> int:
        """The first record that a queue may name otherwise than an earlier audit read on that replica: what
        comes before it may be trusted. Raises OSError."""
        if self._path is None:
            return 0
        doubts = [NOWHERE]
        asked: dict[tuple[int, str], tuple[PrefixTask, Stamp]] = {}
        for at, r in enumerate(self._replicas):
            if r.empty:
                continue
            base = self._known.get((of(r), ""))
            if base is None or r.closed or r.start < base.lowest:
                doubts.append(r.start)
            elif base.reach < r.end:  # its queues were not asked for what it did not hold then
                doubts.append(base.reach)
            if not r.closed:  # what cannot be read is not known
                doubts += self._look(at, asked)
        found = engine.prefixes([task for task, _ in asked.values()]).to_pylist()
        doubts += [self._doubt(row) for row in found]
        for row in found:
            _, stamp = asked.pop((row["replica"], row["file"]))
            self._keep(row, stamp)
        doubts += [self._replicas[at].start for at, _ in asked]  # removed meanwhile
        return min(doubts)

    def _look(self, at: int, asked: dict[tuple[int, str], tuple[PrefixTask, Stamp]]) -> list[int]:
        """Where files began that are gone; of those that are not known, or changed, the task is added."""
        r = self._replicas[at]
        there: set[str] = set()
        for file, stamp in self._queue_files(r):
            there.add(file.file)
            known = self._known.get((of(r), file.file))
            if known is not None and known.stamp == stamp and stamp[1] > 0:
                self._now[of(r), file.file] = known
                continue
            prefix = (known.bytes, known.digest) if known is not None else ()
            asked[at, file.file] = PrefixTask(at, r.location, file.file, r.start, *prefix), stamp
        self._now[of(r), ""] = Known(of(r), "", lowest=r.start, reach=r.end)
        return self._gone(r, there)

    def _queue_files(self, r: Replica) -> list[tuple[QueueFile, Stamp]]:
        folder = look(r.location) if r.queues else None
        storage = open_storage(r.location)
        try:
            return [(file, _stamp(storage, file.file)) for file in (folder.files if folder else ())]
        finally:
            storage.close()

    def _gone(self, r: Replica, there: set[str]) -> list[int]:
        """Where files began that are there no more; those that retention took named nothing of this log."""
        return [
            max(known.lowest, r.start)
            for (location, file), known in self._known.items()
            if location == of(r) and known.digest and file not in there and known.reach >= r.start
        ]

    def _doubt(self, row: dict[str, Any]) -> int:
        r = self._replicas[row["replica"]]
        known = self._known.get((of(r), row["file"]))
        if row["same"]:
            return NOWHERE if row["added"] < 0 else int(row["added"])
        before = NOWHERE if known is None or known.reach < r.start else max(known.lowest, r.start)
        return min(before, NOWHERE if row["lowest"] < 0 else int(row["lowest"]))

    def _keep(self, row: dict[str, Any], stamp: Stamp) -> None:
        location = of(self._replicas[row["replica"]])
        told = {name: row[name] for name in ("bytes", "lowest", "reach")}
        self._now[location, row["file"]] = Known(
            location, row["file"], *stamp, digest=row["digest"].hex(), **told
        )

    def indexed(self, task: IndexTask) -> bool:
        """Was this file read for the same stretch of the log, and nothing wrong with it? Raises OSError."""
        stamp = self._stamp_of(task)
        known = self._known.get((of(self._replicas[task.replica]), task.file))
        if known is None or stamp[1] <= 0 or (known.stamp, known.asked) != (stamp, _asked(task)):
            return False
        self._now[known.location, known.file] = known
        return True

    def learn(self, tasks: Iterable[IndexTask], wrong: set[tuple[int, str]]) -> None:
        """Of these index files, but for those of ``wrong``, (replica, file), all is right."""
        for task in tasks:
            stamp = self._stamps.get((task.replica, task.file))
            if stamp is not None and task.file and (task.replica, task.file) not in wrong:
                location = of(self._replicas[task.replica])
                self._now[location, task.file] = Known(location, task.file, *stamp, asked=_asked(task))

    def _stamp_of(self, task: IndexTask) -> Stamp:
        """Taken before it is read."""
        if self._path is None:
            return 0, 0
        storage = open_storage(task.location)
        try:
            stamp = self._stamps[task.replica, task.file] = _stamp(storage, task.file)
        finally:
            storage.close()
        return stamp

    def save(self, findings: Iterable[Finding]) -> None:
        """A queue whose entries are wrong is read from its begin again: what they name may be anywhere."""
        if self._path is None:
            return
        names = {r.name: of(r) for r in self._replicas}
        wrong = {
            (names.get(f.replica, ""), f"consumequeue/{f.topic}/{f.queue_id}")
            for f in findings
            if f.kind == "cq_wrong" and f.severity != INFO
        }
        rows = [
            asdict(row)
            for row in self._now.values()
            if (row.location, row.file.rpartition("/")[0]) not in wrong
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace(self._path, bytes_of(pa.Table.from_pylist(rows, schema=FILES)))


def _asked(task: IndexTask) -> str:
    return f"{task.begin} {task.until} {task.slots} {task.before}"


def _stamp(storage: Storage, file: str) -> Stamp:
    """Zeros: it is gone, or no time is told."""
    try:
        return storage.size(file), storage.mtime_ns(file)
    except FileNotFoundError:
        return 0, 0
