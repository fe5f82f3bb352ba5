"""The promise of ``minInSyncReplicas``: OK means so many copies, also when a slave dies."""

from __future__ import annotations

import asyncio

import pytest

from model.codes import Response
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", range(3))
@simulated(lambda seed: World(seed, {"minInSyncReplicas": "2"}))
async def test_a_write_under_way_when_the_last_slave_dies_is_not_answered_ok_with_one_copy(
    world: World, seed: int
) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    first, last = [node.name for node in cluster.of("broker") if node.name != master]
    cluster.kill(first)
    assert await cluster.until(lambda: None if len(cluster.members()) == 2 else "three members", 10) is None
    world.send_to(master)
    await asyncio.sleep(0.5)
    assert {code for _, code in world.answers} == {Response.SUCCESS}
    cut_ms, answered = cluster.clock(), len(world.answers)
    # The last slave hears nothing more, then its process dies: only the master has what comes now.
    cluster.cut(master, last, "out")
    await asyncio.sleep(0.3)
    copied, waiting = cluster.status(last), cluster.status(master)
    assert copied is not None
    assert waiting is not None
    assert waiting["parked"]
    cluster.kill(last)
    cluster.fabric.reset(cluster.nodes[master].host, cluster.nodes[last].host)
    await asyncio.sleep(4)
    status = cluster.status(master)
    assert status is not None
    assert status["syncStateSet"] == [status["brokerId"]]
    assert status["maxOffset"] > copied["maxOffset"]
    under_way = [code for begun_ms, code in world.answers if cut_ms < begun_ms]
    assert under_way
    assert Response.SUCCESS not in under_way
    # It may have begun just before the cut.
    assert Response.FLUSH_SLAVE_TIMEOUT in [code for _, code in world.answers[answered:]]
