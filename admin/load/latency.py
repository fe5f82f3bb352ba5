"""How long did something take, mostly and at worst? Counts in buckets of 1 %: memory is bounded. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

_STEP: Final = math.log(1.01)
LEAST_MS: Final = 0.001
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


class Latencies:
    """Durations in ms. A percentile is exact to 1 %, and never told too low; the largest one is exact."""

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = 0.0
        self._buckets = Counter[int]()

    def add(self, took_ms: float) -> None:
        self.count += 1
        self.max_ms = max(self.max_ms, took_ms)
        self._buckets[math.ceil(math.log(max(took_ms, LEAST_MS) / LEAST_MS) / _STEP)] += 1

    def at(self, part: float) -> float:
        """The duration that ``part`` (0 to 1) of all do not exceed; 0 without any."""
        wanted, seen = math.ceil(part * self.count), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(self.max_ms, LEAST_MS * math.exp(bucket * _STEP))
        return self.max_ms

    def to_json(self) -> dict[str, float] | None:
        """None without any."""
        if not self.count:
            return None
        found = {name: round(self.at(part), 3) for name, part in PERCENTILES.items()}
        return {**found, "max": round(self.max_ms, 3)}
