"""How does one demo go? Load, SIGKILL to the master, restart, quiet; what it measured is a ``Result``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from admin import credentials
from admin.cluster import ClusterNotReady, LocalCluster
from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from audit.run import Report
from chaos.checks import Evidence, check_all
from chaos.clients import ClientReader, ClientSender, body_crc
from chaos.drills.drill import Drill, DrillPlan, judge, measure
from chaos.history import History, HistoryEvent, Ok, Read
from chaos.workload import Load, ProducerLoad, ReaderLoad, queues_of
from chaos.worlds.live import LiveWorld, Timeline, Victim
from cli.demo_screen import Screen, Sight
from client.admin import AdminClient
from client.consumer import PushConsumer
from client.message import Received
from client.session import Session
from model.errors import MqError
from runtime.env import Env
from runtime.os_env import OsEnv
from runtime.tasks import Tasks

TOPIC: Final = "demo"
QUEUES: Final = 8
PRODUCERS: Final = 32
CONSUMERS: Final = 2
FAULT: Final = "kill-master"
LOOK_S: Final = 0.25
TOPIC_S: Final = 15.0
MAKE_UP_S: Final = 1.0  # the rate holds on average although a failover or a busy machine holds sends up
SETTLE_S: Final = 30.0
READ_BACK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``rate``: messages/s in all; ``size_bytes``: of a body."""

    seconds: float
    rate: int
    size_bytes: int
    seed: int

    @property
    def kill_s(self) -> float:
        return self.seconds / 3

    @property
    def restart_s(self) -> float:
        return self.seconds * 2 / 3


@dataclass(slots=True)
class Result:
    """What one demo measured. Times in ms of the history's clock, which begins with the load."""

    plan: Plan
    drill: Drill
    history: History = field(default_factory=History)
    victim: str = ""
    successor: str = ""
    epochs: tuple[int, int] = (0, 0)
    kill_ms: float = 0.0
    restart_ms: float = 0.0
    first_ack_ms: float | None = None
    stop_ms: float = 0.0
    acks_ms: list[float] = field(default_factory=list)
    consumed: int = 0
    settled: str = ""
    violations: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    audit: Report | None = None

    @property
    def rpo(self) -> int:
        """Acknowledged messages that are gone, by the worse of the two readings: clients' and disks'."""
        missing = 0
        if self.audit is not None:
            missing = sum(
                f.records for f in self.audit.findings if f.kind == "acked_missing" and not f.copies
            )
        return max(self.drill.lost, missing)

    @property
    def exit_code(self) -> int:
        if self.rpo or self.violations or self.drill.violated:
            return FAILED
        if self.audit is None or self.settled or self.drill.unfinished is not None:
            return UNFINISHED
        return {"clean": DONE, "warnings": WARNINGS, "diverged": FAILED}.get(self.audit.verdict, UNFINISHED)

    def to_json(self) -> dict[str, Any]:
        """``demo.json``."""
        drill = self.drill
        return {
            "exit_code": self.exit_code,
            "seconds": self.plan.seconds,
            "rate": self.plan.rate,
            "size_bytes": self.plan.size_bytes,
            "seed": self.plan.seed,
            "victim": self.victim,
            "successor": self.successor,
            "epochs": list(self.epochs),
            "rto_ms": drill.rto_ms,
            "rto_queues_ms": drill.rto_queues_ms,
            "noticed_ms": drill.noticed_ms,
            "elected_ms": drill.elected_ms,
            "promoted_ms": drill.promoted_ms,
            "routed_ms": drill.routed_ms,
            "first_ack_ms": drill.first_ack_ms,
            "rpo": self.rpo,
            "acked": drill.acked,
            "unknown": drill.unknown,
            "failed": drill.failed,
            "consumed": self.consumed,
            "duplicates": drill.duplicates,
            "order_violations": drill.order_violations,
            "violations": self.violations,
            "ends": self.ends,
            "unfinished": self.settled or drill.unfinished,
            "audit": self.audit.to_json() if self.audit is not None else None,
        }


class CountingHistory(History):
    """A history that also counts as it grows, for the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.acks_ms: list[float] = []
        self.seen: set[str] = set()
        self.unknown = 0

    def add(self, event: HistoryEvent) -> None:
        super().add(event)
        if isinstance(event, Ok):
            self.acks_ms.append(event.at_ms)
        elif isinstance(event, Read):
            self.seen.add(event.key)
        elif event.type in ("unknown", "fail"):
            self.unknown += 1


class Traffic:
    """Producers at a fixed rate, and a consumer group that follows them."""

    def __init__(self, env: Env, plan: Plan, world: LiveWorld, chance: random.Random) -> None:
        self._env = env
        self._begun_ms = env.monotonic_ms()
        self.history = CountingHistory()
        body_bytes = (plan.size_bytes, plan.size_bytes)
        self.load = Load(TOPIC, PRODUCERS, plan.rate / PRODUCERS, QUEUES, body_bytes, make_up_s=MAKE_UP_S)
        self.queues = queues_of(self.load, world.group)
        self._tasks = Tasks("demo")
        self._namesrv = world.namesrv
        self._sender = ClientSender(env, "demo_producers", world.namesrv, timeout_s=plan.seconds)
        self._producers = [
            ProducerLoad(
                f"p{n:02d}",
                self._sender,
                [self.queues[n % QUEUES]],
                self.load,
                self.history,
                self.clock,
                random.Random(chance.getrandbits(64)),
            )
            for n in range(PRODUCERS)
        ]
        self._consumers = [
            PushConsumer(
                env,
                "GID_demo",
                listener=partial(self._received, f"consumer-{n}"),
                subscriptions={TOPIC: "*"},
                session=Session(env, world.namesrv, poll_ms=1000),
                batch_max=32,
                from_first=True,
                rebalance_s=1.0,
            )
            for n in range(CONSUMERS)
        ]
        self._given = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    def clock(self) -> float:
        """ms since the load began."""
        return self._env.monotonic_ms() - self._begun_ms

    async def start(self) -> None:
        await self._sender.start()
        for consumer in self._consumers:
            await consumer.start()
        self._begun_ms = self._env.monotonic_ms()
        self._running = [self._tasks.spawn(p.run(), name=p.name) for p in self._producers]

    async def _received(self, source: str, messages: list[Received]) -> bool:
        now_ms = self.clock()
        for m in messages:
            self.history.add(Read(now_ms, source, m.msg_id, m.queue, m.queue_offset, body_crc(m.body)))
        self._given.set()
        return True

    async def stop_sending(self, timeout_s: float) -> None:
        for producer in self._producers:
            producer.stop()
        await asyncio.wait(self._running, timeout=timeout_s)

    async def consumed_all(self, timeout_s: float) -> bool:
        """Wait until the group was given every acknowledged message."""
        acked = {event.key for event in self.history.events if isinstance(event, Ok)}
        try:
            async with asyncio.timeout(timeout_s):
                while not acked <= self.history.seen:
                    self._given.clear()
                    await self._given.wait()
        except TimeoutError:
            return False
        return True

    async def read_back(self, env: Env) -> bool:
        """Everything once more from the start, as the final state."""
        reader = ClientReader(env, "demo_read_back", self._namesrv)
        await reader.start()
        try:
            load = ReaderLoad("read back", reader, self.queues, self.load, self.history, self.clock)
            return await load.read_back(until_s=asyncio.get_running_loop().time() + READ_BACK_S)
        finally:
            await reader.stop()

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.stop()
        await self._tasks.cancel()
        await self._sender.stop()


async def make_topic(env: Env, world: LiveWorld) -> None:
    """Create the topic and wait until every NameServer routes it. Raises MqError."""
    until_ms = env.monotonic_ms() + TOPIC_S * 1000
    async with AdminClient(env, world.namesrv, credentials=credentials.read()) as admin:
        await admin.create_topic(TOPIC, QUEUES, brokers=[world.group])
    for address in world.namesrv:
        async with AdminClient(env, [address]) as one:
            while True:
                try:
                    if len((await one.route(TOPIC)).writable) == QUEUES:
                        break
                except MqError:
                    if env.monotonic_ms() > until_ms:
                        raise
                await asyncio.sleep(0.05)


class Watch:
    """Looks at the cluster a few times a second and shows it."""

    def __init__(self, cluster: LocalCluster, world: LiveWorld, traffic: Traffic, screen: Screen) -> None:
        self._cluster, self._world, self._traffic, self._screen = cluster, world, traffic, screen
        self.phase = "starting"
        self.epoch = 0
        self.ends: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Sight:
        status = await self._cluster.status()
        group = next(g for g in status["groups"] if g["name"] == self._world.group)
        names = {b["id"]: b["name"] for b in group["brokers"]}
        master = next((b for b in group["brokers"] if b["role"] == "master"), None)
        self.epoch = group["epoch"] or self.epoch
        self.ends = {b["name"]: b["maxOffset"] for b in group["brokers"] if b["maxOffset"] is not None}
        history = self._traffic.history
        now_ms = self._traffic.clock()
        recent = sum(1 for at in reversed(history.acks_ms[-5000:]) if at > now_ms - 1000)
        confirmed = (master or {}).get("confirmOffset")
        sight = Sight(
            at_s=now_ms / 1000,
            phase=self.phase,
            master=master["name"] if master else "none",
            epoch=self.epoch,
            in_sync=tuple(names.get(i, str(i)) for i in group["syncStateSet"]),
            brokers=tuple((b["name"], b["role"], b["maxOffset"]) for b in group["brokers"]),
            per_second=recent,
            acked=len(history.acks_ms),
            unanswered=history.unknown,
            behind=max(0, len(history.acks_ms) - len(history.seen)),
            confirmed=confirmed if confirmed is not None else -1,
        )
        self._screen.show(sight)
        return sight


async def run_cluster(
    env: OsEnv, cluster: LocalCluster, plan: Plan, screen: Screen, load_is_over: Callable[[], object]
) -> Result:
    """Load, kill, restart, settle. Raises MqError when the cluster does not come up at all.

    ``load_is_over`` is called once nothing is measured any more.
    """
    chance = random.Random(plan.seed)
    screen.say("starting 3 NameServers with Controllers and 3 brokers")
    await cluster.up(tell=screen.note)
    world = LiveWorld(env, cluster)
    await make_topic(env, world)
    result = Result(plan, Drill())
    traffic = Traffic(env, plan, world, chance)
    watch = Watch(cluster, world, traffic, screen)
    tasks = Tasks("demo.watch")
    await traffic.start()
    tasks.spawn(watch.run(), name="look")
    try:
        watch.phase = "under load"
        screen.say(f"sending {plan.rate} messages/s of {plan.size_bytes} bytes; a consumer group reads them")
        await _until(traffic, plan.kill_s)
        victim = await world.choose(FAULT, chance)
        before = watch.epoch
        fault_ms, wall_ms = traffic.clock(), env.now_ms()
        await world.inflict(FAULT, victim)
        result.victim, result.kill_ms = victim.name, fault_ms
        watch.phase = f"{victim.name} killed"
        screen.say(f"SIGKILL to the master, {victim.name}")
        await _until(traffic, plan.restart_s)
        timeline = await world.timeline(wall_ms)
        _tell_timeline(screen, timeline, traffic, victim, fault_ms)
        result.restart_ms = traffic.clock()
        await world.mend(FAULT, victim)
        watch.phase = f"{victim.name} started again"
        screen.say(f"{victim.name} is started again, as a slave")
        await _until(traffic, plan.seconds)
        result.stop_ms = traffic.clock()
        watch.phase = "settling"
        screen.say("the load stops; waiting until all replicas are equal")
        await traffic.stop_sending(SETTLE_S)
        load_is_over()
        await _settle(cluster, traffic, watch, result)
        if not await traffic.read_back(OsEnv(seed=plan.seed + 1)):
            result.drill.unfinished = "not every queue could be read back"
        sight = await watch.look()
    finally:
        await tasks.cancel()
        await traffic.close()
    result.epochs = (before, watch.epoch)
    result.successor = sight.master
    result.ends = watch.ends
    _judge(result, traffic, victim, timeline)
    result.history = traffic.history
    return result


async def _until(traffic: Traffic, seconds: float) -> None:
    await asyncio.sleep(max(0.0, seconds - traffic.clock() / 1000))


def _tell_timeline(
    screen: Screen, timeline: Timeline, traffic: Traffic, victim: Victim, fault_ms: float
) -> None:
    first = next(
        (
            e.at_ms - fault_ms
            for e in traffic.history.events
            if isinstance(e, Ok) and e.at_ms > fault_ms and e.address != victim.master
        ),
        None,
    )
    steps = [
        ("noticed", timeline.noticed_ms),
        ("elected", timeline.elected_ms),
        ("promoted", timeline.promoted_ms),
        ("routed", timeline.routed_ms),
        ("first ack", first),
    ]
    told = [f"{name} +{value:.0f} ms" for name, value in steps if value is not None]
    screen.say("failover: " + (", ".join(told) or "no step was seen"))


async def _settle(cluster: LocalCluster, traffic: Traffic, watch: Watch, result: Result) -> None:
    """Until the SyncStateSet is full, the replicas end at one offset and the group has read everything."""
    try:
        await cluster.wait_ready(timeout_s=SETTLE_S)
    except ClusterNotReady as error:
        result.settled = str(error)
        return
    if not await traffic.consumed_all(SETTLE_S):
        result.settled = "the consumer group was not given every acknowledged message"
    try:
        async with asyncio.timeout(SETTLE_S):
            while True:
                sight = await watch.look()
                ends = {end for _, _, end in sight.brokers}
                if len(ends) == 1 and ends == {sight.confirmed}:
                    return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        result.settled = f"the replicas do not become equal: {watch.ends}"


def _judge(result: Result, traffic: Traffic, victim: Victim, timeline: Timeline) -> None:
    plan, drill, history = result.plan, result.drill, traffic.history
    shape = DrillPlan(FAULT, plan.rate, plan.size_bytes, plan.seed, QUEUES)
    measure(drill, history, traffic.queues, shape, victim, timeline, result.kill_ms, result.restart_ms)
    judge(drill, history)
    drill.victim = victim.name
    result.acks_ms = history.acks_ms
    result.consumed = len(history.seen)
    if drill.first_ack_ms is not None:
        result.first_ack_ms = result.kill_ms + drill.first_ack_ms
    # The demo's own reads and the disks are both evidence; what the audit says of the disks comes later.
    evidence = Evidence(history, complete=drill.unfinished is None)
    result.violations = [f"{v.checker}: {v.text}" for v in check_all(evidence)]
