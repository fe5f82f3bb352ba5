"""The promise of runtime.turns: long work lets others run, goes on one at a time, and ends with its peer."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from model.codes import Response
from model.errors import Refused
from runtime import turns as module
from runtime.turns import SHORT_MS, SLICE_MS, Leaving, PeerLeft, Turns, Unhurried


class Clock:
    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


class Peer:
    closed = False

    def __init__(self, *, goes_first: bool = False) -> None:
        self.goes_first = goes_first


async def test_a_long_request_lets_the_loop_go_round_each_slice() -> None:
    clock, rounds = Clock(), 0

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await asyncio.sleep(0)
    before = rounds
    async with Turns(clock).take(Peer()) as turn:
        for _ in range(10):
            clock.ms += SLICE_MS / 2
            await turn.breathe()
    assert rounds - before == 5
    task.cancel()


async def test_work_that_nobody_waits_for_leaves_the_loop_alone_for_as_long_as_it_held_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message on its way takes some turns of the loop: a slice in each of them made it wait for all."""
    clock, slept_s = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    slice_ = Unhurried(clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(8):
        clock.ms += SHORT_MS / 2
        await slice_.breathe()
    assert slept_s == [SHORT_MS / 1000] * 4


async def test_one_works_at_a_time_and_connections_take_turns() -> None:
    turns, order = Turns(Clock()), []
    one, two = Peer(), Peer()

    async def work(peer: Peer, name: str) -> None:
        async with turns.take(peer):
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(*(work(one, f"one {n}") for n in range(3)), work(two, "two 0"))
    begun = order[::2]
    assert order[1::2] == begun, "nobody begins before the one before has ended"
    assert begun == ["one 0", "one 1", "two 0", "one 2"]
    assert turns.waiting == 0


async def test_a_request_whose_peer_left_ends_and_the_next_goes_on() -> None:
    clock = Clock()
    turns, gone, here = Turns(clock), Peer(), Peer()
    done = []

    async def work(peer: Peer) -> None:
        async with turns.take(peer) as turn:
            for _ in range(3):
                clock.ms += SLICE_MS
                await turn.breathe()
            done.append(peer)

    begun, behind, other = (asyncio.create_task(work(p)) for p in (gone, gone, here))
    await asyncio.sleep(0)
    gone.closed = True
    found = await asyncio.gather(begun, behind, other, return_exceptions=True)
    assert [type(result) for result in found] == [PeerLeft, PeerLeft, type(None)]
    assert done == [here]


@pytest.mark.parametrize("granted", [False, True])
async def test_one_that_is_cancelled_passes_its_turn_on(granted: bool) -> None:
    turns, peer = Turns(Clock()), Peer()
    reached = asyncio.Event()

    async def work() -> None:
        async with turns.take(peer):
            reached.set()

    async with turns.take(peer):
        first, second = asyncio.create_task(work()), asyncio.create_task(work())
        await asyncio.sleep(0)
        if not granted:
            first.cancel()
    if granted:
        first.cancel()
    async with asyncio.timeout(30):
        await reached.wait()
        await second
    assert turns.waiting == 0


async def test_what_waits_of_a_peer_that_left_ends_at_once_and_nothing_more_of_it_waits() -> None:
    turns, gone, other = Turns(Clock()), Peer(), Peer()
    ended: list[str] = []

    async def ask(peer: Peer, name: str) -> None:
        try:
            async with turns.take(peer):
                ended.append(name)
        except PeerLeft:
            ended.append(f"{name} left")

    async with turns.take(Peer()):
        tasks = [asyncio.create_task(ask(gone, f"gone {n}")) for n in range(2)]
        tasks.append(asyncio.create_task(ask(other, "other")))
        await asyncio.sleep(0)
        gone.closed = True
        turns.forget(gone)
        tasks.append(asyncio.create_task(ask(gone, "late")))
        for _ in range(2):
            await asyncio.sleep(0)
        assert sorted(ended) == ["gone 0 left", "gone 1 left", "late left"]
        assert turns.waiting == 1
    await asyncio.gather(*tasks)
    assert ended[-1] == "other"
    assert not turns.is_taken


async def test_those_that_go_first_have_every_second_turn_and_clients_the_others() -> None:
    turns, order = Turns(Clock()), list[str]()

    async def work(peer: Peer, name: str) -> None:
        async with turns.take(peer):
            order.append(name)

    async with turns.take(Peer()):
        tasks = [asyncio.create_task(work(Peer(), "client")) for _ in range(20)]
        tasks += [asyncio.create_task(work(Peer(goes_first=True), "peer")) for _ in range(3)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["peer", "client"] * 3 + ["client"] * 17


async def test_those_that_wait_have_a_bound_and_who_has_many_is_refused_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 40)
    turns, flood, done = Turns(Clock()), Peer(), Counter[str]()

    async def ask(peer: Peer) -> None:
        try:
            async with turns.take(peer):
                done["answered"] += 1
        except PeerLeft:
            done["left"] += 1
        except Refused as refused:
            done["busy" if refused.code == Response.SYSTEM_BUSY else "refused"] += 1

    async with turns.take(Peer()):
        tasks = [asyncio.create_task(ask(flood)) for _ in range(50)]
        await asyncio.sleep(0)
        assert (turns.waiting, done["busy"]) == (20, 30), "half are for others"
        tasks += [asyncio.create_task(ask(Peer())) for _ in range(30)]
        await asyncio.sleep(0)
        assert (turns.waiting, done["busy"]) == (40, 40)
        tasks.append(asyncio.create_task(ask(Peer(goes_first=True))))
        begun = asyncio.create_task(turns.enter(Peer(), begun=True))
        await asyncio.sleep(0)
        assert (turns.waiting, done["busy"]) == (42, 40), "what has begun is not refused, nor who goes first"
        turns.forget(flood)
        assert turns.waiting == 22
    await begun
    turns.leave()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == {"answered": 21, "busy": 40, "left": 20}
    assert (turns.is_taken, turns.waiting) == (False, 0)


async def test_what_begins_at_once_waits_for_its_turn_when_it_is_not_short() -> None:
    """Fifty that had a slice each in every turn of the loop held it fifty slices long."""
    clock, spent = Clock(), list[float]()
    turns = Turns(clock)

    async def work(steps: int) -> None:
        async with turns.late(Peer()) as turn:
            for _ in range(steps):
                clock.ms += SHORT_MS / 4
                await turn.breathe()

    async def count() -> None:
        while True:
            before = clock.ms
            await asyncio.sleep(0)
            spent.append(clock.ms - before)

    counting = asyncio.create_task(count())
    short = [asyncio.create_task(work(2)) for _ in range(10)]
    await asyncio.wait([*short, *(asyncio.create_task(work(80)) for _ in range(20))])
    counting.cancel()
    assert spent[0] == 10 * SHORT_MS / 2 + 20 * SHORT_MS
    assert max(spent[1:]) <= SLICE_MS
    assert (turns.is_taken, turns.waiting) == (False, 0)
    gone = Peer()
    async with turns.take(Peer()), turns.late(gone) as turn:
        waiting = asyncio.create_task(turn.pause())
        await asyncio.sleep(0)
        turns.forget(gone)
        with pytest.raises(PeerLeft):
            await waiting
    assert (turns.is_taken, turns.waiting) == (False, 0)


async def test_what_the_ended_left_is_taken_away_a_slice_a_turn_of_all_together() -> None:
    clock, spent = Clock(), list[float]()
    left = {Peer(): 10 for _ in range(50)}

    def step(peer: Peer) -> bool:
        clock.ms += 1
        left[peer] -= 1
        return left[peer] > 0

    leaving = Leaving("peers", clock, step)
    for peer in left:
        leaving.begin(peer)
    assert (clock.ms, leaving.count) == (50, 50), "a step each"
    while leaving.count:
        before = clock.ms
        await asyncio.sleep(0)
        spent.append(clock.ms - before)
    assert max(spent) <= SLICE_MS
    assert set(left.values()) == {0}
    little = Peer()
    left[little] = 1
    leaving.begin(little)
    assert leaving.count == 0
