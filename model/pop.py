"""What do pop consumers and brokers agree on: names of topics, and texts that say where a message was popped?

    extra info        ``start popTime invisibleTime reviveQueue retry broker queue [offset [more]]``, blanks
    start offsets     ``retry queue start;...``
    message offsets   ``retry queue offset,offset;...``
    order counts      ``retry queue times;retry qoQUEUE%OFFSET times;...``

``retry`` is 0 for the topic itself, 1 for the group's pop retry topic, 2 for that one as version 2 names it.
Source of the formats: Apache RocketMQ 5.x, ``remoting/protocol/header/ExtraInfoUtil``, ``common/KeyBuilder``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from model.message import RETRY_PREFIX

POP_CK: Final = "POP_CK"
"""Property with the extra info of a message; without its offset in versions before 4.9.3."""
FIRST_POP_TIME: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
"""Property of what came back: the group that popped it."""
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"

REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue an extra info names when the message was popped in order: no checkpoint was written."""
ALL_QUEUES: Final = -1
MESSAGES_MAX: Final = 32

ATTEMPT_ID_CHARS: Final = 64
BROKER_NAME_CHARS: Final = 255

INIT_MIN: Final = 0
INIT_MAX: Final = 1

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1


def revive_topic(cluster: str) -> str:
    return REVIVE_TOPIC_PREFIX + cluster


def is_revive_topic(name: str) -> bool:
    return name.startswith(REVIVE_TOPIC_PREFIX)


def pop_retry_topic(topic: str, group: str, *, v2: bool) -> str:
    """Where a message goes that its consumer did not acknowledge in time."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def normal_topic(name: str, group: str) -> str:
    """The topic that ``name`` is, or is the pop retry topic of for ``group``."""
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def retry_kind(topic: str) -> str:
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, kind: str) -> str:
    """The topic a message of ``topic`` lies in. Raises ValueError for a kind there is not."""
    if kind == NORMAL:
        return topic
    if kind not in (RETRY_V1, RETRY_V2):
        raise ValueError(f"retry {kind[:10]!r} is not 0, 1 or 2")
    return pop_retry_topic(topic, group, v2=kind == RETRY_V2)


@dataclass(frozen=True, slots=True)
class ExtraInfo:
    """Where and when one message was popped. ``start``: the first queue offset of that pop."""

    start: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker: str
    queue_id: int
    offset: int | None = None

    @property
    def in_order(self) -> bool:
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def to_text(self) -> str:
        parts = [self.start, self.pop_time_ms, self.invisible_ms, self.revive_queue, self.kind, self.broker]
        parts += [self.queue_id] if self.offset is None else [self.queue_id, self.offset]
        return " ".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> ExtraInfo:
        """What follows the offset is not looked at: a proxy writes where the message lies in the CommitLog
        there, and passes it on with each acknowledgement. Raises ValueError."""
        parts = text.split(" ", 8)
        if len(parts) < 7:
            raise ValueError(f"the extra info has {len(parts)} parts, expected 7 or more")
        offset = _number(parts[7]) if len(parts) > 7 else None
        start, pop_time_ms, invisible_ms = map(_number, parts[:3])
        revive_queue, queue_id = _number(parts[3], INT_MAX), _number(parts[6], INT_MAX)
        if parts[4] not in (NORMAL, RETRY_V1, RETRY_V2):
            raise ValueError(f"retry {parts[4][:10]!r} is not 0, 1 or 2")
        if len(parts[5]) > BROKER_NAME_CHARS:
            raise ValueError(f"the broker's name has more than {BROKER_NAME_CHARS} characters")
        return cls(start, pop_time_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id, offset)


def short_attempt_id(text: str) -> str:
    """What is remembered of an attempt's id: it is only compared, and a client may make it megabytes long."""
    if len(text) <= ATTEMPT_ID_CHARS:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def start_offsets_text(rows: Iterable[tuple[str, int, int]]) -> str:
    """Of (topic, queue, start)."""
    return ";".join(f"{retry_kind(topic)} {queue} {start}" for topic, queue, start in rows)


def message_offsets_text(rows: Iterable[tuple[str, int, Iterable[int]]]) -> str:
    """Of (topic, queue, offsets)."""
    return ";".join(
        f"{retry_kind(topic)} {queue} {','.join(map(str, offsets))}" for topic, queue, offsets in rows
    )


def order_counts_text(topic: str, queue_id: int, counts: Mapping[int, int], least: int) -> str:
    """How often each message was popped before, and the least of all for clients that ask by queue."""
    kind = retry_kind(topic)
    rows = [f"{kind} qo{queue_id}%{offset} {times}" for offset, times in counts.items()]
    return ";".join([*rows, f"{kind} {queue_id} {least}"])


def parse_start_offsets(text: str) -> dict[str, int]:
    """``retry@queue`` -> start; also reads order counts. Raises ValueError."""
    return {key: _number(value) for key, value in _rows(text).items()}


def parse_message_offsets(text: str) -> dict[str, list[int]]:
    """``retry@queue`` -> offsets. Raises ValueError."""
    return {key: [_number(part) for part in value.split(",")] for key, value in _rows(text).items()}


def offsets_key(topic: str, queue: int | str) -> str:
    return f"{retry_kind(topic)}@{queue}"


def order_key(topic: str, queue_id: int, offset: int) -> str:
    return offsets_key(topic, f"qo{queue_id}%{offset}")


def _rows(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in filter(None, text.split(";")):
        parts = row.split(" ")
        if len(parts) != 3 or f"{parts[0]}@{parts[1]}" in found:
            raise ValueError(f"{row[:60]!r} is not three parts of a queue that was not named yet")
        found[f"{parts[0]}@{parts[1]}"] = parts[2]
    return found


def _number(text: str, most: int = LONG_MAX) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise ValueError(f"{text[:40]!r} is not a number of 0 to {most}")
    return int(text)
