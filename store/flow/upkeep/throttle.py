"""When may background work go on?

Catching up with the index, reading the whole log again, writing back what memory holds: nobody waits for it.
It runs in steps of about a millisecond, pauses as long as a step took, and stands still while a change of
role needs the loop and the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

STEP_PAUSE_S: Final = 0.001
"""The least rest between two steps: the loop's timers are no finer."""
POSTPONE_S: Final = 0.5


class Throttle:
    """How long background work has to rest."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def postpone(self) -> None:
        """For the next POSTPONE_S nothing begins that can wait."""
        self._until_s = asyncio.get_running_loop().time() + POSTPONE_S

    @property
    def left_s(self) -> float:
        """Seconds until work that can wait may go on, 0 when it may."""
        return max(self._until_s - asyncio.get_running_loop().time(), 0.0)

    async def wait(self, pause: Callable[[float], Awaitable[bool]], begun_s: float) -> bool:
        """Rest from a step begun at ``begun_s`` of the loop's clock, as long as it took: on a busy machine
        that was long. Then give way. False as soon as ``pause`` (seconds) says that the store closes."""
        left_s = max(asyncio.get_running_loop().time() - begun_s, STEP_PAUSE_S)
        while left_s > 0:
            if not await pause(left_s):
                return False
            left_s = self.left_s
        return True
