"""Which connections of a server or a client have been silent, half a frame, or closing for too long?

What a peer sent while this process stood still lies in its sockets: a peer's time limits run only while its
bytes are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic

from remoting.transport.endpoint import C, Endpoint
from runtime.turns import Unhurried

SWEEP_S: Final = 1.0
SWEPT_AT_ONCE: Final = 100
STILL_S: Final = 1.0
"""A look that is later than this found a loop that stood still: the process was stopped, or had no CPU."""


class _Looking(Unhurried):
    """Looks whether the loop stood still: of a work that is long but lets it go round, it did not."""

    def __init__(self, clock_ms: Callable[[], float], stood_still: Callable[[float], bool]) -> None:
        super().__init__(clock_ms)
        self._stood_still = stood_still

    async def breathe(self) -> None:
        await super().breathe()
        self._stood_still(0.0)


class Sweeps(Generic[C]):
    """Of one endpoint. ``look`` is called ``SWEEP_S`` after it ended, or late."""

    def __init__(self, endpoint: Endpoint[C]) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._looked_at = self._loop.time()

    async def look(self) -> None:
        """Close what is beyond a limit."""
        endpoint, loop = self._endpoint, self._loop
        slice_ = Unhurried(lambda: loop.time() * 1000)
        stood_still = self._stood_still(SWEEP_S)
        for at, connection in enumerate(list(endpoint.connections)):
            if at % SWEPT_AT_ONCE == 0:
                await slice_.breathe()
            if stood_still or self._stood_still(0.0):
                break  # what came meanwhile is read before anybody is judged
            if connection in endpoint.connections:
                connection.enforce_limits(loop.time())
        if endpoint.credentials is not None:
            endpoint.credentials.look()
        endpoint.guard.sweep()
        await endpoint.guard.recount(_Looking(lambda: loop.time() * 1000, self._stood_still))
        self._stood_still(0.0)

    def _stood_still(self, due_s: float) -> bool:
        """Whether this look, due ``due_s`` after the one before, is so late that nobody was read meanwhile:
        that time is counted to no peer."""
        now = self._loop.time()
        late_s = now - self._looked_at - due_s
        self._looked_at = now
        if late_s <= STILL_S:
            return False
        for connection in self._endpoint.connections:
            connection.excuse(late_s, now)
        return True
