"""Who may lead when most of a group is gone, or may have forgotten what it acknowledged?"""

from __future__ import annotations

import random
from typing import Final

from chaos.faults import Cut, Heal, Kill, Look, Pause, PowerFail, Restart, Resume, Step, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario

MAJORITY: Final = {"majorityAck": "true", "allAckInSyncStateSet": "false"}


def _two_lose_power(rng: random.Random) -> Plan:
    """ASYNC_FLUSH: both slaves lose power, and the master dies before the last of them is back; its log, in
    the page cache of a machine that goes on, is the only one that certainly has everything."""
    at = rng.randint(1200, 2500)
    dies = at + rng.randint(0, 400)
    first = dies + rng.randint(0, 600)
    last = first + rng.randint(0, 600)
    steps = [
        Step(at, Look("master"), "master"),
        Step(at, PowerFail("slave"), "one"),
        Step(at + rng.randint(0, 50), PowerFail("slave"), "two"),
        Step(dies, Kill("=master")),
        Step(first, Restart("=one")),
        Step(last, Restart("=two")),
    ]
    if rng.random() < 0.3:
        # A kill on top must not make a broker forget that its power failed.
        again = last + rng.randint(200, 800)
        steps += [Step(again, Kill("=one")), Step(again + rng.randint(50, 300), Restart("=one"))]
    back = last + rng.randint(1500, 3000)
    steps.append(Step(back, Restart("=master")))
    return Plan(ordered(steps), load_ms=back + 3000, **ground(rng))


def _one_of_three(rng: random.Random) -> Plan:
    """majorityAck. One slave misses some records, then the two that have them die, and it alone is left; or
    masters die one after the other, each a moment after it was cut off."""
    at = rng.randint(1000, 2000)
    if rng.random() < 0.6:
        dies = at + rng.randint(200, 1200)
        left = dies + rng.randint(50, 300)
        back = left + rng.randint(1800, 3000)
        steps = [
            Step(at, Look("master"), "master"),
            Step(at, Pause("slave"), "late"),
            Step(at, Cut("=late", "brokers")),
            Step(dies, Kill("=master")),
            Step(dies + rng.randint(0, 40), Kill("slave"), "other"),
            Step(left, Resume("=late")),
            Step(left + rng.randint(0, 500), Heal()),
            Step(back, Restart(rng.choice(("=other", "=master")))),
            Step(back + rng.randint(0, 800), Restart("=other")),
            Step(back + rng.randint(0, 800), Restart("=master")),
        ]
        return Plan(ordered(steps), load_ms=back + 3500, broker=MAJORITY, **ground(rng))
    parts = []
    for name in ("first", "second", "third"):
        cut = at - rng.randint(20, 300)
        parts.append([Step(cut, Look("master"), name), Step(cut, Cut(f"={name}", "brokers"))])
        parts.append(then(at, Kill(f"={name}"), rng.randint(100, 900), Restart, f"{name}-again"))
        parts.append([Step(at + rng.randint(0, 300), Heal())])
        at += rng.randint(1500, 2500)
    return Plan(ordered(*parts), load_ms=at + 1500, broker=MAJORITY, **ground(rng))


TWO_LOSE_POWER = Scenario(
    "two_that_lost_power_wait_for_the_third",
    "brokers whose machines lost what was not synced do not lead until the others have shown their logs",
    _two_lose_power,
)
ONE_OF_THREE = Scenario(
    "majority_mode_elects_no_minority",
    "with majorityAck a master is the most advanced of a majority of all replicas",
    _one_of_three,
)
