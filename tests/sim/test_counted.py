"""The promise of mode *counted* with n=2: the furthest member is elected, also when it is slow to say so.

One that is silent for longer than the heartbeat timeout (1.5 s) has died as far as its group knows, and
docs/replication-modes.md says what may go then. It is silent for up to a heartbeat (0.5 s) longer than it
stood still.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.kept import TWO, Kept
from tests.sim.world import simulated

pytestmark = pytest.mark.sim


async def one_is_behind(world: Kept, after_s: float = 0.012) -> tuple[str, str, str]:
    """The master, a member that lacks what was acknowledged last, and the only slave that has it."""
    cluster, master = world.cluster, world.cluster.master()
    assert master is not None
    behind, furthest = sorted(node.name for node in cluster.of("broker") if node.name != master)
    world.send_on(every_s=0.02)
    await asyncio.sleep(1)
    cluster.cut(master, behind, "out")  # it is a member for 1.5 s more
    await asyncio.sleep(0.12)
    world.quiet = True
    await asyncio.sleep(after_s)
    assert len(cluster.members()) == 3
    assert set(world.acked) - world.stored_by_log(behind), "the one that is behind has everything"
    return master, behind, furthest


@simulated(lambda: Kept(1, TWO))
async def test_a_master_that_lost_power_and_asks_for_its_epoch_leaves_out_no_silent_member(
    world: Kept,
) -> None:
    """It is back as a suspect after 0.15 s, and asks; the furthest says nothing for a second."""
    cluster = world.cluster
    master, _, furthest = await one_is_behind(world)
    cluster.pause(furthest)
    cluster.power_fail(master)
    cluster.fabric.heal_all()
    await asyncio.sleep(0.15)
    cluster.power_on(master)
    world.start(master)
    await asyncio.sleep(0.85)
    cluster.resume(furthest)
    await asyncio.sleep(4)
    assert cluster.master() == furthest
    await world.settled()


@simulated(lambda: Kept(1, TWO))
async def test_the_end_of_a_connection_is_no_death_of_the_furthest(world: Kept) -> None:
    cluster = world.cluster
    master, _, furthest = await one_is_behind(world)
    cluster.pause(furthest)
    cluster.kill(master)
    await asyncio.sleep(0.02)
    for node in cluster.of("namesrv"):
        cluster.fabric.reset(cluster.nodes[furthest].host, node.host)
    await asyncio.sleep(1.18)
    cluster.resume(furthest)
    cluster.fabric.heal_all()
    await asyncio.sleep(4)
    assert cluster.master() == furthest
    world.start(master)
    await world.settled()


@simulated(lambda: Kept(1, {**TWO, "flushIntervalCommitLog": "100"}))
async def test_the_furthest_leads_though_it_left_the_set_as_it_may_have_forgotten(world: Kept) -> None:
    """Its machine lost power after a flush, so it forgot nothing; the master dies before anybody else has the
    end of it."""
    cluster = world.cluster
    master, behind, furthest = await one_is_behind(world, after_s=0.4)
    cluster.power_fail(furthest)
    await asyncio.sleep(0.05)
    cluster.power_on(furthest)
    world.start(furthest)
    for _ in range(2000):
        if len(world.group().members) < 3:
            break
        await asyncio.sleep(0.0005)
    assert world.group().suspect, "it is a member yet"
    cluster.kill(master)
    cluster.cut(behind, furthest)
    await asyncio.sleep(4)
    cluster.fabric.heal_all()
    await asyncio.sleep(2)
    assert cluster.master() == furthest
    world.start(master)
    await world.settled()


@pytest.mark.parametrize(
    ("pause_ms", "cut_s", "after_s"),
    # The last two: what the one that is behind said last is as old as what the furthest one said.
    [(0, 0.7, 0.1), (500, 0.7, 0.1), (1000, 0.7, 0.1), (1250, 0.12, 0.012), (1000, 0.12, 0.112)],
)
def test_the_only_slave_that_has_the_last_acknowledged_record_leads_though_it_stood_still(
    pause_ms: int, cut_s: float, after_s: float
) -> None:
    world = Kept(1, TWO)
    cluster = world.cluster

    async def main() -> None:
        master = cluster.master()
        assert master is not None
        behind, furthest = sorted(node.name for node in cluster.of("broker") if node.name != master)
        world.send_on(every_s=0.02)
        await asyncio.sleep(1)
        cluster.cut(master, behind, "out")  # it is a member for 1.5 s more
        await asyncio.sleep(cut_s)
        world.quiet = True
        await asyncio.sleep(after_s)
        assert len(cluster.members()) == 3
        missing = set(world.acked) - world.stored_by_log(behind)
        assert missing, "the one that is behind has everything"
        cluster.pause(furthest)
        cluster.kill(master)
        await asyncio.sleep(pause_ms / 1000)
        cluster.resume(furthest)
        cluster.fabric.heal_all()
        await asyncio.sleep(4)
        assert cluster.master() == furthest
        world.start(master)
        await world.settled()

    world.run(main)
