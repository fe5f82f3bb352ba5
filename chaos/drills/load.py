"""What runs against the cluster during a drill: producers at a fixed rate, and a consumer behind them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from admin import credentials
from chaos.clients import Acked, ClientReader, ClientSender
from chaos.history import History
from chaos.workload import Clock, Load, ProducerLoad, ReaderLoad, not_consumed
from chaos.worlds.live import World
from client.admin import AdminClient
from client.message import Queue
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

TOPIC_S: Final = 15.0
ASK_AGAIN_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """One kind of drill. ``rate``: messages/s of all queues; ``in_flight``: sends a producer may have out at
    once; ``size_bytes``: of a body; ``senders``: clients the producers share, 0 = one each; times in seconds.

    ``load``: of a simulated plan, in the place of these: each of its producers sends to all queues.

    The load runs for ``warm_s`` before the fault, and for ``after_s`` after every queue was served again.
    The fault lasts for ``least_s`` at least, and so does the load once it is mended.
    """

    scenario: str
    topic: str = ""
    rate: float = 200.0
    in_flight: int = 1
    size_bytes: int = 256
    seed: int = 1
    queues: int = 4
    producers_per_queue: int = 2
    senders: int = 0
    make_up_s: float = 0.0
    warm_s: float = 2.0
    after_s: float = 1.0
    least_s: float = 0.0
    recover_s: float = 30.0
    full_s: float = 60.0
    load: Load | None = None


class Client(Protocol):
    """Sends, between its start and its stop."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, key: str, queue: Queue, body: bytes) -> Acked: ...


class Follower(Protocol):
    """A consumer that notes in the history what it is given."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


Follow = Callable[[Sequence[Queue], History, Clock], Follower]


class DrillLoad:
    """The producers, the consumer that follows them, and the history all of them write.

    ``clock``: ms since the load began. ``follow`` makes another consumer than the one that pulls each queue.
    """

    def __init__(
        self,
        env_of: Callable[[int], Env],
        world: World,
        plan: DrillPlan,
        queues: Sequence[Queue],
        number: int,
        chance: random.Random,
        *,
        history: History | None = None,
        follow: Follow | None = None,
    ) -> None:
        self.history = history if history is not None else History()
        self.queues = queues
        self._tasks = Tasks("drill")
        self._env = env_of(0)
        self._begun_ms = self._env.monotonic_ms()
        count = plan.load.producers if plan.load else plan.queues * plan.producers_per_queue
        each = plan.load or Load(
            topic=queues[0].topic,
            producers=count,
            per_second=plan.rate / count,
            queues=plan.queues,
            body_bytes=(plan.size_bytes, plan.size_bytes),
            in_flight_max=plan.in_flight,
            make_up_s=plan.make_up_s,
        )
        self._senders: list[Client] = [
            ClientSender(env_of(at + 1), f"drill{number}p{at}", world.namesrv, timeout_s=plan.recover_s)
            for at in range(plan.senders or count)
        ]
        self._producers = [
            ProducerLoad(
                f"drill{number}p{at}",
                self._senders[at % len(self._senders)],
                queues if plan.load else [queues[at % plan.queues]],
                each,
                self.history,
                self.clock,
                random.Random(chance.getrandbits(64)),
            )
            for at in range(count)
        ]
        self._reader = ClientReader(env_of(count + 1), f"drill{number}c", world.namesrv)
        self._consumer = ReaderLoad(f"drill{number}c", self._reader, queues, each, self.history, self.clock)
        self._follower = follow(queues, self.history, self.clock) if follow is not None else None
        self._running: list[asyncio.Task[None]] = []
        self._following: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        return self.queues[0].topic

    def beside(self, name: str, client: Client, load: Load, chance: random.Random) -> None:
        """One more producer, to all queues, before the start."""
        own = random.Random(chance.getrandbits(64))
        self._senders.append(client)
        self._producers.append(ProducerLoad(name, client, self.queues, load, self.history, self.clock, own))

    def clock(self) -> float:
        return self._env.monotonic_ms() - self._begun_ms

    async def start(self) -> None:
        for sender in self._senders:
            await sender.start()
        await self._reader.start()
        if self._follower is not None:
            await self._follower.start()
        self._begun_ms = self._env.monotonic_ms()
        self._running = [self._tasks.spawn(p.run(), name=p.name) for p in self._producers]
        if self._follower is None:
            self._following = self._tasks.spawn(self._consumer.run(), name=self._consumer.name)

    async def stop(self, timeout_s: float) -> None:
        """End the sends; one that still waits after ``timeout_s`` stays unknown."""
        for producer in self._producers:
            producer.stop()
        if self._running:  # else others send
            await asyncio.wait(self._running, timeout=timeout_s)

    def errors(self) -> list[str]:
        """What ended a producer or the consumer before its time, in words."""
        told = []
        for task in (*self._running, *([self._following] if self._following is not None else [])):
            error = None if not task.done() or task.cancelled() else task.exception()
            if error is not None:
                told.append(f"{task.get_name()} ended: {error!r}")
        return told

    async def not_consumed(self, timeout_s: float) -> list[str]:
        """Once a whole group is sent nothing more: what its consumer was kept from, if it does not get it
        within ``timeout_s``. Of another follower that is not known."""
        if self._following is None:
            return []
        until_ms = self.clock() + timeout_s * 1000
        while True:
            told = not_consumed(self.history, self._consumer.jumps, self._consumer.at)
            late = not_consumed(self.history, (), self._consumer.at)
            if not late or self.clock() > until_ms:
                return told
            await asyncio.sleep(0.1)

    @property
    def consumes(self) -> bool:
        """Whether ``not_consumed`` says anything."""
        return self._following is not None

    @property
    def unsure(self) -> str | None:
        """Why the times of this history prove nothing; None: they are of one clock."""
        return None

    def described(self) -> dict[str, Any]:
        """Of another client than ours, for the result: what it is, and what it was given."""
        return {}

    @property
    def reads_failed(self) -> int:
        return self._consumer.errors

    async def read_back(self, timeout_s: float) -> bool:
        self._consumer.stop()
        until_s = asyncio.get_running_loop().time() + timeout_s
        return await self._consumer.read_back(until_s=until_s)

    async def close(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
        await self._tasks.cancel()
        for sender in self._senders:
            await sender.stop()
        await self._reader.stop()


async def make_topic(env: Env, world: World, topic: str, queues: int) -> None:
    """Create the topic and wait until every NameServer routes it. A group that is whole may still refuse for
    a moment, on a busy machine. Raises MqError after TOPIC_S."""
    until_ms = env.monotonic_ms() + TOPIC_S * 1000

    async def routed(one: AdminClient) -> bool:
        return len((await one.route(topic)).writable) == queues

    async with AdminClient(env, world.namesrv, credentials=credentials.read()) as admin:

        async def created() -> bool:
            await admin.create_topic(topic, queues, brokers=[world.group])
            return True

        await _until(created, env, until_ms)
        for address in world.namesrv:
            async with AdminClient(env, [address]) as one:
                await _until(partial(routed, one), env, until_ms)


async def _until(holds: Callable[[], Awaitable[bool]], env: Env, until_ms: float) -> None:
    """Ask again until it does. Raises at last what it raised, or MqError."""
    while True:
        try:
            if await holds():
                return
            if env.monotonic_ms() > until_ms:
                raise MqError(f"a new topic has not its queues in every NameServer after {TOPIC_S:.0f} s")
        except MqError:
            if env.monotonic_ms() > until_ms:
                raise
        await asyncio.sleep(ASK_AGAIN_S)
