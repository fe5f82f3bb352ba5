"""How many topics or groups may clients create by using them, and how fast?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BURST_S: Final = 2.0
"""At most what is earned in so many seconds may be spent at once."""


class Quota:
    """Allows ``per_s`` new entries a second while the table has fewer than ``most``; pure.

    Holds: 0 <= what may be created now <= ``per_s * BURST_S``.
    """

    def __init__(self, per_s: int, most: int, now_ms: Callable[[], float]) -> None:
        self.most = most
        self._per_s = per_s
        self._now_ms = now_ms
        self._left = per_s * BURST_S
        self._since_ms = now_ms()

    def take(self, count: int) -> bool:
        """Whether a table of ``count`` entries may get one more; if so, it is counted."""
        now_ms = self._now_ms()
        # The clock may have been set back: then nothing is earned.
        earned = max(0.0, now_ms - self._since_ms) / 1000 * self._per_s
        self._left = min(self._left + earned, self._per_s * BURST_S)
        self._since_ms = now_ms
        self.check_invariants()
        if count >= self.most or self._left < 1:
            return False
        self._left -= 1
        return True

    def check_invariants(self) -> None:
        assert 0 <= self._left <= self._per_s * BURST_S, "a quota is never negative and never above its burst"
