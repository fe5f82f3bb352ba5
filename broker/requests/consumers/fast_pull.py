"""How is a pull answered in as few steps as Python allows?

A consumer's pulls of a queue differ in three numbers: queue offset, commit offset and the number of the
request. What stands around them is parsed once, by the ordinary way, and known again by its bytes. Such a
pull goes through the same rules as any other (``PullProcessor.answer``), without a task of its own.
All others are left to the ordinary way, which must give the same answers: a test
holds the two together (``tests/broker/requests/consumers/test_fast_pull.py``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.context import BrokerContext
from broker.requests.batch import PULLS
from broker.requests.compiled import Join
from broker.requests.consumers.pull import PullProcessor
from broker.requests.consumers.pull_heads import compiled_heads
from broker.requests.consumers.told import Told
from broker.requests.consumers.whole import WholeAnswers
from broker.requests.fast_path import FastPath
from broker.state.effort import NoRoom
from model.codes import Request, Response, label_of
from model.errors import PeerError, Refused
from model.pop import is_revive_topic
from model.topic import INTERNAL_TOPICS
from remoting import codec
from remoting.codec import Command
from remoting.guard import LONG_ANSWER_BYTES, MADE_BYTES_MAX, Guard
from remoting.headers import PullHeader
from remoting.service import Connection
from remoting.transport.connection import APART_BYTES, UNSENT_BYTES_HIGH
from store.files.compiled import compiled

KNOWN_BYTES_MAX: Final = 8 << 20
"""Of what is remembered: one a consumer and queue."""
KNOWN_BYTES: Final = 1000
"""Of one, besides the bytes it is found by."""
AROUND_BYTES_MAX: Final = 1024
"""Of a longer header nothing is remembered: a subscription may have megabytes."""
_PULLS: Final = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)
_NAME_OF: Final = {int(code): label_of(code) for code in _PULLS}
_NAMES: Final = frozenset(PullHeader("", "", 0, 0, 0, bytes_max=0).to_ext()) | {
    "requestSource", "proxyFrowardClientId", "bname", "ns", "nsd", "lo", "oway", "ReqT",
}  # fmt: skip
"""What a pull may say and be remembered: nothing that proves who asks."""
_OFFSET, _COMMIT, _OPAQUE = "queueOffset", "commitOffset", "opaque"

_HEADER: Final = struct.Struct(">hxxxiiii")  # code, opaque, flag, remark bytes, ext bytes
_INT_AT: Final = struct.Struct(">i").unpack_from
_LENGTHS: Final = struct.Struct(">iI")
_JSON_OFFSET, _JSON_COMMIT, _JSON_OPAQUE = b'"queueOffset":"', b'"commitOffset":"', b'"opaque":'
_DIGITS_MAX: Final = 18
_OPAQUE_DIGITS_MAX: Final = 9
_BEGIN: Final = 8  # of the header, in a frame
_EXT_AT: Final = _BEGIN + _HEADER.size


_Around = tuple[bytes, ...]
_Numbers = tuple[int, int, int]
"""Queue offset, commit offset, number of the request."""
_Cut = tuple[_Around, _Numbers] | None


def _binary_mark(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


_BINARY_OFFSET, _BINARY_COMMIT = _binary_mark(_OFFSET), _binary_mark(_COMMIT)
_MARKS: Final = (_BINARY_OFFSET, _BINARY_COMMIT, _JSON_OFFSET, _JSON_COMMIT, _JSON_OPAQUE)


class _Pull(NamedTuple):
    """A pull as the ordinary way reads it; its numbers are those of the last that came."""

    command: Command
    header: PullHeader


class KnownPulls:
    """What stood around the numbers of pulls that came.

    Holds: a header whose bytes around the numbers equal remembered ones has the same fields, as the bytes of
    a text cannot pass for what stands around a number: in JSON each quote inside of one has a backslash
    before it, and none with a backslash is remembered; in a ROCKETMQ header the lengths of all fields are
    among the bytes that are compared.
    """

    def __init__(self) -> None:
        self._known: dict[_Around, _Pull] = {}
        self._bytes = 0
        module = compiled()
        self.marked = (self._known, _MARKS)
        """What compiled code knows them again by."""
        self._pull_at = None if module is None else module.pull_at
        self._cut_binary: Callable[[bytes, bytes, bytes], _Cut] = (
            _cut_binary if module is None else module.cut_binary
        )
        self._cut_json: Callable[[bytes, bytes, bytes, bytes], _Cut] = (
            _cut_json if module is None else module.cut_json
        )

    def find(self, frame: bytes) -> _Pull | None:
        """The pull in a whole frame, ``Command.ext`` left out; None: the ordinary way is to look.

        It is the same for all whose numbers differ: nobody keeps it beyond the next one."""
        mark = _LENGTHS.unpack_from(frame)[1]
        if _BEGIN + (mark & 0xFFFFFF) != len(frame):
            return None  # it has a body, or cannot be
        dialect = mark >> 24
        if dialect == codec.ROCKETMQ:
            cut = self._cut_binary(frame, _BINARY_OFFSET, _BINARY_COMMIT)
        else:
            is_json = dialect == codec.JSON
            cut = self._cut_json(frame, _JSON_OFFSET, _JSON_COMMIT, _JSON_OPAQUE) if is_json else None
        if cut is None:
            return None
        around, numbers = cut
        found = self._known.get(around) or self._learn(frame, around, numbers)
        if found is None:
            return None
        command, header = found
        header.queue_offset, header.commit_offset, command.opaque = numbers
        return found

    def find_at(
        self, buffer: bytes | bytearray, start: int, end: int, frame_bytes_max: int
    ) -> tuple[int, Command, PullHeader] | None:
        """``find`` of the frame that begins there, and where it ends; None: the ordinary way is to look,
        also at whether it is whole, or it came for the first time."""
        if self._pull_at is None:
            return None
        found: tuple[int, Command, PullHeader] | None = self._pull_at(
            buffer, start, end, frame_bytes_max, self._known, _MARKS
        )
        return found

    def _learn(self, frame: bytes, around: _Around, numbers: _Numbers) -> _Pull | None:
        """Remember a pull that came for the first time; None: it is not to be."""
        size = sum(map(len, around))
        if size > AROUND_BYTES_MAX:
            return None
        try:
            command = codec.decode(frame)
            header = PullHeader.parse(command.ext)
        except (PeerError, Refused):
            return None
        if (
            command.code not in _PULLS
            or command.flag & (codec.FLAG_RESPONSE | codec.FLAG_ONEWAY)
            or not command.ext.keys() <= _NAMES
            or header.topic in INTERNAL_TOPICS
            or is_revive_topic(header.topic)
            or (header.queue_offset, header.commit_offset, command.opaque) != numbers
            or not (_are_fields(frame, around) if command.serialize == codec.ROCKETMQ else _are_keys(frame))
        ):
            return None
        self._bytes += KNOWN_BYTES + size
        if self._bytes > KNOWN_BYTES_MAX:
            self._known.clear()
            self._bytes = KNOWN_BYTES + size
        command.ext = {}
        known = self._known[around] = _Pull(command, header)
        return known


def _cut_json(frame: bytes, offset_mark: bytes, commit_mark: bytes, opaque_mark: bytes) -> _Cut:
    places = []
    for mark in (offset_mark, commit_mark):
        at = frame.find(mark, _BEGIN) + len(mark)
        end = frame.find(b'"', at)
        if at < _BEGIN + len(mark) or not 0 < end - at <= _DIGITS_MAX:
            return None
        places.append((at, end))
    at = frame.find(opaque_mark, _BEGIN) + len(opaque_mark)
    end = frame.find(b",", at)
    if at < _BEGIN + len(opaque_mark) or not 0 < end - at <= _OPAQUE_DIGITS_MAX:
        return None
    places.append((at, end))
    texts = [frame[at:end] for at, end in places]
    if not (texts[0].isdigit() and texts[1].isdigit() and texts[2].isdigit()):
        return None
    if texts[2][0] == 48 and len(texts[2]) > 1:
        return None  # no number of JSON
    places.sort()
    (a, b), (c, d), (e, f) = places
    if b > c or d > e:
        return None
    return (frame[_BEGIN:a], frame[b:c], frame[d:e], frame[f:]), (int(texts[0]), int(texts[1]), int(texts[2]))


def _cut_binary(frame: bytes, offset_mark: bytes, commit_mark: bytes) -> _Cut:
    if len(frame) < _EXT_AT:
        return None
    _, opaque, _, remark_bytes, ext_bytes = _HEADER.unpack_from(frame, _BEGIN)
    if remark_bytes or ext_bytes != len(frame) - _EXT_AT or opaque < 0:
        return None
    places = []
    for mark in (offset_mark, commit_mark):
        at = frame.find(mark, _EXT_AT) + len(mark)
        if not _EXT_AT + len(mark) <= at <= len(frame) - 4:
            return None
        size = _INT_AT(frame, at)[0]
        if not 0 < size <= min(_DIGITS_MAX, len(frame) - at - 4):
            return None
        places.append((at, at + 4 + size))
    texts = [frame[at + 4 : end] for at, end in places]
    if not (texts[0].isdigit() and texts[1].isdigit()):
        return None
    places.sort()
    (a, b), (c, d) = places
    if b > c:
        return None
    head = frame[_BEGIN : _BEGIN + 5] + frame[_BEGIN + 9 : _BEGIN + 13]  # code, language, version, flag
    return (head, frame[_EXT_AT:a], frame[b:c], frame[d:]), (int(texts[0]), int(texts[1]), opaque)


def _are_fields(frame: bytes, around: _Around) -> bool:
    """Whether the numbers cut out of a ROCKETMQ header are the values of their fields, each there once."""
    fields = codec.binary_fields(frame, _EXT_AT, len(frame))
    places = {name: at for name, at, _ in fields}
    first = _EXT_AT + len(around[1]) + 4
    ends = {at: end for _, at, end in fields}
    second = ends.get(first, 0) + len(around[2]) + 4
    return len(places) == len(fields) and {places.get(_OFFSET), places.get(_COMMIT)} == {first, second}


def _are_keys(frame: bytes) -> bool:
    """Whether the numbers cut out of a JSON header are the values of their keys. Without a backslash there is
    one way to write a name: where it stands once, as it is cut, and its key is there, it is that key."""
    header, marks = frame[_BEGIN:], (_JSON_OFFSET, _JSON_COMMIT, _JSON_OPAQUE)
    if b"\\" in header or any(header.count(mark) != 1 for mark in marks):
        return False
    if any(header.count(b'"%s"' % name.encode()) != 1 for name in (_OFFSET, _COMMIT, _OPAQUE)):
        return False
    found = json.loads(header)
    return _OPAQUE in found and {_OFFSET, _COMMIT} <= found["extFields"].keys()


class FastReads:
    """The server's BufferHandler: sends first (``FastPath``), then the pulls it left."""

    def __init__(self, sends: FastPath, pulls: PullProcessor, guard: Guard, context: BrokerContext) -> None:
        self._sends = sends
        self._pulls = pulls
        self._guard = guard
        self._known = KnownPulls()
        self._heads = compiled_heads()
        self._frame_bytes_max = most = sends.config.frame_bytes_max
        heads, marked = self._heads, self._known.marked
        self._whole = None if heads is None else WholeAnswers(context, heads, marked, most)
        self.process: Join = sends.join_or(self._process, self._pulls_behind)
        """``_process``; a read that joins an open turn takes no step of it."""

    def _process(
        self, connection: Connection, buffer: bytes | bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        """See FastPath.process. An earlier request of the connection that is still to begin goes first, and
        so does one that was left before: the rest is left with it."""
        if PULLS in connection.attributes:
            # Of a consumer's read nearly always all.
            if self._whole is not None:
                start = self._whole_first(self._whole, connection, buffer, start, end)
            if start < end:
                start = self._pulls_first(connection, buffer, start, end)
            if start == end:
                return start, []
        found = self._sends.process(connection, buffer, start, end)
        return self._pulls_behind(connection, buffer, end, found) if found[1] else found

    def _pulls_behind(
        self, connection: Connection, buffer: bytes | bytearray, end: int, found: tuple[int, list[bytes]]
    ) -> tuple[int, list[bytes]]:
        """Of what sends ``found`` and left: without the pulls that it begins with."""
        at, left = found
        done = 0
        for frame in left:
            if not self._take(connection, frame):
                break
            done += 1
        if done:
            connection.attributes[PULLS] = True
            del left[:done]
            if not left:
                codec.frame_end(buffer, at, end, self._frame_bytes_max)  # raises for one that is broken
        return at, left

    def _pulls_first(self, connection: Connection, buffer: bytes | bytearray, start: int, end: int) -> int:
        """Where the pulls end that a consumer's read begins with, the first of which compiled code left: for
        them alone the way of sends is long."""
        frame_bytes_max, find_at = self._frame_bytes_max, self._known.find_at
        try:
            while start < end:
                found = find_at(buffer, start, end, frame_bytes_max)
                if found is not None:
                    stop, request, header = found
                    if not self._may_begin(connection, header) or not self._answer(
                        connection, request, header
                    ):
                        break
                else:
                    stop = codec.frame_end(buffer, start, end, frame_bytes_max)
                    if not stop or not self._take(connection, bytes(buffer[start:stop])):
                        break
                start = stop
                if self._whole is not None and start < end:
                    start = self._whole_first(self._whole, connection, buffer, start, end)
        except PeerError:
            pass  # the same bytes end the connection in a moment
        return start

    def _whole_first(
        self, whole: WholeAnswers, connection: Connection, buffer: bytes | bytearray, start: int, end: int
    ) -> int:
        """``_pulls_first`` of those that compiled code answers; the same rules as ``_may_begin``."""
        guard = self._guard
        slow, starts, made = guard.slow, guard.starts, guard.made
        while start < end:
            room, made_room = connection.room_for(UNSENT_BYTES_HIGH), MADE_BYTES_MAX - made.size
            if made_room < room:
                room = made_room
            most = starts.known_room() if room >= 0 else 0
            if not most:
                break
            began_ms = slow.now_ms()
            try:
                try:
                    answers = whole.to(buffer, start, end, most, room)
                except OverflowError:
                    break  # a flag may be any number that was once in a table's file
                if answers is None:
                    break
                now_ms = slow.now_ms()
                whole.note(answers, began_ms, now_ms)
            except Exception:
                guard.complaints.log_of_mistakes.exception("pulls from %s failed", connection.remote)
                break  # the ordinary way says so to each
            start, request, _, frames, given = answers
            count, took_ms, size = len(frames), now_ms - began_ms, given[0]
            starts.begun_known(count, took_ms, now_ms)
            slow.on_answered(_NAME_OF[request.code], connection.remote, took_ms / 1000, times=count)
            connection.write_all(frames, size)
            if size >= LONG_ANSWER_BYTES:
                made.add(size)
        return start

    def _take(self, connection: Connection, frame: bytes) -> bool:
        found = self._known.find(frame)
        return found is not None and self._begun(connection, *found)

    def _begun(self, connection: Connection, request: Command, header: PullHeader) -> bool:
        return self._may_begin(connection, header) and self._answer(connection, request, header)

    def _may_begin(self, connection: Connection, header: PullHeader) -> bool:
        """An earlier request of the connection is to begin first; long answers wait until there is room."""
        guard = self._guard
        if connection.handling or guard.made.size > MADE_BYTES_MAX or connection.untaken > UNSENT_BYTES_HIGH:
            return False
        starts = guard.starts
        return starts.take() if header.standing is None else starts.take_known()

    def _answer(self, connection: Connection, request: Command, header: PullHeader) -> bool:
        """False: the consumer is to be asked what it wants, or its expression looked at in a later turn, for
        which the ordinary way waits."""
        slow = self._guard.slow
        began_ms = slow.now_ms()
        try:
            answer: Told | Command | None = self._pulls.tell_again(connection, request, header)
        except NoRoom:
            return False
        except Refused as refused:
            if refused.code == Response.SUBSCRIPTION_NOT_LATEST:
                return False
            answer = request.reply(refused.code, remark=refused.remark)
        except Exception as error:
            self._guard.complaints.log_of_mistakes.exception("a pull from %s failed", connection.remote)
            answer = request.reply(Response.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if answer is not None and not request.is_oneway:
            took_s = (slow.now_ms() - began_ms) / 1000
            slow.on_answered(_NAME_OF[request.code], connection.remote, took_s, answer.code)
            self._send(connection, request, answer)
            if len(answer.body) >= LONG_ANSWER_BYTES:
                self._guard.made.add(len(answer.body))
        return True

    def _send(self, connection: Connection, request: Command, answer: Told | Command) -> None:
        if isinstance(answer, Command):
            connection.send(answer)
            return
        head = self._heads.of(answer, request) if self._heads is not None else None
        if head is None:
            connection.send(answer.reply(request))
        else:
            write, body = connection.write, answer.body
            if len(body) < APART_BYTES:
                write(head + body)
            else:
                write(head)
                write(body)
