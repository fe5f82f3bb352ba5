"""How long was a group without a master, from its loss until the next one was elected? Pure.

Only this Controller's own elections count: one that began to lead in between does not know when the loss was.
"""

from __future__ import annotations

from typing import Final

from runtime.report.histogram import Histogram

GROUPS_MAX: Final = 10_000


class Outages:
    """``lasted``: seconds, of those that are over."""

    def __init__(self) -> None:
        self.lasted = Histogram()
        self._lost_ms: dict[str, float] = {}

    def on_lost(self, group: str, now_ms: float) -> None:
        """Its master is lost."""
        if len(self._lost_ms) < GROUPS_MAX:
            self._lost_ms[group] = now_ms

    def on_elected(self, group: str, now_ms: float) -> None:
        """It has a master again, or another one."""
        lost_ms = self._lost_ms.pop(group, None)
        if lost_ms is not None:
            self.lasted.observe((now_ms - lost_ms) / 1000)

    def forget(self) -> None:
        """Another Controller leads, or led meanwhile: it elects, or did."""
        self._lost_ms.clear()
