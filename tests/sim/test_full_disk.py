"""The promise of a group on a full disk: the master refuses with code 14, what was taken is replicated and
confirmed, no election follows, and writes are taken again when there is space."""

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
    elections = len(world.times("master_elected"))
    assert elections
    machine = cluster.nodes[master].machine
    machine.faults.full = True
    full_ms = cluster.clock()
    await asyncio.sleep(5)
    assert Response.SERVICE_NOT_AVAILABLE in world.codes(full_ms)
    refused_ms = cluster.clock()
    await asyncio.sleep(1)
    assert world.codes(refused_ms) == {Response.SERVICE_NOT_AVAILABLE}
    stores = [node.server.store for node in cluster.of("broker")]  # type: ignore[union-attr]
    assert len({(store.log.end, store.dispatched) for store in stores}) == 1
    machine.faults.full = False
    await asyncio.sleep(3)
    again_ms = cluster.clock()
    await asyncio.sleep(1)
    assert world.codes(again_ms) == {0}
    assert (cluster.master(), len(world.times("master_elected"))) == (master, elections)
    assert await cluster.until(cluster.converged, 20.0) is None
