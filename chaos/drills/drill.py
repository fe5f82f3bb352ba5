"""What does one fault cost a cluster under load: how long, how many messages, in which order?

A drill sends at a fixed rate to every queue of a fresh topic, from two producers each, follows it with a
consumer, injects the fault, waits until every queue is acknowledged again, mends what was broken, waits until
the SyncStateSet is full, reads everything back and holds it against the history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from chaos.drills.load import DrillLoad, DrillPlan, make_topic
from chaos.drills.measure import COUNTS, MOVES_MASTER, Drill, Strike, judge, measure, percentile
from chaos.history import History, Invoke, Ok
from chaos.worlds.live import Victim, World
from client.message import Queue
from model.errors import MqError
from runtime.env import Env

TAKES_HOLD_MS: Final = 50.0
"""What was on its way when a slave died or froze may still be answered; later sends feel the fault."""
READ_BACK_S: Final = 30.0

MakeLoad = Callable[[Callable[[int], Env], World, DrillPlan, Sequence[Queue], int, random.Random], DrillLoad]


class Show:
    """Is told the steps of a drill. This one passes on a word for each; the demo draws them."""

    def __init__(self, tell: Callable[[str], object] = lambda text: None) -> None:
        self.tell = tell

    def on_load(self, load: DrillLoad) -> None:
        self.tell("load runs")

    def on_fault(self, scenario: str, victim: Victim) -> None:
        self.tell(f"{scenario}: {victim.name}")

    def on_recovered(self, strike: Strike) -> None:
        """The failover is over, or its time is."""

    def on_mending(self, victim: Victim) -> None:
        self.tell("mending")

    def on_load_ends(self) -> None:
        self.tell("ending the load")

    async def settle(self) -> str | None:
        """Wait for what should come about once nothing is sent; why it did not."""
        return None


async def run_drill(
    env: Env,
    world: World,
    plan: DrillPlan,
    number: int,
    *,
    env_of: Callable[[int], Env],
    show: Show | None = None,
    make_load: MakeLoad = DrillLoad,
) -> tuple[Drill, History]:
    """Carry out drill ``number``. ``env_of`` makes the environment of each client.

    Raises CannotDrill when the fault cannot be injected. A cluster that does not recover is a result:
    ``unfinished`` says what did not happen.
    """
    show = show or Show()
    chance = random.Random(f"{plan.seed}/{number}")
    await world.wait_full(plan.full_s)
    topic = plan.topic or f"drill_{plan.scenario}_{plan.seed}_{number}_{env.now_ms() % 1_000_000_000}"
    queues = [Queue(topic, world.group, queue_id) for queue_id in range(plan.queues)]
    await make_topic(env, world, topic, plan.queues)
    load = make_load(env_of, world, plan, queues, number, chance)
    drill = Drill()
    await load.start()
    try:
        show.on_load(load)
        await asyncio.sleep(plan.warm_s)
        strike = await strike_and_mend(env, world, plan, load, drill, chance, show)
        await _full_again(world, plan, drill, load, strike)
        await asyncio.sleep(plan.least_s - (load.clock() - strike.until_ms) / 1000)
        show.on_load_ends()
        await load.stop(plan.recover_s)
        drill.unfinished = drill.unfinished or await show.settle()
        for text in load.errors():
            drill.unfinished = drill.unfinished or text
        if not await load.read_back(READ_BACK_S):
            drill.unfinished = drill.unfinished or "not every queue could be read back"
    finally:
        await load.close()
    measure(drill, load.history, queues, strike)
    judge(drill, load.history, full=drill.full_again_ms is not None)
    return drill, load.history


async def strike_and_mend(
    env: Env,
    world: World,
    plan: DrillPlan,
    load: DrillLoad,
    drill: Drill,
    chance: random.Random,
    show: Show,
) -> Strike:
    """One fault: chosen, inflicted, watched until every queue is served again, mended. Notes the victim, and
    what did not happen in time. Raises MqError."""
    victim = await world.choose(plan.scenario, chance)
    drill.victim = victim.name
    wall_ms, fault_ms = env.now_ms(), load.clock()
    begun = len(load.history.events)
    await world.inflict(plan.scenario, victim)
    try:
        show.on_fault(plan.scenario, victim)
        recovered = await _recovered(plan, load, victim, fault_ms, begun)
        await asyncio.sleep(max(plan.after_s, plan.least_s - (load.clock() - fault_ms) / 1000))
        led = await world.led(plan.recover_s)
        timeline = await world.timeline(wall_ms)
        strike = Strike(
            scenario=plan.scenario,
            victim=victim,
            fault_ms=fault_ms,
            until_ms=load.clock(),
            timeline=timeline,
        )
        show.on_recovered(strike)
    finally:
        # Also when we are interrupted: nobody else knows that a process was frozen.
        show.on_mending(victim)
        await world.mend(plan.scenario, victim)
    if not recovered:
        drill.unfinished = f"no acknowledgement on every queue within {plan.recover_s:.0f} s"
    elif not led:
        drill.unfinished = f"no Controller answered as leader within {plan.recover_s:.0f} s"
    return strike


async def _recovered(plan: DrillPlan, load: DrillLoad, victim: Victim, fault_ms: float, begun: int) -> bool:
    """Wait until every queue acknowledged a send that the fault could have held up. The history before its
    event number ``begun`` says nothing about that."""
    while load.clock() < fault_ms + plan.recover_s * 1000:
        after = History(load.history.events[begun:])
        if len(acked_again(after, plan, victim, fault_ms)) == plan.queues:
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


async def _full_again(world: World, plan: DrillPlan, drill: Drill, load: DrillLoad, strike: Strike) -> None:
    try:
        await world.wait_full(plan.full_s)
    except MqError as error:
        drill.unfinished = drill.unfinished or f"the cluster is not full again: {error}"
    else:
        drill.full_again_ms = round(load.clock() - strike.fault_ms, 1)


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
