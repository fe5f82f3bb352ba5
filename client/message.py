"""What a program hands to a producer, gets from a consumer, and learns about a send."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from model import message as wire
from model.compression import plain_body
from model.errors import MqError, Refused, Unknown
from store.files.record import Record

BATCH_HEAD: Final = struct.Struct(">iiiii")  # total, magic 0, crc 0, flag, body length
_SHORT: Final = struct.Struct(">h")
_LATER: Final = frozenset({wire.DELAY, wire.TIMER_DELIVER_MS, wire.TIMER_DELAY_MS, wire.TIMER_DELAY_SEC})


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic on one broker group."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}/{self.queue_id}"

    def to_json(self) -> dict[str, object]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


@dataclass(slots=True, kw_only=True)
class Message:
    """A message to send. ``keys`` are words an operator may search by; ``delay_level`` 1..18, 0 = at once (a
    broker takes a larger one for its last).

    ``deliver_at_ms``: it comes at that time, in ms since 1970; ``deliver_after_ms``: so long after its broker
    has it. ``SendResult.recall_handle`` takes such a one back (``Producer.recall``).
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: int = 0
    flag: int = 0
    deliver_at_ms: int | None = None
    deliver_after_ms: int | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether it is to come later than at once, also where a property says so. Raises ValueError when two
        ways are said."""
        ways = [self.delay_level or None, self.deliver_at_ms, self.deliver_after_ms]
        if ways.count(None) < len(ways) - 1:
            raise ValueError("a message has one of delay_level, deliver_at_ms and deliver_after_ms")
        said = (self.properties.get(name, "0") for name in _LATER.intersection(self.properties))
        return any(way is not None for way in ways) or any(text != "0" for text in said)

    def wire_properties(self, uniq_key: str) -> str:
        """The properties text as it travels. Raises ValueError for names or values the format cannot hold."""
        found = dict(self.properties)
        if self.keys:
            found[wire.KEYS] = self._joined_keys()
        found.setdefault(wire.UNIQ_KEY, uniq_key)
        found.setdefault(wire.WAIT, "true")
        if self.tags:
            found[wire.TAGS] = self.tags
        if self.is_delayed:
            if self.deliver_at_ms is not None:
                found[wire.TIMER_DELIVER_MS] = _whole("deliver_at_ms", self.deliver_at_ms)
            elif self.deliver_after_ms is not None:
                found[wire.TIMER_DELAY_MS] = _whole("deliver_after_ms", self.deliver_after_ms)
            elif self.delay_level:
                found[wire.DELAY] = _whole("delay_level", self.delay_level)
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ValueError(f"property {name!r} is {value!r}: names and values are texts")
            if not name:
                raise ValueError(f"the property with the value {value!r} has no name")
            both = name + value
            if wire.NAME_END in both or wire.VALUE_END in both:
                raise ValueError(f"property {name!r}: names and values must not contain 0x01 or 0x02")
        text = wire.encode_properties(found)
        if len(text.encode()) > wire.PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties are longer than {wire.PROPERTIES_BYTES_MAX} bytes")
        return text

    def _joined_keys(self) -> str:
        keys = self.keys
        if isinstance(keys, str) or not all(isinstance(key, str) and key for key in keys):
            raise ValueError(f"keys are a list of words, none of them empty, not {keys!r}")
        return " ".join(keys)


def _whole(name: str, number: object) -> str:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} is a whole number, at least 0, not {number!r}")
    return str(number)


def pack_batch(parts: Iterable[tuple[Message, str]]) -> bytes:
    """Body of a batch send: per message total, 0, 0, flag, body length, body, properties length, text."""
    chunks: list[bytes] = []
    for message, properties in parts:
        text = properties.encode()
        total = BATCH_HEAD.size + len(message.body) + _SHORT.size + len(text)
        chunks += (
            BATCH_HEAD.pack(total, 0, 0, message.flag, len(message.body)),
            message.body,
            _SHORT.pack(len(text)),
            text,
        )
    return b"".join(chunks)


class SendStatus(IntEnum):
    """The four answers that say the master holds the message; only SEND_OK says it holds it as configured."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a send: where it went, how it ended (``ok``, ``failed``, ``unknown``), how long it took."""

    address: str
    outcome: str
    detail: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class SendResult:
    """The broker's answer. For a batch ``queue_offset`` is the first message's and ``msg_id`` lists all.

    ``msg_id`` is the producer's id (UNIQ_KEY), ``offset_msg_id`` the broker's (store host and CommitLog
    offset). ``region`` and ``trace_on``: what the broker says for a trace. ``recall_handle``: of a message
    for a time of its own, what ``Producer.recall`` takes.
    """

    status: SendStatus
    queue: Queue
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    attempts: tuple[Attempt, ...] = ()
    region: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None

    @property
    def maybe_duplicate(self) -> bool:
        """An earlier attempt ended unknown, so the queue may hold the message twice."""
        return any(attempt.outcome == "unknown" for attempt in self.attempts)


class SendFailed(Refused):
    """The message is definitely not stored; ``code`` and ``remark`` are the last broker's, or our own."""

    def __init__(self, remark: str, code: int, attempts: tuple[Attempt, ...]) -> None:
        super().__init__(remark, code)
        self.attempts = attempts


class SendUnknown(Unknown):
    """At least one attempt may have stored the message, and no answer says so."""

    def __init__(self, text: str, attempts: tuple[Attempt, ...]) -> None:
        super().__init__(text)
        self.attempts = attempts


class NoRoute(MqError):
    """No NameServer knows the topic."""


class NoMaster(MqError):
    """The group has no master now, or one that is silent: nothing was sent."""


class NameServersSilent(MqError):
    """No NameServer gave an answer."""


class RouteRefused(Refused):
    """The NameServers know us, and refuse us the route: asking again changes nothing."""


@dataclass(frozen=True, slots=True)
class Received:
    """A stored message as a consumer sees it; offsets as in ``model.ids``, times in ms since the epoch."""

    queue: Queue
    queue_offset: int
    physical_offset: int
    msg_id: str
    offset_msg_id: str
    body: bytes
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    body_crc: int
    size_bytes: int
    stored_topic: str
    """The topic the record lies in; differs from ``queue.topic`` for a message that came back for a retry."""
    body_unread: str | None = None
    """Why ``body`` is what was stored: it says that it is compressed and cannot be unpacked."""

    @property
    def topic(self) -> str:
        """Its own. What a message says of that is believed where the broker wrote it: in a retry topic."""
        if not self.stored_topic.startswith(wire.RETRY_PREFIX):
            return self.stored_topic
        return self.properties.get(wire.RETRY_TOPIC) or self.stored_topic

    @property
    def tags(self) -> str | None:
        return self.properties.get(wire.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(wire.KEYS, "").split()


def received(record: Record, broker_name: str) -> Received:
    """Turn a stored record into what a consumer gets.

    Any client may have written it: a body that cannot be unpacked comes as it was stored, and does not keep
    the messages behind it from the consumer.
    """
    properties = wire.decode_properties(record.properties)
    body, unread = record.body, None
    try:
        body = plain_body(record.body, record.sys_flag)
    except ValueError as error:
        unread = str(error)
    offset_id = wire.message_id(record.store_host, record.physical_offset)
    return Received(
        queue=Queue(record.topic, broker_name, record.queue_id),
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        msg_id=properties.get(wire.UNIQ_KEY, offset_id),
        offset_msg_id=offset_id,
        body=body,
        properties=properties,
        born_timestamp_ms=record.born_timestamp_ms,
        store_timestamp_ms=record.store_timestamp_ms,
        born_host=wire.decode_host(record.born_host),
        store_host=wire.decode_host(record.store_host),
        reconsume_times=record.reconsume_times,
        flag=record.flag,
        sys_flag=record.sys_flag,
        body_crc=record.body_crc,
        size_bytes=record.size,
        stored_topic=record.topic,
        body_unread=unread,
    )


def packed(body: bytes) -> tuple[bytes, int]:
    """``body`` as zlib and the sysFlag bits that say so; unchanged with 0 when that saves nothing."""
    small = zlib.compress(body, 5)
    if len(small) >= len(body):
        return body, 0
    return small, wire.COMPRESSED | wire.COMPRESSION_ZLIB
