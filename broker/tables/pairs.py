"""How many pairs of a topic and a group may have consumer offsets?

Each costs memory here, at every slave and in a file, and a client makes one by a commit, a pull or a pop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

Pair = tuple[str, str]
"""Topic, group."""

QUEUES_A_PAIR: Final = 16
"""A pair of a topic with more queues counts once for each so many: it may get an offset of every queue."""


class PairCount:
    """Counts pairs, each as often as its topic is wide; pure.

    ``most()``: so many may be there. ``queues_of`` a topic, 0 when it is not known (yet). Holds: what a pair
    added goes with it, however many queues its topic has by then.
    """

    def __init__(
        self, most: Callable[[], int] | None = None, queues_of: Callable[[str], int] | None = None
    ) -> None:
        self._most = most
        self._queues_of = queues_of
        self._wide: dict[Pair, int] = {}  # those that count more than once
        self._reserved: dict[Pair, int] = {}
        self.used = 0
        """How much those that are there and the reserved ones count for."""

    def width(self, topic: str) -> int:
        """How often a pair of this topic counts."""
        queues = 0 if self._queues_of is None else self._queues_of(topic)
        return max(1, -(-queues // QUEUES_A_PAIR))

    def add(self, pair: Pair) -> None:
        """One that was not there, reserved or not."""
        self._add(pair, self.width(pair[0]))

    def _add(self, pair: Pair, width: int) -> None:
        self.release(pair)
        if width > 1:
            self._wide[pair] = width
        self.used += width

    def remove(self, pair: Pair) -> None:
        """One that was there."""
        self.used -= self._wide.pop(pair, 1)

    def reserve(self, pair: Pair) -> None:
        """One that is not there is on its way: until it comes, or ``release``, it counts as if it were."""
        if pair not in self._reserved:
            self._reserved[pair] = self.width(pair[0])
            self.used += self._reserved[pair]

    def release(self, pair: Pair) -> None:
        """Nothing happens to one that is not reserved."""
        self.used -= self._reserved.pop(pair, 0)

    def replace(self, pairs: Iterable[Pair]) -> None:
        """Others are there now."""
        self._wide.clear()
        self.used = sum(self._reserved.values())
        widths: dict[str, int] = {}
        for pair in pairs:
            topic = pair[0]
            if topic not in widths:
                widths[topic] = self.width(topic)
            self._add(pair, widths[topic])

    def is_reserved(self, pair: Pair) -> bool:
        return pair in self._reserved

    def has_room(self, topic: str) -> bool:
        """Whether one more pair of this topic may come to be."""
        return self._most is None or self.used + self.width(topic) <= self._most()

    def check_invariants(self) -> None:
        assert self.used >= sum(self._wide.values()) + sum(self._reserved.values()), (
            "each counts that is here"
        )

    def check_against(self, pairs: Iterable[Pair]) -> None:
        """As ``check_invariants``, where ``pairs`` are those that are there."""
        there = set(pairs)
        assert self._wide.keys() <= there, "what is not there counts for nothing"
        counted = len(there) + sum(self._wide.values()) - len(self._wide)
        assert self.used == counted + sum(self._reserved.values()), "each pair is counted"
