"""How long to wait before the next try: longer each time, bounded, never two nodes in step."""

from __future__ import annotations

import random

import tenacity


class Backoff:
    """Waits that double from ``first_ms`` up to ``max_ms``, each drawn from its upper half.

    The waits are tenacity's; the chance is the node's own (``Env.random``), because tenacity's jitter draws
    from a source that all nodes of a simulation would share, and one seed must give one trace.
    """

    def __init__(self, chance: random.Random, first_ms: int, max_ms: int) -> None:
        self._random = chance
        self._wait = tenacity.wait_exponential(multiplier=first_ms / 1000, max=max_ms / 1000)
        self._state = _first_try()

    def next_s(self) -> float:
        """Seconds to wait now; the next wait is up to twice as long."""
        wait_s = self._wait(self._state) * self._random.uniform(0.5, 1.0)
        self._state.prepare_for_next_attempt()
        return wait_s

    def reset(self) -> None:
        """Something worked: the next failure starts from the first wait again."""
        self._state = _first_try()


def _first_try() -> tenacity.RetryCallState:
    return tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})
