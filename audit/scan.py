"""What stands in a stretch of a CommitLog: records, damage, digests? Plain functions over bytes.

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

A blank record (size = bytes left, magic) ends a segment early. A segment is split anywhere: a task owns the
records whose first byte lies in its stretch, and finds the first one by ``sync``: the magic bytes plus a
physical offset field that names the very position. Nothing here starts a JVM or a process.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple

from model.message import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZSTD, INNER_BATCH

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # four times slower, same result
    _crc32 = zlib.crc32

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment]


def new_hasher() -> Any:
    """xxh3-128, or blake2b at a tenth of its speed. Digests are compared within one installation only."""
    return xxhash.xxh3_128() if xxhash is not None else hashlib.blake2b(digest_size=16)


crc32: Callable[[Any], int] = _crc32

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MAGIC_PREFIX: Final = b"\xda\xa3\x20"
RECORD_BYTES_MIN: Final = 91
RECORD_BYTES_MAX: Final = 32 * 1024 * 1024 + 65536
"""``maxMessageSize`` is 4 MiB unless a broker's file says otherwise; and 64 KiB for the rest."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
DIGEST_BYTES: Final = 1024 * 1024
"""Digests cover ranges aligned to this, in physical offsets."""

# size magic crc queueId | queueOffset physicalOffset sysFlag | storeTimestamp | bodyLength; hosts in IPv4
_HEAD: Final = struct.Struct(">iIIi4xqqi16xq20xi")
assert _HEAD.size == 88, "the fixed part of a record with IPv4 hosts, up to its body"
_PREFIX: Final = struct.Struct(">iI")
_JUMP: Final = struct.Struct(">iI20xq")  # size, magic, physical offset
_UNIQ: Final = b"UNIQ_KEY\x01"
_INNER_NUM: Final = b"INNER_NUM\x01"
_PROPERTY_CRC: Final = b"__CRC32#\x01"

Read = Callable[[int, int], bytes]
"""(physical offset, size) -> bytes; fewer only at the end of the file."""


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


class Chunk(NamedTuple):
    """What one task covered: the seams of neighbours must meet."""

    start: int
    end: int
    first: int  # first record owned, or -1
    last_end: int  # where the task's last record or damage ends, or -1
    records: int


class Parsed(NamedTuple):
    """One record's position and fields. ``problem`` is empty for a sound record."""

    size: int
    record: Record | None
    problem: str
    damage: Damage | None


def plausible(size: int, room: int) -> bool:
    return RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX and size <= room


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
    crc, queue_id, queue_offset, physical, sys_flag = struct.unpack_from(">Ii4xqqi", data, at + 8)
    stamp_at = at + 48 + (20 if sys_flag & 0x10 else 8)
    body_at = stamp_at + 8 + (20 if sys_flag & 0x20 else 8) + 16
    topic_at = -1
    if body_at + 3 <= end:
        (body_size,) = struct.unpack_from(">i", data, body_at - 4)
        topic_at = body_at + body_size
    if topic_at < body_at or topic_at + 3 > end:
        return Parsed(0, None, "body length does not fit", None)
    if magic == MAGIC_V1:
        name_at = topic_at + 1
        name_end = name_at + data[topic_at]
    else:
        name_at = topic_at + 2
        name_end = name_at + (data[topic_at] << 8 | data[topic_at + 1])
    if name_end + 2 > end or name_end + 2 + (data[name_end] << 8 | data[name_end + 1]) != end:
        return Parsed(0, None, "the lengths do not add up to the total size", None)
    computed = crc32(memoryview(data)[body_at:topic_at]) & 0x7FFFFFFF
    (stamp,) = struct.unpack_from(">q", data, stamp_at)
    record = Record(
        offset,
        size,
        data[name_at:name_end].decode("utf-8", "replace"),
        queue_id,
        queue_offset,
        _property(data, _UNIQ, name_end + 2, end),
        computed,
        _plain_crc(data[body_at:topic_at], sys_flag) if plain else -1,
        sys_flag,
        stamp,
        _advance(data, sys_flag, name_end + 2, end),
    )
    where = (record.topic, queue_id, queue_offset, record.uniq_key)
    if physical != offset:
        damage = Damage("phys_offset_mismatch", offset, offset + size, 1, str(offset), str(physical), *where)
        return Parsed(size, record, "physical offset", damage)
    if computed != crc:
        damage = Damage("crc_mismatch", offset, offset + size, 1, str(crc), str(computed), *where)
        return Parsed(size, record, "body CRC", damage)
    if data.startswith(_PROPERTY_CRC, end - 20) and (wrong := _property_crc(data, at, end)):
        damage = Damage("crc_mismatch", offset, offset + size, 1, wrong[0], wrong[1], *where)
        return Parsed(size, record, "property CRC", damage)
    return Parsed(size, record, "", None)


def _property(data: bytes, mark: bytes, begin: int, end: int) -> str:
    at = data.find(mark, begin, end)
    while at > begin and data[at - 1] != 2:  # part of another name or value
        at = data.find(mark, at + 1, end)
    if at < 0:
        return ""
    stop = data.find(b"\x02", at, end)
    return data[at + len(mark) : stop if stop >= 0 else end].decode("utf-8", "replace")


def _advance(data: bytes, sys_flag: int, begin: int, end: int) -> int:
    if not sys_flag & INNER_BATCH:
        return 1
    text = _property(data, _INNER_NUM, begin, end)
    return int(text) if text.isdigit() and int(text) > 0 else 1


def _property_crc(data: bytes, at: int, end: int) -> tuple[str, str] | None:
    """(written, computed) when the record carries its own CRC and it is wrong. Digits stand reversed."""
    digits = data[end - 11 : end - 1]
    if data[end - 1] != 2 or not digits.isdigit():
        return None
    written = int(digits[::-1])
    computed = crc32(memoryview(data)[at : end - 20]) & 0x7FFFFFFF
    return None if written == computed else (str(written), str(computed))


def _plain_crc(body: bytes, sys_flag: int) -> int:
    """CRC of the decompressed body, -1 when it is not compressed or cannot be decompressed."""
    if not sys_flag & COMPRESSED:
        return -1
    codec = sys_flag & COMPRESSION_MASK
    try:
        if codec in (COMPRESSION_LZ4, COMPRESSION_ZSTD):
            import pyarrow

            name = "lz4" if codec == COMPRESSION_LZ4 else "zstd"
            with pyarrow.CompressedInputStream(pyarrow.BufferReader(body), name) as stream:
                plain = stream.read()
        else:
            plain = zlib.decompress(body)
    except (OSError, ValueError, zlib.error):  # damaged: the CRC of the stored body tells so already
        return -1
    return crc32(plain) & 0x7FFFFFFF


def window(read: Read, offset: int, room: int) -> bytes:
    """A window of the ``room`` bytes from ``offset`` on, and all of the record there if it is longer."""
    data = read(offset, min(WINDOW_BYTES, room))
    if len(data) >= WINDOW_BYTES:
        size, magic = _PREFIX.unpack_from(data)
        if size > len(data) and magic in (MAGIC_V1, MAGIC_V2) and plausible(size, room):
            data = read(offset, size)
    return data


def sync(data: bytes, begin: int, offset: int, segment_end: int) -> int:
    """Index in ``data`` of the first record start at or after ``begin``, or -1.

    ``offset`` is the physical offset of ``data[0]``. A start counts only if its physical offset field says
    so.
    """
    at = data.find(MAGIC_PREFIX, begin + 4)
    while at >= 0:
        start = at - 4
        if start + 36 > len(data):
            return -1
        size, magic = _PREFIX.unpack_from(data, start)
        if magic in (MAGIC_V1, MAGIC_V2) and plausible(size, segment_end - offset - start):
            (physical,) = struct.unpack_from(">q", data, start + 28)
            if physical == offset + start:
                return start
        at = data.find(MAGIC_PREFIX, at + 1)
    return -1


def skip_sound(data: bytes, base: int, position: int, stop: int, segment_end: int) -> int:
    """Jump from header to header; the start of the last record whose header is sound.

    From the record at ``position``; ``data`` begins at ``base``. Jumps stay within ``data`` and do not
    pass ``stop``. Bodies are not looked at.
    """
    unpack = _JUMP.unpack_from
    last = len(data) - _JUMP.size
    while True:
        at = position - base
        if at > last:
            return position
        size = unpack(data, at)[0]
        following = position + size
        at += size
        if size < RECORD_BYTES_MIN or following > stop or at > last:
            return position
        next_size, magic, physical = unpack(data, at)
        if physical != following or (magic != MAGIC_V1 and magic != MAGIC_V2):
            return position
        if not plausible(next_size, segment_end - following):
            return position
        position = following


def find_record(read: Read, begin: int, end: int, segment_end: int) -> int:
    """Physical offset of the first record start in [begin, end) by ``sync``, or -1. Reads in windows."""
    at = begin
    while at < end:
        data = read(at, WINDOW_BYTES)
        found = sync(data, 0, at, segment_end)
        if found >= 0:
            return at + found if at + found < end else -1
        if len(data) < WINDOW_BYTES:
            return -1
        at += len(data) - 64  # a start may be cut by the window's edge
    return -1


def scan(
    read: Read,
    start: int,
    end: int,
    segment_base: int,
    segment_end: int,
    log_end: int,
    *,
    aligned: bool = False,
    plain: bool = False,
    batch: int = 65536,
) -> Generator[list[Record], None, tuple[Chunk, list[Damage]]]:
    """Walk the records whose first byte is in [start, end): yield them in batches, return seams and damage.

    ``aligned``: a record is known to start at ``start``, or damage is; else the first one is searched.
    A CRC property that does not match is damage only where others match: a store without
    ``enabledAppendPropCRC`` holds what its clients wrote under that name.

    ``segment_end`` is where the file ends, ``log_end`` where the log ends (nothing from there on counts).
    Memory is bounded by one window and one batch, whatever the size of the segment.
    """
    rows: list[Record] = []
    damage: list[Damage] = []
    doubtful: list[Damage] = []
    carries_crc = False
    topics: dict[bytes, str] = {}
    stop = min(end, log_end)
    position = start
    if start != segment_base and not aligned:
        position = find_record(read, start, stop, segment_end)
        if position < 0:
            return Chunk(start, end, -1, -1, 0), damage
    first = position if position < stop else -1
    count = 0
    head = _HEAD.unpack_from
    new = tuple.__new__  # a third of what the named constructor takes, for every record
    data = b""
    base = position
    filled_at = -1  # a window that begins at the record holds all of it, or the file ends
    while position < stop:
        at = position - base
        size = 0
        if len(data) - at >= RECORD_BYTES_MIN:
            size, magic, crc, queue_id, queue_offset, physical, sys_flag, stamp, body_size = head(data, at)
            record_end = at + size
            if (
                magic == MAGIC_V1
                and RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
                and record_end <= len(data)
                and physical == position
                and not sys_flag & 0xB1  # compressed, IPv6 hosts, inner batch: the general way
                and 0 <= body_size <= size - RECORD_BYTES_MIN
            ):
                topic_at = at + 88 + body_size
                name_end = topic_at + 1 + data[topic_at]
                if (
                    name_end + 2 <= record_end
                    and name_end + 2 + (data[name_end] << 8 | data[name_end + 1]) == record_end
                    and crc32(data[at + 88 : topic_at]) & 0x7FFFFFFF == crc
                    and not data.startswith(_PROPERTY_CRC, record_end - 20)
                ):
                    name = data[topic_at + 1 : name_end]
                    topic = topics.get(name)
                    if topic is None:
                        topic = topics[name] = name.decode("utf-8", "replace")
                    key_at = data.find(_UNIQ, name_end + 2, record_end)
                    if key_at < 0:
                        key = ""
                    elif key_at == name_end + 2 or data[key_at - 1] == 2:
                        key_end = data.find(b"\x02", key_at, record_end)
                        key = data[key_at + 9 : key_end if key_end >= 0 else record_end].decode(
                            "utf-8", "replace"
                        )
                    else:
                        key = _property(data, _UNIQ, name_end + 2, record_end)
                    fields = (position, size, topic, queue_id, queue_offset, key, crc, -1, sys_flag, stamp, 1)
                    rows.append(new(Record, fields))
                    count += 1
                    position += size
                    if len(rows) >= batch:
                        yield rows
                        rows = []
                    continue
        parsed = parse(data, at, position, segment_end, plain=plain)
        if parsed.problem in ("incomplete", "fewer than 8 bytes") and filled_at != position:
            data = window(read, position, segment_end - position)
            base = filled_at = position
            continue
        if parsed.problem == "property CRC" and parsed.damage is not None:
            doubtful.append(parsed.damage)
        elif parsed.damage is not None:
            damage.append(parsed.damage)
        elif parsed.record is not None and data.startswith(_PROPERTY_CRC, at + parsed.size - 20):
            carries_crc = True
        if parsed.record is not None:
            rows.append(parsed.record)
            count += 1
            if len(rows) >= batch:
                yield rows
                rows = []
        if parsed.size:
            position += parsed.size
            continue
        # Nothing readable here. The next record may be the neighbour's: the stretch still ends there, once.
        following = find_record(read, position + 1, log_end, segment_end)
        until = following if following >= 0 else log_end
        damage.append(Damage("unreadable_region", position, until, 0, "a record", parsed.problem))
        position = until
    if rows:
        yield rows
    if carries_crc:
        damage = sorted(damage + doubtful, key=lambda found: found.offset)
    return Chunk(start, end, first, position if first >= 0 else -1, count), damage


class DigestRange(NamedTuple):
    start: int
    end: int
    digest: bytes


def digests(read: Read, start: int, end: int, cuts: list[int]) -> Iterator[DigestRange]:
    """xxh3-128 of every range of [start, end): aligned to DIGEST_BYTES and cut at ``cuts`` as well.

    The cuts are the starts and ends of all replicas, so that a range lies wholly inside or outside each.
    """
    edges = sorted({c for c in cuts if start < c < end})
    at = start
    window = b""
    window_at = start
    while at < end:
        until = min(end, (at // DIGEST_BYTES + 1) * DIGEST_BYTES)
        while edges and edges[0] <= at:
            edges.pop(0)
        if edges and edges[0] < until:
            until = edges[0]
        if until > window_at + len(window):
            window_at = at
            window = read(at, min(WINDOW_BYTES, end - at))
            if window_at + len(window) < until:
                raise OSError(5, f"the file ends at {window_at + len(window)}, expected bytes up to {until}")
        hasher = new_hasher()
        hasher.update(memoryview(window)[at - window_at : until - window_at])
        yield DigestRange(at, until, hasher.digest())
        at = until
