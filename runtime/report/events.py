"""What happened and when: a bounded list of named events that ``/status`` shows and drills read.

A failover's timeline is made of these: ``master_lost`` and ``master_elected`` (Controller), ``promoted``
(broker), ``route_changed`` (NameServer).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

EVENTS_MAX: Final = 512

KINDS: Final = (
    "acting_ended",
    "acting_master",
    "cut_refused",
    "demoted",
    "invariant_broken",
    "lease_ended",
    "lease_renewed",
    "master_elected",
    "master_lost",
    "member_doubled",
    "promoted",
    "repaired",
    "reseeding",
    "route_changed",
    "truncated",
)
"""All names of events. Each is counted from 0: a series that began at 1 would hide its first event from
Prometheus' ``increase``."""


@dataclass(frozen=True, slots=True)
class Event:
    at_ms: int
    name: str
    fields: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"at_ms": self.at_ms, "event": self.name, **self.fields}


class EventLog:
    """The last ``EVENTS_MAX`` events of one node, oldest first; ``watch`` hears each new one.

    ``totals`` counts all since the start by their names, those that left the list too.
    """

    def __init__(self, now_ms: Callable[[], int], watch: Callable[[Event], None] | None = None) -> None:
        self._now_ms = now_ms
        self._watch = watch
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.totals: dict[str, int] = dict.fromkeys(KINDS, 0)

    def add(self, name: str, **fields: Any) -> None:
        event = Event(self._now_ms(), name, fields)
        self._events.append(event)
        self.totals[name] = self.totals.get(name, 0) + 1
        if self._watch is not None:
            self._watch(event)

    def __iter__(self) -> Any:
        return iter(self._events)

    def to_json(self) -> list[dict[str, Any]]:
        return [event.to_json() for event in self._events]
