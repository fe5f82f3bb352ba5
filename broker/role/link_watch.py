"""Which replicas are alive for the Controllers and do not follow this master?

A RocketMQ slave can stay with a former master for good (docs/mixed-groups.md). Any slave's way to the HA port
can be blocked while its heartbeats reach the Controllers. Then the group has one replica less than it seems.
A master in Controller mode asks for the list every LOOK_S and compares it with its HA links.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from model.errors import MqError
from model.ids import BrokerId

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
MISSING_MS: Final = 30_000
"""A living replica without a link for this long is worth a warning."""
AGAIN_MS: Final = 300_000
"""The same replica is warned of again after this."""


class Missing:
    """Which replicas are to be warned of. Pure: time comes as ``now_ms`` (monotonic)."""

    def __init__(self) -> None:
        self._since: dict[BrokerId, float] = {}
        self._warned: dict[BrokerId, float] = {}

    def look(
        self, alive: Collection[BrokerId], linked: Collection[BrokerId], now_ms: float
    ) -> list[tuple[BrokerId, float]]:
        """(id, ms without a link) of each living replica to warn of now, smallest id first."""
        without = sorted(set(alive) - set(linked))
        self._since = {i: self._since.get(i, now_ms) for i in without}
        self._warned = {i: at for i, at in self._warned.items() if i in self._since}
        found = [
            (i, now_ms - self._since[i])
            for i in without
            if now_ms - self._since[i] >= MISSING_MS
            and now_ms - self._warned.get(i, float("-inf")) >= AGAIN_MS
        ]
        self._warned.update((i, now_ms) for i, _ in found)
        return found

    def clear(self) -> None:
        """This broker is not master."""
        self._since.clear()
        self._warned.clear()


class LinkWatch:
    """``look`` is called every LOOK_S. ``alive`` asks the Controllers for the ids of the group's living
    replicas; ``linked`` gives the ids of slaves with an HA link, and this master's own, None while it is
    none."""

    def __init__(
        self,
        now_ms: Callable[[], float],
        alive: Callable[[], Awaitable[Collection[BrokerId]]],
        linked: Callable[[], Collection[BrokerId] | None],
    ) -> None:
        self._now_ms = now_ms
        self._alive = alive
        self._linked = linked
        self._missing = Missing()

    async def look(self) -> None:
        if self._linked() is None:
            self._missing.clear()
            return
        try:
            alive = await self._alive()
        except (MqError, OSError) as error:
            log.debug("the Controllers do not say which replicas are alive: %s", error)
            return
        linked = self._linked()
        for broker_id, ms in self._missing.look(alive, linked, self._now_ms()) if linked is not None else ():
            log.warning(
                "replica %d has no HA link to this master for %.0f s, but is alive for the Controllers:"
                " it follows another broker, or cannot reach the HA port; restart it",
                broker_id,
                ms / 1000,
            )
