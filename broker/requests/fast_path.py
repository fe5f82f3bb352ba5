"""How does an ordinary send become a record and an answer with as few steps as Python allows?

One call handles a whole read: frames are split, headers of both dialects read (``fast_headers``), records
encoded (layout: ``store/files/record.py``), appended in one write, and the answers handed to
``broker/state/pending_acks`` with the end of the last record. What is not fast (``is_fast``) comes back as a
slow frame and takes the ordinary way (``broker/requests/send.py``), which must give the same records and
answers: a property test holds the two together. What earns most: one call, one write to the log and one to
the socket for all frames of a read; a struct decoder; answers by template; routes and tag hashes remembered.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.requests.batch import BORN_HOST, READ_MESSAGES_MAX
from broker.requests.compiled import CompiledSends, Join, Process, Rest
from broker.requests.fast_headers import (
    ODD,
    SEND,
    SEND_BATCH,
    SENDS,
    BinaryHeads,
    SendExt,
    SendHead,
    decode_json,
    odd_json,
)
from broker.requests.send_format import (
    PLAIN_SYS_FLAGS,
    BinaryAnswer,
    JsonAnswer,
    extra_properties,
    holds_own,
    is_special,
)
from broker.state.pending_acks import Answered, PendingAcks
from broker.state.stats import Stats
from broker.tables.topics import Topics
from model.config import BrokerConfig
from model.errors import DiskError, PeerError
from model.message import (
    DLQ_PREFIX,
    KEYS,
    LMQ_PREFIX,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    TAGS,
    encode_host,
    java_hash,
    property_of,
)
from model.pop import REVIVE_TOPIC_PREFIX
from model.topic import NOT_FOR_CLIENT_SENDS, PERM_WRITE
from remoting import codec
from remoting.service import Connection
from remoting.transport.order import WAITS
from runtime import native
from store.files.compiled import compiled
from store.files.record import BLANK_BYTES, FIXED_V4, MAGIC_V1, Dispatch
from store.message_store import MessageStore

TOPIC_BYTES_MAX: Final = 127  # of a version 1 record
OVERHEAD_BYTES: Final = FIXED_V4.size + 2  # all of a record but body, topic with its length, and properties
TAG_HASHES_MAX: Final = 65536
TAG_CHARS_MAX: Final = 64  # of a longer tag no hash is remembered: it may have 32 KiB
ROUTES_MAX: Final = 65536
JSON_MARK_MAX: Final = codec.HEADER_BYTES_MAX
"""The second field of a frame is a header type and a length: up to this it says JSON."""

_LENGTHS: Final = struct.Struct(">iI").unpack_from
_PREFIX: Final = struct.Struct(">iI").pack
_INNER: Final = struct.Struct(">iiiii").unpack_from
_SHORT: Final = struct.Struct(">h").pack
_SHORT_AT: Final = struct.Struct(">h").unpack_from

_new: Final = tuple.__new__
_pack: Final = FIXED_V4.pack
_crc32: Final = zlib.crc32
_SINGLE: Final = ("false", "")  # what a send of one message may say of being a batch


class _Route:
    """What a send to one topic needs to know, worked out once until the topic table changes."""

    __slots__ = ("keys", "queues", "stored")

    def __init__(self, topic: str, queues: int) -> None:
        name = topic.encode()
        self.stored = bytes([len(name)]) + name
        self.queues = queues
        self.keys = [(topic, queue_id) for queue_id in range(queues)]


class _Routes:
    """What sends need to know of topics and tags, remembered. ``known`` has topics that may be sent to."""

    def __init__(self, config: BrokerConfig, topics: Topics) -> None:
        self.known: dict[str, _Route] = {}
        self.tags: dict[str, int] = {"": 0}
        self._config = config
        self._topics = topics
        topics.on_change.append(lambda names: self.known.clear())

    def find(self, topic: str) -> _Route | None:
        """The route of a topic that is not in ``known``, if sends to it may be fast."""
        config = self._topics.get(topic)
        if (
            config is None
            or not self._config.broker_permission & PERM_WRITE
            or not config.perm & PERM_WRITE
            or topic in NOT_FOR_CLIENT_SENDS
            or topic.startswith((RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX, REVIVE_TOPIC_PREFIX))
            or len(topic.encode()) > TOPIC_BYTES_MAX
            or config.attributes
        ):
            return None
        if len(self.known) >= ROUTES_MAX:
            self.known.clear()
        route = self.known[topic] = _Route(topic, max(config.read_queues, config.write_queues))
        return route

    def queues_of(self, topic: str) -> int | None:
        """How many queues a topic has that sends may be fast to; None: it is none."""
        route = self.known.get(topic) or self.find(topic)
        return None if route is None else route.queues

    def tag_code(self, tag: str) -> int:
        """The hash of a tag that is not in ``tags``."""
        if len(self.tags) >= TAG_HASHES_MAX:
            self.tags.clear()
            self.tags[""] = 0
        code = java_hash(tag)
        if len(tag) <= TAG_CHARS_MAX:
            self.tags[tag] = code
        return code


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
        self.config = config
        self.store = store
        self.writer = store.writer
        self.pending_acks = pending_acks
        self.stats = stats
        self.routes = _Routes(config, topics)
        self.sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self.host = host = encode_host(config.address)
        self.extra = extra_properties(config).encode()
        self.json = JsonAnswer(config, host)
        self.binary = BinaryAnswer(config, host)
        self._binary_head = BinaryHeads().head
        self._refuse = refuse
        # Records with IPv6 hosts or a CRC property have another layout: the ordinary way knows it.
        self._why_not = "enabledAppendPropCRC" if config.append_prop_crc else ""
        if len(host) != 8:
            self._why_not = "the address of this broker is IPv6"
        self.compiled: CompiledSends | None = None
        """None: Python's path is taken."""
        module = compiled()
        if module is not None and not self._why_not:
            self.compiled = CompiledSends(module, self, self.routes.queues_of, refuse)
            topics.on_change.append(lambda names: self.forget_routes())

    def describe(self) -> str:
        """Which way plain sends take here: ``compiled``; ``Python`` or ``ordinary``, and why."""
        return f"ordinary ({self._why_not})" if self._why_not else native.describe()

    def forget_routes(self) -> None:
        """The configuration changed: work out anew who may send what."""
        self.routes.known.clear()
        if self.compiled is not None:
            self.compiled.forget_routes()

    def join_or(self, otherwise: Process, rest: Rest | None = None) -> Join:
        """``process`` of a read that joins an open turn, by compiled code alone; ``otherwise`` of any other
        and where there is none. ``rest``: see ``CompiledSends.join_or``."""
        return otherwise if self.compiled is None else self.compiled.join_or(otherwise, rest)

    def process(
        self, connection: Connection, buffer: bytes | bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        """Handle the whole frames in ``buffer[start:end]``; return where they end and what is left over.

        Raises PeerError on a frame whose lengths cannot be true, when those before it were handled and none
        of them is left over; else they end there.
        """
        compiled = self.compiled
        born = connection.attributes.get(BORN_HOST)
        if born is None:
            born = connection.attributes[BORN_HOST] = born_host(connection.remote)
        must_go_slow = self._why_not or len(born) != 8 or WAITS in connection.attributes
        # While a turn is open it is not asked here: the turn asks before it stores anything.
        if must_go_slow or ((compiled is None or not compiled.turn.reads) and self._refuse()):
            return self._leave_all(buffer, start, end)
        if compiled is not None:
            return compiled.process(connection, buffer, start, end, born)
        sends = _Sends(self, connection, buffer, start)
        frame_bytes_max, whole = self.config.frame_bytes_max, end
        if end - start > frame_bytes_max:  # else no frame that is whole is too long
            whole = codec.frames_end(buffer, start, end, frame_bytes_max)
        try:
            try:
                at = self._frames(sends, start, whole, born)
            except PeerError:
                at = whole = codec.frames_end(buffer, start, end, frame_bytes_max)
            sends.append()
        except DiskError:
            # Nothing was stored since the last append: the ordinary way says so to each sender.
            return self.split(buffer, sends.appended_at, end, sends.slow[: sends.appended_slow])
        return (at, sends.slow) if whole == end else self.split(buffer, at, end, sends.slow)

    def _leave_all(self, buffer: bytes | bytearray, start: int, end: int) -> tuple[int, list[bytes]]:
        if self.compiled is not None:
            self.compiled.end_turn()  # what came before goes first
        return self.split(buffer, start, end, [])

    def split(
        self, buffer: bytes | bytearray, at: int, end: int, frames: list[bytes]
    ) -> tuple[int, list[bytes]]:
        """Every whole frame is slow. Raises PeerError as ``process``."""
        try:
            while stop := codec.frame_end(buffer, at, end, self.config.frame_bytes_max):
                frames.append(bytes(buffer[at:stop]))
                at = stop
        except PeerError:
            if not frames:
                raise
        return at, frames

    def append(
        self, answered: Answered, chunks: Sequence[Any], size: int, dispatches: Sequence[Dispatch]
    ) -> None:
        """Store what was taken, ``size`` bytes, in one write; its answers leave when it is safe. Raises
        DiskError."""
        self.writer.append_next(chunks, size, dispatches)
        self.stats.put_fast(len(dispatches), size)
        if answered:
            self.pending_acks.add_all(answered, self.store.log.end)
        elif self.sync_flush:
            self.store.sync_to(self.store.log.end)

    def _frames(self, sends: _Sends, at: int, end: int, born: bytes) -> int:
        """Take or leave each whole frame; where the rest begins. Raises DiskError, and PeerError for lengths
        that cannot be true.

        Longer than a function should be: what each single message pays for stands here in one piece. As
        functions of their own (a single as a batch of one) it took 8 to 16 % more.
        """
        view, writer, routes, tags = sends.view, self.writer, self.routes.known, self.routes.tags
        buffer, body_bytes_max = sends.buffer, self.config.message_bytes_max
        frame_bytes_max, binary_head, binary_one = (
            self.config.frame_bytes_max,
            self._binary_head,
            self.binary.one,
        )
        extra, host, one = self.extra, self.host, self.json.one
        now_ms, next_offsets = sends.now_ms, sends.next_offsets
        chunks, dispatches, answers = sends.chunks, sends.dispatches, sends.answers
        while end - at >= 8:
            length, mark = _LENGTHS(buffer, at)
            stop = at + 4 + length
            body_at = at + 8 + (mark & 0xFFFFFF)
            if stop > end or mark > JSON_MARK_MAX or body_at > stop:
                # Not whole yet, a ROCKETMQ header, or lengths that cannot be true.
                plain = (
                    mark >> 24 == codec.ROCKETMQ and body_at <= stop <= end and stop - at <= frame_bytes_max
                )
                if (not plain or mark & 0xFFFFFF > codec.HEADER_BYTES_MAX) and not codec.frame_end(
                    buffer, at, end, frame_bytes_max
                ):
                    break
                head = binary_head(bytes(view[at + 8 : body_at]))
            else:
                try:
                    head = decode_json(view[at + 8 : body_at])
                except ODD:
                    head = odd_json(view[at + 8 : body_at])
            code, ext = head.code, head.ext
            if ext is None or (code != SEND and code != SEND_BATCH) or head.flag & 1:
                sends.leave(at, stop, is_send=code in SENDS)
                at = stop
                continue
            topic, properties, size = ext.topic, ext.properties, stop - body_at
            route = routes.get(topic) or self.routes.find(topic)
            marked = "\x02" + properties
            found = marked.rfind("\x02UNIQ_KEY\x01")
            unique = marked[found + 10 : marked.find("\x02", found + 10)]
            unique_bytes = unique.encode()
            if (
                found < 0
                or route is None
                or sends.ordered
                or size > body_bytes_max
                or "\0" in properties  # of many the store would take them for torn
                or not is_fast(code, ext, properties, route.queues, unique_bytes)
            ):
                sends.leave(at, stop, is_send=True)
                at = stop
                continue
            if code == SEND_BATCH:
                answer = self.json if mark <= JSON_MARK_MAX else self.binary
                if not sends.batch(head, ext, route, unique_bytes, born, answer, at, body_at, stop):
                    sends.leave(at, stop, is_send=True)
                chunks, dispatches, answers = sends.chunks, sends.dispatches, sends.answers
                at = stop
                continue
            # One message, here in full and not as a batch of one: that costs it a tenth more.
            stored_properties = properties.encode() + extra
            total = OVERHEAD_BYTES + size + len(route.stored) + len(stored_properties)
            offset = sends.offset
            if len(stored_properties) > PROPERTIES_BYTES_MAX or offset + total > sends.limit:
                if len(stored_properties) > PROPERTIES_BYTES_MAX or not sends.roll(total, at):
                    sends.leave(at, stop, is_send=True)
                    at = stop
                    continue
                chunks, dispatches, answers = sends.chunks, sends.dispatches, sends.answers
                offset = sends.offset
            queue_id, sys_flag = ext.queue_id, ext.sys_flag
            key = route.keys[queue_id]
            queue_offset = next_offsets.get(key)
            if queue_offset is None:
                queue_offset = writer.next_offset(topic, queue_id)
            found = marked.rfind("\x02TAGS\x01")
            if found < 0:
                tag_code: int | None = 0
            else:
                tag = marked[found + 6 : marked.find("\x02", found + 6)] or _of(marked, TAGS)
                tag_code = tags.get(tag)
                if tag_code is None:
                    tag_code = self.routes.tag_code(tag)
            found = marked.rfind("\x02KEYS\x01")
            keys = (
                "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)] or _of(marked, KEYS)
            )
            body = view[body_at:stop]
            fixed = _pack(total, MAGIC_V1, _crc32(body) & 0x7FFFFFFF, queue_id, ext.flag, queue_offset,
                          offset, sys_flag, ext.born_timestamp_ms, born, now_ms, host, ext.reconsume_times, 0,
                          size)  # fmt: skip
            chunks += (fixed, body, route.stored, _SHORT(len(stored_properties)), stored_properties)
            item = (offset, total, topic, queue_id, queue_offset, tag_code, unique, keys, now_ms, sys_flag)
            dispatches.append(_new(Dispatch, item))
            if not head.flag & 2:
                if mark <= JSON_MARK_MAX:
                    text = one % (queue_id, unique_bytes, offset, queue_offset, head.opaque)
                    answers += (_PREFIX(4 + len(text), len(text)), text)
                else:
                    answers.append(binary_one(queue_id, unique_bytes, offset, queue_offset, head.opaque))
            next_offsets[key] = queue_offset + 1
            sends.offset = offset + total
            at = stop
        return at


class _Sends:
    """The records and answers of one read, on their way into the log in one write.

    Holds: frames before ``appended_at`` are in the log or among the first ``appended_slow`` of ``slow``.
    """

    __slots__ = (
        "answers",
        "appended_at",
        "appended_slow",
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
        "view",
    )

    def __init__(self, path: FastPath, connection: Connection, buffer: bytes | bytearray, start: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.slow: list[bytes] = []
        self.ordered = False
        """A send went the slow way: those behind it follow, or the order of the read is lost."""
        self.appended_at = start
        self.appended_slow = 0
        self.path = path
        self.connection = connection
        self.now_ms = path.writer.stamp_ms()
        self.chunks: list[Any] = []
        self.dispatches: list[Dispatch] = []
        self.answers: list[bytes] = []
        self.next_offsets: dict[tuple[str, int], int] = {}
        log = path.store.log
        self.offset: int = log.end
        self.limit: int = self.offset + log.room

    def leave(self, at: int, stop: int, *, is_send: bool) -> None:
        """The frame takes the ordinary way."""
        self.slow.append(bytes(self.view[at:stop]))
        self.ordered = self.ordered or is_send

    def batch(
        self,
        head: SendHead,
        ext: SendExt,
        route: _Route,
        unique: bytes,
        born: bytes,
        answer: JsonAnswer | BinaryAnswer,
        at: int,
        body_at: int,
        stop: int,
    ) -> bool:
        """Take all messages of a batch or none; whether that was possible. Raises DiskError."""
        path = self.path
        left = READ_MESSAGES_MAX - len(self.dispatches)
        most = min(path.config.batch_messages_max, left)
        inner = _inner(self.buffer, self.view, body_at, stop, most) if left > 0 else None
        if inner is None:
            return False
        overhead = OVERHEAD_BYTES + len(route.stored)
        total = sum([overhead + len(body) + len(raw) for _, body, raw, _, _ in inner])
        if self.offset + total > self.limit and not self.roll(total, at):
            return False
        queue_id = ext.queue_id
        key = route.keys[queue_id]
        first = queue_offset = self.next_offsets.get(key, -1)
        if first < 0:
            first = queue_offset = path.writer.next_offset(*key)
        offsets: list[int] = []
        offset, now_ms, sys_flag, born_ms = self.offset, self.now_ms, ext.sys_flag, ext.born_timestamp_ms
        host, tags, topic, reconsume_times = path.host, path.routes.tags, ext.topic, ext.reconsume_times
        chunks, dispatches, stored = self.chunks, self.dispatches, route.stored
        for flag, body, raw, marked, found in inner:
            # The three look-ups are written out: as calls they cost a batch a tenth more.
            own = "" if found < 0 else marked[found + 10 : marked.find("\x02", found + 10)]
            found = marked.rfind("\x02TAGS\x01")
            tag = "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)] or _of(marked, TAGS)
            tag_code = tags.get(tag)
            if tag_code is None:
                tag_code = path.routes.tag_code(tag)
            found = marked.rfind("\x02KEYS\x01")
            keys = (
                "" if found < 0 else marked[found + 6 : marked.find("\x02", found + 6)] or _of(marked, KEYS)
            )
            size = len(body)
            total = overhead + size + len(raw)
            fixed = _pack(total, MAGIC_V1, _crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset,
                          sys_flag, born_ms, born, now_ms, host, reconsume_times, 0, size)  # fmt: skip
            chunks += (fixed, body, stored, _SHORT(len(raw)), raw)
            item = (offset, total, topic, queue_id, queue_offset, tag_code, own, keys, now_ms, sys_flag)
            dispatches.append(_new(Dispatch, item))
            offsets.append(offset)
            queue_offset += 1
            offset += total
        self.offset = offset
        self.next_offsets[key] = queue_offset
        if not head.flag & 2:
            self.answers.append(answer.frame(queue_id, unique, offsets, first, head.opaque))
        return True

    def append(self) -> None:
        """Store what was taken, in one write; its answers leave when it is safe. Raises DiskError."""
        dispatches = self.dispatches
        if not dispatches:
            return
        last = dispatches[-1]
        size = last[0] + last[1] - dispatches[0][0]
        answers = [(self.connection, b"".join(self.answers))] if self.answers else []
        self.path.append(answers, self.chunks, size, dispatches)

    def roll(self, total: int, at: int) -> bool:
        """Go on in the next segment, with what was taken appended; whether ``total`` bytes fit there. ``at``:
        where the frame begins that did not fit. Raises DiskError."""
        log = self.path.store.log
        if self.dispatches:
            self.append()
            self.chunks, self.dispatches, self.answers = [], [], []
            self.appended_at = at
            self.appended_slow = len(self.slow)
        if total <= self.path.config.segment_bytes - BLANK_BYTES:
            log.roll()
        self.next_offsets.clear()
        self.offset = log.end
        self.limit = self.offset + log.room
        return self.offset + total <= self.limit


def is_fast(code: int, ext: SendExt, properties: str, queues: int, unique: bytes) -> bool:
    """Whether a send with a unique key, to a topic of ``queues`` queues, needs no rule but the format: all
    mandatory fields, a queue of the topic, no transaction, delay or other property that moves it, and a key
    without JSON escapes. A batch says that it is one in its code and in ``batch``."""
    return (
        0 <= ext.queue_id < queues
        and not ext.sys_flag & ~PLAIN_SYS_FLAGS
        and (ext.batch == "true" if code == SEND_BATCH else ext.batch in _SINGLE)
        and properties[-1] == "\x02"
        and len(properties) <= PROPERTIES_BYTES_MAX  # those beside a batch, which are not stored, as well
        and ext.producer_group != "" != ext.default_topic
        and unique.isalnum()  # of bytes: ASCII only
        # ``is_special`` in fewer steps: beside a unique key, names with an underscore need a second one.
        and "DELAY\x01" not in properties
        and "WAIT\x01f" not in properties
        and "WAIT\x01F" not in properties
        and "CLUSTER\x01" not in properties
        and (properties.count("_") == 1 or not is_special(properties))
    )


def _of(marked: str, name: str) -> str:
    """The value of a property whose last one is empty."""
    return property_of(marked, name) or ""


def _is_odd(marked: str) -> bool:
    """Whether a batch's message has properties of brokers alone, or an empty unique key beside another."""
    return holds_own(marked) or "\x02UNIQ_KEY\x01\x02" in marked


_Inner = tuple[int, memoryview, bytes, str, int]


def _inner(
    buffer: bytes | bytearray, view: memoryview, at: int, stop: int, messages_max: int
) -> list[_Inner] | None:
    """Of a packed batch: flag, body, properties, these as text between two 0x02, and where UNIQ_KEY stands
    in it (negative: nowhere). None when it needs the ordinary way."""
    found: list[_Inner] = []
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
        if 0 in raw:
            return None  # the store closes properties that end in one, and refuses many: they would look torn
        try:
            marked = "\x02" + raw.decode() + "\x02"
        except UnicodeDecodeError:
            return None
        unique_at = marked.rfind("\x02UNIQ_KEY\x01")
        # The one underscore of UNIQ_KEY is none of a name that only brokers write.
        if (unique_at < 0 or marked.count("_") != 1) and _is_odd(marked):
            return None
        found.append((flag, view[at + 20 : properties_at], raw, marked, unique_at))
        at = end
    return found or None


def born_host(remote: str) -> bytes:
    """The host bytes of a peer's ``ip:port``; empty when it is not a numeric address."""
    try:
        return encode_host(remote)
    except ValueError:
        return b""
