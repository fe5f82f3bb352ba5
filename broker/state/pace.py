"""When may this broker write a copy of a long record that its log has?

A client that hands a message back sends 300 bytes, and has megabytes written; so does a half that nobody
ends, at each check. Nothing on the wire bounds that, as it does for sends. Such copies are written one at a
time, and none while the log is further ahead of what is confirmed than a little: replication goes first.
Connections take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from model.codes import Response
from model.errors import Refused
from runtime.turns import Peer, Turns

LONG_BYTES: Final = 64 << 10
"""A shorter record is as cheap as a send."""
AHEAD_BYTES_MAX: Final = 2 << 20
STEP_S: Final = 0.005


class Pace:
    """``ahead``: how many bytes of the log are not confirmed. ``wait_ms``: so long a copy waits for them."""

    def __init__(
        self, clock_ms: Callable[[], float], ahead: Callable[[], int], wait_ms: Callable[[], float]
    ) -> None:
        self.ahead = ahead
        self._clock_ms = clock_ms
        self._wait_ms = wait_ms
        self._turns = Turns(clock_ms)

    @asynccontextmanager
    async def turn(self, peer: Peer, size: int) -> AsyncIterator[None]:
        """Write a copy of ``size`` bytes within. Raises Refused: see ``room``, and PeerLeft."""
        if size < LONG_BYTES:
            yield
            return
        async with self._turns.take(peer):
            await self.room()
            yield

    async def room(self) -> None:
        """Return when a long copy may be written. Raises Refused when the copies of the log lag behind."""
        deadline_ms = self._clock_ms() + self._wait_ms()
        while self.ahead() > AHEAD_BYTES_MAX:
            if self._clock_ms() >= deadline_ms:
                raise Refused(
                    f"{self.ahead()} bytes of the log are not confirmed yet, try again", Response.SYSTEM_BUSY
                )
            await asyncio.sleep(STEP_S)
