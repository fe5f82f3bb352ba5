"""Many drills on one cluster under load that never stops: is anything lost when faults follow each other?

The producers send from before the first fault until after the last; between drills the SyncStateSet becomes
full again. Times are measured drill by drill; what was acknowledged is judged once, at the end, over the
whole history, so that a message one drill broke is found even when a later drill hid it for a while.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chaos.drills.drill import Show, strike_and_mend, summary
from chaos.drills.load import DrillLoad, DrillPlan, make_topic
from chaos.drills.measure import COUNTS, Drill, judge, measure
from chaos.history import Fail, History, Ok, Unknown
from chaos.worlds.live import World
from client.message import Queue
from model.errors import MqError
from runtime.env import Env

SETTLE_S: Final = (0.5, 1.5)
"""Between a full SyncStateSet and the next fault, drawn anew: faults must not keep step with timers."""
READ_BACK_PER_S: Final = 2000.0
READ_BACK_MIN_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """``drill``: what each drill does; ``repeat``: how many at least. It goes on until ``acks`` sends were
    acknowledged, and begins no drill once ``limit_s`` seconds are over."""

    drill: DrillPlan
    repeat: int
    acks: int = 0
    limit_s: float = 3600.0


@dataclass(slots=True)
class Campaign:
    """``drills``: times and outcomes one by one; ``total``: the judgement over everything."""

    drills: list[Drill]
    total: Drill
    seconds: float = 0.0

    def to_json(self, plan: DrillPlan, target: str) -> dict[str, Any]:
        result = summary(plan, target, self.drills)
        result |= {f"{name}_total": getattr(self.total, name) for name in COUNTS}
        result["unfinished_total"] += self.total.unfinished is not None
        return result | {
            "campaign": True,
            "seconds": round(self.seconds, 1),
            "read_back": self.total.read_back,
            "judged": self.total.judged,
            "unfinished": self.total.unfinished,
            "violations": self.total.violations,
        }


async def run_campaign(
    env: Env,
    world: World,
    plan: CampaignPlan,
    *,
    env_of: Callable[[int], Env],
    tell: Callable[[str], None] = lambda text: None,
    done: Callable[[int, Drill], None] = lambda number, drill: None,
) -> tuple[Campaign, History]:
    """Carry out the drills. A cluster that does not recover ends it: ``total.unfinished`` says why."""
    each = plan.drill
    chance = random.Random(f"{each.seed}/campaign")
    begun_ms = env.monotonic_ms()
    tell("waiting for a full SyncStateSet")
    await world.wait_full(each.full_s)
    topic = f"campaign_{each.scenario}_{each.seed}_{env.now_ms() % 1_000_000_000}"
    queues = [Queue(topic, world.group, queue_id) for queue_id in range(each.queues)]
    await make_topic(env, world, topic, each.queues)
    load = DrillLoad(env_of, world, each, queues, 0, chance)
    result, full = Campaign([], Drill()), True
    await load.start()
    try:
        await asyncio.sleep(each.warm_s)
        acked, number = 0, 0
        while number < plan.repeat or acked < plan.acks:
            if env.monotonic_ms() - begun_ms > plan.limit_s * 1000:
                result.total.unfinished = f"the time of {plan.limit_s:.0f} s is over after {number} drills"
                break
            # A history of a million sends takes the collector a second to walk, in the middle of a failover.
            gc.freeze()
            try:
                drill = await _one(env, world, each, load, chance, tell)
            except MqError as error:
                result.total.unfinished, full = f"drill {number + 1}: {error}", False
                break
            result.drills.append(drill)
            done(number, drill)
            acked += drill.acked
            number += 1
            if drill.unfinished is not None:
                break
        tell("ending the load")
        await load.stop(each.recover_s)
        tell("reading everything back")
        acked = sum(isinstance(event, Ok) for event in load.history.events)
        if not await load.read_back(max(READ_BACK_MIN_S, acked / READ_BACK_PER_S)):
            result.total.unfinished = result.total.unfinished or "not every queue could be read back"
    finally:
        await load.close()
        gc.unfreeze()
    tell("judging")
    judge(result.total, load.history, full=full)
    result.seconds = (env.monotonic_ms() - begun_ms) / 1000
    return result, load.history


async def _one(
    env: Env,
    world: World,
    plan: DrillPlan,
    load: DrillLoad,
    chance: random.Random,
    tell: Callable[[str], None],
) -> Drill:
    """One fault, its measurement, its mending, and the wait for the full SyncStateSet. Raises MqError."""
    events = load.history.events
    begun = len(events)
    await asyncio.sleep(chance.uniform(*SETTLE_S))
    drill = Drill()
    strike = await strike_and_mend(env, world, plan, load, drill, chance, Show(tell))
    drill.victim = "+".join(strike.victim.names)
    measure(drill, History(events[begun:]), load.queues, strike)
    tell("waiting for a full SyncStateSet")
    await world.wait_full(plan.full_s)
    drill.full_again_ms = round(load.clock() - strike.fault_ms, 1)
    for event in events[begun:]:
        drill.acked += isinstance(event, Ok)
        drill.failed += isinstance(event, Fail)
        drill.unknown += isinstance(event, Unknown)
    return drill


def campaign_line(number: int, plan: CampaignPlan, drill: Drill) -> str:
    """One drill in one line, for a screen and a log."""
    steps = ("noticed", "elected", "promoted", "routed", "leader", "first_ack", "full_again")
    times = [(name, getattr(drill, f"{name}_ms")) for name in steps]
    told = ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in times if value is not None)
    rto = "never" if drill.rto_ms is None else f"{drill.rto_ms:,.0f} ms"
    failed = f"; {drill.failed} failed, {drill.unknown} unknown" if drill.failed or drill.unknown else ""
    return f"{number + 1:>4}/{plan.repeat} {drill.victim}: RTO {rto} ({told}){failed}"
