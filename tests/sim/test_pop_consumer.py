"""The promise of our consumer that pops, across deaths of masters: what was sent is handled at least once,
and what it acknowledged does not come back.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from broker.service import Broker
from chaos.sim.cluster import Node
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.message import Message, Received
from client.sending.producer import Producer
from model.errors import MqError
from runtime.env import Env
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim
TOPIC = "Orders"
KILLS = 2


class Story:
    """One that sends numbered messages, and two members of a group that pop them; one call of ten fails."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: set[bytes] = set()
        self.handled: Counter[bytes] = Counter()
        self.sending = self.popping = True
        self.members: list[PopConsumer] = []
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        cluster = self.world.cluster
        node, env = cluster.client("sender")
        self.tasks.append(cluster.inside(node, self._send(env), name="sender"))
        for name in ("popper1", "popper2"):
            node, env = cluster.client(name)
            self.tasks.append(cluster.inside(node, self._pop(env, name), name=name))

    async def end(self) -> None:
        self.popping = False
        _, left = await asyncio.wait(self.tasks, timeout=20)
        assert not left, "a client hangs"
        for task in self.tasks:
            task.result()

    def left(self) -> str | None:
        found = self.sent - set(self.handled)
        held = sum(member.held for member in self.members)
        return f"{len(found)} left, {held} in flight" if found or held else None

    def master(self) -> Node | None:
        for node in self.world.cluster.of("broker"):
            if node.running and isinstance(node.server, Broker) and node.server.role_state.is_master:
                return node
        return None

    async def _send(self, env: Env) -> None:
        number = 0
        async with Producer(env, "senders", self.world.cluster.namesrv_addresses) as producer:
            while self.sending:
                body = b"%d" % number
                number += 1
                try:
                    await producer.send(Message(topic=TOPIC, body=body))
                    self.sent.add(body)
                except MqError:
                    continue  # it may be stored, and then it may come
                await asyncio.sleep(0.01)

    async def _pop(self, env: Env, name: str) -> None:
        chance = self.world.cluster.chance(name)

        async def listener(messages: list[Received]) -> bool:
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            if chance.random() < 0.1:
                return False
            self.handled.update(message.body for message in messages)
            return True

        options = PopOptions(from_first=True, invisible_s=3.0, poll_s=1.0, retry_after_s=(0.5,))
        consumer = PopConsumer(
            env,
            "poppers",
            self.world.cluster.namesrv_addresses,
            listener,
            subscriptions={TOPIC: "*"},
            options=options,
        )
        async with consumer:
            self.members.append(consumer)
            while self.popping:
                await asyncio.sleep(0.1)
                assert consumer.held <= options.held_max


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.more)])
@simulated(lambda seed: World(seed, broker={"reviveInterval": "200"}))
async def test_a_pop_consumer_goes_on_over_the_death_of_two_masters(world: World, seed: int) -> None:
    story, cluster = Story(world), world.cluster
    story.begin()
    for _ in range(KILLS):
        await asyncio.sleep(2.0)
        killed = story.master()
        assert killed is not None
        cluster.kill(killed.name)
        assert await cluster.until(lambda: None if story.master() else "no master", 30.0) is None
        await asyncio.sleep(1.0)
        cluster.start(killed.name)
        assert await cluster.until(cluster.converged, 30.0) is None
    story.sending = False
    assert await cluster.until(story.left, 30.0) is None
    assert len(story.sent) > 100
    before = story.handled.total()
    await asyncio.sleep(6.0)
    assert story.handled.total() == before, "what was acknowledged comes back"
    await story.end()
    again = sum(story.handled.values()) - len(story.handled)
    assert again <= len(story.sent) // 5, "few come twice: those in flight when a master dies"
