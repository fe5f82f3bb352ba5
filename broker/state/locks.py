"""Which client of a group may consume a queue in order?

One owner per group and queue for 60 s since it last asked; kept
in memory only, as the original does: a new master starts with none and owners ask again every 20 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LOCK_LIVES_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
SWEEP_MS: Final = 1000.0

Queue = tuple[str, str, int]  # broker name, topic, queue id


@dataclass(slots=True)
class _Owner:
    client_id: str
    at_ms: float


class QueueLocks:
    """Owners by group and queue; pure, time comes in as ``now_ms``.

    Holds: at most ``most`` queues have an owner; each group's stand in the order they were locked.
    """

    def __init__(self, most: int = LOCKS_MAX) -> None:
        self._most = most
        self._groups: dict[str, dict[Queue, _Owner]] = {}
        self._count = 0
        self._swept_ms = -SWEEP_MS

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: float) -> list[Queue]:
        """The queues of ``queues`` that belong to ``client_id`` now."""
        mine = []
        owners = self._groups.setdefault(group, {})
        for queue in queues:
            owner = owners.get(queue)
            if owner is None:
                if self._count >= self._most and not self._expire(now_ms):
                    continue
                self._count += 1
            elif owner.client_id != client_id and now_ms - owner.at_ms <= LOCK_LIVES_MS:
                continue
            else:
                del owners[queue]  # to the end
            owners[queue] = _Owner(client_id, now_ms)
            mine.append(queue)
        if owners:
            self._groups[group] = owners
        else:
            self._groups.pop(group, None)
        return mine

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        owners = self._groups.get(group, {})
        for queue in queues:
            owner = owners.get(queue)
            if owner is not None and owner.client_id == client_id:
                del owners[queue]
                self._count -= 1
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
        self._count = 0

    def check_invariants(self) -> None:
        assert self._count == sum(map(len, self._groups.values())), "each lock is counted once"
        assert self._count <= self._most, "no more queues are locked than may be"

    def _expire(self, now_ms: float) -> bool:
        """Drop what is over, each group's oldest first, not too often; whether there is room now."""
        if now_ms - self._swept_ms < SWEEP_MS:
            return self._count < self._most
        self._swept_ms = now_ms
        for group, owners in list(self._groups.items()):
            for queue in list(owners):
                if now_ms - owners[queue].at_ms <= LOCK_LIVES_MS:
                    break
                del owners[queue]
                self._count -= 1
            if not owners:
                del self._groups[group]
        return self._count < self._most
