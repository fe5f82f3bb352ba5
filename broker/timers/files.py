"""How does the note of timer messages get to ``config/timercheck`` and back?

The file is RocketMQ's, written in place: all that is read lies in one sector. Soon after each change, one
that fails is tried again. The copies that a note speaks of are on the disk before it is: see ``LogFirst``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from broker.timers.codec import FILE_BYTES, READ_BYTES, decode_check, encode_check
from broker.timers.progress import TimerProgress
from model.config import BrokerConfig
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

LogFirst = Callable[[], Awaitable[None]]
"""Returns when all that the log holds now is on the disk; raises OSError. A note that came there before the
copies it speaks of would hide the messages that wait, where power takes the copies from all brokers."""
RETRY_S: Final = 1.0


class TimerCheckFile:
    """One store's file. ``load`` once, then every change of the progress is written."""

    def __init__(
        self, env: Env, config: BrokerConfig, progress: TimerProgress, tasks: Tasks, log_first: LogFirst
    ) -> None:
        self._env = env
        self._root = config.store_path.rstrip("/") or "/"
        self.path = f"{self._root}/config/timercheck"
        self._progress = progress
        self._tasks = tasks
        self._log_first = log_first
        self._delay_s = config.timer_flush_interval_ms / 1000
        self._dirty = False
        self._writing = asyncio.Lock()
        self._alone = False  # no wheel of RocketMQ lies beside it
        self._writer: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Raises OSError."""
        if self._env.disk.exists(self.path):
            file = self._env.disk.open(self.path)
            try:
                found = decode_check(file.pread(READ_BYTES, 0))
            finally:
                file.close()
            if found is None:
                log.error("%s is damaged: all of the timer topic is looked at anew", self.path)
            else:
                self._progress.take(found.note, found.version)
        self._progress.on_change.append(self.changed)

    def changed(self) -> None:
        """Write the note soon."""
        self._dirty = True
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.spawn(self._write_soon(), name="write timercheck")

    async def _write_soon(self) -> None:
        while self._dirty:
            await asyncio.sleep(self._delay_s)
            try:
                await self.flush()
            except OSError as error:
                log.error("cannot write %s, trying again: %s", self.path, error)
                await asyncio.sleep(RETRY_S)

    async def flush(self) -> None:
        """Write now what changed. Raises OSError; the change stays noted then."""
        async with self._writing:
            if not self._dirty:
                return
            self._dirty = False
            data = encode_check(self._progress.note, self._progress.version)
            try:
                await self._log_first()
                await self._env.offload(lambda: self._write(data))
            except (OSError, asyncio.CancelledError):
                self._dirty = True
                raise

    def _write(self, data: bytes) -> None:
        disk = self._env.disk
        fresh = not disk.exists(self.path)
        if fresh:
            disk.makedirs(f"{self._root}/config")
        file = disk.open(self.path, create=True)
        try:
            if file.size() < FILE_BYTES:
                file.truncate(FILE_BYTES)
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        if fresh:
            disk.sync_dir(f"{self._root}/config")
        if not self._alone:
            self._remove_wheel()
            self._alone = True

    def _remove_wheel(self) -> None:
        """A wheel that RocketMQ made on this store is out of date from now on: it would deliver from it what
        was delivered here. It makes another from the timer topic, where this file tells it to."""
        disk = self._env.disk
        wheel, timer_log = f"{self._root}/timerwheel", f"{self._root}/timerlog"
        if disk.exists(wheel):
            log.info("%s and timerlog, which RocketMQ made, are out of date: removed", wheel)
            disk.remove(wheel)
        if disk.exists(timer_log):
            disk.rmtree(timer_log)
