"""What went into the revive topic, was read from it and came back, by topic and consumer group? Pure.

For RocketMQ's own metrics of it. The first ``pairs_max`` pairs of a topic and a group have rows of their own
until the broker ends, the rest has those named ``OTHERS``: a counter must not change what it counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from broker.state.figures import OTHERS, ROWS_MAX

CHECKPOINT: Final = "CK"
ACK: Final = "ACK"

Pair = tuple[str, str]
"""Topic and consumer group."""


class PopCounts:
    """Counts since the start of the process."""

    def __init__(self, pairs_max: int = ROWS_MAX) -> None:
        self._max = pairs_max
        self._own: set[Pair] = set()
        self._put: Counter[tuple[Pair, str]] = Counter()
        self._read: Counter[tuple[Pair, str, int]] = Counter()
        self._revived: Counter[Pair] = Counter()

    def put(self, topic: str, group: str, kind: str) -> None:
        """A record, ``CHECKPOINT`` or ``ACK``, was written to the revive topic."""
        self._put[self._pair(topic, group), kind] += 1

    def read(self, topic: str, group: str, kind: str, queue_id: int) -> None:
        """One was read from a revive queue: by each master that goes through it."""
        self._read[self._pair(topic, group), kind, queue_id] += 1

    def revived(self, topic: str, group: str, messages: int) -> None:
        """Messages were put into the retry topic of the group's pops."""
        self._revived[self._pair(topic, group)] += messages

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "put": [_row(pair, total) | {"kind": kind} for (pair, kind), total in self._put.items()],
            "read": [
                _row(pair, total) | {"kind": kind, "queueId": queue_id}
                for (pair, kind, queue_id), total in self._read.items()
            ],
            "revived": [_row(pair, total) for pair, total in self._revived.items()],
        }

    def _pair(self, topic: str, group: str) -> Pair:
        pair = (topic, group)
        if pair in self._own:
            return pair
        if len(self._own) >= self._max:
            return OTHERS, OTHERS
        self._own.add(pair)
        return pair


def _row(pair: Pair, total: int) -> dict[str, Any]:
    return {"topic": pair[0], "group": pair[1], "total": total}
