"""When does Python look through all objects for garbage? It holds the event loop for as long as that takes.

A look at what is new costs 1 to 2 ms. A look at everything costs 0.3 us an object: a table of 20,000 topics,
or the requests of a flood, make that 50 to 200 ms, and Python looks whenever a quarter is new. A server does
not wait for that moment: what is there after its start is never looked at again, the rest every ``LOOK_S``,
or when the process has grown by ``GROWN_BYTES``, and everything once in ``ALL_S``.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from typing import Final

from admin.host.allocator import Allocator
from runtime.report.lasting import lasting
from runtime.tasks import every

log = logging.getLogger(__name__)

YOUNG: Final = (1000, 10)
NEVER: Final = 1 << 30
WAKE_S: Final = 5.0
LOOK_S: Final = 600.0
ALL_S: Final = 6 * 3600.0
GROWN_BYTES: Final = 64 << 20
TELL_S: Final = 0.05


def is_due(since_look_s: float, grown_bytes: int) -> bool:
    """Whether what is new since the last look is to be looked through."""
    return since_look_s >= LOOK_S or grown_bytes >= GROWN_BYTES


class Collector:
    """Of one process. ``begin`` once the server has started."""

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, rss: Callable[[], int] | None = None
    ) -> None:
        self._allocator = Allocator(clock_s)
        self._clock_s = clock_s
        self._rss = rss or resident_bytes
        self._looked_s = self._all_s = clock_s()
        self._rss_then = 0

    def begin(self) -> None:
        self._allocator.begin()
        gc.set_threshold(*YOUNG, NEVER)
        self._look()

    def end(self) -> None:
        """As Python has it."""
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)

    @lasting
    async def run(self) -> None:
        """For ever."""
        await every(WAKE_S, self.step, what="garbage collection")

    def step(self) -> None:
        self._allocator.step()
        now_s = self._clock_s()
        if now_s - self._all_s >= ALL_S:
            self._all_s = now_s
            gc.unfreeze()
            self._look()
        elif is_due(now_s - self._looked_s, self._rss() - self._rss_then):
            self._look()

    def _look(self) -> None:
        began_s = time.perf_counter()
        gc.collect()
        gc.freeze()
        took_s = time.perf_counter() - began_s
        log.log(
            logging.INFO if took_s >= TELL_S else logging.DEBUG,
            "garbage collection held the event loop for %.0f ms",
            took_s * 1000,
        )
        self._looked_s, self._rss_then = self._clock_s(), self._rss()


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
