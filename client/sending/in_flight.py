"""How many sends that nobody waits for are out at once, by number and by bytes?"""

from __future__ import annotations

import asyncio

from client.message import SendFailed, SendResult
from model.codes import Response


class InFlight:
    """The sends of ``send_async``. Holds: at most ``count_max`` of them are out, with at most ``bytes_max``
    bytes of bodies; one alone may be larger. Who gives up waiting for one does not end
    it: it is out until ``end``."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[asyncio.Future[SendResult], int] = {}
        self._ended = asyncio.Event()

    def why_full(self, size_bytes: int) -> str:
        """Why one more of ``size_bytes`` has no room; empty when it has."""
        if len(self._sizes) >= self._count_max:
            return f"{self._count_max} sends are in flight"
        if self._sizes and self._bytes + size_bytes > self._bytes_max:
            return f"sends of {self._bytes} bytes are in flight, at most {self._bytes_max} are allowed"
        return ""

    def add(self, size_bytes: int) -> asyncio.Future[SendResult]:
        """Raises SendFailed when it has no room."""
        why = self.why_full(size_bytes)
        if why:
            raise SendFailed(why, Response.SYSTEM_BUSY, ())
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._sizes[future] = size_bytes
        self._bytes += size_bytes
        return future

    async def room(self, size_bytes: int) -> None:
        """Return when ``add`` of ``size_bytes`` would not be refused."""
        while self.why_full(size_bytes):
            self._ended.clear()
            await self._ended.wait()

    def end(self, future: asyncio.Future[SendResult]) -> None:
        self._bytes -= self._sizes.pop(future, 0)
        self._ended.set()
