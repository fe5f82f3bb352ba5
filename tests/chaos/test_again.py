"""chaos.drills.again promises: a printed command repeats the run, or is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.drills.again import again
from chaos.drills.drill import summary
from chaos.drills.live import commands
from chaos.drills.live.scenario import DrillSpec
from chaos.drills.load import DrillPlan
from chaos.drills.measure import Drill
from chaos.faults import Kill, Restart, Step
from chaos.scenarios import Plan
from tests.live.commands import Shell

STEPS = [Step(100, Kill("master")), Step(300, Restart("master")), Step(500, Kill("slave"))]


def staged() -> dict[str, Any]:
    spec = DrillSpec(scenario="staging/kill", seed=7, plan=Plan(STEPS), target="staging")
    return {**spec.to_json(), "drills": [{}], "broken": {"lost": 1}}


def test_a_staging_drill_is_repeated_on_its_hosts() -> None:
    assert again(staged(), "k.json") == "keelmq drill staging HOSTS.toml --kind kill --strikes 2 --seed 7"


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_no_cluster_is_started_for_a_plan_of_a_staging_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def started(*given: object, **named: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(commands, "carried_out", started)
    path = tmp_path / "k.json"
    path.write_text(json.dumps(staged()))
    _, said = Shell().ended(["drill", command, str(path), "--json", str(tmp_path / "out.json")])
    assert "keelmq drill staging HOSTS.toml --kind kill --strikes 2 --seed 7" in " ".join(said.split())


def test_a_plan_is_replayed_and_a_drill_without_one_has_its_options() -> None:
    run = DrillSpec(scenario="x", seed=7, plan=Plan(STEPS)).to_json() | {"drills": [{}]}
    assert again(run, "my run.json") == "keelmq drill replay 'my run.json'"
    told = summary(DrillPlan(scenario="kill-master", seed=3, rate=50), "rocketmq", [Drill(), Drill()])
    assert again(told | {"settings": ["broker.a=1"]}, "k.json") == (
        "keelmq drill kill-master --target rocketmq --repeat 2 --rate 50 --size 256 --queues 4 --seed 3 "
        "--set broker.a=1"
    )
