"""A site's authority and certificates, and what one does with them in tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvloop

from remoting.codec import Command
from remoting.service import Guard, Limits, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from runtime.tls.making import Pair, issue, make_authority
from runtime.tls.network import TlsNetwork
from runtime.tls.places import Places
from runtime.tls.state import TlsState
from tests.remoting.support import HOST, echo

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run_on(loop: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await work()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(limited())


@dataclass
class Site:
    """PEM files in ``directory``, of one authority."""

    directory: Path
    name: str = "site"

    def __post_init__(self) -> None:
        self.authority = make_authority(self.name, 30)
        self.ca = self._write("ca.pem", self.authority.cert)
        self.put("server", self.pair())
        self.put("client", issue(self.authority, "client", 30, server=False))

    def pair(self, days: int = 30, hosts: tuple[str, ...] = (HOST, "localhost"), ago: int = 0) -> Pair:
        """A server's, made ``ago`` days ago."""
        now = datetime.now(UTC) - timedelta(days=ago)
        return issue(self.authority, "server", days, hosts, server=True, now=now)

    def put(self, name: str, pair: Pair) -> None:
        self._write(f"{name}.pem", pair.cert)
        self._write(f"{name}.key", pair.key)

    def path(self, name: str) -> str:
        return str(self.directory / f"{self.name}-{name}")

    def _write(self, name: str, data: bytes) -> str:
        path = Path(self.path(name))
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)

    def server(self, mode: str = "enforcing", **more: str) -> dict[str, str]:
        """Keys of a server: ``need_client_auth="require"`` is ``tls.server.need.client.auth``."""
        return {
            "tls.server.mode": mode,
            "tls.server.certPath": self.path("server.pem"),
            "tls.server.keyPath": self.path("server.key"),
            "tls.client.trustCertPath": self.ca,
            **more,
        }

    def client(self, *, shows: bool = False, **more: str) -> dict[str, str]:
        """Keys of a client that believes this site, and shows its certificate if ``shows``."""
        values = {"tls.enable": "true", "tls.client.trustCertPath": self.ca}
        if shows:
            values["tls.client.certPath"] = self.path("client.pem")
            values["tls.client.keyPath"] = self.path("client.key")
        return {**values, **more}


@contextlib.asynccontextmanager
async def serving(
    state: TlsState, places: Places | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[RemotingServer, str]]:
    """A server that answers what it is sent."""
    env = OsEnv(network=TlsNetwork(state, places))
    guard = Guard("test", limits or Limits(), env.monotonic_ms)
    server = RemotingServer(env, "test", echo, guard=guard)
    port = await server.start(HOST, 0)
    try:
        yield server, f"{HOST}:{port}"
    finally:
        await server.stop()


async def ask(address: str, values: dict[str, str] | None, body: bytes = b"x") -> bytes:
    """What the server answers to a new client; ``values`` None: one without TLS. Raises as ``call``."""
    env = OsEnv() if values is None else OsEnv(network=TlsNetwork(TlsState(values)))
    client = RemotingClient(env, "client")
    try:
        return (await client.call(address, Command(1, {}, body))).body
    finally:
        await client.close()
