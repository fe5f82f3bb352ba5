"""The promise of broker.upkeep.copies: the search for copies that a former master stored begins before the
first of them, whatever clocks did, and no record that cannot be read holds it back.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from types import SimpleNamespace
from typing import Any

import pytest

from broker.upkeep.copies import EARLY_MAX, LAST_MAX, READS_AT_ONCE, SPREAD_MAX, copies_begin
from model.errors import DiskError
from model.ids import PhysicalOffset
from store.flow.writing import CLOCK_BACK_MAX_MS

QUEUE = ("T", 0)
SOURCE = PhysicalOffset(10)
DUE_MS = 10_000_000


class Times:
    """A store whose one queue holds a record of 10 bytes for each of ``times_ms``, behind the source."""

    def __init__(self, times_ms: list[int], epochs: tuple[int, ...] = ()) -> None:
        self.times_ms = times_ms
        self.reads = 0
        self.unreadable: set[int] = set()
        self.reader = self
        self.end = PhysicalOffset(20 + 10 * len(times_ms))
        entries = [SimpleNamespace(start=PhysicalOffset(20 + 10 * at)) for at in epochs]
        self.epochs = SimpleNamespace(entries=entries)

    def store_time(self, place: int) -> int | None:
        self.reads += 1
        at = (place - 20) // 10
        if at in self.unreadable:
            raise DiskError("EIO")
        if place == SOURCE:
            return DUE_MS - 1_000_000
        return self.times_ms[at] if at < len(self.times_ms) else None

    def queue_store_time(self, topic: str, queue_id: int, at: int) -> int | None:
        return self.store_time(20 + 10 * at)

    def place_of(self, topic: str, queue_id: int, at: int) -> PhysicalOffset:
        return PhysicalOffset(20 + 10 * at)

    def offset_behind(self, topic: str, queue_id: int, place: int) -> int:
        return bisect_right(range(len(self.times_ms)), place, key=lambda at: 20 + 10 * at)

    def stamp_ms(self) -> int:
        return max(self.times_ms, default=0)


async def begin_of(store: Times, earliest_ms: int | None = None) -> int:
    kept: Any = store
    return await copies_begin(kept, QUEUE, SOURCE, DUE_MS, store.end, earliest_ms)


def steady(count: int, due_at: int) -> list[int]:
    """One message a ms; that at ``due_at`` is stored when the first copy is due."""
    return [DUE_MS - due_at + at for at in range(count)]


async def test_the_search_begins_where_the_first_may_be_and_reads_little() -> None:
    store = Times(steady(1_000_000, 900_000), epochs=(5, 400_000))
    assert await begin_of(store) == 900_000
    assert store.reads < LAST_MAX + SPREAD_MAX + 50


async def test_copies_that_came_before_their_time_by_our_levels_are_found_among_so_many() -> None:
    store = Times(steady(100_000, 50_000))
    assert await begin_of(store, earliest_ms=DUE_MS - EARLY_MAX) == 50_000 - EARLY_MAX
    assert await begin_of(store, earliest_ms=DUE_MS - EARLY_MAX - 1) == 50_000, "those are too many to read"
    assert await begin_of(store, earliest_ms=DUE_MS + 5) == 50_000


async def test_a_clock_that_went_far_back_among_the_last_is_seen_in_a_long_queue() -> None:
    times_ms = steady(100_000, 99_000)
    times_ms[-LAST_MAX + 1 :] = [ms - CLOCK_BACK_MAX_MS - 1_000 for ms in times_ms[-LAST_MAX + 1 :]]
    assert await begin_of(Times(times_ms)) == 0, "then a copy may lie anywhere behind its message"


async def test_a_clock_that_was_far_ahead_for_a_while_is_seen_where_the_queue_is_sampled() -> None:
    times_ms = steady(100_000, 99_000)
    step = len(times_ms) // SPREAD_MAX + 1
    times_ms[3 * step - 5 : 3 * step + 5] = [DUE_MS + 86_400_000] * 10
    assert await begin_of(Times(times_ms)) == 0


async def test_an_epoch_that_began_behind_its_former_ones_last_tells_of_a_clock_ahead() -> None:
    times_ms = steady(100_000, 99_000)
    times_ms[30_001:30_006] = [DUE_MS + 86_400_000] * 5
    assert await begin_of(Times(times_ms, epochs=(30_006,))) == 0
    assert await begin_of(Times(times_ms)) == 99_000, "by nothing else that is looked at"


@pytest.mark.parametrize("lost", ["unreadable", "zeroed"])
async def test_a_record_that_cannot_be_read_tells_nothing_and_holds_nothing_back(lost: str) -> None:
    store = Times(steady(10_000, 9_000))
    sampled = (len(store.times_ms) // SPREAD_MAX + 1) * 3
    for at in (sampled, len(store.times_ms) - 3):
        if lost == "unreadable":
            store.unreadable.add(at)
        else:
            store.times_ms[at] = 0
    assert await begin_of(store) == 9_000


async def test_times_that_go_back_a_little_move_the_search_by_no_more() -> None:
    times_ms = steady(200_000, 100_000)
    times_ms[-5:] = [ms - 50 for ms in times_ms[-5:]]
    assert await begin_of(Times(times_ms)) == 100_000 - CLOCK_BACK_MAX_MS


@pytest.mark.parametrize("seed", range(50))
async def test_no_copy_lies_before_the_search_however_times_go_back_within_what_is_seen(seed: int) -> None:
    draw = random.Random(seed)
    times_ms, now_ms = [], DUE_MS - draw.randrange(200_000)
    for _ in range(draw.randrange(1, LAST_MAX)):  # all of it is looked at
        now_ms += draw.randrange(5_000)
        times_ms.append(now_ms - draw.choice([0, 0, 0, 50, CLOCK_BACK_MAX_MS, 3_600_000]))
    first = next((at for at, ms in enumerate(times_ms) if ms >= DUE_MS), len(times_ms))
    assert await begin_of(Times(times_ms)) <= first


async def test_others_have_a_turn_while_it_reads() -> None:
    store, turns = Times(steady(100_000, 99_000)), 0
    looked = asyncio.ensure_future(begin_of(store))
    while not looked.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= (LAST_MAX + SPREAD_MAX) // READS_AT_ONCE
