"""The promise of a drill by plan: its result makes the same plan again, its exit code says what came."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from admin.local import layout as layouts
from admin.local.cluster import LocalCluster
from admin.local.layout import Layout
from chaos import faults
from chaos.checks import Evidence, Promised, check_so_far
from chaos.checks.replicas import ReplicaLog
from chaos.drills.commands import drill
from chaos.drills.live.commands import Outs, _write, exit_code
from chaos.drills.live.disks import lied
from chaos.drills.live.scenario import DrillResult, DrillSpec, _judge, _logs, described
from chaos.drills.live.staging import count_failed
from chaos.drills.live.verdicts import never_struck, proves_nothing
from chaos.drills.load import DrillLoad
from chaos.drills.measure import Drill
from chaos.faults import OwnFault, Step
from chaos.history import Happened, History, Invoke, Observed, Ok
from chaos.live.ground import heal
from chaos.live.logs import Held
from chaos.live.noted import LEDGER
from chaos.live.outcome import Outcome
from chaos.scenarios import SCENARIOS, Plan, find
from chaos.worlds.live import CannotDrill
from client.message import Queue
from runtime.os_env import OsEnv
from tests.live.commands import Shell

WRITTEN = [name for name in SCENARIOS if name != "swarm"]
REFUSED = {"at_ms": 0, "fault": "cut", "reason": "needs root"}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_written_scenario_can_be_asked_for_and_its_result_makes_the_same_plan(name: str) -> None:
    # What only the simulated world has may be drawn as well: then by another seed.
    plans = (find(name).plan(Random(seed)) for seed in range(7, 99))
    plan = next(plan for plan in plans if not (plan.neighbour or plan.learners))
    spec = DrillSpec(
        scenario=name, seed=7, plan=plan, scale=2.0, settings=("broker.flushDiskType=SYNC_FLUSH",)
    )
    told = DrillResult(Drill(), Outcome(), History(), {})
    again = DrillSpec.from_json(json.loads(json.dumps(told.to_json(spec))))
    assert again.plan.to_json() == plan.to_json()
    assert (again.scenario, again.seed, again.scale, again.settings) == (name, 7, 2.0, spec.settings)
    Layout.make(base_port=20_000).add_settings(spec.cluster_settings())


@pytest.mark.parametrize("more", [{"learners": 1}, {"neighbour": True}])
def test_a_plan_of_what_only_the_simulated_world_has_is_refused(more: dict[str, Any]) -> None:
    plan = replace(find(WRITTEN[0]).plan(Random(1)), **more)
    with pytest.raises(CannotDrill, match=next(iter(more))):
        DrillSpec(scenario="x", seed=1, plan=plan)


@pytest.mark.parametrize(
    "data", [[], {}, {"scenario": "x", "seed": 1}, {"scenario": "x", "seed": 1, "plan": 3}]
)
def test_what_holds_no_plan_is_wrong(data: object) -> None:
    with pytest.raises(ValueError):
        DrillSpec.from_json(data)


def test_a_schedule_that_the_simulated_world_wrote_is_a_plan_without_a_planted_bug(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    asked = ["sim", "--replay", "17", "--scenario", "kill_the_master_under_load", "--schedule", str(path)]
    assert CliRunner().invoke(drill, asked).exit_code == 0
    spec = DrillSpec.from_json(json.loads(path.read_text()))
    assert (spec.bug, spec.seed, bool(spec.plan.steps)) == ("", 17, True)


def test_whole_numbers_may_be_written_as_floats_and_what_a_run_takes_its_replay_does() -> None:
    plan = Plan([Step(1500.0, faults.Kill("master"))], load_ms=6e3)  # type: ignore[arg-type]
    again = DrillSpec.from_json(json.loads(json.dumps({"scenario": "x", "seed": 1, "plan": plan.to_json()})))
    assert (again.plan.steps[0].at_ms, again.plan.load_ms) == (1500, 6000)
    with pytest.raises(CannotDrill, match="Expected `str`, got `int`"):
        DrillSpec(scenario="x", seed=1, plan=replace(plan, broker={"inSyncReplicas": 2}))  # type: ignore[dict-item]


@dataclass(frozen=True, slots=True)
class Odd(OwnFault):
    """Of another package, whose types are its own affair."""

    name = "odd"
    share: int = 0.5  # type: ignore[assignment]
    where: "str | Path | NoSuchType" = ""  # type: ignore[name-defined]  # noqa: F821, UP037


def test_a_fault_of_another_package_may_have_any_types() -> None:
    step = Step(1, Odd("master", share=0.25, where="x"))  # type: ignore[arg-type]
    assert Step.from_json(json.loads(json.dumps(step.to_json()))) == step
    with pytest.raises(ValueError, match="'colour' is no field of Odd"):
        Step.from_json({**step.to_json(), "colour": "red"})


def _changed(plan: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    *parts, last = path.split(".")
    at: Any = plan
    for part in parts:
        at = at[int(part)] if part.isdigit() else at[part]
    at[last] = value
    return plan


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("broker", 5, "broker"),
        ("broker", {"a": 5}, "broker"),
        ("steps", 5, "not a plan"),
        ("steps.0.at_ms", "939", "its time"),
        ("steps.0.at_ms", -5, "at_ms is -5"),
        ("steps.0.at_ms", True, "its time"),
        ("steps.0.at_ms", 10**12, "at_ms is"),
        ("steps.0.direction", "sideways", "direction"),
        ("steps.0.colour", "red", "'colour' is no field of Isolate"),
        ("load_ms", 10**12, "load_ms is"),
        ("quiet_ms", float("nan"), "quiet_ms"),
        ("brokers", 99, "brokers is 99"),
        ("load.body_bytes", [256, 16], "body_bytes is"),
        ("load.body_bytes", [5], "body_bytes"),
        ("load.body_bytes", [5, 1 << 40], "body_bytes is"),
        ("load.producers", 10**9, "producers is"),
        ("load.queues", 10**9, "queues is"),
        ("load.per_second", float("inf"), "per_second is"),
        ("load.colour", "red", "'colour' is no field of Load"),
    ],
)
def test_a_plan_that_no_run_could_be_of_is_refused_with_the_field(
    path: str, value: object, said: str
) -> None:
    plan = Plan([Step(1, faults.Isolate("master"))]).to_json()
    assert Plan.from_json(plan).to_json() == plan
    with pytest.raises(ValueError, match=f"not a plan.*{said}|{said}"):
        Plan.from_json(_changed(plan, path, value))


def told(**more: Any) -> DrillResult:
    found = DrillResult(Drill(), Outcome(), History(), {})
    for name, value in more.items():
        setattr(found.outcome if name == "refused" else found.drill, name, value)
    return found


def test_the_exit_code_says_the_worst_that_came() -> None:
    assert exit_code(told()) == 0
    assert exit_code(told(refused=[REFUSED])) == 1
    assert exit_code(told(refused=[REFUSED], unfinished="not full again")) == 3
    assert exit_code(told(lost=1, unfinished="not full again")) == 2
    assert exit_code(told(violations=[{"checker": "one_master_per_epoch", "text": "two"}])) == 2


def test_a_run_without_any_of_its_faults_or_without_an_acknowledgement_says_nothing() -> None:
    plan = Plan(
        [
            Step(1, faults.Look("master")),
            Step(2, faults.Cut("master")),
            Step(3, faults.Heal()),
            Step(4, faults.Restart("master")),
        ]
    )
    repaired = Counter({"look": 1, "heal": 1, "restart": 1})
    assert "needs root" in (proves_nothing(plan, Outcome(repaired, refused=[REFUSED]), 5) or "")
    assert "no fault struck" in (proves_nothing(plan, Outcome(repaired, Counter(cut=1)), 5) or "")
    assert proves_nothing(plan, Outcome(Counter(cut=1)), 5) is None
    assert proves_nothing(plan, Outcome(Counter(cut=1)), 0) == "nothing was acknowledged"
    assert proves_nothing(Plan([]), Outcome(), 5) is None


def test_a_kind_of_a_story_that_never_struck_makes_a_run_one_in_part() -> None:
    plan = Plan([Step(1, faults.FlipBit("slave")), Step(2, faults.Kill("master"))])
    half = Outcome(Counter(kill=1), Counter(flip_bit=1))
    assert never_struck(plan, half) == ["flip_bit"]
    assert never_struck(plan, Outcome(Counter(kill=1, flip_bit=1), Counter(flip_bit=1))) == []
    assert never_struck(replace(plan, swarm=True), half) == [], "it has no story"
    found = replace(told(), untried=("flip_bit",))
    assert exit_code(found) == 1
    assert found.to_json(DrillSpec(scenario="x", seed=1, plan=plan))["untried"] == ["flip_bit"]


def test_a_file_that_cannot_be_written_keeps_no_other_from_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outs = Outs(tmp_path / "file" / "h.jsonl", tmp_path / "l.jsonl", None, tmp_path / "run.json")
    (missing,) = _write(told(), DrillSpec(scenario="x", seed=1, plan=Plan([])), outs)
    assert "h.jsonl" in missing
    assert (tmp_path / "run.json").exists()
    assert (tmp_path / "l.jsonl").exists()


def test_a_result_says_when_where_and_of_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DrillSpec(scenario="x", seed=1, plan=Plan([]))
    found = replace(told(), where=described(spec, 1_764_400_000_123)).to_json(spec)
    assert found["at"] == "2025-11-29T07:06:40+00:00"
    assert found["release"]
    assert found["machine"]["cpus"]
    assert found["peer"] is None
    monkeypatch.setattr("chaos.worlds.rocketmq.described", lambda: {"version": "5.5.0", "options": ""})
    peer = described(replace(spec, target="rocketmq"), 0)["peer"]
    assert peer["version"] == "5.5.0"
    assert "TieredStopAtLevel=1" in peer["options"], "which compiler its processes do without"


def test_a_command_that_failed_on_a_staging_host_broke_nothing() -> None:
    spec = DrillSpec(scenario="staging/kill", seed=1, plan=Plan([Step(1, faults.Kill("master"))]))
    for failed, code in (([], 0), (["kill b0: no route"], 3), (["start b0: no route"], 1)):
        struck = told(acked=5)
        struck.outcome.done.update(kill=1)
        count_failed(struck, spec, failed)
        assert exit_code(struck) == code


def test_a_producer_or_a_consumer_that_died_is_told() -> None:
    class Dead(DrillLoad):
        def __init__(self) -> None:
            self._running, self._following = [], None

    async def dies() -> None:
        raise KeyError("attempts")

    async def main() -> list[str]:
        load, loop = Dead(), asyncio.get_running_loop()
        load._running = [loop.create_task(dies(), name="drill.p0"), loop.create_task(asyncio.sleep(9))]
        load._following = loop.create_task(dies(), name="drill.c")
        await asyncio.sleep(0.01)
        load._running[1].cancel()
        return load.errors()

    assert asyncio.run(main()) == [f"drill.{name} ended: KeyError('attempts')" for name in ("p0", "c")]


def test_two_masters_of_one_epoch_and_a_lost_message_are_found_in_a_live_history() -> None:
    queue = Queue("chaos", "broker-a", 0)
    events: list[Any] = [
        Happened(5.0, "broker-a-0", "kill"),
        Observed(10.0, "broker-a-0", 100, "master", 3, 0, 0),
        Observed(11.0, "broker-a-1", 101, "master", 3, 0, 0),
        Invoke(1.0, "p0", "k1", queue, 7),
        Ok(2.0, "p0", "k1", queue, 0, 0, "127.0.0.1:1"),
        Invoke(2.0, "p0", "k2", queue, 7),
        Ok(302.0, "p0", "k2", queue, 1, 100, "127.0.0.1:1"),
    ]
    stuck = Drill(unfinished="not full")
    _judge(stuck, History(events), [queue], 400.0, Plan([]))
    assert (stuck.lost, {v["checker"] for v in stuck.violations}) == (0, {"one_master_per_epoch"})
    drill = Drill(full_again_ms=9.0)
    _judge(drill, History(events), [queue], 400.0, Plan([]))
    assert drill.lost == 2
    assert {v["checker"] for v in drill.violations} == {"lost", "one_master_per_epoch"}
    assert drill.rto_ms == drill.stall_ms == 300.0


def test_of_messages_nothing_is_promised_once_a_disk_lied_and_lost_power() -> None:
    queue = Queue("chaos", "broker-a", 0)
    sent: list[Any] = [Invoke(1.0, "p0", "k1", queue, 7), Ok(2.0, "p0", "k1", queue, 0, 0)]
    lies = Happened(3.0, "b0", "lying_sync", {"lying": True})
    masters = [Observed(10.0, f"b{at}", at, "master", 3, 0, 0) for at in (0, 1)]

    def found(*struck: Happened) -> set[str]:
        drill = Drill(full_again_ms=9.0)
        events = [*sent, *struck, *masters]
        _judge(drill, History(events), [queue], 400.0, Plan([]))
        assert drill.violated == bool(drill.lost)
        early = check_so_far(Evidence(History(events), forgiven=Promised(lied=bool(lied(events)))))
        return {one["checker"] for one in drill.violations} | {one.checker for one in early}

    assert found(lies, Happened(4.0, "b0", "power_fail")) == {"one_master_per_epoch"}
    assert found(lies, Happened(4.0, "b1", "power_fail")) == {"lost", "one_master_per_epoch"}
    assert found(lies, Happened(4.0, "b0", "kill")) == {"lost", "one_master_per_epoch"}


def test_what_a_look_saw_and_the_end_sees_again_counts_once() -> None:
    events: list[Any] = [Observed(float(at), f"broker-a-{at}", 100, "master", 3, 0, 0) for at in (1, 2)]
    seen = {"checker": "one_master_per_epoch", "text": "as far as it was known then"}
    gone = [{"checker": "serves_with_a_majority", "text": str(at)} for at in (1, 2)]
    unkept = [{"checker": "extras", "text": text} for text in ("k1", "k2")]
    beside = [*unkept, seen, *gone]
    found = _judge(Drill(), History(events), [], 400.0, Plan([]), None, Held(), beside)
    assert found == {"one_master_per_epoch": 1, "extras": 2, "serves_with_a_majority": 2}


def log_of(name: str) -> ReplicaLog:
    return ReplicaLog(name, 0, b"x" * 8, 8, ((1, 0),))


def test_a_log_outside_of_the_set_that_the_controllers_tell_is_a_violation() -> None:
    def found(members: Sequence[str]) -> Mapping[str, int]:
        held = Held([log_of("b0"), log_of("b1")], members)
        return _judge(Drill(full_again_ms=9.0), History([]), [], 400.0, Plan([]), None, held)

    assert found(["b0", "b1"]) == {}
    assert found(["b0"]) == {"replicas_converged": 1}


def test_members_are_those_of_the_controllers_and_a_silent_broker_ends_no_run_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, Layout.make(base_port=20_000))
    names = [node.name for node in cluster.layout.broker_nodes]
    broker = {"maxOffset": 8, "confirmOffset": 8, "role": "slave"}
    views: dict[str, Any] = {node.name: None for node in cluster.layout.nodes}
    views |= {name: {**broker, "brokerId": at} for at, name in enumerate(names[:2], 1)}
    group = {"syncStateSet": [1], "brokers": {}}
    groups = dict.fromkeys(cluster.layout.group_names, group)
    views[cluster.layout.namesrvs[0].name] = {"controller": {"isLeader": True, "groups": groups}}

    async def said() -> dict[str, Any]:
        return views

    monkeypatch.setattr(cluster, "views", said)
    monkeypatch.setattr("chaos.live.logs.LEVEL_S", -1.0)
    monkeypatch.setattr("chaos.live.logs.read", lambda _, views: [log_of(name) for name in views])
    drill = Drill(full_again_ms=9.0)
    held = asyncio.run(_logs(OsEnv(), cluster, drill))
    assert held.members == names[:1]
    assert [log.name for log in held.logs] == names[:2]
    assert (drill.unfinished or "").startswith("2 of 3 logs")


def test_heal_ends_nothing_of_a_drill_that_runs_and_all_of_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    assert heal(tmp_path) == []
    left: dict[str, Any] = {"pid": os.getpid(), "switch": None, "namespaces": [], "tracers": []}
    (tmp_path / LEDGER).write_text(json.dumps(left))
    monkeypatch.setattr("chaos.live.noted.runs", lambda pid, word: True)
    with pytest.raises(RuntimeError, match="still runs"):
        heal(tmp_path)
    monkeypatch.setattr("chaos.live.noted.runs", lambda pid, word: False)
    heal(tmp_path)
    assert not (tmp_path / LEDGER).exists()


def test_the_list_names_each_drill_and_scenario_and_what_it_may_break() -> None:
    rows = {row["name"]: row for row in Shell().json("drill", "list")}
    assert set(SCENARIOS) | {"kill-master", "cut-replication"} <= set(rows)
    assert rows["a_full_disk_refuses_and_recovers"]["faults"] == ["disk_full"]
    assert rows["kill-master"]["how"] == "keelmq drill kill-master"


def test_an_endless_number_is_no_seed() -> None:
    with pytest.raises(ValueError, match="no plan of a drill"):
        DrillSpec.from_json({"scenario": "x", "seed": float("inf")})


def test_wrong_uses_are_told(tmp_path: Path) -> None:
    said = Shell()("drill", "run", "kill_the_master", code=64)
    assert "did you mean kill_the_master_under_load" in said
    wrong = tmp_path / "plan.json"
    wrong.write_text("{}")
    assert "plan" in Shell()("drill", "replay", str(wrong), code=64)
