"""How late does the event loop come to what is due? What holds it delays leases, heartbeats and answers."""

from __future__ import annotations

import asyncio
from typing import Final

from runtime.report.histogram import Histogram
from runtime.report.lasting import lasting

PERIOD_S: Final = 0.25


class LoopDelay:
    """Looks as long as ``run`` runs; ``seen`` has what it saw."""

    def __init__(self) -> None:
        self.seen = Histogram()

    @lasting
    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.seen.observe(loop.time() - due)
