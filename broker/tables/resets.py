"""Which offsets did an operator give a group, and nobody has read from them yet? Pure.

Until a pull of the queue was told to go on there, what members commit is of their time before the reset:
it would undo it. As Apache RocketMQ 5.5 (``useServerSideResetOffset``) this is known to the master alone, and
not kept.
"""

from __future__ import annotations

from typing import Final

QUEUES_MAX: Final = 200_000
"""Beyond, the oldest pair is forgotten: its offsets were committed, and count as any commit does."""


class Resets:
    """Holds: ``count`` is that of all queues."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}  # (topic, group): the oldest first
        self.count = 0

    def add(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._offsets.setdefault((topic, group), {})
        self.count += queue_id not in queues
        queues[queue_id] = offset
        while self.count > QUEUES_MAX:
            self.drop(next(iter(self._offsets)))

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group), {}).get(queue_id) if self.count else None

    def end(self, group: str, topic: str, queue_id: int) -> None:
        """It is read from there."""
        queues = self._offsets.get((topic, group), {})
        if queues.pop(queue_id, None) is not None:
            self.count -= 1
            if not queues:
                del self._offsets[topic, group]

    def drop(self, pair: tuple[str, str]) -> None:
        """Of a (topic, group)."""
        self.count -= len(self._offsets.pop(pair, ()))

    def clear(self) -> None:
        self._offsets.clear()
        self.count = 0

    def check_invariants(self) -> None:
        assert self.count == sum(map(len, self._offsets.values())), "each counts once"
        assert all(self._offsets.values()), "a pair without queues is forgotten"
