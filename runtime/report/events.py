"""What happened and when: a bounded list of named events that ``/status`` shows and drills read.

A failover's timeline is made of these: ``master_lost`` and ``master_elected`` (Controller), ``promoted``
(broker), ``route_changed`` (NameServer).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

EVENTS_MAX: Final = 512


class Kind(NamedTuple):
    """Which server has such events, what they mean, and the names of their fields."""

    server: str
    meaning: str
    fields: tuple[str, ...] = ()


KINDS: Final = {
    "acting_ended": Kind("broker", "a slave no longer serves consumers in place of a master"),
    "acting_master": Kind("broker", "a slave serves consumers, as no master can be elected"),
    "cut_refused": Kind("broker", "a slave keeps a log that its master would cut", ("reason",)),
    "demoted": Kind("broker", "a master leads no more", ("epoch",)),
    "invariant_broken": Kind("broker", "a promise was broken: it fenced itself", ("reason",)),
    "leader_elected": Kind("controller", "it leads the Controllers", ("term",)),
    "leader_lost": Kind("controller", "it leads them no more", ("term",)),
    "lease_ended": Kind(
        "broker", "a master has no lease: it takes no writes, but where every member acknowledges", ("epoch",)
    ),
    "lease_renewed": Kind("broker", "it has one again", ("epoch",)),
    "master_elected": Kind("controller", "a group has a new master", ("group", "broker_id", "epoch")),
    "master_lost": Kind("controller", "a group's master is not heard any more", ("group", "broker_id")),
    "member_doubled": Kind("controller", "a copy of a directory runs", ("member", "at", "refused")),
    "promoted": Kind("broker", "it is master", ("epoch",)),
    "repaired": Kind("broker", "damaged bytes of the log were copied anew", ("begin", "until", "records")),
    "reseeding": Kind("broker", "a slave put its log aside and copies all", ("reason", "aside")),
    "route_changed": Kind("namesrv", "a group has another master for clients", ("group", "master")),
    "truncated": Kind("broker", "the end of the log was cut", ("offset",)),
}
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


def page() -> str:
    """docs/events.md."""
    rows = [
        f"| `{name}` | {kind.server} | {kind.meaning} | {', '.join(f'`{one}`' for one in kind.fields)} |"
        for name, kind in KINDS.items()
    ]
    return "\n".join([_HEAD, *rows, _TAIL])


_HEAD: Final = """# Events

What happens seldom and matters. Each is a line of the log (`event NAME field=value ...`; with
`KEELMQ_LOG_FORMAT=json` members of its object), the last 512 stand in `events` of `/status` with their
time, and `keelmq_events_total` counts them by `kind`. Made from `runtime/report/events.py` by
`python -m runtime.report.catalogue`.

| event | server | meaning | fields |
|---|---|---|---|"""

_TAIL: Final = """
## Lines with a rate

What may be frequent is in the log and counted, and not among the events of `/status`: up to 10 lines at once,
then one a second, and the next line says how many were left out.

| line | server | meaning | fields | counted by |
|---|---|---|---|---|
| `event slow_request` | all | a request was answered only after `slowRequestMillis`: it waited for slaves, a disk, another server or the event loop. Pulls, pops and notifications that wait for messages, and slaves' requests for changed tables, are held on purpose and are not told | `request`, `client`, `ms` | `keelmq_slow_requests_total` |
| `held the event loop` | all | a piece of work kept all others waiting for 20 ms or more | the request, the client, ms | `keelmq_slow_turns_total` |
| `the event loop came ... late` | all | it came half a second late or more to what was due, and no request need be the cause: a file system that keeps a call waiting, too few CPUs, a process that was stopped | s late, s of work, s without a CPU, s of the rest | `keelmq_event_loop_delay_seconds` |
"""  # noqa: E501
