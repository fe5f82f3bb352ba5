"""When did clients ask, and were not answered? An outage begins with a send that goes unanswered.

It lasts until the next acknowledgement, also when that send was refused meanwhile, and whether or not others
are sent: nobody knows that a queue serves again before it does. While no send is under way there is no
outage, however long nothing is acknowledged: nobody asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.history import Fail, History, Invoke, Ok, Unknown
from client.message import Queue

Span = tuple[float, float]
"""From, to, in ms; ``math.inf``: it did not end."""


@dataclass(slots=True)
class _Asked:
    """One queue, or all of them, on the way through a history. ``under_way``: sends that have no end yet."""

    under_way: int = 0
    since_ms: float | None = None
    spans: list[Span] = field(default_factory=list)

    def asked(self, at_ms: float) -> None:
        self.under_way += 1
        self.since_ms = at_ms if self.since_ms is None else self.since_ms

    def ended(self) -> None:
        self.under_way -= 1

    def acknowledged(self, at_ms: float) -> None:
        if self.since_ms is not None:
            self.spans.append((self.since_ms, at_ms))
        self.since_ms = at_ms if self.under_way else None

    def left(self) -> list[Span]:
        """All of them, the one that did not end, too."""
        return self.spans if self.since_ms is None else [*self.spans, (self.since_ms, math.inf)]


def by_queue(history: History) -> Mapping[Queue, Sequence[Span]]:
    """Of each queue that was asked: from a send, or the acknowledgement before while one was under way, to
    the next acknowledgement. One that was answered at once is as long as that took."""
    return {queue: one.left() for queue, one in _walked(history).items() if queue is not None}


def over_all(history: History) -> Sequence[Span]:
    """The same of all queues as one: from a send to any to the next acknowledgement by any."""
    return found.left() if (found := _walked(history).get(None)) is not None else []


def longest(spans: Sequence[Span], from_ms: float, until_ms: float) -> float | None:
    """The longest of those that had not ended at ``from_ms`` and had begun before ``until_ms``, as far as
    then; None: nobody asked."""
    lasted = [min(end, until_ms) - begun for begun, end in spans if begun < until_ms and end > from_ms]
    return round(max(lasted), 1) if lasted else None


def _walked(history: History) -> dict[Queue | None, _Asked]:
    """None: all queues as one."""
    found: dict[Queue | None, _Asked] = {}
    asked: dict[str, Queue] = {}
    sends = (event for event in history.events if isinstance(event, Invoke | Ok | Fail | Unknown))
    for event in sorted(sends, key=lambda one: one.at_ms):  # other clients' are noted as they are heard of
        if isinstance(event, Invoke):
            asked[event.key] = event.queue
            for one in (event.queue, None):
                found.setdefault(one, _Asked()).asked(event.at_ms)
        elif event.key in asked:
            for one in (asked.pop(event.key), None):
                found[one].ended()
            if isinstance(event, Ok):
                for one in (event.queue, None):
                    found.setdefault(one, _Asked()).acknowledged(event.at_ms)
    return found
