"""The promise of the simulation: it judges logs whose segments are larger than what it reads at once."""

from __future__ import annotations

from chaos import faults
from chaos.drills.simulated.run import run_plan
from chaos.faults import then
from chaos.scenarios.plan import Plan
from chaos.sim.story import Story
from chaos.workload import Load

PIECE_BYTES = 1 << 20


def test_a_log_is_read_by_records_whatever_is_read_of_it_at_once() -> None:
    """Two MiB of bodies in one segment: a piece ends inside of a record."""
    plan = Plan(
        then(500, faults.Kill("slave"), 300, faults.Restart, "s"),
        load=Load(producers=3, per_second=30.0, queues=1, body_bytes=(8000, 24000)),
        load_ms=1500,
        broker={"mappedFileSizeCommitLog": str(4 << 20)},
    )
    logs: list[int] = []

    def keep(story: Story) -> None:
        logs.extend(len(log.data) for log in story.evidence.logs)

    result = run_plan("long_segments", 0, plan, None, keep)
    assert result.violations == []
    assert len(logs) == 3
    assert min(logs) > PIECE_BYTES
