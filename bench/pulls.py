"""The load program of ``bench/pull.py``: pulls, against any RocketMQ broker.

Answers are counted by their body's length alone, so that the load program takes less than the broker: all
messages of a run are of one size.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from typing import Final

from chaos.worlds import rocketmq
from model.codes import Request
from remoting import codec
from remoting.codec import Command
from remoting.headers import PULL_SUSPEND, PullHeader

GROUP: Final = "bench_readers"
CLIENT: Final = "127.0.0.1@bench"
_NEXT: Final = re.compile(rb'"nextBeginOffset":"(\d+)"')
_OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
_BINARY_NEXT: Final = b"\0\x0fnextBeginOffset"


def heartbeat(*topics: str) -> bytes:
    """The frame that makes ``GROUP`` known with everything of ``topics``."""
    wanted = [
        {
            "topic": topic,
            "subString": "*",
            "expressionType": "TAG",
            "subVersion": 1,
            "tagsSet": [],
            "codeSet": [],
            "classFilterMode": False,
        }
        for topic in topics
    ]
    group = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": wanted,
    }
    body = {"clientID": CLIENT, "producerDataSet": [], "consumerDataSet": [group]}
    return codec.encode(Command(int(Request.HEART_BEAT), {}, json.dumps(body).encode(), 1))


def open_to(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)), 5)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(20)
    return link


def pull_frame(
    topic: str, queue: int, offset: int, count: int, opaque: int, serialize: int, flags: int, wait_ms: int
) -> bytes:
    header = PullHeader(GROUP, topic, queue, offset, count, flags, 0, wait_ms, "*", 0)
    command = Command(int(Request.PULL_MESSAGE), header.to_ext(), b"", opaque)
    command.serialize = serialize
    return codec.encode(command)


class Reader:
    """One connection that made the group known: whole answers as (opaque, code, header, body bytes)."""

    def __init__(self, address: str, *topics: str, keeps: bool = False) -> None:
        self.socket = open_to(address)
        self._begun = bytearray()
        self.bodies: list[bytes] = []
        """Of the answers that came last, where they are wanted."""
        self.keeps = keeps
        self.socket.sendall(heartbeat(*topics))
        while not self.answers():
            pass

    def answers(self) -> list[tuple[int, int, bytes, int]]:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed a connection with pulls unanswered")
        begun = self._begun
        begun += data
        self.bodies.clear()
        found = []
        at = 0
        while len(begun) - at >= 8:
            total, mark = struct.unpack_from(">II", begun, at)
            if len(begun) - at < 4 + total:
                break
            size = mark & 0xFFFFFF
            header = bytes(begun[at + 8 : at + 8 + size])
            if mark >> 24 == codec.ROCKETMQ:
                code, opaque = struct.unpack_from(">hxxxi", header)
            else:
                number = _OPAQUE.search(header)
                code = int(header[8 : header.index(b",")])
                opaque = int(number[1]) if number else 0
            if code != Request.NOTIFY_CONSUMER_IDS_CHANGED:
                found.append((opaque, code, header, total - 4 - size))
                if self.keeps:
                    self.bodies.append(bytes(begun[at + 8 + size : at + 4 + total]))
            at += 4 + total
        del begun[:at]
        return found


class Cursor:
    """A consumer that reads all queues of a topic again and again, one pull of each under way."""

    def __init__(self, address: str, topic: str, queues: int, count: int, serialize: int) -> None:
        self._reader = Reader(address, topic)
        self.socket = self._reader.socket
        self.messages = self.pulls = 0
        self._how = topic, count, serialize
        self._queues = queues
        self._at = [0] * queues

    def _pull(self, queue: int, offset: int) -> bytes:
        topic, count, serialize = self._how
        return pull_frame(topic, queue, offset, count, queue, serialize, 0, 0)

    def begin(self) -> None:
        self.socket.sendall(b"".join(self._pull(queue, 0) for queue in range(self._queues)))

    def go_on(self) -> None:
        """Take what came and ask for what follows it. Raises RuntimeError."""
        asked = bytearray()
        for queue, code, header, size in self._reader.answers():
            if code not in (0, 19):
                raise RuntimeError(f"a pull was answered with {code}: {header!r}")
            self.pulls += 1
            at = 0
            if code == 0:
                at = _next_of(header)
                self.messages += at - self._at[queue]
                if not size:
                    raise RuntimeError("an answer has messages, and no bytes of them")
            self._at[queue] = at  # at the end: from the first again
            asked += self._pull(queue, at)
        self.socket.sendall(asked)

    def close(self) -> None:
        self.socket.close()


class Follower:
    """A consumer that waits at the end of all queues of a topic."""

    def __init__(self, address: str, topic: str, queues: int, *others: str) -> None:
        """``others``: topics that its group reads elsewhere."""
        self._reader = Reader(address, topic, *others, keeps=True)
        self.socket = self._reader.socket
        self._topic = topic
        begin = [_max_offset(address, topic, queue) for queue in range(queues)]
        self.socket.sendall(b"".join(self._wait(queue, at) for queue, at in enumerate(begin)))
        self._at = begin

    def _wait(self, queue: int, offset: int) -> bytes:
        return pull_frame(self._topic, queue, offset, 32, queue, codec.JSON, PULL_SUSPEND, 15_000)

    def bodies(self) -> bytes:
        """What came, as it came, and the next pulls leave. Raises RuntimeError."""
        asked = bytearray()
        for queue, code, header, _ in self._reader.answers():
            if code not in (0, 19, 20):
                raise RuntimeError(f"a pull was answered with {code}: {header!r}")
            if code == 0:
                self._at[queue] = _next_of(header)
            asked += self._wait(queue, self._at[queue])
        self.socket.sendall(asked)
        return b"".join(self._reader.bodies)


def _max_offset(address: str, topic: str, queue: int) -> int:
    header, _ = rocketmq.call(address, int(Request.GET_MAX_OFFSET), {"topic": topic, "queueId": queue})
    return int(header["extFields"]["offset"])


def _next_of(header: bytes) -> int:
    found = _NEXT.search(header)
    if found is not None:
        return int(found[1])
    at = header.index(_BINARY_NEXT) + len(_BINARY_NEXT)
    (size,) = struct.unpack_from(">i", header, at)
    return int(header[at + 4 : at + 4 + size])
