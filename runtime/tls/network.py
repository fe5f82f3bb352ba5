"""TCP of the operating system, with TLS where the files say so: for requests, or for HA links."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from model.config.tls import Mode, TlsConfig
from runtime.env import Env, Listener, P
from runtime.os_env import BACKLOG, OsNetwork
from runtime.tls.door import SHUTDOWN_S, Door
from runtime.tls.places import Places
from runtime.tls.state import TlsState
from runtime.tls.watch import LOOK_S
from runtime.tls.words import told


class TlsDialer(OsNetwork):
    """Dials with TLS, listens without: what a client needs."""

    def __init__(self, state: TlsState, dials: Callable[[TlsConfig], bool]) -> None:
        self._state = state
        self._dials = dials
        self._looked_ms = -math.inf

    async def look(self, env: Env) -> None:
        """See ``runtime.env.FollowsFiles``: several may ask, each every ``LOOK_S``."""
        now_ms = env.monotonic_ms()
        if now_ms - self._looked_ms >= LOOK_S * 1000 / 2:
            self._looked_ms = now_ms
            await self._state.look_off_loop(env)

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, timeout_s: float = 3.0
    ) -> tuple[asyncio.Transport, P]:
        now = self._state.now
        if not self._dials(now.config):
            return await super().connect(factory, host, port, timeout_s=timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().create_connection(
                    factory,
                    host,
                    port,
                    ssl=now.client,
                    server_hostname=host,
                    ssl_handshake_timeout=timeout_s,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            raise ConnectionError(f"TLS handshake failed: {told(error)}") from error


class TlsNetwork(TlsDialer):
    """Listens with a door (``runtime.tls.door``), too."""

    def __init__(self, state: TlsState, places: Places | None = None, *, ha: bool = False) -> None:
        super().__init__(state, _dials_ha if ha else _dials)
        self._places = places or Places()
        self._mode: Final[Callable[[TlsConfig], Mode]] = _ha_mode if ha else _mode

    async def _listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **more: Any
    ) -> Listener:
        door = Door(factory, self._state, lambda: self._mode(self._state.now.config), self._places)
        return await listen(door, host, port, **more)


async def listen(door: Door, host: str, port: int, **more: Any) -> Listener:
    """Open ``door`` at a port. Raises OSError."""
    # It binds as it does everywhere (names, both families, shared ports), and never serves.
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, reuse_address=True, start_serving=False, **more
    )
    try:
        bound: int = server.sockets[0].getsockname()[1]
        for one in server.sockets:
            own = socket.socket(fileno=os.dup(one.fileno()))
            try:
                own.listen(BACKLOG)
            except OSError:
                own.close()
                raise
            door.open(own)
    except OSError:
        door.close()
        raise
    finally:
        server.close()
    return _Open(door, bound)


class _Open:
    def __init__(self, door: Door, port: int) -> None:
        self.door = door
        self.port = port

    def close(self) -> None:
        self.door.close()


def _dials(config: TlsConfig) -> bool:
    return config.dials


def _dials_ha(config: TlsConfig) -> bool:
    return config.dials_ha


def _mode(config: TlsConfig) -> Mode:
    return config.mode


def _ha_mode(config: TlsConfig) -> Mode:
    return config.ha_mode
