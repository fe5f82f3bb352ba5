"""When does the CommitLog reach the disk, and who is told?

One sync at a time runs off the loop. It covers what was written before it began; all who wait for more are
covered together by the next one (group commit). Under ASYNC_FLUSH it also runs every
``flushIntervalCommitLog``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from model.ids import PhysicalOffset
from runtime.env import Env
from runtime.report.histogram import Histogram
from store.files.commit_log import CommitLog
from store.files.health import Health
from store.files.segment import Segment
from store.flow.upkeep.syncing import synced


class Flusher:
    """Moves ``log.flushed`` forward; ``on_flush`` hears each new value. Stops for ever at a failed sync.
    ``took``: how long each sync took."""

    def __init__(
        self,
        env: Env,
        log: CommitLog,
        health: Health,
        interval_ms: int,
        on_flush: list[Callable[[PhysicalOffset], None]],
    ) -> None:
        self._env = env
        self._log = log
        self._health = health
        self._interval_s = interval_ms / 1000
        self._on_flush = on_flush
        self.took = Histogram()
        self._wanted = 0
        self._wake = asyncio.Event()
        self._stopped = False

    def want(self, offset: int) -> None:
        """Ask for a sync that covers ``offset``."""
        if offset > self._log.flushed:
            self._wanted = max(self._wanted, offset)
            self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    async def run(self) -> None:
        """Until ``stop`` or the first failed sync."""
        while not self._stopped and self._health.broken is None:
            if not self._wake.is_set():
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()
            if self._stopped or self._log.end <= self._log.flushed:
                continue
            await self._sync()
            if self._wanted > self._log.flushed and self._health.broken is None:
                self._wake.set()

    async def _sync(self) -> None:
        log = self._log
        target = log.end
        generation = log.generation
        segments = log.unsynced()
        names = log.take_names_dirty()
        for segment in segments:
            segment.pin()
        began_ms = self._env.monotonic_ms()
        try:
            await synced(self._env, self._health, lambda: self._call(segments, names, generation))
        except OSError as error:
            self._health.failed(error, "syncing the CommitLog", sync=True)
            return
        finally:
            for segment in segments:
                segment.unpin()
        self.took.observe((self._env.monotonic_ms() - began_ms) / 1000)
        # A cut meanwhile: new bytes may stand where the sync saw old ones, so it proves nothing.
        if generation == log.generation and target > log.flushed and self._health.broken is None:
            log.flushed = target
            for hook in self._on_flush:
                hook(target)
        elif generation != log.generation:
            self._wanted = min(self._wanted, log.end)

    def _call(self, segments: list[Segment], names: bool, generation: int) -> None:
        self._log.note_reach(generation)
        if names:
            self._log.sync_names()
        for segment in segments:
            segment.file.sync()
