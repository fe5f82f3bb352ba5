"""The promises of client.consuming.locks: in order is consumed what a broker allowed not long ago, and a
broker that is silent stops its own queues only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from client.consuming.consumer import PushConsumer
from client.consuming.locks import LOCK_S, Locks
from client.consuming.refused import Refusals
from client.message import Queue
from client.routes import Route
from runtime.tasks import Tasks, every
from tests.client.virtual import virtually

HERE, THERE = Queue("T", "a", 0), Queue("T", "b", 0)


class World:
    """Two brokers; the clock of the loop."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.group = "g"
        self.dead: set[str] = set()
        self.taken: set[Queue] = set()
        self.asked: Counter[str] = Counter()
        self.unlocked: list[Queue] = []
        self.locked: set[Queue] = set()
        """At the brokers."""
        self.route_s, self.lock_s = 0.0, 0.01
        self.session: Any = SimpleNamespace(routes=self)

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    async def get(self, topic: str) -> Route:
        await asyncio.sleep(self.route_s)
        return Route(topic, {"a": {0: "a:1"}, "b": {0: "b:1"}})

    async def lock(self, queues: Sequence[Queue], address: str) -> list[Queue]:
        self.asked[address] += 1
        await asyncio.sleep(3 if address in self.dead else self.lock_s)
        if address in self.dead:
            raise ConnectionError(f"{address} is dead")
        granted = [queue for queue in queues if queue not in self.taken]
        self.locked.update(granted)
        return granted

    async def unlock(self, queues: Sequence[Queue], address: str) -> None:
        await asyncio.sleep(0.01)
        if address in self.dead:
            raise ConnectionError(f"{address} is dead")
        self.unlocked += queues
        self.locked.difference_update(queues)

    def locks(self) -> Locks:
        world: Any = self
        return Locks(world, world, Refusals(logging.getLogger(__name__), "g", world))


def held(locks: Locks) -> list[Queue]:
    return [queue for queue in (HERE, THERE) if locks.holds(queue)]


def test_a_broker_that_does_not_answer_stops_its_own_queues_only_and_not_at_once() -> None:
    async def work() -> None:
        world = World()
        locks = world.locks()
        assert await locks.ask([HERE, THERE], 1.0) == 0
        world.dead.add("b:1")
        await asyncio.sleep(20)
        assert await locks.ask([HERE, THERE], 1.0) == 1.0
        assert held(locks) == [HERE, THERE]
        await asyncio.sleep(7)
        assert held(locks) == [HERE]
        world.dead.clear()
        assert await locks.ask([HERE, THERE], 1.0) == 0
        assert held(locks) == [HERE, THERE]

    virtually(work)


def test_a_lock_is_too_old_after_half_a_minute_without_a_word_of_its_broker() -> None:
    async def work() -> None:
        locks = World().locks()
        await locks.ask([HERE], 1.0)
        await asyncio.sleep(29.9)
        assert held(locks) == [HERE]
        await asyncio.sleep(0.1)
        assert held(locks) == []

    virtually(work)


def test_a_queue_that_another_member_has_is_not_consumed_and_not_given_back() -> None:
    async def work() -> None:
        world = World()
        locks = world.locks()
        await locks.ask([HERE, THERE], 1.0)
        world.taken.add(HERE)
        await locks.ask([HERE, THERE], 1.0)
        assert held(locks) == [THERE]
        await locks.give_back(HERE)
        await locks.give_back(THERE)
        assert (held(locks), world.unlocked) == ([], [THERE])

    virtually(work)


def test_a_queue_that_comes_again_needs_its_lock_anew() -> None:
    async def work() -> None:
        world = World()
        locks = world.locks()
        await locks.ask([HERE], 1.0)
        renewal = asyncio.ensure_future(locks.ask([HERE], 1.0))
        await asyncio.sleep(0)
        await locks.give_back(HERE)  # the answer that is under way was given before
        await renewal
        world.dead.add("a:1")
        assert await locks.ask([HERE], 1.0, anew=True) == 1.0
        assert held(locks) == []

    virtually(work)


def test_a_lock_whose_return_was_broken_off_is_given_back_by_the_next_one() -> None:
    """The consumer's stop breaks off what its rebalance gives up, and gives it up itself."""

    async def work() -> None:
        world = World()
        locks = world.locks()
        await locks.ask([HERE, THERE], 1.0)
        for broken_off_s in (0, 0.005):
            giving = asyncio.ensure_future(locks.give_back(HERE))
            await asyncio.sleep(broken_off_s)
            giving.cancel()
            await asyncio.wait([giving])
        await locks.give_back(HERE)
        assert (held(locks), world.unlocked) == ([THERE], [HERE])
        world.dead.add("b:1")
        await locks.give_back(THERE)
        assert held(locks) == [], "it ends by itself at its broker"

    virtually(work)


@pytest.mark.parametrize("late", ["asks for the route", "is at the broker", "begins"])
def test_no_renewal_takes_a_queue_again_that_is_given_back(late: str) -> None:
    """The renewal is a task of its own. A lock behind the unlock, or one that the broker answered later, kept
    the queue from all other members for up to 60 s."""

    async def work() -> None:
        world = World()
        locks, other = world.locks(), Queue("T", "a", 1)
        await locks.ask([HERE, other], 1.0)
        keeping, giving = locks.keep([HERE, other], 1.0), locks.give_back(HERE)
        world.route_s = 0.05 if late == "asks for the route" else 0.0
        world.lock_s = 0.05 if late == "is at the broker" else 0.01
        tasks = []
        for one in (giving, keeping) if late == "begins" else (keeping, giving):
            tasks.append(asyncio.ensure_future(one))
            await asyncio.sleep(0.005)
            world.route_s = 0.0
        await asyncio.gather(*tasks)
        assert world.locked == {other}
        assert (locks.holds(HERE), locks.holds(other), world.unlocked) == (False, True, [HERE])
        await locks.ask([HERE], 1.0, anew=True)
        assert (locks.holds(HERE), world.locked) == (True, {HERE, other})

    virtually(work)


def test_a_broker_that_lost_a_renewal_is_asked_again_before_its_locks_are_too_old() -> None:
    """One lost renewal rested its queues for 10 s; the others are renewed as ever meanwhile."""

    async def work() -> None:
        world = World()
        consumer: Any = SimpleNamespace(
            _locks=world.locks(), _workers=dict.fromkeys((HERE, THERE)), _tasks=Tasks("consumer")
        )
        keeping = asyncio.ensure_future(
            every(LOCK_S, lambda: PushConsumer._keep_locks(consumer), what="locks")
        )
        await consumer._locks.ask([HERE, THERE], 1.0)
        await asyncio.sleep(LOCK_S - 1)
        world.dead.add("b:1")
        await asyncio.sleep(2)
        world.dead.clear()
        for _ in range(30):
            assert held(consumer._locks) == [HERE, THERE]
            await asyncio.sleep(1)
        world.dead.add("b:1")
        await asyncio.sleep(100)
        assert held(consumer._locks) == [HERE]
        world.asked.clear()
        await asyncio.sleep(40)
        assert 10 < world.asked["b:1"] <= 14, "one of those that ask again, and each renewal"
        del consumer._workers[THERE]
        await asyncio.sleep(5)
        world.asked.clear()
        await asyncio.sleep(40)
        assert world.asked["b:1"] == 0
        keeping.cancel()
        await consumer._tasks.cancel()

    virtually(work)
