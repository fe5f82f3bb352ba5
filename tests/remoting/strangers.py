"""Clients that are only sockets, and who is a peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from model.codes import Request
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.guard import Guard, Share
from remoting.service import RemotingServer
from tests.remoting.support import HOST
from tests.waiting import until

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
KEY = Credentials("peers", "0123456789abcdef")
PEER = Command(Request.KEELMQ_COPY_TABLES)


@asynccontextmanager
async def dialled(address: str, source: str = HOST) -> AsyncIterator[Stream]:
    port = int(address.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0), limit=1 << 14)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def fill(stack: AsyncExitStack, server: RemotingServer, address: str, count: int) -> list[Stream]:
    found = [await stack.enter_async_context(dialled(address)) for _ in range(count)]
    await until(lambda: server.guard.status()["clients"] == count)
    return found


class Dialled:
    """A connection, as far as its guard is concerned."""

    def __init__(self, port: int) -> None:
        self.share = Share()
        self.remote = f"10.0.0.1:{port}"
        self.held = self.frame_bytes = 0
        self.ended = False
        self.guard: Guard | None = None

    def fail(self, why: object) -> None:
        self.ended = True
        if self.guard is not None:
            self.guard.on_end(self)

    def abort(self) -> None:
        self.ended = True
