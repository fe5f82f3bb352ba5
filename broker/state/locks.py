"""Which client of a group may consume a queue in order?

One owner per group and queue for 60 s since it last asked; kept
in memory only, as the original does: a new master starts with none and owners ask again every 20 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from runtime.sizes import text_bytes

LOCK_LIVES_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
SWEEP_MS: Final = 1000.0
LOCK_BYTES: Final = 400
"""Of a lock besides its texts: what it is found by, its owner, their places in a table."""
ROOM_BYTES: Final = 1024
"""How much a lock may take on average: more than the longest names of a topic, a group and a client do."""

Queue = tuple[str, str, int]  # broker name, topic, queue id


@dataclass(slots=True)
class _Owner:
    client_id: str
    at_ms: float


class QueueLocks:
    """Owners by group and queue; pure, time comes in as ``now_ms``.

    Holds: at most ``most`` queues have an owner, and these take at most ``most`` * ROOM_BYTES; each group's
    stand in the order they were locked.
    """

    def __init__(self, most: int = LOCKS_MAX) -> None:
        self._most = most
        self._groups: dict[str, dict[Queue, _Owner]] = {}
        self._count = 0
        self.bytes = 0
        self._swept_ms = -SWEEP_MS

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: float) -> list[Queue]:
        """The queues of ``queues`` that belong to ``client_id`` now."""
        if now_ms - self._swept_ms >= LOCK_LIVES_MS:
            self._expire(now_ms)  # those nobody asks for again would stay until the table is full
        mine = []
        owners = self._groups.setdefault(group, {})
        for queue in queues:
            owner = owners.get(queue)
            if owner is not None:
                if owner.client_id != client_id and now_ms - owner.at_ms <= LOCK_LIVES_MS:
                    continue
                self._drop(group, owners, queue)  # to the end
            size = _bytes(group, queue, client_id)
            if not self._has_room(size):
                self._expire(now_ms)
                if not self._has_room(size):
                    continue
            owners[queue] = _Owner(client_id, now_ms)
            self._count += 1
            self.bytes += size
            mine.append(queue)
        if owners:
            self._groups[group] = owners
        else:
            self._groups.pop(group, None)
        return mine

    def _has_room(self, size: int) -> bool:
        return self._count < self._most and self.bytes + size <= self._most * ROOM_BYTES

    def _drop(self, group: str, owners: dict[Queue, _Owner], queue: Queue) -> None:
        self.bytes -= _bytes(group, queue, owners.pop(queue).client_id)
        self._count -= 1

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        owners = self._groups.get(group, {})
        for queue in queues:
            owner = owners.get(queue)
            if owner is not None and owner.client_id == client_id:
                self._drop(group, owners, queue)
        if not owners:
            self._groups.pop(group, None)

    def locked(self, group: str, topic: str, queue_id: int, now_ms: float) -> bool:
        """Whether anyone owns the queue of this group."""
        return any(
            queue[1] == topic and queue[2] == queue_id and now_ms - owner.at_ms <= LOCK_LIVES_MS
            for queue, owner in self._groups.get(group, {}).items()
        )

    def group_has_locks(self, group: str, now_ms: float) -> bool:
        owners = self._groups.get(group)
        newest = next(reversed(owners.values()), None) if owners else None
        return newest is not None and now_ms - newest.at_ms <= LOCK_LIVES_MS

    def clear(self) -> None:
        self._groups.clear()
        self._count = self.bytes = 0

    def check_invariants(self) -> None:
        locks = [(g, queue, o) for g, owners in self._groups.items() for queue, o in owners.items()]
        assert self._count == len(locks), "each lock is counted once"
        assert self._count <= self._most, "no more queues are locked than may be"
        assert self.bytes == sum(_bytes(g, queue, o.client_id) for g, queue, o in locks), "all is counted"

    def _expire(self, now_ms: float) -> None:
        """Drop what is over, each group's oldest first, not too often."""
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms = now_ms
        for group, owners in list(self._groups.items()):
            for queue in list(owners):
                if now_ms - owners[queue].at_ms <= LOCK_LIVES_MS:
                    break
                self._drop(group, owners, queue)
            if not owners:
                del self._groups[group]


def _bytes(group: str, queue: Queue, client_id: str) -> int:
    """About what a lock takes; texts that several locks share count for each."""
    return LOCK_BYTES + sum(map(text_bytes, (group, queue[0], queue[1], client_id)))
