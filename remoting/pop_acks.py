"""How does one request acknowledge many popped messages?

BATCH_ACK_MESSAGE (200151): JSON, one entry for each pop of each queue. The offsets are a bit set: base64 of
bytes, the least bit first. Source of the format: Apache RocketMQ 5.x, ``remoting/protocol/body/BatchAck``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model.errors import PeerError
from model.pop import INT_MAX, LONG_MAX
from remoting import bodies


@dataclass(slots=True)
class BatchAck:
    """What a client acknowledges of one pop of one queue. ``topic`` is never the retry topic: ``kind``
    says."""

    group: str
    topic: str
    kind: str
    start: int
    queue_id: int
    revive_queue: int
    pop_time_ms: int
    invisible_ms: int
    diffs: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        bits = sum(1 << diff for diff in set(self.diffs))
        raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return {
            "b": base64.b64encode(raw).decode(),
            "c": self.group,
            "it": self.invisible_ms,
            "pt": self.pop_time_ms,
            "q": self.queue_id,
            "r": self.kind,
            "rq": self.revive_queue,
            "so": self.start,
            "t": self.topic,
        }

    @classmethod
    def parse(cls, found: Mapping[str, Any], span_max: int, count_max: int) -> BatchAck:
        """``span_max`` bounds how far the offsets may lie apart. Raises PeerError."""
        return cls(
            text_of(found, ("c", "consumerGroup")),
            text_of(found, ("t", "topic")),
            text_of(found, ("r", "retry")),
            number_of(found, ("so", "startOffset")),
            number_of(found, ("q", "queueId"), INT_MAX),
            number_of(found, ("rq", "reviveQueueId"), INT_MAX),
            number_of(found, ("pt", "popTime")),
            number_of(found, ("it", "invisibleTime")),
            _bits(found.get("b", found.get("bitSet")), span_max, count_max),
        )


def encode_batch_acks(broker: str, acks: list[BatchAck]) -> bytes:
    return bodies.dumps({"brokerName": broker, "acks": [ack.to_json() for ack in acks]})


def _bits(text: Any, span_max: int, count_max: int) -> list[int]:
    if not isinstance(text, str) or len(text) > span_max // 6 + 4:
        raise PeerError(f"a bit set is the base64 text of at most {span_max} bits")
    try:
        bits = int.from_bytes(base64.b64decode(text, validate=True), "little")
    except ValueError as error:  # binascii.Error is one; text beyond ASCII is none of those
        raise PeerError(f"a bit set is not base64: {error}") from None
    if bits.bit_count() > count_max:
        raise PeerError(f"a pop has at most {count_max} messages")
    found = []
    while bits:  # bit by bit: a span of thousands has 32 at the most
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found


def is_int(value: Any, low: int, high: int = LONG_MAX) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def number_of(found: Mapping[str, Any], names: tuple[str, ...], high: int = LONG_MAX) -> int:
    value = next((found[name] for name in names if name in found), 0)
    if not is_int(value, 0, high):
        raise PeerError(f"{names[0]} is not a number of 0 to {high}")
    return int(value)


def text_of(found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    value = next((found[name] for name in names if name in found), None)
    if not isinstance(value, str) or not value:
        raise PeerError(f"{names[0]} is missing")
    return value
