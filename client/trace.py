"""What is told of messages sent and consumed, so that an operator can follow one? (message trace)

Each event is a line of fields with 0x01 between and 0x02 behind. Up to 20 of them are the body of one message
in ``RMQ_SYS_TRACE_TOPIC``, whose keys are the ids and keys of the messages they tell of: ``mqadmin
queryMsgTraceById`` finds them. Fields and their order are those of RocketMQ's clients:

    Pub        time, region, group, topic, id, tags, keys, broker, body bytes, ms, type, offset id, success
    SubBefore  time, region, group, request, id, retries, keys
    SubAfter   request, id, ms, success, keys, what came of it, time, group

A trace must hold nothing up: it leaves in the background, and is dropped when too much waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Final, NamedTuple

from client.ids import UniqueIds
from client.message import Message, Received, SendResult, SendStatus
from model.errors import MqError
from model.message import DELAY, KEYS, TAGS, TRANSACTION_PREPARED_PROPERTY, property_of
from runtime.env import Env
from runtime.tasks import Tasks, every

log = logging.getLogger(__name__)

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
WAITING_MAX: Final = 2048
EVENTS_MAX: Final = 20
EVENT_BYTES_MAX: Final = 16_384
"""Of the keys of one message: longer ones are left out, so that an event fits the properties of its own."""
FLUSH_S: Final = 1.0
SUCCESS, EXCEPTION, FAILED = 0, 2, 4
NORMAL, HALF, DELAYED = 0, 1, 3

Listener = Callable[[list[Received]], Awaitable[bool | None]]


class Event(NamedTuple):
    """``topic``: of the message it tells of; one trace message tells of one topic."""

    topic: str
    text: str
    keys: tuple[str, ...]


def pub(group: str, result: SendResult, properties: str, body_bytes: int, now_ms: int, msg_id: str) -> Event:
    """A message was sent. ``properties``: its own, as they travelled."""
    last = result.attempts[-1]
    kind = NORMAL
    if property_of(properties, TRANSACTION_PREPARED_PROPERTY) == "true":
        kind = HALF
    elif property_of(properties, DELAY) not in (None, "0"):
        kind = DELAYED
    keys = property_of(properties, KEYS)
    text = _line(
        "Pub",
        *(now_ms - int(last.took_ms), result.region, group, result.queue.topic, msg_id),
        *(property_of(properties, TAGS), _short(keys), last.address, body_bytes, int(last.took_ms), kind),
        *(result.offset_msg_id, result.status is SendStatus.SEND_OK),
    )
    return Event(result.queue.topic, text, _keys(msg_id, keys))


def sub_before(group: str, message: Received, request: str, now_ms: int) -> Event:
    """A message was handed to a listener, in the call ``request``."""
    keys = message.properties.get(KEYS)
    region = message.properties.get("MSG_REGION", "DefaultRegion")  # a broker gives none to those of a batch
    fields = (now_ms, region, group, request, message.msg_id, message.reconsume_times, _short(keys))
    return Event(message.topic, _line("SubBefore", *fields), _keys(message.msg_id, keys))


def sub_after(group: str, message: Received, request: str, now_ms: int, took_ms: int, outcome: int) -> Event:
    """The listener was done with it."""
    keys = message.properties.get(KEYS)
    fields = (request, message.msg_id, took_ms, outcome == SUCCESS, _short(keys), outcome, now_ms, group)
    return Event(message.topic, _line("SubAfter", *fields), _keys(message.msg_id, keys))


def _line(*fields: object) -> str:
    return "\x01".join(_field(field) for field in fields) + "\x02"


def _field(value: object) -> str:
    """As Java writes it; the two separators are in no property, as properties have the same ones."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _short(keys: str | None) -> str | None:
    return keys if keys is None or len(keys.encode()) <= EVENT_BYTES_MAX else None


def _keys(msg_id: str, keys: str | None) -> tuple[str, ...]:
    return (msg_id, *(_short(keys) or "").split())


class Tracer:
    """Events wait here for their way to the trace topic, at most ``WAITING_MAX``; the oldest give way."""

    def __init__(self, env: Env, group: str, send: Callable[[Message], Awaitable[SendResult]]) -> None:
        self._env = env
        self._group = group
        self._send = send
        self._ids = UniqueIds(env.random)
        self._tasks = Tasks(f"trace of {group}")
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)

    def start(self) -> None:
        self._tasks.spawn(every(FLUSH_S, self.flush, what="telling the trace"), name="flush")

    async def stop(self) -> None:
        """Send what waits."""
        await self._tasks.cancel()
        await self.flush()

    def on_sent(self, result: SendResult, properties: str, body_bytes: int) -> None:
        """A send was answered; ``result`` names all messages of a batch."""
        if result.trace_on and result.queue.topic != TRACE_TOPIC:
            now_ms = self._env.now_ms()
            for msg_id in result.msg_id.split(","):
                self._waiting.append(pub(self._group, result, properties, body_bytes, now_ms, msg_id))

    def listening(self, listener: Listener) -> Listener:
        """``listener``, with a trace of each of its calls."""

        async def listen(messages: list[Received]) -> bool | None:
            told = [message for message in messages if message.properties.get("TRACE_ON") != "false"]
            request, begun_ms = self._ids.next(self._env.now_ms()), self._env.monotonic_ms()
            now_ms = self._env.now_ms()
            self._waiting.extend(sub_before(self._group, message, request, now_ms) for message in told)
            outcome = EXCEPTION
            try:
                taken = await listener(messages)
                outcome = FAILED if taken is False else SUCCESS
                return taken
            finally:
                took_ms = int((self._env.monotonic_ms() - begun_ms) / max(1, len(messages)))
                for message in told:
                    self._waiting.append(sub_after(self._group, message, request, now_ms, took_ms, outcome))

        return listen

    async def flush(self) -> None:
        """Send the events that wait. What cannot be sent is lost, and said in the log."""
        events = sorted(self._waiting, key=lambda event: event.topic)
        self._waiting.clear()
        for _, found in groupby(events, key=lambda event: event.topic):
            for part in _parts(list(found)):
                keys = list(dict.fromkeys(key for event in part for key in event.keys))
                text = "".join(event.text for event in part)
                try:
                    await self._send(Message(topic=TRACE_TOPIC, body=text.encode(), keys=keys))
                except (MqError, OSError) as error:
                    log.warning("%d events of the trace of %s are lost: %s", len(part), self._group, error)


def _parts(events: list[Event]) -> list[list[Event]]:
    """At most ``EVENTS_MAX`` in each, whose keys fit the properties of one message."""
    parts: list[list[Event]] = []
    size = 0
    for event in events:
        own = sum(len(key.encode()) + 1 for key in event.keys)
        if not parts or len(parts[-1]) == EVENTS_MAX or size + own > EVENT_BYTES_MAX + 1024:
            parts.append([])
            size = 0
        parts[-1].append(event)
        size += own
    return parts
