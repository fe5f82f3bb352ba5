"""The promise of shrinking a live failure: faults go with what mends them, and what is left still fails."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from chaos import faults
from chaos.drills.live import shrink as shrinks
from chaos.drills.live.scenario import DrillResult, DrillSpec
from chaos.drills.live.shrink import LiveShrinking, carried, part_of, strikes
from chaos.drills.measure import Drill
from chaos.faults import Step
from chaos.history import History
from chaos.live.outcome import Outcome
from chaos.scenarios import SCENARIOS, Plan, find
from chaos.scenarios.matrix import KINDS, plan
from model.errors import MqError
from tests.live.commands import Shell


@pytest.mark.parametrize("kind", KINDS)
def test_a_strike_of_the_matrix_stays_whole(kind: str) -> None:
    found = strikes(plan(kind, "default", 3, 5).steps)
    assert len(found) == (9 if kind == "upgrade" else 5), "an upgrade, and the ways back"
    assert [step.at_ms for part in found for step in part] == [
        step.at_ms for step in plan(kind, "default", 3, 5).steps
    ]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "swarm"])
def test_every_step_of_a_scenario_is_in_one_strike(name: str) -> None:
    steps = list(find(name).plan(Random(5)).steps)
    parted = [step for part in strikes(steps) for step in part]
    assert sorted(map(repr, parted)) == sorted(map(repr, steps))


def test_what_one_heal_ends_is_one_strike_and_a_server_is_known_by_its_name() -> None:
    steps = [
        Step(1, faults.Cut("b1", "n0")),
        Step(2, faults.Kill("b2")),
        Step(3, faults.Isolate("slave"), "alone"),
        Step(4, faults.Heal()),
        Step(5, faults.Restart("b2")),
        Step(6, faults.ClockJump("=alone", 5)),
        Step(7, faults.Heal()),
    ]
    assert [[step.at_ms for step in part] for part in strikes(steps)] == [[1, 3, 4, 6], [2, 5], [7]]


def test_whom_a_cut_names_by_what_was_bound_is_part_of_its_strike() -> None:
    steps = [
        Step(1, faults.Look("master"), "first"),
        Step(2, faults.Look("slave"), "second"),
        Step(3, faults.Cut("b3", "n0")),
        Step(4, faults.Cut("=second", "=first")),
        Step(5, faults.Heal()),
        Step(6, faults.Kill("=first")),
        Step(7, faults.Restart("b3")),
    ]
    (whole,) = strikes(steps)
    assert sorted(step.at_ms for step in whole) == [1, 2, 3, 4, 5, 6, 7]
    assert [len(part) for part in strikes([steps[0], steps[1], steps[3]])] == [3]
    assert [len(part) for part in strikes([steps[2], Step(4, faults.Cut("b1", "n0"))])] == [1, 1]


def kills(count: int) -> Plan:
    """Kill number N is of broker bN."""
    steps = [
        step
        for number in range(count)
        for step in (
            Step(1000 * number + 500, faults.Kill(f"b{number}")),
            Step(1000 * number + 900, faults.Restart(f"b{number}")),
        )
    ]
    return Plan(steps, load_ms=1000 * count + 5000)


def killed(plan: Plan) -> list[str]:
    return [step.fault.target for step in plan.steps if step.fault.name == "kill"]


@pytest.mark.parametrize("needed", [{"b0"}, {"b7"}, {"b2", "b5"}])
def test_what_is_left_is_what_the_violation_needs(needed: set[str]) -> None:
    tried: list[Plan] = []

    def run(plan: Plan) -> set[str]:
        tried.append(plan)
        return {"lost", "phantom"} if needed <= set(killed(plan)) else {"duplicates"}

    small = LiveShrinking(run, kills(8), {"lost"}, again=1, runs_max=100).shrink()
    assert set(killed(small)) == needed
    assert len(small.steps) == 2 * len(needed)
    assert small.steps[0].at_ms == 500, "nothing is waited for that is left out"
    assert 4000 < small.load_ms - small.steps[-1].at_ms <= shrinks.TAIL_MS
    assert tried[0].to_json() == kills(8).to_json(), "the whole is tried as it was"
    assert len(tried) <= 21


def test_a_part_is_tried_again_and_the_runs_are_bounded() -> None:
    count = 0

    def sometimes(plan: Plan) -> set[str]:
        nonlocal count
        count += 1
        return {"lost"} if count % 2 == 0 and "b3" in killed(plan) else set()

    assert killed(LiveShrinking(sometimes, kills(4), {"lost"}, again=2, runs_max=100).shrink()) == ["b3"]
    count = 0
    shrinking = LiveShrinking(sometimes, kills(8), {"x"}, again=3, runs_max=7)
    assert shrinking.shrink() is shrinking.plan
    assert count == 7


def test_what_the_run_did_not_come_to_is_left_out_without_a_run() -> None:
    told = {"done": {"kill": 2, "restart": 1}, "missed": {}, "refused": []}
    whole = kills(4)
    assert killed(carried({"faults": told, "stopped": {"at_ms": 9.0}}, whole)) == ["b0", "b1"]
    assert carried({"faults": told, "stopped": None}, whole) is whole
    assert part_of(whole, whole.steps) == whole


@pytest.mark.parametrize(("fails", "code"), [(True, 0), (False, 3)])
def test_one_strike_is_run_again_and_said_to_be_all(
    fails: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[DrillSpec] = []

    def run(spec: DrillSpec, console: object) -> DrillResult:
        tried.append(spec)
        return DrillResult(Drill(), Outcome(), History(), {}, broken={"lost": 1} if fails else {})

    monkeypatch.setattr(shrinks, "carried_out", run)
    spec, file = DrillSpec(scenario="kills", seed=1, plan=kills(1)), tmp_path / "run.json"
    result = DrillResult(Drill(), Outcome(), History(), {}, broken={"lost": 1})
    file.write_text(json.dumps(result.to_json(spec)))
    said = Shell()("drill", "shrink", str(file), "--json", "-", code=code)
    if fails:
        assert DrillSpec.from_json(json.loads(said)).plan.to_json() == kills(1).to_json()
    else:
        assert "nothing to leave out" in said
        assert "neither it nor a part of it broke lost again" in said
    assert len(tried) == (1 if fails else 2)


def test_the_command_leaves_the_smallest_result_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(spec: DrillSpec, broken: dict[str, int]) -> DrillResult:
        return DrillResult(Drill(), Outcome(), History(), {}, broken=broken)

    tried: list[DrillSpec] = []

    def run(spec: DrillSpec, console: object) -> DrillResult:
        tried.append(spec)
        if len(tried) == 1:
            raise MqError("not ready")
        return result(spec, {"lost": 3} if "b1" in killed(spec.plan) else {})

    monkeypatch.setattr(shrinks, "carried_out", run)
    spec = DrillSpec(scenario="kills", seed=1, plan=kills(4), go_on=True)
    file, out = tmp_path / "run.json", tmp_path / "small.json"
    file.write_text(json.dumps(result(spec, {"lost": 1}).to_json(spec)))
    said = Shell()("drill", "shrink", str(file), "--json", str(out))
    assert said.splitlines()[-1] == f"keelmq drill replay {out}"
    small = DrillSpec.from_json(json.loads(out.read_text()))
    assert killed(small.plan) == ["b1"]
    assert not small.go_on
    monkeypatch.setattr(shrinks, "carried_out", lambda spec, console: result(spec, {"phantom": 1}))
    Shell()("drill", "shrink", str(file), "--json", str(out), code=3)
    file.write_text(json.dumps(result(spec, {}).to_json(spec)))
    assert "no promise was broken" in Shell()("drill", "shrink", str(file), "--json", str(out), code=64)
