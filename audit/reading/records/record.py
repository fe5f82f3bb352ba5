"""What does one record of a CommitLog say, and is it what was written? Plain functions over bytes.

A record (all integers big-endian; source: Apache RocketMQ 5.x, ``store/CommitLog``):

    at   size  field
     0     4   total size, bytes            28     8   physical offset: where the record itself starts
     4     4   magic: v1 DAA320A7,          36     4   sysFlag: 12 = transaction, 16/32 = IPv6 hosts
               v2 DAA320AB (2-byte topic    40     8   born timestamp      48  8|20  born host
               length), blank CBD43194      ..     8   store timestamp     ..  8|20  store host
     8     4   CRC-32 of the stored body,   ..     4   reconsume times     ..     8  prepared offset
               top bit cleared              ..   4+n   body
    12     4   queue id                     .. 1|2+n   topic
    16     4   flag                         ..   2+n   properties: name 01 value 02 ...
    20     8   queue offset

A blank record (size = bytes left, magic) ends a segment early. This decoder is the audit's own on purpose
(docs/decisions/0011): an auditor that read records by the store's code would share its mistakes.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from model.ids import is_number
from model.message import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    SCHEDULE_TOPIC,
    java_hash,
)

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # four times slower, same result
    _crc32 = zlib.crc32

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment]


def new_hasher(*, everywhere: bool = False) -> Any:
    """xxh3-128, or blake2b at a tenth of its speed: where the package is missing, or what can be made
    ``everywhere``. The lengths of their digests, 16 and 20 bytes, tell them apart."""
    fast = xxhash is not None and not everywhere
    return xxhash.xxh3_128() if fast else hashlib.blake2b(digest_size=20)


crc32: Callable[..., int] = _crc32

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MAGIC_PREFIX: Final = b"\xda\xa3\x20"
MISPLACED: Final = "physical offset"
"""The problem of a record that names another place than where it stands."""
RECORD_BYTES_MIN: Final = 91
RECORD_BYTES_MAX: Final = 32 * 1024 * 1024 + 65536
"""``maxMessageSize`` is 4 MiB unless a broker's file says otherwise; and 64 KiB for the rest."""

_PREFIX: Final = struct.Struct(">iI")
_FIELDS: Final = struct.Struct(">Ii4xqqi")  # CRC, queue id, queue offset, physical offset, sysFlag
UNIQ: Final = b"UNIQ_KEY\x01"
_DELAY: Final = b"DELAY\x01"
_TAGS: Final = b"TAGS\x01"
_KEYS: Final = b"KEYS\x01"
_INNER_NUM: Final = b"INNER_NUM\x01"
PROPERTY_CRC: Final = b"__CRC32#\x01"

_BODY_BYTES_MAX: Final = 256 * 1024 * 1024
"""A body that is longer once decompressed than anything a sender can have sent counts as damaged."""
_PIECE_BYTES: Final = 1024 * 1024
_ADVANCE_MAX: Final = (1 << 31) - 1  # an int of Java's
_ADVANCE_DIGITS_MAX: Final = 10


class Record(NamedTuple):
    """What the checks need of one record. ``body_crc`` is computed from the bytes, not copied."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str
    body_crc: int
    plain_crc: int  # of the decompressed body; -1 when the body is not compressed or was not asked for
    sys_flag: int
    store_timestamp_ms: int
    advance: int  # how many queue offsets the record takes: 1, or the size of an inner batch
    tags_code: int  # what its queue entry carries: the hash of TAGS, 0 without; delayed: when it was stored


class Damage(NamedTuple):
    """A stretch that cannot be what was written. ``kind`` is the finding's kind."""

    kind: str
    offset: int
    until: int
    records: int
    expected: str = ""
    found: str = ""
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    uniq_key: str = ""


class Parsed(NamedTuple):
    """One record's position and fields. ``problem`` is empty for a sound record."""

    size: int
    record: Record | None
    problem: str
    damage: Damage | None


def plausible(size: int, room: int) -> bool:
    return RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX and size <= room


class _Fields(NamedTuple):
    """Where the parts of a record stand in its bytes."""

    stamp_at: int
    body_at: int
    topic_at: int
    name_at: int
    name_end: int


def parse(data: bytes, at: int, offset: int, segment_end: int, *, plain: bool = False) -> Parsed:
    """Parse the record at ``data[at]``, physical ``offset``. Never raises on bad bytes.

    ``size`` is 0 when nothing can be parsed there (``problem`` says why), the blank's whole reach for a
    blank. A record with a wrong body CRC or physical offset is returned together with its damage.
    """
    if len(data) - at < 8:
        return Parsed(0, None, "fewer than 8 bytes", None)
    size, magic = _PREFIX.unpack_from(data, at)
    room = segment_end - offset
    if magic == MAGIC_BLANK:
        return Parsed(room, None, "blank", None)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Parsed(0, None, f"magic {magic:08X}", None)
    if not plausible(size, room):
        return Parsed(0, None, f"size {size}", None)
    if len(data) - at < size:
        return Parsed(0, None, "incomplete", None)
    end = at + size
    crc, queue_id, queue_offset, physical, sys_flag = _FIELDS.unpack_from(data, at + 8)
    fields = _fields(data, at, end, magic, sys_flag)
    if isinstance(fields, str):
        return Parsed(0, None, fields, None)
    properties_at = fields.name_end + 2
    if _stops_early(data, properties_at, end):
        return Parsed(0, None, "its properties end in zeros", None)
    record = Record(
        offset,
        size,
        data[fields.name_at : fields.name_end].decode("utf-8", "replace"),
        queue_id,
        queue_offset,
        text_property(data, UNIQ, properties_at, end),
        crc32(memoryview(data)[fields.body_at : fields.topic_at]) & 0x7FFFFFFF,
        _plain_crc(data[fields.body_at : fields.topic_at], sys_flag) if plain else -1,
        sys_flag,
        struct.unpack_from(">q", data, fields.stamp_at)[0],
        _advance(data, sys_flag, properties_at, end),
        0,
    )
    tags = tags_code(data, properties_at, end, record.topic, record.store_timestamp_ms)
    record = record._replace(tags_code=tags) if tags else record
    return _judged(data, at, record, physical, crc)


def is_whole(data: bytes, at: int, place: int, crc_of: Callable[[int, int], int]) -> bool:
    """Is the record at ``data[at]``, whose size is plausible, a sound one of ``place``, as ``parse`` says it?
    ``crc_of`` gives the CRC-32 of a stretch of ``data``: what many heads say that they have is hashed
    once."""
    size, magic = _PREFIX.unpack_from(data, at)
    end = at + size
    if magic not in (MAGIC_V1, MAGIC_V2) or end > len(data):
        return False
    crc, _, _, physical, sys_flag = _FIELDS.unpack_from(data, at + 8)
    fields = _fields(data, at, end, magic, sys_flag)
    if physical != place or isinstance(fields, str) or _stops_early(data, fields.name_end + 2, end):
        return False
    if crc_of(fields.body_at, fields.topic_at) & 0x7FFFFFFF != crc:
        return False
    return not data.startswith(PROPERTY_CRC, end - 20) or _property_crc(data, at, end, crc_of) is None


ZERO_TAIL_BYTES: Final = 8
"""Properties that end in so many zeros were never written to their end: a value is closed by 0x02. (One NUL
or two may end one that an old client left open.)"""


def _stops_early(data: bytes, begin: int, end: int) -> bool:
    return begin + ZERO_TAIL_BYTES <= end and not any(data[end - ZERO_TAIL_BYTES : end])


def _fields(data: bytes, at: int, end: int, magic: int, sys_flag: int) -> _Fields | str:
    """The record's parts, or why they cannot be told."""
    stamp_at = at + 48 + (20 if sys_flag & 0x10 else 8)
    body_at = stamp_at + 8 + (20 if sys_flag & 0x20 else 8) + 16
    topic_at = -1
    if body_at + 3 <= end:
        (body_size,) = struct.unpack_from(">i", data, body_at - 4)
        topic_at = body_at + body_size
    if topic_at < body_at or topic_at + 3 > end:
        return "body length does not fit"
    if magic == MAGIC_V1:
        name_at = topic_at + 1
        name_end = name_at + data[topic_at]
    else:
        name_at = topic_at + 2
        name_end = name_at + (data[topic_at] << 8 | data[topic_at + 1])
    if name_end + 2 > end or name_end + 2 + (data[name_end] << 8 | data[name_end + 1]) != end:
        return "the lengths do not add up to the total size"
    return _Fields(stamp_at, body_at, topic_at, name_at, name_end)


def _judged(data: bytes, at: int, record: Record, physical: int, crc: int) -> Parsed:
    """The record with the first of its damages, in the order in which one explains the next."""
    end = at + record.size
    if physical != record.offset:
        kind, problem = "phys_offset_mismatch", MISPLACED
        expected, found = str(record.offset), str(physical)
    elif record.body_crc != crc:
        kind, problem = "crc_mismatch", "body CRC"
        expected, found = str(crc), str(record.body_crc)
    elif data.startswith(PROPERTY_CRC, end - 20) and (wrong := _property_crc(data, at, end)):
        kind, problem = "crc_mismatch", "property CRC"
        expected, found = wrong
    else:
        return Parsed(record.size, record, "", None)
    damage = Damage(
        kind,
        record.offset,
        record.offset + record.size,
        1,
        expected,
        found,
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.uniq_key,
    )
    return Parsed(record.size, record, problem, damage)


class Words(NamedTuple):
    """What an index may have of a record besides its unique key."""

    keys: tuple[str, ...]
    tags: str


def indexed_words(data: bytes) -> Words:
    """Of the sound record that ``data`` is."""
    magic = int.from_bytes(data[4:8])
    fields = _fields(data, 0, len(data), magic, int.from_bytes(data[36:40]))
    if isinstance(fields, str):
        return Words((), "")
    begin = fields.name_end + 2
    keys = text_property(data, _KEYS, begin, len(data)) if data.find(_KEYS, begin) >= 0 else ""
    tags = text_property(data, _TAGS, begin, len(data)) if data.find(_TAGS, begin) >= 0 else ""
    return Words(tuple(key for key in keys.split(" ") if key), tags)


def payload(data: bytes) -> tuple[bytes, int]:
    """The body of the sound record that ``data`` is, as it is stored, and where its properties begin."""
    fields = _fields(data, 0, len(data), int.from_bytes(data[4:8]), int.from_bytes(data[36:40]))
    if isinstance(fields, str):
        return b"", len(data)
    return data[fields.body_at : fields.topic_at], fields.name_end + 2


def ends_whole(data: bytes) -> bool:
    """Is the record that ``data`` is written to its end? Its bytes come in their order, and properties do not
    end in zero."""
    fields = _fields(data, 0, len(data), int.from_bytes(data[4:8]), int.from_bytes(data[36:40]))
    return not isinstance(fields, str) and (fields.name_end + 2 == len(data) or data[-1] != 0)


def text_property(data: bytes, mark: bytes, begin: int, end: int) -> str:
    """The value of a property; of one given twice the last, as RocketMQ has it, that is not empty."""
    at = data.rfind(mark, begin, end)
    while at >= 0:
        if at == begin or data[at - 1] == 2:  # no part of another name or value
            stop = data.find(b"\x02", at, end)
            value = data[at + len(mark) : stop if stop >= 0 else end]
            if value:
                return value.decode("utf-8", "replace")
        at = data.rfind(mark, begin, at + len(mark) - 1)
    return ""


STORED_FROM: Final = 1 << 31
"""A tag code from here on is no hash, but when the record of a delayed message was stored, ms."""


def tags_code(data: bytes, begin: int, end: int, topic: str, stored_ms: int) -> int:
    """A delayed message's entry says when it is due: its broker's level, which no store has, after
    ``stored_ms``."""
    if topic == SCHEDULE_TOPIC:
        level = text_property(data, _DELAY, begin, end)
        if is_number(level) and level.strip("0"):
            return stored_ms
    if data.find(_TAGS, begin, end) < 0:
        return 0
    return _tags_hash(text_property(data, _TAGS, begin, end))


@lru_cache(maxsize=4096)
def _tags_hash(tags: str) -> int:
    return java_hash(tags)


def _advance(data: bytes, sys_flag: int, begin: int, end: int) -> int:
    if not sys_flag & INNER_BATCH:
        return 1
    text = text_property(data, _INNER_NUM, begin, end)
    told = int(text) if text.isascii() and text.isdigit() and len(text) <= _ADVANCE_DIGITS_MAX else 0
    return told if 0 < told <= _ADVANCE_MAX else 1


def _property_crc(
    data: bytes, at: int, end: int, crc_of: Callable[[int, int], int] | None = None
) -> tuple[str, str] | None:
    """(written, computed) when the record carries its own CRC and it is wrong. Digits stand reversed."""
    digits = data[end - 11 : end - 1]
    if data[end - 1] != 2 or not digits.isdigit():
        return None
    written = int(digits[::-1])
    found = crc32(memoryview(data)[at : end - 20]) if crc_of is None else crc_of(at, end - 20)
    computed = found & 0x7FFFFFFF
    return None if written == computed else (str(written), str(computed))


def _plain_crc(body: bytes, sys_flag: int) -> int:
    """CRC of the decompressed body, -1 when it is not compressed or cannot be decompressed.

    It is decompressed piece by piece: a body of a megabyte may stand for a gigabyte of zeros.
    """
    if not sys_flag & COMPRESSED:
        return -1
    crc = size = 0
    try:
        for piece in _pieces(body, sys_flag & COMPRESSION_MASK):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            if size > _BODY_BYTES_MAX:
                return -1
    except (OSError, ValueError, zlib.error):  # damaged: the CRC of the stored body tells so already
        return -1
    return crc & 0x7FFFFFFF


def _pieces(body: bytes, codec: int) -> Iterator[bytes]:
    """Raises OSError, ValueError, zlib.error."""
    if codec in (COMPRESSION_LZ4, COMPRESSION_ZSTD):
        import pyarrow

        name = "lz4" if codec == COMPRESSION_LZ4 else "zstd"
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(body), name) as stream:
            # Into memory of our own: read() leaks what it allocated when the stream turns out to be broken.
            room = bytearray(_PIECE_BYTES)
            while size := stream.readinto(room):
                yield bytes(room[:size])
        return
    inflater = zlib.decompressobj()
    rest = body
    while not inflater.eof:
        piece = inflater.decompress(rest, _PIECE_BYTES)
        rest = inflater.unconsumed_tail
        if not piece and not rest and not inflater.eof:
            raise zlib.error("the stream ends early")
        yield piece
