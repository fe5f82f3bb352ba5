"""Three Controllers and three brokers in majority mode that say how far their logs are; virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import Life
from model.codes import Request
from model.errors import Unknown
from remoting.bodies import dumps
from remoting.codec import Command
from remoting.service import Connection, RemotingClient
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.sim import ADDRESSES, NAMES, G, World


class Broker:
    """In majority mode, of three; it says how far its log is after ``delay_s``."""

    def __init__(self, world: World, broker_id: int, delay_s: float) -> None:
        self.world, self.id, self.delay_s = world, broker_id, delay_s
        self.asked = 0
        self.life: Life | None = None
        self.client: RemotingClient | None = None

    async def on_request(self, _connection: Connection, request: Command) -> Command | None:
        if request.code != Request.GET_BROKER_EPOCH_CACHE:
            return None
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        return request.reply(body=dumps({"epochList": [{"epoch": 1}], "maxOffset": 100 + self.id}))

    async def join(self) -> None:
        world = self.world
        self.life = world.loop.new_life(f"b{self.id}")
        machine = Machine(f"b{self.id}", world.seed, lambda: 0)
        env = SimEnv(world.loop, self.life, world.fabric, machine, f"b{self.id}", seed=world.seed)
        self.client = RemotingClient(env, f"b{self.id}", handler=self.on_request)
        await self.inside(self.register)
        world.loop.spawn(self.life, self.beat(), name="beat")
        await asyncio.sleep(0.5)

    async def inside(self, work: Callable[[], Awaitable[Command]]) -> Command:
        assert self.life is not None

        async def run() -> Command:
            return await work()

        return await self.world.loop.spawn(self.life, run(), name="work")

    async def call(self, code: int, **ext: object) -> Command:
        """Ask whoever leads."""
        assert self.client is not None
        fields = {"clusterName": "c", "brokerName": G, **{k: str(v) for k, v in ext.items()}}
        for address in ADDRESSES.values():
            try:
                answer = await self.client.call(address, Command(code, dict(fields)), 3.0)
            except (ConnectionError, Unknown):
                continue
            if answer.code != 2007:
                return answer
        raise AssertionError("no Controller leads")

    async def register(self) -> Command:
        host = f"b{self.id}:1"
        await self.call(
            Request.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=self.id, registerCheckCode=f"{host};1"
        )
        return await self.call(
            Request.CONTROLLER_REGISTER_BROKER,
            brokerId=self.id,
            brokerAddress=host,
            haServerAddr=f"b{self.id}:2",
            majorityOf=3,
        )

    async def elect(self) -> Command:
        return await self.call(Request.CONTROLLER_ELECT_MASTER, brokerId=self.id)

    async def beat(self) -> None:
        assert self.client is not None
        ext = {
            "clusterName": "c",
            "brokerName": G,
            "brokerAddr": f"b{self.id}:1",
            "haServerAddr": f"b{self.id}:2",
            "brokerId": str(self.id),
            "heartbeatTimeoutMills": "1500",
            "epoch": "1",
            "maxOffset": str(100 + self.id),
        }
        while True:
            for address in ADDRESSES.values():
                try:
                    await self.client.oneway(address, Command(Request.BROKER_HEARTBEAT, dict(ext)), 0.5)
                except ConnectionError:
                    continue
            await asyncio.sleep(0.25)

    def kill(self) -> None:
        assert self.life is not None
        self.world.loop.kill(self.life)
        self.world.fabric.process_died(self.life)


def run(delay_s: float, main: Callable[[World, list[Broker]], Awaitable[None]]) -> None:
    """Three Controllers and three brokers, the first of which is master."""
    world = World(3)

    async def inside() -> None:
        for name in NAMES:
            await world.start(name)
        await wait_for(world.leader)
        brokers = [Broker(world, number, delay_s) for number in (1, 2, 3)]
        for broker in brokers:
            await broker.join()
            if broker.id == 1:
                await broker.inside(broker.elect)
        assert master(world) == 1
        await main(world, brokers)

    try:
        world.loop.run_until_complete(inside())
    finally:
        world.loop.close()


def master(world: World) -> int | None:
    leader = world.leader()
    found = None if leader is None else leader.status()["groups"][G]["master"]
    return None if found is None else int(found)
