"""The promise of a broker whose disk hangs: it does not keep the group from those that are well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaos.scenarios.majorities import MAJORITY
from chaos.sim import disk
from chaos.sim.cluster import SimCluster
from tests.sim.kept import TWO, Kept, on_disk
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim

ASYNC = {"flushDiskType": "ASYNC_FLUSH"}
FOR_EVER_S = 1e6


@contextmanager
def hung(cluster: SimCluster, name: str) -> Iterator[None]:
    """What is offloaded there never ends, and who syncs on the loop stands still with it."""
    machine, syncs, names = cluster.nodes[name].machine, disk.SimFile.sync, disk.SimDisk.sync_dir
    machine.faults.slow_s = FOR_EVER_S

    def sync(file: disk.SimFile) -> None:
        if file._machine is machine:
            cluster.pause(name)
        syncs(file)

    def sync_dir(of: disk.SimDisk, path: str) -> None:
        if of.machine is machine:
            cluster.pause(name)
        names(of, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk.SimFile, "sync", sync)
        patch.setattr(disk.SimDisk, "sync_dir", sync_dir)
        yield


def by_id(cluster: SimCluster) -> list[str]:
    """Of equal logs the first one's leads."""
    return sorted(cluster.of_group(), key=lambda name: cluster.nodes[name].server.role.broker_id)  # type: ignore[union-attr]


@simulated(lambda: World(0, ASYNC))
async def test_an_elected_broker_whose_disk_hangs_goes_on_to_say_so(world: World) -> None:
    """It wrote its epoch on the loop, and with the loop its heartbeats ended: only it might lead then."""
    cluster, old = world.cluster, world.cluster.master()
    assert old is not None
    first, second = (name for name in by_id(cluster) if name != old)
    with hung(cluster, first):
        elections = len(world.times("master_elected"))
        await asyncio.sleep(1)
        assert len(cluster.members()) == 3, "it acknowledges from memory"
        cluster.kill(old)
        assert await cluster.until(lambda: None if cluster.master() == second else "not yet", 10.0) is None
        assert len(world.times("master_elected")) > elections + 1, "the other one was elected first"
        assert cluster.nodes[first].state == "up", "it writes nothing on its loop"


@pytest.mark.parametrize("mode", [{}, MAJORITY, TWO], ids=["all", "majority", "counted"])
@simulated(lambda mode: Kept(1, {**mode, **ASYNC}))
async def test_after_a_loss_of_power_of_all_another_leads_than_the_one_whose_disk_hangs(
    world: Kept, mode: dict[str, str]
) -> None:
    """All were suspect, and the one that was elected none any more: only it might lead, again and again."""
    cluster = world.cluster
    world.send_on()
    await asyncio.sleep(2)
    world.quiet = True
    await asyncio.sleep(1)
    names = by_id(cluster)
    for name in names:
        cluster.power_fail(name)
    for name in names:
        cluster.power_on(name)
    first, *others = names
    cluster.start(first)
    await asyncio.sleep(2)
    with hung(cluster, first):
        for name in others:
            cluster.start(name)

        def another_leads() -> str | None:
            return None if cluster.master() in others else f"{cluster.master()} leads"

        assert await cluster.until(another_leads, 20.0) is None
        master = cluster.master()
        assert master is not None
        assert not set(world.acked) - world.stored_by_log(master) - lost_by_all(world, names)


def lost_by_all(world: Kept, names: list[str]) -> set[int]:
    """What no machine has on its disk: their power failed before a sync."""
    return set(world.acked).difference(*(on_disk(world, name) for name in names))
