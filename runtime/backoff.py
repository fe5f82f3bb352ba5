"""How long to wait before the next try: longer each time, bounded, never two nodes in step."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tenacity


class Backoff:
    """Waits that double from ``first_ms`` up to ``max_ms``, each drawn from its upper half.

    The waits are tenacity's; the chance is the node's own (``Env.random``), because tenacity's jitter draws
    from a source that all nodes of a simulation would share, and one seed must give one trace.
    """

    def __init__(self, chance: random.Random, first_ms: int, max_ms: int) -> None:
        self._random = chance
        self._first_s = first_ms / 1000
        self._max_s = max_ms / 1000
        self._tries: _Tries | None = None

    def next_s(self) -> float:
        """Seconds to wait now; the next wait is up to twice as long."""
        if self._tries is None:
            self._tries = _Tries(self._first_s, self._max_s)
        return self._tries.next_s() * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something worked: the next failure starts from the first wait again."""
        self._tries = None


class _Tries:
    """The tries since something worked. tenacity is imported at the first failure, not at the start."""

    def __init__(self, first_s: float, max_s: float) -> None:
        import tenacity

        self._wait = tenacity.wait_exponential(multiplier=first_s, max=max_s)
        self._state: tenacity.RetryCallState = tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})

    def next_s(self) -> float:
        wait_s = self._wait(self._state)
        self._state.prepare_for_next_attempt()
        return wait_s
