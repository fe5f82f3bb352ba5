"""How long did answers to sends take, in the words of RocketMQ's tools? Pure.

A read's sends are one answer. The counts are of the current minute, as the original's, the quantiles of the
last full one.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from runtime.report.histogram import Histogram

_LEAST_MS: Final = (0, 1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_BEHIND_FIRST: Final = _LEAST_MS[1:]
_NAMES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s",
    "4~5s", "5~10s", "10s~",
)  # fmt: skip
assert len(_NAMES) == len(_LEAST_MS), "a name for each"
MINUTE_MS: Final = 60_000
LATEST_MAX: Final = 64


class PutTimes:
    def __init__(self) -> None:
        self._seen = Histogram()
        self._longest_ms = 0.0
        self._latest: list[float] = []
        """Not counted yet: most of what the count of one takes is the way there."""
        self.p99_ms = 0.0
        self.p999_ms = 0.0
        self._counts = [0] * len(_NAMES)
        self._at_once = 0
        self._waited: dict[float, int] = {}  # ms, rounded: how many; a few hundred keys at most
        self._turned_ms: float | None = None

    def none(self) -> None:
        """An answer waited for nothing: most do."""
        self._seen.observe(0.0)
        self._at_once += 1

    def waited(self, took_ms: float) -> None:
        latest = self._latest
        latest.append(took_ms)
        if len(latest) >= LATEST_MAX:
            self._count()

    def _count(self) -> None:
        latest, self._latest = self._latest, []
        self._seen.observe_each([took_ms / 1000 for took_ms in latest])
        for took_ms in latest:
            self._counts[bisect_right(_BEHIND_FIRST, took_ms)] += 1
            rounded = _rounded(took_ms)
            self._waited[rounded] = self._waited.get(rounded, 0) + 1
        self._longest_ms = max(self._longest_ms, *latest, 0.0)

    @property
    def seen(self) -> Histogram:
        """All since the start, as ``/metrics`` has them."""
        self._count()
        return self._seen

    @property
    def longest_ms(self) -> float:
        self._count()
        return self._longest_ms

    def tick(self, now_ms: float) -> None:
        """Begin a new minute if it is time."""
        if self._turned_ms is None:
            self._turned_ms = now_ms
        elif now_ms - self._turned_ms >= MINUTE_MS:
            self._count()
            self.p99_ms, self.p999_ms = self._quantile(0.99), self._quantile(0.999)
            self._at_once = 0
            self._counts = [0] * len(_NAMES)
            self._waited.clear()
            self._turned_ms = now_ms

    def text(self) -> str:
        """``[<=0ms]:12 [0~10ms]:3 ...``."""
        self._count()
        counts = [self._counts[0] + self._at_once, *self._counts[1:]]
        return " ".join(f"[{name}]:{count}" for name, count in zip(_NAMES, counts, strict=True))

    def _quantile(self, part: float) -> float:
        total = self._at_once + sum(self._waited.values())
        seen = self._at_once
        for before, ms in pairwise([0.0, *sorted(self._waited)]):
            if seen >= part * total:
                return before
            seen += self._waited[ms]
        return max(self._waited, default=0.0)


def _rounded(ms: float) -> float:
    """Up to the next tenth below 10 ms, then to the next 1, 10, 100, 1000."""
    step = 0.1
    while ms > 100 * step:
        step *= 10
    return round(-(-ms // step) * step, 1)
