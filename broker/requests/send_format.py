"""What do the fast path and the ordinary way of a send agree on?

Both must store the same bytes and answer with the same bytes; what decides that stands here once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from model.config import BrokerConfig
from model.message import (
    COMPRESSED,
    COMPRESSION_MASK,
    OWN_MARKS,
    encode_properties,
)
from remoting import codec
from remoting.codec import Command

_LENGTHS: Final = struct.Struct(">iI").pack
_INT: Final = struct.Struct(">i").pack
_BINARY_MARK: Final = codec.ROCKETMQ << 24
_START: Final = struct.Struct(">iIhBhiiii")
_OPAQUE_AT: Final = struct.calcsize(">iIhBh")
ONES_MAX: Final = 64
"""Templates of answers that are kept: one for each three lengths of what they name."""
assert _START.size == 8 + codec.BINARY_BYTES + 4, "a frame with a ROCKETMQ header up to its ext fields"

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

MULTI_TAGS: Final = 0x2
PLAIN_SYS_FLAGS: Final = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK


def is_special(properties: str) -> bool:
    """Whether a properties text may hold something only the ordinary way knows how to treat.

    A plain ``in`` per name is the cheapest test there is; a name that merely ends like one of these goes the
    ordinary way as well, which does no harm.
    """
    return (
        "DELAY\x01" in properties
        or "WAIT\x01f" in properties
        or "WAIT\x01F" in properties
        or "CLUSTER\x01" in properties
        or "TRAN_MSG\x01" in properties
        or "MSG_REGION\x01" in properties
        or "TRACE_ON\x01" in properties
        or "POP_CK\x01" in properties
        or holds_own(properties)
    )


def holds_own(properties: str) -> bool:
    """Whether one of ``BROKERS_OWN`` may be in a properties text."""
    return any(mark in properties for mark in OWN_MARKS)


def region_properties(config: BrokerConfig) -> dict[str, str]:
    """Properties the broker adds to every single message and to every reply."""
    return {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}


def extra_properties(config: BrokerConfig) -> str:
    """What stands behind the client's properties of every single message."""
    return encode_properties({**region_properties(config), "CLUSTER": config.cluster_name})


def send_ext(
    config: BrokerConfig, queue_id: int, transaction_id: str, message_id: str, queue_offset: int
) -> dict[str, str]:
    """The ext fields of a send's answer, in the order both ways write them."""
    return {
        "queueId": str(queue_id),
        "transactionId": transaction_id,
        "msgId": message_id,
        "TRACE_ON": "true" if config.trace_on else "false",
        "MSG_REGION": config.region_id,
        "queueOffset": str(queue_offset),
    }


class JsonAnswer:
    """OK answers with JSON headers by template, cut from the codec's own output: the two cannot differ."""

    def __init__(self, config: BrokerConfig, host: bytes) -> None:
        sample = Command(
            0,
            send_ext(config, 111111101, "@UNIQ@", "@MSGID@", 111111103),
            opaque=111111104,
            flag=codec.FLAG_RESPONSE,
        )
        slots = (
            (b"111111101", b"%d"),
            (b"@UNIQ@", b"%b"),
            (b"@MSGID@", b"%b"),
            (b"111111103", b"%d"),
            (b"111111104", b"%d"),
        )
        self._host = host.hex().upper().encode()
        header = codec.encode(sample)[8:]
        self._header = _template(header, slots, config)
        self.parts = _around(header, [mark for mark, _ in slots])
        """What stands around the values: queue id, unique key, message ids, queue offset, opaque."""
        self.one = (
            self._header.replace(b"%b", b"\x00", 1)
            .replace(b"%b", self._host + b"%016X", 1)
            .replace(b"\x00", b"%b", 1)
        )
        """The header of one message's: % (queue id, unique key, physical offset, queue offset, opaque); the
        key needs no JSON escapes."""

    def frame(
        self, queue_id: int, uniq_key: bytes, offsets: Sequence[int], queue_offset: int, opaque: int
    ) -> bytes:
        """The whole answer to a send of the messages at ``offsets``."""
        ids = b",".join([b"%b%016X" % (self._host, offset) for offset in offsets])
        header = self._header % (queue_id, uniq_key, ids, queue_offset, opaque)
        return _LENGTHS(4 + len(header), len(header)) + header


class BinaryAnswer:
    """The same with ROCKETMQ headers, cut from the codec's output as well."""

    def __init__(self, config: BrokerConfig, host: bytes) -> None:
        self._host = host.hex().upper().encode()
        id_bytes = len(self._host) + 16
        ext = send_ext(config, 111111101, "@UNIQ@", "@" * id_bytes, 111111103)
        sample = codec.encode(Command(0, ext, flag=codec.FLAG_RESPONSE, serialize=codec.ROCKETMQ))
        _, _, self._code, self._language, self._version, _, self._flag, _, ext_bytes = _START.unpack_from(
            sample
        )
        marked_id = _INT(id_bytes) + b"@" * id_bytes
        before = (
            (_INT(9) + b"111111101", b"\x00\x00\x00%c%b"),
            (_INT(6) + b"@UNIQ@", b"%b%b"),
        )
        behind = (_INT(9) + b"111111103", b"\x00\x00\x00%c%b")
        fields = sample[_START.size :]
        self._ext = _template(fields, (*before, (marked_id, b"%b%b"), behind), config)
        self._ones: dict[tuple[int, int, int], bytes] = {}
        marks = [mark for mark, _ in (*before, (marked_id, b""), behind)]
        self.parts = [sample[8 : _START.size], *_around(fields, marks)]
        """A header up to its ext fields, then what stands around the values: queue id, unique key, message
        ids, queue offset, each with its length first."""
        self._fixed_bytes = ext_bytes - len(b"111111101" + b"@UNIQ@" + b"111111103") - id_bytes
        self._one_bytes = self._fixed_bytes + id_bytes

    def frame(
        self, queue_id: int, uniq_key: bytes, offsets: Sequence[int], queue_offset: int, opaque: int
    ) -> bytes:
        """The whole answer to a send of the messages at ``offsets``."""
        ids = b",".join([b"%b%016X" % (self._host, offset) for offset in offsets])
        queue, place, unique = b"%d" % queue_id, b"%d" % queue_offset, _INT(len(uniq_key))
        start = self._start(self._fixed_bytes + len(queue) + len(uniq_key) + len(ids) + len(place), opaque)
        values = (len(queue), queue, unique, uniq_key, _INT(len(ids)), ids, len(place), place)
        return start + self._ext % values

    def one(self, queue_id: int, uniq_key: bytes, offset: int, queue_offset: int, opaque: int) -> bytes:
        """``frame`` of one message, in fewer steps: by a template of all frames of its lengths."""
        queue, place = b"%d" % queue_id, b"%d" % queue_offset
        lengths = (len(queue), len(uniq_key), len(place))
        template = self._ones.get(lengths) or self._template_of(*lengths)
        return template % (_INT(opaque), queue, uniq_key, offset, place)

    def _template_of(self, queue_bytes: int, unique_bytes: int, place_bytes: int) -> bytes:
        """The answer to one message: % (opaque, queue id, unique key, physical offset, queue offset)."""
        start = self._start(self._one_bytes + queue_bytes + unique_bytes + place_bytes, 0)
        _, *around = self.parts
        slots = (
            (_INT(queue_bytes), b"%b"),
            (_INT(unique_bytes), b"%b"),
            (_INT(len(self._host) + 16) + self._host, b"%016X"),
            (_INT(place_bytes), b"%b"),
        )
        template = _escaped(start[:_OPAQUE_AT]) + b"%b" + _escaped(start[_OPAQUE_AT + 4 :] + around[0])
        for (length, slot), fixed in zip(slots, around[1:], strict=True):
            template += _escaped(length) + slot + _escaped(fixed)
        if len(self._ones) >= ONES_MAX:
            self._ones.clear()
        self._ones[queue_bytes, unique_bytes, place_bytes] = template
        return template

    def _start(self, ext_bytes: int, opaque: int) -> bytes:
        """A frame up to its ext fields."""
        size = _START.size - 8 + ext_bytes
        return _START.pack(
            4 + size, _BINARY_MARK | size, self._code, self._language, self._version, opaque, self._flag, 0,
            ext_bytes,
        )  # fmt: skip


def _escaped(text: bytes) -> bytes:
    """``text`` as a template has it."""
    return text.replace(b"%", b"%%")


def _around(sample: bytes, marks: Iterable[bytes]) -> list[bytes]:
    """What is left of ``sample`` around ``marks``, which stand in it in this order."""
    parts = []
    for mark in marks:
        before, _, sample = sample.partition(mark)
        parts.append(before)
    return [*parts, sample]


def _template(sample: bytes, slots: Iterable[tuple[bytes, bytes]], config: BrokerConfig) -> bytes:
    """``sample`` with a slot in place of each mark. Raises ValueError when that cannot be told apart."""
    template = _escaped(sample)
    for mark, slot in slots:
        before, found, after = template.partition(mark)
        if not found or mark in after:
            raise ValueError(f"regionId={config.region_id}: cannot stand in an answer")
        template = before + slot + after
    return template
