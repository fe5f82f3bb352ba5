"""Controllers on this machine's loopback, and as much of a broker as they see."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from controller.service import Controller
from model.codes import Request
from model.config import ControllerConfig
from remoting.bodies import dumps
from remoting.codec import Command
from remoting.service import Connection, RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.raft_sim import wait_for
from tests.ports import free_ports

G = "broker-a"
WAITS_FOR_ALL = {"allAckInSyncStateSet": "true"}


class Broker:
    """As much of a broker as a Controller sees."""

    def __init__(self, world: "World", broker_id: int = 0, timeout_ms: int = 3000) -> None:
        self.world = world
        self.id = broker_id
        self.address = f"127.0.0.1:{20000 + broker_id}"
        self.ha_address = f"127.0.0.1:{30000 + broker_id}"
        self.timeout_ms = timeout_ms
        self.max_offset = 0
        self.steps_down: int | None = None  # the code it answers when asked to hand over; None = no answer
        self.asked_to_step_down: list[Command] = []
        self.end_now: int | None = None  # what it answers when it is asked; None = it does not answer
        self.says: dict[str, str] = {}  # in every heartbeat, too
        self.notices: list[Command] = []
        self.client = RemotingClient(OsEnv(), f"broker.{broker_id}", handler=self.on_request)
        self.task: asyncio.Task[None] | None = None

    async def on_request(self, _connection: Connection, request: Command) -> Command | None:
        if request.code == Request.NOTIFY_BROKER_ROLE_CHANGED:
            self.notices.append(request)
        if request.code == Request.CONTROLLER_ELECT_MASTER and self.steps_down is not None:
            self.asked_to_step_down.append(request)
            return request.reply(self.steps_down, remark="behind")
        if request.code == Request.GET_BROKER_EPOCH_CACHE and self.end_now is not None:
            epochs = [{"epoch": 1, "startOffset": 0, "endOffset": 2**63 - 1}]
            return request.reply(body=dumps({"epochList": epochs, "maxOffset": self.end_now}))
        return None

    async def call(self, code: int, body: Any = None, **ext: Any) -> Command:
        """Ask the leader."""
        fields = {"brokerName": G, "clusterName": "c", **{k: str(v) for k, v in ext.items()}}
        request = Command(code, fields, b"" if body is None else dumps(body))
        return await self.client.call(self.world.leader_address(), request, 10)

    def heartbeat(self, **changes: Any) -> Command:
        ext = {
            "clusterName": "c",
            "brokerName": G,
            "brokerAddr": self.address,
            "brokerId": self.id,
            "epoch": 1,
            "maxOffset": self.max_offset,
            "heartbeatTimeoutMills": self.timeout_ms,
            **self.says,
            **changes,
        }
        return Command(Request.BROKER_HEARTBEAT, {k: str(v) for k, v in ext.items() if v is not None})

    async def join(self) -> None:
        """As a broker does it: id, registration, heartbeats to every Controller."""
        answer = await self.call(Request.CONTROLLER_GET_NEXT_BROKER_ID)
        assert answer.ext["nextBrokerId"] == str(self.id)
        applied = await self.call(
            Request.CONTROLLER_APPLY_BROKER_ID,
            appliedBrokerId=self.id,
            registerCheckCode=f"{self.address};1",
        )
        assert applied.code == 0
        await self.register()
        await self.beat_once()
        await wait_for(lambda: self.world.knows_alive(self.id))  # nothing answers a heartbeat
        self.task = asyncio.ensure_future(self.beat())

    async def register(self) -> Command:
        return await self.call(
            Request.CONTROLLER_REGISTER_BROKER,
            brokerId=self.id,
            brokerAddress=self.address,
            haServerAddr=self.ha_address,
        )

    async def beat_once(self) -> None:
        for address in self.world.addresses.values():
            try:
                await self.client.oneway(address, self.heartbeat(), 1)
            except ConnectionError:
                continue  # that Controller is down

    async def be_heard(self) -> None:
        """A heartbeat that every Controller answers."""
        for address in self.world.addresses.values():
            assert (await self.client.call(address, self.heartbeat(), 10)).code == 0

    async def beat(self) -> None:
        while True:
            await self.beat_once()
            await asyncio.sleep(0.1)

    def freeze(self) -> None:
        """Say nothing more, but keep the connections."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    async def die(self) -> None:
        self.freeze()
        await self.client.close()

    async def elect(self, designate: bool = False) -> Command:
        return await self.call(
            Request.CONTROLLER_ELECT_MASTER, brokerId=self.id, designateElect=str(designate).lower()
        )

    async def alter(self, members: list[int], epoch: int, members_epoch: int) -> Command:
        body = {"syncStateSet": members, "syncStateSetEpoch": members_epoch}
        return await self.call(
            Request.CONTROLLER_ALTER_SYNC_STATE_SET, body, masterBrokerId=self.id, masterEpoch=epoch
        )


class World:
    """Controllers on this machine's loopback."""

    def __init__(self, root: Path, count: int) -> None:
        ports = free_ports(count * 2)
        self.addresses = {f"n{i}": f"127.0.0.1:{ports[i]}" for i in range(count)}
        self.values = {
            "controllerDLegerPeers": ";".join(f"{n}-{a}" for n, a in self.addresses.items()),
            "raftPeers": ";".join(f"n{i}-127.0.0.1:{ports[count + i]}" for i in range(count)),
            "raftElectionMinMs": "400",
            "raftElectionMaxMs": "800",
            "scanNotActiveBrokerInterval": "100",
            "scanInactiveMasterInterval": "200",
        }
        self.root = root
        self.running: dict[str, Controller] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.brokers: list[Broker] = []

    def make(self, name: str, **values: str) -> Controller:
        own = {"controllerDLegerSelfId": name, "controllerStorePath": str(self.root / name)}
        return Controller(OsEnv(), ControllerConfig.from_mapping({**self.values, **own, **values}))

    async def start(self, *names: str) -> None:
        for name in names or self.addresses:
            controller = self.make(name)
            await controller.start()
            self.running[name] = controller
        await wait_for(lambda: self.leader() is not None)

    def leader(self) -> Controller | None:
        return next((c for c in self.running.values() if c.status()["isLeader"]), None)

    def leader_address(self) -> str:
        leader = self.leader()
        assert leader is not None
        return self.addresses[leader.status()["id"]]

    async def kill(self, name: str) -> None:
        controller = self.running.pop(name)
        controller.raft.abort()
        await controller.stop()

    async def brokers_up(
        self, count: int = 3, timeout_ms: int = 3000, says: dict[str, str] | None = None
    ) -> list[Broker]:
        """A group with broker 1 as master and everybody in its SyncStateSet."""
        self.brokers = [Broker(self, i, timeout_ms) for i in range(1, count + 1)]
        for broker in self.brokers:
            broker.says |= says or {}
            await broker.join()
        elected = await self.brokers[0].elect()
        assert elected.code == 0
        if count > 1:
            assert (await self.brokers[0].alter(list(range(1, count + 1)), 1, 1)).code == 0
        return self.brokers

    def group(self) -> dict[str, Any]:
        leader = self.leader()
        assert leader is not None
        found: dict[str, Any] = leader.status()["groups"][G]
        return found

    def knows_alive(self, broker_id: int) -> bool:
        """Has the leader heard a heartbeat of this broker?"""
        leader = self.leader()
        group = leader.status()["groups"].get(G, {}) if leader is not None else {}
        return bool(group.get("brokers", {}).get(str(broker_id), {}).get("alive"))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [e for c in self.running.values() for e in c.status()["events"] if e["event"] == name]


def run(root: Path, main: Callable[[World], Awaitable[None]], count: int = 1, **values: str) -> None:
    """``main`` with ``count`` Controllers started, each with ``values`` in its configuration."""

    async def inside() -> None:
        world = World(root, count)
        world.values |= values
        try:
            await world.start()
            await main(world)
        finally:
            for broker in world.brokers:
                await broker.die()
            for controller in list(world.running.values()):
                await controller.stop()

    asyncio.run(inside())
