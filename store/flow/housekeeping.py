"""What is written back beside the log: queue entries, index pages, the checkpoint, and in which order?

Queues first, then their sync, then the checkpoint that covers them: after a crash recovery starts at
what the checkpoint says and makes the rest again from the log.

``settled_offset``: up to here the log is synced, and so are the queue entries of its messages. Each round
notes how far dispatch was when it began; that offset is settled once the log and every queue are synced up
to it. A round syncs a bounded number of queues, those that wait longest first: with thousands of them the
settled offset trails.

The index is written back every INDEX_FLUSH_S, and what a start had to make up (``store.flow.indexing``) as
soon as it is: at the first CATCH_UP_BYTES of it, and when the index is level. So what the next start has to
make up is what this life left behind, however often the broker is killed and however long its log is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from model.ids import PhysicalOffset
from runtime.env import Env
from runtime.turns import Slice
from store.files.segment import Segment
from store.files.store_files import StoreFiles
from store.flow.dispatch import WRITING_QUEUES
from store.flow.indexing import WRITING_INDEX
from store.flow.reserve import Reserve
from store.flow.store_flow import StoreFlow
from store.flow.syncing import synced
from store.flow.throttle import Throttle

log = logging.getLogger(__name__)

INDEX_FLUSH_S = 10.0
CATCH_UP_BYTES: Final = 8 << 20
"""Of the log: indexed after a start, they are written back before the rest is."""
WRITE_QUEUES: Final = 512
"""Queues written out between two turns of the loop, at most: new ones take longer than a slice allows."""
SYNC_QUEUES: Final = 256
"""Queues synced in one round."""
CLOSE_QUEUES: Final = 1024
"""Queues synced one by one at a stop; more of them are synced at once, with their file system."""
EARLY_S: Final = 0.1
"""The least time between two rounds."""
SYNCING_QUEUES = "syncing ConsumeQueues"
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
        self._want_sync = want_sync
        self._early = asyncio.Event()
        self._rounds: deque[tuple[PhysicalOffset, int]] = (
            deque()
        )  # how far dispatch was; store time there, ms
        self._rounds_of = 0  # log.generation
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
            since_index_s += loop.time() - began_s
            began_s = loop.time()
            try:
                await self._look_at_space()
                await self.flush_queues()
                if self._index_is_due(since_index_s) and not self._throttle.left_s:
                    since_index_s = 0.0
                    self._made_up_part, self._made_up = True, self._flow.indexer.caught_up
                    await self.flush_index()
                await self.write_checkpoint()
            except OSError as error:
                self._files.health.failed(error, WRITING_CHECKPOINT)

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
        """The log grew a lot: begin the next round early."""
        self._want_sync(self._log.end)
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

    async def flush_queues(self) -> None:
        """Write buffered queue entries, and sync those that wait longest; the sync runs off the loop."""
        generation = self._log.generation
        until, stamp_ms = self._flow.dispatcher.dispatched, self._flow.dispatcher.last_timestamp_ms
        self._want_sync(until)
        try:
            await self._write_queues()
        except OSError as error:
            self._files.health.failed(error, WRITING_QUEUES)
            return
        self._files.health.room(WRITING_QUEUES)
        if generation == self._log.generation:  # a cut came in between: these entries are no more
            self._files.queues.wrote_until(until)
            if self._rounds_of != generation:
                self._rounds.clear()
                self._rounds_of = generation
            self._rounds.append((until, stamp_ms))
        segments, names = self._take(SYNC_QUEUES)
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

    async def _write_queues(self) -> None:
        """Write the entries of queues that have some now: what comes meanwhile is for the next round. New
        queues' files are made off the loop, where a busy disk holds up nobody. Raises OSError."""
        queues, slice_ = self._files.queues, Slice(self._env.monotonic_ms)
        left = len(queues.dirty)
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
        """The files, pinned, and directories of up to ``count_max`` queues that are to be synced."""
        segments: list[Segment] = []
        names: dict[str, None] = {}
        for queue in self._files.queues.take_unsynced(count_max):
            segments += queue.take_unsynced()
            names.update(dict.fromkeys(queue.take_new_names()))
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
        self._files.queues.write_out()
        until, stamp_ms = self._flow.dispatcher.dispatched, self._flow.dispatcher.last_timestamp_ms
        self._files.queues.wrote_until(until)
        if self._files.queues.unsynced_count > CLOSE_QUEUES:
            self._files.queues.sync_all()
        while self._files.queues.unsynced_count:  # in pieces: they are open meanwhile
            segments, names = self._take(SYNC_QUEUES)
            try:
                self._sync(segments, names)
            finally:
                for segment in segments:
                    segment.unpin()
        now = self._files.checkpoint.now
        now.physic_timestamp_ms = stamp_ms
        if self._rounds_of != self._log.generation:
            self._rounds.clear()
            self._rounds_of = self._log.generation
        self._rounds.append((until, stamp_ms))
        self._settle()
        if self._files.index is not None:
            self._files.index.prove()
            self._files.index.begin_flush()()
            self._files.index.end_flush(True)
            now.index_timestamp_ms = self._files.index.end_timestamp_ms
            if not self._files.index.owes:
                now.indexed_offset = self._flow.indexer.at
        self._files.checkpoint.write(self._values())
