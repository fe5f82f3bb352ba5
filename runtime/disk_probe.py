"""Does a disk take writes, be it slowly, or does it hang?

A write to a disk that hangs never returns, and on the event loop it takes the process with it. So before
something is written there that cannot be given up, or while it is written, a few bytes of this file's own are
written and synced off the loop, and waited for within a bound. What a disk refuses at once does not hang.
"""

from __future__ import annotations

import asyncio
from typing import Final

from runtime.env import Env
from runtime.tasks import SerialCalls

FILE: Final = "diskProbe"
_BYTES: Final = b"probe\n"


class DiskProbe:
    """Of the disk that ``directory`` is on. At most one write is under way, also while it hangs."""

    def __init__(self, env: Env, directory: str) -> None:
        self._disk = env.disk
        self._path = f"{directory}/{FILE}"
        self._writes = SerialCalls(env.offload)

    async def answers(self, within_s: float) -> None:
        """Return when a write ended. Raises TimeoutError when none does in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._writes.run(self._write)
        except TimeoutError:
            text = f"the disk hangs: {self._path} could not be written within {within_s:g} s"
            raise TimeoutError(text) from None

    def _write(self) -> None:
        try:
            file = self._disk.open(self._path, create=True)
            try:
                file.pwrite(_BYTES, 0)
                file.sync()
            finally:
                file.close()
        except OSError:
            pass  # it answered
