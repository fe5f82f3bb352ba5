"""How long is a group without a master when nothing takes time but stated delays and our own waits?

A live drill measures this machine too. Here the same servers and clients run under virtual time: a seed gives
the same figures on every machine, so a bound on them is a promise about the code.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from chaos.drills.measure import ORDERLY, rto
from chaos.drills.simulated.run import run_plan
from chaos.faults import Fault, Kill, Pause, Restart, Resume, SlowDisk, Step, Stop, ordered, then
from chaos.history import History, Ok
from chaos.scenarios import Plan
from chaos.sim.story import Story

NODES: Final = ("n0", "n1", "n2", "b1", "b2", "b3")
LOAD_MS: Final = 7000
AWAY_MS: Final = 4000
"""A killed server comes back and a frozen one goes on this much later: after the change."""

NOISES: Final = ("quiet", "standstills", "slow-disks")
"""``standstills``: now and then every process stands still at once, for 0.05 to 0.9 s. ``slow-disks``: each
machine's syncs take 50 to 400 ms more."""

_STRIKES: Final[Mapping[str, tuple[tuple[Fault, type[Fault]], ...]]] = {
    "kill-master": ((Kill("master"), Restart),),
    "freeze-master": ((Pause("master"), Resume),),
    "stop-master": ((Stop("master"), Restart),),
    "kill-leader-and-master": ((Kill("master"), Restart), (Kill("leader"), Restart)),
}
KINDS: Final = tuple(_STRIKES)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``rto_ms``: last acknowledgement before the change to the first by another master; None: there was
    none. ``failed`` and ``unknown`` count sends."""

    rto_ms: float | None = None
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    violations: tuple[str, ...] = ()


def run(kind: str, noise: str, seed: int) -> Outcome:
    """One drill. Raises KeyError for a kind or a noise that does not exist."""
    outcome = Outcome()

    def keep(story: Story) -> None:
        nonlocal outcome
        counts = Counter(send.outcome for send in story.history.sends())
        outcome = Outcome(rto_ms(story.history, kind), counts["ok"], counts["fail"], counts["unknown"])

    result = run_plan(f"{kind} ({noise})", seed, plan(kind, noise, seed), None, keep)
    broken = tuple(f"{violation.checker}: {violation.text}" for violation in result.violations)
    return replace(outcome, violations=broken)


def rto_ms(history: History, kind: str) -> float | None:
    """None when nobody was struck, or no other master acknowledged afterwards."""
    name = _STRIKES[kind][0][0].name
    struck = next((event.at_ms for event in history.happened(name)), None)
    if struck is None:
        return None
    acks = [event for event in history.events if isinstance(event, Ok)]
    old = next((ack.address for ack in reversed(acks) if ack.at_ms <= struck), "")
    return rto(acks, struck, old, orderly=kind in ORDERLY)


def plan(kind: str, noise: str, seed: int) -> Plan:
    """Faults and noise of one drill, drawn from its seed."""
    rng = random.Random(f"{kind}:{noise}:{seed}")
    at = rng.randint(1500, 2500)
    strikes = [
        then(at, fault, AWAY_MS, repair, f"victim{number}")
        for number, (fault, repair) in enumerate(_STRIKES[kind])
    ]
    # Whoever was frozen on purpose would be woken with the others at the end of the next standstill.
    until = at if kind == "freeze-master" else at + 2500
    noises = {
        "quiet": lambda: list[Step](),
        "standstills": lambda: _standstills(rng, at, until),
        "slow-disks": lambda: _slow_disks(rng),
    }
    return Plan(
        ordered(*strikes, noises[noise]()),
        load_ms=LOAD_MS,
        network={"latency_min_s": 0.0001, "latency_max_s": 0.002},
        errors_expected=noise != "quiet",
    )


def _standstills(rng: random.Random, at: int, until: int) -> list[Step]:
    steps: list[Step] = []
    begin = 300
    while (end := begin + rng.randint(50, 900)) < until:
        if begin <= at <= end:
            # Whoever stands still cannot be struck: it comes right afterwards.
            begin, end = at + 1, at + 1 + end - begin
        steps += [Step(begin, Pause(node)) for node in NODES] + [Step(end, Resume(node)) for node in NODES]
        begin = end + rng.randint(100, 1200)
    return steps


def _slow_disks(rng: random.Random) -> list[Step]:
    slow = [Step(100, SlowDisk(node, rng.choice((50, 100, 200, 400)))) for node in NODES]
    return slow + [Step(LOAD_MS - 1000, SlowDisk(node, 0)) for node in NODES]
