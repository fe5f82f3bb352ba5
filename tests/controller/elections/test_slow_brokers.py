"""The promise of elections in majority mode: slow brokers are heard, and nobody to elect costs no entries."""

from __future__ import annotations

import asyncio

import pytest

from controller.elections.asking import SOON_S
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.sim import World
from tests.fakes.controller.sim_brokers import Broker, master, run

pytestmark = pytest.mark.sim


def commits(world: World) -> int:
    leader = world.leader()
    assert leader is not None
    return leader.raft.commit_index


def test_brokers_that_take_a_while_to_answer_are_elected() -> None:
    async def main(world: World, brokers: list[Broker]) -> None:
        brokers[0].kill()
        assert await wait_for(lambda: master(world) in (2, 3), 10)
        assert master(world) == 3, "the furthest of those that answered"

    run(3 * SOON_S, main)


def test_quick_answers_are_waited_for_no_longer_than_they_take() -> None:
    async def main(world: World, brokers: list[Broker]) -> None:
        began = world.loop.time()
        brokers[0].kill()
        assert await wait_for(lambda: master(world) == 3)
        assert world.loop.time() - began < SOON_S

    run(0.005, main)


def test_one_that_does_not_answer_holds_up_no_majority_that_did() -> None:
    async def main(world: World, brokers: list[Broker]) -> None:
        brokers += [Broker(world, number, 0.005) for number in (4, 5)]
        for broker in brokers[3:]:
            await broker.join()
        brokers[1].delay_s = 1000.0
        began = world.loop.time()
        brokers[0].kill()
        await wait_for(lambda: master(world) == 5)
        assert world.loop.time() - began < 2 * SOON_S

    run(0.005, main)


def test_while_nobody_can_be_elected_nothing_is_committed_and_questions_are_rare() -> None:
    async def main(world: World, brokers: list[Broker]) -> None:
        _, second, third = brokers
        second.delay_s = third.delay_s = 1000.0
        brokers[0].kill()
        await wait_for(lambda: master(world) is None)
        await asyncio.sleep(5)
        before, asked = commits(world), third.asked
        await asyncio.sleep(30)
        answer = await third.inside(third.elect)
        assert (answer.code, commits(world)) == (2012, before)
        assert 0 < third.asked - asked < 40, "about two seconds apart"
        third.delay_s = 0.005
        second.kill()
        back = Broker(world, 2, 0.005)
        began = world.loop.time()
        await back.join()
        await wait_for(lambda: master(world) is not None)
        assert world.loop.time() - began < 1, "a broker that comes back ends the wait"

    run(0.005, main)
