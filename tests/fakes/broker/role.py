"""What a RoleManager meets: Controllers with the real rules but no Raft, and a host that notes its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from broker.membership.view import TableSource
from broker.role.epochs import note_epoch
from broker.role.host import Elected
from broker.role.manager import RoleManager
from broker.role.parts import RoleParts
from broker.service import Broker
from broker.state.current_role import CurrentRole
from controller.groups.commands import (
    AlterSyncStateSet,
    Answer,
    ApplyBrokerId,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.table import ReplicaTable
from ha.master.proposals import Propose
from ha.service import HaService
from model.codes import Request, Response
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch
from remoting.bodies import dumps, loads
from remoting.codec import Command
from remoting.headers import flag
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from tests.broker.helpers import config_for
from tests.fakes.ha.store import FakeStore
from tests.ports import free_port_of_broker
from tests.waiting import until

GROUP = "broker-t"


class FakeControllers:
    """Some Controllers that share one table; ``leader`` is the index of the one that answers."""

    def __init__(self, count: int = 1) -> None:
        self.table = ReplicaTable()
        self.leader = 0
        self.lease_ms: int | None = None  # None: as the real RocketMQ, which knows no leases
        self.elects_outsiders = False
        self.term: int | None = None  # said with a lease
        self.ports = [free_port_of_broker() for _ in range(count)]
        self.alive: dict[int, Connection] = {}
        self.beats: list[tuple[int, dict[str, str]]] = []  # (index of the Controller, ext)
        self.mute: int | None = None  # the one that reads and says nothing more
        self.requests: list[Command] = []
        self.answers: dict[int, Callable[[Command], Command | None]] = {}  # by request code, instead of ours
        self._servers: list[RemotingServer] = []

    @property
    def addresses(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def group(self) -> Any:
        return self.table.groups[GROUP]

    async def __aenter__(self) -> FakeControllers:
        for index in range(len(self.ports)):
            await self.start(index)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, index: int) -> None:
        async def handle(connection: Connection, request: Command) -> Command | None:
            return self._handle(index, connection, request)

        server = RemotingServer(OsEnv(), f"controller.{index}", handle, on_close=self._closed)
        await server.start("127.0.0.1", self.ports[index])
        self._servers.append(server)

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop()

    def count(self, code: Request) -> int:
        return sum(request.code == code for request in self.requests)

    def elect(self, broker_id: int = -1) -> Answer:
        return self.table._once(ElectMaster(group=GROUP, broker_id=broker_id, alive=tuple(self.alive)))

    async def notify(self, **wrong: str) -> None:
        """NOTIFY_BROKER_ROLE_CHANGED to every living broker; ``wrong`` replaces fields."""
        ext = {
            "masterAddress": self.group.address(self.group.master) or "",
            "masterBrokerId": str(self.group.master),
            "masterEpoch": str(self.group.epoch),
        }
        for connection in self.alive.values():
            connection.oneway(Command(Request.NOTIFY_BROKER_ROLE_CHANGED, ext | wrong))

    def _closed(self, connection: Connection) -> None:
        for broker_id in [b for b, alive in self.alive.items() if alive is connection]:
            del self.alive[broker_id]

    def _handle(self, index: int, connection: Connection, request: Command) -> Command | None:
        ext = request.ext
        if index == self.mute:
            return None
        if request.code == Request.BROKER_HEARTBEAT:
            self.beats.append((index, ext))
            if index == self.leader:
                self.alive[int(ext["brokerId"])] = connection
            if self.lease_ms is None:
                return request.reply(remark="Heart beat success")
            ext = {
                "leaseMs": str(self.lease_ms if index == self.leader else 0),
                "electsOutsiders": flag(self.elects_outsiders),
            }
            return request.reply(ext=ext if self.term is None else ext | {"term": str(self.term)})
        if request.code == Request.CONTROLLER_GET_METADATA_INFO:
            leader = f"127.0.0.1:{self.ports[self.leader]}" if self.leader >= 0 else ""
            is_leader = "true" if index == self.leader else "false"
            return request.reply(ext={"isLeader": is_leader, "controllerLeaderAddress": leader})
        if index != self.leader:
            return request.reply(Response.CONTROLLER_NOT_LEADER, remark="not the leader")
        self.requests.append(request)
        if request.code in self.answers:
            return self.answers[request.code](request)
        answer = self._apply(request)
        if "masterBrokerId" in answer.ext:
            replica = self.group.replicas[int(answer.ext["masterBrokerId"])]
            answer.ext["masterHaAddress"] = replica.ha_address
        body = b"" if answer.body is None else dumps(answer.body)
        return request.reply(answer.code, remark=answer.remark, ext=answer.ext, body=body)

    def _apply(self, request: Command) -> Answer:
        ext, name = request.ext, request.ext["brokerName"]
        alive = tuple(self.alive)
        match request.code:
            case Request.CONTROLLER_GET_NEXT_BROKER_ID:
                return Answer(ext={"nextBrokerId": str(self.table.next_id(name))})
            case Request.CONTROLLER_APPLY_BROKER_ID:
                return self.table._once(
                    ApplyBrokerId(
                        group=name,
                        cluster=ext["clusterName"],
                        broker_id=int(ext["appliedBrokerId"]),
                        check_code=ext["registerCheckCode"],
                    )
                )
            case Request.CONTROLLER_REGISTER_BROKER:
                return self.table._once(
                    RegisterBroker(
                        group=name,
                        alive=alive,
                        cluster=ext["clusterName"],
                        broker_id=int(ext["brokerId"]),
                        address=ext["brokerAddress"],
                        ha_address=ext["haServerAddr"],
                        suspect=ext.get("doubtful") == "true",
                    )
                )
            case Request.CONTROLLER_ELECT_MASTER:
                return self.elect(int(ext["brokerId"]))
            case Request.CONTROLLER_ALTER_SYNC_STATE_SET:
                body = loads(request.body)
                return self.table._once(
                    AlterSyncStateSet(
                        group=name,
                        alive=alive,
                        master_id=int(ext["masterBrokerId"]),
                        master_epoch=int(ext["masterEpoch"]),
                        members=tuple(body["syncStateSet"]),
                        members_epoch=body["syncStateSetEpoch"],
                    )
                )
            case Request.CONTROLLER_GET_REPLICA_INFO:
                return self.table.replica_info(name, int(ext["brokerId"]))
        raise AssertionError(f"request {request.code} is not one a broker sends")


class FakeHost:
    """Does with the store what a broker does, and notes each call."""

    def __init__(self, store: FakeStore) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.propose: Propose | None = None
        self.fail_lead = 0
        self.fail_tables: Exception | None = None
        self.tries_of_tables = 0
        self.drains = True
        self.on_announce: Callable[[], None] = lambda: None
        self._store = store

    async def lead(self, elected: Elected) -> None:
        epoch = elected.epoch
        if self.fail_lead:
            self.fail_lead -= 1
            raise OSError("the disk had a hiccup")
        if epoch:
            note_epoch(cast(Any, self._store), Epoch(epoch))
        self.propose = elected.propose
        self.calls.append(("lead", elected.broker_id, epoch))

    async def take_tables(self, broker_id: int, epoch: int, sources: Sequence[TableSource]) -> None:
        self.tries_of_tables += 1
        if self.fail_tables is not None:
            raise self.fail_tables
        if sources:
            self.calls.append(("take tables", epoch))

    def announce(self, epoch: int) -> None:
        self.calls.append(("announce", epoch))
        self.on_announce()

    async def follow(
        self, broker_id: int, epoch: int, master_address: str | None, master_ha_address: str | None
    ) -> None:
        self.calls.append(("follow", epoch, master_address, master_ha_address))

    async def fence(self) -> None:
        self.calls.append(("fence",))

    async def drain(self, transfer_target: int, timeout_s: float) -> bool:
        self.calls.append(("drain", transfer_target))
        return self.drains

    def transfer_target(self) -> BrokerId | None:
        return None

    def lacks(self) -> str | None:
        return None

    def resume(self) -> None:
        self.calls.append(("resume",))


class Life:
    """One RoleManager with all around it."""

    def __init__(self, path: Path, controllers: FakeControllers | None, **keys: Any) -> None:
        if controllers is not None:
            keys = {"enable_controller_mode": True, "controller_addr": controllers.addresses} | keys
        defaults: dict[str, Any] = {
            "store_path": str(path),
            "broker_name": GROUP,
            "listen_port": free_port_of_broker(),
            "broker_heartbeat_ms": 30,
            "sync_broker_metadata_ms": 50,
        }
        self.config = BrokerConfig(**(defaults | keys))
        path.mkdir(parents=True, exist_ok=True)  # as the real store does
        self.env = OsEnv(seed=1)
        self.store = FakeStore()
        self.host = FakeHost(self.store)
        store = cast(Any, self.store)
        self.ha = HaService(self.env, store, self.config)
        self.client = RemotingClient(
            self.env,
            "broker",
            handler=self._handle,
            on_close=lambda c: self.role.on_connection_lost(c.address),
        )
        self.current = CurrentRole()
        self.role = RoleManager(
            RoleParts(self.env, self.config, store, self.ha, self.current), self.client, self.host
        )
        self.changes: list[tuple[str, int]] = []
        self.role.on_change.append(lambda: self.changes.append((self.role.role, self.role.epoch)))

    async def __aenter__(self) -> Life:
        await self.role.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.role.stop()
        await self.client.close()

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        await self.role.notice(request, connection.address)
        return None

    async def becomes(self, role: str, epoch: int | None = None) -> None:
        await until(
            lambda: self.role.role == role and epoch in (None, self.role.epoch),
            f"broker {self.role.broker_id} becomes {role}, it is {self.role.status()}",
        )


def broker_at(path: Path, controllers: FakeControllers, **keys: object) -> Broker:
    fast: dict[str, object] = {
        "enableControllerMode": "true",
        "controllerAddr": controllers.addresses,
        "brokerHeartbeatInterval": 50,
        "syncBrokerMetadataPeriod": 100,
        "checkSyncStateSetPeriod": 50,
        "haSendHeartbeatInterval": 100,
    }
    return Broker(OsEnv(seed=1), config_for(path, **(fast | keys)))


async def full(controllers: FakeControllers, brokers: list[Broker]) -> None:
    ids = sorted(broker.role.broker_id or 0 for broker in brokers)
    await until(lambda: controllers.group.members == ids, "the SyncStateSet is full")
    master = next(b for b in brokers if b.role.broker_id == controllers.group.master)
    await until(lambda: all(b.store.confirmed == master.store.log.end for b in brokers), "all confirm all")
