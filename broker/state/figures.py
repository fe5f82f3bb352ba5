"""What do the topics and consumer groups of a broker amount to, told in a bounded number of rows? Pure.

A broker may have 50,000 topics; what watches it must not be given a row for each. The first ``ROWS_MAX`` that
are met have a row of their own until the broker ends (a counter must not change what it counts); of lags the
largest have. The rest is one row named ``OTHERS``, which no topic or group can be called.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runtime.report.histogram import Histogram
from runtime.turns import Slice

ROWS_MAX: Final = 50
OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer group is behind in a topic: ``messages`` that it has not confirmed, of which its
    consumers got ``inflight``. ``behind_ms``: age of the oldest of them, ``waits_ms``: of the oldest that no
    consumer got; None: there is none, or nothing says it."""

    group: str
    topic: str
    messages: int
    inflight: int = 0
    behind_ms: int | None = None
    waits_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "topic": self.topic,
            "messages": self.messages,
            "inflight": self.inflight,
            "behindMs": self.behind_ms,
            "waitsMs": self.waits_ms,
        }


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How many messages of one queue a consumer group has not read."""

    group: str
    topic: str
    queue_id: int
    messages: int

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "topic": self.topic,
            "queueId": self.queue_id,
            "messages": self.messages,
        }


class Rows:
    """Counters by name, of which the first ``rows_max`` keep their own row."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._max = rows_max
        self._own: dict[str, None] = {}

    def of(self, totals: Mapping[str, int]) -> dict[str, int]:
        """``totals`` in at most ``rows_max`` rows and one for the rest."""
        own = self._own_of(totals)
        return self._told(totals, own, sum(totals.values()) - sum(own.values()))

    async def of_many(self, totals: Mapping[str, int], slice_: Slice) -> dict[str, int]:
        """As ``of``, of a hundred thousand that do not change meanwhile. Raises as ``slice_``."""
        own, whole = self._own_of(totals), 0
        for total in totals.values():
            whole += total
            await slice_.breathe()
        return self._told(totals, own, whole - sum(own.values()))

    def _own_of(self, totals: Mapping[str, int]) -> dict[str, int]:
        for name in totals:
            if len(self._own) >= self._max:
                break
            self._own.setdefault(name)
        return {name: totals[name] for name in self._own if name in totals}

    @staticmethod
    def _told(totals: Mapping[str, int], own: dict[str, int], rest: int) -> dict[str, int]:
        return {**own, OTHERS: rest} if len(totals) > len(own) else own


class Durations:
    """How long something took, by topic: the first ``rows_max`` have a histogram each, all others one."""

    def __init__(self, bounds: Sequence[float], rows_max: int = ROWS_MAX) -> None:
        self._bounds = bounds
        self._max = rows_max
        self._seen: dict[str, Histogram] = {}

    def observe(self, topic: str, seconds: float) -> None:
        seen = self._seen.get(topic)
        if seen is None:
            row = topic if len(self._seen) < self._max else OTHERS
            seen = self._seen.setdefault(row, Histogram(self._bounds))
        seen.observe(seconds)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"topic": topic, **seen.to_json()} for topic, seen in self._seen.items()]


class Lags:
    """Of lags that are met one after the other the largest, and the sum of all others; pure.

    Holds: it keeps less than twice as many as it shows.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._max = rows_max
        self._kept: list[Lag] = []
        self._rest = self._rest_inflight = 0
        self._met = 0

    def add(self, lag: Lag) -> None:
        self._met += 1
        self._kept.append(lag)
        if len(self._kept) >= 2 * self._max:
            self._cut()

    def shown(self) -> tuple[list[Lag], Lag | None]:
        """The largest lags, and all others in one."""
        self._cut()
        others = Lag(OTHERS, OTHERS, self._rest, self._rest_inflight) if self._met > len(self._kept) else None
        return list(self._kept), others

    def _cut(self) -> None:
        self._kept.sort(key=lambda one: (-one.messages, one.group, one.topic))
        for one in self._kept[self._max :]:
            self._rest += one.messages
            self._rest_inflight += one.inflight
        del self._kept[self._max :]


def largest_queues(lags: Iterable[QueueLag], rows_max: int = ROWS_MAX) -> list[QueueLag]:
    """The queues in which groups are furthest behind. The others have no row: lags of groups have them."""
    return heapq.nsmallest(
        rows_max, lags, key=lambda one: (-one.messages, one.group, one.topic, one.queue_id)
    )
