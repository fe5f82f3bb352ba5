"""Syncs that are slow, fail or lie, reads and writes that fail: strace, attached to a running server."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final

from model.errors import MqError

SYNCS: Final = "fsync,fdatasync,msync,sync_file_range"
WRITES: Final = "pwrite64,pwritev,pwritev2"
READS: Final = "pread64,preadv,preadv2"
"""Of files only: what is written to and read from connections has other calls."""
ATTACH_S: Final = 5.0
INJECTED: Final = b"(INJECTED)"


class NotTraced(MqError):
    """strace could not be attached; the text says why."""


class Tracer:
    """One strace on one process. ``injected``: calls that it has changed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.injected = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def attach(cls, pid: int, what: str, calls: str = SYNCS) -> Tracer:
        """Change each of these ``calls`` of ``pid`` by ``what``, as strace's ``inject`` names it. Raises
        NotTraced."""
        process = await asyncio.create_subprocess_exec(
            *("strace", "-f", "-p", str(pid), "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            line = await asyncio.wait_for(process.stderr.readline(), ATTACH_S)
        except TimeoutError:
            line = b"no answer"
        if b" attached" not in line:
            with suppress(ProcessLookupError):
                process.kill()
            raise NotTraced(f"strace: {line.decode(errors='replace').strip()}")
        return cls(process)

    async def watch(self, count: int = 0) -> None:
        """Until ``count`` calls were changed; 0: until the process, or the tracing, ends."""
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.injected += INJECTED in line
            if count and self.injected >= count:
                return

    async def end(self) -> None:
        """Let go of the process."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            await self._process.wait()
