"""What changed in a simulated world that no step of the plan did: servers that start and end, repairs?

It is for whoever reads a run. Nothing decides by it and no check looks at it, so that a seed's run and its
verdict do not depend on what is told here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from chaos.history import Happened, History, HistoryEvent

SAID_BY: Final[Mapping[str, frozenset[str]]] = {
    "process_started": frozenset({"restart", "restarted", "log_given_up"}),
    "process_stops": frozenset({"stop"}),
    "power_on": frozenset({"restart"}),
    "resumed": frozenset({"resume"}),
}
"""Changes, and the events of a history that tell them at the same moment."""


class Changes:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: list[Happened] = []
        self.ids: dict[str, list[int]] = {}
        """The broker ids that each node has had, by its own word."""

    def note(self, node: str, name: str, **fields: Any) -> None:
        """``node`` "": the whole world."""
        self._events.append(Happened(self._clock(), node, name, fields))

    def has_id(self, node: str, broker_id: int | None) -> None:
        """None, or less than 0: it has none at the moment."""
        known = self.ids.setdefault(node, [])
        if broker_id is not None and broker_id >= 0 and known[-1:] != [broker_id]:
            known.append(broker_id)

    def among(self, *histories: History) -> Iterator[HistoryEvent]:
        """The events of these histories by time, and among them the changes that they do not tell."""
        told = {(e.at_ms, e.node, e.name) for history in histories for e in history.happened()}
        left = [
            change
            for change in self._events
            if not any((change.at_ms, change.node, name) in told for name in SAID_BY.get(change.name, ()))
        ]
        return heapq.merge(*(history.events for history in histories), left, key=lambda event: event.at_ms)
