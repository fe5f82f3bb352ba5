"""How does an ordinary send become a record and an answer with as few steps as Python allows?

One call handles a whole read: frames are split, JSON headers of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE
(320) decoded into a struct, records encoded (layout: ``store/files/record.py``), appended in one write, and
the answers handed to ``broker/state/pending_acks`` with the end of the last record. What is not fast
(``is_fast``) comes back as a slow frame and takes the ordinary way (``broker/requests/send.py``), which must
give the same records and answers: a property test holds the two together. What earns most: one call, one
write to the log and one to the socket for all frames of a read; a struct decoder; answers by template; routes
and tag hashes remembered.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from broker.requests.send_format import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    OWN_MARKS,
    PLAIN_SYS_FLAGS,
    SendAnswer,
    extra_properties,
    is_special_beside_key,
)
from broker.state.pending_acks import PendingAcks
from broker.state.stats import Stats
from broker.tables.topics import Topics
from model.config import BrokerConfig
from model.errors import DiskError, PeerError
from model.message import LMQ_PREFIX, PROPERTIES_BYTES_MAX, RETRY_PREFIX, encode_host, java_hash
from model.topic import NOT_FOR_CLIENT_SENDS, PERM_WRITE
from remoting import codec
from remoting.service import Connection
from store.files.record import BLANK_BYTES, FIXED_V4, MAGIC_V1, Dispatch
from store.message_store import MessageStore

SEND_V1: Final = 10
SEND: Final = 310
SEND_BATCH: Final = 320
TOPIC_BYTES_MAX: Final = 127  # of a version 1 record
OVERHEAD_BYTES: Final = FIXED_V4.size + 2  # all of a record but body, topic with its length, and properties
TAG_HASHES_MAX: Final = 65536
ROUTES_MAX: Final = 65536

_LENGTHS: Final = struct.Struct(">iI").unpack_from
_PREFIX: Final = struct.Struct(">iI").pack
_SEND_CODE: Final = re.compile(rb'"code"\s*:\s*"?(?:10|310|320)\b')
_INNER: Final = struct.Struct(">iiiii").unpack_from
_SHORT: Final = struct.Struct(">h").pack
_SHORT_AT: Final = struct.Struct(">h").unpack_from

_I32 = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
_I64 = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


class _Ext(msgspec.Struct, gc=False):
    """The members of a v2 send header that are mandatory or looked at; any other header fails to decode."""

    a: str
    b: str
    c: str
    d: _I32
    e: _I32
    f: _I32
    g: _I64
    h: _I32
    i: str = ""
    j: _I32 = 0
    m: str = ""


class _Head(msgspec.Struct, gc=False):
    code: int
    opaque: _I32 = 0
    flag: int = 0
    extFields: _Ext | None = None


_decode: Final = msgspec.json.Decoder(_Head, strict=False).decode
_new: Final = tuple.__new__
_pack: Final = FIXED_V4.pack
_crc32: Final = zlib.crc32
_OWN: Final = tuple(name.encode() for name in OWN_MARKS)


class _Route:
    """What a send to one topic needs to know, worked out once until the topic table changes."""

    __slots__ = ("keys", "queues", "stored")

    def __init__(self, topic: str, queues: int) -> None:
        name = topic.encode()
        self.stored = bytes([len(name)]) + name
        self.queues = queues
        self.keys = [(topic, queue_id) for queue_id in range(queues)]


class FastPath:
    """The server's BufferHandler. ``refuse`` says whether sends may be taken at all right now (True = no)."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: Topics,
        pending_acks: PendingAcks,
        stats: Stats,
        refuse: Callable[[], bool],
    ) -> None:
        self.store = store
        self._topics = topics
        self.pending_acks = pending_acks
        self.stats = stats
        self._refuse = refuse
        self.body_bytes_max = config.message_bytes_max
        self._frame_bytes_max = config.frame_bytes_max
        self.batch_messages_max = config.batch_messages_max
        self._config = config
        self.sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        host = encode_host(config.address)
        # Records with IPv6 hosts or a CRC property have another layout: the ordinary way knows it.
        self._usable = len(host) == 8 and not config.append_prop_crc
        self.host = host
        self.extra = extra_properties(config).encode()
        self.record_bytes_max = config.segment_bytes - BLANK_BYTES
        self.answer = SendAnswer(config, host)
        self.one = self.answer.one
        self.routes: dict[str, _Route] = {}
        self.tags: dict[str, int] = {"": 0}
        topics.on_change.append(lambda names: self.routes.clear())

    def forget_routes(self) -> None:
        """The configuration changed: work out anew who may send what."""
        self.routes.clear()

    def process(
        self, connection: Connection, buffer: bytes | bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        """Handle the whole frames in ``buffer[start:end]``; return where they end and what is left over.

        Raises PeerError on a frame whose lengths cannot be true, after the frames before it were handled.
        """
        born = connection.attributes.get("born_host")
        if born is None:
            born = connection.attributes["born_host"] = born_host(connection.remote)
        if not self._usable or len(born) != 8 or self._refuse():
            return self._split(buffer, start, end, [])
        return self._run(connection, buffer, start, end, born)

    def _split(
        self, buffer: bytes | bytearray, at: int, end: int, frames: list[bytes]
    ) -> tuple[int, list[bytes]]:
        """Every whole frame is slow."""
        while stop := codec.frame_end(buffer, at, end, self._frame_bytes_max):
            frames.append(bytes(buffer[at:stop]))
            at = stop
        return at, frames

    def _run(
        self, connection: Connection, buffer: bytes | bytearray, start: int, end: int, born: bytes
    ) -> tuple[int, list[bytes]]:
        sends = _Sends(self, connection, buffer, born, start)
        broken: PeerError | None = None
        try:
            try:
                at = self._frames(sends, start, end)
            except PeerError as error:
                broken, at = error, end
            sends.append()
        except DiskError:
            # Nothing was stored since the last append: the ordinary way says so to each sender.
            return self._split(buffer, sends.appended_at, end, sends.slow[: sends.appended_slow])
        if broken is not None:
            raise broken
        return at, sends.slow

    def _frames(self, sends: _Sends, at: int, end: int) -> int:
        """Take or leave each whole frame; where the rest begins. Raises DiskError, and PeerError for lengths
        that cannot be true.

        Longer than a function should be: what each single message pays for stands here in one piece. As
        functions of their own (a single as a batch of one) it took 8 to 16 % more.
        """
        buffer, view, routes, body_bytes_max = sends.buffer, sends.view, self.routes, self.body_bytes_max
        extra, tags, host, one, store = self.extra, self.tags, self.host, self.answer.one, self.store
        born, now_ms, next_offsets = sends.born, sends.now_ms, sends.next_offsets
        while end - at >= 8:
            length, mark = _LENGTHS(buffer, at)
            stop = at + 4 + length
            body_at = at + 8 + (mark & 0xFFFFFF)
            if stop > end or mark > codec.HEADER_BYTES_MAX or body_at > stop:
                # Not whole yet, a binary header, or lengths that cannot be true.
                stop = codec.frame_end(buffer, at, end, self._frame_bytes_max)
                if not stop:
                    break
                sends.leave(at, stop, is_send=True)
                at = stop
                continue
            try:
                head = _decode(view[at + 8 : body_at])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                sends.leave(at, stop, is_send=_SEND_CODE.search(view[at + 8 : body_at]) is not None)
                at = stop
                continue
            ext = head.extFields
            if ext is None or (head.code != SEND and head.code != SEND_BATCH) or head.flag & 1:
                sends.leave(at, stop, is_send=head.code == SEND_V1)
                at = stop
                continue
            route = routes.get(ext.b) or self._route(ext.b)
            marked = "\x02" + ext.i
            found = marked.find("\x02UNIQ_KEY\x01")
            unique = marked[found + 10 : marked.find("\x02", found + 10)]
            queue_id, properties, size = ext.e, ext.i, stop - body_at
            if (
                found < 0
                or route is None
                or sends.ordered
                or size > body_bytes_max
                or not is_fast(head.code, ext, properties, route.queues, unique)
            ):
                sends.leave(at, stop, is_send=True)
                at = stop
                continue
            if head.code == SEND_BATCH:
                if not sends.batch(head, ext, route, unique, at, body_at, stop):
                    sends.leave(at, stop, is_send=True)
                at = stop
                continue
            # One message, here in full and not as a batch of one: that costs it a tenth more.
            stored_properties = properties.encode() + extra
            total = OVERHEAD_BYTES + size + len(route.stored) + len(stored_properties)
            if len(stored_properties) > PROPERTIES_BYTES_MAX or (
                sends.offset + total > sends.limit and not sends.roll(total, at)
            ):
                sends.leave(at, stop, is_send=True)
                at = stop
                continue
            offset, key = sends.offset, route.keys[queue_id]
            queue_offset = next_offsets.get(key)
            if queue_offset is None:
                queue_offset = store.next_offset(ext.b, queue_id)
            found = marked.find("\x02TAGS\x01")
            tag = "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)]
            tag_code = tags.get(tag)
            if tag_code is None:
                tag_code = self.tag(tag)
            found = marked.find("\x02KEYS\x01")
            keys = "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)]
            body = view[body_at:stop]
            fixed = _pack(total, MAGIC_V1, _crc32(body) & 0x7FFFFFFF, queue_id, ext.h, queue_offset, offset,
                          ext.f, ext.g, born, now_ms, host, ext.j, 0, size)  # fmt: skip
            sends.chunks += (fixed, body, route.stored, _SHORT(len(stored_properties)), stored_properties)
            item = (offset, total, ext.b, queue_id, queue_offset, tag_code, unique, keys, now_ms, ext.f)
            sends.dispatches.append(_new(Dispatch, item))
            if not head.flag & 2:
                text = one % (queue_id, unique.encode(), offset, queue_offset, head.opaque)
                sends.answers += (_PREFIX(4 + len(text), len(text)), text)
            next_offsets[key] = queue_offset + 1
            sends.offset = offset + total
            at = stop
        return at

    def _route(self, topic: str) -> _Route | None:
        config = self._topics.get(topic)
        if (
            config is None
            or not self._config.broker_permission & PERM_WRITE
            or not config.perm & PERM_WRITE
            or topic in NOT_FOR_CLIENT_SENDS
            or topic.startswith((RETRY_PREFIX, LMQ_PREFIX))
            or len(topic.encode()) > TOPIC_BYTES_MAX
            or config.attributes
        ):
            return None
        if len(self.routes) >= ROUTES_MAX:
            self.routes.clear()
        route = self.routes[topic] = _Route(topic, max(config.read_queues, config.write_queues))
        return route

    def tag(self, tag: str) -> int:
        if len(self.tags) >= TAG_HASHES_MAX:
            self.tags.clear()
            self.tags[""] = 0
        code = self.tags[tag] = java_hash(tag)
        return code


class _Sends:
    """The records and answers of one read, on their way into the log in one write.

    Holds: frames before ``appended_at`` are in the log or among the first ``appended_slow`` of ``slow``.
    """

    __slots__ = (
        "answers",
        "appended_at",
        "appended_slow",
        "born",
        "buffer",
        "chunks",
        "connection",
        "dispatches",
        "limit",
        "next_offsets",
        "now_ms",
        "offset",
        "ordered",
        "path",
        "slow",
        "store",
        "view",
    )

    def __init__(
        self, path: FastPath, connection: Connection, buffer: bytes | bytearray, born: bytes, start: int
    ) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.slow: list[bytes] = []
        self.ordered = False
        """A send went the slow way: those behind it follow, or the order of the read is lost."""
        self.appended_at = start
        self.appended_slow = 0
        self.path = path
        self.store = path.store
        self.connection = connection
        self.born = born
        self.now_ms = path.store.stamp_ms()
        self.chunks: list[Any] = []
        self.dispatches: list[Dispatch] = []
        self.answers: list[bytes] = []
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.offset: int = path.store.log.end
        self.limit = self.offset + path.store.log.room

    def leave(self, at: int, stop: int, *, is_send: bool) -> None:
        """The frame takes the ordinary way."""
        self.slow.append(bytes(self.view[at:stop]))
        self.ordered = self.ordered or is_send

    def batch(
        self, head: _Head, ext: _Ext, route: _Route, unique: str, at: int, body_at: int, stop: int
    ) -> bool:
        """Take all messages of a batch or none; whether that was possible. Raises DiskError."""
        path = self.path
        inner = _inner(self.buffer, self.view, body_at, stop, path.batch_messages_max)
        if inner is None:
            return False
        overhead = OVERHEAD_BYTES + len(route.stored)
        total = sum(overhead + len(body) + len(raw) for _, body, raw, _ in inner)
        if self.offset + total > self.limit and not self.roll(total, at):
            return False
        queue_id = ext.e
        key = route.keys[queue_id]
        first = queue_offset = self.next_offsets.get(key, -1)
        if first < 0:
            first = queue_offset = self.store.next_offset(*key)
        offsets: list[int] = []
        offset, now_ms, sys_flag = self.offset, self.now_ms, ext.f
        born, host, tags, topic = self.born, path.host, path.tags, ext.b
        for flag, body, raw, text in inner:
            marked = f"\x02{text}\x02"
            tag = value_of(marked, "\x02TAGS\x01")
            tag_code = tags.get(tag)
            if tag_code is None:
                tag_code = path.tag(tag)
            keys, own = value_of(marked, "\x02KEYS\x01"), value_of(marked, "\x02UNIQ_KEY\x01")
            size = len(body)
            total = overhead + size + len(raw)
            fixed = _pack(total, MAGIC_V1, _crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset,
                          sys_flag, ext.g, born, now_ms, host, ext.j, 0, size)  # fmt: skip
            self.chunks += (fixed, body, route.stored, _SHORT(len(raw)), raw)
            item = (offset, total, topic, queue_id, queue_offset, tag_code, own, keys, now_ms, sys_flag)
            self.dispatches.append(_new(Dispatch, item))
            offsets.append(offset)
            queue_offset += 1
            offset += total
        self.offset = offset
        self.next_offsets[key] = queue_offset
        if not head.flag & 2:
            text_bytes = path.answer.batch(ext.e, unique.encode(), offsets, first, head.opaque)
            self.answers += (_PREFIX(4 + len(text_bytes), len(text_bytes)), text_bytes)
        return True

    def append(self) -> None:
        """Store what was taken, in one write; its answers leave when it is safe. Raises DiskError."""
        dispatches = self.dispatches
        if not dispatches:
            return
        path, store = self.path, self.store
        begin, last = dispatches[0], dispatches[-1]
        log_end = last[0] + last[1]
        store.append(self.chunks, log_end - begin[0], dispatches)
        path.stats.put(len(dispatches), log_end - begin[0])
        if self.answers:
            path.pending_acks.add(self.connection, b"".join(self.answers), log_end)
        elif path.sync_flush:
            store.sync_to(log_end)

    def roll(self, total: int, at: int) -> bool:
        """Go on in the next segment, with what was taken appended; whether ``total`` bytes fit there. ``at``:
        where the frame begins that did not fit. Raises DiskError."""
        log = self.store.log
        if self.dispatches:
            self.append()
            self.chunks, self.dispatches, self.answers = [], [], []
            self.appended_at = at
            self.appended_slow = len(self.slow)
        if total <= self.path.record_bytes_max:
            log.roll()
        self.next_offsets.clear()
        self.offset = log.end
        self.limit = self.offset + log.room
        return self.offset + total <= self.limit


def is_fast(code: int, ext: _Ext, properties: str, queues: int, unique: str) -> bool:
    """Whether a send with a unique key, to a topic of ``queues`` queues, needs no rule but the format: all
    mandatory fields, a queue of the topic, no transaction, delay or other property that moves it, and a key
    without JSON escapes. A batch says that it is one in its code and in ``m``."""
    return (
        0 <= ext.e < queues
        and not ext.f & ~PLAIN_SYS_FLAGS
        and (code == SEND_BATCH) is (ext.m == "true")
        and properties[-1] == "\x02"
        and ext.a != ""
        and ext.c != ""
        and unique.isalnum()
        and unique.isascii()
        and not is_special_beside_key(properties)
    )


def value_of(marked: str, name: str) -> str:
    """The value of a property in ``marked``, the properties text behind one 0x02; ``name`` with the marks
    around it. Empty when there is none."""
    found = marked.find(name)
    if found < 0:
        return ""
    found += len(name)
    return marked[found : marked.find("\x02", found)]


def _inner(
    buffer: bytes | bytearray, view: memoryview, at: int, stop: int, messages_max: int
) -> list[tuple[int, memoryview, bytes, str]] | None:
    """(flag, body, properties, properties as text) of a packed batch; None when it needs the ordinary way."""
    for name in _OWN:
        if buffer.find(name, at, stop) >= 0:
            return None
    found: list[tuple[int, memoryview, bytes, str]] = []
    while at < stop:
        if stop - at < 22 or len(found) == messages_max:
            return None
        total, _, _, flag, size = _INNER(buffer, at)
        properties_at = at + 20 + size
        end = at + total
        if size < 0 or end > stop or properties_at + 2 > end:
            return None
        (properties_bytes,) = _SHORT_AT(buffer, properties_at)
        if properties_bytes < 0 or properties_at + 2 + properties_bytes != end:
            return None
        raw = bytes(view[properties_at + 2 : end])
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return None
        if raw.endswith(b"\0"):
            return None  # the store closes such properties: they would look torn
        found.append((flag, view[at + 20 : properties_at], raw, text))
        at = end
    return found or None


def born_host(remote: str) -> bytes:
    """The host bytes of a peer's ``ip:port``; empty when it is not a numeric address."""
    try:
        return encode_host(remote)
    except ValueError:
        return b""
