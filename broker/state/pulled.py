"""How far did each group pull each queue? What was handed out and not confirmed is on its way (mqadmin's
inflight). In memory, as in the original: after a start it is what was confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

QUEUES_MAX: Final = 100_000
"""Queues of groups that are known at once; the one pulled longest ago is forgotten."""

Key = tuple[str, str, int]  # group, topic, queue


class Pulled:
    """The offset behind what the last pull of a queue was given."""

    def __init__(self) -> None:
        self._offsets: dict[Key, int] = {}

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.note_all(group, topic, ((queue_id, offset),))

    def note_all(self, group: str, topic: str, told: Iterable[tuple[int, int]]) -> None:
        """``note`` of several queues, each with its offset."""
        offsets = self._offsets
        for queue_id, offset in told:
            key = (group, topic, queue_id)
            offsets.pop(key, None)
            offsets[key] = offset
        while len(offsets) > QUEUES_MAX:
            del offsets[next(iter(offsets))]

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """It goes on elsewhere: its offset was reset."""
        self._offsets.pop((group, topic, queue_id), None)

    def of(self, group: str, topic: str, queue_id: int, confirmed: int) -> int:
        """At least ``confirmed``: the offset from which its consumer goes on."""
        return max(confirmed, self._offsets.get((group, topic, queue_id), confirmed))
