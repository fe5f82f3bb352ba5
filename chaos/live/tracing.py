"""Syncs that are slow, fail or lie, reads and writes that fail: strace, attached to a running server."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final

from chaos.live.noted import Process
from model.errors import MqError

SYNCS: Final = "fsync,fdatasync,msync,sync_file_range"
WRITES: Final = "pwrite64,pwritev,pwritev2"
READS: Final = "pread64,preadv,preadv2"
"""Of files only: what is written to and read from connections has other calls."""
ATTACH_S: Final = 5.0
CHANGED: Final = (b"(INJECTED)", b"(DELAYED)")
"""How strace marks a call that it has changed, or held."""


class NotTraced(MqError):
    """strace could not be attached; the text says why."""


class Tracer:
    """One strace on one process. ``injected``: calls that it has changed; ``fault``: on whose behalf;
    ``watching``: the task that counts them."""

    def __init__(self, process: asyncio.subprocess.Process, fault: str = "") -> None:
        self._process = process
        self.noted = Process.of(process.pid)
        self.fault = fault
        self.injected = 0
        self.watching: asyncio.Task[None] | None = None

    @classmethod
    async def attach(cls, pid: int, what: str, calls: str = SYNCS, fault: str = "") -> Tracer:
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
        return cls(process, fault)

    async def watch(self, count: int = 0) -> None:
        """Until ``count`` calls were changed; 0: until the process, or the tracing, ends."""
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.injected += any(mark in line for mark in CHANGED)
            if count and self.injected >= count:
                return

    async def end(self) -> None:
        """Let go of the process."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            await self._process.wait()
        if self.watching is not None and self.watching is not asyncio.current_task():
            await asyncio.wait([self.watching])
