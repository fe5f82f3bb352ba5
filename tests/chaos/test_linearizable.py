"""The promise of the search: it finds an order when there is one, and says so when there is none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.checks.linearizable import Operation, TooHard, linearizable

Input = tuple[str, int, int]
Register = Operation[Input, int]


def step(state: int, wanted: Input, got: int | None) -> tuple[bool, int]:
    """A register: read, write(a), compare-and-set(a, b)."""
    kind, a, b = wanted
    if kind == "read":
        return got in (None, state), state
    if kind == "write":
        return True, a
    if state == a:
        return got in (None, 1), b
    return got in (None, 0), state


def op(
    called: float, ended: float | None, kind: str, a: int = 0, b: int = 0, got: int | None = None
) -> Register:
    return Operation(called, ended, (kind, a, b), got)


def test_a_read_may_see_a_write_that_is_still_open() -> None:
    assert linearizable([op(0, 10, "write", 5), op(1, 2, "read", got=5), op(3, 4, "read", got=5)], 0, step)


def test_a_read_after_a_read_of_the_new_value_cannot_see_the_old_one() -> None:
    assert not linearizable(
        [op(0, 10, "write", 5), op(1, 2, "read", got=5), op(3, 4, "read", got=0)], 0, step
    )


def test_a_write_without_answer_may_take_effect_late_or_never() -> None:
    lost = op(0, None, "write", 5)
    assert linearizable([lost, op(1, 2, "read", got=0), op(8, 9, "read", got=5)], 0, step)
    assert linearizable([lost, op(8, 9, "read", got=0)], 0, step)
    assert not linearizable([lost, op(1, 2, "read", got=5), op(8, 9, "read", got=0)], 0, step)


def test_two_compare_and_sets_of_one_value_cannot_both_win() -> None:
    assert not linearizable([op(0, 5, "cas", 0, 1, got=1), op(1, 6, "cas", 0, 2, got=1)], 0, step)
    assert linearizable([op(0, 5, "cas", 0, 1, got=1), op(1, 6, "cas", 0, 2, got=0)], 0, step)


def test_a_search_that_takes_too_long_says_so() -> None:
    operations = [op(0, 100, "write", number) for number in range(30)]
    with pytest.raises(TooHard):
        linearizable([*operations, op(101, 102, "read", got=99)], 0, step, steps_max=1000)


def history(seed: int, count: int) -> list[Register]:
    """Operations of four processes around moments at which a real register did them."""
    rng = random.Random(seed)
    free = [0.0] * 4
    planned = []
    for _ in range(count):
        process = min(range(4), key=lambda p: free[p])
        called = free[process] + rng.random()
        moment = called + rng.random()
        free[process] = ended = moment + rng.random()
        planned.append((moment, called, ended))
    state = 0
    found = []
    for _, called, ended in sorted(planned):
        kind = rng.choice(("read", "write", "cas"))
        a, b = rng.randrange(4), rng.randrange(4)
        possible = {"read": state, "write": None, "cas": int(state == a)}
        state = {"read": state, "write": a, "cas": b if state == a else state}[kind]
        found.append(op(called, None if rng.random() < 0.05 else ended, kind, a, b, possible[kind]))
    return found


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_what_a_real_register_did_is_linearizable(seed: int) -> None:
    assert linearizable(history(seed, 60), 0, step)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_a_value_nobody_wrote_is_never_explained(seed: int) -> None:
    operations = [o for o in history(seed, 24) if o.ended_ms is not None]
    end = max(o.ended_ms or 0 for o in operations)
    assert not linearizable([*operations, op(end + 1, end + 2, "read", got=99)], 0, step)
