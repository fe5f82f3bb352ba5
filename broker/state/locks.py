"""Which client of a group may consume a queue in order?

LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42). One owner per group and queue for 60 s since it last asked; kept
in memory only, as the original does: a new master starts with none and owners ask again every 20 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from model.errors import PeerError, Refused
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection

LOCK_LIVES_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
_SYSTEM_ERROR: Final = 1

Queue = tuple[str, str, int]  # broker name, topic, queue id


class QueueLocks:
    """Owners by (group, queue); pure, time comes in as ``now_ms``."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, Queue], tuple[str, float]] = {}

    def lock(self, group: str, client_id: str, queues: list[Queue], now_ms: float) -> list[Queue]:
        """The queues of ``queues`` that belong to ``client_id`` now."""
        mine = []
        for queue in queues:
            owner = self._owners.get((group, queue))
            if owner is None or owner[0] == client_id or now_ms - owner[1] > LOCK_LIVES_MS:
                self._owners[group, queue] = (client_id, now_ms)
                mine.append(queue)
        if len(self._owners) > LOCKS_MAX:
            self._owners = {k: v for k, v in self._owners.items() if now_ms - v[1] <= LOCK_LIVES_MS}
        return mine

    def unlock(self, group: str, client_id: str, queues: list[Queue]) -> None:
        for queue in queues:
            owner = self._owners.get((group, queue))
            if owner is not None and owner[0] == client_id:
                del self._owners[group, queue]

    def locked(self, group: str, topic: str, queue_id: int, now_ms: float) -> bool:
        """Whether anyone owns the queue of this group."""
        return any(
            owner_group == group
            and queue[1] == topic
            and queue[2] == queue_id
            and now_ms - at <= LOCK_LIVES_MS
            for (owner_group, queue), (_, at) in self._owners.items()
        )

    def group_has_locks(self, group: str, now_ms: float) -> bool:
        return any(
            owner_group == group and now_ms - at <= LOCK_LIVES_MS
            for (owner_group, _), (_, at) in self._owners.items()
        )

    def clear(self) -> None:
        self._owners.clear()


class LockProcessor:
    """Answers 41 and 42."""

    def __init__(self, locks: QueueLocks, now_ms: Callable[[], float]) -> None:
        self._locks = locks
        self._now_ms = now_ms

    async def lock(self, connection: Connection, request: Command) -> Command:
        group, client_id, queues = _parse(request)
        mine = self._locks.lock(group, client_id, queues, self._now_ms())
        table = [{"brokerName": name, "queueId": queue_id, "topic": topic} for name, topic, queue_id in mine]
        return request.reply(body=bodies.dumps({"lockOKMQSet": table}))

    async def unlock(self, connection: Connection, request: Command) -> Command:
        group, client_id, queues = _parse(request)
        self._locks.unlock(group, client_id, queues)
        return request.reply()


def _parse(request: Command) -> tuple[str, str, list[Queue]]:
    try:
        data = bodies.loads_object(request.body)
        queues = [(str(mq["brokerName"]), str(mq["topic"]), int(mq["queueId"])) for mq in data["mqSet"]]
        return str(data["consumerGroup"]), str(data["clientId"]), queues
    except (PeerError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"the body is not a lock request: {error!r}", _SYSTEM_ERROR) from None
