"""What runs beside a store that is open: syncs, write-back, retention, the scrub, the index's backlog.

One task each, from ``start`` to ``stop``. None is cancelled: a sync or an allocation under way needs its file
open until it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from model.config import StoreConfig
from model.errors import DiskError
from model.ids import PhysicalOffset
from runtime.env import Env
from runtime.tasks import Tasks
from store.files.store_files import StoreFiles
from store.flow.dispatching.store_flow import StoreFlow
from store.flow.upkeep.flush import Flusher
from store.flow.upkeep.housekeeping import Housekeeping
from store.flow.upkeep.reserve import Reserve
from store.flow.upkeep.retention import ROUND_S, Retention
from store.flow.upkeep.throttle import Throttle
from store.heal.repair import Repairer
from store.heal.scrub import Scrub

log = logging.getLogger(__name__)

RETENTION_FIRST_S: Final = 60.0
FULL_AGAIN_S: Final = 1.0
"""While the disk is too full, between two looks at it."""


class Background:
    """The tasks of one store, and what they work with."""

    def __init__(
        self,
        env: Env,
        config: StoreConfig,
        root: str,
        files: StoreFiles,
        flow: StoreFlow,
        repairer: Repairer,
        throttle: Throttle,
        on_flush: list[Callable[[PhysicalOffset], None]],
    ) -> None:
        self.throttle = throttle
        self.reserve = Reserve(env.disk, root, config.disk_reserve_megabytes << 20)
        self.flusher = Flusher(env, files.log, files.health, config.flush_interval_ms, on_flush)
        self.retention = Retention(env, config, root, files, flow.dispatcher)
        self.scrub = Scrub(
            files,
            flow,
            repairer,
            throttle,
            config.scrub_megabytes_per_s << 20,
            config.check_on_start_megabytes_per_s << 20,
        )
        self.housekeeping = Housekeeping(
            env,
            files,
            flow,
            self.reserve,
            throttle,
            config.flush_queue_interval_ms,
            self.flusher.want,
        )
        self._env = env
        self._files = files
        self._flow = flow
        self._stopping = asyncio.Event()
        self._tasks = Tasks("store", self._task_died)
        self._running: list[asyncio.Task[None]] = []
        files.health.on_full.append(self.reserve.release)
        files.log.growth.on_grown = self.housekeeping.soon
        flow.indexer.on_level = self.housekeeping.level

    def start(self) -> None:
        self._look_at_disk()  # the first round of the retention comes much later
        spawn, indexer, dispatcher = self._tasks.spawn, self._flow.indexer, self._flow.dispatcher
        self._running = [
            spawn(self.flusher.run(), name="flush"),
            spawn(self._files.log.allocate_ahead(self._stopping.is_set), name="allocate"),
            spawn(self.housekeeping.run(self.pause), name="housekeeping"),
            spawn(self._retain(), name="retain"),
            spawn(self.scrub.run(self.pause), name="scrub"),
            spawn(indexer.run(self._env, lambda: dispatcher.dispatched, self.pause), name="index"),
        ]

    async def stop(self) -> None:
        """Return when every task has ended by itself."""
        self._stopping.set()
        self.flusher.stop()
        self.housekeeping.stop()
        self._flow.indexer.stop()
        self._files.log.ahead.look()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def flush_all(self) -> None:
        """What there is, for the last time. Raises DiskError, OSError."""
        self._files.health.silent = True
        await self._env.offload(self.housekeeping.flush_all)

    async def pause(self, seconds: float) -> bool:
        """Wait; False when the store closes."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    def _look_at_disk(self) -> None:
        try:
            self.retention.look_at_disk()
        except OSError as error:
            log.error("how full the disk is cannot be told: %s", error)

    async def _pause_and_look(self, seconds: float) -> bool:
        """Wait; a disk that is too full is looked at again soon. False when the store closes."""
        clock_ms = self._env.monotonic_ms
        until_ms = clock_ms() + seconds * 1000
        while (left_s := (until_ms - clock_ms()) / 1000) > 0:
            full = self._files.health.is_full("ratio")
            if not await self.pause(min(left_s, FULL_AGAIN_S) if full else left_s):
                return False
            if full:
                self._look_at_disk()
        return True

    async def _retain(self) -> None:
        wait_s = RETENTION_FIRST_S
        while await self._pause_and_look(wait_s):
            wait_s = ROUND_S
            try:
                await self.retention.round()
            except (OSError, DiskError) as error:
                log.error("retention failed: %s; next try in %.0f s", error, wait_s)

    def _task_died(self, error: BaseException) -> None:
        log.error("a task of the store died", exc_info=error)
        self._files.health.broke(f"a task of the store died: {error}")
