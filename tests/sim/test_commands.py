"""The promise of ``keelmq drill sim``: exit codes and JSON that scripts can rely on."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.bugs import BUGS
from chaos.drills.sim_commands import sim
from chaos.scenarios import SCENARIOS

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
    arguments = ["--scenario", KILL, "--seeds", "2", "--plant", "ack_before_replication", "--json", str(out)]
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
    [["--scenario", "kill_the_masster"], ["--plant", "no-bug"], ["--replay", "3"]],
    ids=["scenario", "bug", "replay"],
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


@pytest.mark.sim
def test_a_schedule_with_many_violations_is_told_once_how_to_be_run_again(tmp_path: Path) -> None:
    options = ["--plant", "skip_truncation", "--seeds", "1"]
    told = CliRunner().invoke(sim, [*options, "--json", str(tmp_path / "out.json")]).output
    assert told.count("--replay") == 1
    assert told.count("\n") > 3
