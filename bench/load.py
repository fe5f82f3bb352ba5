"""The load program of ``bench/send.py``: one connection, N sends in flight, against any RocketMQ broker.

Sends SEND_MESSAGE_V2 frames with JSON headers made from one template (only opaque, queue id and UNIQ_KEY
change, all of fixed width), counts every answer of the whole run, and refuses to call an answer good unless
its code is 0. Run as a program it prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass

from model.codes import Request

_OPAQUE_BASE = 1_000_000_000
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_UNIQUE = "7F0000010001{:020d}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: answers by outcome, wall seconds, and how long an answer took (microseconds)."""

    sent: int
    ok: int
    failed: int
    seconds: float
    p50_us: float
    p99_us: float
    first_failure: str


def template(topic: str, body_bytes: int) -> tuple[bytearray, int, int, int]:
    """A whole frame and the positions of queue id, UNIQ_KEY number and opaque in it."""
    properties = f"UNIQ_KEY\x01{_UNIQUE.format(0)}\x02WAIT\x01true\x02TAGS\x01t\x02"
    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    header = json.dumps(
        {
            "code": int(Request.SEND_MESSAGE_V2),
            "extFields": ext,
            "flag": 0,
            "language": "JAVA",
            "opaque": _OPAQUE_BASE,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        },
        separators=(",", ":"),
    ).encode()
    frame = bytearray(
        struct.pack(">II", 4 + len(header) + body_bytes, len(header)) + header + b"x" * body_bytes
    )
    queue_at = frame.index(b'"e":"') + 5
    unique_at = frame.index(_UNIQUE[:12].encode()) + 12
    opaque_at = frame.index(b'"opaque":') + 9
    return frame, queue_at, unique_at, opaque_at


def run(address: str, topic: str, queues: int, body_bytes: int, in_flight: int, seconds: float) -> Outcome:
    """Keep ``in_flight`` sends open for ``seconds``, then wait for the last answers."""
    host, _, port = address.rpartition(":")
    frame, queue_at, unique_at, opaque_at = template(topic, body_bytes)
    started: dict[int, float] = {}
    took_us: list[float] = []
    ok = failed = sent = 0
    first_failure = ""
    with socket.create_connection((host, int(port)), 5) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.settimeout(10)
        begin = time.perf_counter()
        end = begin + seconds
        pending = b""
        room = in_flight
        while True:
            now = time.perf_counter()
            if now < end and room:
                burst = bytearray()
                for _ in range(room):
                    frame[queue_at] = 48 + sent % queues
                    frame[unique_at : unique_at + 20] = b"%020d" % sent
                    frame[opaque_at : opaque_at + 10] = b"%010d" % (_OPAQUE_BASE + sent)
                    started[_OPAQUE_BASE + sent] = now
                    burst += frame
                    sent += 1
                room = 0
                link.sendall(burst)
            if not started:
                break
            data = link.recv(1 << 18)
            if not data:
                raise ConnectionError(f"{address} closed with {len(started)} sends unanswered")
            now = time.perf_counter()
            pending += data
            at = 0
            while len(pending) - at >= 8:
                total, header_bytes = struct.unpack_from(">II", pending, at)
                if len(pending) - at < 4 + total:
                    break
                header = pending[at + 8 : at + 8 + (header_bytes & 0xFFFFFF)]
                found = _OPAQUE.search(header)
                if found is None:
                    raise ValueError(f"answer without opaque: {header!r}")
                took_us.append((now - started.pop(int(found[1]))) * 1e6)
                if header.startswith(b'{"code":0,'):
                    ok += 1
                else:
                    failed += 1
                    first_failure = first_failure or header.decode(errors="replace")[:300]
                room += 1
                at += 4 + total
            pending = pending[at:]
        wall = time.perf_counter() - begin
    took_us.sort()
    count = len(took_us)
    return Outcome(
        sent, ok, failed, wall, took_us[count // 2], took_us[min(count - 1, count * 99 // 100)], first_failure
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    outcome = run(
        arguments.address,
        arguments.topic,
        arguments.queues,
        arguments.body_bytes,
        arguments.in_flight,
        arguments.seconds,
    )
    print(json.dumps(asdict(outcome)))
    return 0 if outcome.failed == 0 else 2


if __name__ == "__main__":
    sys.exit(main())
