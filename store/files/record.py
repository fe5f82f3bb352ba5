"""How does one message lie in the CommitLog, byte for byte?

    at  size    field                 note
     0     4    total size            whole record
     4     4    magic                 v1 0xDAA320A7, v2 0xDAA320AB; blank 0xCBD43194
     8     4    body CRC              CRC-32 of the stored body, sign bit cleared
    12     4    queue id
    16     4    flag                  the user's
    20     8    queue offset          messages; 0 for prepared and rolled back ones
    28     8    physical offset       bytes, of this record
    36     4    sysFlag
    40     8    born timestamp        ms
    48  8/20    born host             address, port as int; 20 with sysFlag bit 16
         8      store timestamp       ms
      8/20      store host            20 with sysFlag bit 32
         4      reconsume times
         8      prepared transaction offset
       4+n      body
     1+n/2+n    topic                 2-byte length in v2, taken when the topic is longer than 127 bytes
       2+n      properties

Integers are big-endian. The rest of a segment no record fits into starts with a blank: bytes left, blank
magic. With ``enabledAppendPropCRC`` the properties end with ``__CRC32#`` 0x01 + 10 digits, least
significant first, + 0x02: the CRC of the record without these 20 bytes. Source of the format: Apache
RocketMQ 5.x CommitLog, ``store/CommitLog``; checked against stores it wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from model import message as m
from model.errors import DiskError, Refused
from model.ids import PhysicalOffset, QueueOffset, is_number
from runtime.env import Buffer

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
BLANK_BYTES: Final = 8
RECORD_BYTES_MIN: Final = 91
TOPIC_BYTES_MAX: Final = 32767
ZERO_TAIL_BYTES: Final = 8
"""Properties that end in so many zeros were never written to their end."""
TAG_CHARS_MAX: Final = 64  # of a longer tag no hash is remembered: it may have 32 KiB
OVERHEAD_BYTES_MAX: Final = 64 * 1024
"""A record may be this much longer than the longest body (topic, properties, fixed part)."""

HEAD: Final = struct.Struct(">iIIiiqqiq")
assert HEAD.size == 48
FIXED_V4: Final = struct.Struct(">iIIiiqqiq8sq8siqi")
"""The fixed part with both hosts in IPv4: what nearly every record starts with."""
assert FIXED_V4.size == 88
_QUICK: Final = struct.Struct(">iI4xi4xqqi16xq20xi")
assert _QUICK.size == FIXED_V4.size, "the same bytes, without the fields a dispatch does not need"
_FIXED: Final = (
    FIXED_V4,
    struct.Struct(">iIIiiqqiq20sq8siqi"),
    struct.Struct(">iIIiiqqiq8sq20siqi"),
    struct.Struct(">iIIiiqqiq20sq20siqi"),
)
BODY_LENGTH_AT: Final = tuple(fixed.size - 4 for fixed in _FIXED)
_STORE_TIME_AT: Final = (56, 68, 56, 68)
_SIZE_MAGIC: Final = struct.Struct(">iI")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_OFFSETS: Final = struct.Struct(">qq")
_HOSTS_V6: Final = m.BORN_HOST_V6 | m.STORE_HOST_V6

PROP_CRC_NAME: Final = b"__CRC32#\x01"
PROP_CRC_BYTES: Final = len(PROP_CRC_NAME) + 11


class BadRecord(DiskError):
    """Bytes that are not a whole record; ``kind`` names what is wrong in the audit's words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class NewMessage:
    """A message before it has a place: everything the sender decides. Hosts are 8 or 20 raw bytes."""

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: Buffer
    properties: str


@dataclass(slots=True)
class Record(NewMessage):
    """A message as the log holds it. ``size`` and offsets in bytes, ``queue_offset`` in messages."""

    body: bytes
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    store_timestamp_ms: int
    size: int
    body_crc: int
    version: int = 1

    def message(self) -> NewMessage:
        """What the sender decided, for writing it again."""
        return NewMessage(
            self.topic,
            self.queue_id,
            self.flag,
            self.sys_flag,
            self.born_timestamp_ms,
            self.born_host,
            self.store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
            self.body,
            self.properties,
        )


class Dispatch(NamedTuple):
    """What the ConsumeQueue and the index need of one record."""

    offset: PhysicalOffset
    size: int
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    tags_code: int
    uniq_key: str
    keys: str
    store_timestamp_ms: int
    sys_flag: int


def encode(
    message: NewMessage,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    *,
    version: int | None = None,
    append_prop_crc: bool = False,
) -> bytes:
    """The bytes of one record.

    ``version`` None takes v1 unless the topic is longer than 127 bytes. Raises Refused (13) when topic,
    properties or a number do not fit, ValueError when a host's length contradicts the sysFlag.
    """
    parts, reserve = _parts(
        message, (queue_offset, physical_offset, store_timestamp_ms), version, append_prop_crc
    )
    record = b"".join(parts)
    return record + crc_property(record) if reserve else record


def unplaced(message: NewMessage, *, append_prop_crc: bool = False) -> bytearray:
    """``encode`` without what ``place`` fills in."""
    parts, reserve = _parts(message, (0, 0, 0), None, append_prop_crc)
    return bytearray().join((*parts, bytes(reserve)))


def _parts(
    message: NewMessage, place_and_time: tuple[int, int, int], version: int | None, append_prop_crc: bool
) -> tuple[tuple[Buffer, ...], int]:
    """What a record is put together of, and how many bytes of a CRC property follow. Raises as ``encode``."""
    queue_offset, physical_offset, store_timestamp_ms = place_and_time
    raw_topic = message.topic.encode("utf-8", "surrogateescape")
    if version is None:
        version = 1 if len(raw_topic) <= 127 else 2
    if len(raw_topic) > (255 if version == 1 else TOPIC_BYTES_MAX):
        raise Refused(f"the topic has {len(raw_topic)} bytes, too long", 13)
    properties = message.properties.encode("utf-8", "surrogateescape")
    reserve = 0
    if append_prop_crc:
        properties, reserve = _closed(properties), PROP_CRC_BYTES
    if len(properties) + reserve > m.PROPERTIES_BYTES_MAX:
        raise Refused(f"the properties have {len(properties)} bytes, too long", 13)
    sys_flag = message.sys_flag
    hosts = sys_flag >> 4 & 3
    if (len(message.born_host), len(message.store_host)) != (20 if hosts & 1 else 8, 20 if hosts & 2 else 8):
        raise ValueError("the length of a host contradicts the sysFlag")
    fixed = _FIXED[hosts]
    body = message.body
    size = fixed.size + len(body) + version + len(raw_topic) + 2 + len(properties) + reserve
    try:
        head = fixed.pack(
            size,
            MAGIC_V1 if version == 1 else MAGIC_V2,
            crc32(body) & 0x7FFFFFFF,
            message.queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            sys_flag,
            message.born_timestamp_ms,
            message.born_host,
            store_timestamp_ms,
            message.store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise Refused(f"a number of the message does not fit its field: {error}", 13) from None
    length = bytes((len(raw_topic),)) if version == 1 else _SHORT.pack(len(raw_topic))
    return (head, body, length, raw_topic, _SHORT.pack(len(properties) + reserve), properties), reserve


def place(
    record: bytearray | memoryview,
    sys_flag: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    *,
    prop_crc: bool = False,
) -> None:
    """Give a record that ``encode`` made for no place in particular its own; ``prop_crc``: it has a CRC
    property."""
    _OFFSETS.pack_into(record, 20, queue_offset, physical_offset)
    _LONG.pack_into(record, _STORE_TIME_AT[sys_flag >> 4 & 3], store_timestamp_ms)
    if prop_crc:
        with memoryview(record) as view:
            view[-PROP_CRC_BYTES:] = crc_property(view[:-PROP_CRC_BYTES])


def _closed(properties: bytes) -> bytes:
    """``properties`` so that another can follow."""
    return properties + b"\x02" if properties and not properties.endswith(b"\x02") else properties


def crc_property(record: Buffer) -> bytes:
    """The 20 bytes of the CRC property for ``record``, the record without them."""
    digits = str(crc32(record) & 0x7FFFFFFF)[::-1].ljust(10, "0")
    return PROP_CRC_NAME + digits.encode() + b"\x02"


def prop_crc_ok(record: Buffer) -> bool | None:
    """Does the CRC property at the end of a whole record match? None when it has none."""
    tail = bytes(record[-PROP_CRC_BYTES:])
    if not tail.startswith(PROP_CRC_NAME):
        # A name with one byte wrong is a damaged CRC property, not the absence of one.
        alike = sum(a == b for a, b in zip(tail, PROP_CRC_NAME, strict=False))
        return False if alike >= len(PROP_CRC_NAME) - 1 else None
    return crc_property(record[:-PROP_CRC_BYTES]) == tail


def has_prop_crc(buffer: Buffer, end: int) -> bool:
    """Does a record that ends at ``end`` look as if it had a CRC property? Cheap; one byte may be wrong."""
    at = end - PROP_CRC_BYTES
    return (
        bytes(buffer[at : at + 4]) == PROP_CRC_NAME[:4] or bytes(buffer[at + 4 : at + 9]) == PROP_CRC_NAME[4:]
    )


def whole(buffer: Buffer, at: int, offset: int, *, prop_crc: bool) -> int:
    """``measure`` with all that tells a record from what is left of one.

    ``prop_crc``: is the store one with ``enabledAppendPropCRC``? Only there a ``__CRC32#`` at the end is the
    broker's own and has to match: elsewhere it is what a client wrote into its properties. (RocketMQ looks at
    it only with ``forceVerifyPropCRC``.)
    """
    size = measure(buffer, at, offset)
    if size <= 0:
        return size
    if buffer[at + size - 1] == 0 and _ends_in_zeros(buffer, at, size):
        raise BadRecord("unreadable_region", f"record at {offset}: its properties end in zeros")
    if prop_crc and has_prop_crc(buffer, at + size) and prop_crc_ok(buffer[at : at + size]) is False:
        raise BadRecord("crc_mismatch", f"record at {offset}: its CRC property does not match")
    return size


def _ends_in_zeros(record: Buffer, at: int, size: int) -> bool:
    """Do the properties of the record at ``at`` end in ZERO_TAIL_BYTES zeros? A broker closes them by 0x02:
    what follows a value is never NUL. (One NUL or two may end a value that an old client left open.)"""
    tail = bytes(record[at + size - ZERO_TAIL_BYTES : at + size])
    return not any(tail) and _properties_at(record, at) <= at + size - ZERO_TAIL_BYTES


def body_of(record: Buffer, at: int = 0) -> tuple[int, int]:
    """Where the body of the record at ``at`` begins, and its length."""
    length_at = at + BODY_LENGTH_AT[record[at + 39] >> 4 & 3]
    return length_at + 4, _INT.unpack_from(record, length_at)[0]


def _properties_at(record: Buffer, at: int) -> int:  # of a measured record
    topic_at = sum(body_of(record, at))
    is_v1 = _SIZE_MAGIC.unpack_from(record, at)[1] == MAGIC_V1
    return topic_at + (3 + record[topic_at] if is_v1 else 4 + int(_SHORT.unpack_from(record, topic_at)[0]))


def is_torn(record: Buffer, offset: int, *, killed: bool = False) -> bool:
    """Is a record torn, although its lengths and its body's CRC are right?

    The body may have come when the properties did not: then they end in NUL, or a whole block of the disk in
    them is zeros: a broker takes no such properties (model.message.ZEROS). ``killed``: only the process died.
    Then no block can be missing but at the end. A CRC property that matches says that all is there.
    """
    at, size = _properties_at(record, 0), len(record)
    if at == size or (has_prop_crc(record, size) and prop_crc_ok(record)):
        return False
    if killed or record[size - 1] == 0:
        return record[size - 1] == 0
    first = -(-(offset + at) // 512) * 512 - offset
    return any(not any(record[block : block + 512]) for block in range(first, size - 511, 512))


def blank(left: int) -> bytes:
    """The 8 bytes that end a segment with ``left`` bytes left."""
    return _SIZE_MAGIC.pack(left, MAGIC_BLANK)


def measure(buffer: Buffer, at: int, offset: int, check_crc: bool = True) -> int:
    """How many bytes does the whole record at ``at`` take, said to lie at physical ``offset``?

    0: the buffer ends before the record does. Negative: a blank of that many bytes. Raises BadRecord when the
    bytes cannot be a record of this place. Lengths, magic, physical offset and (``check_crc``) the body are
    checked; what the body means is not.
    """
    end = len(buffer)
    if at + BLANK_BYTES > end:
        return 0
    size, magic = _SIZE_MAGIC.unpack_from(buffer, at)
    if size < RECORD_BYTES_MIN or magic not in (MAGIC_V1, MAGIC_V2):
        return -_blank_bytes(size, magic, offset)
    if at + size > end:
        return 0
    hosts = buffer[at + 39] >> 4 & 3
    body_at = at + BODY_LENGTH_AT[hosts]
    stop = at + size
    length_bytes = 1 if magic == MAGIC_V1 else 2
    if body_at + 7 + length_bytes > stop:
        raise BadRecord("unreadable_region", f"record at {offset} is shorter than its fixed part")
    body_bytes = _INT.unpack_from(buffer, body_at)[0]
    topic_at = body_at + 4 + body_bytes
    if body_bytes < 0 or topic_at + length_bytes + 2 > stop:
        raise BadRecord("unreadable_region", f"record at {offset} says its body has {body_bytes} bytes")
    if length_bytes == 1:
        properties_at = topic_at + 1 + buffer[topic_at]
    else:
        properties_at = topic_at + 2 + _SHORT.unpack_from(buffer, topic_at)[0]
    if not topic_at < properties_at <= stop - 2:
        raise BadRecord("unreadable_region", f"record at {offset}: its topic does not fit")
    if properties_at + 2 + _SHORT.unpack_from(buffer, properties_at)[0] != stop:
        raise BadRecord("unreadable_region", f"record at {offset}: its parts do not add up to {size} bytes")
    said = _LONG.unpack_from(buffer, at + 28)[0]
    if said != offset:
        raise BadRecord("phys_offset_mismatch", f"record at {offset} says it lies at {said}")
    if check_crc:
        with memoryview(buffer) as view:
            found = crc32(view[body_at + 4 : topic_at]) & 0x7FFFFFFF
        if found != _INT.unpack_from(buffer, at + 8)[0]:
            raise BadRecord(
                "crc_mismatch", f"record at {offset}: the body's CRC is {found}, not the stored one"
            )
    return int(size)


def _blank_bytes(size: int, magic: int, offset: int) -> int:
    """The size of the blank at ``offset``, which begins with ``size`` and ``magic``. Raises BadRecord when
    they are neither a blank's nor a record's."""
    if magic == MAGIC_BLANK:
        if size < BLANK_BYTES:
            raise BadRecord("unreadable_region", f"blank of {size} bytes at {offset}")
        return size
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadRecord("unreadable_region", f"no record at {offset}: magic {magic:#010x}, size {size}")
    raise BadRecord("unreadable_region", f"record at {offset} says it has {size} bytes")


def decode(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> Record:
    """The record at ``at``. Raises BadRecord when it is not whole and right (its own offset is believed)."""
    if len(buffer) - at < RECORD_BYTES_MIN:
        raise BadRecord("unreadable_region", "fewer bytes than the shortest record has")
    own_offset = _LONG.unpack_from(buffer, at + 28)[0]
    if own_offset < 0:
        raise BadRecord("unreadable_region", f"the record says it lies at {own_offset}")
    size = measure(buffer, at, own_offset, check_crc)
    if size <= 0:
        raise BadRecord("unreadable_region", "a blank, not a record" if size else "the record is cut off")
    fixed = _FIXED[buffer[at + 39] >> 4 & 3]
    (
        _,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_bytes,
    ) = fixed.unpack_from(buffer, at)
    body_at = at + fixed.size
    topic_at = body_at + body_bytes
    if magic == MAGIC_V1:
        name_at = topic_at + 1
        properties_at = name_at + buffer[topic_at]
    else:
        name_at = topic_at + 2
        properties_at = name_at + _SHORT.unpack_from(buffer, topic_at)[0]
    return Record(
        str(buffer[name_at:properties_at], "utf-8", "surrogateescape"),
        queue_id,
        flag,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        bytes(buffer[body_at:topic_at]),
        str(buffer[properties_at + 2 : at + size], "utf-8", "surrogateescape"),
        queue_offset,
        physical_offset,
        store_timestamp_ms,
        size,
        body_crc,
        1 if magic == MAGIC_V1 else 2,
    )


def walk(buffer: Buffer, offset: int = 0, *, check_crc: bool = True) -> Iterator[Record]:
    """The whole records at the start of ``buffer``, whose first byte is physical ``offset``.

    Ends at a blank and at a record the buffer cuts off; raises BadRecord at anything else.
    """
    at = 0
    while (size := measure(buffer, at, offset + at, check_crc)) > 0:
        yield decode(buffer, at, check_crc=False)
        at += size


def records_in(data: Buffer) -> Iterator[Record]:
    """Whole records one after the other, wherever in the log they lie: a chunk of a read, the body of a pull.

    Raises BadRecord at anything else.
    """
    at = 0
    while at < len(data):
        record = decode(data, at)
        yield record
        at += record.size


def store_timestamp_of(buffer: Buffer) -> int:
    """The store timestamp (ms) of the record ``buffer`` begins with; only its first 76 bytes are needed."""
    value: int = _LONG.unpack_from(buffer, _STORE_TIME_AT[buffer[39] >> 4 & 3])[0]
    return value


def delay_levels_ms(text: str) -> list[int]:
    """``1s 5s 1m 2h 1d`` -> milliseconds by level, level 1 at index 1. Raises ValueError."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return [0, *(int(word[:-1]) * units[word[-1]] for word in text.split())]


Place = tuple[PhysicalOffset, int, int, QueueOffset, int, int]
"""Physical offset, size, queue id, queue offset, store time, sysFlag."""


class DispatchParser:
    """Makes Dispatches of raw log bytes: on slaves, in recovery, wherever they are not in memory."""

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = delays_ms
        self._tags: dict[str, int] = {}
        self._topics: dict[bytes, str] = {}

    def tags_code(self, topic: str, properties: str, store_timestamp_ms: int) -> int:
        """The number its queue entry carries: the hash of TAGS, or when a delayed message is due (ms)."""
        if topic == m.SCHEDULE_TOPIC:
            level = m.property_of(properties, m.DELAY)
            if level is not None and is_number(level):  # no CRC covers it
                top = len(self._delays_ms) - 1
                return store_timestamp_ms + self._delays_ms[min(int(level), top)]
        tags = m.property_of(properties, m.TAGS)
        if not tags:
            return 0
        code = self._tags.get(tags)
        if code is None:
            code = m.java_hash(tags)
            if len(tags) <= TAG_CHARS_MAX:
                if len(self._tags) > 10_000:
                    self._tags.clear()
                self._tags[tags] = code
        return code

    def parse(self, buffer: Buffer, offset: int, limit: int) -> tuple[list[Dispatch], int]:
        """The records of ``buffer`` (its first byte is physical ``offset``) that end at or below ``limit``,
        and the offset after the last of them; a blank that ends by then counts as passed.

        Raises BadRecord at bytes that are no record. Bodies are not checked.
        """
        found: list[Dispatch] = []
        at = 0
        reach = min(len(buffer), limit - offset)
        quick_reach = reach - RECORD_BYTES_MIN
        quick, one = _QUICK.unpack_from, self._one
        while True:
            if at <= quick_reach:
                size, magic, queue_id, queue_offset, said, sys_flag, stored, body_bytes = quick(buffer, at)
                topic_at = at + FIXED_V4.size + body_bytes
                stop = at + size
                if (
                    magic == MAGIC_V1
                    and not sys_flag & _HOSTS_V6
                    and said == offset + at
                    and body_bytes >= 0
                    and topic_at < stop - 3
                    and stop <= reach
                ):
                    properties_at = topic_at + 3 + buffer[topic_at]
                    if (
                        topic_at + 3 < properties_at <= stop
                        and properties_at + _SHORT.unpack_from(buffer, properties_at - 2)[0] == stop
                    ):
                        place = (said, size, queue_id, queue_offset, stored, sys_flag)
                        raw_topic = bytes(buffer[topic_at + 1 : properties_at - 2])
                        found.append(one(place, raw_topic, buffer[properties_at:stop]))
                        at = stop
                        continue
            size = measure(buffer, at, offset + at, False)
            if size < 0:
                return (found, offset + at - size if offset + at - size <= limit else offset + at)
            if size == 0 or at + size > reach:
                return found, offset + at
            found.append(self.one(buffer, at, size))
            at += size

    def one(self, buffer: Buffer, at: int, size: int) -> Dispatch:
        """The Dispatch of the record of ``size`` bytes at ``at``, already measured."""
        _, magic, _, queue_id, _, queue_offset, physical_offset, sys_flag, _ = HEAD.unpack_from(buffer, at)
        hosts = sys_flag >> 4 & 3
        (stored,) = _LONG.unpack_from(buffer, at + _STORE_TIME_AT[hosts])
        body_at = at + BODY_LENGTH_AT[hosts]
        topic_at = body_at + 4 + _INT.unpack_from(buffer, body_at)[0]
        if magic == MAGIC_V1:
            name_at = topic_at + 1
            properties_at = name_at + buffer[topic_at]
        else:
            name_at = topic_at + 2
            properties_at = name_at + _SHORT.unpack_from(buffer, topic_at)[0]
        place = (physical_offset, size, queue_id, queue_offset, stored, sys_flag)
        return self._one(place, bytes(buffer[name_at:properties_at]), buffer[properties_at + 2 : at + size])

    def dispatch_of(self, record: Record) -> Dispatch:
        """The Dispatch of a decoded record."""
        stored, properties = record.store_timestamp_ms, record.properties
        return Dispatch(
            record.physical_offset,
            record.size,
            record.topic,
            record.queue_id,
            record.queue_offset,
            self.tags_code(record.topic, properties, stored),
            m.property_of(properties, m.UNIQ_KEY) or "",
            m.property_of(properties, m.KEYS) or "",
            stored,
            record.sys_flag,
        )

    def _one(self, place: Place, raw_topic: bytes, raw: Buffer) -> Dispatch:
        physical_offset, size, queue_id, queue_offset, stored, sys_flag = place
        topic = self._topics.get(raw_topic)
        if topic is None:
            if len(self._topics) > 10_000:
                self._topics.clear()
            topic = self._topics[raw_topic] = raw_topic.decode("utf-8", "surrogateescape")
        properties = str(raw, "utf-8", "surrogateescape")
        return Dispatch(
            physical_offset,
            size,
            topic,
            queue_id,
            queue_offset,
            self.tags_code(topic, properties, stored),
            m.property_of(properties, m.UNIQ_KEY) or "",
            m.property_of(properties, m.KEYS) or "",
            stored,
            sys_flag,
        )
