"""One simulated plan on real processes: the same faults, the same load, the same checks.

A cluster of its own is laid out on the ground that the plan's faults need, loaded, broken step by step,
healed, read back and judged. Times of the plan are multiplied by ``scale``.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from admin.local import processes
from admin.local.cluster import ClusterNotReady, LocalCluster
from chaos import faults
from chaos.checks import Evidence, Promised, check_all, judged
from chaos.checks.liveness import Group
from chaos.drills import asked
from chaos.drills.again import staging
from chaos.drills.drill import READ_BACK_S
from chaos.drills.live import stores, stubborn, verdicts
from chaos.drills.live.disks import lied
from chaos.drills.live.extras import LiveExtras
from chaos.drills.live.java_load import JAVA, JavaLoad, check_available
from chaos.drills.live.names import OURS, STAGING, SWITCH, THEIRS, TOXIPROXY
from chaos.drills.live.online import Stopped, Watch, unless_broken
from chaos.drills.live.results import MARKS
from chaos.drills.load import DrillLoad, DrillPlan, make_topic
from chaos.drills.measure import (
    COUNTS,
    PROMISES,
    VIOLATIONS_SHOWN,
    Drill,
    by_queue,
    judge,
    outages,
    percentile,
)
from chaos.drills.timeline import availability, availability_before, strikes_ms, timeline
from chaos.history import Happened, History
from chaos.live import logs, planted, ports
from chaos.live.executor import GONE_S, Executor
from chaos.live.ground import Ground
from chaos.live.means import needed
from chaos.live.onlooker import Onlooker
from chaos.live.outcome import Outcome, unexplained
from chaos.live.releases import NoRelease, exact, this
from chaos.scenarios import Plan
from chaos.worlds import rocketmq
from chaos.worlds.live import CannotDrill, LiveWorld
from chaos.worlds.rocketmq_cluster import QUICK, RocketMQCluster, RocketMQOnlooker
from client.message import Queue
from model.errors import MqError
from runtime.env import Env

CONTROLLERS: Final = 3
COPIES: Final = ("inSyncReplicas", "minInSyncReplicas")
CLIENTS: Final = (OURS, JAVA)
"""Whose client sends and reads: ours, or RocketMQ's own."""
READY_S: Final[Mapping[str, float]] = {OURS: 60.0, THEIRS: 120.0, STAGING: 120.0}
"""RocketMQ's own timers add up to more."""
CAUGHT_UP_S: Final = 20.0
"""So long after the last send to a whole group a consumer may take to be given all."""
NOTHING_HELD: Final = logs.Held()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSpec:
    """One plan to be carried out, where it came from, and how. ``settings``: ``ROLE.KEY=VALUE``, which win
    over the plan's. ``one_by_one``: once nothing is broken any more, the next step waits for the full group.
    """

    scenario: str
    seed: int
    plan: Plan
    scale: float = 1.0
    settings: Sequence[str] = ()
    one_by_one: bool = False
    previous: Path | None = None
    """What an upgrade begins with; None: found by ``chaos.live.releases``."""
    target: str = OURS
    bug: str = ""
    """A mistake that is planted into every server (``chaos.bugs``)."""
    links: str = SWITCH
    """What cuts links: the switch between the namespaces, or Toxiproxy."""
    go_on: bool = False
    """Carry the plan out to its end, also when a promise is broken before."""
    stubborn: bool = True
    """To each broker a client sends that ignores routes."""
    client: str = OURS
    """Whose client makes the load: one of CLIENTS."""

    def __post_init__(self) -> None:
        """Raises CannotDrill for a plan that no local cluster is made for, or a client that nobody has."""
        if self.client not in CLIENTS:
            raise CannotDrill(f"no client {self.client}; there are {', '.join(CLIENTS)}")
        for name in ("learners", "neighbour"):
            if getattr(self.plan, name):
                raise CannotDrill(f"{self.scenario} needs {name}, which only the simulated world has")
        try:
            Plan.from_json(self.plan.to_json())
        except ValueError as error:  # it could not be carried out again
            raise CannotDrill(f"{self.scenario}: {error}") from None

    def cluster_settings(self) -> list[str]:
        """What the plan sets, then what the caller does."""
        broker = [f"broker.{key}={value}" for key, value in self.plan.broker.items()]
        controller = [f"namesrv.{key}={value}" for key, value in self.plan.controller.items()]
        return [*broker, *controller, *self.settings]

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "scale": self.scale,
            "settings": list(self.settings),
            "one_by_one": self.one_by_one,
            "previous": None if self.previous is None else str(self.previous),
            "target": self.target,
            "bug": self.bug,
            "links": self.links,
            "go_on": self.go_on,
            "stubborn": self.stubborn,
            "client": self.client,
            "plan": self.plan.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> DrillSpec:
        """A result of ``drill run``, or a schedule of ``drill sim``. Raises ValueError, CannotDrill."""
        try:
            if data.get("target") == STAGING:
                raise CannotDrill(f"that was a staging cluster, and none is made for it: {staging(data)}")
            return cls(
                scenario=str(data["scenario"]),
                seed=int(data["seed"]),
                plan=Plan.from_json(data["plan"]),
                scale=float(data.get("scale", 1.0)),
                settings=tuple(map(str, data.get("settings", ()))),
                one_by_one=bool(data.get("one_by_one", False)),
                previous=Path(data["previous"]) if data.get("previous") else None,
                target=str(data.get("target", OURS)),
                bug=str(data.get("bug") or ""),
                links=str(data.get("links", SWITCH)),
                go_on=bool(data.get("go_on", False)),
                stubborn=bool(data.get("stubborn", False)),
                client=str(data.get("client", OURS)),
            )
        except (OverflowError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no plan of a drill: {error!r}") from None


class Phases:
    """Tells what begins, and notes how long it took until the next began."""

    def __init__(self, clock_s: Callable[[], float], tell: Callable[[str], object]) -> None:
        self._clock_s, self._tell = clock_s, tell
        self._begun: list[tuple[str, float]] = []

    def __call__(self, text: str) -> None:
        self._begun.append((text, self._clock_s()))
        self._tell(text)

    def spent_s(self) -> dict[str, float]:
        """By what was told, each once, until now."""
        marks = [*self._begun, ("", self._clock_s())]
        spent = dict.fromkeys((text for text, _ in self._begun), 0.0)
        for (text, at_s), (_, end_s) in pairwise(marks):
            spent[text] += end_s - at_s
        return {text: round(took_s, 1) for text, took_s in spent.items()}


@dataclass(slots=True)
class DrillResult:
    """What one run left: counts and times, what became of the faults, and all that was seen."""

    drill: Drill
    outcome: Outcome
    history: History
    lacks: dict[str, str]
    until_ms: float = 0.0
    """When the load's time was over and everything was healed."""
    broken: Mapping[str, int] = field(default_factory=dict)
    """Violations by check; ``drill.violations`` has the first of them."""
    upgraded: tuple[str, str] | None = None
    """From which release to which."""
    proxies: str = ""
    """What cut links in the place of the switch: ``toxiproxy``, or the ``relay`` where there is none."""
    stopped: Stopped | None = None
    """Where the plan was left, as a promise was broken."""
    extras: Mapping[str, int] = field(default_factory=dict)
    """What was asked for besides sends and reads: how often it was answered, by kind, and how often not
    (``extra.failed``)."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """When, on which machine, and what: ``at``, ``machine``, ``release``, ``peer``."""
    java_client: Mapping[str, Any] = field(default_factory=dict)
    """The official Java client, where it sent and read: which, how it ran, and what its group was given."""
    reads_failed: int = 0
    """Of the consumer that follows the load."""
    spent_s: Mapping[str, float] = field(default_factory=dict)
    """How long each part of the run took."""
    untried: Sequence[str] = ()
    """Faults of a story that were to strike, and never did."""

    def to_json(self, spec: DrillSpec) -> dict[str, Any]:
        """The members of every drill, and what a replay needs."""
        drill, clients = self.drill, stubborn.routed(self.history)
        seen = timeline(clients, self.until_ms)
        marks = [at for at in strikes_ms(seen) if at < self.until_ms]
        times = outages(clients, marks, self.until_ms)
        judged = drill.judged and not lied(self.history.events)
        return {
            **spec.to_json(),
            "drills": [asdict(drill)],
            "faults": self.outcome.to_json(),
            "refused_total": len(self.outcome.refused),
            "untried": list(self.untried),
            "lacks": self.lacks,
            "upgraded": self.upgraded,
            "proxies": self.proxies,
            "extras": dict(self.extras),
            "stubborn_sends": stubborn.counted(self.history),
            **self.where,
            "java_client": dict(self.java_client),
            "reads_failed": self.reads_failed,
            "spent_s": dict(self.spent_s),
            "lied": lied(self.history.events),
            "stopped": None if self.stopped is None else self.stopped.to_json(),
            "timeline": seen,
            "availability": availability(seen),
            "availability_before": availability_before(seen),
            MARKS: marks,
            "rto_strikes_ms": times,
            "rto_p50_ms": percentile(sorted(times), 50),
            "rto_p99_ms": percentile(sorted(times), 99),
            "rto_max_ms": max(times, default=None),
            "per_queue": by_queue(clients, self.history, marks, self.until_ms, judged=judged),
            **{f"{name}_total": getattr(drill, name) for name in COUNTS},
            "violations": drill.violations,
            "broken": dict(self.broken),
            "checks": verdicts.words(drill.checks, self.broken),
            "unfinished_total": int(drill.unfinished is not None),
        }


async def run_scenario(
    env: Env,
    spec: DrillSpec,
    directory: Path,
    *,
    env_of: Callable[[int], Env],
    tell: Callable[[str], object] = lambda text: None,
    keep: bool = False,
) -> DrillResult:
    """Carry out ``spec`` on a cluster made in ``directory``; its processes, mounts and namespaces are gone
    when this returns. ``keep``: what its disks held stays. Raises ConfigError, ClusterNotReady. Faults that
    cannot be carried out here are counted as refused."""
    if spec.client == JAVA:
        check_available()
    phases, begun = Phases(time.monotonic, tell), await env.offload(named)
    phases("laying the ground")
    async with AsyncExitStack() as stack:
        base = stack.enter_context(ports.held(CONTROLLERS + spec.plan.brokers))
        cluster = _laid_out(env, spec, directory, base)
        ground = Ground(cluster, keep=keep)
        stack.push_async_callback(ground.clear)
        stack.callback(ground.take_down)
        await ground.lay(
            needed(type(step.fault) for step in spec.plan.steps),
            random.Random(),  # names that no other drill has: no part of the plan
            proxied=spec.links == TOXIPROXY,
        )
        for node in cluster.layout.nodes if spec.bug else ():
            node.wrap += planted.wrap(spec.bug)
        if any(isinstance(step.fault, faults.Upgrade) for step in spec.plan.steps):
            await env.offload(lambda: ground.begin_with(spec.previous))
        phases("starting the cluster")
        await cluster.up(timeout_s=READY_S[spec.target])
        told = await strike(env, spec, cluster, ground, env_of, phases)
        phases("taking it down")
        if spec.target == OURS:
            _add(told, _taken_down(cluster, told.history))
            full = told.drill.full_again_ms is not None
            told.drill.checks += [stores.CHECKER] if full and stores.judged(cluster, told.history) else []
            _add(told, await env.offload(lambda: stores.damaged(cluster, told.history, full=full)))
    if wrong := ground.unkept + ground.left:
        told.drill.unfinished = told.drill.unfinished or "; ".join(wrong)
    told.spent_s = phases.spent_s()
    told.where = {**told.where, "release": of_one(begun, told.where.get("release"))}
    return told


def _taken_down(cluster: LocalCluster, history: History) -> list[dict[str, Any]]:
    """End the servers: those that had to be killed, and those that ended otherwise than in order, before or
    then, and whom no fault explains."""
    pids = {node.name: node.pid for node in cluster.layout.nodes}
    killed = cluster.down(grace_s=GONE_S)
    wrong = dict.fromkeys(killed, f"did not end within {GONE_S:.0f} s of SIGTERM")
    for name, pid in pids.items():
        code = None if name in wrong else processes.exit_code(pid)
        if code not in (None, 0, -signal.SIGTERM):  # who has just begun does not hear it in order
            wrong[name] = f"ended with exit code {code}"
    nodes = {name: cluster.layout.node(name) for name in wrong}
    told = (unexplained(cluster, history.happened(), nodes[name], what) for name, what in wrong.items())
    return _told("no_errors", [error for error in told if error is not None])


def _add(told: DrillResult, found: Sequence[Mapping[str, Any]]) -> None:
    """Add what came out once the cluster was taken down to the violations of a run."""
    told.drill.violations = [*told.drill.violations, *map(dict, found)][:VIOLATIONS_SHOWN]
    told.broken = Counter(told.broken) + Counter(str(one["checker"]) for one in found)


def _laid_out(env: Env, spec: DrillSpec, directory: Path, base: int) -> LocalCluster:
    brokers, settings = spec.plan.brokers, spec.cluster_settings()
    if spec.target == OURS:
        return LocalCluster.create(directory, brokers=brokers, base_port=base, settings=settings)
    theirs = RocketMQCluster.create(directory, brokers=brokers, base_port=base, settings=settings)
    theirs.env = env
    return theirs


async def strike(
    env: Env,
    spec: DrillSpec,
    cluster: LocalCluster,
    ground: Ground,
    env_of: Callable[[int], Env],
    tell: Callable[[str], object],
) -> DrillResult:
    """Carry out ``spec`` on a cluster that is whole, under load, and judge what came."""
    plan, world, drill = spec.plan, LiveWorld(env, cluster), Drill()
    queues = [Queue(plan.load.topic, world.group, number) for number in range(plan.load.queues)]
    await make_topic(env, world, plan.load.topic, plan.load.queues)
    chance = random.Random(f"{spec.seed}/{spec.scenario}")
    load, shape = _load(env_of, spec, world, ground, queues, chance)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(load.close)
        await load.start()
        looks = RocketMQOnlooker if spec.target == THEIRS else Onlooker
        onlooker = looks(env, cluster, load.history, load.clock)
        stack.push_async_callback(onlooker.stop)
        onlooker.start()
        executor = Executor(env, cluster, ground, onlooker, load.history, load.clock, chance)
        stack.push_async_callback(executor.stop)
        extras = LiveExtras(env_of, cluster, load, random.Random(spec.seed), asked=plan.extras)
        stack.push_async_callback(extras.close)
        extras.start()
        tell("load runs, faults strike")
        work = _carry_out(executor, cluster, spec, load.clock)
        drill.unfinished, stopped = await unless_broken(work, _watch(env, cluster, spec, load))
        plan_ended_ms = load.clock()
        tell("healing")
        not_full = await _healed(executor, cluster, spec)
        until_ms = load.clock()  # an outage that only the healing ends is as long as that took
        drill.full_again_ms = round(until_ms - plan_ended_ms, 1) if not_full is None else None
        drill.unfinished = drill.unfinished or not_full
        group = _group(cluster, spec, until_ms)
        await load.stop(shape.recover_s)
        tell("reading everything back")
        beside = await _clients_saw(load, extras, full=not_full is None)
        drill.unfinished = drill.unfinished or extras.unread or load.unsure
        if not await load.read_back(READ_BACK_S) and drill.unfinished is None:
            drill.unfinished = "not every queue could be read back"
        held = await _logs(env, cluster, drill) if spec.target == OURS else logs.Held()
        executor.note_ended()
    beside += stopped.violations if stopped is not None else []
    beside += _told("no_errors", executor.outcome.errors)
    broken = _judge(drill, load.history, queues, until_ms, plan, group, held, beside)
    drill.checks += verdicts.asked_beside(load, extras, plan, full=not_full is None)
    if stopped is None:
        routed = drill.acked - stubborn.counted(load.history)["ok"]
        drill.unfinished = drill.unfinished or verdicts.proves_nothing(plan, executor.outcome, routed)
    told = DrillResult(drill, executor.outcome, load.history, ground.lacks, until_ms, broken)
    told.stopped, told.extras, told.reads_failed = stopped, extras.done, load.reads_failed
    told.java_client = load.described()
    told.untried = verdicts.never_struck(plan, executor.outcome) if stopped is None else ()
    told.upgraded = (ground.previous.name, this()) if ground.previous is not None else None
    told.proxies = _proxies(ground)
    told.where = await env.offload(lambda: described(spec, env.now_ms()))
    return told


def _load(
    env_of: Callable[[int], Env],
    spec: DrillSpec,
    world: LiveWorld,
    ground: Ground,
    queues: Sequence[Queue],
    chance: random.Random,
) -> tuple[DrillLoad, DrillPlan]:
    """What sends and reads, not yet begun, and the drill that it is of."""
    plan, cluster = spec.plan, ground.cluster
    shape = DrillPlan(scenario=spec.scenario, seed=spec.seed, queues=plan.load.queues, load=plan.load)
    load = (
        DrillLoad(env_of, world, shape, queues, 0, chance)
        if spec.client == OURS
        else JavaLoad(env_of, world, shape, queues, chance, cluster.directory, ground.note_client)
    )
    if spec.stubborn:
        stubborn.join(load, env_of, cluster, plan.load, spec.seed)
    return load, shape


async def _clients_saw(load: DrillLoad, extras: LiveExtras, *, full: bool) -> list[dict[str, Any]]:
    """What clients were kept from, once nothing is sent any more, and what ended them: as checks tell it."""
    found = [*(await extras.not_kept() if full else []), *extras.errors(), *_told("no_errors", load.errors())]
    if full and not lied(load.history.events):
        found += _told("consumed", await load.not_consumed(CAUGHT_UP_S))
    return found


def _told(checker: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"checker": checker, "text": text} for text in texts]


def described(spec: DrillSpec, now_ms: int) -> dict[str, Any]:
    """What a result is read with later: when, on what machine, which release and which peer."""
    return {
        "at": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "load_1_min": round(os.getloadavg()[0], 1),
        },
        "release": named(),
        "peer": {**rocketmq.described(), "options": QUICK} if spec.target == THEIRS else None,
    }


def named() -> str | None:
    """The release that runs now; None where it has no name."""
    try:
        return exact()
    except NoRelease:
        return None


def of_one(begun: str | None, ended: str | None) -> str | None:
    """What a run is of that began with one code, and ended with another perhaps: its servers load what is
    there when they are started."""
    return ended if begun == ended else f"{begun or 'no name'}, at its end {ended or 'no name'}"


def _proxies(ground: Ground) -> str:
    detours = ground.network.detours if ground.network is not None else None
    return "" if detours is None else detours.means


def _watch(env: Env, cluster: LocalCluster, spec: DrillSpec, load: DrillLoad) -> Watch | None:
    """What looks at the history while it grows; None: the plan is carried out to its end."""
    if spec.go_on:
        return None
    group, failures = _group(cluster, spec, 0.0), spec.plan.unsynced_excused
    return Watch(env, cluster, load.history, load.clock, group, power_failures=failures)


async def _carry_out(
    executor: Executor, cluster: LocalCluster, spec: DrillSpec, clock: Callable[[], float]
) -> str | None:
    """The plan's steps, until its load is to end; why that came to nothing, or None."""
    plan, begun_ms, unfinished = spec.plan, clock(), None
    try:
        whole = _wait_full(cluster, spec) if spec.one_by_one else None
        await executor.run(plan.steps, spec.scale, whole)
    except ClusterNotReady as error:
        unfinished = f"the cluster is not full again after a fault: {error}"
    left_ms = begun_ms + plan.load_ms * spec.scale - clock()
    if spec.one_by_one:  # the waits for the full group moved the end, too
        left_ms = (plan.load_ms - max(step.at_ms for step in plan.steps)) * spec.scale
    await asyncio.sleep(left_ms / 1000)
    return unfinished


async def _logs(env: Env, cluster: LocalCluster, drill: Drill) -> logs.Held:
    """What the replicas of a full group hold. None are compared where the group is not full."""
    if drill.full_again_ms is None:
        return logs.Held()
    views, members = await logs.level(cluster)
    try:
        found = await env.offload(lambda: logs.read(cluster, views))
    except (MqError, OSError) as error:
        drill.unfinished = drill.unfinished or f"not every log could be read back: {error}"
        return logs.Held()
    count = len(cluster.layout.broker_nodes)
    if len(found) < count and drill.unfinished is None:
        drill.unfinished = f"{len(found)} of {count} logs could be read back: the other brokers were silent"
    return logs.Held(found, members)


def _wait_full(cluster: LocalCluster, spec: DrillSpec) -> Callable[[], Awaitable[object]]:
    """Waits until every replica is in the SyncStateSet. Raises ClusterNotReady."""
    return lambda: cluster.wait_ready(timeout_s=READY_S[spec.target])


async def _healed(executor: Executor, cluster: LocalCluster, spec: DrillSpec) -> str | None:
    """None once every server runs and every replica is in the SyncStateSet again; else what is missing."""
    await executor.revive()
    try:
        await cluster.wait_ready(timeout_s=max(READY_S[spec.target], spec.plan.quiet_ms * spec.scale / 1000))
    except ClusterNotReady as error:
        return f"the healed cluster is not full again: {error}"
    executor.full_again()
    return None


def _group(cluster: LocalCluster, spec: DrillSpec, until_ms: float) -> Group | None:
    """Who has to answer writes until then, and how many brokers one needs. Of RocketMQ that is not asked."""
    if spec.target == THEIRS:
        return None
    layout = cluster.layout
    broker = layout.settings.get("broker", {})
    copies = [int(value) for key in COPIES if (value := broker.get(key))]
    return Group(
        brokers=[node.name for node in layout.broker_nodes],
        controllers=[node.name for node in layout.namesrvs],
        enough=max(spec.plan.brokers // 2 + 1, *copies, 0),
        until_ms=until_ms,
        counts_all=broker.get("majorityAck") == "true",
    )


def _judge(
    drill: Drill,
    history: History,
    queues: Sequence[Queue],
    until_ms: float,
    plan: Plan,
    group: Group | None = None,
    held: logs.Held = NOTHING_HELD,
    beside: Sequence[Mapping[str, Any]] = (),
) -> Mapping[str, int]:
    """Times and counts as every drill has them, and every check: violations by check. ``beside``: what else
    is one, of checks that find nothing in the end; else one thing seen twice counted twice."""
    _times(drill, stubborn.routed(history), queues, until_ms)
    full = drill.full_again_ms is not None
    judge(drill, history, full=full)
    aside = stubborn.counted(history)
    # What these were acknowledged may be lost, too, and stays counted: no more is lost than was had.
    drill.failed -= aside["fail"]
    drill.unknown -= aside["unknown"]
    evidence = Evidence(
        history,
        held.logs,
        held.members,
        complete=full and (drill.unfinished is None or bool(history.reads(final=True))),
        power_failures=plan.unsynced_excused,
        set_kept=plan.set_kept,
        group=group,
        forgiven=Promised(lied=bool(lied(history.events))),
    )
    if evidence.forgiven.lied:  # of messages nothing is promised, but that nobody made them up
        for name in PROMISES.keys() - {"phantom"}:
            setattr(drill, name, 0)
    drill.checks = judged(evidence)
    found = [violation.to_json() for violation in check_all(evidence)]
    named = {violation["checker"] for violation in found}
    found += [dict(one) for one in beside if one["checker"] not in named]
    drill.violations = found[:VIOLATIONS_SHOWN]
    return Counter(str(violation["checker"]) for violation in found)


def _times(drill: Drill, history: History, queues: Sequence[Queue], until_ms: float) -> None:
    """How long who asked which queue was not answered, from the first fault on."""
    struck = [
        e.at_ms for e in history.events if isinstance(e, Happened) and faults.kind_of(e.name) is not None
    ]
    if struck:
        spans, first_ms = asked.by_queue(history), min(struck)
        drill.rto_queues_ms = [asked.longest(spans.get(queue, ()), first_ms, until_ms) for queue in queues]
        drill.rto_ms = max((time for time in drill.rto_queues_ms if time is not None), default=None)
        drill.stall_ms = asked.longest(asked.over_all(history), first_ms, until_ms)
