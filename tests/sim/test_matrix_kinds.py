"""The promise of faults that no seed of the swarm draws: the simulated world carries them out, and heals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.drills.simulated.run import quietly, run_plan
from chaos.history import History
from chaos.scenarios import Plan
from chaos.scenarios.matrix import plan
from chaos.sim.cluster import SimCluster, WorldConfig
from chaos.sim.story import Story


def ran(kind: str, drawn: Plan) -> tuple[list[str], dict[str, int]]:
    """What was broken, and which faults struck how often."""
    done: dict[str, int] = {}

    def keep(story: Story) -> None:
        done.update(story.nemesis.done)

    with quietly():
        result = run_plan(f"matrix/{kind}/default", 1, drawn, None, keep)
    return [f"{one.checker}: {one.text}" for one in result.violations], done


@pytest.mark.parametrize("kind", ["lose_packets", "reorder_packets", "narrow_links"])
def test_a_cluster_behind_bad_links_keeps_its_promises_and_heals(kind: str) -> None:
    assert ran(kind, plan(kind, "default", 1, 1)) == ([], {kind: 1, "heal": 1})


def test_a_cluster_heals_from_a_lack_of_descriptors_that_no_step_ends() -> None:
    drawn = plan("no_descriptors", "default", 1, 1)
    assert ran("no_descriptors", replace(drawn, steps=drawn.steps[:1])) == ([], {"no_descriptors": 1})


def test_whoever_starts_a_process_it_has_descriptors_and_so_has_all_that_is_revived() -> None:
    cluster = SimCluster(1, WorldConfig(), History())
    try:
        down, up = cluster.nodes["b1"].machine.faults, cluster.nodes["b2"].machine.faults
        cluster.start("b2")
        down.no_descriptors = up.no_descriptors = True
        cluster.start("b2")
        assert up.no_descriptors, "it runs already"
        cluster.start("b1")
        assert not down.no_descriptors
        cluster.revive()
        assert not up.no_descriptors
    finally:
        cluster.close()
