"""The promise of a pop consumer across failovers: what was sent is acknowledged once at least, and what was
acknowledged does not come back."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from broker.service import Broker
from chaos.sim.cluster import BROKER_PORT, Node
from model.codes import Request
from model.errors import MqError
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import RemotingClient
from runtime.env import Env
from tests.broker.pop.support import Popped, ack_of, header, popped
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim
TOPIC = "TBW102"


class Pops:
    """One that sends numbered messages, and two that pop and acknowledge them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.unknown: set[bytes] = set()
        """Acknowledged without an answer: it may be, and then it does not come again."""
        self.given: Counter[bytes] = Counter()
        self.again: list[bytes] = []
        """Given from its own queue although an acknowledgement had been answered."""
        self.revived_again: Counter[bytes] = Counter()
        """Another copy in the retry topic: of a master that died before its successor could know."""
        self.sending = True
        self.popping = True
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
        found = self.sent - self.acked - self.unknown
        return f"{len(found)} left" if found else None

    def master(self) -> Node | None:
        for node in self.world.cluster.of("broker"):
            if node.running and isinstance(node.server, Broker) and node.server.role_state.is_master:
                return node
        return None

    async def call(
        self, client: RemotingClient, code: int, ext: dict[str, str], body: bytes = b""
    ) -> Command | None:
        """The answer of the master; None: it is not known what became of the request."""
        node = self.master()
        if node is None:
            await asyncio.sleep(0.05)
            return None
        address = f"{node.host}:{BROKER_PORT}"
        try:
            return await client.call(address, Command(int(code), ext, body), 5.0)
        except (MqError, OSError):
            client.drop(address)
            await asyncio.sleep(0.02)
            return None

    async def _send(self, env: Env) -> None:
        client, number = RemotingClient(env, "sender"), 0
        while self.sending:
            body = b"%d" % number
            number += 1
            ext = SendHeader("p", TOPIC, number % 4, env.now_ms()).to_ext()
            answer = await self.call(client, Request.SEND_MESSAGE_V2, ext, body)
            if answer is not None and answer.code == 0:
                self.sent.add(body)
            await asyncio.sleep(0.01)
        await client.close()

    async def _pop(self, env: Env, name: str) -> None:
        client, chance = RemotingClient(env, name), self.world.cluster.chance(name)
        while self.popping:
            how = header(TOPIC, count_max=8, invisible_ms=1500, poll_ms=500, born_ms=0)
            answer = await self.call(client, Request.POP_MESSAGE, how.to_ext())
            if answer is None or answer.code != 0:
                await asyncio.sleep(0.01)
                continue
            for one in popped(answer, TOPIC, broker="broker-a"):
                self.given[one.body] += 1
                if one.body in self.acked and one.record.reconsume_times == 0:
                    self.again.append(one.body)
                elif one.body in self.acked:
                    self.revived_again[one.body] += 1
                if chance.random() < 0.9:  # else it is not handled
                    await self._ack(client, one)
        await client.close()

    async def _ack(self, client: RemotingClient, one: Popped) -> None:
        answer = await self.call(client, Request.ACK_MESSAGE, ack_of(one).to_ext())
        if answer is None:
            self.unknown.add(one.body)
        elif answer.code == 0:
            self.acked.add(one.body)


KILLS = 2


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.more)])
@simulated(lambda seed: World(seed, broker={"reviveInterval": "200", "defaultTopicQueueNums": "4"}))
async def test_pops_go_on_over_the_death_of_two_masters(world: World, seed: int) -> None:
    pops, cluster = Pops(world), world.cluster
    pops.begin()
    for _ in range(KILLS):
        await asyncio.sleep(2.0)
        killed = pops.master()
        assert killed is not None
        cluster.kill(killed.name)
        assert await cluster.until(lambda: None if pops.master() else "no master", 30.0) is None
        await asyncio.sleep(1.0)
        cluster.start(killed.name)
        assert await cluster.until(cluster.converged, 30.0) is None
    pops.sending = False
    assert await cluster.until(pops.left, 30.0) is None
    assert len(pops.sent) > 100
    before = pops.given.total()
    await asyncio.sleep(5.0)
    assert pops.given.total() - before <= 2, "nothing is left to be given"
    await pops.end()
    assert not pops.again, "what was acknowledged came back"
    assert max(pops.revived_again.values(), default=0) <= KILLS, "each death costs one copy more at most"
