"""The promise of the matrix: each kind in each mode is met alike, and the table says what came of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from admin.local.layout import Layout
from chaos.drills.live import matrix as drills
from chaos.drills.live.scenario import DrillResult, DrillSpec
from chaos.drills.measure import Drill
from chaos.drills.timeline import availability, timeline
from chaos.faults import kind_of
from chaos.history import Happened, History, Invoke, Ok
from chaos.live.outcome import Outcome
from chaos.scenarios.matrix import FAULT_OF, KINDS, MODES, ONE_CUT_OFF, THEIR_MODES, plan
from client.message import Queue
from model.errors import MqError
from tests.live.commands import Shell

PAIRS = [(kind, mode) for kind in KINDS for mode in MODES]


@pytest.mark.parametrize(("kind", "mode"), PAIRS)
def test_a_plan_strikes_as_often_as_asked_and_is_the_same_again(kind: str, mode: str) -> None:
    found = plan(kind, mode, 3, 5)
    name = FAULT_OF.get(kind, kind)
    struck = [s for s in found.steps if s.fault.name == name and not s.fault.to_json().get("back")]
    assert kind_of(name) is not None
    assert len(struck) % 5 == 0
    assert struck
    assert [step.at_ms for step in found.steps] == sorted(step.at_ms for step in found.steps)
    bound = [step.bind for step in found.steps if step.bind]
    assert len(bound) == len(set(bound)), "a strike means the node that it hit, not an earlier one"
    used = {step.fault.target[1:] for step in found.steps if step.fault.target.startswith("=")}
    assert used <= set(bound)
    spec = DrillSpec(scenario="x", seed=3, plan=found, one_by_one=True)
    again = DrillSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert (again.plan.to_json(), again.one_by_one) == (plan(kind, mode, 3, 5).to_json(), True)
    Layout.make(base_port=20_000).add_settings(spec.cluster_settings())


@pytest.mark.parametrize("mode", THEIR_MODES)
def test_the_plans_for_rocketmq_set_its_own_keys(mode: str) -> None:
    found = plan("kill", mode, 3, 2, "rocketmq")
    assert found.broker == THEIR_MODES[mode]
    spec = DrillSpec(scenario="x", seed=3, plan=found, target="rocketmq", links="toxiproxy", bug="x")
    again = DrillSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert (again.target, again.links, again.bug) == ("rocketmq", "toxiproxy", "x")


def test_where_two_copies_are_enough_no_room_holds_both_alone() -> None:
    shapes = {
        s.fault.to_json().get("shape") for n in range(20) for s in plan("partition", "counted", n, 4).steps
    }
    assert shapes - {None} == set(ONE_CUT_OFF)


class Worlds:
    """Runs that are told instead of carried out."""

    def __init__(self) -> None:
        self.spec: list[tuple[str, int]] = []
        self.fails: Exception | None = None
        self.told = DrillResult(Drill(acked=1000, full_again_ms=5.0), Outcome(), History(), {})

    def __call__(self, spec: DrillSpec, console: object) -> DrillResult:
        self.spec.append((spec.scenario, spec.seed))
        if self.fails is not None:
            raise self.fails
        return self.told


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Worlds:
    found = Worlds()
    monkeypatch.setattr(drills, "carried_out", found)
    return found


def test_each_pair_is_met_before_any_a_second_time_and_what_is_there_is_not_run_again(
    worlds: Worlds, tmp_path: Path
) -> None:
    spec = ("drill", "matrix", str(tmp_path), "--kinds", "kill,wipe", "--modes", "default,counted")
    Shell()(*spec, "--count", "2")
    first = [("matrix/kill/default", 1), ("matrix/kill/counted", 1), ("matrix/wipe/default", 1)]
    assert worlds.spec[:3] == first
    assert [seed for _, seed in worlds.spec] == [1] * 4 + [2] * 4
    Shell()(*spec, "--count", "3")
    assert [seed for _, seed in worlds.spec[8:]] == [3] * 4


def test_the_worst_run_is_the_exit_code_and_a_violation_keeps_its_history(
    worlds: Worlds, tmp_path: Path
) -> None:
    worlds.fails = MqError("no root here")
    one = ("drill", "matrix", str(tmp_path), "--kinds", "kill", "--modes", "default")
    assert "no root here" in Shell()(*one, code=3)
    worlds.fails, worlds.told.drill.lost = None, 1
    Shell()(*one, "--seed", "2", code=2)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["kill-default-2.jsonl"]
    Shell()(*one, "--seed", "9", "--limit", "0", code=2)
    assert not (tmp_path / "kill-default-9.json").exists(), "its time was over"


@pytest.mark.parametrize(
    ("kept", "code"),
    [
        ({"lost_total": 1}, 2),
        ({"broken": {"one_master_per_epoch": 1}}, 2),
        ({"violations": [{"checker": "lost", "text": "k1"}]}, 2),
        ({"drills": [{"unfinished": "not full"}], "unfinished_total": 1}, 3),
        ({"refused_total": 1}, 1),
        ({}, 0),
    ],
)
def test_what_is_kept_and_not_run_again_is_part_of_the_exit_code(
    kept: dict[str, Any], code: int, worlds: Worlds, tmp_path: Path
) -> None:
    path = tmp_path / "kill-default-1.json"
    path.write_text(json.dumps(result("kill", "default", **kept)))
    Shell()("drill", "matrix", str(tmp_path), "--kinds", "kill", "--modes", "default", code=code)
    assert worlds.spec == []


def test_the_official_client_sends_where_it_is_asked_for_and_the_table_says_so(
    worlds: Worlds, tmp_path: Path
) -> None:
    one = ("drill", "matrix", str(tmp_path), "--modes", "default", "--kinds")
    said = Shell()(*one, "kill")
    assert "official Java client" not in said
    said = Shell()(*one, "kill,wipe", "--client", "java")
    assert "in 1 of 2 runs the official Java client sent and read" in said
    found = {path.stem: json.loads(path.read_text())["client"] for path in tmp_path.glob("*.json")}
    assert found == {"kill-default-1": "keelmq", "wipe-default-1": "java"}


def test_wrong_names_are_told(tmp_path: Path) -> None:
    said = Shell()("drill", "matrix", str(tmp_path), "--kinds", "meteor", code=64)
    assert "no kind meteor" in said
    (tmp_path / "x.json").write_text("{}")
    said = Shell()("drill", "matrix", str(tmp_path), "--limit", "0", code=64)
    assert "x.json" in said


def result(kind: str, mode: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "scenario": f"matrix/{kind}/{mode}",
        "seed": 1,
        "drills": [asdict(Drill(stall_ms=80.0, judged=True))],
        "faults": {"done": {kind: 3, "restart": 3}, "missed": {kind: 1}, "refused": []},
        "acked_total": 1500,
        "availability": 0.99,
    }
    return found | more


def test_a_table_counts_what_each_fault_cost() -> None:
    bad = {
        "lost": 2,
        "one_master_per_epoch": 1,
        "offset_reuse": 3,
        "acknowledged_twice": 2,
        "dense_offsets": 4,
        "phantom": 5,
    }
    late = {"drills": [asdict(Drill())], "unfinished_total": 1, "availability": None}
    refused = {"done": {}, "missed": {}, "refused": [{"fault": "wipe", "reason": "needs root"}]}
    rows = drills.table(
        [
            result("wipe", "default", faults=refused, refused_total=1, **late),
            result("kill", "majority", broken=bad, availability=0.97),
            result("kill", "majority"),
            result("disk_full", "default", faults={"done": {"disk_full": 4, "kill": 9}}),
            result("upgrade", "default", faults={"done": {"upgrade": 3}}, upgraded=["v1", "v2"]),
            result("flapping", "default", faults={"done": {"partition": 10, "heal": 10}}),
            result("upgrade", "default", faults={"done": {"upgrade": 1}}, upgraded=["v1", "v2"]),
        ]
    ).splitlines()
    assert (
        rows[2] == "| kill | majority | 2 | 6 | 6 | 2 | 0 | 0 | 3,000 | 2 | 0 | 4 | 3 | 1 | 5 | 98.0% | 80 |"
    )
    assert rows[3].startswith("| wipe | default | 1 | 0 | 0 | 0 | 1 | 1 | 0 | - | 1,500 |")
    assert rows[4].startswith("| disk_full | default | 1 | 2 | 2 | 0 |"), "each was switched on and off"
    assert rows[5].startswith("| flapping | default | 1 | 2 | 2 | 0 |"), "each strike is five partitions"
    assert rows[6].startswith("| upgrade | default | 2 | 3 | 3 | 0 |"), "the ways back are none"
    assert rows[7].startswith("| all |  | 7 | 13 | 13 | 2 | 1 | 1 | 9,000 | 2 | 1,500 | 4 | 3 | 1 | 5 |")
    assert rows[-2:] == ["- 2 runs upgraded from v1 to v2", "- skipped 1 times, wipe: needs root"]
    assert rows[0].count("|") == rows[1].count("|") == rows[2].count("|")


def test_runs_of_several_releases_and_of_another_system_are_told() -> None:
    late = asdict(Drill(unfinished="not full"))
    theirs = result("kill", "all-ack", target="rocketmq", release="v2", drills=[late], unfinished_total=1)
    lines = drills.table([result("kill", "default", release="v1"), theirs]).splitlines()
    assert lines[-2:] == [
        "- the runs are of several releases: v1 (1), v2 (1)",
        "- not finished, rocketmq matrix/kill/all-ack seed 1: not full",
    ]


def test_what_nobody_asked_is_no_zero() -> None:
    theirs = result("kill", "all-ack", target="rocketmq")
    ours = result("kill", "default")
    cells = [row.split(" | ") for row in drills.table([theirs, ours]).splitlines()[2:]]
    assert [(row[1], row[13]) for row in cells] == [("default", "0"), ("all-ack", "-"), ("", "0")]


def test_availability_is_the_share_of_served_windows_while_faults_act() -> None:
    queue = Queue("t", "g", 0)
    events: list[Any] = []
    for at in [*range(0, 1000, 20), *range(1500, 2000, 20)]:
        events += [Invoke(at, "p", f"k{at}", queue, 1), Ok(at + 1.0, "p", f"k{at}", queue, at, at)]
    events += [Invoke(990.0, "q", "w", queue, 1), Ok(1501.0, "q", "w", queue, 9, 9)]
    struck = [Happened(1000.0, "b", "kill"), Happened(1400.0, "b", "restart")]
    told = timeline(History([*events, *struck]), 2000.0)
    assert availability(told) == 0.5
    assert availability(timeline(History(events), 2000.0)) is None
    for at in range(2000, 60_000, 20):
        events += [Invoke(at, "p", f"k{at}", queue, 1), Ok(at + 1.0, "p", f"k{at}", queue, at, at)]
    waited = timeline(History([*events, *struck]), 60_000.0)
    assert availability(waited) == round(49 / 54, 4), "the wait for the next strike makes it no better"
