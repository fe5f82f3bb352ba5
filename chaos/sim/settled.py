"""Does the world still change, and what of a healthy one is overdue?

A story goes on to its next fault once nothing moves. What has to come by itself is waited for, and it is a
violation when it does not come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from broker.service import Broker
from chaos.history import History, Ok
from chaos.sim.cluster import SimCluster

STILL_MS_MIN: Final = 600.0
STILL_TIMES: Final = 4
"""A world in which brokers are down has to settle: it is left alone so much longer. One in which somebody is
silent is never skipped."""
HALF_OPEN_MS: Final = 4500.0
"""A client waits 3 s for its answer, and its next request 1 s for the reset that tells of the new machine."""
SILENT_MS: Final = 300.0
"""While a master that lacks nothing answers no send for so long there is something to wait for."""
GONE_BY_MS: Final = 1800.0
"""After an election members of before may still be on their way (``haMaxTimeSlaveNotCatchup``); then
Controllers are asked, and again if one was replaced."""


class Calm:
    """Since when has nothing been broken, and since when has nothing changed?"""

    def __init__(self) -> None:
        self._shape: object = None
        self._well_since_ms = self._still_since_ms = math.inf

    def look(
        self, now_ms: float, cluster: SimCluster, statuses: Mapping[str, dict[str, Any]], busy: bool
    ) -> None:
        shape = cluster.shape(statuses)
        if shape != self._shape or cluster.silent or busy:
            self._shape = shape
            self._still_since_ms = now_ms
        if busy or not cluster.well(statuses):
            self._well_since_ms = math.inf
        elif self._well_since_ms > now_ms:
            self._well_since_ms = now_ms

    def over(self, now_ms: float, calm_ms: int) -> bool:
        """Whether the world was well for ``calm_ms``, or still for a multiple of it; then anew."""
        well, still = now_ms - self._well_since_ms, now_ms - self._still_since_ms
        if well < calm_ms and still < max(STILL_MS_MIN, STILL_TIMES * calm_ms):
            return False
        self._shape, self._well_since_ms = None, math.inf
        return True


class Serving:
    """How long has a master that lacks nothing answered no send?"""

    def __init__(self, history: History) -> None:
        self._history = history
        self._looked = 0
        self._who: object = None
        self._since_ms = math.inf
        self.told = False
        """One violation is enough."""
        self._excused_until_ms = 0.0

    def on_power_failure(self, now_ms: float) -> None:
        """Clients do not hear that a connection ended with its machine: they wait in vain."""
        self._excused_until_ms = now_ms + HALF_OPEN_MS

    def look(self, now_ms: float, who: object) -> float:
        """Milliseconds since it answered, or since it is all right; 0 when it is not."""
        if now_ms < self._excused_until_ms:
            who = None
        events, self._looked = self._history.events[self._looked :], len(self._history)
        acked = any(isinstance(event, Ok) for event in events)
        if who is None or who != self._who or acked:
            self._who, self._since_ms = who, now_ms
        return now_ms - self._since_ms


class Departures:
    """Does a dead member leave the SyncStateSet? It holds back what consumers may read, and in mode *all*
    every answer. It leaves where the master lacks nothing and enough others live for an OK."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._who: object = None
        self._since_ms: dict[int, float] = {}
        self._told = False
        """One violation is enough."""

    @property
    def awaited(self) -> bool:
        """Whether a dead member is in the set, and is to leave it."""
        return bool(self._since_ms)

    def look(
        self, now_ms: float, who: tuple[str, int] | None, statuses: Mapping[str, Mapping[str, Any]]
    ) -> str | None:
        """``who``: the master that lacks nothing, and its epoch. What to say of one that should have left."""
        dead = self._dead(who[0], statuses) if who is not None else frozenset[int]()
        if who != self._who:
            self._who, self._since_ms = who, {}
        self._since_ms = {broker_id: self._since_ms.get(broker_id, now_ms) for broker_id in sorted(dead)}
        kept_ms = now_ms - min(self._since_ms.values(), default=math.inf)
        if kept_ms <= GONE_BY_MS or self._told:
            return None
        self._told = True
        return f"{sorted(dead)} in the set of {who} for {kept_ms:.0f} ms, at {now_ms:.0f} ms"

    def _dead(self, master: str, statuses: Mapping[str, Mapping[str, Any]]) -> frozenset[int]:
        """Members that no living broker is, while enough of those live for an OK."""
        living = {int(status["brokerId"]) for status in statuses.values()}
        dead = frozenset(statuses[master]["syncStateSet"]) - living
        needed = cast(Broker, self._cluster.nodes[master].server).context.ha.copies_needed
        return dead if len(living) >= needed else frozenset()


class Watch:
    """What the three say of one world. ``serves_ms``: how long a master that lacks nothing may answer no
    send; None: as long as it likes."""

    def __init__(self, cluster: SimCluster, history: History, serves_ms: int | None) -> None:
        self._cluster = cluster
        self._serves_ms = serves_ms
        self._calm = Calm()
        self._serving = Serving(history)
        self._departures = Departures(cluster)

    def on_power_failure(self) -> None:
        self._serving.on_power_failure(self._cluster.clock())

    def over(self, calm_ms: int) -> bool:
        """Whether there is nothing more to wait for."""
        return self._calm.over(self._cluster.clock(), calm_ms)

    def look(self, statuses: Mapping[str, dict[str, Any]], *, busy: bool, loading: bool) -> list[str]:
        """What is overdue, each told once. ``busy``: an operator is at work; ``loading``: clients send."""
        now_ms, overdue = self._cluster.clock(), []
        who = None if busy else self._cluster.serving(statuses)
        silent_ms = 0.0
        if self._serves_ms is not None and loading:
            silent_ms = self._serving.look(now_ms, who)
            if silent_ms > self._serves_ms and not self._serving.told:
                self._serving.told = True
                text = f"{who} for {silent_ms:.0f} ms, at {now_ms:.0f} ms"
                overdue.append(f"a master answers nothing: {text}")
        stays = self._departures.look(now_ms, who, statuses)
        if stays is not None:
            overdue.append(f"a dead member stays: {stays}")
        waits = busy or silent_ms > SILENT_MS or self._departures.awaited
        self._calm.look(now_ms, self._cluster, statuses, waits)
        return overdue
