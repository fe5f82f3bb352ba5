"""From which offset does a group pop a queue next, and how far is it for good?

What a pop took must not be given to the next one, and a consumer offset may move only when the checkpoint of
the pop is confirmed: a successor that had the offset without the checkpoint would lose the messages. So
between the two the offset is here, and here alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

Key = tuple[str, str, int]
"""Topic, group, queue."""


def passed(known: int | None, pops: Iterable[tuple[int, int]]) -> int | None:
    """Where a group is in a queue after its last pops, each from a first to a last offset, in their order.

    ``known`` was noted before, amid or behind them; None: never. One that is none of the pops' was reset
    since, and stays.
    """
    moved = False
    for first, last in pops:
        # What a filter left out lies between two pops.
        if known is None or first <= known <= last or (moved and known < first):
            known, moved = last + 1, True
    return known


class Positions:
    """Offsets of pops whose checkpoints are on their way; pure.

    Holds: commits come in the order of the log; a queue is remembered as long as it has one on its way.
    """

    def __init__(self) -> None:
        self._next: dict[Key, int] = {}
        self._under_way: dict[Key, int] = {}
        self._waiting: deque[tuple[int, Key, int]] = (
            deque()
        )  # end of the checkpoint in the log, queue, offset
        self._end = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, key: Key) -> int | None:
        return self._next.get(key)

    def popped(self, key: Key, next_offset: int, end: int = 0) -> None:
        """A group goes on at ``next_offset`` of a queue, for good when the log is confirmed up to ``end``."""
        self._end = max(self._end, end)
        self._next[key] = next_offset
        self._under_way[key] = self._under_way.get(key, 0) + 1
        # One without a checkpoint waits as well: those before it may still be lost.
        self._waiting.append((self._end, key, next_offset))

    def confirmed(self, offset: int) -> list[tuple[Key, int]]:
        """The log is confirmed up to ``offset``: what is to be committed now."""
        found = []
        while self._waiting and self._waiting[0][0] <= offset:
            _, key, next_offset = self._waiting.popleft()
            found.append((key, next_offset))
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key], self._next[key]
        return found

    def drop(self, key: Key) -> None:
        """Somebody else said where the group goes on: what is on its way does not count."""
        if key in self._next:
            self._waiting = deque(row for row in self._waiting if row[1] != key)
            del self._under_way[key], self._next[key]

    def clear(self) -> None:
        """The role ended: what was not confirmed may not be there."""
        self._next.clear()
        self._under_way.clear()
        self._waiting.clear()
        self._end = 0

    def check_invariants(self) -> None:
        assert set(self._next) == set(self._under_way), "a queue is remembered while a commit is on its way"
        assert sum(self._under_way.values()) == len(self._waiting), "each commit is of one queue"
        ends = [end for end, _, _ in self._waiting]
        assert ends == sorted(ends), "commits come in the order of the log"
