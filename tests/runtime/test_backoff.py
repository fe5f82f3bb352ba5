"""The promise of waiting: longer each time, never beyond the bound, and from the node's own chance."""

import random

import pytest

from runtime.backoff import Backoff


def test_waits_double_up_to_the_bound_and_start_anew_after_a_success() -> None:
    backoff = Backoff(random.Random(7), 50, 1000)
    bounds_s = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for bound_s in bounds_s:
        assert bound_s / 2 <= backoff.next_s() <= bound_s
    backoff.reset()
    assert backoff.next_s() <= 0.05


def test_a_node_that_waits_for_ever_stays_within_the_bound() -> None:
    backoff = Backoff(random.Random(7), 50, 1000)
    assert max(backoff.next_s() for _ in range(3000)) <= 1.0


def test_one_seed_gives_the_same_waits() -> None:
    def waits(seed: int) -> list[float]:
        backoff = Backoff(random.Random(seed), 50, 1000)
        return [backoff.next_s() for _ in range(5)]

    assert waits(1) == pytest.approx(waits(1))
    assert waits(1) != pytest.approx(waits(2))
