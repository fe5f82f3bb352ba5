"""The promise of a group on a full disk: the master refuses with code 14, what was taken is replicated and
confirmed, a slave that has space takes over (``test_stranded_master``), and writes are taken again."""

from __future__ import annotations

import asyncio

import pytest

from model.codes import Response
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", range(3))
@simulated(World)
async def test_a_full_master_refuses_and_its_slaves_get_all_it_took(world: World, seed: int) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    await asyncio.sleep(1)
    assert world.times("master_elected")
    machine = cluster.nodes[master].machine
    machine.faults.full = True
    full_ms = cluster.clock()
    await asyncio.sleep(5)
    assert Response.SERVICE_NOT_AVAILABLE in world.codes(full_ms)
    successor = cluster.master()
    assert successor not in (None, master)
    stores = [node.server.store for node in cluster.of("broker")]  # type: ignore[union-attr]
    assert len({(store.log.end, store.dispatched) for store in stores}) == 1
    assert successor is not None
    world.send_to(successor)
    again_ms = cluster.clock()
    await asyncio.sleep(1)
    assert 0 in world.codes(again_ms)
    machine.faults.full = False
    assert await cluster.until(cluster.converged, 20.0) is None
