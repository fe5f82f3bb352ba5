"""What is written back beside the log: queue entries, index pages, the checkpoint, and in which order?

Queues first, then their sync (``queue_flush``), then the checkpoint that covers them: after a
crash recovery starts at what the checkpoint says and makes the rest again from the log.

The index is written back every INDEX_FLUSH_S, and what a start had to make up (``dispatching.indexing``) as
soon as it is: at the first CATCH_UP_BYTES of it, and when the index is level. So what the next start has to
make up is what this life left behind, however often the broker is killed and however long its log is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from runtime.env import Env
from store.files.store_files import StoreFiles
from store.flow.dispatching.indexing import WRITING_INDEX
from store.flow.dispatching.store_flow import StoreFlow
from store.flow.upkeep.queue_flush import QueueFlush
from store.flow.upkeep.reserve import Reserve
from store.flow.upkeep.throttle import Throttle

log = logging.getLogger(__name__)

INDEX_FLUSH_S = 10.0
CATCH_UP_BYTES: Final = 8 << 20
"""Of the log: indexed after a start, they are written back before the rest is."""
EARLY_S: Final = 0.25
"""The least time between two rounds, each of which syncs seven files or more: a twentieth of a busy broker's
CPU at ten rounds a second. What is written meanwhile is read again after a crash."""
RESERVED = "the reserve"
WRITING_CHECKPOINT = "writing the checkpoint"


class Housekeeping:
    """Writes back every ``interval_ms``; stops for ever at a failed sync."""

    def __init__(
        self,
        env: Env,
        files: StoreFiles,
        flow: StoreFlow,
        reserve: Reserve,
        throttle: Throttle,
        interval_ms: int,
        want_sync: Callable[[int], None],
    ) -> None:
        self._env = env
        self._files = files
        self._log = files.log
        self._flow = flow
        self._reserve = reserve
        self._throttle = throttle
        self._interval_s = interval_ms / 1000
        self.queues = QueueFlush(env, files, flow.dispatcher, want_sync)
        self._early = asyncio.Event()
        self._written = b""
        self._made_up = False  # what lacked in the index at the start is written back
        self._made_up_part = False  # ... or a good part of it
        self._mark = (0, 0, 0)  # log.generation, log.end, store time of a record below it: of the last turn

    async def run(self, pause: Callable[[float], Awaitable[bool]]) -> None:
        """Until ``pause`` (seconds) says that the store closes, or a sync failed."""
        since_index_s = 0.0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while await self._wait(pause, began_s) and self._files.health.broken is None:
            before_s, began_s = began_s, loop.time()
            since_index_s += began_s - before_s
            try:
                await self._look_at_space()
                await self.queues.flush_for(began_s - before_s)
                if self._index_is_due(since_index_s) and not self._throttle.left_s:
                    since_index_s = 0.0
                    self._made_up_part, self._made_up = True, self._flow.indexer.caught_up
                    await self.flush_index()
                await self.write_checkpoint()
            except OSError as error:
                self._files.health.failed(error, WRITING_CHECKPOINT)
            else:
                self._files.health.room(WRITING_CHECKPOINT)

    def _index_is_due(self, since_s: float) -> bool:
        if since_s >= INDEX_FLUSH_S:
            return True
        if self._made_up or self._flow.indexer.caught_up:
            return not self._made_up
        gained = self._flow.indexer.at - self._files.checkpoint.now.indexed_offset
        return not self._made_up_part and gained >= CATCH_UP_BYTES

    def level(self) -> None:
        """The index is level: write that down early."""
        self._early.set()

    def soon(self) -> None:
        """The log grew a lot: begin the next round early. The round asks for the log's sync, so that many
        steps of growth within EARLY_S have one."""
        self._early.set()

    def stop(self) -> None:
        self._early.set()

    async def _wait(self, pause: Callable[[float], Awaitable[bool]], began_s: float) -> bool:
        """Until the interval is over or ``soon`` was called, but not at once; False when the store closes."""
        clock = asyncio.get_running_loop().time
        now_s = clock()
        not_before_s = now_s + min(EARLY_S, self._interval_s)
        try:
            async with asyncio.timeout(max(began_s + self._interval_s, not_before_s) - now_s):
                await self._early.wait()
        except TimeoutError:
            pass
        is_open = await pause(max(0.0, not_before_s - clock()))
        self._early.clear()
        return is_open

    async def _look_at_space(self) -> None:
        reserve = self._reserve
        if reserve.held and reserve.is_low():
            self._files.health.full(RESERVED, "the disk is full: what is left is kept for role changes")
            reserve.release()
        elif self._files.health.out_of_space and await self._env.offload(reserve.take):
            self._files.health.room(RESERVED)
            self._log.retry_space()

    async def flush_index(self) -> None:
        """Write and sync what is new in the index, off the loop. Not before ``Index.unproven`` ends."""
        if self._files.index is None or self._files.index.unproven:
            return
        try:
            self._files.index.put_many(())  # what found no place while the disk was full
        except OSError as error:
            self._files.health.failed(error, WRITING_INDEX)
            return
        stamp_ms, at, generation = (
            self._files.index.end_timestamp_ms,
            self._flow.indexer.at,
            self._log.generation,
        )
        done = False
        try:
            for _ in self._files.index.picture():
                await asyncio.sleep(0)
            if not self._files.index.pictured:  # a cut came in between, and wrote what is left
                return
            await self._env.offload(self._files.index.write_picture)
            done = True
        except OSError as error:
            self._files.health.failed(error, WRITING_INDEX)
        finally:
            self._files.index.end_flush(done)
        if done:
            self._files.health.room(WRITING_INDEX)
            self._files.checkpoint.now.index_timestamp_ms = stamp_ms
            if generation == self._log.generation and not self._files.index.owes:
                self._files.checkpoint.now.indexed_offset = at

    async def write_checkpoint(self) -> None:
        """Write down what is known to be flushed, off the loop."""
        generation, end, stamp_ms = self._mark
        if generation != self._log.generation or self._log.flushed >= end:
            if generation == self._log.generation and stamp_ms:
                self._files.checkpoint.now.physic_timestamp_ms = stamp_ms
            self._mark = (
                self._log.generation,
                self._log.end,
                self._flow.dispatcher.last_timestamp_ms,
            )
        values = self._values()
        if values == self._written:
            return
        since = self._files.checkpoint.writes
        try:
            await self._env.offload(lambda: self._files.checkpoint.write(values, since))
            if (
                self._files.checkpoint.writes == since + 1
            ):  # else a cut came in between: its word is the last one
                self._written = values
        except OSError as error:
            self._files.health.failed(error, WRITING_CHECKPOINT, sync=True)

    def _values(self) -> bytes:
        now = self._files.checkpoint.now
        now.confirm_offset = min(
            self._flow.dispatcher.confirmed, self._log.flushed
        )  # what no crash takes away
        now.master_flushed_offset = self._log.flushed
        now.log_start = self._log.min_offset
        return now.encode()

    def flush_all(self) -> None:
        """What there is, for the last time. Blocks; raises DiskError, OSError."""
        self._log.sync()
        self.queues.flush_all()
        now = self._files.checkpoint.now
        now.physic_timestamp_ms = self._flow.dispatcher.last_timestamp_ms
        if self._files.index is not None:
            self._files.index.prove()
            self._files.index.begin_flush()()
            self._files.index.end_flush(True)
            now.index_timestamp_ms = self._files.index.end_timestamp_ms
            if not self._files.index.owes:
                now.indexed_offset = self._flow.indexer.at
        self._files.checkpoint.write(self._values())
