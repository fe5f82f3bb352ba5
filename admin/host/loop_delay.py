"""How late does the event loop come to what is due, and why? It delays leases, heartbeats and answers.

What requests hold it for is told by ``runtime/report/slow_turns``. The rest is told here: a file system that
keeps a call waiting, a machine with too few CPUs, a process that was stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, NamedTuple

from runtime.report.complaints import Complaints
from runtime.report.histogram import Histogram
from runtime.report.lasting import lasting

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
LATE_S: Final = 0.5
"""A third of the silence after which a broker is taken for dead."""
_SCHEDULED: Final = "/proc/thread-self/schedstat"


class Usage(NamedTuple):
    """Of this thread, since its start."""

    worked_s: float
    waited_s: float
    """For a CPU; 0 where the system does not tell."""

    @classmethod
    def now(cls) -> Usage:
        try:
            with open(_SCHEDULED, encoding="ascii") as file:
                worked_ns, waited_ns, _ = map(int, file.read().split())
        except (OSError, ValueError):
            return cls(time.thread_time(), 0.0)
        return cls(worked_ns / 1e9, waited_ns / 1e9)


class LoopDelay:
    """Looks as long as ``run`` runs; ``seen`` has what it saw."""

    def __init__(self) -> None:
        self.seen = Histogram()
        self._complaints = Complaints(log, time.monotonic)

    @lasting
    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        before = Usage.now()
        while True:
            due = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            now = Usage.now()
            self.look(loop.time() - due, before, now)
            before = now

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
