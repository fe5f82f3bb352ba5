"""The promise of SYNC_FLUSH to a majority: one that was elected for bytes that only its memory had, and lost
its power before it led, does not lead without them."""

from __future__ import annotations

import asyncio

import pytest

from broker.membership import heartbeats
from broker.requests.operators import admin
from broker.role.machine import RoleMachine
from store.message_store import MessageStore
from tests.sim.kept import MAJORITY, Kept
from tests.sim.world import simulated

pytestmark = pytest.mark.sim

SYNCED = {**MAJORITY, "flushDiskType": "SYNC_FLUSH"}


def _as_it_is_in_memory(store: MessageStore, **_: bool) -> int:
    return store.log.end


async def _elected_for_its_memory(world: Kept) -> None:
    cluster, old = world.cluster, world.cluster.master()
    assert old is not None
    world.send_on()
    await asyncio.sleep(1)
    left = [node.name for node in cluster.of("broker") if node.name != old]
    left.sort(key=lambda name: world.broker(name).role.broker_id or 0)
    slow, quick = left
    cluster.nodes[slow].machine.faults.slow_s = 30.0
    await asyncio.sleep(0.5)
    world.quiet = True
    await asyncio.sleep(0.5)
    log, other = world.broker(slow).store.log, world.broker(quick).store.log
    assert log.flushed < log.end == other.end == other.flushed, "of equal logs the smaller id leads"
    elections = len(world.times("master_elected"))
    cluster.kill(old)
    for _ in range(20_000):
        if len(world.times("master_elected")) > elections:
            break
        await asyncio.sleep(0.0005)
    else:
        raise AssertionError("nobody is elected")
    everything = [node.name for node in [*cluster.of("namesrv"), *cluster.of("broker")]]
    for name in everything:
        cluster.power_fail(name)
    await asyncio.sleep(1)
    for name in everything:
        cluster.power_on(name)
        world.start(name) if name in world.modes else cluster.start(name)
    await world.settled()


@pytest.mark.parametrize("memory_counts", [False, True])
@simulated(lambda: Kept(0, SYNCED))
async def test_one_that_was_elected_before_its_start_leads_no_log_that_lacks_what_was_acknowledged(
    world: Kept, memory_counts: bool
) -> None:
    """Twice kept: an election hears of what is on disks, and one elected before its start asks anew."""
    with pytest.MonkeyPatch.context() as patch:
        if memory_counts:
            for module in (heartbeats, admin):
                patch.setattr(module, "reported_end", _as_it_is_in_memory)
        await _elected_for_its_memory(world)


@simulated(lambda: Kept(0, SYNCED))
async def test_without_both_rules_it_does(world: Kept) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (heartbeats, admin):
            patch.setattr(module, "reported_end", _as_it_is_in_memory)
        patch.setattr(RoleMachine, "on_known", lambda *_: None)
        with pytest.raises(AssertionError, match="lacks"):
            await _elected_for_its_memory(world)
