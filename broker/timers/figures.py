"""What do timer messages amount to since this broker started? Each counts once, however often it rolls."""

from __future__ import annotations

from typing import Any, Final

from broker.state.counters import Counters
from broker.state.figures import Durations, Rows
from runtime.report.histogram import DELAY_S, LONG_S, Histogram

ENQUEUED: Final = "TIMER_ENQUEUE_TOPIC_NUMS"
DEQUEUED_TO: Final = "TIMER_DEQUEUE_TOPIC_NUMS"
"""Counters of what the wheel took up and what left it, by topic."""


class TimerFigures:
    """Is told what the wheel takes up and what leaves it."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._waiting = Rows()
        self._delays = Durations(DELAY_S)
        self._late = Histogram(LONG_S)

    def taken_up(self, topic: str, delay_ms: int, now_ms: float) -> None:
        """A message that is to come ``delay_ms`` after it was stored."""
        self._counters.add(ENQUEUED, topic, 1, now_ms)
        self._delays.observe(topic, delay_ms / 1000)

    def delivered(self, topic: str, late_ms: int, now_ms: float) -> None:
        """A message was put into its topic so long after it was due."""
        self._counters.add(DEQUEUED_TO, topic, 1, now_ms)
        self._late.observe(late_ms / 1000)

    def to_json(self, waiting: dict[str, int]) -> dict[str, Any]:
        """``waiting``: how many, by topic."""
        return {
            "waiting": self._waiting.of(waiting),
            "delays": self._delays.to_json(),
            "late": self._late.to_json(),
        }
