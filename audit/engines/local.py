"""How does one machine read every byte without a JVM? A pool of processes over the same plain functions."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, TypeVar

import pyarrow as pa

from audit.earlier.folding import fold
from audit.engines.relate import LocalLog
from audit.engines.spill import SpillTask, spill_scan
from audit.reading.derived.index_files import INDEX, INDEX_ORDER, IndexTask, run_index
from audit.reading.derived.others import DerivedTask, run_derived
from audit.reading.derived.queue_prefix import PREFIX, PrefixTask, run_prefix
from audit.rows.parts import Folder
from audit.tables import DIGEST, Task, bytes_of, each_alone, run_digests

T = TypeVar("T")

POOL_BYTES_MIN: Final = 256 * 1024 * 1024
"""Below this a pool's start costs more than it saves."""


class LocalEngine:
    """Runs tasks in this process when they are small, else in a pool of processes, one a core."""

    name = "local"

    def __init__(self) -> None:
        self._processes = os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def warm_up(self) -> None:
        """Nothing to prepare: a pool is made when there is work for it."""

    def _map(self, call: Callable[[T], Any], tasks: list[T], size: int) -> list[Any]:
        if self._processes == 1 or size < POOL_BYTES_MIN:
            return [call(task) for task in tasks]
        if self._pool is None:
            # Not fork: the parent may run threads (an event loop's executor, Arrow's own).
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=multiprocessing.get_context("forkserver")
            )
        return list(self._pool.map(call, tasks))

    def digests(self, tasks: list[Task]) -> pa.Table:
        """DIGEST rows."""
        return pa.Table.from_batches(self._map(run_digests, tasks, bytes_of(tasks)), schema=DIGEST)

    def compared(self, tasks: list[Task]) -> pa.Table:
        return each_alone(self.digests(tasks))

    def folded(self, tasks: list[Task], segment_bytes: int) -> pa.Table:
        return fold(self.digests(tasks), segment_bytes)

    def scan(self, tasks: list[Task]) -> LocalLog:
        folder = Folder()
        try:
            jobs = [SpillTask(task, folder.file("records")) for task in tasks]
            spilled = self._map(spill_scan, jobs, bytes_of(tasks))
        except BaseException:
            self.close()  # first: a process that goes on would write into the folder while it is removed
            folder.close()
            raise
        return LocalLog(folder, spilled)

    def index(self, tasks: list[IndexTask]) -> pa.Table:
        batches = self._map(run_index, tasks, sum(t.until - t.begin for t in tasks))
        return pa.Table.from_batches(batches, schema=INDEX).sort_by(INDEX_ORDER)

    def derived(self, tasks: list[DerivedTask]) -> pa.Table:
        size = sum(size for task in tasks for _, size in (*task.files, *task.entries))
        batches = self._map(run_derived, tasks, size)
        return pa.Table.from_batches(batches, schema=INDEX).sort_by(INDEX_ORDER)

    def prefixes(self, tasks: list[PrefixTask]) -> pa.Table:
        return pa.Table.from_batches(map(run_prefix, tasks), schema=PREFIX)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
