"""One hostile client, well-formed or not: what docs/security.md says that no client can do, done for a while.

    python bench/attackers.py NAME HOST:PORT,HOST:PORT,... SECONDS

A process of its own, and a polite one (nice): it stands for another machine. It goes on whatever it is
answered, and connects again when it is thrown out. Prints `began` at its first connection, and at the end
what it did, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from model.codes import Request  # noqa: E402
from remoting.codec import Command, decode, encode  # noqa: E402
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, SendHeader  # noqa: E402
from remoting.pop_headers import PopHeader  # noqa: E402

BIG: Final = "BenchmarkTest"  # 1024 queues, at every broker from its first start
VICTIM: Final = "Hostile"
KEY: Final = "UNIQ_KEY\x010123456789ABCDEF0123456789ABCDEF\x02"
CRC: Final = "__CRC32#\x010000000000\x02"
ANSWER_S: Final = 20.0
AGAIN_S: Final = 0.05
BEGAN: Final = "began"

Targets = list[tuple[str, int]]
Attack = Callable[["Wire"], Awaitable[None]]


class Wire:
    """Raw connections to the brokers under attack, and what was seen on them."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.seen: Counter[str] = Counter()
        self.begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def to(self, at: int = 0) -> AsyncIterator[Talk]:
        host, port = self.targets[at % len(self.targets)]
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 16)
        self.seen["connections"] += 1
        self.begun.set()
        try:
            yield Talk(reader, writer, self.seen)
        finally:
            writer.transport.abort()


class Talk:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Counter[str]
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._seen = seen
        self._opaque = 0

    def put(self, data: bytes) -> None:
        self._seen["bytes"] += len(data)
        self.writer.write(data)

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        self._opaque += 1
        self._seen["requests"] += 1
        self.put(encode(Command(int(code), ext or {}, body, self._opaque)))

    async def answer(self) -> Command:
        """The next one. Raises OSError, IncompleteReadError, TimeoutError."""
        async with asyncio.timeout(ANSWER_S):
            start = await self.reader.readexactly(4)
            found = decode(start + await self.reader.readexactly(int.from_bytes(start, "big")))
        self._seen[f"answered {found.code}"] += 1
        return found

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        self.ask(code, ext, body)
        await self.writer.drain()
        return await self.answer()


def send_ext(topic: str, *, batch: bool = False, properties: str = KEY) -> dict[str, str]:
    return SendHeader("hostile", topic, 0, 1, properties=properties, batch=batch).to_ext()


def packed(count: int, body: bytes = b"", properties: bytes = b"") -> bytes:
    """The body of a batch of equal messages."""
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
    return (head + body + struct.pack(">h", len(properties)) + properties) * count


# -- one attack each: a round of it; it is begun again and again


async def repeated_topics(wire: Wire) -> None:
    """consume statistics with 5,000 repeated names (70 KB), to every broker at once"""
    ext = {"consumerGroup": "g", "topicList": ";".join([BIG] * 5000)}

    async def one(at: int) -> None:
        async with wire.to(at) as talk:
            await talk.call(Request.GET_CONSUME_STATS, ext)

    await asyncio.gather(*(one(at) for at in range(len(wire.targets))))


async def statistics(wire: Wire) -> None:
    """330 KB of ordinary consume statistics in a row"""
    async with wire.to() as talk:
        for _ in range(2500):
            talk.ask(Request.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": BIG})
        for _ in range(20):
            await talk.answer()


async def held_pulls(wire: Wire) -> None:
    """40 pulls held for days with subscriptions of 8 MiB, then with the longest that are taken"""
    long = [_pull("x" * (8 << 20), wire)] * 2 + [_pull(" || ".join(f"t{n}" for n in range(4000)), wire)] * 38
    async with contextlib.AsyncExitStack() as stack:
        for _, ext in enumerate(long):
            talk = await stack.enter_async_context(wire.to())
            with contextlib.suppress(OSError):
                talk.ask(Request.PULL_MESSAGE, ext)
                await talk.writer.drain()
        await asyncio.sleep(2)


def _pull(subscription: str, wire: Wire) -> dict[str, str]:
    return PullHeader(
        "hostile",
        VICTIM,
        0,
        1 << 40,
        32,
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        suspend_timeout_ms=600_000_000,
        subscription=subscription,
    ).to_ext()


async def huge_heartbeats(wire: Wire) -> None:
    """heartbeats of 20,000 groups (3.9 MB), and of 1,000, which are taken"""
    async with wire.to() as talk:
        for count in (20_000, 1000):
            groups = [_group(f"{'hostile' * 5}{n}", "*" * (90 if count > 1000 else 1)) for n in range(count)]
            body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": groups}
            await talk.call(Request.HEART_BEAT, {}, json.dumps(body).encode())


def _group(name: str, text: str) -> dict[str, object]:
    return {
        "groupName": name,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": VICTIM, "subString": text, "expressionType": "TAG"}],
    }


async def new_topics(wire: Wire) -> None:
    """1,000 new topics in one pipelined burst (250 KB)"""
    first = wire.seen["new topics"]
    wire.seen["new topics"] += 1000
    async with wire.to() as talk:
        for n in range(first, first + 1000):
            talk.ask(Request.SEND_MESSAGE_V2, send_ext(f"New{n}"), b"x")
        for _ in range(1000):
            await talk.answer()


async def many_fields(wire: Wire) -> None:
    """a header of 900,000 fields (12.5 MB), and an odd one of 15 MB"""
    fields = ",".join(f'"{n}":"{n}"' for n in range(900_000))
    header = f'{{"code":10,"extFields":{{{fields}}},"opaque":1}}'.encode()
    odd = b"[" + b"1," * 7_500_000 + b"1]"
    for head in (header, odd):
        async with wire.to() as talk:
            talk.put(struct.pack(">ii", 4 + len(head), len(head)) + head)
            with contextlib.suppress(OSError):
                await talk.writer.drain()
            await talk.reader.read()


async def broken_frames(wire: Wire) -> None:
    """broken frames without end, a connection each"""

    async def one(n: int) -> None:
        async with wire.to(n) as talk:
            talk.put(struct.pack(">ii", n, 5) + b"\xff" * 40)
            await talk.reader.read()

    await asyncio.gather(*(one(n) for n in range(60)))


async def planted_records(wire: Wire) -> None:
    """messages that imitate what only brokers write, singly and in batches"""
    inner = (KEY + CRC).encode()
    async with wire.to() as talk:
        for _ in range(200):
            talk.ask(Request.SEND_BATCH_MESSAGE, send_ext(VICTIM, batch=True), packed(2, b"x", inner))
            text = KEY + CRC + "REAL_TOPIC\x01X\x02REAL_QID\x017\x02INNER_BASE\x015\x02"
            talk.ask(Request.SEND_MESSAGE_V2, send_ext(VICTIM, properties=text), b"x")
        for _ in range(400):
            await talk.answer()


async def system_offsets(wire: Wire) -> None:
    """commits for the broker's own groups, sends to its own topics"""
    async with wire.to() as talk:
        for n in range(200):
            ext = {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": "0"}
            talk.ask(Request.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": str(10**6 + n)})
            for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%LMQ%x"):
                talk.ask(Request.SEND_MESSAGE_V2, send_ext(topic), b"x")
        for _ in range(800):
            await talk.answer()


async def empty_batches(wire: Wire) -> None:
    """batches of 182,360 empty messages (4 MB)"""
    async with wire.to() as talk:
        await talk.call(Request.SEND_BATCH_MESSAGE, send_ext(VICTIM, batch=True), packed(182_360))


async def longest_batches(wire: Wire) -> None:
    """batches of 4,096 small messages, the most that are taken, one after the other on four connections"""

    async def one(at: int) -> None:
        async with wire.to() as talk:
            for _ in range(3):
                ext = send_ext(VICTIM, batch=True)
                await talk.call(Request.SEND_BATCH_MESSAGE, ext, packed(4096, b"x" * 20, b"TAGS\x01a\x02"))

    await asyncio.gather(*(one(at) for at in range(4)))


async def many_locks(wire: Wire) -> None:
    """locks of 250,000 queues (13 MB), and of 4,096, the most that are taken"""
    async with wire.to() as talk:
        for count in (250_000, 4096, 4096, 4096):
            wire.seen["groups"] += 1
            queues = [{"brokerName": "b", "topic": "T", "queueId": n} for n in range(count)]
            body = {"clientId": "c", "consumerGroup": f"g{wire.seen['groups']}", "mqSet": queues}
            await talk.call(Request.LOCK_BATCH_MQ, {}, json.dumps(body).encode())


async def table_downloads(wire: Wire) -> None:
    """30 connections x 50 downloads of the topic table, unread, closed after two seconds"""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(30):
            talk = await stack.enter_async_context(wire.to())
            for _ in range(50):
                talk.ask(Request.GET_ALL_TOPIC_CONFIG)
        await asyncio.sleep(2)


async def unread_floods(wire: Wire) -> None:
    """40 connections that ask small questions without end and read nothing"""
    async with contextlib.AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(wire.to()) for _ in range(40)]
        for _ in range(20):
            for n, talk in enumerate(talks):
                if talk.writer.transport.get_write_buffer_size() < 1 << 18:
                    code = (Request.QUERY_CONSUMER_OFFSET, Request.GET_ALL_TOPIC_CONFIG)[n % 2]
                    ext = {"consumerGroup": "g", "topic": BIG, "queueId": "0"}
                    for _ in range(300):
                        talk.ask(code, ext)
            await asyncio.sleep(0.1)


async def idle_connections(wire: Wire) -> None:
    """10,000 idle connections"""
    async with contextlib.AsyncExitStack() as stack:
        for at in range(40):
            some = (stack.enter_async_context(wire.to()) for _ in range(250))
            await asyncio.gather(*some)
            wire.seen["open at once"] = max(wire.seen["open at once"], 250 * (at + 1))
        await asyncio.sleep(3)


async def begun_frames(wire: Wire) -> None:
    """40 connections with 14 MB each of a frame of 15 MB"""
    part = struct.pack(">ii", 15 << 20, 10) + bytes(1 << 20)
    async with contextlib.AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(wire.to()) for _ in range(40)]
        for step in range(14):
            for talk in talks:
                if not talk.writer.transport.is_closing():
                    talk.put(part if step == 0 else part[8:])
                    with contextlib.suppress(OSError):
                        await talk.writer.drain()
        await asyncio.sleep(2)


def zeros_packed(size_mib: int) -> bytes:
    """So many MiB of zeros as one zlib stream (RFC 1950), of one block that is repeated: made in no time."""
    packer = zlib.compressobj(1, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    adler = (size_mib << 20) % 65521 << 16 | 1
    return b"\x78\x01" + block * size_mib + packer.flush() + struct.pack(">I", adler)


async def compression_bombs(wire: Wire) -> None:
    """messages of a megabyte that unpack to 256 MiB"""
    body = zeros_packed(256)
    async with wire.to() as talk:
        ext = SendHeader("hostile", VICTIM, 0, 1, properties=KEY, sys_flag=1).to_ext()
        for _ in range(5):
            await talk.call(Request.SEND_MESSAGE_V2, ext, body)


def _framed(header: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header), len(header)) + header


ODD_HEADERS: Final = tuple(
    _framed(b'{"code":35,"opaque":1,"extFields":{"a":' + text + b"}}")
    for text in (
        b"[" + (b'[{"":' * 100 + b"1" + b"}]" * 100 + b",") * 350 + b"1]",
        b"[" + b'{"":1},' * 30_000 + b"1]",
        b"[" + (b"9" * 4000 + b",") * 60 + b"1]",
        b'"",' + b",".join(b'"%x" :""' % n for n in range(180_000)),
    )
)


async def odd_headers(wire: Wire) -> None:
    """50 headers at once: objects in objects, blanks that hide 180,000 fields, numbers of 4,000 digits"""

    async def one(at: int) -> None:
        async with wire.to(at // len(ODD_HEADERS)) as talk:
            talk.put(ODD_HEADERS[at % len(ODD_HEADERS)])
            await talk.writer.drain()
            with contextlib.suppress(TimeoutError):
                await talk.answer()

    ended = await asyncio.gather(*(one(at) for at in range(50)), return_exceptions=True)
    wire.seen["headers that ended their connection"] += sum(isinstance(each, Exception) for each in ended)


async def last_bytes(wire: Wire) -> None:
    """30 sends of 4 MB, each but for its last byte, then all last bytes at once"""
    frame = encode(Command(int(Request.SEND_MESSAGE_V2), send_ext(VICTIM), bytes(4_100_000), 1))
    async with contextlib.AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(wire.to()) for _ in range(30)]
        for talk in talks:
            talk.put(frame[:-1])
            await talk.writer.drain()
        await asyncio.sleep(0.5)
        for talk in talks:
            talk.put(frame[-1:])
        for talk in talks:
            await talk.answer()


async def pops_over_together(wire: Wire) -> None:
    """8,000 pops of an empty queue that are over in the same millisecond"""
    async with contextlib.AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(wire.to()) for _ in range(8)]
        now_ms = int(time.time() * 1000)
        for number, talk in enumerate(talks):
            ext = PopHeader("hostile", BIG, number, 32, 60_000, 3000, now_ms, 1).to_ext()
            for _ in range(1000):
                talk.ask(Request.POP_MESSAGE, ext)
            await talk.writer.drain()
        for talk in talks:
            for _ in range(1000):
                await talk.answer()


ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        repeated_topics,
        statistics,
        held_pulls,
        huge_heartbeats,
        new_topics,
        many_fields,
        broken_frames,
        planted_records,
        system_offsets,
        empty_batches,
        longest_batches,
        many_locks,
        table_downloads,
        unread_floods,
        idle_connections,
        begun_frames,
        compression_bombs,
        odd_headers,
        last_bytes,
        pops_over_together,
    )
}


async def attack(name: str, targets: Targets, seconds: float) -> Counter[str]:
    """``seconds`` of it, from its first connection on (or without one after ``ANSWER_S``), which it tells.

    What it sends takes time to make.
    """
    wire = Wire(targets)
    rounds = asyncio.create_task(_rounds(ATTACKS[name], wire))
    began = asyncio.create_task(wire.begun.wait())
    await asyncio.wait((rounds, began), timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
    print(BEGAN, flush=True)
    await asyncio.wait((rounds,), timeout=seconds)
    began.cancel()
    rounds.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await rounds
    return wire.seen


async def _rounds(round_of: Attack, wire: Wire) -> None:
    while True:
        try:
            await round_of(wire)
            wire.seen["rounds"] += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            wire.seen[f"ended: {type(error).__name__}"] += 1
            await asyncio.sleep(AGAIN_S)


def main() -> int:
    name, where, seconds = sys.argv[1:]
    os.nice(10)
    targets = [(host, int(port)) for host, _, port in (one.partition(":") for one in where.split(","))]
    print(json.dumps(dict(sorted(asyncio.run(attack(name, targets, float(seconds))).items()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
