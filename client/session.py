"""What does one client share among its producers and consumers? Links, routes, heartbeats, requests from
brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from client.routes import Route, Routes
from model.codes import Request, Response
from model.errors import MqError, Refused
from model.settings import addresses
from remoting import bodies
from remoting.codec import Command
from remoting.keys import Signer
from remoting.service import Connection, RemotingClient
from runtime.env import Env, FollowsFiles
from runtime.tasks import Tasks, every
from runtime.tls.watch import LOOK_S

log = logging.getLogger(__name__)

POLL_MS: Final = 5_000
"""Shorter than the original's 30 s: it bounds how long a consumer waits at a master that went silent."""
HEARTBEAT_MS: Final = 30_000
CALL_TIMEOUT_S: Final = 3.0
ANSWERS_S: Final = 1.0
"""How long answers of a master that was just succeeded are still awaited."""

Handler = Callable[[Connection, Command], Awaitable[Command | None]]


class Session:
    """One client as brokers see it: a client id, one link per address, heartbeats for its groups.

    Used by ``Producer``, ``PullConsumer`` and ``PushConsumer``; several of them may share one session.
    ``namesrv`` is ``host:port;host:port`` or a list; times in ms. With ``credentials``
    every request is signed.
    """

    def __init__(
        self,
        env: Env,
        namesrv: str | Sequence[str],
        *,
        client_ip: str = "127.0.0.1",
        poll_ms: int = POLL_MS,
        credentials: Signer | None = None,
    ) -> None:
        self.env = env
        self.client_ip = client_ip
        self.client_id = f"{client_ip}@{env.random.getrandbits(48):012x}"
        self.remoting = RemotingClient(
            env,
            f"client {self.client_id}",
            handler=self._asked,
            on_close=self._closed,
            credentials=credentials,
        )
        # It is the application's loop, which may be held for its own reasons.
        self.remoting.guard.slow.level = logging.INFO
        nameservers = addresses(namesrv) if isinstance(namesrv, str) else list(namesrv)
        self.routes = Routes(env, self.remoting, nameservers, poll_ms=poll_ms)
        self.routes.on_change.append(self._route_changed)
        self._tasks = Tasks(f"client {self.client_id}")
        self._producers: dict[str, None] = {}
        self._consumers: dict[str, Callable[[], dict[str, Any]]] = {}
        self._handlers: dict[int, list[Handler]] = {}
        self._known: dict[str, Connection] = {}  # over which connection an address heard the last heartbeat
        self._users = 0
        self.on_link_closed: list[Callable[[str], None]] = []

    async def start(self) -> None:
        """Begin to poll routes and to beat. Counted: the last ``stop`` ends the session."""
        self._users += 1
        if self._users == 1:
            self.routes.start()
            self._tasks.spawn(self._beat_forever(), name="heartbeat")
            if isinstance(network := self.env.network, FollowsFiles):
                look = partial(network.look, self.env)
                self._tasks.spawn(every(LOOK_S, look, what="TLS: files"), name="files")

    async def stop(self) -> None:
        self._users -= 1
        if self._users > 0:
            return
        await self._tasks.cancel()
        await self.routes.stop()
        await self.remoting.close()

    def handle(self, code: int, handler: Handler) -> None:
        """Let ``handler`` see requests of ``code`` that brokers send to this client."""
        self._handlers.setdefault(code, []).append(handler)

    def add_producer(self, group: str) -> None:
        self._known.clear()
        self._producers[group] = None

    def add_consumer(self, group: str, data: Callable[[], dict[str, Any]]) -> None:
        """``data`` gives the consumer's part of each heartbeat."""
        self._consumers[group] = data

    async def remove_producer(self, group: str) -> None:
        self._producers.pop(group, None)
        await self._unregister({"producerGroup": group})

    async def remove_consumer(self, group: str) -> None:
        self._consumers.pop(group, None)
        await self._unregister({"consumerGroup": group})

    async def call(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        accept: Sequence[int] = (Response.SUCCESS,),
    ) -> Command:
        """Ask ``address``. Raises Refused with the answer's code unless ``accept`` lists it, Unknown when no
        answer came, OSError when nothing was sent."""
        response = await self.remoting.call(address, Command(code, dict(ext or {}), body), timeout_s)
        if response.code not in accept:
            raise Refused(response.remark or f"{address} answered {response.code}", response.code)
        return response

    async def beat(self, only: str | None = None) -> None:
        """Send a heartbeat to every known broker (or only to one); one that cannot be reached is logged."""
        addresses = [only] if only else self._brokers()
        # Side by side: one that is frozen must not keep the others waiting for their heartbeat.
        beats = [self._tasks.spawn(self._beat_one(a), name=f"beat.{a}") for a in addresses]
        for task in beats:
            await task

    async def be_known(self, addresses: Sequence[str]) -> None:
        """Beat at those of ``addresses`` that did not hear of this client over their connection of now."""
        tasks = []
        for address in addresses:
            known = self._known.get(address)
            if known is None or known is not self.remoting.open_to(address):
                tasks.append(self._tasks.spawn(self._beat_one(address), name=f"beat.{address}"))
        if tasks:
            await asyncio.wait(tasks)  # who gives up waiting ends no heartbeat

    async def _beat_one(self, address: str) -> None:
        # A link to a machine that lost power looks alive until something is sent over it: then once more, as
        # the broker that is there now asks a producer it knows about transactions, and no other.
        for _ in range(2):
            before = self.remoting.open_to(address)
            if (
                await self._beat_over_link(address)
                or before is None
                or before is self.remoting.open_to(address)
            ):
                return

    async def _beat_over_link(self, address: str) -> bool:
        try:
            connection = await self.remoting.connection(address, CALL_TIMEOUT_S)
            await self.call(address, Request.HEART_BEAT, body=self._heartbeat())
        except (OSError, MqError) as error:
            log.info("heartbeat to %s: %s", address, error or type(error).__name__)
            return False
        if connection is self.remoting.open_to(address):
            self._known[address] = connection
        return True

    def _brokers(self) -> list[str]:
        # Producers matter to masters only; consumers may be served by slaves, which then must know them.
        found: dict[str, None] = {}
        for route in self.routes.all():
            found.update(dict.fromkeys(route.addresses() if self._consumers else route.masters()))
        return list(found)

    def _heartbeat(self) -> bytes:
        return bodies.dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [data() for data in self._consumers.values()],
                "heartbeatFingerprint": 0,
                "producerDataSet": [{"groupName": group} for group in self._producers],
                "withoutSub": False,
            }
        )

    async def _beat_forever(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def _unregister(self, group: Mapping[str, str]) -> None:
        ext = {"clientID": self.client_id, **group}

        async def one(address: str) -> None:
            try:
                await self.call(address, Request.UNREGISTER_CLIENT, ext, timeout_s=1.0)
            except (OSError, MqError) as error:
                # The broker forgets a silent client by itself; saying goodbye only makes it sooner.
                log.debug("unregister at %s: %s", address, error)

        tasks = [self._tasks.spawn(one(address), name="unregister") for address in self._brokers()]
        for task in tasks:
            await task

    def _route_changed(self, former: Route | None, route: Route) -> None:
        known = set(former.masters()) if former else set()
        for address in route.masters():
            # A new master does not know its clients until they beat: without this a rebalance waits 30 s.
            if address not in known and (self._producers or self._consumers):
                self._tasks.spawn(self._beat_one(address), name=f"beat.{address}")
        if former is None:
            return
        for group, ids in former.brokers.items():
            old, new = ids.get(0), route.master(group)
            if old is not None and new is not None and new != old:
                # It is master no more: what still waits there (a held pull) is not answered any more. But one
                # that handed over in order answered its sends, and those answers may be on their way.
                if self.routes.silent(old):
                    self.remoting.drop(old)
                else:
                    self.remoting.retire(old, ANSWERS_S)

    def _closed(self, connection: Connection) -> None:
        if self._users > 0:  # else it was closed by us, and nobody waits for a new master
            self.routes.link_closed(connection.address)
        if self._known.get(connection.address) is connection:
            del self._known[connection.address]
        for hook in self.on_link_closed:
            hook(connection.address)

    async def _asked(self, connection: Connection, command: Command) -> Command | None:
        answer: Command | None = None
        handlers = self._handlers.get(command.code, [])
        for handler in handlers:
            answer = await handler(connection, command) or answer
        if not handlers and not command.is_oneway:
            raise Refused(f"request {command.code} is not for clients", Response.REQUEST_CODE_NOT_SUPPORTED)
        return answer
