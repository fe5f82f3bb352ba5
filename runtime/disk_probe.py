"""Does a disk take writes, be it slowly, or does it hang?

A write to a disk that hangs never returns, and on the event loop it takes the process with it. So before
something is written there that cannot be given up, or while it is written, a few bytes of this file's own are
written and synced off the loop, and waited for within a bound. What a disk refuses at once does not hang. A
disk whose last write ended, but took longer than the bound, is slow: its next one is waited for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Final

from runtime.env import Env
from runtime.tasks import Tasks

FILE: Final = "diskProbe"
SLOWER: Final = 2
"""So many times as long as the last write took is the next one waited for."""
SLOW_MAX_S: Final = 10.0
"""At most, seconds: a slow disk may hang, too."""
_BYTES: Final = b"probe\n"


class DiskProbe:
    """Of the disks that ``root`` and the directories ``elsewhere`` are on. At most one write is under way,
    also while it hangs."""

    def __init__(self, env: Env, root: str, elsewhere: Collection[str] = ()) -> None:
        self._env = env
        self._root = root
        self._elsewhere = elsewhere
        self._tasks = Tasks("disk probe")
        self._under_way: asyncio.Task[None] | None = None
        self._took_s = 0.0  # the last write that ended

    async def answers(self, within_s: float) -> None:
        """Return when a write ends, also one that was given up before. Raises TimeoutError when none does in
        time."""
        if self._under_way is None:
            self._under_way = self._tasks.spawn(self._measured(), name="write")
        bound_s = max(within_s, min(SLOWER * self._took_s, SLOW_MAX_S))
        # A thread cannot be stopped: who gives up leaves it running.
        ended, _ = await asyncio.wait([self._under_way], timeout=bound_s)
        if not ended:
            where = ", ".join([self._root, *self._elsewhere])
            raise TimeoutError(f"the disk hangs: {where} took no write within {bound_s:g} s")
        ended.pop().result()

    async def _measured(self) -> None:
        began_ms = self._env.monotonic_ms()
        try:
            await self._env.offload(self._write)
        finally:
            self._under_way = None
        self._took_s = (self._env.monotonic_ms() - began_ms) / 1000

    def _write(self) -> None:
        self._write_in(self._root)
        for directory in self._elsewhere:
            # RocketMQ passes over directories among the segments of a log, and opens no log with other files.
            with contextlib.suppress(OSError):
                if self._env.disk.is_dir(directory):
                    self._env.disk.makedirs(f"{directory}/{FILE}")
                    self._write_in(f"{directory}/{FILE}")

    def _write_in(self, directory: str) -> None:
        with contextlib.suppress(OSError):  # it answered
            file = self._env.disk.open(f"{directory}/{FILE}", create=True)
            try:
                file.pwrite(_BYTES, 0)
                file.sync()
            finally:
                file.close()
