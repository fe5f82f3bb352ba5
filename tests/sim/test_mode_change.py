"""The promise: a rolling restart changes the mode of a group, and nothing acknowledged goes."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.kept import ALL, MAJORITY, TWO, Kept, Mode

pytestmark = pytest.mark.sim


async def rolled(world: Kept, to: Mode, chance: random.Random, kill_at: int | None) -> None:
    """Slaves first, the next one when the set shows all. ``kill_at``: while this restart is under way,
    another broker is killed, and comes back a moment later with the configuration it has then."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    order = sorted((node.name for node in cluster.of("broker")), key=lambda name: name == master)
    for number, name in enumerate(order):
        down = cluster.stop(name) if chance.random() < 0.5 else None
        if down is None:
            cluster.kill(name)
        else:
            await asyncio.wait([down], timeout=10)
        if number == kill_at:
            victim = chance.choice([other for other in order if other != name])
            await asyncio.sleep(chance.uniform(0.0, 0.6))
            cluster.kill(victim)
            await asyncio.sleep(chance.uniform(0.0, 2.5))
            world.start(victim)
            await world.serves(victim)
        world.modes[name] = to
        world.start(name)
        await world.serves(name)
        assert await cluster.until(cluster.converged, 40.0) is None, f"after {name}"
        await asyncio.sleep(chance.uniform(0.1, 0.5))


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.more)])
def test_a_rolling_change_of_mode_with_a_kill_in_the_middle_loses_nothing(seed: int) -> None:
    """From all to majority to two of the members, and back to all."""
    chance = random.Random(f"modes:{seed}")
    world = Kept(seed, ALL)
    steps = ((MAJORITY, (False, 3)), (TWO, (False, 0)), (ALL, (True, 0)))
    before: list[int] = []

    async def main() -> None:
        world.send_on()
        await asyncio.sleep(1)
        for mode, rule in steps:
            await rolled(world, mode, chance, kill_at=chance.randrange(3))
            await asyncio.sleep(0.5)
            assert set(world.rules()) == {rule}, f"to {mode}"
            before.append(len(world.acked))
        await asyncio.sleep(0.5)
        await world.settled()

    world.run(main)
    assert before[0] > 100
    assert before == sorted(set(before)), "each mode acknowledged something"
