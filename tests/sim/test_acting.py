"""The promise to consumers of a group that cannot elect: they read on, and no offset goes back."""

from __future__ import annotations

import asyncio

import pytest

from chaos.history import History
from chaos.sim.cluster import BROKER_PORT, GROUP, SimCluster, WorldConfig
from client.consuming.pull import PullConsumer, PullStatus
from client.message import NoMaster, Queue
from model.codes import Request, Response
from model.errors import MqError
from remoting.codec import Command
from tests.sim.world import SEND, World, simulated

pytestmark = pytest.mark.sim
BROKER = {"majorityAck": "true", "enableSlaveActingMaster": "true"}


class Lonely(World):
    """Three brokers in majority mode: the last one alive can be elected by nobody."""

    def __init__(self, seed: int, *, acting: bool = True) -> None:
        super().__init__(seed)
        self.cluster.close()
        broker = BROKER if acting else {"majorityAck": "true"}
        config = WorldConfig(broker=broker, namesrv={"supportActingMaster": "true"})
        self.cluster = SimCluster(seed, config, History())

    async def fill(self, address: str, consumer: PullConsumer, count: int) -> None:
        for _ in range(count):
            command = Command(Request.SEND_MESSAGE, dict(SEND), b"x")
            answer = await consumer.session.remoting.call(address, command, 3.0)
            assert answer.code == Response.SUCCESS

    def kill_two(self) -> tuple[str, list[str]]:
        """The one that is left, and the dead: the master and the slave with the smaller id."""
        master = self.cluster.master()
        assert master is not None
        slaves = sorted(name for name in self.cluster.brokers() if name != master)
        for name in (master, slaves[0]):
            self.cluster.kill(name)
        return slaves[1], [master, slaves[0]]


@pytest.mark.parametrize("first_back", [0, 1])
@simulated(lambda: Lonely(5))
async def test_consumption_goes_on_without_a_master_and_no_offset_goes_back(
    world: Lonely, first_back: int
) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    node, env = cluster.client("reader")
    queue = Queue("TBW102", GROUP, 0)

    async def read() -> None:
        async with PullConsumer(env, "g", cluster.namesrv_addresses, poll_ms=500) as consumer:
            await world.fill(f"{cluster.nodes[master].host}:{BROKER_PORT}", consumer, 20)
            await asyncio.sleep(0.5)
            assert (await consumer.pull(queue, 0)).status is PullStatus.FOUND
            await consumer.commit(queue, 3)
            await asyncio.sleep(1.0)  # the slaves have the table
            left, dead = world.kill_two()
            assert await cluster.until(lambda: acting(cluster, left), 20.0) is None
            address = f"{cluster.nodes[left].host}:{BROKER_PORT}"
            assert await consumer.committed(queue) == 3

            pulled = await consumer.pull(queue, 3)
            assert pulled.status is PullStatus.FOUND
            await until_commits(consumer, queue, pulled.next_offset)
            assert await consumer.committed(queue) == pulled.next_offset
            assert await consumer.lock([queue], address) == [queue]
            refused = await consumer.session.remoting.call(
                address, Command(Request.SEND_MESSAGE, dict(SEND), b"x"), 3.0
            )
            assert refused.code != Response.SUCCESS, "it takes no writes"

            cluster.start(dead[first_back])
            assert await cluster.until(lambda: has_master(cluster), 20.0) is None
            now = cluster.master()
            assert now is not None
            await asyncio.sleep(2.0)
            route = await consumer.session.routes.refresh("TBW102")
            assert route.brokers[GROUP][0] == f"{cluster.nodes[now].host}:{BROKER_PORT}"
            assert acting(cluster, left) is not None
            assert await consumer.committed(queue) == pulled.next_offset
            cluster.start(dead[1 - first_back])
            assert await cluster.until(cluster.converged, 30.0) is None
            assert await consumer.committed(queue) == pulled.next_offset

    await cluster.inside(node, read())


@simulated(lambda: Lonely(5, acting=False))
async def test_without_the_key_nobody_acts(world: Lonely) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    node, env = cluster.client("reader")
    queue = Queue("TBW102", GROUP, 0)

    async def read() -> None:
        async with PullConsumer(env, "g", cluster.namesrv_addresses, poll_ms=500) as consumer:
            await world.fill(f"{cluster.nodes[master].host}:{BROKER_PORT}", consumer, 4)
            left, _ = world.kill_two()
            await asyncio.sleep(5.0)
            assert acting(cluster, left) is not None
            with pytest.raises(NoMaster):
                await consumer.commit(queue, 1)

    await cluster.inside(node, read())


async def until_commits(consumer: PullConsumer, queue: Queue, offset: int) -> None:
    """The route names the acting master with the next look at the NameServers."""
    for _ in range(40):
        try:
            await consumer.commit(queue, offset)
        except (MqError, OSError):
            await asyncio.sleep(0.25)
        else:
            return
    raise AssertionError("no broker takes the offset")


def acting(cluster: SimCluster, name: str) -> str | None:
    status = cluster.status(name)
    return None if status is not None and status["acting"] else f"{name} does not act"


def has_master(cluster: SimCluster) -> str | None:
    return None if cluster.master() is not None else "no master"
