"""How do the NameServers learn of this broker, its id and its topics?

REGISTER_BROKER (103) goes to every NameServer at start, on each change of role or topics, when a connection
was lost, and each ``registerNameServerPeriod``; UNREGISTER_BROKER (104) when the broker stops or is fenced.
A master that listens at its ``groupAddress`` registers that address. It is never unregistered, as it may be
the successor's by now. Instead the connection it was registered on ends: then a NameServer forgets it, unless
another broker has registered the same address since.
Each NameServer has a task of its own, so a dead one delays no other. Source of the body: Apache RocketMQ 5.x,
``remoting/protocol/body/RegisterBrokerBody``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from broker.tables.topics import Topics
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import MqError, Refused
from model.ids import MASTER_ID
from model.settings import addresses
from model.topic import DataVersion
from remoting.bodies import believed_object
from remoting.codec import Command
from remoting.headers import flag, opt_bool
from remoting.service import Connection, RemotingClient
from remoting.slices import loop_slice, written
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.loops import level_triggered
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 2000
CALL_S: Final = 3.0
GOODBYE_S: Final = 1.0
FIRST_ID: Final = 1  # the smallest that a Controller gives; a master is 0
NO_ID: Final = -1
"""The id of a broker without a role: it is registered nowhere."""
PART: Final = "keelmqPart"
"""Ours. In an answer: this NameServer takes registrations of what changed. In a request: this is one."""
GONE: Final = "keelmqDeletedTopics"
"""Ours. In the body of a part: topics that are not in the table any more."""
PARTS_FROM: Final = 100
"""A table of fewer topics is always sent as a whole."""

_Place = tuple[Connection, str, int]
"""Where a broker registers: on this connection, this address under this id."""

Changes = Callable[[int | None], tuple[dict[str, Any] | None, int]]
"""What changed in a table since a mark (None: all of it is to be sent), and the mark of now."""


def changes_of(topics: Topics) -> Changes:
    """Those of a large table."""

    def changes(mark: int | None) -> tuple[dict[str, Any] | None, int]:
        found = None if mark is None or len(topics.table) < PARTS_FROM else topics.since(mark)
        if found is not None:
            found["gone"] = [name for name in found["part"] if name not in topics.table]
        return found, topics.mark

    return changes


class Registration:
    """Keeps every NameServer's entry of this broker as it should be, for ever.

    ``topics`` gives the topic table (``{"dataVersion": .., "topicConfigTable": ..}``, stateVersion = the
    master's epoch). ``broker_id`` gives the id to register with: 0 while master, the Controller's id while
    slave, else ``NO_ID``. ``is_sole_master``: whether no other master can be there now. ``listening``:
    whether this master is at the group's address; where it is not (the port is taken), clients find it at its
    own.
    """

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        client: RemotingClient,
        topics: Callable[[], dict[str, Any]],
        broker_id: Callable[[], int],
        is_sole_master: Callable[[], bool] = lambda: True,
        listening: Callable[[], bool] = lambda: True,
        changes: Changes = lambda mark: (None, 0),
    ) -> None:
        self.on_master: list[Callable[[str, str], None]] = []
        """Hear the master's address and HA address when a NameServer tells them to this slave."""
        self._config = config
        self._client = client
        self._topics = topics
        self._changes = changes
        self._broker_id = broker_id
        self._is_sole_master = is_sole_master
        self._listening = listening
        self._tasks = Tasks("registration")
        self._env = env
        self._servers = [_Server(address, env) for address in _wanted(config)]
        self._keeping: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        for server in self._servers:
            self._begin(server)

    def _begin(self, server: _Server) -> None:
        self._keeping[server.address] = self._tasks.spawn(self._keep(server), name=server.address)

    def reconfigure(self) -> None:
        """``namesrvAddr`` may have changed: register where it was not, leave where it is no longer."""
        wanted = _wanted(self._config)
        known = {server.address: server for server in self._servers}
        self._servers = [known.get(address) or _Server(address, self._env) for address in wanted]
        for server in self._servers:
            if server.address not in known:
                self._begin(server)
        for address in known.keys() - set(wanted):
            self._keeping.pop(address).cancel()
            self._tasks.spawn(self._goodbye(known[address]), name=f"bye.{address}")

    async def stop(self) -> None:
        """Take the broker out of every NameServer that answers within ``GOODBYE_S``. May be called again."""
        await self._tasks.cancel()
        servers = [server for server in self._servers if server.registered_id != NO_ID]
        goodbyes = [self._tasks.spawn(self._goodbye(s), name=f"bye.{s.address}") for s in servers]
        if goodbyes:
            await asyncio.wait(goodbyes, timeout=GOODBYE_S)
            await self._tasks.cancel()

    def soon(self) -> None:
        """Register everywhere at once: role or topics changed. Changes of one turn of the loop go
        together."""
        for server in self._servers:
            server.wake.set()

    def lost(self, address: str) -> None:
        """The connection to ``address`` ended: if it is a NameServer's, it may have forgotten this broker."""
        for server in self._servers:
            if server.address == address:
                server.wake.set()

    def status(self) -> dict[str, int | None]:
        """NameServer address -> the id registered there, None while there is none."""
        return {
            server.address: server.registered_id if server.registered_id != NO_ID else None
            for server in self._servers
        }

    async def members(self) -> list[str]:
        """Addresses of the brokers of this group that a NameServer knows, the master's first. Raises as
        ``member_ids``."""
        return list((await self._members()).values())

    async def member_ids(self) -> list[int]:
        """Ids of the brokers of this group that a NameServer knows, 0 = a master.

        Raises OSError, MqError, and what comes of an answer that is none, when no NameServer tells.
        """
        return list(await self._members())

    async def _members(self) -> dict[int, str]:
        problem: Exception | None = None
        ext = {"clusterName": self._config.cluster_name, "brokerName": self._config.broker_name}
        for server in self._servers:
            try:
                command = Command(Request.GET_BROKER_MEMBER_GROUP, dict(ext))
                answer = await self._client.call(server.address, command, CALL_S)
                if answer.code != Response.SUCCESS:
                    raise Refused(answer.remark or "no member group", answer.code)
                found = believed_object(answer.body)["brokerMemberGroup"]["brokerAddrs"]
                return {int(key): str(found[key]) for key in sorted(found, key=int)}
            except (OSError, MqError, ValueError, KeyError, TypeError) as error:
                problem = error
        if problem is not None:
            raise problem
        return {}

    async def _keep(self, server: _Server) -> None:
        async def step() -> None:
            if self._broker_id() != NO_ID:
                await self._register(server)
            elif server.registered_id != NO_ID:
                await self._unregister(server)

        period_s = self._config.register_namesrv_ms / 1000
        what = f"NameServer {server.address}"
        await level_triggered(step, server.wake, period_s, server.backoff, what)

    async def _register(self, server: _Server) -> None:
        # First the connection: what follows is true when it is sent, not when a connection was asked for.
        connection = await self._client.connection(server.address, CALL_S)
        broker_id = self._broker_id()
        if broker_id == NO_ID:
            return
        address = self._address(broker_id)
        if address == self._config.group_address and not self._is_sole_master():
            # There may be a successor, and registering would take its entry over. A new lease, or another
            # role, comes with a call of ``soon``.
            return
        former, former_id = server.registered_address, server.registered_id
        if former == self._config.group_address != address:
            self._hang_up(server)
            former = None
        answer = await self._tell(server, (connection, address, broker_id))
        if answer.code != Response.SUCCESS:
            raise Refused(f"registration refused: {answer.code} {answer.remark or ''}".strip(), answer.code)
        server.registered_id, server.registered_address = broker_id, address
        if former not in (None, address):
            # Not under 0: a NameServer would take that for the smallest id of the group leaving, and tell the
            # others. The address of a former master was replaced under 0, so any other id will do.
            await self._unregister_address(server, former_id or FIRST_ID, former)
        self._hear_master(broker_id, answer)

    async def _tell(self, server: _Server, place: _Place) -> Command:
        """Register: what changed since the last time where that is enough, else every topic."""
        _, address, broker_id = place
        await self._take_over(server, place)
        part, mark = self._changes(server.mark if server.told == place else None)
        if part is not None and not self._is_enough(part, server, broker_id):
            part = None
        answer: Command | None = None
        server.told = None
        if part is not None:
            request = await self._request(broker_id, address, part, marked=server.takes_parts)
            answer = await self._client.call(server.address, request, CALL_S)
        if answer is None or answer.code != Response.SUCCESS:
            _, mark = self._changes(None)
            answer = await self._client.call(server.address, await self._request(broker_id, address), CALL_S)
        if answer.code == Response.SUCCESS:
            server.told, server.mark = place, mark
            server.takes_parts = opt_bool(answer.ext, PART)
        return answer

    async def _take_over(self, server: _Server, place: _Place) -> None:
        """A slave that became master says so before it tells of all its topics: of 20,000 they have 6 MB, and
        clients wait for the route. A NameServer has its group's topics by then."""
        connection, address, broker_id = place
        before, self_acts = server.told, self._config.slave_acting_master
        if before is None or broker_id != MASTER_ID or self_acts or not server.takes_parts:
            return
        if before[:2] != (connection, address) or before[2] == MASTER_ID:
            return
        _, mark = self._changes(None)
        part, _ = self._changes(mark)
        if part is not None:
            # Not the version of its table: of one that is known, a NameServer takes nothing again.
            version = DataVersion.from_json(part["dataVersion"])
            part["dataVersion"] = DataVersion(state_version=version.state_version).to_json()
            server.told = None
            request = await self._request(broker_id, address, part, marked=True)
            await self._client.call(server.address, request, CALL_S)

    def _is_enough(self, part: dict[str, Any], server: _Server, broker_id: int) -> bool:
        """Whether this NameServer need not be told of every topic."""
        if server.takes_parts:
            # One that acts as master lets the NameServer take a bit from each of its topics.
            return broker_id == MASTER_ID or not self._config.slave_acting_master
        return broker_id == MASTER_ID and self._may_add(part)

    def _may_add(self, part: dict[str, Any]) -> bool:
        """Whether a NameServer of RocketMQ can be told of the changes alone. It adds the topics that a
        registration names to those it knows, and forgets none (with ``deleteTopicWithBrokerRegistration`` it
        forgets those not named: hence the key). Where nothing changed it is told everything again, as the
        original does each ``registerNameServerPeriod``."""
        return bool(part["part"]) and not self._config.single_topic_register

    def _address(self, broker_id: int) -> str:
        """Where clients are to find this broker."""
        in_route = broker_id == MASTER_ID and self._listening()
        return self._config.route_address if in_route else self._config.address

    async def _request(
        self, broker_id: int, address: str, part: dict[str, Any] | None = None, *, marked: bool = False
    ) -> Command:
        body = await written(self._body(self._topics() if part is None else part), loop_slice())
        ext = self._ext(broker_id, address) | {
            "haServerAddr": self._config.ha_address,
            "enableActingMaster": flag(self._config.slave_acting_master),
            # Never compressed: the original's NameServer is told "not compressed" even when it is.
            "compressed": "false",
            "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
        }
        if marked:
            ext[PART] = "true"
        if self._config.slave_acting_master:
            # No slave acts while NameServers still believe in the master: for two minutes, if we say nothing.
            ext["heartbeatTimeoutMillis"] = str(self._config.register_namesrv_ms * 3)
        return Command(Request.REGISTER_BROKER, ext, body)

    def _hear_master(self, broker_id: int, answer: Command) -> None:
        master, ha_address = answer.ext.get("masterAddr"), answer.ext.get("haServerAddr")
        if broker_id != MASTER_ID and master and ha_address:
            for hook in self.on_master:
                hook(master, ha_address)

    async def _goodbye(self, server: _Server) -> None:
        try:
            await self._unregister(server)
        except (OSError, MqError) as error:
            log.info(
                "NameServer %s: not unregistered, it will notice the lost connection: %s",
                server.address,
                error,
            )

    async def _unregister(self, server: _Server) -> None:
        address = server.registered_address
        if address is not None and address == self._config.group_address:
            self._hang_up(server)
        elif address is not None:
            await self._unregister_address(server, server.registered_id, address)
        server.registered_id, server.registered_address = NO_ID, None

    async def _unregister_address(self, server: _Server, broker_id: int, address: str) -> None:
        command = Command(Request.UNREGISTER_BROKER, self._ext(broker_id, address))
        await self._client.call(server.address, command, CALL_S)

    def _hang_up(self, server: _Server) -> None:
        self._client.drop(server.address)
        server.registered_id, server.registered_address = NO_ID, None

    def _ext(self, broker_id: int, address: str) -> dict[str, str]:
        return {
            "clusterName": self._config.cluster_name,
            "brokerName": self._config.broker_name,
            "brokerAddr": address,
            "brokerId": str(broker_id),
        }

    def _body(self, table: dict[str, Any]) -> dict[str, Any]:
        wrapper = {
            "dataVersion": table["dataVersion"],
            "topicConfigTable": table["topicConfigTable"],
            "mappingDataVersion": DataVersion().to_json(),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        found: dict[str, Any] = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
        if table.get("gone"):
            found[GONE] = table["gone"]
        return found


def _wanted(config: BrokerConfig) -> list[str]:
    """Each NameServer once."""
    return list(dict.fromkeys(addresses(config.namesrv_addr)))


class _Server:
    """One NameServer, as far as this broker is concerned."""

    def __init__(self, address: str, env: Env) -> None:
        self.address = address
        self.wake = asyncio.Event()
        self.backoff = Backoff(env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        self.registered_id = NO_ID
        self.registered_address: str | None = None
        # As what it took the table last, and the mark of what it took.
        self.told: _Place | None = None
        self.mark = 0
        self.takes_parts = False
