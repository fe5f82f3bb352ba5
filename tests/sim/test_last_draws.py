"""What the swarm draws last changes no other seed, and brings what it is there for."""

from __future__ import annotations

import random

import pytest

from chaos.drills.simulated.run import run_plan
from chaos.faults import DiskFull, Look, Step
from chaos.scenarios import Plan, find, swarm
from chaos.scenarios.last_draws import FILLS_BODY_BYTES, with_a_disk_that_fills
from model.errors import DiskError
from store.files.commit_log import CommitLog
from store.files.segment import Segment

RUNS_MAX = 30


def _fills(plan: Plan) -> bool:
    return any(step.bind.startswith("fills") for step in plan.steps)


def test_a_disk_that_fills_is_drawn_in_some_seeds_and_changes_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swarm, "draw_later", lambda plan, rest: None)  # about when one of all steps is due
    plans = [find("swarm").drawn(seed) for seed in range(400)]
    monkeypatch.setattr(swarm, "FILLS_SHARE", 0.0)
    alone = [find("swarm").drawn(seed) for seed in range(400)]
    filled = 0
    for plan, other in zip(plans, alone, strict=True):
        if not _fills(plan):
            assert plan.to_json() == other.to_json()
            continue
        filled += 1
        former = [step.to_json() for step in other.steps]
        added = [step for step in plan.steps if step.to_json() not in former]
        assert [step.to_json() for step in plan.steps if step not in added] == former
        assert {step.fault.name for step in added} == {"disk_full", "slow_disk"}
        full = [step.fault.full for step in added if isinstance(step.fault, DiskFull)]
        assert full.count(True) == full.count(False)
        assert plan.load.body_bytes in FILLS_BODY_BYTES
        assert not plan.set_kept
    assert 0.04 < filled / len(plans) < 0.12


@pytest.mark.sim
def test_a_write_itself_meets_the_lack_of_space_at_a_master_and_at_a_slave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mostly the segment ahead is found to have no room, and no write is tried."""
    met: set[str] = set()
    take = CommitLog._take
    roll, append = CommitLog.roll, CommitLog.append

    def told(log: CommitLog, start: int) -> Segment:
        try:
            return take(log, start)
        except DiskError as error:
            if "no space" in str(error):
                met.add(doing[-1])
            raise

    doing: list[str] = []

    def rolling(log: CommitLog) -> None:
        doing.append("roll")
        try:
            roll(log)
        finally:
            doing.pop()

    def appending(log: CommitLog, *args: object) -> None:
        doing.append("append")
        try:
            append(log, *args)  # type: ignore[arg-type]
        finally:
            doing.pop()

    monkeypatch.setattr(CommitLog, "_take", told)
    monkeypatch.setattr(CommitLog, "roll", rolling)
    monkeypatch.setattr(CommitLog, "append", appending)
    for number in range(RUNS_MAX):
        plan = Plan([Step(800, Look("master"))], load_ms=1500, swarm=True)
        with_a_disk_that_fills(plan, random.Random(number))
        result = run_plan("swarm", number, plan, None, None)
        assert result.violations == [], number
        if met == {"roll", "append"}:
            return
    pytest.fail(f"only {met} met it in {RUNS_MAX} runs")
