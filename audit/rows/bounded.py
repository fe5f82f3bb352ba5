"""Findings of which there may be as many as messages: the first are rows, the rest is counted.

The others go to a table, ``unlisted.parquet``, as they are found; what is in memory is the listed rows, and
one row for each group of the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from audit.findings import SCHEMA, UNLISTED, Finding

LISTED_MAX: Final = 1000
"""Of one kind that are listed one by one."""
_ROWS: Final = 2_000
_GROUP_ROWS: Final = 100_000
"""Of the file: what says where a group's columns are stays in memory until its end."""

__all__ = ["LISTED_MAX", "NO_REST", "UNLISTED", "Bounded", "Rest", "Sink", "Unlisted"]

Sink = Callable[[Finding], None]


class Unlisted:
    """Writes findings that are only counted to a file, which is made with the first. A context manager."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._waiting: list[dict[str, Any]] = []
        self._group: list[pa.Table] = []
        self._writer: Any = None
        self._file: Any = None
        self.rows = 0

    def __enter__(self) -> Unlisted:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._write()
        self._close()

    def begin(self) -> None:
        """Forget what was written: it is found again, or is not there."""
        self._waiting.clear()
        self._group.clear()
        self.rows = 0
        self._close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = None

    def add(self, finding: Finding) -> None:
        self.rows += 1
        if self._path is not None:
            self._waiting.append(finding.to_json())
            if len(self._waiting) >= _ROWS:
                self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._group.append(pa.Table.from_pylist(self._waiting, schema=SCHEMA))
            self._waiting.clear()
        if len(self._group) * _ROWS >= _GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if not self._group or self._path is None:
            return
        if self._writer is None:
            self._file = self._path.open("wb")  # a path need not be text for Arrow
            self._writer = pq.ParquetWriter(self._file, SCHEMA)
        self._writer.write_table(pa.concat_tables(self._group))
        self._group.clear()


class Bounded:
    """Takes findings one by one; of each kind those of the lowest ``rank`` are listed.

    ``name`` gives the row of the others of a group its words; a group is a kind, replica, severity, number of
    copies, whether ambiguous, and what ``by`` names of topic and queue id. ``each_replica``: of each kind and
    replica so many are listed. ``linked`` gives a row that is not listed its cause, if it is known: those
    with one are a group, too."""

    def __init__(
        self,
        unlisted: Sink,
        name: str,
        *,
        by: tuple[str, ...],
        each_replica: bool = False,
        linked: Callable[[Finding], Finding] = lambda finding: finding,
        most: int | None = None,
    ) -> None:
        self._sink = unlisted
        self._name = name
        self._by = by
        self._each_replica = each_replica
        self._linked = linked
        self._most = LISTED_MAX if most is None else most
        self._listed: dict[tuple[str, str], list[tuple[int, int, Finding]]] = {}
        self._others: dict[tuple[Any, ...], Finding] = {}
        self._taken = 0

    def add(self, rank: int, finding: Finding) -> None:
        heap = self._listed.setdefault((finding.kind, finding.replica if self._each_replica else ""), [])
        self._taken += 1
        item = (-rank, -self._taken, finding)
        if len(heap) < self._most:
            heapq.heappush(heap, item)
        else:
            self._count(heapq.heappushpop(heap, item)[2])

    def take(self, findings: Iterable[Finding]) -> None:
        """All of them, ranked by where they stand."""
        for f in findings:
            self.add(f.phys_offset, f)

    def _count(self, f: Finding) -> None:
        f = self._linked(f)
        self._sink(f)
        topic = f.topic if "topic" in self._by else ""
        queue_id = f.queue_id if "queue_id" in self._by else -1
        key = (f.kind, f.replica, f.severity, bool(f.caused_by), f.copies, f.ambiguous, topic, queue_id)
        known = self._others.get(key)
        if known is None:
            about = replace(f, topic=topic, queue_id=queue_id, queue_offset=-1, uniq_key="")
            self._others[key] = replace(about, records=1)
            return
        first = f if 0 <= f.phys_offset < known.phys_offset or known.phys_offset < 0 else known
        self._others[key] = replace(
            known,
            segment=first.segment,
            epoch=first.epoch,
            phys_offset=first.phys_offset,
            caused_by=first.caused_by,
            until=max(known.until, f.until),
            records=known.records + 1,
        )

    def findings(self) -> Iterator[Finding]:
        """The listed ones by rank, then the groups of the others."""
        for heap in self._listed.values():
            for _, _, finding in sorted(heap, reverse=True, key=lambda item: item[:2]):
                yield finding
        for _, f in sorted(self._others.items()):
            yield replace(f, expected="one row each", found=f"{f.records} more {self._name}: {UNLISTED}")


@dataclass(frozen=True, slots=True)
class Rest:
    """Where rows go that are not listed, and what gives them their causes, as far as these are known."""

    unlisted: Sink
    linked: Callable[[Finding], Finding] = lambda finding: finding

    def bounded(self, name: str, *, by: tuple[str, ...], each_replica: bool = False) -> Bounded:
        return Bounded(self.unlisted, name, by=by, each_replica=each_replica, linked=self.linked)


NO_REST: Final = Rest(lambda finding: None)
