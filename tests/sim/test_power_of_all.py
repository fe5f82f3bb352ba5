"""What docs/replication-modes.md says of *asynchronous* and *counted* when all brokers lose power at once."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from model.errors import DiskError
from store.files.record import is_torn, walk
from tests.sim.kept import TWO, Kept, Mode
from tests.sim.world import simulated

pytestmark = pytest.mark.sim

ASYNC: Mode = {"brokerRole": "ASYNC_MASTER"}
ONE: Mode = {"allAckInSyncStateSet": "false", "inSyncReplicas": "1"}
SYNCED: Mode = {"flushDiskType": "SYNC_FLUSH"}
UNSYNCED: Mode = {"flushDiskType": "ASYNC_FLUSH"}


async def power_fails_while_slaves_are_behind(
    world: Kept, behind: int = 2
) -> tuple[str, list[str], set[int]]:
    """The master, its slaves, and what was acknowledged that the first ``behind`` of these do not have."""
    cluster, master = world.cluster, world.cluster.master()
    assert master is not None
    slaves = sorted(node.name for node in cluster.of("broker") if node.name != master)
    world.send_on()
    await asyncio.sleep(2)
    for name in slaves[:behind]:
        cluster.cut(master, name, "out")
    await asyncio.sleep(0.2)
    world.quiet = True
    await asyncio.sleep(0.02)
    alone = set(world.acked).difference(*(world.stored_by_log(name) for name in slaves[:behind]))
    for name in (master, *slaves):
        cluster.power_fail(name)
    cluster.fabric.heal_all()
    for name in (master, *slaves):
        cluster.power_on(name)
    assert alone, "the slaves had everything"
    return master, slaves, alone


def on_disk(world: Kept, name: str) -> set[int]:
    """The numbers of the messages whose records are whole there, up to the first that is not."""
    machine, found = world.cluster.nodes[name].machine, set[int]()
    for path in machine.paths("/store/commitlog/"):
        content, start, at = machine.content(path), int(path.rpartition("/")[2]), 0
        with contextlib.suppress(DiskError):
            for record in walk(content, start):
                if is_torn(content[at : at + record.size], record.physical_offset):
                    return found
                at += record.size
                if bytes(record.body).startswith(b"m"):
                    found.add(int(bytes(record.body)[1:]))
    return found


async def lost(world: Kept) -> set[int]:
    """Of what was acknowledged, at whoever leads once all are there."""
    assert await world.cluster.until(world.cluster.converged, 30.0) is None
    master = world.cluster.master()
    assert master is not None
    return set(world.acked) - world.stored_by_log(master)


@pytest.mark.parametrize("mode", [ASYNC, ONE], ids=["asynchronous", "counted by one"])
@pytest.mark.parametrize("first", [True, False])
@simulated(lambda mode: Kept(1, {**mode, **SYNCED}))
async def test_with_sync_flush_the_end_that_no_slave_has_is_kept_where_the_master_is_back_first(
    world: Kept, first: bool, mode: Mode
) -> None:
    master, slaves, alone = await power_fails_while_slaves_are_behind(world)
    if first:
        world.start(master)
        await asyncio.sleep(2)
    for name in slaves:
        world.start(name)
    await asyncio.sleep(5)
    if not first:
        assert world.cluster.master() in slaves, "no one of them is suspect"
        world.start(master)
    assert await lost(world) == (set() if first else alone)


@pytest.mark.parametrize("first", [True, False])
@simulated(lambda: Kept(1, {**TWO, **SYNCED}))
async def test_counted_by_two_with_sync_flush_what_two_have_is_kept_where_one_of_them_is_back_first(
    world: Kept, first: bool
) -> None:
    _, (behind, has), of_two = await power_fails_while_slaves_are_behind(world, 1)
    world.start(has if first else behind)
    await asyncio.sleep(5)
    assert world.cluster.master() == (has if first else behind), "it is not suspect"
    for node in world.cluster.of("broker"):
        if not node.running:
            world.start(node.name)
    assert await lost(world) == (set() if first else of_two)


@pytest.mark.parametrize("mode", [ASYNC, ONE, TWO], ids=["asynchronous", "counted by one", "by two"])
@simulated(lambda mode: Kept(2, {**mode, **UNSYNCED}))
async def test_with_async_flush_the_group_waits_for_all_and_loses_what_was_on_no_disk(
    world: Kept, mode: Mode
) -> None:
    master, slaves, _ = await power_fails_while_slaves_are_behind(world, 1 if mode is TWO else 2)
    kept = set.union(*(on_disk(world, name) for name in (master, *slaves)))
    assert kept < set(world.acked), "there is something to lose"
    for name in slaves:
        world.start(name)
    await asyncio.sleep(5)
    assert world.cluster.master() is None, "each is suspect"
    world.start(master)
    assert await lost(world) == set(world.acked) - kept
