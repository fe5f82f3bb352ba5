"""How late does the event loop come to what is due, and why? It delays leases, heartbeats and answers.

What requests hold it for is told by ``runtime/report/slow_turns``. The rest is told here: a file system that
keeps a call waiting, a machine with too few CPUs, a process that was stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from runtime.report.complaints import Complaints
from runtime.report.histogram import Histogram
from runtime.report.lasting import lasting

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
LATE_S: Final = 0.5
"""A third of the silence after which a broker is taken for dead."""
_SCHEDULED: Final = "/proc/thread-self/schedstat"
_LINE_BYTES: Final = 256
_NO_FILE: Final = -1


class Usage(NamedTuple):
    """Of this thread, since its start."""

    worked_s: float
    waited_s: float
    """For a CPU; 0 where the system does not tell."""


class Meter:
    """Tells ``Usage`` of the thread that made it. It keeps the file open: a look that opens it costs eight
    times as much, 10 us."""

    def __init__(self) -> None:
        try:
            self._file = os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = _NO_FILE

    def now(self) -> Usage:
        try:
            worked_ns, waited_ns, _ = map(int, os.pread(self._file, _LINE_BYTES, 0).split())
        except (OSError, ValueError):
            return Usage(time.thread_time(), 0.0)
        return Usage(worked_ns / 1e9, waited_ns / 1e9)

    def close(self) -> None:
        if self._file != _NO_FILE:
            os.close(self._file)
            self._file = _NO_FILE


class LoopDelay:
    """Looks as long as ``run`` runs; ``seen`` has what it saw. ``also`` is called with each look: what else
    must be looked at as often wakes the process no second time."""

    def __init__(self, also: Callable[[], None] = lambda: None) -> None:
        self._also = also
        self.seen = Histogram()
        self._complaints = Complaints(log, time.monotonic)

    @lasting
    async def run(self) -> None:
        loop, meter = asyncio.get_running_loop(), Meter()
        try:
            before = meter.now()
            while True:
                due = loop.time() + PERIOD_S
                await asyncio.sleep(PERIOD_S)
                now = meter.now()
                self.look(loop.time() - due, before, now)
                before = now
                self._look_also()
        finally:
            meter.close()

    def _look_also(self) -> None:
        try:
            self._also()
        except Exception:
            log.exception("what is looked at beside the event loop failed; trying again in %.1f s", PERIOD_S)

    def look(self, late_s: float, before: Usage, now: Usage) -> None:
        """The loop came so late to this look; what its thread had done at the one before, and has now."""
        self.seen.observe(late_s)
        if late_s >= LATE_S:
            worked_s, waited_s = now.worked_s - before.worked_s, now.waited_s - before.waited_s
            self._complaints.warn(
                "the event loop came %.1f s late to what was due: meanwhile it worked for %.1f s, waited for"
                " a CPU for %.1f s, and for %.1f s at least in a call of the system (a disk), or was stopped",
                *(late_s, worked_s, waited_s, max(late_s - worked_s - waited_s, 0.0)),
            )
