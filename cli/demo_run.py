"""How does one demo go? It is a drill with a screen: load, SIGKILL to the master, restart, quiet.

What it measured is a ``Result``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.local.cluster import ClusterNotReady, LocalCluster
from admin.tls import client_env
from audit.run import Report
from chaos.checks import Evidence, check_all
from chaos.clients import body_crc
from chaos.drills.drill import Show, run_drill
from chaos.drills.load import DrillLoad, DrillPlan
from chaos.drills.measure import Drill, Strike
from chaos.history import History, HistoryEvent, Ok, Read
from chaos.workload import Clock
from chaos.worlds.live import LiveWorld, Victim
from cli.demo_screen import Screen, Sight
from cli.stalls import Stalls
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Queue, Received
from client.session import Session
from runtime.env import Env
from runtime.os_env import OsEnv
from runtime.tasks import Tasks

TOPIC: Final = "demo"
QUEUES: Final = 8
PRODUCERS: Final = 32
CONSUMERS: Final = 2
FAULT: Final = "kill-master"
LOOK_S: Final = 0.25
MAKE_UP_S: Final = 1.0  # the rate holds on average although a failover or a busy machine holds sends up
SETTLE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``rate``: messages/s in all; ``size_bytes``: of a body."""

    seconds: float
    rate: int
    size_bytes: int
    seed: int

    def drill(self) -> DrillPlan:
        """A third of the time before the kill, a third until the restart, a third after it."""
        third_s = self.seconds / 3
        return DrillPlan(
            scenario=FAULT,
            topic=TOPIC,
            rate=self.rate,
            size_bytes=self.size_bytes,
            seed=self.seed,
            queues=QUEUES,
            producers_per_queue=PRODUCERS // QUEUES,
            senders=1,
            make_up_s=MAKE_UP_S,
            warm_s=third_s,
            after_s=0.0,
            least_s=third_s,
            recover_s=self.seconds,
            full_s=SETTLE_S,
        )


@dataclass(slots=True)
class Result:
    """What one demo measured. Times in ms of the history's clock, which begins with the load.

    ``stalls``: when the load's own process did not run.
    """

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
    stalls: list[tuple[float, float]] = field(default_factory=list)
    consumed: int = 0
    violations: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    audit: Report | None = None

    @property
    def acks_ms(self) -> list[float]:
        """When something was acknowledged, in order of time."""
        return sorted(event.at_ms for event in self.history.events if isinstance(event, Ok))

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
        if self.audit is None or self.drill.unfinished is not None:
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
            "unfinished": drill.unfinished,
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


class ConsumerGroup:
    """Two members that are given what the group has not got yet."""

    def __init__(self, env: Env, namesrv: Sequence[str], history: History, clock: Clock) -> None:
        self._history, self._clock = history, clock
        self.given = asyncio.Event()
        self._members = [
            PushConsumer(
                env,
                "GID_demo",
                listener=partial(self._received, f"consumer-{n}"),
                subscriptions={TOPIC: "*"},
                session=Session(env, namesrv, poll_ms=1000),
                options=ConsumeOptions(batch_max=32, from_first=True, rebalance_s=1.0),
            )
            for n in range(CONSUMERS)
        ]

    async def start(self) -> None:
        for member in self._members:
            await member.start()

    async def stop(self) -> None:
        for member in self._members:
            await member.stop()

    async def _received(self, source: str, messages: list[Received]) -> bool:
        now_ms = self._clock()
        for m in messages:
            self._history.add(Read(now_ms, source, m.msg_id, m.queue, m.queue_offset, body_crc(m.body)))
        self.given.set()
        return True


class DemoShow(Show):
    """Draws the drill: looks at the cluster a few times a second, and says what happens."""

    def __init__(
        self, env: Env, cluster: LocalCluster, plan: Plan, screen: Screen, load_is_over: Callable[[], object]
    ) -> None:
        super().__init__()
        self._env, self._cluster, self._plan, self._screen = env, cluster, plan, screen
        self._load_is_over = load_is_over
        self.history = CountingHistory()
        self.phase = "starting"
        self.epoch = 0
        self.epoch_before = 0
        self.ends: dict[str, int] = {}
        self.kill_ms = self.restart_ms = self.stop_ms = 0.0
        self._clock: Clock = lambda: 0.0
        self._group: ConsumerGroup | None = None

    def follow(
        self, namesrv: Sequence[str], _: Sequence[Queue], history: History, clock: Clock
    ) -> ConsumerGroup:
        self._group = ConsumerGroup(self._env, namesrv, history, clock)
        return self._group

    def now_ms(self) -> float:
        """Of the load's clock; 0 before it begins."""
        return self._clock()

    # What the drill tells

    def on_load(self, load: DrillLoad) -> None:
        self._clock = load.clock
        self.phase = "under load"
        rate, size_bytes = self._plan.rate, self._plan.size_bytes
        self._screen.say(f"sending {rate} messages/s of {size_bytes} bytes; a consumer group reads them")

    def on_fault(self, scenario: str, victim: Victim) -> None:
        self.epoch_before = self.epoch
        self.phase = f"{victim.name} killed"
        self._screen.say(f"SIGKILL to the master, {victim.name}")

    def on_recovered(self, strike: Strike) -> None:
        self.kill_ms = strike.fault_ms
        first = (
            event.at_ms - strike.fault_ms
            for event in self.history.events
            if isinstance(event, Ok)
            and event.at_ms > strike.fault_ms
            and event.address != strike.victim.master
        )
        steps = [
            ("noticed", strike.timeline.noticed_ms),
            ("elected", strike.timeline.elected_ms),
            ("promoted", strike.timeline.promoted_ms),
            ("routed", strike.timeline.routed_ms),
            ("first ack", next(first, None)),
        ]
        told = [f"{name} +{value:.0f} ms" for name, value in steps if value is not None]
        self._screen.say("failover: " + (", ".join(told) or "no step was seen"))

    def on_mending(self, victim: Victim) -> None:
        self.restart_ms = self._clock()
        self.phase = f"{victim.name} started again"
        self._screen.say(f"{victim.name} is started again, as a slave")

    def on_load_ends(self) -> None:
        self.stop_ms = self._clock()
        self.phase = "settling"
        self._screen.say("the load stops; waiting until all replicas are equal")

    async def settle(self) -> str | None:
        """Until the SyncStateSet is full, the group has read all, and the replicas end at one place."""
        self._load_is_over()
        try:
            await self._cluster.wait_ready(timeout_s=SETTLE_S)
        except ClusterNotReady as error:
            return str(error)
        if not await self._consumed_all(SETTLE_S):
            return "the consumer group was not given every acknowledged message"
        try:
            async with asyncio.timeout(SETTLE_S):
                while True:
                    sight = await self.look()
                    if {end for _, _, end in sight.brokers} == {sight.confirmed}:
                        return None
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return f"the replicas do not become equal: {self.ends}"

    async def _consumed_all(self, timeout_s: float) -> bool:
        acked = {event.key for event in self.history.events if isinstance(event, Ok)}
        assert self._group is not None, "made with the load"
        try:
            async with asyncio.timeout(timeout_s):
                while not acked <= self.history.seen:
                    self._group.given.clear()
                    await self._group.given.wait()
        except TimeoutError:
            return False
        return True

    # What it sees

    async def watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Sight:
        status = await self._cluster.status()
        group = status["groups"][0]
        self.epoch = group["epoch"] or self.epoch
        self.ends = {b["name"]: b["maxOffset"] for b in group["brokers"] if b["maxOffset"] is not None}
        sight = self._sight(group)
        self._screen.show(sight)
        return sight

    def _sight(self, group: Mapping[str, Any]) -> Sight:
        brokers = group["brokers"]
        names = {b["id"]: b["name"] for b in brokers}
        master = next((b for b in brokers if b["role"] == "master"), None) or {}
        history, now_ms = self.history, self._clock()
        confirmed = master.get("confirmOffset")
        return Sight(
            at_s=now_ms / 1000,
            phase=self.phase,
            master=master.get("name", "none"),
            epoch=self.epoch,
            in_sync=tuple(names.get(i, str(i)) for i in group["syncStateSet"]),
            brokers=tuple((b["name"], b["role"], b["maxOffset"]) for b in brokers),
            per_second=sum(at > now_ms - 1000 for at in history.acks_ms[-5000:]),
            acked=len(history.acks_ms),
            unanswered=history.unknown,
            behind=max(0, len(history.acks_ms) - len(history.seen)),
            confirmed=-1 if confirmed is None else confirmed,
        )


async def run_cluster(
    env: OsEnv, cluster: LocalCluster, plan: Plan, screen: Screen, load_is_over: Callable[[], object]
) -> Result:
    """Load, kill, restart, settle. Raises MqError when the cluster does not come up at all.

    ``load_is_over`` is called once nothing is measured any more.
    """
    screen.say("starting 3 NameServers with Controllers and 3 brokers")
    await cluster.up(tell=screen.note)
    world = LiveWorld(env, cluster)
    show = DemoShow(env, cluster, plan, screen, load_is_over)
    tasks = Tasks("demo")
    stalls = Stalls()
    tasks.spawn(show.watch(), name="look")
    tasks.spawn(stalls.run(show.now_ms), name="stalls")
    try:
        drill, history = await run_drill(
            env,
            world,
            plan.drill(),
            0,
            env_of=lambda at: client_env(seed=plan.seed * 1_000 + at),
            show=show,
            make_load=partial(DrillLoad, history=show.history, follow=partial(show.follow, world.namesrv)),
        )
        sight = await show.look()
    finally:
        await tasks.cancel()
    return _result(plan, drill, history, show, stalls, sight.master)


def _result(
    plan: Plan, drill: Drill, history: History, show: DemoShow, stalls: Stalls, successor: str
) -> Result:
    first_ms = drill.first_ack_ms
    # The demo's own reads and the disks are both evidence; what the audit says of the disks comes later.
    evidence = Evidence(history, complete=drill.unfinished is None)
    return Result(
        plan,
        drill,
        history,
        victim=drill.victim,
        successor=successor,
        epochs=(show.epoch_before, show.epoch),
        kill_ms=show.kill_ms,
        restart_ms=show.restart_ms,
        first_ack_ms=None if first_ms is None else show.kill_ms + first_ms,
        stop_ms=show.stop_ms,
        stalls=stalls.seen,
        consumed=len(show.history.seen),
        violations=[f"{v.checker}: {v.text}" for v in check_all(evidence)],
        ends=show.ends,
    )
