"""How are peers that misbehave put into the log without filling it?

A flood of bad frames is a line each and nothing else; written at full speed it would cost the disk and hide
what matters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LINES_AT_ONCE: Final = 10
PER_S: Final = 1.0


class Complaints:
    """Up to ``LINES_AT_ONCE`` lines, then one a second; the next line says how many were left out."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._left = float(LINES_AT_ONCE)
        self._since_s: float | None = None
        self.left_out = 0
        self.total = 0

    def warn(self, text: str, *values: object) -> None:
        """``log.warning``, when there is room."""
        self.total += 1
        now_s = self._now_s()
        passed = 0.0 if self._since_s is None else max(0.0, now_s - self._since_s)
        self._since_s = now_s
        self._left = min(self._left + passed * PER_S, float(LINES_AT_ONCE))
        if self._left < 1:
            self.left_out += 1
            return
        self._left -= 1
        more = f" ({self.left_out} more such lines left out)" if self.left_out else ""
        self.left_out = 0
        self._log.warning(text + "%s", *values, more)
