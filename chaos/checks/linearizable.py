"""Is there one order of operations, each at some moment between its call and its answer, that explains them?

Wing and Gong's search with Lowe's memory of visited states. Exponential in the number of operations that are
open at once, so histories are cut by object (one broker group, one key) before they come here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

S = TypeVar("S", bound=Hashable)
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

STEPS_MAX: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Operation(Generic[I, O]):
    """``ended_ms`` None: no answer; it took effect at some moment after its call, or never."""

    called_ms: float
    ended_ms: float | None
    input: I
    output: O | None


class TooHard(Exception):
    """The search gave up: neither yes nor no."""


def linearizable(
    operations: Sequence[Operation[I, O]],
    state: S,
    step: Callable[[S, I, O | None], tuple[bool, S]],
    *,
    steps_max: int = STEPS_MAX,
) -> bool:
    """Whether ``operations`` on one object that starts as ``state`` are linearizable.

    ``step(state, input, output)`` says whether the object, being ``state``, may give ``output`` (None: any)
    and what it is afterwards. Raises TooHard after ``steps_max`` steps.
    """
    ordered = sorted(operations, key=lambda operation: operation.called_ms)
    answered = 0
    for number, operation in enumerate(ordered):
        if operation.ended_ms is not None:
            answered |= 1 << number
    visited: set[tuple[int, S]] = set()
    # (operations already placed as bits, the state they lead to, the first that is not placed)
    pending: list[tuple[int, S, int]] = [(0, state, 0)]
    steps = 0
    while pending:
        placed, current, first = pending.pop()
        if placed & answered == answered:
            return True
        steps += 1
        if steps > steps_max:
            raise TooHard(f"{len(ordered)} operations need more than {steps_max} steps")
        while placed >> first & 1:
            first += 1
        for number in reversed(_candidates(ordered, placed, first)):
            operation = ordered[number]
            possible, after = step(current, operation.input, operation.output)
            key = (placed | 1 << number, after)
            if possible and key not in visited:
                visited.add(key)
                pending.append((*key, first))
    return False


def _candidates(ordered: Sequence[Operation[I, O]], placed: int, first: int) -> list[int]:
    """Which operations may come next: those called before every operation that is not placed has ended."""
    found: list[int] = []
    soonest_end = float("inf")
    for number in range(first, len(ordered)):
        operation = ordered[number]
        if operation.called_ms > soonest_end:
            break
        if placed >> number & 1:
            continue
        found.append(number)
        if operation.ended_ms is not None:
            soonest_end = min(soonest_end, operation.ended_ms)
    return [number for number in found if ordered[number].called_ms <= soonest_end]
