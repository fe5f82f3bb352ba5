"""Which light queues (LMQ) does one record belong to, besides its own queue?

    property INNER_MULTI_DISPATCH       names, with commas between: %LMQ%a,%LMQ%b
    property INNER_MULTI_QUEUE_OFFSET   its offset in each of them, in the same order: 7,0

Each is a ConsumeQueue with queue id 0 whose entry names the same record. The producer gives the first, the
broker that appends the record the second: with it every replica, and every recovery, makes the same queues of
the log. On with ``enableLmq`` and ``enableMultiDispatch``; source: Apache RocketMQ 5.x,
``store/MultiDispatch``. Names without the prefix, which RocketMQ would let into ordinary queues, are ignored:
any producer could name another topic's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from model.ids import QueueOffset
from model.message import (
    INNER_BATCH,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_PREPARED,
    decode_properties,
    encode_properties,
    property_of,
)
from runtime.env import Buffer
from store.files.consume_queue import is_queue_name
from store.files.record import Dispatch, DispatchParser, NewMessage, Place

NAMES: Final = "INNER_MULTI_DISPATCH"
OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"
QUEUE_ID: Final = 0
_RAW_OFFSETS: Final = OFFSETS.encode()
_SYSTEM_PREFIX: Final = "rmq_sys_"


def _is_ordinary(topic: str) -> bool:
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, _SYSTEM_PREFIX))


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
    if OFFSETS not in properties and NAMES not in properties:
        return properties
    found = decode_properties(properties)
    found.pop(OFFSETS, None)  # of another life of the message, or of its producer's making
    if NAMES in found and _is_ordinary(topic) and not message.sys_flag & TRANSACTION_PREPARED:
        names = dict.fromkeys(
            name
            for name in found[NAMES].split(",")
            if name.startswith(LMQ_PREFIX) and is_queue_name(name, QUEUE_ID)
        )
        if names:
            keys = [(name, QUEUE_ID) for name in names]
            found[NAMES] = ",".join(names)
            found[OFFSETS] = ",".join(str(following.get(key, next_offset(*key))) for key in keys)
    return encode_properties(found)


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
