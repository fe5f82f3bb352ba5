"""Until when may who delivers out of a topic rest, in which nothing waits? Until something arrives there.

A look ten times a second at a topic that stays empty is a wakeup of the process each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

IDLE_S: Final = 1.0
"""Who rests looks all the same, so often: an arrival that nobody told of costs that much."""

Arrived = Sequence[tuple[str, int, int, int]]
"""See ``MessageStore.on_arrive``."""


class Resting:
    """Ends the rests in topics. A rest ends once: while its owner works, what arrives there costs nothing."""

    def __init__(self, on_arrive: list[Callable[[Arrived], None]]) -> None:
        self._wakes: dict[str, asyncio.Event] = {}
        on_arrive.append(self._arrived)

    def of(self, topic: str) -> Rest:
        return Rest(self._wakes, topic)

    def _arrived(self, arrived: Arrived) -> None:
        wakes = self._wakes
        for topic, _, _, _ in arrived if wakes else ():
            if topic in wakes:
                wakes.pop(topic).set()


class Rest:
    """One who delivers out of ``topic``. Out: ``wake``, set when something arrives there while it rests."""

    def __init__(self, wakes: dict[str, asyncio.Event], topic: str) -> None:
        self.wake = asyncio.Event()
        self._wakes = wakes
        self._topic = topic

    def begin(self) -> float:
        """Nothing waits now; returns how long to rest at most, s."""
        self._wakes[self._topic] = self.wake
        return IDLE_S
