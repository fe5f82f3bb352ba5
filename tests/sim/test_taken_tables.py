"""Whose tables takes a master that was elected from outside of the SyncStateSet, and whose does it not?"""

from __future__ import annotations

import asyncio

import pytest

from model.codes import Request, Response
from tests.sim.asked import FLUSHES_SELDOM, TOPIC, Group, alone
from tests.sim.operated import EPOCHS, IDENTITY, Operated
from tests.sim.world import simulated

pytestmark = pytest.mark.sim


class Visited(Operated, Group):
    """A group that an operator visits, and that flushes seldom."""

    async def lose_controllers(self) -> None:
        """What docs/operations.md says to do when they lost their directories."""
        cluster, (first, *others) = self.cluster, sorted(self.cluster.brokers())
        for name in (first, *others):
            stopped = cluster.stop(name)
            assert stopped is not None
            await asyncio.wait([stopped], timeout=10)
        self.kill_all("namesrv")
        for node in cluster.of("namesrv"):
            self.lose_disk(node.name)
            cluster.start(node.name)
        self.remove(first, IDENTITY + EPOCHS)
        cluster.start(first)
        await self.leads(first)
        for name in others:
            self.remove(name, IDENTITY + EPOCHS)
            cluster.start(name)
        assert await cluster.until(cluster.converged, 30) is None


@simulated(lambda: Visited(1, FLUSHES_SELDOM))
async def test_an_outsider_takes_no_tables_of_a_wiped_machine_at_the_address_of_a_member(
    world: Visited,
) -> None:
    """It is another broker by now, and knows nothing. Whoever is elected waits for the operator's word."""
    cluster = world.cluster
    await world.begin()
    was, lost = world.master, cluster.brokers()[world.master]["brokerId"]
    every = {**TOPIC, "topic": "T0"}
    assert await world.ask(Request.UPDATE_AND_CREATE_TOPIC, every) == Response.SUCCESS  # all three have it
    await alone(world)
    assert await world.ask(Request.UPDATE_AND_CREATE_TOPIC, TOPIC) == Response.SUCCESS
    cluster.power_fail(was)
    await asyncio.sleep(2)
    cluster.power_on(was)
    for name in world.others:
        cluster.cut(name, was)  # the Controllers still hear it, or nobody would be elected
    for node in cluster.of("broker"):
        cluster.start(node.name)
    await asyncio.sleep(6)
    cluster.kill(was)
    world.lose_disk(was)
    await asyncio.sleep(2)
    cluster.start(was)
    cluster.fabric.heal_all()
    await asyncio.sleep(6)
    assert cluster.master() is None, "the last changes of the tables may be at one that is gone alone"
    await world.forget(str(lost))
    assert await cluster.until(cluster.converged, 20) is None
    for node in cluster.of("broker"):
        assert "T0" in world.broker(node.name).topics.table


@simulated(lambda: Visited(0, FLUSHES_SELDOM))
async def test_controllers_that_lost_everything_count_epochs_anew_and_an_outsider_takes_the_tables(
    world: Visited,
) -> None:
    """The tables' versions are beyond every epoch that these Controllers will give for long."""
    cluster = world.cluster
    for _ in range(3):
        await world.change_master()
    before = max(status["epoch"] for status in cluster.brokers().values())
    await world.lose_controllers()
    await world.begin()
    was = world.master
    assert world.broker(was).topics.version.state_version >= before > cluster.brokers()[was]["epoch"]
    await alone(world)
    assert await world.ask(Request.UPDATE_AND_CREATE_TOPIC, TOPIC) == Response.SUCCESS
    cluster.power_fail(was)
    await asyncio.sleep(2)
    cluster.power_on(was)
    for node in cluster.of("broker"):
        cluster.start(node.name)
    assert await cluster.until(cluster.converged, 25) is None
    assert cluster.master() in world.others, "the one whose log reaches further leads"
    for node in cluster.of("broker"):
        assert "T1" in world.broker(node.name).topics.table
