"""The promise of ``keelmq drill sim``: exit codes and JSON that scripts can rely on."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from admin.exits import INTERRUPTED, USAGE
from admin.exits import run as run_command
from chaos import faults
from chaos.bugs import BUGS
from chaos.checks import Violation
from chaos.drills.simulated import commands
from chaos.drills.simulated import told as said
from chaos.drills.simulated.commands import sim
from chaos.drills.simulated.run import Result
from chaos.drills.simulated.shrink import readable
from chaos.drills.swarm_report import SwarmReport
from chaos.faults import Step
from chaos.history import Happened, History, Ok
from chaos.scenarios import SCENARIOS
from chaos.scenarios.plan import Plan
from chaos.sim.changes import Changes
from client.message import Queue

KILL = "kill_the_master_under_load"


@pytest.mark.sim
def test_good_seeds_end_with_0_and_a_result(tmp_path: Path) -> None:
    out = tmp_path / "sim.json"
    done = CliRunner().invoke(sim, ["--scenario", KILL, "--seeds", "2", "--from", "1", "--json", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["seeds"] == 2
    assert found["violations"] == []
    assert found["schedules_per_second"] > 0
    assert found["coverage"]["fault.kill"] >= 2


@pytest.mark.sim
def test_a_broken_promise_ends_with_2_and_a_command_that_replays_it(tmp_path: Path) -> None:
    out = tmp_path / "sim.json"
    arguments = ["--scenario", KILL, "--seeds", "1", "--plant", "ack_before_replication", "--json", str(out)]
    done = CliRunner().invoke(sim, arguments)
    assert done.exit_code == 2
    violation = json.loads(out.read_text())["violations"][0]
    assert violation["scenario"] == KILL
    replay = violation["replay"].split()[3:]
    again = CliRunner().invoke(sim, replay)
    assert again.exit_code == 2
    assert violation["checker"] in again.output


def test_bugs_and_scenarios_are_listed() -> None:
    listed = CliRunner().invoke(sim, ["--list-bugs"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in BUGS)
    listed = CliRunner().invoke(sim, ["--list"])
    assert all(name in listed.output for name in SCENARIOS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scenario", "kill_the_masster"],
        ["--plant", "no-bug"],
        ["--replay", "3"],
        ["--swarm", "--scenario", KILL],
        ["--shrink"],
        ["--history", "-"],
        ["--schedule", "-"],
        ["--shrink", "--history", "-", "--replay", "1", "--scenario", KILL],
    ],
    ids=["scenario", "bug", "replay", "swarm", "shrink", "history", "schedule", "no history"],
)
def test_wrong_usage_ends_with_64_and_says_what_to_do(arguments: list[str]) -> None:
    done = CliRunner().invoke(sim, arguments)
    assert done.exit_code == 64
    assert "keelmq drill sim: " in done.output


@pytest.mark.sim
def test_a_replay_shows_what_happened_and_writes_the_history(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    done = CliRunner().invoke(sim, ["--scenario", KILL, "--replay", "1", "--history", str(history)])
    assert done.exit_code == 0, done.output
    assert "kill" in done.output
    assert "trace " in done.output
    assert len(history.read_text().splitlines()) > 500
    assert '"name":"process_started"' in history.read_text()


@pytest.mark.sim
def test_a_replay_begins_with_its_initial_state_and_has_a_line_for_every_start(tmp_path: Path) -> None:
    steps = [Step(300, faults.PowerFail("b1"), bind="x"), Step(310, faults.PowerFail("b2"))]
    mode = {"majorityAck": "true", "flushDiskType": "SYNC_FLUSH"}
    plan = Plan(steps, load_ms=400, broker=mode, swarm=True)
    schedule = tmp_path / "small.json"
    given = {"scenario": "swarm", "seed": 1, "bug": "skip_truncation", "plan": plan.to_json()}
    schedule.write_text(json.dumps(given))
    lines = CliRunner().invoke(sim, ["--replay", str(schedule)]).output.splitlines()
    assert "initial state: 3 brokers of broker-a, mode majority (of 3), SYNC_FLUSH" in lines
    named = {line.split()[0]: line for line in lines if ", broker_id " in line}
    assert sorted(named) == ["b1", "b2", "b3"]
    assert "127.0.2.2:10911" in named["b2"]
    told = [line.split(" ms")[1].split() for line in lines if " ms  " in line]
    for name in ("b1", "b2"):
        own = [what for who, what, *_ in told if who == name and what in ("power_fail", "process_started")]
        assert own == ["process_started", "power_fail", "process_started"]
        assert [name, "power_on"] in told
    assert told.index(["healed", "links=well", "broken_disks=none"]) < told.index(["b1", "power_on"])


def test_what_no_step_did_is_told_once_and_in_its_place() -> None:
    history, now_ms = History(), [1.0]
    changes = Changes(lambda: now_ms[0])
    changes.note("b1", "process_started")
    now_ms[0] = 3.0
    changes.note("b1", "process_started")
    changes.note("b2", "process_started")
    history.add(Happened(2.0, "b1", "kill"))
    history.add(Happened(3.0, "b1", "restart"))
    told = [(e.at_ms, e.node, e.name) for e in changes.among(history) if isinstance(e, Happened)]
    assert told == [
        (1.0, "b1", "process_started"),
        (2.0, "b1", "kill"),
        (3.0, "b1", "restart"),
        (3.0, "b2", "process_started"),
    ]


def test_a_message_that_a_violation_names_is_shown_where_it_was_answered() -> None:
    queue = Queue("chaos", "broker-a", 2)
    history = [Ok(5.0, "p0", key, queue, 7, 100, "127.0.2.2:10911") for key in ("p0-000001", "p0-000002")]
    violations = [Violation("lost", "p0-000002 acknowledged by 127.0.2.2:10911 is not in consumer")]
    (line,) = said.lines(history, violations, {"127.0.2.2:10911": "b2"})
    assert (
        line.split(" ms  ")[1] == "b2   answered OK: p0-000002 at chaos@broker-a/2 7 (a violation names it)"
    )


def test_a_step_shows_a_name_only_where_another_step_uses_it() -> None:
    steps = [
        Step(1, faults.Kill("b1"), bind="x1"),
        Step(2, faults.Kill("b2"), bind="x2"),
        Step(3, faults.Restart("=x2")),
    ]
    assert [line.endswith(")") for line in readable(steps)] == [False, True, False]


def test_a_schedule_of_before_is_read_with_its_former_names() -> None:
    data = Plan([], unsynced_excused=True).to_json()
    data["power_failures"] = data.pop("unsynced_excused")
    assert Plan.from_json(data).unsynced_excused


@pytest.mark.sim
def test_a_schedule_with_many_violations_is_told_once_how_to_be_run_again(tmp_path: Path) -> None:
    options = ["--plant", "skip_truncation", "--seeds", "1"]
    told = CliRunner().invoke(sim, [*options, "--json", str(tmp_path / "out.json")]).output
    assert told.count("--replay") == 1
    assert told.count("\n") > 3


def one(seed: int, *violations: Violation) -> Result:
    return Result("swarm", seed, None, "0", list(violations), {"send.ok": 1}, 1.0, 1.0)


def these(monkeypatch: pytest.MonkeyPatch, *results: Result, interrupted: bool = False) -> None:
    """The schedules end so, without a run."""

    def run_seeds(*given: object, **named: object) -> Iterator[Result]:
        yield from results
        if interrupted:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(commands, "run_seeds", run_seeds)


def test_seeds_begin_at_0() -> None:
    assert run_command(sim, ["--from", "-3"]) == USAGE


@pytest.mark.parametrize("others", [["--scenario", KILL], ["--swarm", "--plant", "skip_sync"]])
def test_the_report_of_a_swarm_is_replaced_by_no_other_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    these(monkeypatch, one(0))
    report = tmp_path / "swarm.json"
    SwarmReport().write(report)
    before = report.read_bytes()
    done = CliRunner().invoke(sim, [*others, "--json", str(report)])
    assert (done.exit_code, report.read_bytes()) == (64, before)
    assert "is the report of a swarm" in done.output


def test_a_swarm_that_is_told_to_end_keeps_what_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    these(monkeypatch, one(0), one(1), interrupted=True)
    report = tmp_path / "swarm.json"
    assert run_command(sim, ["--swarm", "--seeds", "5", "--json", str(report)]) == INTERRUPTED
    assert json.loads(report.read_text())["ranges"] == [[0, 2]]
    assert "2 schedules, 0 with violations" in capfd.readouterr().err


def of_code(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(commands, "named", lambda: name)


def test_a_swarm_says_of_which_code_it_is_and_other_code_adds_nothing_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "swarm.json"
    asked = ["--swarm", "--seeds", "2", "--json", str(report)]
    these(monkeypatch, one(0), one(1))
    of_code(monkeypatch, "c0ffee")
    done = CliRunner().invoke(sim, asked)
    assert (done.exit_code, json.loads(report.read_text())["commit"]) == (0, "c0ffee")
    before = report.read_bytes()
    of_code(monkeypatch, "c0ffee-changed.12345678")
    done = CliRunner().invoke(sim, asked)
    assert (done.exit_code, report.read_bytes()) == (64, before)
    assert "is of other code: c0ffee; this is c0ffee-changed.12345678. Name another file" in done.output


def test_a_swarm_with_nothing_left_to_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "swarm.json"
    asked = ["--swarm", "--seeds", "2", "--json", str(report)]
    of_code(monkeypatch, "c0ffee")
    these(monkeypatch, one(0), one(1))
    first = CliRunner().invoke(sim, asked)
    assert first.output.startswith("2 schedules, 0 with violations")
    these(monkeypatch)
    again = CliRunner().invoke(sim, asked)
    assert again.exit_code == 0
    assert f"nothing was left to run; in {report}, all of c0ffee: 2 schedules" in again.output
    these(monkeypatch, one(2))
    more = CliRunner().invoke(sim, ["--swarm", "--seeds", "3", "--json", str(report)])
    assert f"1 of them were run now; in {report}, all of c0ffee: 3 schedules" in more.output


def test_a_report_without_a_commit_is_not_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "swarm.json"
    old = SwarmReport()
    old.add(one(0))
    old.write(report)
    these(monkeypatch, one(1))
    done = CliRunner().invoke(sim, ["--swarm", "--seeds", "2", "--json", str(report)])
    assert done.exit_code == 64
    assert "is of a keelmq that did not note its code" in done.output
    assert SwarmReport.load(report).ranges == [(0, 1)]


def test_every_result_says_of_which_code_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_code(monkeypatch, "c0ffee")
    these(monkeypatch, one(0))
    out, schedule = tmp_path / "out.json", tmp_path / "small.json"
    CliRunner().invoke(sim, ["--scenario", KILL, "--seeds", "1", "--json", str(out)])
    assert json.loads(out.read_text())["commit"] == "c0ffee"
    given = tmp_path / "given.json"
    plan = Plan([], load_ms=100).to_json()
    given.write_text(json.dumps({"scenario": "swarm", "seed": 1, "bug": None, "plan": plan}))
    done = CliRunner().invoke(sim, ["--replay", str(given), "--schedule", str(schedule), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert [json.loads(path.read_text())["commit"] for path in (schedule, out)] == ["c0ffee"] * 2


@pytest.mark.parametrize("options", [["--swarm"], ["--scenario", KILL]])
@pytest.mark.parametrize(("broken", "code"), [(True, 2), (False, 3)])
def test_a_result_that_cannot_be_written_hides_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], broken: bool, code: int
) -> None:
    these(monkeypatch, one(0, *([Violation("lost", "gone")] if broken else [])))

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    out = tmp_path / "out.json"
    done = CliRunner().invoke(sim, [*options, "--json", str(out)])
    assert done.exit_code == code
    assert f"{out} was not written: No space left on device" in done.output
    assert f"1 schedules, {int(broken)} with violations" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changed", [{"coverage": {"send.ok": "many"}}, {"coverage": 3}, {"violations": [{"seed": "x"}]}]
)
def test_a_report_with_a_text_for_a_count_is_refused_in_one_line(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    report = tmp_path / "swarm.json"
    report.write_text(json.dumps({**SwarmReport().to_json(), **changed}))
    done = CliRunner().invoke(sim, ["--swarm", "--seeds", "1", "--json", str(report)])
    assert done.exit_code == 64
    assert "is no report of the swarm" in done.output
    assert done.output.count("\n") == 1


def test_a_planted_bug_that_is_not_found_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    these(monkeypatch, one(0))
    done = CliRunner().invoke(sim, ["--plant", "skip_sync", "--seeds", "1"])
    assert done.exit_code == 3
    assert "skip_sync was NOT found after 1 seed; more seeds may find it: --seeds 300\n" in done.output


def test_a_schedule_with_a_text_for_a_count_is_refused(tmp_path: Path) -> None:
    schedule = tmp_path / "small.json"
    schedule.write_text('{"scenario": "swarm", "seed": 1, "plan": {"steps": [], "load_ms": "long"}}')
    done = CliRunner().invoke(sim, ["--replay", str(schedule)])
    assert done.exit_code == 64
    assert "Expected `int`, got `str` - at `$.load_ms`" in done.output


def test_a_replay_says_what_is_planted_and_a_shrink_that_nothing_fails(tmp_path: Path) -> None:
    schedule = tmp_path / "small.json"
    given = {"scenario": "swarm", "seed": 1, "bug": "skip_sync", "plan": Plan([], load_ms=100).to_json()}
    schedule.write_text(json.dumps(given))
    assert "planted: skip_sync" in CliRunner().invoke(sim, ["--replay", str(schedule)]).output
    schedule.write_text(json.dumps({**given, "bug": None}))
    done = CliRunner().invoke(sim, ["--replay", str(schedule), "--shrink"])
    assert "breaks no promise" in done.output
    assert "planted" not in done.output
