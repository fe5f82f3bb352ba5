"""What do checkpoints and acknowledgements look like in the revive topic?

A checkpoint (tag ``ck``) says what one pop took of one queue, an acknowledgement (``ack``) or many of them
(``bAck``) what its consumer has done. JSON, members by name:

    checkpoint   so start offset, pt pop time, it invisible time, bm bit map of what is acknowledged,
                 n messages, q queue, t topic, c group, ro its own place in the revive queue, d offsets
                 behind so, bn broker, rp how often it was written anew
    ack          ao offset, so, c, t, q, pt, bn as above
    many         aol offsets, and as an ack with ao = -1

A request's many acks (200151) name the offsets by a bit set: base64 of bytes, the least bit first.
Source of the format: Apache RocketMQ 5.x, ``store/pop``, ``remoting/protocol/body/BatchAck``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from model.errors import PeerError
from model.pop import INT_MAX, LONG_MAX
from remoting import bodies

CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
BIT_MAX: Final = 32
"""A checkpoint's bit map is an int."""

Key = tuple[str, str, int, int, int, str]
"""What a checkpoint and its acks share: topic, group, queue, start offset, pop time, broker."""


@dataclass(slots=True)
class Checkpoint:
    start: int
    pop_time_ms: int
    invisible_ms: int
    queue_id: int
    topic: str
    group: str
    broker: str
    diffs: list[int]
    bits: int = 0
    revive_offset: int = 0
    rewritten: int = 0

    @property
    def key(self) -> Key:
        return (self.topic, self.group, self.queue_id, self.start, self.pop_time_ms, self.broker)

    @property
    def revive_time_ms(self) -> int:
        return self.pop_time_ms + self.invisible_ms

    @property
    def last(self) -> int:
        return self.start + max(self.diffs, default=-1)

    def unacked(self) -> list[int]:
        """The queue offsets nobody acknowledged."""
        return [self.start + diff for at, diff in enumerate(self.diffs) if not self.bits >> at & 1]

    def ack(self, offset: int) -> None:
        if offset - self.start in self.diffs:
            self.bits |= 1 << self.diffs.index(offset - self.start)

    def unique_id(self) -> str:
        parts = [self.topic, self.queue_id, self.start, self.group, self.pop_time_ms, self.broker, CK_TAG]
        return "@".join(map(str, parts))

    def encode(self) -> bytes:
        found: dict[str, Any] = {
            "bm": _int32(self.bits),
            "bn": self.broker,
            "c": self.group,
            "d": self.diffs,
            "it": self.invisible_ms,
            "n": len(self.diffs),
            "pt": self.pop_time_ms,
            "q": self.queue_id,
            "reviveTime": self.revive_time_ms,
            "ro": self.revive_offset,
            "so": self.start,
            "t": self.topic,
        }
        if self.rewritten:
            found["rp"] = str(self.rewritten)
        return bodies.dumps(found)

    @classmethod
    def parse(cls, body: bytes) -> Checkpoint:
        """Raises PeerError."""
        found = bodies.loads_object(body)
        count = _number(found, ("n", "num"), BIT_MAX)
        diffs = found.get("d", found.get("queueOffsetDiff")) or list(
            range(count)
        )  # the first versions wrote no offsets
        if not isinstance(diffs, list) or len(diffs) > BIT_MAX or not all(_is_int(d, 0) for d in diffs):
            raise PeerError("d of a checkpoint is not a list of offsets")
        text = found.get("rp", found.get("rePutTimes"))
        rewritten = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0
        bits = found.get("bm", found.get("bitMap", 0))
        return cls(
            _number(found, ("so", "startOffset")),
            _number(found, ("pt", "popTime")),
            _number(found, ("it", "invisibleTime")),
            _number(found, ("q", "queueId"), INT_MAX),
            _text(found, ("t", "topic")),
            _text(found, ("c", "cId", "cid")),
            str(found.get("bn", found.get("brokerName")) or ""),
            diffs,
            bits & 0xFFFFFFFF if _is_int(bits, -(2**31)) else 0,
            _number(found, ("ro", "reviveOffset")),
            rewritten,
        )


@dataclass(slots=True)
class Ack:
    """``offsets``: one, or those of a batch."""

    offsets: list[int]
    start: int
    group: str
    topic: str
    queue_id: int
    pop_time_ms: int
    broker: str
    batch: bool = False

    @property
    def key(self) -> Key:
        return (self.topic, self.group, self.queue_id, self.start, self.pop_time_ms, self.broker)

    @property
    def tag(self) -> str:
        return BATCH_ACK_TAG if self.batch else ACK_TAG

    def unique_id(self) -> str:
        # Of a batch, too: the original sets the id of a single one last, with the offset -1.
        offset = -1 if self.batch else self.offsets[0]
        parts = [self.topic, self.queue_id, offset, self.group, self.pop_time_ms, self.broker, ACK_TAG]
        return "@".join(map(str, parts))

    def encode(self) -> bytes:
        found: dict[str, Any] = {
            "ao": -1 if self.batch else self.offsets[0],
            "bn": self.broker,
            "c": self.group,
            "pt": self.pop_time_ms,
            "q": self.queue_id,
            "so": self.start,
            "t": self.topic,
        }
        if self.batch:
            found["aol"] = self.offsets
        return bodies.dumps(found)

    @classmethod
    def parse(cls, body: bytes, *, batch: bool) -> Ack:
        """Raises PeerError."""
        found = bodies.loads_object(body)
        offsets = (
            found.get("aol", found.get("ackOffsetList"))
            if batch
            else [found.get("ao", found.get("ackOffset"))]
        )
        if not isinstance(offsets, list) or not all(_is_int(offset, 0) for offset in offsets):
            raise PeerError("an ack names no offset")
        broker = found.get("bn", found.get("brokerName"))
        return cls(
            offsets,
            _number(found, ("so", "startOffset")),
            _text(found, ("c", "consumerGroup")),
            _text(found, ("t", "topic")),
            _number(found, ("q", "queueId"), INT_MAX),
            _number(found, ("pt", "popTime")),
            broker if isinstance(broker, str) else "",
            batch,
        )


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
    def parse(cls, found: Mapping[str, Any], offsets_max: int) -> BatchAck:
        """``offsets_max`` bounds how far the offsets may lie apart. Raises PeerError."""
        return cls(
            _text(found, ("c", "consumerGroup")),
            _text(found, ("t", "topic")),
            _text(found, ("r", "retry")),
            _number(found, ("so", "startOffset")),
            _number(found, ("q", "queueId"), INT_MAX),
            _number(found, ("rq", "reviveQueueId"), INT_MAX),
            _number(found, ("pt", "popTime")),
            _number(found, ("it", "invisibleTime")),
            _bits(found.get("b", found.get("bitSet")), offsets_max),
        )


def encode_batch_acks(broker: str, acks: list[BatchAck]) -> bytes:
    return bodies.dumps({"brokerName": broker, "acks": [ack.to_json() for ack in acks]})


def _bits(text: Any, offsets_max: int) -> list[int]:
    if not isinstance(text, str) or len(text) > offsets_max // 6 + 4:
        raise PeerError(f"a bit set is the base64 text of at most {offsets_max} bits")
    try:
        bits = int.from_bytes(base64.b64decode(text, validate=True), "little")
    except binascii.Error as error:
        raise PeerError(f"a bit set is not base64: {error}") from None
    return [at for at in range(bits.bit_length()) if bits >> at & 1]


def _int32(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits


def _is_int(value: Any, low: int, high: int = LONG_MAX) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(found: Mapping[str, Any], names: tuple[str, ...], high: int = LONG_MAX) -> int:
    value = next((found[name] for name in names if name in found), 0)
    if not _is_int(value, 0, high):
        raise PeerError(f"{names[0]} is not a number of 0 to {high}")
    return int(value)


def _text(found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    value = next((found[name] for name in names if name in found), None)
    if not isinstance(value, str) or not value:
        raise PeerError(f"{names[0]} is missing")
    return value
