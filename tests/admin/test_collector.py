"""The promise to the lease: no long table and no flood makes Python hold the loop for its garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from admin.host import collector as module
from admin.host.collector import ALL_S, GROWN_BYTES, LOOK_S, Collector, is_due, resident_bytes


class Node:
    def __init__(self) -> None:
        self.other: Node | None = None


@pytest.fixture
def collector() -> Iterator[tuple[Collector, list[float], list[int]]]:
    now, rss = [0.0], [0]
    before = gc.get_threshold()
    made = Collector(lambda: now[0], lambda: rss[0])
    made.begin()
    yield made, now, rss
    made.end()
    gc.set_threshold(*before)


def cycle() -> weakref.ref[Node]:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


def test_what_is_there_after_the_start_is_never_looked_through_again(
    collector: tuple[Collector, list[float], list[int]],
) -> None:
    table = [[n] for n in range(100_000)]
    collector[0].begin()
    assert gc.get_freeze_count() > len(table)
    looked: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked.append(1)

    gc.callbacks.append(count)
    try:
        flood = [[n] for n in range(400_000)]  # by itself Python would look at everything several times
    finally:
        gc.callbacks.remove(count)
    assert (looked, len(flood)) == ([], 400_000)


def test_garbage_goes_in_time_or_when_the_process_has_grown(
    collector: tuple[Collector, list[float], list[int]],
) -> None:
    made, now, rss = collector
    for _ in range(2):
        found = cycle()
        gc.collect(1)  # it may go at once; what is old enough to be kept is what counts here
        old = cycle()
        held = old()
        gc.collect(1)
        del held
        made.step()
        now[0] += LOOK_S
        made.step()
        assert (found(), old()) == (None, None)
    old = cycle()
    rss[0] += GROWN_BYTES
    made.step()
    assert old() is None


def test_what_was_frozen_and_became_garbage_goes_too(
    collector: tuple[Collector, list[float], list[int]],
) -> None:
    made, now, _ = collector
    found = cycle()
    held = found()
    made.begin()
    del held
    now[0] += LOOK_S
    made.step()
    assert found() is not None, "it is not looked at"
    now[0] += ALL_S
    made.step()
    assert found() is None


def test_a_look_is_due_by_time_or_growth() -> None:
    assert not is_due(LOOK_S - 1, GROWN_BYTES - 1)
    assert is_due(LOOK_S, 0)
    assert is_due(0, GROWN_BYTES)
    assert resident_bytes() > 1 << 20
    assert module.NEVER > 1 << 20
