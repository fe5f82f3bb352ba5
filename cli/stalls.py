"""When did this process not run? Its clock goes on and its event loop comes late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 0.01
STALL_MS: Final = 20.0
"""A loop that comes so late did not run: its process had no core, or something held it."""


class Stalls:
    """Notes when this process did not run. ``seen``: (from, to) in ms of the clock."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    async def run(self, clock: Callable[[], float]) -> None:
        while True:
            due_ms = clock() + PERIOD_S * 1000
            await asyncio.sleep(PERIOD_S)
            if clock() - due_ms >= STALL_MS:
                self.seen.append((due_ms, clock()))
