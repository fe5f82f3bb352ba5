"""The promise of request and reply across failovers: each request ends with its own reply or with an error,
in its time; after the failover all get replies again; nothing of them stays in a broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from broker.service import Broker
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Message, Received, SendFailed, SendUnknown
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.sending.request_reply import NoReply
from runtime.env import Env
from tests.sim.traffic import handed_over
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim
TOPIC = "TBW102"
ASKERS = 3
ENOUGH_S = 3.0  # longer than a failover
SHORT_S = 0.1


class Talk:
    """Clients that ask and one that replies, each on a machine of its own."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self.world, self.timeout_s = world, timeout_s
        self.outcomes: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        self.asked_last = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        cluster = self.world.cluster
        node, env = cluster.client("replier")
        self.tasks.append(cluster.inside(node, self._reply(env), name="replier"))
        for number in range(ASKERS):
            node, env = cluster.client(f"a{number}")
            self.tasks.append(cluster.inside(node, self._ask(env, node.name), name=node.name))

    async def end(self) -> None:
        """Who replies stays until all have heard its replies."""
        replier, *askers = self.tasks
        self.stopping.set()
        await asyncio.wait(askers, timeout=20)
        self.asked_last.set()
        _, left = await asyncio.wait([replier, *askers], timeout=20)
        assert not left, "a client hangs"
        for task in self.tasks:
            task.result()

    async def _reply(self, env: Env) -> None:
        cluster = self.world.cluster
        options = SendOptions(poll_ms=500)
        async with Producer(env, "repliers", cluster.namesrv_addresses, options) as producer:

            async def listener(messages: list[Received]) -> bool:
                for message in messages:
                    try:
                        await producer.reply(message, message.body.upper())
                    except (SendFailed, SendUnknown):
                        self.outcomes["reply not delivered"] += 1
                return True

            consumer = PushConsumer(
                env,
                "repliers",
                cluster.namesrv_addresses,
                listener,
                subscriptions={TOPIC: "*"},
                options=ConsumeOptions(from_first=True, concurrency=8, poll_ms=500),
            )
            async with consumer:
                await self.asked_last.wait()

    async def _ask(self, env: Env, name: str) -> None:
        cluster = self.world.cluster
        options = SendOptions(poll_ms=500)
        async with Producer(env, "askers", cluster.namesrv_addresses, options) as producer:
            number = 0
            while not self.stopping.is_set():
                number += 1
                await self._once(producer, f"{name}-{number}".encode())
                await asyncio.sleep(0.1)
            assert producer._requests.waiting == []

    async def _once(self, producer: Producer, body: bytes) -> None:
        begun_ms = self.world.cluster.clock()
        try:
            reply = await producer.request(Message(topic=TOPIC, body=body), timeout_s=self.timeout_s)
        except (SendFailed, NoReply) as error:
            self.outcomes[type(error).__name__] += 1
        else:
            assert reply.body == body.upper(), "it is the reply to another request"
            self.outcomes["replied"] += 1
        took_s = (self.world.cluster.clock() - begun_ms) / 1000
        assert took_s < self.timeout_s + 0.3, f"a request took {took_s} s"


async def talked(world: World, act: Callable[[], Awaitable[None]], timeout_s: float = ENOUGH_S) -> Talk:
    """Requests before, while and after ``act``; what must hold then, does."""
    talk = Talk(world, timeout_s)
    talk.begin()
    await asyncio.sleep(2)
    assert talk.outcomes["replied"] > 10, talk.outcomes
    await act()
    await asyncio.sleep(ENOUGH_S + 2)
    after, errors = talk.outcomes["replied"], talk.outcomes["NoReply"] + talk.outcomes["SendFailed"]
    await asyncio.sleep(2)
    assert talk.outcomes["replied"] - after > 10, "after the failover all goes on"
    assert talk.outcomes["NoReply"] + talk.outcomes["SendFailed"] == errors, "and without errors"
    await talk.end()
    await asyncio.sleep(1)
    for node in world.cluster.of("broker"):
        if isinstance(node.server, Broker) and node.running:
            assert node.server.processors.replies.pushing == 0
            node.server.context.clients.check_invariants()
            assert not node.server.context.clients.producers
            assert not node.server.context.pending_acks
    return talk


async def kill(world: World) -> None:
    master = world.cluster.master()
    assert master is not None
    world.cluster.kill(master)
    await asyncio.sleep(2)
    world.cluster.start(master)


@pytest.mark.parametrize("seed", range(2))
@simulated(World)
async def test_requests_while_the_master_is_killed_get_their_replies_from_the_next_one(
    world: World, seed: int
) -> None:
    talk = await talked(world, lambda: kill(world))
    assert set(talk.outcomes) == {"replied"}, talk.outcomes
    assert await world.cluster.until(world.cluster.converged, 20.0) is None


@pytest.mark.parametrize("seed", range(2))
@simulated(World)
async def test_requests_that_cannot_wait_for_the_next_master_end_with_an_error(
    world: World, seed: int
) -> None:
    talk = await talked(world, lambda: kill(world), SHORT_S)
    assert talk.outcomes["SendFailed"] + talk.outcomes["NoReply"] > 0, talk.outcomes
    assert await world.cluster.until(world.cluster.converged, 20.0) is None


@simulated(lambda: World(5))
async def test_requests_while_the_master_is_handed_over_are_all_replied_to(world: World) -> None:
    async def hand_over() -> None:
        await handed_over(world)

    talk = await talked(world, hand_over)
    assert set(talk.outcomes) == {"replied"}, talk.outcomes
