"""How long to wait before the next try: longer each time, bounded, never two nodes in step."""

from __future__ import annotations

import random


class Backoff:
    """Waits that double from ``first_ms`` up to ``max_ms``, each drawn from its upper half."""

    def __init__(self, chance: random.Random, first_ms: int, max_ms: int) -> None:
        self._random = chance
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._next_ms = first_ms

    def next_s(self) -> float:
        """Seconds to wait now; the next wait is up to twice as long."""
        wait_ms = self._next_ms * self._random.uniform(0.5, 1.0)
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return wait_ms / 1000

    def reset(self) -> None:
        """Something worked: the next failure starts from the first wait again."""
        self._next_ms = self._first_ms
