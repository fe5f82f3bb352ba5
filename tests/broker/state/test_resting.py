"""The promise of broker.state.resting: who rests is woken by the first message, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.state.resting import IDLE_S, Resting


def test_a_rest_ends_with_what_arrives_in_its_topic_and_ends_once() -> None:
    hooks: list[Callable[[Any], None]] = []
    resting = Resting(hooks)
    delays, timers = resting.of("delays"), resting.of("timers")
    assert not hooks, "nobody rests: nobody is asked"
    assert delays.begin() == timers.begin() == IDLE_S
    (arrive,) = hooks
    arrive([("T", 0, 1, 0), ("U", 1, 7, 0)])
    assert [delays.wake.is_set(), timers.wake.is_set()] == [False, False]
    arrive([("T", 0, 2, 0), ("delays", 3, 2, 0), ("delays", 4, 1, 0)])
    assert [delays.wake.is_set(), timers.wake.is_set()] == [True, False]
    delays.wake.clear()
    arrive([("delays", 3, 3, 0)])
    assert not delays.wake.is_set(), "it works, and looks by itself"
    delays.begin()
    arrive([("delays", 3, 4, 0), ("timers", 0, 1, 0)])
    assert [delays.wake.is_set(), timers.wake.is_set()] == [True, True]
    assert not hooks, "all work: nobody is asked"
