"""Who hears of what arrives in the queues? Those for whom somebody waits just now.

Records arrive each turn of the loop, while as a rule nobody waits: who would find that out each time is not
asked at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Arrival = tuple[str, int, int, int]
"""Topic, queue id, the offset behind the queue's last message, a tags code."""
OnArrive = Callable[[Sequence[Arrival]], None]


class Listening:
    """One hook of ``on_arrive``, which is there from ``begin`` until ``end``. Each may be called again."""

    def __init__(self, on_arrive: list[OnArrive], hook: OnArrive) -> None:
        self._on_arrive = on_arrive
        self._hook = hook
        self._on = False

    def begin(self) -> None:
        if not self._on:
            self._on = True
            self._on_arrive.append(self._hook)

    def end(self) -> None:
        if self._on:
            self._on = False
            self._on_arrive.remove(self._hook)
