"""The promise of Controllers under faults: one master an epoch, and in the end a living one all agree on."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from chaos.sim.loop import Life, SimLoop
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.sim import NAMES, World

pytestmark = pytest.mark.sim


async def storm(world: World, seconds: float) -> None:
    rng, loop = world.random, world.loop
    until = loop.time() + seconds
    while loop.time() < until:
        await asyncio.sleep(rng.uniform(0.2, 2.0))
        what = rng.choice(("controller", "broker", "broker", "pause", "cut", "heal"))
        broker = rng.choice(world.brokers)
        if what == "controller" and len(world.controllers) == 3:
            world.kill(rng.choice(sorted(world.controllers)))
        elif what == "broker" and broker.life is not None:
            broker.kill()
        elif what == "pause":
            lives = [life for life, _ in world.controllers.values()]
            lives += [b.life for b in world.brokers if b.life is not None]
            life = rng.choice(lives)
            if not life.paused:
                loop.pause(life)
                loop.call_later(rng.uniform(0.1, 4.0), partial(wake, loop, life))
        elif what == "cut":
            one, other = rng.sample([*NAMES, *(b.host for b in world.brokers)], 2)
            world.fabric.cut(one, other)
            if rng.random() < 0.7:
                world.fabric.cut(other, one)
        elif what == "heal":
            world.fabric.heal_all()
        for name in NAMES:
            if name not in world.controllers and rng.random() < 0.5:
                await world.start(name)
        for each in world.brokers:
            if each.life is None and rng.random() < 0.5:
                each.start()


def wake(loop: SimLoop, life: Life) -> None:
    if life.alive:
        loop.resume(life)


def run(seed: int) -> World:
    world = World(seed)

    async def main() -> None:
        for name in NAMES:
            await world.start(name)
        for broker in world.brokers:
            broker.start()
            await asyncio.sleep(0.5)
        await wait_for(world.settled, 30)
        await storm(world, 40)
        world.fabric.heal_all()
        for life in [life for life, _ in world.controllers.values()]:
            wake(world.loop, life)
        for name in NAMES:
            if name not in world.controllers:
                await world.start(name)
        for broker in world.brokers:
            if broker.life is None:
                broker.start()
            else:
                wake(world.loop, broker.life)
        await wait_for(world.settled, 60)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    return world


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(4, 8))]
)
def test_faults_never_make_two_masters_and_always_end_with_one(seed: int) -> None:
    world = run(seed)
    assert {epoch: masters for epoch, masters in world.masters.items() if len(masters) > 1} == {}
    assert len(world.masters) > 1
