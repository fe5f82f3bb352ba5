"""What does the swarm draw last, from sources of their own, so that what else a seed draws stays?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from chaos.faults import DiskFull, Fault, FlipBit, Kill, PowerFail, Restart, SlowDisk, Step, Stop, ordered
from chaos.scenarios.plan import Plan

Range = tuple[int, int]

DOWN_MS: Final[Sequence[Range]] = ((20, 300), (300, 1500), (1500, 4000))
MORE_BROKERS_SHARE: Final = 0.06
MORE_DOWN_MS: Final[Sequence[Range]] = (*DOWN_MS, (3000, 5000))
STEADY: Final = ((10.0, 1), (40.0, 1), (40.0, 4), (100.0, 8))
"""Sends per second and producer, and how many of them at once; of small bodies, or a run takes minutes."""
SMALL_BYTES: Final = 1000


def with_more_brokers(plan: Plan, rng: random.Random) -> None:
    """The group has four brokers or five, so that some can die while enough others live for an OK of any
    mode, often under a load so steady that some slave always lacks something. Drawn before the rest of what
    is drawn last: that knows of them all."""
    if plan.set_kept:
        return  # what ends a life would be a reason to drop a member
    plan.brokers = rng.choice((4, 5))
    per_second, at_once = rng.choice(STEADY)
    if plan.load.body_bytes[1] <= SMALL_BYTES:
        plan.load = replace(plan.load, per_second=per_second, in_flight_max=at_once)
    steps: list[Step] = []
    for number in range(rng.choice((1, 2, 2, 3))):
        at, bound = max(300, rng.choice(plan.steps).at_ms + rng.randint(-600, 1500)), f"more{number}"
        target = rng.choice(("master", "slave", "slave", "slave", "b4", f"b{plan.brokers}"))
        death: Fault = rng.choice((Kill, Kill, PowerFail, Stop))(target)
        steps += [
            Step(at, death, bound),
            Step(at + rng.randint(*rng.choice(MORE_DOWN_MS)), Restart(f"={bound}")),
        ]
    last = max(step.at_ms for step in (*plan.steps, *steps))
    if rng.random() < 0.5:
        # One stays dead when all else is well again: what waits for it waits in vain.
        last += rng.randint(500, 2500)
        for number in range(rng.choice((1, 1, 2))):
            steps.append(Step(last, rng.choice((Kill, Kill, Stop))("slave"), f"late{number}"))
        last += rng.randint(3000, 4000)
    plan.steps = ordered([*plan.steps, *steps])
    plan.load_ms = max(plan.load_ms, last + 200)


EPOCHS_ROT_SHARE: Final = 0.1
EPOCHS_FLIPS_MAX: Final = 3
"""So many are turned back: the epochs stand in two files, and each mends one bit."""
EPOCHS: Final = "/store/epochFileCheckpoint"


def with_rotten_epochs(plan: Plan, steps: Sequence[Step], rng: random.Random) -> None:
    """One that comes back among ``steps`` finds bits of its epochs or their copy changed."""
    dead = {step.bind for step in steps if isinstance(step.fault, Kill | PowerFail | Stop)}
    back = [step for step in steps if isinstance(step.fault, Restart) and step.fault.target[1:] in dead]
    if plan.set_kept or not back:
        return  # what ends a life would be a reason to drop a member
    chosen = rng.choice(back)
    flip = Step(max(0, chosen.at_ms - 1), FlipBit(chosen.fault.target, EPOCHS))
    plan.steps = ordered([*plan.steps, *[flip] * rng.randint(1, EPOCHS_FLIPS_MAX)])
    plan.errors_expected = True


FILLS_SHARE: Final = 0.08
FILLS_BODY_BYTES: Final[Sequence[Range]] = ((2000, 6000), (12_000, 40_000))
"""In the simulated world half a segment of the log has 32 KiB."""


def with_a_disk_that_fills(plan: Plan, rng: random.Random) -> None:
    """A disk gets slow as it fills, and sends are large: the log is at the end of its last segment before the
    one ahead is found to have no room, so that a write itself meets the lack. Else a master refuses before,
    and a slave takes no more."""
    if plan.set_kept:
        return  # as above
    at = max(300, rng.choice(plan.steps).at_ms + rng.randint(-400, 400))
    full_ms = rng.randint(*rng.choice(DOWN_MS))
    steps: list[Step] = []
    brokers = [f"b{number}" for number in range(1, plan.brokers + 1)]
    targets = rng.choice((["master"], ["slave"], rng.sample(brokers, len(brokers))))
    for number, target in enumerate(targets):
        begins, bound = at + rng.randint(0, 60), f"fills{number}"
        ends = begins + full_ms + rng.randint(0, 400)
        steps.append(Step(begins, SlowDisk(target, rng.choice((200.0, 500.0, 1000.0))), bound))
        steps.append(Step(begins + rng.randint(0, 300), DiskFull(f"={bound}")))
        steps.append(Step(ends, DiskFull(f"={bound}", full=False)))
        steps.append(Step(ends + rng.randint(0, 300), SlowDisk(f"={bound}", 0.0)))
    plan.steps = ordered([*plan.steps, *steps])
    rate = min(plan.load.per_second, 40.0)
    plan.load = replace(plan.load, body_bytes=rng.choice(FILLS_BODY_BYTES), per_second=rate, in_flight_max=1)
    plan.load_ms = max(plan.load_ms, max(step.at_ms for step in plan.steps) + 200)
    plan.errors_expected = True
