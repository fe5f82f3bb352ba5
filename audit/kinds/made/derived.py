"""Batch queues, extensions of queues and timers that do not agree with their own replica's log.

``cq_wrong``, ``cq_missing``, ``cq_dangling``, ``timer_wrong``. Warnings: RocketMQ makes them of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from audit.findings import WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.made.entries import tail_from
from audit.kinds.made.index import log_of, of_row
from audit.reading.derived.others import BATCH, EXTENSION, DerivedTask, derived_files, files_in
from audit.reading.derived.queue_files import Queue
from audit.reading.layout import Replica
from audit.reading.small.beside import Beside
from audit.reading.storage import open_storage


def tasks(
    replicas: Sequence[Replica], looked: Mapping[int, Beside], ends: Callable[[int], Mapping[Queue, int]]
) -> list[DerivedTask]:
    """One for each batch queue, each extended queue and the timers of each store. ``ends``: where the queues
    of a replica's log end. Raises OSError."""
    found = []
    for at, r in enumerate(replicas):
        storage = open_storage(r.location)
        try:
            wanted = not r.empty and at in looked
            for what, topic, queue_id, files in derived_files(storage) if wanted else ():
                entries = files_in(storage, f"consumequeue/{topic}/{queue_id}") if what == EXTENSION else []
                task = DerivedTask(
                    at, r.location, what, topic, queue_id, tuple(files), tuple(entries), log_of(r), r.clean
                )
                found.append(_of_batches(task, r, looked[at], ends(at)) if what == BATCH else task)
        finally:
            storage.close()
    return found


def _of_batches(task: DerivedTask, r: Replica, own: Beside, ends: Mapping[Queue, int]) -> DerivedTask:
    """RocketMQ leaves the entries of a log that it cut behind the queue's end, and enters what is confirmed;
    keelmq changes none, and adds none for what it appends."""
    whole = r.clean and not own.ours and tail_from(r) >= r.end
    cut_from = r.epochs[1][1] if len(r.epochs) > 1 else 1 << 62
    return replace(
        task,
        place_end=ends.get((task.topic, task.queue_id), -1) if whole else -1,
        cut_from=0 if own.ours else cut_from,
        entered=r.confirmed if r.clean and not own.ours else -1,
    )


def findings(facts: Facts, table: pa.Table) -> list[Finding]:
    return [of_row(facts, row, WARN) for row in table.to_pylist()]
