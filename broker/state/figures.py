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

ROWS_MAX: Final = 50
OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer group is behind in a topic. ``behind_ms``: age of the oldest message that it has not
    read; None: it has read all, or nothing says it."""

    group: str
    topic: str
    messages: int
    behind_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "topic": self.topic,
            "messages": self.messages,
            "behindMs": self.behind_ms,
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
        for name in totals:
            if len(self._own) >= self._max:
                break
            self._own.setdefault(name)
        found = {name: totals[name] for name in self._own if name in totals}
        rest = sum(total for name, total in totals.items() if name not in self._own)
        return {**found, OTHERS: rest} if len(totals) > len(found) else found


def largest_queues(lags: Iterable[QueueLag], rows_max: int = ROWS_MAX) -> list[QueueLag]:
    """The queues in which groups are furthest behind. The others have no row: lags of groups have them."""
    return heapq.nsmallest(
        rows_max, lags, key=lambda one: (-one.messages, one.group, one.topic, one.queue_id)
    )


def largest(lags: Iterable[Lag], rows_max: int = ROWS_MAX) -> tuple[list[Lag], Lag | None]:
    """The largest lags, and all others in one."""
    ranked: Sequence[Lag] = sorted(lags, key=lambda one: (-one.messages, one.group, one.topic))
    rest = ranked[rows_max:]
    others = Lag(OTHERS, OTHERS, sum(one.messages for one in rest)) if rest else None
    return list(ranked[:rows_max]), others
