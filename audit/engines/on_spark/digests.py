"""In which ranges do replicas hold the same bytes? Asked where the digests are, so that the driver gets a row
a replica and stretch in which one answer stands, not one a range."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from audit.earlier.folding import fold
from audit.engines.on_spark.cluster import Cluster, Keyed, by_key, collected
from audit.engines.pieces import packed, unpacked
from audit.tables import COMPARED, FOLDED, Task, bytes_of

STRETCH_BYTES: Final = 1 << 30
"""Of the log, that one task looks along."""

Held = list[tuple[int, bytes]]
"""(replica, digest) of a range, by replica."""


def compared(cluster: Cluster, tasks: list[Task]) -> pa.Table:
    """COMPARED rows."""
    return _asked(cluster, tasks, STRETCH_BYTES, alike, COMPARED)


def folded(cluster: Cluster, tasks: list[Task], segment_bytes: int) -> pa.Table:
    """FOLDED rows."""
    return _asked(cluster, tasks, segment_bytes, partial(fold, segment_bytes=segment_bytes), FOLDED)


def _asked(cluster: Cluster, tasks: list[Task], size: int, of: Any, schema: pa.Schema) -> pa.Table:
    """``of`` the DIGEST rows of each stretch of so many bytes."""
    stretches = {at for task in tasks for at in range(task.start // size, task.end // size + 1)}
    rows = cluster.read("digests", tasks, bytes_of(tasks)).flatMap(partial(_cut, size))
    return collected(by_key(rows, cluster.partitions(len(stretches)), of), schema)


def _cut(size: int, raw: bytes) -> Iterator[Keyed]:
    """DIGEST rows, by the stretch in which they begin."""
    (rows,) = unpacked(raw, 1)
    stretch = rows["start"].to_numpy() // size
    for at in np.unique(stretch).tolist():
        yield at, packed(rows.filter(pa.array(stretch == at)))


def alike(digests: pa.Table) -> pa.Table:
    """COMPARED rows of the DIGEST rows of a stretch: of ranges that touch, and in which the same replicas
    hold the same bytes, those of the first."""
    ranges: dict[tuple[int, int], Held] = {}
    columns = (digests[name].to_pylist() for name in digests.column_names)
    for replica, start, end, digest in zip(*columns, strict=True):
        ranges.setdefault((start, end), []).append((replica, digest))
    found: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    before: tuple[int, Any] | None = None
    for (start, end), held in sorted(ranges.items()):
        held.sort()
        if before != (start, like := _like(held)):
            run = [
                {"replica": replica, "start": start, "digest": digest, "ranges": 0}
                for replica, digest in held
            ]
            found += run
        for row in run:
            row |= {"end": end, "ranges": row["ranges"] + 1}
        before = (end, like)
    return pa.Table.from_pylist(found, schema=COMPARED)


def _like(held: Held) -> list[tuple[int, int, int]]:
    """Which replicas hold the same: of each the place of the first with its digest. A worker without fast
    hashes makes digests of another length, which a stretch may not hide."""
    digests = [digest for _, digest in held]
    return [(replica, len(digest), digests.index(digest)) for replica, digest in held]
