"""The promise of a broker whose disk hangs: it does not keep the group from those that are well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaos.scenarios.majorities import MAJORITY
from chaos.sim import disk
from chaos.sim.cluster import SimCluster
from tests.sim.world import World, by_id, simulated

pytestmark = pytest.mark.sim

ASYNC = {"flushDiskType": "ASYNC_FLUSH"}
FOR_EVER_S = 1e6


@contextmanager
def hung(cluster: SimCluster, name: str) -> Iterator[list[float]]:
    """What is offloaded there never ends, and who syncs on the loop stands still with it: when that was."""
    stood: list[float] = []
    machine, syncs, names = cluster.nodes[name].machine, disk.SimFile.sync, disk.SimDisk.sync_dir
    machine.faults.slow_s = FOR_EVER_S

    def sync(file: disk.SimFile) -> None:
        if file._machine is machine:
            stood.append(cluster.clock())
            cluster.pause(name)
        syncs(file)

    def sync_dir(of: disk.SimDisk, path: str) -> None:
        if of.machine is machine:
            stood.append(cluster.clock())
            cluster.pause(name)
        names(of, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.SimFile, "sync", sync)
        patch.setattr(disk.SimDisk, "sync_dir", sync_dir)
        yield stood


@simulated(lambda: World(0, ASYNC))
async def test_an_elected_broker_whose_disk_hangs_goes_on_to_say_so(world: World) -> None:
    """It wrote its epoch on the loop, and with the loop its heartbeats ended: only it might lead then."""
    cluster, old = world.cluster, world.cluster.master()
    assert old is not None
    first, second = (name for name in by_id(cluster) if name != old)
    with hung(cluster, first) as stood:
        elections = len(world.times("master_elected"))
        await asyncio.sleep(1)
        assert len(cluster.members()) == 3, "it acknowledges from memory"
        cluster.kill(old)
        assert await cluster.until(lambda: None if cluster.master() == second else "not yet", 10.0) is None
        assert len(world.times("master_elected")) > elections + 1, "the other one was elected first"
        # As the other one's slave it may forget epochs on its loop: the group has a master by then.
        assert [at_ms for at_ms in stood if at_ms <= world.times("master_elected")[-1]] == [], "on its loop"


@pytest.mark.parametrize("mode", [{}, MAJORITY], ids=["all", "majority"])
@pytest.mark.parametrize("slow_s", [0.9, 1.2, 3])
@simulated(lambda slow_s, mode: World(0, {**mode, **ASYNC}))
async def test_brokers_whose_disks_are_all_slow_get_a_master(
    world: World, slow_s: float, mode: dict[str, str]
) -> None:
    """None had a write that began and ended within the bound: each asked for another one, for ever."""
    cluster, old = world.cluster, world.cluster.master()
    assert old is not None
    for name in cluster.of_group():
        cluster.nodes[name].machine.faults.slow_s = slow_s
    await asyncio.sleep(5)
    assert cluster.master() == old
    elections = len(world.times("master_elected"))
    cluster.kill(old)
    assert await cluster.until(lambda: None if cluster.master() not in (None, old) else "none", 30.0) is None
    assert len(world.times("master_elected")) <= elections + 3
    await asyncio.sleep(20)
    assert len(world.times("master_elected")) <= elections + 3, "it leads on"
