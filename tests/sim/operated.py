"""A simulated cluster whose machines an operator visits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from chaos.sim.cluster import BROKER_PORT, GROUP, SimCluster
from chaos.sim.disk import Machine
from client.consuming.pull import PullConsumer
from client.message import Queue
from model.codes import Request, Response
from model.errors import MqError
from remoting.codec import Command
from remoting.service import RemotingClient
from tests.sim.world import SEND, World

QUEUE = Queue("TBW102", GROUP, 0)
IDENTITY = ("brokerIdentity", "brokerIdentity.crc", "brokerIdentity-temp")
EPOCHS = ("epochFileCheckpoint", "epochFileCheckpoint.bak")


def lose_the_log(cluster: SimCluster, broker: str) -> None:
    """The disk of storePathCommitLog is an empty one; bootId.json, checkpoint, epochs and queues stay."""
    machine = cluster.nodes[broker].machine
    for path in [path for path in machine.paths("/store") if path.startswith("/store/commitlog/")]:
        machine._files.pop(path)
        machine._durable.pop(path, None)


class Operated(World):
    """A cluster whose machines an operator visits while nothing runs on them."""

    def lose_disk(self, name: str) -> None:
        node = self.cluster.nodes[name]
        node.machine = Machine(name, self.cluster.seed + 1, self.cluster._wall_ms)

    def remove(self, name: str, files: tuple[str, ...]) -> None:
        node = self.cluster.nodes[name]
        node.life = self.cluster.loop.new_life(name)
        disk = self.cluster._env(node).disk
        for file in files:
            if disk.exists(f"/store/{file}"):
                disk.remove(f"/store/{file}")
        disk.sync_dir("/store")

    def kill_all(self, kind: str) -> None:
        for node in self.cluster.of(kind):
            self.cluster.kill(node.name)

    def asked(self, work: Callable[[RemotingClient], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        node, env = self.cluster.client(f"operator{len(self.cluster.of('client'))}")

        async def ask() -> None:
            client = RemotingClient(env, node.name)
            await work(client)
            await client.close()

        return self.cluster.inside(node, ask())

    async def send(self, count: int) -> None:
        master = self.cluster.master()
        assert master is not None
        address = f"{self.cluster.nodes[master].host}:{BROKER_PORT}"

        async def send(client: RemotingClient) -> None:
            for _ in range(count):
                answer = await client.call(address, Command(Request.SEND_MESSAGE, dict(SEND), b"x"), 3.0)
                assert answer.code == Response.SUCCESS, answer.remark

        await self.asked(send)
        assert await self.cluster.until(self.cluster.converged, 20.0) is None

    async def forget(self, ids: str = "") -> None:
        """What ``mqadmin cleanBrokerMetadata`` asks, again until the Controllers agree."""
        ext = {"brokerName": GROUP, "clusterName": "DefaultCluster", "isCleanLivingBroker": "false"}
        if ids:
            ext["brokerControllerIdsToClean"] = ids

        async def forget(client: RemotingClient) -> None:
            for _ in range(100):
                leader = self.cluster.leader()
                if leader is not None:
                    address = self.cluster.controller_addresses[int(leader[1:])]
                    try:
                        answer = await client.call(address, Command(Request.CLEAN_BROKER_DATA, ext), 3.0)
                    except (MqError, OSError):
                        continue
                    if answer.code == Response.SUCCESS:
                        return
                await asyncio.sleep(0.2)
            raise AssertionError(f"the Controllers do not forget {ids or GROUP}")

        await self.asked(forget)

    async def leads(self, name: str) -> None:
        def missing() -> str | None:
            return None if self.cluster.master() == name else f"{name} does not lead"

        assert await self.cluster.until(missing, 20.0) is None

    async def whole(self, messages: int) -> None:
        """Every replica is in the set, logs are equal, and so many messages can be read."""
        assert await self.cluster.until(self.cluster.converged, 60.0) is None
        node, env = self.cluster.client("reader")

        async def read() -> None:
            async with PullConsumer(env, "g", self.cluster.namesrv_addresses, poll_ms=500) as consumer:
                assert len(await consumer.read_all(QUEUE)) == messages

        await self.cluster.inside(node, read())

    async def change_master(self) -> None:
        master = self.cluster.master()
        assert master is not None
        self.cluster.kill(master)
        await asyncio.sleep(3.0)
        self.cluster.start(master)
        assert await self.cluster.until(self.cluster.converged, 20.0) is None
