"""How much did this broker do? Counters since its start."""

from __future__ import annotations

from collections import deque
from datetime import date
from typing import Final, NamedTuple

from broker.state.counters import Counters
from broker.state.pulled import Pulled
from runtime.report.histogram import LONG_S, SIZES_BYTES, Histogram

WINDOWS_MS: Final = (10_000, 60_000, 600_000)
"""Rates are over the last so many ms, as the original's."""
SAMPLE_MS: Final = 1000


class Morning(NamedTuple):
    """Messages stored and read since the broker's start, when a day began; 0 on the day of the start."""

    put: int = 0
    got: int = 0


class Totals(NamedTuple):
    """Messages stored, looks into queues that found some and that found none, messages read."""

    put: int = 0
    found: int = 0
    missed: int = 0
    got: int = 0


class Rates(NamedTuple):
    """By second, over each of WINDOWS_MS (of less, where there was less)."""

    put: tuple[float, ...]
    found: tuple[float, ...]
    missed: tuple[float, ...]
    got: tuple[float, ...]


class Stats:
    """What was stored and read; rates of it from samples taken by ``tick``."""

    def __init__(self) -> None:
        self.put_total = 0
        self.put_fast_total = 0
        self.put_bytes_total = 0
        self.get_total = 0
        self.found_total = 0
        self.missed_total = 0
        self.get_longest_ms = 0.0
        self.counters = Counters()
        self.pulled = Pulled()
        self.age_when_read = Histogram(LONG_S)
        self.sizes = Histogram(SIZES_BYTES)
        self.today = Morning()
        self.yesterday = Morning()
        self._day: date | None = None
        self._samples: deque[tuple[float, Totals]] = deque(maxlen=WINDOWS_MS[-1] // SAMPLE_MS + 2)

    def put(self, messages: int, size_bytes: int) -> None:
        self.put_total += messages
        self.put_bytes_total += size_bytes

    def put_fast(self, messages: int, size_bytes: int) -> None:
        """``put`` by the fast path."""
        self.put_total += messages
        self.put_fast_total += messages
        self.put_bytes_total += size_bytes

    def got(self, messages: int, pulls: int = 1) -> None:
        self.get_total += messages
        self.found_total += pulls

    def took(self, get_ms: float) -> None:
        """A look into a queue took so long."""
        if get_ms > self.get_longest_ms:
            self.get_longest_ms = get_ms

    @property
    def totals(self) -> Totals:
        return Totals(self.put_total, self.found_total, self.missed_total, self.get_total)

    def tick(self, now_ms: float) -> None:
        """A sample, at most one in SAMPLE_MS."""
        if not self._samples or now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, self.totals))

    def on_day(self, day: date) -> None:
        """Note what there is when a day begins: (the local) ``day`` is today."""
        if self._day is not None and day != self._day:
            self.yesterday, self.today = self.today, Morning(self.put_total, self.get_total)
        self._day = day

    def rates(self, now_ms: float) -> Rates:
        per_window = [self._over(now_ms, window_ms) for window_ms in WINDOWS_MS]
        return Rates(*zip(*per_window, strict=True))

    def _over(self, now_ms: float, window_ms: int) -> tuple[float, ...]:
        for at_ms, before in self._samples:
            if now_ms - at_ms <= window_ms:
                seconds = (now_ms - at_ms) / 1000
                if seconds <= 0:
                    break
                return tuple((now - then) / seconds for now, then in zip(self.totals, before, strict=True))
        return (0.0,) * len(Totals._fields)
