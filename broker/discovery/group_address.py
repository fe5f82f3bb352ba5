"""Where does the master of this group answer, whichever broker it is?

With ``groupAddress=host:port`` the NameServers have that address under id 0 of the group, and only the master
listens on that port (on ``bindAddress``). A client that lost its master connects to the same address again
and reaches the successor, long before it asks a NameServer. The broker does not move the address between
hosts: on one host the port is shared, on several a virtual IP or a forwarder goes to the broker whose port
accepts. What it costs: docs/decisions/0006-group-address.md.

    master ──► listening ──► reading, once a write would be taken
                 ▲   │
     sole master │   │ for ALONE_S neither a lease nor acknowledgements of all slaves: there may be a
           again │   ▼ successor, and the forwarder or the virtual IP has to find that one
            not listening

Requests that come this way meet the same handlers as on the broker's own port, and so the same checks of
role, lease and epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from model.config import BrokerConfig
from model.settings import split_address
from remoting.service import RemotingServer
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.loops import level_triggered
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_MS: Final = 50
SUCCESSOR_S: Final = 0.5  # a master that left keeps its clients waiting so long for the next one
READY_S: Final = 0.5  # a new master keeps clients waiting so long instead of refusing them
PROBE_S: Final = 0.005
ALONE_S: Final = 1.0  # without a lease for less than this, a master goes on listening


class GroupAddress:
    """The listener of the group's address. Does nothing without ``groupAddress``.

    ``make_server``: a server with the broker's handlers, a new one each time it becomes master. ``refuses``:
    whether a write would be refused right now, as a new master does before it has its lease or its slaves.
    ``is_sole_master``: whether no other master can be there now. ``on_change`` hears that a master began to
    listen late, or stopped early: the NameServers are to know.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        make_server: Callable[[str], RemotingServer],
        *,
        refuses: Callable[[], bool],
        is_sole_master: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._env = env
        self._config = config
        self._make_server = make_server
        self._refuses = refuses
        self._is_sole_master = is_sole_master
        self._on_change = on_change
        self._held = False
        self._server: RemotingServer | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._listening = False
        self._tasks = Tasks("group address")

    @property
    def listening(self) -> bool:
        """Whether this broker is the master behind the address."""
        return self._listening

    async def open(self) -> None:
        """Listen. When the port is taken go on trying: the role does not depend on it. Requests are read once
        a write would be taken, or after ``READY_S``."""
        if not self._config.group_address or self._server is not None:
            return
        self._server = self._make_server(f"group {self._config.broker_name}")
        self._held = False
        if self._refuses():
            self._server.hold(True)
            self._tasks.spawn(self._begin(self._server), name="begin")
        try:
            await self._listen(self._server)
        except OSError as error:
            log.error("%s: cannot listen yet, trying again: %s", self._what, error)
        if self._server is not None:
            self._keeping = self._tasks.spawn(self._keep(self._server), name="listen")

    def hold(self, held: bool) -> None:
        """Read no requests while ``held``: a handover is under way, and the successor will take them."""
        if held == self._held:
            return  # a new master that is not ready goes on holding its clients
        self._held = held
        if self._server is not None:
            self._server.hold(held)

    def leave(self) -> None:
        """Not master any more: no new connections, and no requests are read.

        Clients that are connected wait until another broker answers at the address, ``SUCCESSOR_S`` at most.
        Then they are cut off, and the next try of each reaches the successor. Cut off at once, their few
        tries could be over before there is one.
        """
        server, self._server = self._server, None
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        self._listening = False
        if server is not None:
            server.hold(True)
            server.stop_accepting()
            self._tasks.spawn(self._part(server), name="leave")

    async def stop(self) -> None:
        """``leave``, and return when all connections have ended. May be called again."""
        self.leave()
        await self._tasks.join()

    def status(self) -> dict[str, Any] | None:
        """JSON-ready; None without a group address."""
        if not self._config.group_address:
            return None
        server = self._server
        return {
            "address": self._config.group_address,
            "listening": self._listening,
            "connections": len(server.connections) if server is not None else 0,
        }

    @property
    def _what(self) -> str:
        return f"{self._config.broker_name}: group address {self._config.group_address}"

    async def _listen(self, server: RemotingServer) -> None:
        _, port = split_address(self._config.group_address)
        await server.start(self._config.bind_address, port, shared=True)
        if server is not self._server:
            server.stop_accepting()  # it stepped down meanwhile
            return
        self._listening = True

    async def _keep(self, server: RemotingServer) -> None:
        """Listen while this is the sole master, and no more once it was not for ``ALONE_S``. Connections
        stay: if there is a successor, the forwarder or the virtual IP takes them along."""
        lapsed_ms: float | None = None  # since when another master is possible

        async def look() -> None:
            nonlocal lapsed_ms
            now_ms = self._env.monotonic_ms()
            # A handover gives the lease up, and lets clients wait.
            if self._held or self._is_sole_master():
                lapsed_ms = None
            elif lapsed_ms is None:
                lapsed_ms = now_ms
            if lapsed_ms is None and not self._listening:
                await self._listen(server)
                self._on_change()
            elif lapsed_ms is not None and self._listening and now_ms - lapsed_ms >= ALONE_S * 1000:
                log.warning("%s: no lease, so it is left to another master", self._what)
                self._listening = False
                server.stop_accepting()
                self._on_change()

        await level_triggered(
            look,
            asyncio.Event(),
            RETRY_MS / 1000,
            Backoff(self._env.random, RETRY_MS, RETRY_MS),
            self._what,
            on_error=lambda error: log.debug("%s: cannot listen: %s", self._what, error),
            ended=lambda: server is not self._server,
        )

    async def _begin(self, server: RemotingServer) -> None:
        for _ in range(round(READY_S / PROBE_S)):
            if not self._refuses():
                break
            await asyncio.sleep(PROBE_S)
        if server is self._server:
            server.hold(self._held)

    async def _part(self, server: RemotingServer) -> None:
        try:
            if server.connections:
                await self._successor()
        finally:
            await server.stop()

    async def _successor(self) -> None:
        """Return when the address accepts, or after ``SUCCESSOR_S``."""
        host, port = split_address(self._config.group_address)
        try:
            async with asyncio.timeout(SUCCESSOR_S):
                while True:
                    try:
                        transport, _ = await self._env.network.connect(
                            asyncio.Protocol, host, port, timeout_s=SUCCESSOR_S
                        )
                    except OSError:  # nobody there yet
                        await asyncio.sleep(PROBE_S)
                    else:
                        transport.abort()
                        return
        except TimeoutError:
            log.info("%s: no successor listens after %.1f s, clients are cut off", self._what, SUCCESSOR_S)
