"""The promise of the cluster: whatever a scenario breaks, what was acknowledged is there, once, in order."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.bugs import BUGS, planted
from chaos.history import History
from chaos.scenarios import SCENARIOS, find
from chaos.simrun import run_seed, run_seeds, summary
from chaos.worlds.sim_story import Story

KILL = "kill_the_master_under_load"
BUG_SEEDS_MAX = 12
"""Each planted bug is found within so many seeds of the scenario that suits it."""
SUITS = {
    "ack_before_replication": KILL,
    "skip_truncation": KILL,
    "reuse_offset": KILL,
}


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(4))
def test_killing_the_master_loses_nothing(seed: int) -> None:
    result = run_seed(KILL, seed)
    assert result.violations == [], result.replay
    assert result.coverage["fault.kill"] >= 1
    assert result.coverage["send.ok"] > 100
    assert result.coverage["event.master_elected"] >= 2


@pytest.mark.sim
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != KILL])
def test_every_scenario_keeps_every_promise(scenario: str) -> None:
    result = run_seed(scenario, 1)
    assert result.violations == [], result.replay
    assert result.coverage["send.ok"] > 50


@pytest.mark.sim
def test_one_seed_is_one_trace_and_one_history() -> None:
    seen: list[tuple[str, History]] = []
    for _ in range(2):
        histories: list[History] = []
        result = run_seed(KILL, 7, keep=lambda run, to=histories: to.append(run.history))  # type: ignore[misc]
        seen.append((result.trace, histories[0]))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1].events == seen[1][1].events
    assert run_seed(KILL, 8).trace != seen[0][0]


@pytest.mark.sim
def test_a_trace_does_not_depend_on_the_process_nor_on_its_hash_seed() -> None:
    code = f"from chaos.simrun import run_seed; print(run_seed({KILL!r}, 5).trace)"
    root = Path(__file__).parents[2]
    traces = {run_seed(KILL, 5).trace}
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
        )
        traces.add(done.stdout.strip().splitlines()[-1])
    assert len(traces) == 1


@pytest.mark.sim
@pytest.mark.parametrize("bug", list(BUGS))
def test_each_planted_bug_is_found(bug: str) -> None:
    for seed in range(BUG_SEEDS_MAX):
        result = run_seed(SUITS[bug], seed, bug)
        if result.violations:
            assert bug in result.replay
            return
    pytest.fail(f"{bug} was not found within {BUG_SEEDS_MAX} seeds of {SUITS[bug]}")


def test_a_bug_is_gone_after_its_run() -> None:
    for name, bug in BUGS.items():
        original = bug.owner.__dict__[bug.name]
        with planted(name):
            assert bug.owner.__dict__[bug.name] is not original
        assert bug.owner.__dict__[bug.name] is original
    with pytest.raises(KeyError, match="no bug"), planted("nothing"):
        pass


@pytest.mark.sim
def test_a_summary_counts_seeds_and_names_replays() -> None:
    results = list(run_seeds([KILL], range(2), bug="ack_before_replication"))
    found = summary(results, 2.0)
    assert found["seeds"] == 2
    assert found["schedules_per_second"] == 1.0
    assert found["coverage"]["fault.kill"] >= 2
    for violation in found["violations"]:
        assert violation["replay"] == (
            f"keelmq drill sim --replay {violation['seed']} --scenario {KILL} --plant ack_before_replication"
        )


def test_a_plan_depends_on_its_seed_alone() -> None:
    for name in SCENARIOS:
        plan = find(name).plan
        assert plan(random.Random("x")).to_json() == plan(random.Random("x")).to_json()
        assert len({str(plan(random.Random(seed)).to_json()) for seed in range(6)}) > 1


def test_a_scenario_there_is_not_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError, match=KILL):
        find("kill_master_under_load")


def test_a_run_keeps_its_history_for_a_look() -> None:
    kept: list[int] = []

    def keep(run: Story) -> None:
        kept.append(len(run.history))

    run_seed(KILL, 2, keep=keep)
    assert kept[0] > 500
