"""Load on a simulated cluster, and an operator who moves its master meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from admin.handover import HandedOver, hand_over
from chaos.clients import ClientSender
from chaos.sim.cluster import GROUP
from chaos.workload import Load, ProducerLoad, queues_of
from client.admin import AdminClient
from tests.sim.world import World


class Traffic:
    """Producers on every queue of a topic; ``world.cluster.history`` has what became of each send."""

    def __init__(self, world: World, load: Load) -> None:
        self.world, self.load = world, load
        self.producers: list[ProducerLoad] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        cluster = self.world.cluster
        node, env = cluster.client("admin")

        async def create() -> None:
            async with AdminClient(env, cluster.namesrv_addresses) as admin:
                await admin.create_topic(self.load.topic, self.load.queues, brokers=[GROUP])

        await cluster.inside(node, create())
        for number in range(self.load.producers):
            name = f"p{number}"
            node, env = cluster.client(name)
            sender = ClientSender(env, name, cluster.namesrv_addresses)
            queues, chance = queues_of(self.load, GROUP), cluster.chance(name)
            producer = ProducerLoad(name, sender, queues, self.load, cluster.history, cluster.clock, chance)

            async def produce(sender: ClientSender = sender, producer: ProducerLoad = producer) -> None:
                await sender.start()
                await producer.run()

            self.producers.append(producer)
            self.tasks.append(cluster.inside(node, produce(), name=name))

    async def end(self) -> set[str]:
        """How the sends ended, each kind once."""
        for producer in self.producers:
            producer.stop()
        await asyncio.wait(self.tasks, timeout=15)
        return {send.outcome for send in self.world.cluster.history.sends()}


async def handed_over(world: World, transfer_target: int | None = None) -> HandedOver:
    node, env = world.cluster.client(f"operator{len(world.cluster.nodes)}")
    cluster = world.cluster
    work = hand_over(
        env, cluster.namesrv_addresses, cluster.controller_addresses, "DefaultCluster", GROUP, transfer_target
    )
    return await cluster.inside(node, work)


def under_load(
    world: World, act: Callable[[World], Awaitable[None]], *, per_second: float = 25.0
) -> set[str]:
    outcomes: set[str] = set()

    async def main() -> None:
        traffic = Traffic(world, Load(per_second=per_second))
        await traffic.begin()
        await asyncio.sleep(1.5)
        await act(world)
        await asyncio.sleep(1.5)
        outcomes.update(await traffic.end())
        assert await world.cluster.until(world.cluster.converged, 20.0) is None

    world.run(main)
    return outcomes
