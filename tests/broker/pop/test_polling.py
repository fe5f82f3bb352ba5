"""The promise of Polling to everybody else: of pops that are over together it answers a slice a turn, and
those that are to be tried it looks for and tries a slice a turn.
To those that wait: when their time is over they are answered, whoever searches by an expression."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.requests.consumers.pop.held import HeldPop, Key
from broker.requests.consumers.pop.polling import SERVED, Polling, Steps
from broker.state.clients import SQL92, Subscription
from broker.state.effort import Effort
from model.config import BrokerConfig
from remoting.codec import Command
from runtime.turns import SLICE_MS
from tests.broker.pop.support import header

POPS = 50


class World:
    """A clock on which each answer takes a millisecond, and which turn of the loop each was made in."""

    def __init__(self, groups: int = 1) -> None:
        self.now_ms = 0.0
        self.turn = 0
        self.made: Counter[int] = Counter()
        self.closed = self.goes_first = False
        self.has_messages = False
        context = SimpleNamespace(
            env=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            config=BrokerConfig(),
            store=SimpleNamespace(on_arrive=[]),
            trust=SimpleNamespace(passed=lambda connection, request: None),
            effort=Effort(lambda: self.now_ms),
        )
        self.polling = Polling(cast(Any, context), self._released)
        self.polling.serve = self._serve
        for number in range(POPS):
            pop = header(f"T{number % 3}", group=f"pg{number % groups}", poll_ms=1000)
            held = self.polling.hold(cast(Any, self), Command(1), pop, Subscription(pop.topic), 1000)
            assert held is None, "it waits"

    def send(self, answer: Command) -> None:
        self.now_ms += 1
        self.made[self.turn] += 1

    def _serve(self, held: HeldPop, last: bool) -> Steps[Command | None]:
        yield from ()
        return Command(0) if last or self.has_messages else None

    def _released(self, request: Command) -> Command:
        return Command(0)

    async def until_all(self) -> None:
        while sum(self.made.values()) < POPS and self.turn < 10 * POPS:
            self.turn += 1
            await asyncio.sleep(0)
        assert sum(self.made.values()) == POPS
        assert max(self.made.values()) <= SLICE_MS
        self.polling.pops.check_invariants()


async def test_pops_whose_time_is_over_together_are_answered_a_slice_a_turn() -> None:
    world = World()
    world.now_ms = 2000
    world.polling._expire()
    assert sum(world.made.values()) == SLICE_MS
    world.polling._expire()  # the timer's next time
    assert sum(world.made.values()) == SLICE_MS, "one slice a turn, not one for each who asks"
    await world.until_all()
    assert world.polling.held == 0


async def test_pops_of_a_role_that_ends_are_answered_a_slice_a_turn() -> None:
    world = World()
    world.polling.release_all()
    assert world.polling.held == 0, "none waits from here on"
    assert sum(world.made.values()) == SLICE_MS
    await world.until_all()
    await world.polling.answered()


@pytest.mark.parametrize("woken", [True, False])
async def test_other_pops_do_not_wait_for_the_search_of_an_expression(woken: bool) -> None:
    """One by an expression may keep its turn until its own time is over: no other one was answered."""
    world = World()
    pop = header("T0", group="chosen", poll_ms=60_000)
    chosen = Subscription.of(pop.topic, "a = 1", SQL92)
    for number in range(2):
        assert world.polling.hold(cast(Any, world), Command(2 + number), pop, chosen, 60_000) is None
    effort = world.polling._context.effort
    async with effort.turn(cast(Any, world)):
        world.polling.more(pop)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert effort._turns.waiting == 1, "the one that was woken waits for its turn"
        world.has_messages = woken
        if woken:
            world.polling.look_at_all()
        else:
            world.now_ms = 2000
            world.polling._expire()
        await world.until_all()
        assert world.polling.held == 2
    await world.polling._tasks.join()
    assert world.polling.held == (0 if woken else 2)


async def test_a_pop_without_an_expression_behind_one_that_has_one_is_woken_with_it() -> None:
    world = World()
    pop = header("T0", poll_ms=60_000)
    chosen = Subscription.of(pop.topic, "a = 1", SQL92)
    world.polling.release_all()
    await world.polling.answered()
    for subscription in (None, chosen, chosen, None):
        assert world.polling.hold(cast(Any, world), Command(2), pop, subscription, 60_000) is None
    world.has_messages = True
    world.polling.more(pop)
    await world.polling._tasks.join()
    assert (world.polling.held, sum(world.made.values())) == (0, POPS + 4)
    world.polling.pops.check_invariants()


@pytest.mark.parametrize("what", ["all", "in order", "a message"])
async def test_who_is_to_be_tried_is_looked_for_and_tried_a_slice_a_turn(what: str) -> None:
    """By default 100,000 pops may wait, each for something else: the loop was held while all were noted, and
    while all were tried that got nothing."""
    world, groups = World(), 40
    for number in range(groups):
        pop = header("wide", group=f"g{number}", poll_ms=60_000, order=True, queue_id=0)
        held = world.polling.hold(cast(Any, world), Command(2), pop, Subscription(pop.topic), 60_000)
        assert held is None
    looked: Counter[int] = Counter()
    tried: Counter[int] = Counter()
    first = world.polling.pops.first

    def look(key: Key) -> HeldPop | None:
        world.now_ms += 1
        looked[world.turn] += 1
        return first(key)

    def serve(held: HeldPop, last: bool) -> Steps[Command | None]:
        world.now_ms += 1
        tried[world.turn] += 1
        yield from ()
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.polling.pops, "first", look)
        world.polling.serve = serve
        match what:
            case "all":
                world.polling.look_at_all()
            case "in order":
                world.polling.look_again()
            case _:
                world.polling._arrived([("wide", 0, 0, 0)])
        assert not looked, "nothing before its turn"
        while world.polling._tasks._tasks:
            world.turn += 1
            await asyncio.sleep(0)
    keys = groups + 3
    assert sum(tried.values()) == (keys if what == "all" else groups)
    assert sum(looked.values()) == sum(tried.values()) + (groups if what == "a message" else keys)
    assert max((looked + tried).values()) <= SLICE_MS + 2


async def test_who_waits_is_looked_for_once_however_many_messages_came() -> None:
    """A batch has up to 4,096 tags, and a slice of the log may have as many queues: for each of them all
    groups that waited for the topic were gone through."""
    world, looked = World(groups=POPS), Counter[Key]()
    first = world.polling.pops.first

    def look(key: Key) -> HeldPop | None:
        looked[key] += 1
        return first(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.polling.pops, "first", look)
        world.polling._arrived([(f"T{code % 5}", code % 7, 1, code) for code in range(4096)])
        await world.polling._tasks.join()
    assert (len(looked), set(looked.values())) == (POPS, {2}), "it was told, and tried"


async def test_messages_that_come_while_others_are_told_of_wake_who_was_passed_already() -> None:
    world = World(groups=POPS)
    tried: list[Key] = []

    def serve(held: HeldPop, last: bool) -> Steps[Command | None]:
        world.now_ms += 1
        tried.append(held.key)
        yield from ()
        return None

    world.polling.serve = serve
    world.polling._arrived([("T0", 0, 1, 0)])
    for _ in range(3):
        await asyncio.sleep(0)
    assert tried
    world.polling.serve, world.has_messages = world._serve, True
    world.polling._arrived([(f"T{number}", 3, 1, 0) for number in range(3)])
    await world.until_all()
    assert world.polling.held == 0


@pytest.mark.parametrize("woken", [True, False])
async def test_pops_over_very_many_queues_are_tried_in_steps(woken: bool) -> None:
    """A pop over all queues of a topic looked into 65,535 in one go, and so did each that was woken."""
    world, steps = World(), Counter[int]()

    def serve(held: HeldPop, last: bool) -> Steps[Command | None]:
        for _ in range(10):
            world.now_ms += 1
            steps[world.turn] += 1
            yield
            if not (last or held.waits):
                return SERVED
        return None if woken else Command(0)

    world.polling.serve = serve
    if woken:
        world.polling.look_at_all()
    else:
        world.now_ms = 2000
        world.polling._expire()
    while world.polling._tasks._tasks:
        world.turn += 1
        await asyncio.sleep(0)
    assert sum(steps.values()) == 10 * (3 if woken else POPS), "of each key the first"
    assert max(steps.values()) <= SLICE_MS + 1
    assert world.polling.held == (POPS if woken else 0)


@pytest.mark.parametrize("woken", [True, False])
async def test_a_pop_that_fails_by_a_mistake_is_answered_and_the_others_are_tried(woken: bool) -> None:
    """It stayed the first of its key; at its time the timer ended with it, and answered nobody any more."""
    world = World()
    failing = list(range(POPS // 2))

    def serve(held: HeldPop, last: bool) -> Steps[Command | None]:
        yield from ()
        if failing and failing.pop() is not None:
            raise KeyError("a mistake of ours")
        return Command(0)

    world.polling.serve = serve
    if woken:
        world.polling.look_at_all()
    else:
        world.now_ms = 2000
        world.polling._expire()
    await world.until_all()
    assert (world.polling.held, failing) == (0, [])


async def test_a_pop_that_is_over_while_it_is_tried_is_answered_once() -> None:
    world = World()

    def serve(held: HeldPop, last: bool) -> Steps[Command | None]:
        while not (last or not held.waits):
            world.now_ms += SLICE_MS
            yield
        return Command(0) if last else SERVED

    world.polling.serve = serve
    world.polling.look_at_all()
    for _ in range(5):
        await asyncio.sleep(0)
    world.now_ms = 2000
    world.polling._expire()
    await world.until_all()
    await world.polling._tasks.join()
    assert (world.polling.held, sum(world.made.values())) == (0, POPS)
