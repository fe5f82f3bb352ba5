"""What does one fault cost a cluster under load: how long, how many messages, in which order?

A drill sends at a fixed rate to every queue of a fresh topic, from two producers each, follows it with a
consumer, injects the fault, waits until every queue is acknowledged again, mends what was broken, waits until
the SyncStateSet is full, reads everything back and holds it against the history.

``rto_ms`` is the worst queue's time from its last acknowledgement before the fault to its first one by the
new master; where the old master was asked to go, and served on until it had made way, from the last one it
gave: the time its clients were without acknowledgements. ``since_request_ms`` is the worst queue's time from
the fault, or the request, to the new master's first acknowledgement. Where the master stays, ``rto_ms`` is
the longest gap between two acknowledgements of a queue after the fault.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from admin import credentials
from chaos.checks import messages, order
from chaos.checks.violation import Violation
from chaos.clients import ClientReader, ClientSender
from chaos.history import History, Invoke, Ok
from chaos.workload import Load, ProducerLoad, ReaderLoad
from chaos.worlds.live import Timeline, Victim, World
from client.admin import AdminClient
from client.message import Queue
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

MOVES_MASTER: Final = frozenset(
    {"kill-master", "stop-master", "freeze-master", "handover", "kill-leader-and-master"}
)
ORDERLY: Final = frozenset({"stop-master", "handover"})
"""The old master serves on for a while: the outage begins with its last acknowledgement."""
PRODUCERS_PER_QUEUE: Final = 2
TAKES_HOLD_MS: Final = 50.0
"""What was on its way when a slave died or froze may still be answered; later sends feel the fault."""
READ_BACK_S: Final = 30.0
TOPIC_S: Final = 15.0
VIOLATIONS_SHOWN: Final = 20
COUNTS: Final = (
    "acked",
    "unknown",
    "failed",
    "lost",
    "phantom",
    "duplicates",
    "order_violations",
    "offset_reuse",
    "acknowledged_twice",
    "read_then_gone",
)


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """One kind of drill. ``rate``: messages/s of all queues; ``in_flight``: sends a producer
    may have out at once; ``size_bytes``: of a body; times in seconds."""

    scenario: str
    rate: float = 200.0
    in_flight: int = 1
    size_bytes: int = 256
    seed: int = 1
    queues: int = 4
    warm_s: float = 2.0
    after_s: float = 1.0
    recover_s: float = 30.0
    full_s: float = 60.0


@dataclass(slots=True)
class Drill:
    """What one drill measured; times in ms since the fault, None = did not happen in time."""

    rto_ms: float | None = None
    since_request_ms: float | None = None
    noticed_ms: float | None = None
    elected_ms: float | None = None
    promoted_ms: float | None = None
    routed_ms: float | None = None
    leader_ms: float | None = None
    first_ack_ms: float | None = None
    acked: int = 0
    unknown: int = 0
    failed: int = 0
    lost: int = 0
    phantom: int = 0
    duplicates: int = 0
    order_violations: int = 0
    offset_reuse: int = 0
    acknowledged_twice: int = 0
    read_then_gone: int = 0
    victim: str = ""
    rto_queues_ms: list[float | None] = field(default_factory=list)
    stall_ms: float | None = None
    full_again_ms: float | None = None
    read_back: int = 0
    unfinished: str | None = None
    violations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def violated(self) -> bool:
        return bool(
            self.lost
            or self.phantom
            or self.duplicates
            or self.order_violations
            or self.offset_reuse
            or self.acknowledged_twice
            or self.read_then_gone
        )


async def run_drill(
    env: Env,
    world: World,
    plan: DrillPlan,
    number: int,
    *,
    env_of: Callable[[int], Env],
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Drill, History]:
    """Carry out drill ``number``. ``env_of`` makes the environment of each client.

    Raises CannotDrill when the fault cannot be injected. A cluster that does not recover is a result:
    ``unfinished`` says what did not happen.
    """
    chance = random.Random(f"{plan.seed}/{number}")
    await world.wait_full(plan.full_s)
    topic = f"drill_{plan.scenario}_{plan.seed}_{number}_{env.now_ms() % 1_000_000_000}"
    queues = [Queue(topic, world.group, queue_id) for queue_id in range(plan.queues)]
    await make_topic(env, world, topic, plan.queues)
    load = DrillLoad(env_of, world, plan, queues, number, chance)
    drill = Drill()
    await load.start()
    try:
        tell("load runs")
        await asyncio.sleep(plan.warm_s)
        victim = await world.choose(plan.scenario, chance)
        drill.victim = victim.name
        wall_ms, fault_ms = env.now_ms(), env.monotonic_ms()
        await world.inflict(plan.scenario, victim)
        try:
            tell(f"{plan.scenario}: {victim.name}")
            recovered = await _recovered(env, load, plan, victim, fault_ms)
            await asyncio.sleep(plan.after_s)
            led = await world.led(plan.recover_s)
            timeline = await world.timeline(wall_ms)
        finally:
            # Also when we are interrupted: nobody else knows that a process was frozen.
            until_ms = env.monotonic_ms()
            tell("mending")
            await world.mend(plan.scenario, victim)
        await _full_again(env, world, plan, drill, fault_ms)
        await load.stop(plan.recover_s)
        if not await load.read_back(READ_BACK_S):
            drill.unfinished = drill.unfinished or "not every queue could be read back"
    finally:
        await load.close()
    if not recovered:
        drill.unfinished = f"no acknowledgement on every queue within {plan.recover_s:.0f} s"
    elif not led:
        drill.unfinished = f"no Controller answered as leader within {plan.recover_s:.0f} s"
    measure(drill, load.history, queues, plan, victim, timeline, fault_ms, until_ms)
    judge(drill, load.history)
    return drill, load.history


def measure(
    drill: Drill,
    history: History,
    queues: Sequence[Queue],
    plan: DrillPlan,
    victim: Victim,
    timeline: Timeline,
    fault_ms: float,
    until_ms: float,
) -> None:
    """Fill in the times. ``until_ms``: acknowledgements later than this are not part of the failover."""
    acks = [event for event in history.events if isinstance(event, Ok)]
    moves = plan.scenario in MOVES_MASTER
    drill.rto_queues_ms = []
    stalls: list[float] = []
    firsts: list[float] = []
    for queue in queues:
        own = [ack for ack in acks if ack.queue == queue and ack.at_ms <= until_ms]
        stall = longest_gap([ack.at_ms for ack in own], fault_ms, until_ms)
        stalls.append(stall)
        firsts += _by_another(own, fault_ms, victim.master)[:1]
        drill.rto_queues_ms.append(
            rto(own, fault_ms, victim.master, orderly=plan.scenario in ORDERLY) if moves else stall
        )
    found = [rto for rto in drill.rto_queues_ms if rto is not None]
    drill.rto_ms = max(found) if len(found) == len(queues) else None
    if moves and len(firsts) == len(queues):
        drill.since_request_ms = round(max(firsts) - fault_ms, 1)
    drill.stall_ms = max(stalls, default=None)
    later = [
        ack.at_ms for ack in acks if ack.at_ms > fault_ms and (not moves or ack.address != victim.master)
    ]
    drill.first_ack_ms = round(min(later) - fault_ms, 1) if later else None
    for name, value in asdict(timeline).items():
        setattr(drill, name, value)


def rto(acks: Sequence[Ok], fault_ms: float, old_master: str, *, orderly: bool) -> float | None:
    """Last acknowledgement before the outage to the first one by another master than the old."""
    after = _by_another(acks, fault_ms, old_master)
    # An answer a killed master gave in its last moment may be read after the fault: it ends no outage.
    begins_ms = min(after, default=fault_ms) if orderly else fault_ms
    before = [
        ack.at_ms for ack in acks if ack.at_ms <= begins_ms and (not orderly or ack.address == old_master)
    ]
    return round(min(after) - max(before, default=fault_ms), 1) if after else None


def _by_another(acks: Sequence[Ok], fault_ms: float, old_master: str) -> list[float]:
    """When another master than the old acknowledged, in order of time."""
    return sorted(ack.at_ms for ack in acks if ack.at_ms > fault_ms and ack.address != old_master)


def longest_gap(times_ms: Sequence[float], fault_ms: float, until_ms: float) -> float:
    """The longest time without an acknowledgement between the last one before the fault and ``until_ms``."""
    before = max((at for at in times_ms if at <= fault_ms), default=fault_ms)
    marks = [before, *sorted(at for at in times_ms if fault_ms < at <= until_ms), until_ms]
    return round(max(b - a for a, b in pairwise(marks)), 1)


def judge(drill: Drill, history: History) -> None:
    """Count outcomes and broken promises."""
    sends = history.sends()
    for send in sends:
        if send.outcome == "ok":
            drill.acked += 1
        elif send.outcome == "fail":
            drill.failed += 1
        else:
            drill.unknown += 1
    final, early = history.reads(final=True), history.reads(final=False)
    drill.read_back = len(final)
    found: dict[str, list[Violation]] = {
        "lost": list(messages.lost(sends, final)) if final else _all_lost(drill),
        "phantom": list(messages.phantom(sends, history.reads())),
        "duplicates": list(messages.duplicates(sends, final)),
        "order_violations": [
            *order.producer_order(sends),
            *order.real_time_order(sends),
            *order.dense_offsets(final),
        ],
        "offset_reuse": list(order.offset_reuse(sends, history.reads())),
        "acknowledged_twice": list(order.acknowledged_twice(sends)),
        "read_then_gone": list(messages.read_then_gone(early, final)),
    }
    for name, violations in found.items():
        setattr(drill, name, len(violations))
    everything = [violation.to_json() for violations in found.values() for violation in violations]
    drill.violations = everything[:VIOLATIONS_SHOWN]


def _all_lost(drill: Drill) -> list[Violation]:
    """Nothing could be read: either the reading failed, which is said elsewhere, or all of it is gone."""
    if drill.unfinished is not None or not drill.acked:
        return []
    return [Violation("lost", f"none of {drill.acked} acknowledged messages can be read")] * drill.acked


def summary(plan: DrillPlan, target: str, drills: Sequence[Drill]) -> dict[str, Any]:
    """The result as scripts read it."""
    times = sorted(drill.rto_ms for drill in drills if drill.rto_ms is not None)
    since = sorted(drill.since_request_ms for drill in drills if drill.since_request_ms is not None)
    led = sorted(drill.leader_ms for drill in drills if drill.leader_ms is not None)
    return {
        "scenario": plan.scenario,
        "target": target,
        "seed": plan.seed,
        "rate": plan.rate,
        "size_bytes": plan.size_bytes,
        "queues": plan.queues,
        "drills": [asdict(drill) for drill in drills],
        "rto_p50_ms": percentile(times, 50),
        "rto_p99_ms": percentile(times, 99),
        "rto_max_ms": times[-1] if times else None,
        "since_request_p50_ms": percentile(since, 50),
        "since_request_p99_ms": percentile(since, 99),
        "since_request_max_ms": since[-1] if since else None,
        "leader_p50_ms": percentile(led, 50),
        "leader_p99_ms": percentile(led, 99),
        "leader_max_ms": led[-1] if led else None,
        **{f"{name}_total": sum(getattr(drill, name) for drill in drills) for name in COUNTS},
        "unfinished_total": sum(drill.unfinished is not None for drill in drills),
    }


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Nearest rank: a value that was really measured."""
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


async def make_topic(env: Env, world: World, topic: str, queues: int) -> None:
    """Create the topic and wait until every NameServer routes it."""
    until_ms = env.monotonic_ms() + TOPIC_S * 1000
    async with AdminClient(env, world.namesrv, credentials=credentials.read()) as admin:
        await admin.create_topic(topic, queues, brokers=[world.group])
        for address in world.namesrv:
            async with AdminClient(env, [address]) as one:
                while True:
                    try:
                        if (await one.route(topic)).writable:
                            break
                    except MqError:
                        if env.monotonic_ms() > until_ms:
                            raise
                    await asyncio.sleep(0.05)


async def _recovered(env: Env, load: DrillLoad, plan: DrillPlan, victim: Victim, fault_ms: float) -> bool:
    """Wait until every queue acknowledged a send that the fault could have held up."""
    until_ms = fault_ms + plan.recover_s * 1000
    while env.monotonic_ms() < until_ms:
        if len(acked_again(load.history, plan, victim, fault_ms)) == plan.queues:
            return True
        await asyncio.sleep(0.02)
    return False


def acked_again(history: History, plan: DrillPlan, victim: Victim, fault_ms: float) -> set[Queue]:
    """Queues served again: by another master where it moves, else a send begun after the fault took hold."""
    if plan.scenario in MOVES_MASTER:
        return {
            event.queue
            for event in history.events
            if isinstance(event, Ok) and event.at_ms > fault_ms and event.address != victim.master
        }
    begun = {
        event.key
        for event in history.events
        if isinstance(event, Invoke) and event.at_ms > fault_ms + TAKES_HOLD_MS
    }
    return {event.queue for event in history.events if isinstance(event, Ok) and event.key in begun}


async def _full_again(env: Env, world: World, plan: DrillPlan, drill: Drill, fault_ms: float) -> None:
    try:
        await world.wait_full(plan.full_s)
    except MqError as error:
        drill.unfinished = f"the cluster is not full again: {error}"
    else:
        drill.full_again_ms = round(env.monotonic_ms() - fault_ms, 1)


class DrillLoad:
    """The producers, the consumer that follows them, and the history all of them write."""

    def __init__(
        self,
        env_of: Callable[[int], Env],
        world: World,
        plan: DrillPlan,
        queues: Sequence[Queue],
        number: int,
        chance: random.Random,
    ) -> None:
        self.history = History()
        self._tasks = Tasks("drill")
        self._env = env_of(0)
        clock = self._env.monotonic_ms
        count = plan.queues * PRODUCERS_PER_QUEUE
        each = Load(
            topic=queues[0].topic,
            producers=count,
            per_second=plan.rate / count,
            queues=plan.queues,
            body_bytes=(plan.size_bytes, plan.size_bytes),
            in_flight_max=plan.in_flight,
        )
        self._senders: list[ClientSender] = []
        self._producers: list[ProducerLoad] = []
        for index in range(count):
            name = f"drill{number}p{index}"
            sender = ClientSender(env_of(index + 1), name, world.namesrv, timeout_s=plan.recover_s)
            self._senders.append(sender)
            own = random.Random(chance.getrandbits(64))
            queue = queues[index % plan.queues]
            self._producers.append(ProducerLoad(name, sender, [queue], each, self.history, clock, own))
        self._reader = ClientReader(env_of(count + 1), f"drill{number}c", world.namesrv)
        self._consumer = ReaderLoad(f"drill{number}c", self._reader, queues, each, self.history, clock)
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for sender in self._senders:
            await sender.start()
        await self._reader.start()
        self._running = [self._tasks.spawn(p.run(), name=p.name) for p in self._producers]
        self._tasks.spawn(self._consumer.run(), name=self._consumer.name)

    async def stop(self, timeout_s: float) -> None:
        """End the sends; one that still waits after ``timeout_s`` stays unknown."""
        for producer in self._producers:
            producer.stop()
        await asyncio.wait(self._running, timeout=timeout_s)

    async def read_back(self, timeout_s: float) -> bool:
        self._consumer.stop()
        until_s = asyncio.get_running_loop().time() + timeout_s
        return await self._consumer.read_back(until_s=until_s)

    async def close(self) -> None:
        await self._tasks.cancel()
        for sender in self._senders:
            await sender.stop()
        await self._reader.stop()
