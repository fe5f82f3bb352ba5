"""Which old segments go, and when?

Files older than ``fileReservedTime`` go at the hours of ``deleteWhen``, or at any time while the disk is
fuller than ``diskMaxUsedSpaceRatio``; above ``diskSpaceCleanForciblyRatio`` the oldest goes whatever its
age (not with ``cleanFileForciblyEnable=false``), and so it does while all segments together exceed
``commitLogMegabytesMax`` (0: no bound; ours); above ``diskSpaceWarningLevelRatio`` writes are refused as
well. A clock that steps ahead makes no segment older, until it has stood so for ``fileReservedTime``:
whatever was there at the step is as old as that by then. Never the last segment, never one that holds
records not yet dispatched, at most FILES_PER_ROUND a round. Queues, index and epochs follow the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from model.config import StoreConfig
from model.ids import PhysicalOffset
from runtime.env import Env
from runtime.turns import Slice
from store.files.store_files import StoreFiles
from store.flow.dispatching.dispatch import Dispatcher

log = logging.getLogger(__name__)

ROUND_S = 10.0
FILES_PER_ROUND = 10
PAUSE_S = 0.1
HOUR_MS = 3_600_000
AHEAD_MS = 60_000
"""A clock that went on so much further than this process did was set."""


class Retention:
    """Deletes old files of one store; ``round`` is called every ROUND_S seconds."""

    def __init__(
        self, env: Env, config: StoreConfig, root: str, files: StoreFiles, dispatcher: Dispatcher
    ) -> None:
        self._env = env
        self._config = config
        self._root = root
        self._files = files
        self._log = files.log
        self._health = files.health
        self._dispatcher = dispatcher
        self.before_expiry: list[Callable[[PhysicalOffset], Awaitable[None]]] = []
        """Told where the log will begin, before it does."""
        self._began_ms = env.now_ms(), env.monotonic_ms()
        self._ahead_ms, self._ahead_since_ms = 0.0, 0.0  # of what it was set ahead, and since when

    def used_percent(self) -> int:
        """How full the file system of the store is."""
        usage = self._env.disk.usage(self._root)
        return 100 * (usage.total_bytes - usage.free_bytes) // max(usage.total_bytes, 1)

    def look_at_disk(self) -> int:
        """Refuse writes while the disk is too full; how full it is, in percent. Raises OSError."""
        percent = self.used_percent()
        if percent > min(max(self._config.disk_warning_ratio, 35), 90):
            self._health.full("ratio", f"the disk is full: {percent} % used")
        else:
            self._health.room("ratio")
        return percent

    async def round(self, *, any_hour: bool = False) -> int:
        """Delete what is due (``any_hour``: whatever hours ``deleteWhen`` names); returns how many segments
        went. Raises OSError, DiskError; what names deleted bytes has followed the log's start all the same,
        if it could."""
        percent = self.look_at_disk()
        self._look_at_clock()
        gone = 0
        try:
            await self._remove_forgotten()
            while gone < FILES_PER_ROUND and self._is_due(percent, any_hour):
                if not await self._tell(self._log.segments[1].start):
                    break
                # From here on the log begins later, whether its file can be removed or not: what names the
                # bytes before must follow it.
                self._log.forget_first()
                gone += 1
                await self._remove_forgotten()
                log.info("deleted the oldest segment; the log starts at %d", self._log.min_offset)
                await asyncio.sleep(PAUSE_S)
                percent = self.used_percent()
        finally:
            if gone:
                await self.follow_log_start()
        return gone

    async def _tell(self, log_start: int) -> bool:
        """Tell ``before_expiry``; False: the log is another one meanwhile."""
        before = (self._log.generation, self._log.min_offset)
        for hook in self.before_expiry:
            await hook(PhysicalOffset(log_start))
        return before == (self._log.generation, self._log.min_offset)

    async def follow_log_start(self) -> None:
        """The log's start moved on: queues, index and epochs follow. Raises DiskError, OSError."""
        files = self._files
        log_min = files.log.min_offset
        paths: list[str] = []
        slice_ = Slice(self._env.monotonic_ms)
        for queue in list(files.queues):
            paths += [segment.path for segment in queue.drop_below(log_min)]
            await slice_.breathe()
        if files.index is not None:
            paths += files.index.drop_below(log_min)
        files.epochs.truncate_prefix(log_min)
        files.damage.drop_below(log_min)
        disk = self._env.disk

        def work() -> None:
            for path in paths:
                disk.remove(path)

        await self._env.offload(work)

    async def _remove_forgotten(self) -> None:
        """Remove the files of segments the log has forgotten, oldest first.

        One that stays for an error is tried again before any younger one goes: a gap between files would not
        open at the next start. Raises OSError.
        """
        forgotten = self._log.forgotten
        while forgotten:
            path = forgotten[0]
            await self._env.offload(lambda path=path: self._remove(path))  # type: ignore[misc]
            if path in forgotten:
                forgotten.remove(path)

    def _remove(self, path: str) -> None:
        if path not in self._log.forgotten:
            return  # a reset took it over, and another file may have its name by now
        with suppress(FileNotFoundError):  # removed, but that was not synced
            self._env.disk.remove(path)
        self._env.disk.sync_dir(path.rpartition("/")[0])

    def _is_due(self, percent: int, any_hour: bool) -> bool:
        commit_log = self._log
        segments = commit_log.segments
        if len(segments) < 2 or segments[1].start > min(self._dispatcher.dispatched, commit_log.flushed):
            return False
        config = self._config
        if config.clean_forcibly and percent > min(max(config.disk_clean_forcibly_ratio, 30), 85):
            return True
        bytes_max = config.commit_log_megabytes_max << 20
        if bytes_max and len(segments) * commit_log.segment_bytes > bytes_max:
            return True
        now_ms = self._env.now_ms()
        # Read each time: the hours can be changed while the broker runs.
        hours = {int(hour) for hour in config.delete_when.split(";")}
        in_time = any_hour or datetime.fromtimestamp(now_ms / 1000).hour in hours
        if not (in_time or percent > config.disk_max_used_ratio):
            return False
        age_ms = min(now_ms, self._steady_ms()) - self._env.disk.mtime_ms(segments[0].path)
        return age_ms > config.file_reserved_hours * HOUR_MS

    def _look_at_clock(self) -> None:
        """Was it set ahead? By that a whole log may seem old. Or was it behind before, and is right now?"""
        up_ms, now_ms = self._env.monotonic_ms(), self._env.now_ms()
        ahead_ms = now_ms - self._steady_ms()
        if abs(ahead_ms - self._ahead_ms) > AHEAD_MS:
            self._ahead_ms, self._ahead_since_ms = ahead_ms, up_ms
            if ahead_ms > AHEAD_MS:
                log.warning(
                    "the clock was set %.1f h ahead; segments are no older for that, unless it stays so for"
                    " %d h, or until a restart",
                    ahead_ms / HOUR_MS,
                    self._config.file_reserved_hours,
                )
        elif (
            ahead_ms > AHEAD_MS and up_ms - self._ahead_since_ms > self._config.file_reserved_hours * HOUR_MS
        ):
            self._began_ms, self._ahead_ms = (now_ms, up_ms), 0.0

    def _steady_ms(self) -> float:
        """The time, without what the clock was set ahead since the start."""
        wall_ms, monotonic_ms = self._began_ms
        return wall_ms + self._env.monotonic_ms() - monotonic_ms
