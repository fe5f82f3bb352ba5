"""How does a plain send become a record and an answer with as few steps as Python allows?

One call handles a whole read: frames are split, JSON headers of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE
(320) decoded into a struct, records encoded (layout: ``store/files/record.py``), appended in one write, and
the answers handed to ``broker/state/pending_acks`` with the end of the last record. Everything that is not
plain comes back as a slow frame and takes the ordinary way (``broker/requests/send.py``), which must give
the same records and answers: a property test holds the two together. What earns most: one call, one write to
the log and one to the socket for all frames of a read; a struct decoder; answers by template; routes and tag
hashes remembered.
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
    PLAIN_SYS_FLAGS,
    SendAnswer,
    extra_properties,
    holds_own,
    is_special,
)
from broker.state.pending_acks import PendingAcks
from broker.state.stats import Stats
from broker.state.topics import Topics
from model.config import BrokerConfig
from model.errors import DiskError, PeerError
from model.message import LMQ_PREFIX, PROPERTIES_BYTES_MAX, RETRY_PREFIX, encode_host, java_hash
from model.topic import NOT_FOR_CLIENT_SENDS, PERM_WRITE
from remoting import codec
from remoting.service import Connection
from runtime.env import Buffer
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
        self._store = store
        self._topics = topics
        self._pending_acks = pending_acks
        self._stats = stats
        self._refuse = refuse
        self._body_bytes_max = config.message_bytes_max
        self._frame_bytes_max = config.frame_bytes_max
        self._batch_messages_max = config.batch_messages_max
        self._config = config
        self._sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        host = encode_host(config.address)
        # Records with IPv6 hosts or a CRC property have another layout: the ordinary way knows it.
        self._usable = len(host) == 8 and not config.append_prop_crc
        self._host = host
        self._extra = extra_properties(config).encode()
        self._record_bytes_max = config.segment_bytes - BLANK_BYTES
        self._answer = SendAnswer(config, host)
        self._routes: dict[str, _Route] = {}
        self._tags: dict[str, int] = {}
        topics.on_change.append(lambda names: self._routes.clear())

    def forget_routes(self) -> None:
        """The configuration changed: work out anew who may send what."""
        self._routes.clear()

    def process(
        self, connection: Connection, buffer: Buffer, start: int, end: int
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

    def _split(self, buffer: Buffer, at: int, end: int, frames: list[bytes]) -> tuple[int, list[bytes]]:
        """Every whole frame is slow."""
        while stop := codec.frame_end(buffer, at, end, self._frame_bytes_max):
            frames.append(bytes(buffer[at:stop]))
            at = stop
        return at, frames

    def _run(
        self, connection: Connection, buffer: Buffer, start: int, end: int, born: bytes
    ) -> tuple[int, list[bytes]]:
        view = memoryview(buffer)
        store = self._store
        log = store.log
        routes = self._routes
        tags = self._tags
        extra = self._extra
        host = self._host
        answer = self._answer
        one = answer.one
        pack = FIXED_V4.pack
        crc32 = zlib.crc32
        now_ms = store.stamp_ms()
        slow: list[bytes] = []
        ordered = False  # a send went the slow way: those behind it follow, or the order of the read is lost
        chunks: list[Any] = []
        dispatches: list[Dispatch] = []
        answers: list[bytes] = []
        next_offsets: dict[tuple[str, int], int] = {}
        offset: int = log.end
        limit = offset + log.room
        appended_at = start  # frames before it are in the log
        appended_slow = 0
        broken: PeerError | None = None
        at = start
        while end - at >= 8:
            length, mark = _LENGTHS(buffer, at)
            stop = at + 4 + length
            header_bytes = mark & 0xFFFFFF
            if stop > end or mark > codec.HEADER_BYTES_MAX or header_bytes > length - 4:
                # Not whole yet, a binary header, or lengths that cannot be true.
                try:
                    stop = codec.frame_end(buffer, at, end, self._frame_bytes_max)
                except PeerError as error:
                    broken = error
                    break
                if not stop:
                    break
                slow.append(bytes(view[at:stop]))
                ordered = True
                at = stop
                continue
            body_at = at + 8 + header_bytes
            try:
                head = _decode(view[at + 8 : body_at])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                slow.append(bytes(view[at:stop]))
                ordered = ordered or _SEND_CODE.search(view[at + 8 : body_at]) is not None
                at = stop
                continue
            code = head.code
            ext = head.extFields
            if (code != SEND and code != SEND_BATCH) or ext is None or head.flag & 1:
                ordered = ordered or code == SEND_V1
                slow.append(bytes(view[at:stop]))
                at = stop
                continue
            topic = ext.b
            queue_id = ext.e
            properties = ext.i
            route = routes.get(topic)
            if route is None:
                route = self._route(topic)
            marked = "\x02" + properties
            found = marked.find("\x02UNIQ_KEY\x01")
            uniq_end = marked.find("\x02", found + 10)
            uniq_key = marked[found + 10 : uniq_end]
            uniq_bytes = uniq_key.encode()
            size = stop - body_at
            if (
                ordered
                or route is None
                or not ext.a
                or not ext.c
                or not 0 <= queue_id < route.queues
                or ext.f & ~PLAIN_SYS_FLAGS
                or found < 0
                or properties[-1] != "\x02"
                or not uniq_bytes.isalnum()  # of bytes: ASCII only, so it needs no JSON escapes
                or size > self._body_bytes_max
                or is_special(properties)
                or (code == SEND) is (ext.m == "true")
            ):
                ordered = True
                slow.append(bytes(view[at:stop]))
                at = stop
                continue
            key = route.keys[queue_id]
            queue_offset = next_offsets.get(key)
            if queue_offset is None:
                queue_offset = store.next_offset(topic, queue_id)

            if code == SEND:
                stored_properties = properties.encode() + extra
                total = OVERHEAD_BYTES + size + len(route.stored) + len(stored_properties)
                if len(stored_properties) > PROPERTIES_BYTES_MAX:
                    ordered = True
                    slow.append(bytes(view[at:stop]))
                    at = stop
                    continue
                inner = None
            else:
                inner = _inner(buffer, view, body_at, stop, self._batch_messages_max)
                if inner is None:
                    ordered = True
                    slow.append(bytes(view[at:stop]))
                    at = stop
                    continue
                total = sum(
                    OVERHEAD_BYTES + len(route.stored) + len(body) + len(raw) for _, body, raw, _ in inner
                )

            if offset + total > limit:
                try:
                    if dispatches:
                        self._append(connection, chunks, dispatches, answers)
                        chunks, dispatches, answers = [], [], []
                        appended_at = at
                        appended_slow = len(slow)
                    if total <= self._record_bytes_max:
                        log.roll()
                except DiskError:
                    return self._split(buffer, appended_at, end, slow[:appended_slow])
                offset = log.end
                limit = offset + log.room
                if offset + total > limit:
                    ordered = True
                    slow.append(bytes(view[at:stop]))
                    at = stop
                    continue
                queue_offset = store.next_offset(topic, queue_id)
                next_offsets.clear()

            if inner is None:
                found = marked.find("\x02TAGS\x01")
                if found < 0:
                    tag_code = 0
                else:
                    tag = marked[found + 6 : marked.find("\x02", found + 6)]
                    code_of_tag = tags.get(tag)
                    tag_code = self._tag(tag) if code_of_tag is None else code_of_tag
                found = marked.find("\x02KEYS\x01")
                keys = "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)]
                body = view[body_at:stop]
                chunks += (
                    pack(
                        total,
                        MAGIC_V1,
                        crc32(body) & 0x7FFFFFFF,
                        queue_id,
                        ext.h,
                        queue_offset,
                        offset,
                        ext.f,
                        ext.g,
                        born,
                        now_ms,
                        host,
                        ext.j,
                        0,
                        size,
                    ),
                    body,
                    route.stored,
                    _SHORT(len(stored_properties)),
                    stored_properties,
                )
                dispatches.append(
                    _new(
                        Dispatch,
                        (
                            offset,
                            total,
                            topic,
                            queue_id,
                            queue_offset,
                            tag_code,
                            uniq_key,
                            keys,
                            now_ms,
                            ext.f,
                        ),
                    )
                )
                if not head.flag & 2:
                    text = one % (queue_id, uniq_bytes, offset, queue_offset, head.opaque)
                    answers.append(_PREFIX(4 + len(text), len(text)))
                    answers.append(text)
                next_offsets[key] = queue_offset + 1
                offset += total
            else:
                first = queue_offset
                offsets = []
                for flag, body, raw, text_properties in inner:
                    marked = "\x02" + text_properties + "\x02"
                    total = OVERHEAD_BYTES + len(route.stored) + len(body) + len(raw)
                    offsets.append(offset)
                    found = marked.find("\x02TAGS\x01")
                    tag = marked[found + 6 : marked.find("\x02", found + 6)] if found >= 0 else ""
                    code_of_tag = tags.get(tag)
                    tag_code = self._tag(tag) if code_of_tag is None else code_of_tag
                    found = marked.find("\x02KEYS\x01")
                    keys = "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)]
                    found = marked.find("\x02UNIQ_KEY\x01")
                    inner_key = "" if found < 0 else marked[found + 10 : marked.find("\x02", found + 10)]
                    chunks += (
                        pack(
                            total,
                            MAGIC_V1,
                            crc32(body) & 0x7FFFFFFF,
                            queue_id,
                            flag,
                            queue_offset,
                            offset,
                            ext.f,
                            ext.g,
                            born,
                            now_ms,
                            host,
                            ext.j,
                            0,
                            len(body),
                        ),
                        body,
                        route.stored,
                        _SHORT(len(raw)),
                        raw,
                    )
                    dispatches.append(
                        _new(
                            Dispatch,
                            (
                                offset,
                                total,
                                topic,
                                queue_id,
                                queue_offset,
                                tag_code,
                                inner_key,
                                keys,
                                now_ms,
                                ext.f,
                            ),
                        )
                    )
                    queue_offset += 1
                    offset += total
                if not head.flag & 2:
                    text = answer.batch(queue_id, uniq_bytes, offsets, first, head.opaque)
                    answers.append(_PREFIX(4 + len(text), len(text)))
                    answers.append(text)
                next_offsets[key] = queue_offset
            at = stop

        if dispatches:
            try:
                self._append(connection, chunks, dispatches, answers)
            except DiskError:
                # Nothing was stored since the last append: the ordinary way says so to each sender.
                return self._split(buffer, appended_at, end, slow[:appended_slow])
        if broken is not None:
            raise broken
        return at, slow

    def _append(
        self, connection: Connection, chunks: list[Any], dispatches: list[Dispatch], answers: list[bytes]
    ) -> None:
        last = dispatches[-1]
        log_end = last[0] + last[1]
        self._store.append(chunks, log_end - dispatches[0][0], dispatches)
        self._stats.put(len(dispatches), log_end - dispatches[0][0])
        if answers:
            self._pending_acks.park(connection, b"".join(answers), log_end)
        elif self._sync_flush:
            self._store.sync_to(log_end)

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
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        route = self._routes[topic] = _Route(topic, max(config.read_queues, config.write_queues))
        return route

    def _tag(self, tag: str) -> int:
        if len(self._tags) >= TAG_HASHES_MAX:
            self._tags.clear()
        code = self._tags[tag] = java_hash(tag)
        return code


def _inner(
    buffer: Buffer, view: memoryview, at: int, stop: int, messages_max: int
) -> list[tuple[int, memoryview, bytes, str]] | None:
    """(flag, body, properties, properties as text) of a packed batch; None when it is not a plain one."""
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
        if holds_own(text):
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
