"""Which light queues (LMQ) does one record belong to, besides its own queue?

    property INNER_MULTI_DISPATCH       names, with commas between: %LMQ%a,%LMQ%b
    property INNER_MULTI_QUEUE_OFFSET   its offset in each of them, in the same order: 7,0

Each is a ConsumeQueue with queue id 0 whose entry names the same record. The producer gives the first, the
broker that appends the record the second: with it every replica, and every recovery, makes the same queues of
the log. On with ``enableLmq`` and ``enableMultiDispatch``; source: Apache RocketMQ 5.x,
``store/MultiDispatch``. Names without the prefix, which RocketMQ would let into ordinary queues, are ignored:
any producer could name another topic's.

Each name that nobody named before is a queue of its own, for good: there are at most
``maxLmqConsumeQueueNum`` (the original: ``HookUtils.handleLmqQuota``, only with ``enableLmqQuota``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from model.codes import Response
from model.config import StoreConfig
from model.errors import Refused
from model.ids import QueueOffset
from model.message import (
    DLQ_PREFIX,
    INNER_BATCH,
    INNER_MULTI_QUEUE_OFFSET,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_PREPARED,
    decode_properties,
    encode_properties,
    property_of,
)
from model.topic import NOT_FOR_CLIENT_SENDS
from runtime.env import Buffer
from runtime.report.complaints import Complaints
from store.files.consume_queue import is_queue_name
from store.files.record import Dispatch, DispatchParser, NewMessage, Place
from store.flow.dispatching.queue_offsets import QueueOffsets

log = logging.getLogger(__name__)

NAMES: Final = "INNER_MULTI_DISPATCH"
OFFSETS: Final = INNER_MULTI_QUEUE_OFFSET
QUEUE_ID: Final = 0
_RAW_OFFSETS: Final = OFFSETS.encode()
_SYSTEM_PREFIX: Final = "rmq_sys_"
NAMES_MAX: Final = 2048
"""So many in one request: each takes 5 us of the turn in which it is stored."""
FULL: Final = (
    "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq consumeQueue num"
    " exceed maxLmqConsumeQueueNum config num, default limit 2w."
)
"""The original's text."""


def _is_ordinary(topic: str) -> bool:
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, _SYSTEM_PREFIX))


def _is_at_its_place(topic: str) -> bool:
    """Whether a record of ``topic`` lies where consumers read it, and not where it waits, or is dead: that
    record, or its copy there, is one too many in a light queue."""
    return _is_ordinary(topic) and topic not in NOT_FOR_CLIENT_SENDS and not topic.startswith(DLQ_PREFIX)


def names_queues(properties: str) -> bool:
    """Whether there is something for ``with_offsets`` to do."""
    return NAMES in properties or OFFSETS in properties


def places(topic: str, properties: str) -> list[tuple[str, int]]:
    """(name, queue offset) of each light queue a record of ``topic`` is in."""
    if OFFSETS not in properties or not _is_ordinary(topic):
        return []
    names = (property_of(properties, NAMES) or "").split(",")
    offsets = (property_of(properties, OFFSETS) or "").split(",")
    if len(names) != len(offsets):
        return []
    return [
        (name, int(offset))
        for name, offset in zip(names, offsets, strict=True)
        if name.startswith(LMQ_PREFIX) and offset.isascii() and offset.isdigit() and len(offset) < 19
    ]


def with_offsets(
    message: NewMessage, following: dict[tuple[str, int], int], next_offset: Callable[[str, int], int]
) -> str:
    """The properties of a message about to be appended, with the offsets it gets in its light queues: what
    ``following`` says, where earlier messages of the same put took some, else ``next_offset``."""
    topic, properties = message.topic, message.properties
    if not names_queues(properties):
        return properties
    found = decode_properties(properties)
    found.pop(OFFSETS, None)  # of another life of the message, or of its producer's making
    if NAMES in found and _is_at_its_place(topic) and not message.sys_flag & TRANSACTION_PREPARED:
        names = _light(found[NAMES])
        if names:
            keys = [(name, QUEUE_ID) for name in names]
            found[NAMES] = ",".join(names)
            found[OFFSETS] = ",".join(str(following.get(key, next_offset(*key))) for key in keys)
    return encode_properties(found)


def _light(names: str) -> dict[str, None]:
    return dict.fromkeys(
        name for name in names.split(",") if name.startswith(LMQ_PREFIX) and is_queue_name(name, QUEUE_ID)
    )


class Quota:
    """How many light queues may come to be. ``offsets``: those that are there."""

    def __init__(self, config: StoreConfig, offsets: QueueOffsets, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._offsets = offsets
        self._complaints = Complaints(log, lambda: now_ms() / 1000)

    def admitted(self, messages: Sequence[NewMessage], *, stored_before: bool) -> Sequence[NewMessage]:
        """``messages`` of one put, when there is room for the queues they name that are not there; half and
        delayed ones count, too. Raises Refused: SYSTEM_ERROR, as the original; MESSAGE_ILLEGAL when they name
        more than ``NAMES_MAX``.

        ``stored_before``: what was admitted to wait, and finds no room now, is stored without the queues that
        are not there: refused, it would keep those behind it waiting.
        """
        named = sum(message.properties.count(",") + 1 for message in messages if NAMES in message.properties)
        if named > NAMES_MAX and not stored_before:
            named = sum(len(_light(property_of(m.properties, NAMES) or "")) for m in messages)
            if named > NAMES_MAX:
                text = f"one request names {named} light queues, at most {NAMES_MAX} are taken"
                raise Refused(text, Response.MESSAGE_ILLEGAL)
        room = self._config.lmq_queues_max - self._offsets.light_queues
        new = {name for message in messages for name in self._new_in(message)}
        if len(new) <= room:
            return messages
        if not stored_before:
            raise Refused(FULL, Response.SYSTEM_ERROR)
        self._complaints.warn("a message comes to no new light queue: maxLmqConsumeQueueNum")
        return [self._without(message, new) for message in messages]

    def note(self, keys: Iterable[tuple[str, int]]) -> None:
        """Something is about to be appended to these queues."""
        table = self._offsets.table
        light = {key for key in keys if key[0].startswith(LMQ_PREFIX)}
        self._offsets.light_queues += sum(key not in table for key in light)

    def _new_in(self, message: NewMessage) -> list[str]:
        if NAMES not in message.properties:
            return []
        names = _light(property_of(message.properties, NAMES) or "")
        return [name for name in names if (name, QUEUE_ID) not in self._offsets.table]

    def _without(self, message: NewMessage, new: set[str]) -> NewMessage:
        found = decode_properties(message.properties)
        if NAMES not in found:
            return message
        found[NAMES] = ",".join(name for name in _light(found[NAMES]) if name not in new)
        return replace(message, properties=encode_properties(found))


def dispatches(item: Dispatch, properties: str) -> list[Dispatch]:
    """What the light queues get of a record whose own queue gets ``item``; the index gets nothing."""
    return [
        item._replace(
            topic=name,
            queue_id=QUEUE_ID,
            queue_offset=QueueOffset(offset),
            uniq_key="",
            keys="",
            sys_flag=item.sys_flag & ~INNER_BATCH,
        )
        for name, offset in places(item.topic, properties)
    ]


class MultiDispatchParser(DispatchParser):
    """``parse`` gives, behind each record's Dispatch, those of its light queues; ``one`` does not."""

    def __init__(self, delays_ms: Sequence[int]) -> None:
        super().__init__(delays_ms)
        self._more: list[tuple[int, list[Dispatch]]] = []

    def parse(self, buffer: Buffer, offset: int, limit: int) -> tuple[list[Dispatch], int]:
        self._more.clear()
        found, end = super().parse(buffer, offset, limit)
        if not self._more:
            return found, end
        more = dict(self._more)
        return [one for item in found for one in (item, *more.get(item.offset, ()))], end

    def _one(self, place: Place, raw_topic: bytes, raw: Buffer) -> Dispatch:
        item = super()._one(place, raw_topic, raw)
        if _RAW_OFFSETS in bytes(raw):
            more = dispatches(item, str(raw, "utf-8", "surrogateescape"))
            if more:
                self._more.append((item.offset, more))
        return item
