"""A dead member leaves the SyncStateSet: the swarm says when it does not, in groups of four and five, too."""

from __future__ import annotations

import pytest

from chaos.bugs import planted
from chaos.drills.simulated.run import run_plan
from chaos.faults import Kill, Restart, Step
from chaos.history import ControllerAnswer
from chaos.scenarios import Plan, find, swarm
from chaos.scenarios.last_draws import SMALL_BYTES, STEADY
from chaos.sim.story import Story

MAJORITY = {"majorityAck": "true", "allAckInSyncStateSet": "false"}


def _dies(brokers: int = 3) -> Plan:
    return Plan(
        [Step(500, Kill("slave"), "dead")], load_ms=4000, brokers=brokers, broker=MAJORITY, swarm=True
    )


def _said(bug: str | None, plan: Plan) -> list[str]:
    with planted(bug):
        return [str(one) for one in run_plan("swarm", 1, plan, bug, None).violations]


@pytest.mark.sim
def test_a_dead_member_that_stays_is_a_violation() -> None:
    assert _said(None, _dies()) == []
    (said,) = _said("never_shrink_the_set", _dies())
    assert "a dead member stays" in said


@pytest.mark.sim
def test_a_world_in_which_a_dead_member_is_to_leave_is_not_skipped() -> None:
    """Else the next step comes before anybody could see that it does not."""
    plan = _dies()
    plan.steps = [*plan.steps, Step(20_000, Restart("=dead"))]
    plan.load_ms, plan.calm_ms = 25_000, 50
    (said,) = _said("never_shrink_the_set", plan)
    assert "a dead member stays" in said


@pytest.mark.sim
def test_one_without_whom_nothing_could_be_answered_may_stay() -> None:
    plan = _dies()
    plan.steps = [*plan.steps, Step(500, Kill("slave"), "other")]
    assert _said("never_shrink_the_set", plan) == []


@pytest.mark.sim
def test_five_brokers_answer_and_shrink_with_two_dead() -> None:
    plan = _dies(brokers=5)
    plan.steps = [*plan.steps, Step(600, Kill("slave"), "other")]
    kept: list[Story] = []
    assert run_plan("swarm", 1, plan, None, kept.append).violations == []
    answers = [event for event in kept[0].history.events if isinstance(event, ControllerAnswer)]
    assert {3, 5} <= {len(answer.members) for answer in answers}


def test_more_brokers_are_drawn_in_some_seeds_and_change_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [find("swarm").drawn(seed) for seed in range(400)]
    monkeypatch.setattr(swarm, "MORE_BROKERS_SHARE", 0.0)
    alone = [find("swarm").drawn(seed) for seed in range(400)]
    grown, late = 0, 0
    for plan, other in zip(plans, alone, strict=True):
        if plan.brokers <= 3:
            assert plan.to_json() == other.to_json()
            continue
        grown += 1
        assert plan.brokers in (4, 5)
        assert plan.load.in_flight_max in {at_once for _, at_once in STEADY}
        assert plan.load.in_flight_max == 1 or plan.load.body_bytes[1] <= SMALL_BYTES
        assert any(step.bind.startswith("more") for step in plan.steps)
        late += any(step.bind.startswith("late") for step in plan.steps)
    assert 0.02 < grown / len(plans) < 0.10
    assert 0 < late < grown
