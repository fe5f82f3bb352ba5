"""A server and a client on loopback, and how frames are read without ours."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from model.errors import PeerError, Refused
from remoting.codec import Command, decode
from remoting.service import Connection, Guard, Limits, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from tests import GOLDEN

FRAMES = GOLDEN / "remoting"
HOST = "127.0.0.1"


async def echo(connection: Connection, request: Command) -> Command | None:
    if request.ext.get("refuse"):
        raise Refused("no", 17)
    if request.ext.get("fail"):
        raise KeyError("lost")
    if request.ext.get("broken"):
        raise PeerError("not a body")
    if request.ext.get("never"):
        return None
    if delay := request.ext.get("delay"):
        await asyncio.sleep(float(delay))
    return request.reply(0, ext=request.ext, body=request.body)


@asynccontextmanager
async def serving(
    handler: Any = echo, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[RemotingServer, str]]:
    env = OsEnv(seed=1)
    guard = Guard("test", limits or Limits(), env.monotonic_ms)
    server = RemotingServer(env, "test", handler, guard=guard, **options)
    port = await server.start(HOST, 0)
    try:
        yield server, f"{HOST}:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(**options: Any) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(OsEnv(seed=1), "client", **options)
    try:
        yield client
    finally:
        await client.close()


async def read_command(reader: asyncio.StreamReader) -> Command:
    start = await reader.readexactly(4)
    return decode(start + await reader.readexactly(int.from_bytes(start, "big")))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(limited())


def golden(name: str, role: str = "request") -> Command:
    """A frame of the real RocketMQ. ``role``: "request" or "response"."""
    for path in sorted(FRAMES.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            if (vector["name"], vector["role"]) == (name, role):
                return decode(bytes.fromhex(vector["hex"]))
    raise LookupError(name)


def busy(seconds: float) -> None:
    """Hold the event loop."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass
