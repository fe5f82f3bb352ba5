"""A connection of the hostile client: bytes out, frames in, and no wait without an end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from remoting.codec import Command, decode, frame_end

READ_BYTES: Final = 1 << 16
FRAME_BYTES_MAX: Final = 1 << 28


class Wire:
    """Use as ``async with``; it ends with an abort, as a hostile client's would."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._buffer = bytearray()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        """Raises OSError."""
        host, _, port = self._address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    async def send(self, data: bytes, timeout_s: float = 5.0) -> None:
        """Raises OSError, TimeoutError: the other side takes no more."""
        self._writer.write(data)
        await asyncio.wait_for(self._writer.drain(), timeout_s)

    def leave(self, data: bytes) -> None:
        """Write as much as goes at once, and never look back."""
        self._writer.write(data)

    async def answers(self, count: int, timeout_s: float) -> list[Command]:
        """Up to ``count`` whole frames; fewer when time is over or the other side ended it."""
        found: list[Command] = []
        try:
            async with asyncio.timeout(timeout_s):
                while len(found) < count and (data := await self._reader.read(READ_BYTES)):
                    self._buffer += data
                    self._cut(found)
        except (TimeoutError, OSError):
            return found
        return found

    async def until_closed(self, timeout_s: float) -> bool:
        """Read and forget; whether the other side ended it in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while await self._reader.read(READ_BYTES):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _cut(self, found: list[Command]) -> None:
        at = 0
        while end := frame_end(self._buffer, at, len(self._buffer), FRAME_BYTES_MAX):
            found.append(decode(bytes(self._buffer[at:end])))
            at = end
        del self._buffer[:at]
