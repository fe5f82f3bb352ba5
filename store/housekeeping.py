"""What is written back beside the log: queue entries, index pages, the checkpoint, and in which order?

Queues first, then their sync, then the checkpoint that vouches for them: after a crash recovery starts at
what the checkpoint says and makes the rest again from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from runtime.env import Env
from store.checkpoint import CheckpointFile
from store.commit_log import CommitLog
from store.consume_queue import ConsumeQueues
from store.dispatch import WRITING_INDEX, WRITING_QUEUES, Dispatcher
from store.health import Health
from store.index_file import Index
from store.reserve import Reserve
from store.segment import Segment

log = logging.getLogger(__name__)

INDEX_FLUSH_S = 10.0
SYNCING_QUEUES = "syncing ConsumeQueues"
RESERVED = "the reserve"
WRITING_CHECKPOINT = "writing the checkpoint"


class Housekeeping:
    """Writes back every ``interval_ms``; stops for ever at a failed sync."""

    def __init__(
        self,
        env: Env,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        dispatcher: Dispatcher,
        checkpoint: CheckpointFile,
        health: Health,
        reserve: Reserve,
        interval_ms: int,
    ) -> None:
        self._env = env
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._health = health
        self._reserve = reserve
        self._interval_s = interval_ms / 1000
        self._mark = (0, 0, 0)  # log.generation, log.end, store time of a record below it: of the last turn

    async def run(self, pause: Callable[[float], Awaitable[bool]]) -> None:
        """Until ``pause`` (seconds) says that the store closes, or a sync failed."""
        since_index_s = 0.0
        while await pause(self._interval_s) and self._health.broken is None:
            try:
                await self._look_at_space()
                await self.flush_queues()
                since_index_s += self._interval_s
                if since_index_s >= INDEX_FLUSH_S:
                    since_index_s = 0.0
                    await self.flush_index()
                await self.write_checkpoint()
            except OSError as error:
                self._health.failed(error, WRITING_CHECKPOINT)

    async def _look_at_space(self) -> None:
        reserve = self._reserve
        if reserve.held and reserve.is_low():
            self._health.full(RESERVED, "the disk is full: what is left is kept for role changes")
            reserve.release()
        elif self._health.out_of_space and await self._env.offload(reserve.take):
            self._health.room(RESERVED)
            self._log.retry_space()

    async def flush_queues(self) -> None:
        """Write and sync buffered queue entries; the sync runs off the loop."""
        stamp_ms = self._dispatcher.last_timestamp_ms
        try:
            self._queues.write_out()
        except OSError as error:
            self._health.failed(error, WRITING_QUEUES)
            return
        self._health.room(WRITING_QUEUES)
        segments: list[Segment] = []
        names: dict[str, None] = {}
        for queue in self._queues.take_written():
            segments += queue.take_unsynced()
            names.update(dict.fromkeys(queue.take_new_names()))
        if segments or names:
            try:
                await self._env.offload(lambda: self._sync(segments, list(names)))
            except OSError as error:
                self._health.failed(error, SYNCING_QUEUES, sync=True)
                return
            finally:
                for segment in segments:
                    segment.unpin()
        self._checkpoint.now.logics_timestamp_ms = stamp_ms

    def _sync(self, segments: list[Segment], names: list[str]) -> None:
        for path in names:
            self._env.disk.sync_dir(path)
        for segment in segments:
            segment.file.sync()

    async def flush_index(self) -> None:
        """Write and sync what is new in the index, off the loop."""
        if self._index is None:
            return
        try:
            self._index.put_many(())  # what found no place while the disk was full
        except OSError as error:
            self._health.failed(error, WRITING_INDEX)
            return
        stamp_ms = self._index.end_timestamp_ms
        write = self._index.begin_flush()
        done = False
        try:
            await self._env.offload(write)
            done = True
        except OSError as error:
            self._health.failed(error, WRITING_INDEX)
        finally:
            self._index.end_flush(done)
        if done:
            self._health.room(WRITING_INDEX)
            self._checkpoint.now.index_timestamp_ms = stamp_ms

    async def write_checkpoint(self) -> None:
        """Write down what is known to be flushed, off the loop."""
        generation, end, stamp_ms = self._mark
        if generation != self._log.generation or self._log.flushed >= end:
            if generation == self._log.generation and stamp_ms:
                self._checkpoint.now.physic_timestamp_ms = stamp_ms
            self._mark = (self._log.generation, self._log.end, self._dispatcher.last_timestamp_ms)
        values = self._values()
        generation = self._log.generation

        def write() -> None:
            if generation == self._log.generation:
                self._checkpoint.write(values)

        try:
            await self._env.offload(write)
            if generation != self._log.generation:  # a cut came in between: its word is the last one
                self._checkpoint.write(self._values())
        except OSError as error:
            self._health.failed(error, WRITING_CHECKPOINT, sync=True)

    def _values(self) -> bytes:
        now = self._checkpoint.now
        now.confirm_offset = min(self._dispatcher.confirmed, self._log.flushed)  # what no crash takes away
        now.master_flushed_offset = self._log.flushed
        return now.encode()

    def flush_all(self) -> None:
        """Everything, for the last time. Blocks; raises DiskError, OSError."""
        self._log.sync()
        self._queues.write_out()
        for queue in self._queues:
            segments = queue.take_unsynced()
            try:
                self._sync(segments, queue.take_new_names())
            finally:
                for segment in segments:
                    segment.unpin()
        now = self._checkpoint.now
        now.logics_timestamp_ms = now.physic_timestamp_ms = self._dispatcher.last_timestamp_ms
        if self._index is not None:
            self._index.begin_flush()()
            self._index.end_flush(True)
            now.index_timestamp_ms = self._index.end_timestamp_ms
        self._checkpoint.write(self._values())
