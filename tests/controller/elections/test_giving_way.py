"""The promise of controller.giving_way: a leader that hears no broker gives way to a Controller that
does, once, and to nobody where no Controller hears more than it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controller.elections.liveness import Heard, looks_for_another, successor
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.sim import NAMES, G, World


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
