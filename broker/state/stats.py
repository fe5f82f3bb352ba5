"""How much did this broker do? Counters since its start."""

from __future__ import annotations

from collections import deque
from datetime import date
from typing import Final, NamedTuple

from broker.state.counters import Counters
from broker.state.pulled import Pulled
from runtime.report.histogram import LONG_S, SIZES_BYTES, Histogram

WINDOW_MS: Final = 10_000


class Morning(NamedTuple):
    """Messages stored and read since the broker's start, when a day began; 0 on the day of the start."""

    put: int = 0
    got: int = 0


class Stats:
    """Messages stored and read, and bytes stored; rates over the last 10 s from samples taken by ``tick``."""

    def __init__(self) -> None:
        self.put_total = 0
        self.put_fast_total = 0
        self.put_bytes_total = 0
        self.get_total = 0
        self.counters = Counters()
        self.pulled = Pulled()
        self.age_when_read = Histogram(LONG_S)
        self.sizes = Histogram(SIZES_BYTES)
        self.today = Morning()
        self.yesterday = Morning()
        self._day: date | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=16)

    def put(self, messages: int, size_bytes: int) -> None:
        self.put_total += messages
        self.put_bytes_total += size_bytes

    def put_fast(self, messages: int, size_bytes: int) -> None:
        """``put`` by the fast path."""
        self.put_total += messages
        self.put_fast_total += messages
        self.put_bytes_total += size_bytes

    def got(self, messages: int) -> None:
        self.get_total += messages

    def tick(self, now_ms: float) -> None:
        self._samples.append((now_ms, self.put_total, self.get_total))

    def on_day(self, day: date) -> None:
        """Note what there is when a day begins: (the local) ``day`` is today."""
        if self._day is not None and day != self._day:
            self.yesterday, self.today = self.today, Morning(self.put_total, self.get_total)
        self._day = day

    def rates(self, now_ms: float) -> tuple[float, float]:
        """(messages put per second, messages got per second)."""
        since = next((s for s in self._samples if now_ms - s[0] <= WINDOW_MS), None)
        if since is None or now_ms <= since[0]:
            return 0.0, 0.0
        seconds = (now_ms - since[0]) / 1000
        return (self.put_total - since[1]) / seconds, (self.get_total - since[2]) / seconds
