"""What do the digests of a segment say as one? What is kept of a segment between audits, and compared first.

A digest a MiB is a row a MiB: of a segment whose copies agree, one of all of them says as much. The driver of
a cluster gets no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from audit.tables import FOLDED, Task

BETWEEN: Final = ","
WITHIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is planned of one segment of one replica, in tasks that follow each other."""

    replica: int
    file: str
    base: int
    start: int
    end: int
    tasks: tuple[Task, ...]

    @property
    def bytes(self) -> int:
        return self.end - self.start


class Folded(NamedTuple):
    """What a FOLDED row says."""

    ranges: int
    shortest: int
    longest: int
    digest: bytes

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Folded:
        return cls(*(row[name] for name in cls._fields))

    def compared(self, of: Stretch) -> dict[str, Any]:
        """A COMPARED row of a stretch that all have alike."""
        return {
            "replica": of.replica,
            "start": of.start,
            "end": of.end,
            "digest": self.digest,
            "ranges": self.ranges,
        }


def stretches(planned: Iterable[Task]) -> tuple[list[list[Stretch]], list[Task]]:
    """Segments of which each replica that is asked has the same stretch in one piece, and the tasks of all
    others: where logs begin or end, or lack something."""
    by_base: dict[int, list[Task]] = {}
    for task in planned:
        by_base.setdefault(task.segment_base, []).append(task)
    whole: list[list[Stretch]] = []
    rest: list[Task] = []
    for base, tasks in sorted(by_base.items()):
        found = [_stretch(base, list(of)) for _, of in groupby(tasks, key=lambda task: task.replica)]
        alike = {(one.start, one.end) if one else None for one in found}
        if len(alike) == 1 and None not in alike:
            whole.append([one for one in found if one is not None])
        else:
            rest += tasks
    return whole, rest


def _stretch(base: int, tasks: list[Task]) -> Stretch | None:
    tasks.sort(key=lambda task: task.start)
    if any(task.cuts for task in tasks) or any(a.end != b.start for a, b in pairwise(tasks)):
        return None
    return Stretch(tasks[0].replica, tasks[0].file, base, tasks[0].start, tasks[-1].end, tuple(tasks))


def fold(digests: pa.Table, segment_bytes: int) -> pa.Table:
    """FOLDED rows of DIGEST rows, as ``audit.engines.on_spark.digests`` makes them."""
    columns = (digests[name].to_pylist() for name in ("replica", "start", "end", "digest"))
    of: dict[tuple[int, int], list[tuple[int, int, bytes]]] = {}
    for replica, start, end, digest in zip(*columns, strict=True):
        of.setdefault((replica, start // segment_bytes), []).append((start, end, digest))
    rows = [_folded(replica, sorted(ranges)) for (replica, _), ranges in sorted(of.items())]
    return pa.Table.from_pylist(rows, schema=FOLDED)


def _folded(replica: int, ranges: list[tuple[int, int, bytes]]) -> dict[str, Any]:
    text = BETWEEN.join(WITHIN.join((str(start), str(end), raw.hex())) for start, end, raw in ranges)
    return {
        "replica": replica,
        "start": ranges[0][0],
        "end": ranges[-1][1],
        "ranges": len(ranges),
        "shortest": min(len(raw) for _, _, raw in ranges),
        "longest": max(len(raw) for _, _, raw in ranges),
        "digest": hashlib.sha256(text.encode()).digest(),
    }
