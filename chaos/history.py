"""What did clients ask, what were they told, what did they read, what was broken when? Append-only.

A history is a list of events, one JSON object a line on disk. Times are milliseconds of one clock (virtual in
simulation, monotonic in the live world). A send is ``invoke`` and then one of ``ok`` (acknowledged), ``fail``
(definitely not stored), ``unknown`` (neither); one that has no end is unknown. Checks read histories; they
never ask the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, ClassVar, Final, Literal

from msgspec import Struct

from client.message import Queue

Outcome = Literal["ok", "fail", "unknown"]
ENDED_FAULT: Final = "fault_ended"
"""The name of what happens when a fault is over that no step ends; ``fault`` says which; ``refused``: what an
operator was to do came to no good end; ``emptied``: he had begun to empty a disk for it."""
LAUNCHED: Final = "launched"
"""The name of what happens when a server is started again. A ``restart`` is only asked for: it waits for the
end of the former process."""
GOES_ON: Final = "goes_on"
"""The field of a fault whose plan means the server that an earlier step chose: it goes on with that."""

CONTROLLER_ROLE: Final = "controller_role"
"""The name of what happens when a Controller takes another ``role`` ("leader", "follower", "silent": it tells
none) in a ``term``."""


class Invoke(Struct, frozen=True):
    """A producer begins to send ``key`` to ``queue``. ``body_crc``: crc32 & 0x7fffffff of the body."""

    type: ClassVar[str] = "invoke"
    at_ms: float
    process: str
    key: str
    queue: Queue
    body_crc: int


class Ok(Struct, frozen=True):
    """The send was acknowledged. ``address``: who did; ``unknown_attempts``: earlier tries left open."""

    type: ClassVar[str] = "ok"
    at_ms: float
    process: str
    key: str
    queue: Queue
    queue_offset: int
    physical_offset: int
    address: str = ""
    unknown_attempts: int = 0


class Fail(Struct, frozen=True):
    """The send was refused: no attempt stored the message."""

    type: ClassVar[str] = "fail"
    at_ms: float
    process: str
    key: str
    error: str


class Unknown(Struct, frozen=True):
    """No answer: each of ``unknown_attempts`` may have stored the message."""

    type: ClassVar[str] = "unknown"
    at_ms: float
    process: str
    key: str
    error: str
    unknown_attempts: int = 1


class Read(Struct, frozen=True):
    """A consumer, or a scan of a replica's log (``source``), saw ``key`` at an offset of a queue.

    ``final``: after the heal and the quiet period, when everything is read back.
    """

    type: ClassVar[str] = "read"
    at_ms: float
    source: str
    key: str
    queue: Queue
    queue_offset: int
    body_crc: int
    final: bool = False


class Observed(Struct, frozen=True):
    """What a broker said of itself. ``life`` counts its starts. ``confirmed``: what consumers may have read
    of it, which is whole records: a slave confirms a piece of its master's log, which may end inside of one,
    and gives that half back when its master dies (``readable``)."""

    type: ClassVar[str] = "observed"
    at_ms: float
    node: str
    life: int
    role: str
    epoch: int
    confirmed: int
    end: int


def readable(confirmed: int, dispatched: int) -> int:
    """As far as a log is confirmed and stands in the queues: only whole records do."""
    return min(confirmed, dispatched)


class Happened(Struct, frozen=True):
    """An event of a node's own log (``master_elected``, ``promoted``, ...), or of the world (faults)."""

    type: ClassVar[str] = "happened"
    at_ms: float
    node: str
    name: str
    fields: dict[str, Any] = {}

    def line(self) -> str:
        """For a screen: when, where, what."""
        said = "".join(f" {name}={value}" for name, value in self.fields.items())
        return f"{self.at_ms:10.1f} ms  {self.node:4} {self.name}{said}"


class ControllerAnswer(Struct, frozen=True):
    """An answer of a Controller about a group: asked at ``begun_ms``, answered at ``at_ms``."""

    type: ClassVar[str] = "asked"
    at_ms: float
    begun_ms: float
    process: str
    group: str
    master: int | None
    epoch: int
    set_epoch: int
    members: tuple[int, ...]


HistoryEvent = Invoke | Ok | Fail | Unknown | Read | Observed | Happened | ControllerAnswer
_TYPES: Final[dict[str, type[HistoryEvent]]] = {
    t.type: t for t in (Invoke, Ok, Fail, Unknown, Read, Observed, Happened, ControllerAnswer)
}


@dataclass(slots=True)
class Send:
    """One send from its invoke to its end. ``number`` is its place among the sends of its process."""

    key: str
    process: str
    number: int
    queue: Queue
    body_crc: int
    invoked_ms: float
    outcome: Outcome = "unknown"
    ended_ms: float | None = None
    queue_offset: int = -1
    physical_offset: int = -1
    address: str = ""
    unknown_attempts: int = 1
    error: str = ""


class History:
    """The events of one run, in the order they were noted."""

    def __init__(self, events: Iterable[HistoryEvent] = ()) -> None:
        self.events: list[HistoryEvent] = list(events)
        self._watchers: list[Callable[[Happened], None]] = []

    def add(self, event: HistoryEvent) -> None:
        self.events.append(event)
        if self._watchers and isinstance(event, Happened):
            for watcher in self._watchers:
                watcher(event)

    def watch(self, watcher: Callable[[Happened], None]) -> None:
        """Tell ``watcher`` of everything that happens to a node, as it is noted."""
        self._watchers.append(watcher)

    def __len__(self) -> int:
        return len(self.events)

    def sends(self) -> list[Send]:
        """Every send, in order of invocation. Raises ValueError for an end without an invoke."""
        found: dict[str, Send] = {}
        counts: dict[str, int] = {}
        for event in self.events:
            if isinstance(event, Invoke):
                if event.key in found:
                    raise ValueError(f"key {event.key} was invoked twice")
                number = counts[event.process] = counts.get(event.process, -1) + 1
                found[event.key] = Send(
                    event.key, event.process, number, event.queue, event.body_crc, event.at_ms
                )
            elif isinstance(event, Ok | Fail | Unknown):
                send = found.get(event.key)
                if send is None:
                    raise ValueError(f"{event.type} of key {event.key} without an invoke")
                _end(send, event)
        return list(found.values())

    def reads(self, *, final: bool | None = None) -> list[Read]:
        return [e for e in self.events if isinstance(e, Read) and final in (None, e.final)]

    def observed(self) -> list[Observed]:
        return [e for e in self.events if isinstance(e, Observed)]

    def happened(self, name: str | None = None) -> list[Happened]:
        return [e for e in self.events if isinstance(e, Happened) and name in (None, e.name)]

    def controller_answers(self) -> list[ControllerAnswer]:
        return [e for e in self.events if isinstance(e, ControllerAnswer)]

    def ledger(self) -> Iterator[dict[str, Any]]:
        """The acknowledged sends as lines of an audit ledger, with their times: it checks the order, too."""
        for send in self.sends():
            if send.outcome == "ok":
                yield {
                    "uniq_key": send.key,
                    "topic": send.queue.topic,
                    "queue_id": send.queue.queue_id,
                    "queue_offset": send.queue_offset,
                    "phys_offset": send.physical_offset,
                    "body_crc": send.body_crc,
                    "begun_ms": send.invoked_ms,
                    "acked_ms": send.ended_ms,
                }

    def write(self, out: IO[str]) -> None:
        for event in self.events:
            out.write(json.dumps(to_json(event), sort_keys=True, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, lines: Iterable[str]) -> History:
        """Raises ValueError naming the line that is not an event."""
        return cls(from_json(line, number) for number, line in enumerate(lines, 1) if line.strip())


class Finished(History):
    """A history to which nothing is added any more: what many checks ask for is computed once."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        super().__init__(events)
        self._sends = super().sends()
        kinds: dict[type[HistoryEvent], list[Any]] = {kind: [] for kind in _TYPES.values()}
        for event in self.events:
            kinds[type(event)].append(event)
        self._kinds = kinds
        self._final = [read for read in kinds[Read] if read.final]
        self._live = [read for read in kinds[Read] if not read.final]

    def sends(self) -> list[Send]:
        return self._sends

    def reads(self, *, final: bool | None = None) -> list[Read]:
        if final is None:
            return self._kinds[Read]
        return self._final if final else self._live

    def observed(self) -> list[Observed]:
        return self._kinds[Observed]

    def happened(self, name: str | None = None) -> list[Happened]:
        return [e for e in self._kinds[Happened] if name in (None, e.name)]

    def controller_answers(self) -> list[ControllerAnswer]:
        return self._kinds[ControllerAnswer]


def _end(send: Send, event: Ok | Fail | Unknown) -> None:
    send.ended_ms = event.at_ms
    if isinstance(event, Ok):
        send.outcome = "ok"
        send.queue = event.queue
        send.queue_offset = event.queue_offset
        send.physical_offset = event.physical_offset
        send.address = event.address
        send.unknown_attempts = event.unknown_attempts
    elif isinstance(event, Fail):
        send.outcome, send.error, send.unknown_attempts = "fail", event.error, 0
    else:
        send.outcome, send.error, send.unknown_attempts = "unknown", event.error, event.unknown_attempts


def to_json(event: HistoryEvent) -> dict[str, Any]:
    found: dict[str, Any] = {"type": event.type}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        found[name] = [value.topic, value.broker_name, value.queue_id] if name == "queue" else value
    return found


def from_json(line: str, number: int = 1) -> HistoryEvent:
    """One line of a history file. Raises ValueError naming ``number``."""
    try:
        data = json.loads(line)
        kind = _TYPES[data.pop("type")]
        if "queue" in data:
            topic, group, queue_id = data["queue"]
            data["queue"] = Queue(str(topic), str(group), int(queue_id))
        if "members" in data:
            data["members"] = tuple(data["members"])
        return kind(**data)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"line {number} is not an event of a history: {error}") from None
