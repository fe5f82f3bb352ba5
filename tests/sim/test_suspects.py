"""The promise to a log that survived: no broker that may have forgotten its own end cuts it (ASYNC_FLUSH).

KEELMQ_SUSPECT_SEEDS=50 draws so many schedules of each kind; what came of them: docs/results/.
"""

import os
import random
from dataclasses import dataclass
from typing import Literal

import pytest

from chaos.bugs import planted
from chaos.drills.simulated.run import Result, run_plan
from chaos.faults import Kill, Look, PowerFail, Restart, Step, ordered
from chaos.history import History, Send
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan
from chaos.sim.story import Story

SEEDS = int(os.environ.get("KEELMQ_SUSPECT_SEEDS", "0"))
FEW = range(SEEDS) if SEEDS else [0, pytest.param(1, marks=pytest.mark.more)]


def _processes_are_back_before_the_dead_master_is_missed(rng: random.Random) -> Plan:
    """The master's machine loses power. Before the Controllers notice, its slaves' processes are killed and
    started again, their logs whole. Then the master is back with a short log."""
    at = rng.randint(1200, 2500)
    first = at + rng.randint(5, 60)
    back = first + rng.randint(2600, 4000)
    steps = [
        Step(at, Look("master"), "master"),
        Step(at, PowerFail("=master")),
        Step(first, Kill("slave"), "one"),
        Step(first, Kill("slave"), "two"),
        Step(first + rng.randint(50, 300), Restart("=one")),
        Step(first + rng.randint(50, 300), Restart("=two")),
        Step(back, Restart("=master")),
    ]
    return Plan(ordered(steps), load_ms=back + 3500, **ground(rng))


def _the_master_loses_power_alone(rng: random.Random, first: Literal["master", "slaves"]) -> Plan:
    """Both slaves are killed and leave the set, the master goes on alone for a moment and loses power."""
    at = rng.randint(1500, 2500)
    off = at + 150
    slaves, master = (1800, 4000) if first == "slaves" else (4000, 1800)
    steps = [
        Step(at, Look("master"), "master"),
        Step(at, Kill("slave"), "one"),
        Step(at, Kill("slave"), "two"),
        Step(off, PowerFail("=master")),
        Step(off + slaves, Restart("=one")),
        Step(off + slaves + 100, Restart("=two")),
        Step(off + master, Restart("=master")),
    ]
    plan = Plan(ordered(steps), load_ms=off + 7000, swarm=True, **ground(rng))
    plan.offload_ms = (0.1, 1.0)
    return plan


@dataclass(frozen=True)
class _Run:
    """``lost_of_before_the_kills``: acknowledged messages all three brokers had, and that are gone."""

    result: Result
    history: History
    promised_away: frozenset[str]
    killed_ms: float
    lost_of_before_the_kills: list[Send]


def _run(plan: Plan, seed: int) -> _Run:
    stories: list[Story] = []
    result = run_plan("suspects", seed, plan, None, stories.append)
    history, forgiven = stories[0].history, stories[0].evidence.forgiven
    killed_ms = min(event.at_ms for event in history.happened() if event.name == "kill")
    there = {read.key for read in history.reads(final=True)}
    early = [s for s in history.sends() if s.outcome == "ok" and (s.ended_ms or killed_ms) < killed_ms]
    assert early, "nothing was acknowledged before the kills"
    lost = [s for s in early if s.key not in there]
    return _Run(result, history, forgiven.gone | forgiven.left, killed_ms, lost)


@pytest.mark.sim
@pytest.mark.parametrize("seed", FEW)
def test_killed_slaves_keep_what_a_master_without_power_forgot(seed: int) -> None:
    plan = _processes_are_back_before_the_dead_master_is_missed(random.Random(f"t11:{seed}"))
    run = _run(plan, seed)
    assert (run.result.violations, run.lost_of_before_the_kills) == ([], [])


@pytest.mark.sim
@pytest.mark.seeds
@pytest.mark.parametrize("first", ["slaves", "master"])
@pytest.mark.parametrize("seed", FEW)
def test_slaves_that_left_the_set_keep_what_the_last_member_forgot(
    seed: int, first: Literal["master", "slaves"]
) -> None:
    plan = _the_master_loses_power_alone(random.Random(f"t12:{seed}"), first)
    run = _run(plan, seed)
    assert (run.result.violations, run.lost_of_before_the_kills) == ([], [])
    assert run.result.coverage["event.master_elected"] >= 2
    # What the master acknowledged alone, within its last flush interval, is on no disk: that much is promised
    # away (docs/replication-modes.md), and no message more.
    ended_ms = {send.key: send.ended_ms for send in run.history.sends() if send.outcome == "ok"}
    for key in run.promised_away & ended_ms.keys():
        assert (ended_ms[key] or 0) >= run.killed_ms, f"{key} was acknowledged while the slaves lived"


@pytest.mark.sim
def test_what_a_broken_promise_loses_is_not_taken_for_what_the_mode_promises_away() -> None:
    plan = _the_master_loses_power_alone(random.Random("t12:0"), "master")
    with planted("power_loss_forgiven"):
        run = _run(plan, 0)
    assert run.lost_of_before_the_kills, "a master with a short log led, and cut slaves that had more"
    lost = [violation.text for violation in run.result.violations if violation.checker == "lost"]
    assert any(send.key in text for send in run.lost_of_before_the_kills for text in lost)
