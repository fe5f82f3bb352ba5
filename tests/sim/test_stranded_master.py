"""The promise of a master that cannot serve: one that is cut off from its slaves only, or whose disk is full,
steps down for a broker that can; where nobody can it stays, and no other broker is tried in vain for ever."""

from __future__ import annotations

import asyncio
import errno

import pytest

from chaos.scenarios.majorities import MAJORITY
from chaos.sim.disk import Machine
from model.errors import DiskError
from tests.sim.world import World, by_id, simulated

pytestmark = pytest.mark.sim

TWO_COPIES = {"minInSyncReplicas": "2"}
COUNTED = {"allAckInSyncStateSet": "false", "inSyncReplicas": "2"}


def send_to_all(world: World) -> None:
    for node in world.cluster.of("broker"):
        world.send_to(node.name)


async def loaded(world: World) -> str:
    """The master, under load from all sides for a second."""
    master = world.cluster.master()
    assert master is not None
    send_to_all(world)
    await asyncio.sleep(1)
    return master


def cut_from_slaves(world: World, master: str, *, reset: bool = False, direction: str = "both") -> None:
    cluster = world.cluster
    for other in cluster.of("broker"):
        if other.name != master:
            cluster.cut(master, other.name, direction)
            if reset:
                cluster.fabric.reset(cluster.nodes[master].host, other.host)


def answered_ok(world: World, since_ms: float) -> list[float]:
    return [begun_ms for begun_ms, code in world.answers if begun_ms >= since_ms and code == 0]


async def another_serves(world: World, old: str, seconds: float) -> None:
    """While ``old`` stays cut off."""
    cluster, cut_ms = world.cluster, world.cluster.clock()
    await asyncio.sleep(seconds)
    served = answered_ok(world, cut_ms + 1000)
    assert served, "nobody serves while the cut lasts"
    assert served[0] - cut_ms < 4000
    assert cluster.master() not in (None, old)


@pytest.mark.parametrize(
    "reset", [pytest.param(True, marks=pytest.mark.more), False], ids=["reset", "silent"]
)
@pytest.mark.parametrize("broker", [MAJORITY, TWO_COPIES], ids=["majority", "two"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.more)])
@simulated(lambda seed, broker: World(seed, broker))
async def test_a_master_cut_off_from_its_slaves_only_hands_over(
    world: World, seed: int, broker: dict[str, str], reset: bool
) -> None:
    cluster, old = world.cluster, await loaded(world)
    elections = len(world.times("master_elected"))
    cut_from_slaves(world, old, reset=reset)
    await another_serves(world, old, 12)
    assert len(world.times("master_elected")) == elections + 1, "no ping-pong"
    cluster.fabric.heal_all()
    assert await cluster.until(cluster.converged, 20.0) is None


@pytest.mark.parametrize("direction", [pytest.param("in", marks=pytest.mark.more), "out"])
@pytest.mark.parametrize("broker", [MAJORITY, TWO_COPIES, COUNTED], ids=["majority", "two", "counted"])
@simulated(lambda broker: World(2, broker))
async def test_so_does_one_whose_slaves_are_cut_off_in_one_direction(
    world: World, broker: dict[str, str], direction: str
) -> None:
    """``out``: they still tell it what they have, and hear nothing of it. It took that for life."""
    cluster, old = world.cluster, await loaded(world)
    cut_from_slaves(world, old, direction=direction)
    await another_serves(world, old, 6)
    cluster.fabric.heal_all()
    assert await cluster.until(cluster.converged, 20.0) is None


@pytest.mark.parametrize("apart_s", [0.02, pytest.param(0.2, marks=pytest.mark.more), 2.0])
@pytest.mark.parametrize("broker", [MAJORITY, TWO_COPIES], ids=["majority", "two"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.more)])
@simulated(lambda seed, broker: World(seed, broker))
async def test_a_slave_that_left_the_set_a_moment_before_counts_for_its_successor(
    world: World, seed: int, broker: dict[str, str], apart_s: float
) -> None:
    """The links end one after the other: the set shrinks before the master knows that it is cut off."""
    cluster, old = world.cluster, await loaded(world)
    for node in cluster.of("broker"):
        if node.name != old:
            cluster.cut(old, node.name)
            cluster.fabric.reset(cluster.nodes[old].host, node.host)
            await asyncio.sleep(apart_s)
    await another_serves(world, old, 5)
    cluster.fabric.heal_all()
    assert await cluster.until(cluster.converged, 20.0) is None


@pytest.mark.parametrize(
    "broker", [MAJORITY, pytest.param(TWO_COPIES, marks=pytest.mark.more)], ids=["majority", "two"]
)
@simulated(lambda broker: World(5, broker))
async def test_where_no_broker_hears_another_it_is_tried_seldom(world: World, broker: dict[str, str]) -> None:
    cluster = world.cluster
    send_to_all(world)
    await asyncio.sleep(1)
    names = [node.name for node in cluster.of("broker")]
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            cluster.cut(one, other)
            cluster.fabric.reset(cluster.nodes[one].host, cluster.nodes[other].host)
    elections = len(world.times("master_elected"))
    await asyncio.sleep(30)
    assert len(world.times("master_elected")) - elections <= 5, "after 2, 4, 8 and 16 s"
    cluster.fabric.heal_all()
    assert await cluster.until(cluster.converged, 20.0) is None
    again_ms = cluster.clock()
    await asyncio.sleep(2)
    assert answered_ok(world, again_ms)


@pytest.mark.parametrize("broker", [MAJORITY, TWO_COPIES], ids=["majority", "two"])
@simulated(lambda broker: World(6, broker))
async def test_a_master_whose_slaves_are_dead_stays(world: World, broker: dict[str, str]) -> None:
    cluster = world.cluster
    old = cluster.master()
    elections = len(world.times("master_elected"))
    for node in cluster.of("broker"):
        if node.name != old:
            cluster.kill(node.name)
    await asyncio.sleep(10)
    assert cluster.master() == old
    assert len(world.times("master_elected")) == elections
    assert world.times("lease_ended") == []


@pytest.mark.parametrize("broker", [{}, MAJORITY], ids=["all", "majority"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.more)])
@simulated(lambda seed, broker: World(seed, broker))
async def test_a_master_whose_disk_is_full_hands_over_to_a_slave_that_has_space(
    world: World, seed: int, broker: dict[str, str]
) -> None:
    cluster = world.cluster
    old = cluster.master()
    assert old is not None
    send_to_all(world)
    await asyncio.sleep(2)
    elections = len(world.times("master_elected"))
    cluster.nodes[old].machine.faults.full = True
    full_ms = cluster.clock()
    await asyncio.sleep(8)
    served = answered_ok(world, full_ms + 1500)
    assert served, "nobody serves while the disk is full"
    assert served[0] - full_ms < 5000
    assert len(world.times("master_elected")) == elections + 1
    cluster.nodes[old].machine.faults.full = False
    assert await cluster.until(cluster.converged, 20.0) is None


@simulated(lambda: World(3))
async def test_a_second_disk_that_fills_soon_after_is_handed_over_from_as_fast(world: World) -> None:
    """The pause between two handovers was 10 s: writes stood still for 4."""
    cluster = world.cluster
    send_to_all(world)
    for _ in range(2):
        await asyncio.sleep(1)
        old = cluster.master()
        assert old is not None
        cluster.nodes[old].machine.faults.full = True
        full_ms = cluster.clock()
        await asyncio.sleep(3)
        served = answered_ok(world, full_ms + 1500)
        assert served, "nobody serves while the disk is full"
        assert served[0] - full_ms < 2500
        cluster.nodes[old].machine.faults.full = False


@simulated(lambda: World(7))
async def test_where_every_disk_is_full_the_master_stays(world: World) -> None:
    cluster = world.cluster
    old = cluster.master()
    send_to_all(world)
    await asyncio.sleep(2)
    elections = len(world.times("master_elected"))
    for node in cluster.of("broker"):
        node.machine.faults.full = True
    await asyncio.sleep(15)
    assert (cluster.master(), len(world.times("master_elected"))) == (old, elections)
    for node in cluster.of("broker"):
        node.machine.faults.full = False
    await asyncio.sleep(3)
    again_ms = cluster.clock()
    await asyncio.sleep(1)
    assert answered_ok(world, again_ms)


@pytest.mark.parametrize("broker", [{}, MAJORITY, COUNTED], ids=["all", "majority", "counted"])
@simulated(lambda broker: World(0, broker))
async def test_one_that_is_elected_and_cannot_begin_is_replaced(world: World, broker: dict[str, str]) -> None:
    """Its disk takes no epoch; it lives, so to the Controllers it was well."""
    cluster, old = world.cluster, world.cluster.master()
    assert old is not None
    left = [cluster.nodes[name] for name in by_id(cluster) if name != old]
    epochs = left[0].server.store.epochs  # type: ignore[union-attr]

    def refuse(*_: object) -> None:
        raise DiskError("no epoch can be noted")

    epochs._write = refuse
    await asyncio.sleep(1)
    elections = len(world.times("master_elected"))
    send_to_all(world)
    cluster.kill(old)
    killed_ms = cluster.clock()
    await asyncio.sleep(6)
    assert cluster.master() == left[1].name
    assert len(world.times("master_elected")) == elections + 2, "the first one could not begin"
    cluster.start(old)  # where two copies are needed
    await asyncio.sleep(3)
    assert answered_ok(world, killed_ms), "nobody serves"


def takes_one_copy_of_the_epochs(machine: Machine) -> list[str]:
    """The disk refuses each second of them; what it took and refused."""
    replace, asked = machine.replace, []

    def refuses(source: str, target: str) -> None:
        if "epochFileCheckpoint" in target:
            asked.append(target)
            if len(asked) % 2 == 0:
                raise OSError(errno.EIO, "write failed", target)
        replace(source, target)

    machine.replace = refuses  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("broker", [{}, COUNTED], ids=["all", "counted"])
@simulated(lambda broker: World(0, broker))
async def test_so_is_one_that_is_restarted_before_it_has_asked(world: World, broker: dict[str, str]) -> None:
    """One copy of its epochs said that it had led: the members from before its election counted no more, and
    it kept the group for as long as its disk was sick."""
    cluster, old = world.cluster, world.cluster.master()
    assert old is not None
    left = [cluster.nodes[name] for name in by_id(cluster) if name != old]
    asked = takes_one_copy_of_the_epochs(left[0].machine)
    await asyncio.sleep(1)
    cluster.kill(old)
    assert await cluster.until(lambda: None if len(asked) > 1 else "it did not try to begin", 10.0) is None
    cluster.kill(left[0].name)
    await asyncio.sleep(0.5)
    cluster.start(left[0].name)
    await asyncio.sleep(6)
    assert cluster.master() == left[1].name
