"""Does a broker that was elected try to begin its epoch, or ask for another master?

A new master may be unable to begin: its disk takes no epoch, say. To the Controllers it lives. So where that
lasts, it asks them anew, as a restarted master does: another one leads, or it tries in a new epoch. Two that
cannot begin must not hand the group around for ever, so pauses grow, until it leads: that another one leads
proves nothing of it. Pure: time comes as ``now_ms`` (monotonic).
"""

from __future__ import annotations

from typing import Final

from model.ids import Epoch

WAIT_MS: Final = 1_000.0  # an error that passes within this is not worth an election
PAUSE_MS: Final = 2_000.0
PAUSE_MAX_MS: Final = 60_000.0


class Beginning:
    def __init__(self) -> None:
        self._epoch: Epoch | None = None  # that it could not begin
        self._since_ms = 0.0  # since then
        self._not_before_ms = float("-inf")
        self._pause_ms = PAUSE_MS

    def on_failed(self, epoch: Epoch, now_ms: float) -> None:
        """It was to lead ``epoch``, and could not begin."""
        if self._epoch != epoch:
            self._epoch, self._since_ms = epoch, now_ms

    def asks(self, epoch: Epoch, now_ms: float) -> bool:
        """It is to lead ``epoch``: whether to ask now instead of one more try; counts as asked."""
        if self._epoch != epoch or now_ms < max(self._since_ms + WAIT_MS, self._not_before_ms):
            return False
        self._not_before_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        return True

    def on_lead(self) -> None:
        self._epoch, self._pause_ms = None, PAUSE_MS
