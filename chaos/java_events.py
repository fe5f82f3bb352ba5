"""What does the official Java client tell of its sends and reads, as events of a history?

Its lines come from ``chaos/worlds/JavaClients.java``. Their times are of Java's ``System.nanoTime``; a
history is written by another clock; how far apart the two are is known within an interval (``JavaClock``).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from chaos.history import Fail, History, HistoryEvent, Invoke, Ok, Read, Unknown
from client.message import Queue, SendStatus
from client.sending.outcome import check
from model.errors import Refused
from model.errors import Unknown as NoAnswer
from model.message import parse_message_id
from remoting.codec import Command

SHOWN: Final = 3


class JavaClock:
    """Java's clock and ours go alike, so far apart that every answer fits: one that was told between our
    ``asked_ms`` and ``heard_ms``."""

    def __init__(self) -> None:
        self._low_ms, self._high_ms = float("-inf"), float("inf")
        self.gone_ms = 0.0
        """So far an answer lay outside of what those before it said: the clocks did not go alike."""

    def note(self, asked_ms: float, at_ns: int, heard_ms: float) -> None:
        low, high = asked_ms - at_ns / 1e6, heard_ms - at_ns / 1e6
        if low > self._high_ms or high < self._low_ms:
            self.gone_ms = max(self.gone_ms, low - self._high_ms, self._low_ms - high)
            return
        self._low_ms, self._high_ms = max(self._low_ms, low), min(self._high_ms, high)

    @property
    def error_ms(self) -> float:
        """A time of Java's is that much earlier or later at most."""
        return self._high_ms - self._low_ms

    def first_ms(self, at_ns: int) -> float:
        """When that was, at the earliest."""
        return at_ns / 1e6 + self._low_ms

    def last_ms(self, at_ns: int) -> float:
        return at_ns / 1e6 + self._high_ms


class JavaEvents:
    """Turns lines into events. ``received``: offsets of each queue that a member was given; ``counts``: how
    many lines of each kind there were."""

    def __init__(self, topic: str, group: str, clock: JavaClock) -> None:
        self._topic, self._group, self.clock = topic, group, clock
        self.counts: Counter[str] = Counter()
        self.received: dict[Queue, set[int]] = {}

    def event(self, told: dict[str, Any]) -> HistoryEvent | None:
        """None: that is nothing a history has. Raises ValueError for what is no event of theirs."""
        kind = str(told.get("event"))
        self.counts[kind] += 1
        try:
            if kind == "began":
                return self._invoke(told)
            if kind == "received":
                return self._read(told)
            return self._end(kind, told)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no event of the Java client: {error!r} of {told}") from None

    def _invoke(self, told: dict[str, Any]) -> Invoke:
        # A send begins at the earliest, and ends at the latest: no order is claimed that was not there.
        at_ms, queue = self.clock.first_ms(told["at_ns"]), Queue(self._topic, self._group, told["queue"])
        return Invoke(at_ms, told["process"], told["key"], queue, told["body_crc"])

    def _read(self, told: dict[str, Any]) -> Read:
        queue = Queue(self._topic, told["broker"], told["queue"])
        self.received.setdefault(queue, set()).add(told["offset"])
        at_ms = self.clock.last_ms(told["at_ns"])
        return Read(at_ms, told["process"], told["key"], queue, told["offset"], told["body_crc"])

    def _end(self, kind: str, told: dict[str, Any]) -> HistoryEvent | None:
        if kind not in ("acked", "refused", "unsent", "open"):
            return None
        at_ms, process, key = self.clock.last_ms(told["at_ns"]), told["process"], told["key"]
        if kind == "acked":
            if told["status"] != SendStatus.SEND_OK.name:
                return Unknown(at_ms, process, key, f"answered {told['status']}")
            queue = Queue(self._topic, told["broker"], told["queue"])
            address, physical = parse_message_id(told["offset_msg_id"])
            return Ok(at_ms, process, key, queue, told["offset"], physical, address)
        if kind == "refused":
            return self._refused(at_ms, told)
        end = Fail if kind == "unsent" else Unknown
        return end(at_ms, process, key, str(told["text"]).partition("\n")[0])

    def _refused(self, at_ms: float, told: dict[str, Any]) -> HistoryEvent:
        """Whether a broker's answer says that nothing was stored: by the rule of our own client."""
        queue = Queue(self._topic, self._group, 0)
        try:
            check(Command(told["code"], {}, remark=told["text"]), queue, told["key"], ())
        except Refused as error:
            return Fail(at_ms, told["process"], told["key"], error.remark)
        except NoAnswer as error:
            return Unknown(at_ms, told["process"], told["key"], str(error))
        raise ValueError(f"no refusal: {told}")


def parsed(line: bytes) -> dict[str, Any] | None:
    """One line of standard output; None: the JVM itself said something. Raises ValueError."""
    if not line.startswith(b"{"):
        return None
    found = json.loads(line)
    if not isinstance(found, dict) or not (isinstance(found.get("at_ns"), int) and "event" in found):
        raise ValueError(f"no event of the Java client: {line[:200]!r}")
    return found


def not_received(history: History, events: JavaEvents, group: str) -> list[str]:
    """Acknowledged messages that no member of the group was given, in words."""
    acked = [event for event in history.events if isinstance(event, Ok)]
    left = [ack for ack in acked if ack.queue_offset not in events.received.get(ack.queue, ())]
    if not left:
        return []
    told = ", ".join(f"{ack.key} at {ack.queue} {ack.queue_offset}" for ack in left[:SHOWN])
    return [f"{len(left)} of {len(acked)} acknowledged messages were never given to {group}: {told}"]
