"""Where does the master of this group answer, whichever broker it is?

With ``groupAddress=host:port`` the NameServers have that address under id 0 of the group, and only the master
listens on that port (on ``bindAddress``): a client that lost its master connects to the same address again
and is at the successor, long before it asks a NameServer. How the address gets to the right host is not the
broker's business: on one host the port is shared, on several a virtual IP or a forwarder goes to the broker
whose port accepts. What it costs: docs/decisions/0006-group-address.md.

    master ──► listen ──► read, once a write would be taken
                 ▲ │
        sure again │ neither a lease nor its slaves' word for UNSURE_S: a forwarder, or whoever holds the
                 │ ▼ virtual IP, shall find the successor, of which a master that is cut off never hears
               deaf

Nothing is believed because it came this way: requests meet the same handlers, and so the same checks of role,
lease and epoch, as on the broker's own port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from model.config import BrokerConfig
from model.settings import split_address
from remoting.service import RemotingServer
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.05
SUCCESSOR_S: Final = 0.5  # so long a master that left keeps its clients waiting for the next one
READY_S: Final = 0.5  # so long a new master keeps clients waiting instead of refusing them
PROBE_S: Final = 0.005
UNSURE_S: Final = 1.0  # a lapse of the lease this short moves nobody


class GroupAddress:
    """The listener of the group's address. Does nothing without ``groupAddress``.

    ``make_server``: a server with the broker's handlers, one for each time it becomes master. ``refuses``:
    whether a write would be refused right now, as a new master does before it has its lease or its slaves.
    ``sure``: whether this master may believe that there is no other one. ``on_change`` hears that a master
    began to listen late, or stopped early: the NameServers are to know.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        make_server: Callable[[str], RemotingServer],
        *,
        refuses: Callable[[], bool],
        sure: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._env = env
        self._config = config
        self._make_server = make_server
        self._refuses = refuses
        self._sure = sure
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
        """Listen; when the port is taken go on trying, as the role does not depend on it. Requests are read
        once a write would be taken, or after ``READY_S``."""
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
            log.error("cannot listen for group address %s, trying on: %s", self._config.group_address, error)
        if self._server is not None:
            self._keeping = self._tasks.spawn(self._keep(self._server), name="listen")

    def hold(self, held: bool) -> None:
        """Read no requests while ``held``: a handover is under way, and the successor will take them."""
        if held == self._held:
            return  # a new master may still keep its clients waiting for a reason of its own
        self._held = held
        if self._server is not None:
            self._server.hold(held)

    def leave(self) -> None:
        """Not master any more: no new connections, and no requests are read. Who is connected waits until
        somebody else answers at the address, ``SUCCESSOR_S`` at most, and is cut off then: a client that
        tries again is at the successor. Cut off at once, its few tries could be over before there is one."""
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

    async def _listen(self, server: RemotingServer) -> None:
        _, port = split_address(self._config.group_address)
        await server.start(self._config.bind_address, port, shared=True)
        if server is not self._server:
            server.stop_accepting()  # it stepped down meanwhile
            return
        self._listening = True

    async def _keep(self, server: RemotingServer) -> None:
        """Listen whenever this master is sure, and no more once it was unsure for ``UNSURE_S``. Who is
        connected stays: if there is a successor, a forwarder or the virtual IP takes them along."""
        unsure_s = 0.0
        while server is self._server:
            await asyncio.sleep(RETRY_S)
            # A handover gives the lease up, and lets clients wait.
            unsure_s = 0.0 if self._held or self._sure() else unsure_s + RETRY_S
            if self._listening and unsure_s >= UNSURE_S:
                log.warning("no lease: %s is left to another master", self._config.group_address)
                self._listening = False
                server.stop_accepting()
                self._on_change()
            elif not self._listening and not unsure_s:
                try:
                    await self._listen(server)
                except OSError as error:
                    log.debug("cannot listen for group address %s: %s", self._config.group_address, error)
                else:
                    self._on_change()

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
            log.info("nobody took %s over in time", self._config.group_address)
