"""What do checkpoints and acknowledgements look like in the revive topic?

A checkpoint (tag ``ck``) says what one pop took of one queue, an acknowledgement (``ack``) or many of them
(``bAck``) what its consumer has done. JSON, members by name:

    checkpoint   so start offset, pt pop time, it invisible time, bm bit map of what is acknowledged,
                 n messages, q queue, t topic, c group, ro its own place in the revive queue, d offsets
                 behind so, bn broker, rp how often it was written anew
    ack          ao offset, so, c, t, q, pt, bn as above
    many         aol offsets, and as an ack with ao = -1

Source of the format: Apache RocketMQ 5.x, ``store/pop``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from model.errors import PeerError
from model.pop import INT_MAX
from remoting import bodies
from remoting.pop_acks import is_int, number_of, text_of

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
    suspended: bool = False
    """What comes back counts as tried no more often: its consumer put it off."""

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
        if self.suspended:
            found["sp"] = True
        return bodies.dumps(found)

    @classmethod
    def parse(cls, body: bytes) -> Checkpoint:
        """Raises PeerError."""
        found = bodies.believed_object(body)
        count = number_of(found, ("n", "num"), BIT_MAX)
        diffs = found.get("d", found.get("queueOffsetDiff")) or list(
            range(count)
        )  # the first versions wrote no offsets
        if not isinstance(diffs, list) or len(diffs) > BIT_MAX or not all(is_int(d, 0) for d in diffs):
            raise PeerError("d of a checkpoint is not a list of offsets")
        text = found.get("rp", found.get("rePutTimes"))
        rewritten = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0
        bits = found.get("bm", found.get("bitMap", 0))
        return cls(
            number_of(found, ("so", "startOffset")),
            number_of(found, ("pt", "popTime")),
            number_of(found, ("it", "invisibleTime")),
            number_of(found, ("q", "queueId"), INT_MAX),
            text_of(found, ("t", "topic")),
            text_of(found, ("c", "cId", "cid")),
            str(found.get("bn", found.get("brokerName")) or ""),
            diffs,
            bits & 0xFFFFFFFF if is_int(bits, -(2**31)) else 0,
            number_of(found, ("ro", "reviveOffset")),
            rewritten,
            found.get("sp", found.get("suspend")) is True,
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
        found = bodies.believed_object(body)
        offsets = (
            found.get("aol", found.get("ackOffsetList"))
            if batch
            else [found.get("ao", found.get("ackOffset"))]
        )
        if not isinstance(offsets, list) or not all(is_int(offset, 0) for offset in offsets):
            raise PeerError("an ack names no offset")
        broker = found.get("bn", found.get("brokerName"))
        return cls(
            offsets,
            number_of(found, ("so", "startOffset")),
            text_of(found, ("c", "consumerGroup")),
            text_of(found, ("t", "topic")),
            number_of(found, ("q", "queueId"), INT_MAX),
            number_of(found, ("pt", "popTime")),
            broker if isinstance(broker, str) else "",
            batch,
        )


def _int32(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits
