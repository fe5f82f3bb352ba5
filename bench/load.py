"""The load program of ``bench/send.py``: sends over one connection or many, against any RocketMQ broker.

Frames are made from one template, of which only opaque, queue id and UNIQ_KEY change, all of fixed width. All
answers are counted, and none is called good unless its code is 0. Run as a program it prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from model.codes import Request
from remoting import codec
from remoting.codec import Command
from remoting.headers import SendHeader

DIALECTS = {"json": codec.JSON, "binary": codec.ROCKETMQ}
_OPAQUE_BASE = 1_000_000_000
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_UNIQUE = "7F0000010001{:020d}"
_BINARY_OPAQUE_AT = 8 + 5  # behind code, language and version


@dataclass(frozen=True, slots=True)
class Work:
    """What is sent: ``in_flight`` sends on each of ``connections``, of ``batch`` messages each."""

    body_bytes: int = 1024
    in_flight: int = 64
    connections: int = 1
    batch: int = 1
    dialect: str = "json"
    burst: bool = True
    """All sends that have room leave in one write; else each in one of its own, as from many threads."""

    def __str__(self) -> str:
        what = f"{self.batch} x {self.body_bytes} B" if self.batch > 1 else f"{self.body_bytes} B"
        how = "" if self.burst or self.in_flight == 1 else ", a write each"
        return f"{self.dialect}, {what}, {self.connections} x {self.in_flight}{how}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: sends and answers by outcome, wall seconds, and how long an answer took (microseconds)."""

    sent: int
    ok: int
    failed: int
    seconds: float
    p50_us: float
    p99_us: float
    first_failure: str


class Template:
    """A whole frame, and where to write what changes in it."""

    def __init__(self, topic: str, work: Work) -> None:
        properties = f"UNIQ_KEY\x01{_UNIQUE.format(0)}\x02WAIT\x01true\x02TAGS\x01t\x02"
        header = SendHeader(
            "bench", topic, 0, int(time.time() * 1000), "TBW102", 4, properties=properties,
            batch=work.batch > 1, broker_name="broker-a",
        )  # fmt: skip
        body = b"x" * work.body_bytes
        if work.batch > 1:
            raw = properties.encode()
            size = 22 + len(body) + len(raw)
            body = struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(raw)) + raw
        code = Request.SEND_BATCH_MESSAGE if work.batch > 1 else Request.SEND_MESSAGE_V2
        command = Command(int(code), header.to_ext(), body * work.batch, _OPAQUE_BASE)
        command.serialize = DIALECTS[work.dialect]
        self._frame = frame = bytearray(codec.encode(command))
        self._binary = work.dialect == "binary"
        queue = b"\0\1e\0\0\0\1" if self._binary else b'"e":"'
        self._queue_at = frame.index(queue) + len(queue)
        self._opaque_at = _BINARY_OPAQUE_AT if self._binary else frame.index(b'"opaque":') + 9
        self._unique_at = [found.end() for found in re.finditer(_UNIQUE[:12].encode(), frame)]

    def fill(self, number: int, queue_id: int) -> bytearray:
        """The frame of send ``number``; the same object at each call."""
        frame, opaque = self._frame, _OPAQUE_BASE + number
        frame[self._queue_at] = 48 + queue_id
        if self._binary:
            struct.pack_into(">i", frame, self._opaque_at, opaque)
        else:
            frame[self._opaque_at : self._opaque_at + 10] = b"%010d" % opaque
        for place, at in enumerate(self._unique_at):
            frame[at : at + 20] = b"%020d" % (number * len(self._unique_at) + place)
        return frame


class Link:
    """One connection: what it has in flight, and the begin of an answer."""

    def __init__(self, address: str, in_flight: int, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.socket.settimeout(10)
        self.room = in_flight
        self.begun = b""

    def answers(self) -> list[tuple[int, bytes]]:
        """(number of the send, header; empty when it is an OK) of each whole answer of one read."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed a connection with sends unanswered")
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            data += self.socket.recv(1 << 18)  # no selector tells of what is decrypted already
        data = self.begun + data
        found = []
        at = 0
        while len(data) - at >= 8:
            total, mark = struct.unpack_from(">II", data, at)
            if len(data) - at < 4 + total:
                break
            header = data[at + 8 : at + 8 + (mark & 0xFFFFFF)]
            if mark >> 24 == codec.ROCKETMQ:
                code, opaque = struct.unpack_from(">hxxxi", header)
                good = code == 0
            else:
                opaque_text = _OPAQUE.search(header)
                if opaque_text is None:
                    raise ValueError(f"answer without opaque: {header!r}")
                opaque, good = int(opaque_text[1]), header.startswith(b'{"code":0,')
            found.append((opaque - _OPAQUE_BASE, b"" if good else header))
            at += 4 + total
        self.begun = data[at:]
        self.room += len(found)
        return found


class ManyTopics(Template):
    """Sends to ``topics`` topics in turn, named ``prefix`` and a number of five digits."""

    def __init__(self, prefix: str, topics: int, work: Work) -> None:
        super().__init__(f"{prefix}00000", work)
        self._topics = topics
        self._number_at = self._frame.index(f"{prefix}00000".encode()) + len(prefix)

    def fill(self, number: int, queue_id: int) -> bytearray:
        frame = super().fill(number, queue_id)
        frame[self._number_at : self._number_at + 5] = b"%05d" % (number // 4 % self._topics)
        return frame


def greet(links: list[Link], template: Template) -> None:
    """One send on each: who was answered is connected. Raises OSError."""
    for link in links:
        link.socket.sendall(template.fill(0, 0))
    for link in links:
        while not link.answers():
            pass
        link.room -= 1


def run(
    address: str,
    topic: str,
    queues: int,
    work: Work,
    seconds: float,
    tls: ssl.SSLContext | None = None,
    template: Template | None = None,
    mark: Callable[[], object] | None = None,
) -> Outcome:
    """Keep the sends of ``work`` open for ``seconds``, then wait for the last answers. ``mark``: called when
    every connection has had one answer, which does not count, and again before they are closed."""
    template = template or Template(topic, work)
    started: dict[int, float] = {}
    took_us: list[float] = []
    failures: list[bytes] = []
    sent = 0
    ready = selectors.DefaultSelector()
    links = [Link(address, work.in_flight, tls) for _ in range(work.connections)]
    try:
        for link in links:
            ready.register(link.socket, selectors.EVENT_READ, link)
        if mark is not None:
            greet(links, template)
            mark()
        begin = now = time.perf_counter()
        end = begin + seconds
        woken = links
        while now < end or started:
            for link in woken if now < end else ():
                burst = bytearray()
                for _ in range(link.room):
                    frame = template.fill(sent, sent % queues)
                    started[sent] = now
                    sent += 1
                    if work.burst:
                        burst += frame
                    else:
                        link.socket.sendall(frame)
                link.room = 0
                if burst:
                    link.socket.sendall(burst)
            events = ready.select(10)
            if not events:
                raise TimeoutError(f"{address} left {len(started)} sends unanswered for 10 s")
            woken = [key.data for key, _ in events]
            for link in woken:
                found = link.answers()
                now = time.perf_counter()
                for number, failure in found:
                    took_us.append((now - started.pop(number)) * 1e6)
                    if failure:
                        failures.append(failure)
        wall = time.perf_counter() - begin
        if mark is not None:
            mark()
    finally:
        ready.close()
        for link in links:
            link.socket.close()
    took_us.sort()
    count = len(took_us)
    first = failures[0].decode(errors="replace")[:300] if failures else ""
    p50_us, p99_us = took_us[count // 2], took_us[min(count - 1, count * 99 // 100)]
    return Outcome(sent, count - len(failures), len(failures), wall, p50_us, p99_us, first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="json")
    parser.add_argument("--a-write-each", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    work = Work(
        given.body_bytes,
        given.in_flight,
        given.connections,
        given.batch,
        given.dialect,
        not given.a_write_each,
    )
    outcome = run(given.address, given.topic, given.queues, work, given.seconds)
    print(json.dumps(asdict(outcome)))
    return 0 if outcome.failed == 0 else 2


if __name__ == "__main__":
    sys.exit(main())
