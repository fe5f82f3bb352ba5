"""Which offsets did an operator give a group, and nobody has read from them yet? Pure.

Until a consumer reads the queue from there, what members commit is of their time before the reset, and would
undo it. A pull is told, as of Apache RocketMQ 5.5 (``useServerSideResetOffset``), and the next one gets
messages; a consumer may take a while to go there, Java's of 4.9 ten seconds. One that never heard it comes
with its former offset, later or on another connection: that one is told again. Slaves copy them with the
offsets.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Final

from broker.tables.table_text import TableText

SEPARATOR: Final = "@"
QUEUES_MAX: Final = 16_384
"""Beyond, the oldest pair is forgotten: its offsets were committed, and count as any commit does."""
GOING_MS: Final = 30_000
"""So long after it was told last a consumer may still commit what it did before."""
AGAIN_MS: Final = 10_000
"""So long a connection that was told is not told again: of RocketMQ's clients none pulls the queue then."""
TOLD_MAX: Final = 3
"""One that goes on as before all the same does not want to hear it."""

Pair = tuple[str, str]
"""Topic and group."""


def name_of(pair: Pair) -> str:
    return SEPARATOR.join(pair)


def pair_of(name: str) -> Pair:
    topic, _, group = name.partition(SEPARATOR)
    return topic, group


@dataclass(slots=True)
class _Reset:
    offset: int
    told: int = 0
    """How often."""
    told_ms: float = 0.0
    to: weakref.ref[object] | None = None
    """Who was told last; a connection that has ended is not kept."""


class Resets:
    """Holds: ``count`` is that of all queues."""

    def __init__(self) -> None:
        self._of: dict[Pair, dict[int, _Reset]] = {}  # the oldest pair first
        self.count = 0
        self.text = TableText(lambda: map(name_of, list(self._of)), lambda name: self.of(pair_of(name)))

    def add(self, pair: Pair, queue_id: int, offset: int) -> None:
        queues = self._of.setdefault(pair, {})
        self.count += queue_id not in queues
        queues[queue_id] = _Reset(offset)
        self._changed(pair)
        while self.count > QUEUES_MAX:
            self.drop(next(iter(self._of)))

    def get(self, pair: Pair, queue_id: int) -> int | None:
        """Where the group is to go on."""
        found = self._of.get(pair, {}).get(queue_id) if self.count else None
        return None if found is None else found.offset

    def is_to_tell(self, pair: Pair, queue_id: int, to: object, now_ms: float) -> bool:
        """Whether a pull on connection ``to``, from elsewhere, is to hear of one that stands."""
        found = self._of[pair][queue_id]
        if found.to is None or found.to() is not to:
            return found.told < TOLD_MAX
        return found.told < TOLD_MAX and now_ms - found.told_ms >= AGAIN_MS

    def on_told(self, pair: Pair, queue_id: int, to: object, now_ms: float) -> None:
        """An answer that says it is on its way. That it arrives nobody knows."""
        found = self._of.get(pair, {}).get(queue_id)
        if found is not None:
            found.told, found.told_ms, found.to = found.told + 1, now_ms, weakref.ref(to)

    def on_heard(self, pair: Pair, queue_id: int) -> None:
        """Who was told reads from there, and says that it has committed something else."""
        self._of[pair][queue_id].told = TOLD_MAX

    def is_told(self, pair: Pair, queue_id: int) -> bool:
        return self._of[pair][queue_id].told > 0

    def is_over(self, pair: Pair, queue_id: int, now_ms: float) -> bool:
        """Whether who was told had its time to go there."""
        found = self._of[pair][queue_id]
        return found.told >= TOLD_MAX and now_ms - found.told_ms >= GOING_MS

    def end(self, pair: Pair, queue_id: int) -> bool:
        """It is read from there; whether it stood."""
        queues = self._of.get(pair, {})
        if queues.pop(queue_id, None) is None:
            return False
        self.count -= 1
        if not queues:
            del self._of[pair]
        self._changed(pair)
        return True

    def has(self, pair: Pair) -> bool:
        """Whether some stand."""
        return pair in self._of

    def of(self, pair: Pair) -> dict[int, int]:
        return {queue_id: one.offset for queue_id, one in self._of.get(pair, {}).items()}

    def pairs(self) -> list[Pair]:
        return list(self._of)

    def replace(self, pair: Pair, queues: dict[int, int]) -> bool:
        """As a master has them; whether these are others. One that is known here was told, perhaps."""
        if queues == self.of(pair):
            return False
        self.drop(pair)
        for queue_id, offset in queues.items():
            self.add(pair, queue_id, offset)
        return True

    def drop(self, pair: Pair) -> None:
        found = self._of.pop(pair, None)
        if found is not None:
            self.count -= len(found)
            self._changed(pair)

    def _changed(self, pair: Pair) -> None:
        self.text.changed(name_of(pair), pair in self._of)

    def check_invariants(self) -> None:
        self.text.check_invariants()
        assert self.count == sum(map(len, self._of.values())), "each counts once"
        assert all(self._of.values()), "a pair without queues is forgotten"
