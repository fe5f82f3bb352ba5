"""Which messages of a queue does a group have in hand that consumes it in order, and until when? Pure.

A queue that is consumed in order has no checkpoints. The group's offset stays at the first message that is
not acknowledged, and nobody else is given anything of the queue before all that was popped is acknowledged
or its time is over; then the same messages are given again. All of it is in the master's memory alone: a
successor gives again what is behind the offset. So time is that of the machine, which nobody sets. Rules:
Apache RocketMQ 5.x,
``broker/offset/ConsumerOrderInfoManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Key = tuple[str, str, int]
"""Topic, group, queue."""

FORGOTTEN_MS: Final = 24 * 3_600_000
"""Of a queue nobody popped for so long nothing is remembered, as in the original."""
QUEUES_MAX: Final = 100_000


@dataclass(slots=True)
class InHand:
    """What was popped last of one queue. ``pop_time_ms`` is its name, and tells no time. ``visible_ms``: of
    messages whose invisible time was changed."""

    attempt_id: str
    pop_time_ms: int
    invisible_ms: int
    offsets: list[int]
    at_ms: float
    committed: int
    """Where the group's offset is."""
    acked: int = 0
    """A bit for each of ``offsets``."""
    visible_ms: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    """How often those were popped before that were."""

    def is_acked(self, index: int) -> bool:
        return bool(self.acked >> index & 1)

    def free_at_ms(self) -> float:
        """When nothing of it keeps the queue any more."""
        usual = self.at_ms + self.invisible_ms
        times = (
            self.visible_ms.get(offset, usual)
            for index, offset in enumerate(self.offsets)
            if not self.is_acked(index)
        )
        return max(times, default=0)

    def next_offset(self) -> int:
        """The first one that is not acknowledged, or the offset behind all."""
        for index, offset in enumerate(self.offsets):
            if not self.is_acked(index):
                return offset
        return self.offsets[-1] + 1


class OrderTable:
    """What each queue's group has in hand. ``monotonic_ms``: the machine's time.

    Holds: an offset moves over a message only when it is acknowledged.
    """

    def __init__(self) -> None:
        self._table: dict[Key, InHand] = {}

    def __len__(self) -> int:
        return len(self._table)

    def blocks(self, key: Key, attempt_id: str, monotonic_ms: float, offset: int) -> bool:
        """Whether nothing may be popped now; the group's offset is ``offset``. A client that tries the same
        again is given the same again."""
        found = self._table.get(key)
        if found is None or (attempt_id and found.attempt_id == attempt_id):
            return False
        if offset != found.committed:
            del self._table[key]  # it was reset
            return False
        return monotonic_ms < found.free_at_ms()

    def popped(
        self,
        key: Key,
        attempt_id: str,
        pop_time_ms: int,
        invisible_ms: int,
        offsets: list[int],
        start: int,
        monotonic_ms: float,
    ) -> tuple[Mapping[int, int], int]:
        """How often each message was popped before, if it was; and the least of all. ``start``: the group's
        offset."""
        former = self._table.pop(key, None)
        found = InHand(attempt_id, pop_time_ms, invisible_ms, offsets, monotonic_ms, start)
        if former is not None:
            if attempt_id and former.attempt_id == attempt_id:
                found.counts = former.counts
            else:
                had = set(former.offsets)
                found.counts = {o: former.counts.get(o, 0) + 1 for o in offsets if o in had}
        self._table[key] = found
        if len(self._table) > QUEUES_MAX:
            del self._table[next(iter(self._table))]
        least = min(found.counts.values(), default=0) if len(found.counts) == len(offsets) else 0
        return found.counts, least

    def acked(self, key: Key, offset: int, pop_time_ms: int, committed: int) -> int | None:
        """The offset to commit; None: nothing moves. Raises ValueError for a message that was not popped."""
        found = self._table.get(key)
        if found is None:
            # This broker was not the master then. The original takes it for the last one of its pop, and the
            # messages before it would be lost.
            return offset + 1 if offset == committed else None
        if pop_time_ms != found.pop_time_ms:
            return None  # it was given to another one since
        if offset not in found.offsets:
            raise ValueError(f"offset {offset} is not in hand")
        found.acked |= 1 << found.offsets.index(offset)
        found.committed = found.next_offset()
        return found.committed

    def change(self, key: Key, offset: int, pop_time_ms: int, visible_ms: float) -> None:
        """The message comes back at ``visible_ms``."""
        found = self._table.get(key)
        if found is not None and found.pop_time_ms == pop_time_ms and offset in found.offsets:
            found.visible_ms[offset] = visible_ms

    def forget_old(self, monotonic_ms: float) -> None:
        # In the order of the last pop: the first that is young ends it.
        while self._table:
            key, found = next(iter(self._table.items()))
            if monotonic_ms - found.at_ms <= FORGOTTEN_MS:
                return
            del self._table[key]

    def clear(self) -> None:
        self._table.clear()

    def check_invariants(self) -> None:
        for found in self._table.values():
            assert found.offsets == sorted(set(found.offsets)), "messages are in hand in their order"
            assert found.acked < 1 << len(found.offsets), "what is acknowledged was popped"
