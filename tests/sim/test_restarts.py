"""The promise of the simulated world: a process that is asked to start does so, however slow its stop is."""

from __future__ import annotations

import pytest

from chaos.drills.simulated.run import run_seed
from chaos.faults import Restart, Step
from chaos.sim.faults import Nemesis
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim


@simulated(lambda: World(5))
async def test_a_start_asked_for_during_an_orderly_stop_comes_when_it_has_ended(world: World) -> None:
    cluster = world.cluster
    node, nemesis = cluster.nodes["b2"], Nemesis(cluster, [])
    starts = node.starts
    assert cluster.stop("b2") is not None
    nemesis.act(Step(0, Restart("b2")))
    assert node.starts == starts, "two processes would have one store"
    assert await cluster.until(lambda: None if node.starts > starts else "not started", 10.0) is None
    assert await cluster.until(cluster.converged, 20.0) is None
    assert node.starts == starts + 1
    assert nemesis.done == {"restart": 1}


@simulated(lambda: World(5))
async def test_a_power_failure_during_the_stop_takes_the_start_back(world: World) -> None:
    cluster = world.cluster
    assert cluster.stop("b2") is not None
    cluster.start("b2")
    cluster.power_fail("b2")
    assert await cluster.until(lambda: None if cluster.nodes["b2"].state != "off" else "off", 5.0) == "off"
    cluster.power_on("b2")
    cluster.start("b2")
    assert await cluster.until(cluster.converged, 20.0) is None


def test_a_rolling_restart_with_slow_stops_restarts_every_broker() -> None:
    """The restarts of this seed came while the stops were under way; they were dropped, and of three brokers
    the one that had all messages stayed down."""
    result = run_seed("a_rolling_restart_loses_nothing", 900013)
    assert result.violations == []
    assert result.coverage["fault.restart"] == 3
