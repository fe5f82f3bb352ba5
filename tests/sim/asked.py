"""A simulated group whose master an operator asks, and how it comes to be the whole set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from broker.service import Broker
from chaos.sim.cluster import BROKER_PORT
from model.codes import Request
from remoting.codec import Command
from remoting.service import RemotingClient
from tests.sim.world import World

TOPIC = {
    "topic": "T1",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "defaultTopic": "TBW102",
}
FLUSHES_SELDOM = {"flushIntervalCommitLog": "60000"}


class Group(World):
    """A world whose master is asked by an operator."""

    async def begin(self) -> None:
        self.node, env = self.cluster.client("operator")
        self.client = RemotingClient(env, "operator")
        master = self.cluster.master()
        assert master is not None
        self.master = master
        self.others = sorted(node.name for node in self.cluster.of("broker") if node.name != master)

    def broker(self, name: str) -> Broker:
        return cast(Broker, self.cluster.nodes[name].server)

    async def ask(self, code: Request, ext: dict[str, str], body: bytes = b"", timeout_s: float = 5.0) -> int:
        address = f"{self.cluster.nodes[self.master].host}:{BROKER_PORT}"
        call = self.client.call(address, Command(code, ext, body), timeout_s)
        return (await self.cluster.inside(self.node, call)).code

    def end(self, name: str) -> int:
        return self.broker(name).store.log.end

    def ends(self) -> dict[str, int]:
        """Of the slaves that are connected, and said how far they are."""
        slaves = self.broker(self.master).ha.slaves()
        return {str(slave["id"]): slave["ackOffset"] for slave in slaves if slave["ackOffset"] is not None}

    async def members_are(self, *names: str, within_s: float = 10.0) -> None:
        def missing() -> str | None:
            members = self.cluster.members()
            return None if set(members) == set(names) else f"members {members}"

        assert await self.cluster.until(missing, within_s) is None

    async def reached(self, what: Callable[[], bool]) -> None:
        """Look every half millisecond: ``cluster.until`` would miss the moment."""
        for _ in range(20_000):
            if what():
                return
            await asyncio.sleep(0.0005)
        raise AssertionError("not within 10 s")


async def alone(world: Group) -> None:
    """All have the log of the master, and it has not all of it on its disk; then it alone is the set."""
    world.send_to(world.master)
    log = world.broker(world.master).store.log
    await world.reached(
        lambda: log.end - log.flushed > 600 and all(world.end(name) == log.end for name in world.others)
    )
    for name in world.others:
        world.cluster.kill(name)
    await world.members_are(world.master)
