"""Until when may who delivers out of a topic rest, in which nothing waits? Until something arrives there.

A look ten times a second at a topic that stays empty is a wakeup of the process each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from store.flow.dispatching.arrivals import Arrival, Listening, OnArrive

IDLE_S: Final = 1.0
"""Who rests looks all the same, so often: an arrival that nobody told of costs that much."""


class Resting:
    """Ends the rests in topics. A rest ends once: while its owner works, what arrives there costs nothing."""

    def __init__(self, on_arrive: list[OnArrive]) -> None:
        self._wakes: dict[str, asyncio.Event] = {}
        self._listening = Listening(on_arrive, self._arrived)

    def of(self, topic: str) -> Rest:
        return Rest(self, topic)

    def begin(self, topic: str, wake: asyncio.Event) -> None:
        """``wake`` is set when something arrives in ``topic``."""
        self._wakes[topic] = wake
        self._listening.begin()

    def _arrived(self, arrived: Sequence[Arrival]) -> None:
        wakes = self._wakes
        for topic, _, _, _ in arrived:
            if topic in wakes:
                wakes.pop(topic).set()
        if not wakes:
            self._listening.end()


class Rest:
    """One who delivers out of ``topic``. Out: ``wake``, set when something arrives there while it rests."""

    def __init__(self, resting: Resting, topic: str) -> None:
        self.wake = asyncio.Event()
        self._resting = resting
        self._topic = topic

    def begin(self) -> float:
        """Nothing waits now; returns how long to rest at most, s."""
        self._resting.begin(self._topic, self.wake)
        return IDLE_S
