"""The promise of controller.giving_way: a leader that hears no broker gives way to a Controller that
does, once, and to nobody where no Controller hears more than it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product

import pytest

from controller.elections.liveness import Heard, Reach, hears_more, looks_for_another, successor
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.sim import NAMES, G, World
from tests.sim.kept import MAJORITY, Kept


@pytest.mark.parametrize(
    ("silent_ms", "others", "expected"),
    [
        (800, [("k1", 100, 1500), ("k2", 90, 1500)], "k2"),
        (800, [("k2", 100, 1500), ("k1", 100, 1500)], "k1"),
        (700, [("k1", 100, 1500)], None),  # its own silence is short
        (5000, [], None),
        (5000, [("k1", 5000, 1500), ("k2", 4900, 1500)], None),  # the brokers are dead
        (800, [("k1", 400, 1500)], None),  # and these died lately
        (1500, [("k1", 100, 10_000)], None),  # these beat rarely
        (5000, [("k1", 1000, 10_000), ("k2", 400, 1500)], "k1"),  # k2 heard nobody for longer than it should
    ],
)
def test_who_leads_instead(
    silent_ms: float, others: list[tuple[str, float, int]], expected: str | None
) -> None:
    assert successor(silent_ms, [Heard(*other) for other in others]) == expected


def test_two_controllers_never_give_way_to_each_other() -> None:
    """Whatever both heard: if one gives way to the other, then the other does not."""
    ages = range(0, 3000, 50)
    for one in ages:
        for other in ages:
            there = successor(one, [Heard("b", other, 1500)])
            back = successor(other, [Heard("a", one, 1500)])
            assert there is None or back is None


@pytest.mark.parametrize(
    ("of_group", "of_all", "led_ms", "expected"),
    [
        (2, 4, 800, "k1"),
        (1, 4, 800, None),  # nobody of the group is heard there that is not heard here
        (2, 3, 800, None),  # another group would be the worse for it
        (2, 4, 700, None),  # it has not listened for long enough to say whom it does not hear
    ],
)
def test_who_leads_where_nobody_of_a_group_can_be_elected(
    of_group: int, of_all: int, led_ms: float, expected: str | None
) -> None:
    found = hears_more(Reach("k0", 1, 3, 1500), led_ms, [Reach("k1", of_group, of_all, 1500)])
    assert found == expected


def test_who_gave_way_as_others_hear_more_is_not_asked_back() -> None:
    """What one hears within a quarter of the timeout it hears within a half of it, too."""
    heard = range(4)
    for mine, fresh, other, other_fresh in product(heard, heard, heard, heard):
        if fresh > mine or other_fresh > other:
            continue
        there = hears_more(Reach("a", mine, mine, 1500), 5000, [Reach("b", other_fresh, other_fresh, 1500)])
        back = hears_more(Reach("b", other, other, 1500), 5000, [Reach("a", fresh, fresh, 1500)])
        assert there is None or back is None


def test_nobody_is_asked_while_brokers_are_heard() -> None:
    assert not looks_for_another(700, 1500)
    assert looks_for_another(750, 1500)


async def ready(world: World) -> str:
    """All run, and one leads: its name."""
    for name in NAMES:
        await world.start(name)
    for broker in world.brokers:
        broker.start()
        await asyncio.sleep(0.5)
    await wait_for(world.settled, 30)
    return leading(world)


def leading(world: World) -> str:
    return next((name for name, (_, c) in world.controllers.items() if c.raft.is_leader), "")


def term(world: World) -> int:
    return max(c.raft.term for _, c in world.controllers.values())


def play(seed: int, work: Callable[[World], Awaitable[None]]) -> None:
    world = World(seed)
    try:
        world.loop.run_until_complete(work(world))
    finally:
        world.loop.close()


def deafen(world: World, name: str) -> None:
    for broker in world.brokers:
        world.fabric.cut(broker.host, name)


def hears_its_master(world: World) -> bool:
    leader = world.leader()
    group = None if leader is None else leader.status()["groups"][G]
    return group is not None and group["brokers"][str(group["master"])]["alive"]


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(2))
def test_a_leader_that_hears_no_broker_gives_way_once(seed: int) -> None:
    async def work(world: World) -> None:
        deaf = await ready(world)
        masters = dict(world.masters)
        deafen(world, deaf)
        await wait_for(lambda: leading(world) not in ("", deaf) and hears_its_master(world), 2)
        led_by, in_term = leading(world), term(world)
        await asyncio.sleep(4)
        world.fabric.heal_all()
        await asyncio.sleep(4)
        assert (leading(world), term(world)) == (led_by, in_term)
        assert world.masters == masters  # and nobody lost its master by it

    play(seed, work)


@pytest.mark.sim
@pytest.mark.parametrize("how", ["dead", "cut off from all", "deaf one after the other"])
def test_leadership_stays_where_no_controller_hears_more(how: str) -> None:
    async def work(world: World) -> None:
        await ready(world)
        if how == "deaf one after the other":
            for _ in NAMES:
                deafen(world, leading(world))
                await asyncio.sleep(2.5)
        elif how == "dead":
            for broker in world.brokers:
                broker.kill()
        else:
            for name in NAMES:
                deafen(world, name)
        led_by, in_term = leading(world), term(world)
        await asyncio.sleep(6)
        assert (leading(world), term(world)) == (led_by, in_term)

    play(5, work)


@pytest.mark.sim
def test_a_leader_that_hears_too_few_of_a_group_to_elect_gives_way_once() -> None:
    """Majority mode: the one link that is cut is that of the leader and a slave; the master dies."""
    world = Kept(1, MAJORITY)
    cluster = world.cluster

    async def main() -> None:
        leader, master = cluster.leader(), cluster.master()
        assert leader is not None
        assert master is not None
        slaves = sorted(node.name for node in cluster.of("broker") if node.name != master)
        cluster.cut(slaves[0], leader)
        await asyncio.sleep(3)
        assert cluster.leader() == leader, "the group has a master, so nobody is missed"
        cluster.kill(master)
        assert await cluster.until(lambda: None if cluster.master() in slaves else "nobody leads", 10) is None
        led_by = cluster.leader()
        assert led_by != leader
        cluster.fabric.heal_all()
        await asyncio.sleep(5)
        assert cluster.leader() == led_by

    world.run(main)
