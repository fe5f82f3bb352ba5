"""What may a broker do whose disk is put back to an older state of itself: a snapshot, a backup, a clone?

Beside whatever the swarm draws. The swarm itself does not draw it: recorded seeds keep their meaning.
"""

from __future__ import annotations

import random
from typing import Final

from chaos.faults import Kill, PowerFail, PutBack, Restart, Snapshot, Step, Stop, Wipe, ordered
from chaos.scenarios.plan import Plan, Scenario
from chaos.scenarios.swarm import SWARM

ALONE_SHARE: Final = 0.4
"""So many seeds have nothing else: what is lost then, the old disk lost."""
OTHERS_SHARE: Final = 0.85


def _put_back(rng: random.Random) -> Plan:
    """A snapshot of a broker that runs or was stopped; it starts once more, and goes on. Then it dies, the
    snapshot is its disk, and mostly all others die about then: who is back first may have the old one."""
    plan = SWARM.plan(rng)
    alone = rng.random() < ALONE_SHARE
    others = [] if alone else [step for step in plan.steps if not isinstance(step.fault, Wipe)]
    old = f"b{rng.randint(1, plan.brokers)}"
    begun = rng.randint(200, 1500)
    started = begun + rng.randint(60, 500)
    dies = started + rng.choice((rng.randint(300, 900), rng.randint(900, 3000)))
    back = dies + rng.choice((rng.randint(20, 300), rng.randint(300, 2500)))
    # Taken of the running broker, or between its stop and its start.
    taken = begun + rng.choice((-100, -10, 30))
    steps = [
        Step(taken, Snapshot(old)),
        Step(begun, rng.choice((Kill, Stop, PowerFail))(old)),
        Step(started, Restart(old)),
        Step(dies, rng.choice((Kill, Kill, PowerFail))(old)),
        Step(dies + 10, PutBack(old)),
        Step(back, Restart(old)),
    ]
    if rng.random() < OTHERS_SHARE:
        apart, later = rng.choice((15, 15, 400)), rng.choice((-500, 800, 2500))
        for name in (f"b{number}" for number in range(1, plan.brokers + 1)):
            if name != old:
                at = dies + rng.randint(-apart, 4)
                steps.append(Step(at, rng.choice((Kill, Kill, PowerFail))(name)))
                steps.append(Step(max(at + 60, back + later) + rng.randint(0, 900), Restart(name)))
    plan.steps = ordered([*others, *steps])
    plan.load_ms = max(plan.load_ms, max(step.at_ms for step in plan.steps) + 200)
    plan.set_kept = False
    return plan


PUT_BACK: Final = Scenario(
    "a_disk_put_back_to_an_older_state_leads_nobody_who_has_more",
    "a broker with an old disk says so, and leads nobody who has what it lacks",
    _put_back,
)
