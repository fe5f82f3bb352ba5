"""How fast, and up to how many, may clients make entries of a table by using them?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BURST_S: Final = 2.0
"""So many seconds' worth may come at once."""


class Quota:
    """Lets ``per_s`` entries be made each second while the table has fewer than ``most``; pure.

    Holds: 0 <= what is left <= ``per_s * BURST_S``.
    """

    def __init__(self, per_s: int, most: int, now_ms: Callable[[], float]) -> None:
        self.most = most
        self._per_s = per_s
        self._now_ms = now_ms
        self._left = per_s * BURST_S
        self._since_ms = now_ms()

    def take(self, count: int) -> bool:
        """Whether one more may be made, of a table that has ``count``; then it is counted."""
        now_ms = self._now_ms()
        # The clock may have been set back: nothing is earned then.
        earned = max(0.0, now_ms - self._since_ms) / 1000 * self._per_s
        self._left = min(self._left + earned, self._per_s * BURST_S)
        self._since_ms = now_ms
        self.check_invariants()
        if count >= self.most or self._left < 1:
            return False
        self._left -= 1
        return True

    def check_invariants(self) -> None:
        assert 0 <= self._left <= self._per_s * BURST_S, "a quota is neither overdrawn nor hoarded"
