"""When are the entries of queues written to their files, when are these synced, and what is settled then?

``settled_offset``: up to here the log is synced, and so are the queue entries of its messages. Each sweep
over the dirty queues notes how far dispatch was when it began; that offset is settled once the log and every
queue are synced up to it. A round writes and syncs a bounded number of queues, those that wait longest
first: with thousands of them the settled offset trails, and a message costs what it does with a few.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from model.ids import PhysicalOffset
from runtime.env import Env
from runtime.turns import Slice
from store.files.segment import Segment
from store.files.store_files import StoreFiles
from store.flow.dispatching.dispatch import WRITING_QUEUES, Dispatcher
from store.flow.upkeep.syncing import synced

WRITE_QUEUES: Final = 512
"""Queues written out between two turns of the loop, at most: new ones take longer than a slice allows."""
SYNC_QUEUES: Final = 64
"""Queues synced in one round. Of more that wait a part, so that each waits for about SYNC_ROUNDS, up to
SYNC_QUEUES_MAX: a sync costs as much for one entry as for many, and no reader waits for it."""
SYNC_ROUNDS: Final = 8
SYNC_QUEUES_MAX: Final = 256
WRITE_QUEUES_A_S: Final = 2000
"""Queues written out in a second, those that wait longest first: a write costs as much for one entry as for
many. Of more that are dirty so many that all are in SWEEP_S."""
SWEEP_S: Final = 16.0
CLOSE_QUEUES: Final = 1024
"""Queues synced one by one at a stop; more of them are synced at once, with their file system."""
OPENING_QUEUES = "opening ConsumeQueues"
SYNCING_QUEUES = "syncing ConsumeQueues"


@dataclass(slots=True)
class _Sweep:
    """The queues that were dirty when it began are written out, round by round: then none holds an entry of a
    message below ``until`` any more, if the log was not cut meanwhile."""

    generation: int
    until: PhysicalOffset
    stamp_ms: int
    left: int


class QueueFlush:
    """In: ``flush_for``, round by round. Out: the checkpoint's ``settled_offset``. A sync that failed is told
    to ``files.health``."""

    def __init__(
        self, env: Env, files: StoreFiles, dispatcher: Dispatcher, want_sync: Callable[[int], None]
    ) -> None:
        self._env = env
        self._files = files
        self._log = files.log
        self._dispatcher = dispatcher
        self._want_sync = want_sync
        self._sweep: _Sweep | None = None
        self._rounds: deque[tuple[PhysicalOffset, int]] = (
            deque()
        )  # how far dispatch was; store time there, ms
        self._rounds_of = 0  # log.generation

    async def flush_for(self, seconds: float) -> None:
        """``flush`` of as many queues as are due after that time."""
        a_s = max(WRITE_QUEUES_A_S, len(self._files.queues.dirty) / SWEEP_S)
        await self.flush(math.ceil(a_s * seconds))

    async def flush(self, count_max: int | None = None) -> None:
        """Write the buffered entries of ``count_max`` queues (default: of all), and sync the files of those
        that wait longest, off the loop."""
        sweep = self._sweep
        if sweep is None or count_max is None or sweep.generation != self._log.generation:
            sweep = self._sweep = self._begun()
            self._want_sync(sweep.until)
        count = sweep.left if count_max is None else min(sweep.left, count_max)
        try:
            await self._write_queues(count)
        except OSError as error:
            self._files.health.failed(error, WRITING_QUEUES)
            return
        self._files.health.room(WRITING_QUEUES)
        sweep.left -= count
        if not sweep.left:
            self._sweep = None
            if sweep.generation == self._log.generation:  # else a cut came in between
                self._wrote(sweep)
        await self._sync_queues()

    def _begun(self) -> _Sweep:
        dispatcher = self._dispatcher
        dirty = len(self._files.queues.dirty)
        return _Sweep(self._log.generation, dispatcher.dispatched, dispatcher.last_timestamp_ms, dirty)

    def _wrote(self, sweep: _Sweep) -> None:
        self._files.queues.wrote_until(sweep.until)
        if self._rounds_of != sweep.generation:
            self._rounds.clear()
            self._rounds_of = sweep.generation
        self._rounds.append((sweep.until, sweep.stamp_ms))

    async def _sync_queues(self) -> None:
        waiting = self._files.queues.unsynced_count
        try:
            segments, names = self._take(min(max(SYNC_QUEUES, waiting // SYNC_ROUNDS), SYNC_QUEUES_MAX))
        except OSError as error:
            self._files.health.failed(error, OPENING_QUEUES)
            return
        self._files.health.room(OPENING_QUEUES)
        if segments or names:
            try:
                await synced(self._env, self._files.health, lambda: self._sync(segments, names))
            except OSError as error:
                self._files.health.failed(error, SYNCING_QUEUES, sync=True)
                return
            finally:
                for segment in segments:
                    segment.unpin()
        self._settle()

    async def _write_queues(self, left: int) -> None:
        """Write the entries of so many queues, those that wait longest. New queues' files are made off the
        loop, where a busy disk holds up nobody. Raises OSError."""
        queues, slice_ = self._files.queues, Slice(self._env.monotonic_ms)
        while left > 0:
            some = min(left, WRITE_QUEUES)
            left -= some
            if fresh := queues.without_file(some):
                await self._env.offload(partial(queues.make_files, fresh))
            while some > 0 and (wrote := queues.write_out(some, slice_.is_over)):
                some -= wrote
                await slice_.pause()
        await slice_.pause()

    def _take(self, count_max: int) -> tuple[list[Segment], list[str]]:
        """The files, pinned, and directories of up to ``count_max`` queues that are to be synced: fewer where
        one cannot be opened, which goes first next time. Raises OSError: not even the first could be."""
        queues = self._files.queues
        segments: list[Segment] = []
        names: dict[str, None] = {}
        for queue in queues.longest_unsynced(count_max):
            try:
                more, folders = queues.take_unsynced(queue)
            except OSError:
                if segments:
                    break
                raise
            segments += more
            names.update(dict.fromkeys(folders))
        return segments, list(names)

    def _sync(self, segments: list[Segment], names: list[str]) -> None:
        for path in names:
            self._env.disk.sync_dir(path)
        for segment in segments:
            segment.file.sync()

    def _settle(self) -> None:
        """Move the settled offset to the newest round the log and all queues are synced up to."""
        if self._rounds_of != self._log.generation or self._files.health.broken is not None:
            return
        safe = min(self._log.flushed, self._files.queues.synced_until)
        now = self._files.checkpoint.now
        while self._rounds and self._rounds[0][0] <= safe:
            now.settled_offset, now.logics_timestamp_ms = self._rounds.popleft()

    def flush_all(self) -> None:
        """What there is, for the last time. Blocks; raises DiskError, OSError."""
        queues = self._files.queues
        queues.write_out()
        sweep = self._begun()
        queues.wrote_until(sweep.until)
        if queues.unsynced_count > CLOSE_QUEUES:
            queues.sync_all()
        while queues.unsynced_count:  # in pieces: they are open meanwhile
            segments, names = self._take(SYNC_QUEUES_MAX)
            try:
                self._sync(segments, names)
            finally:
                for segment in segments:
                    segment.unpin()
        self._wrote(sweep)
        self._settle()
