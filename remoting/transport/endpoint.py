"""What do the connections of one port, or of one client, have in common?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from remoting.auth import ACCESS_KEY
from remoting.codec import Command
from remoting.guard import Guard
from remoting.keys import Signer
from remoting.transport.inbox import scratch
from runtime.tasks import Tasks

CLOSING_S: Final = 5.0  # after close(): time for the last bytes to leave


class One(Protocol):
    """A connection, as far as what it has in common with the others is concerned."""

    @property
    def closed(self) -> bool: ...

    @property
    def handling(self) -> int: ...

    @property
    def last_io(self) -> float: ...

    def enforce_limits(self, now: float) -> None: ...

    def excuse(self, for_s: float, now: float) -> None: ...

    def regulate(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=One)
Contra = TypeVar("Contra", contravariant=True)


class Buffers(Protocol[Contra]):
    """Handles the frequent requests of a whole read buffer in one call."""

    def process(
        self, connection: Contra, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]] | None:
        """Handle the whole frames in ``buffer[start:end]``; where the first one that is not whole begins, and
        copies of those left to the handler, in order. None: all of them are whole and put aside, for the end
        of this turn of the loop; nothing was done yet that may take long. ``buffer`` is the server's own and
        is overwritten after the call: keep copies, no views. Answers go through ``connection.write``, now or
        later. Raises PeerError to end the connection.
        """


class Endpoint(Generic[C]):
    """The handler, the guard, the tasks and the buffer."""

    def __init__(
        self,
        name: str,
        handler: Callable[[C, Command], Awaitable[Command | None]] | None,
        guard: Guard,
        *,
        fast: Buffers[C] | None = None,
        on_open: Callable[[C], object] | None = None,
        on_close: Callable[[C], object] | None = None,
        credentials: Signer | None = None,
    ) -> None:
        self.name = name
        self.handler = handler
        self.guard = guard
        self.fast = fast
        self.on_open = on_open
        self.on_close = on_close
        self.credentials = credentials
        self.signs = False  # what this side asks for
        self.going_away = False
        self.held = False
        self.stopped = False
        self.tasks = Tasks(name)
        self.scratch = scratch()
        self.connections: dict[C, None] = {}  # in order of arrival
        self.emptied = asyncio.Event()

    def outgoing(self, request: Command) -> Command:
        """``request`` as it is sent: signed, where this side signs."""
        if not self.signs or self.credentials is None or ACCESS_KEY in request.ext:
            return request  # one that is handed on has the signature of who asked first
        return self.credentials.signed(request)

    def hold(self, held: bool) -> None:
        """Read nothing more from any connection while ``held``."""
        self.held = held
        for connection in self.connections:
            connection.regulate()

    def dismiss(self, quiet_s: float) -> float | None:
        """Close the connections that were silent for ``quiet_s`` and have nothing under way; when to look
        again (the loop's clock), None when all are closed."""
        now = asyncio.get_running_loop().time()
        again: list[float] = []
        for connection in [c for c in self.connections if not c.closed]:
            until = now + quiet_s if connection.handling else connection.last_io + quiet_s
            if until > now:
                again.append(until)
            else:
                connection.close()
        return min(again, default=None)

    async def stop(self) -> None:
        """Send what is written, end all connections and requests; takes at most ``CLOSING_S``."""
        self.stopped = True
        for connection in list(self.connections):
            connection.close()
        await self.tasks.cancel()
        if self.connections:
            self.emptied.clear()
            try:
                async with asyncio.timeout(CLOSING_S):
                    await self.emptied.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
