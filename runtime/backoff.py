"""How long to wait before the next try: longer each time, bounded, never two nodes in step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

DOUBLINGS_MAX: Final = 32  # any bound is reached by then, and the power stays a small number


def backoff_s(doublings: int, first_s: float, max_s: float, chance: random.Random) -> float:
    """``first_s``, doubled so often, at most ``max_s``; drawn from the upper half of that."""
    longest_s: float = min(first_s * 2 ** min(doublings, DOUBLINGS_MAX), max_s)
    return longest_s * chance.uniform(0.5, 1.0)


class Backoff:
    """Waits that double from ``first_ms`` up to ``max_ms``. The chance is the node's own (``Env.random``), so
    that one seed gives one trace."""

    def __init__(self, chance: random.Random, first_ms: int, max_ms: int) -> None:
        self._random = chance
        self._first_s = first_ms / 1000
        self._max_s = max_ms / 1000
        self.tries = 0
        """In a row."""

    def next_s(self) -> float:
        """Seconds to wait now; the next wait is up to twice as long."""
        self.tries += 1
        return backoff_s(self.tries - 1, self._first_s, self._max_s, self._random)

    def reset(self) -> None:
        """Something worked: the next failure starts from the first wait again."""
        self.tries = 0
