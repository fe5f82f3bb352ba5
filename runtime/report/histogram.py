"""How often did something take how long, or how many bytes? Pure.

The bounds are fixed, so that counts of many servers add up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final

SHORT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""For what a producer waits for."""
ANSWERS_S: Final = (*SHORT_S[:3], 0.003, 0.005, 0.007, *SHORT_S[4:11], 2.0, 2.5, 3.0, 5.0, 10.0)
"""For what a request waits for: those of SHORT_S, and of ``RPC_MS``."""
RPC_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""The bounds of RocketMQ's own histogram of answers, ms."""
LONG_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0)
"""For what may lie in a queue first."""
SIZES_BYTES: Final = (1024, 4096, 512 * 1024, 1 << 20, 2 << 20, 4 << 20)
"""For messages; the bounds of RocketMQ's own histogram."""
FINISH_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
"""For transactions until they end; RocketMQ's own bounds."""
DELAY_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)
"""For how much later a message is to come; RocketMQ's own bounds."""


class Histogram:
    """Counts by upper bound (inclusive; seconds, or what the caller counts), and the sum of all."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float] = SHORT_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """One more, or several; less than nothing (clocks of two machines) counts as nothing."""
        if seconds < 0:
            seconds = 0.0
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def observe_each(self, values: Iterable[float]) -> None:
        """``observe`` of a few."""
        bounds, counts = self._bounds, self._counts
        for value in values:
            seconds = value if value > 0 else 0.0
            counts[bisect_left(bounds, seconds)] += 1
            self._sum += seconds

    def observe_since(self, at_ms: Iterable[int], now_ms: int) -> None:
        """``observe`` how long ago each of a few was."""
        bounds, counts = self._bounds, self._counts
        for one_ms in at_ms:
            seconds = (now_ms - one_ms) / 1000 if now_ms > one_ms else 0.0
            counts[bisect_left(bounds, seconds)] += 1
            self._sum += seconds

    def observe_counted(self, counts: Sequence[int], total: float) -> None:
        """Many more, counted elsewhere by the same bounds: ``counts`` are those at most each bound and above
        the one before it, and those above all; ``total`` is their sum."""
        for place, count in enumerate(counts):
            self._counts[place] += count
        self._sum += total

    def to_json(self) -> dict[str, Any]:
        """``counts`` by bound, each with those of the bounds below it; the last one is of all."""
        total, counts = 0, []
        for count in self._counts:
            total += count
            counts.append(total)
        return {"bounds": list(self._bounds), "counts": counts, "sum": round(self._sum, 6)}
