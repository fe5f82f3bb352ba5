"""What does a hostile client do with its connections? Each move gives up in time."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from ha.wire import classic_codec
from ha.wire import codec as ha_codec
from model.codes import Request
from model.errors import PeerError
from model.ids import BrokerId, PhysicalOffset
from remoting.codec import FLAG_RESPONSE, Command, encode
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from tests.fuzz.hostile import requests
from tests.fuzz.hostile.draws import TOPIC
from tests.fuzz.hostile.wire import Wire

ANSWER_S: Final = 5.0
LONG_ANSWERS: Final = (
    *(
        Request.GET_ALL_TOPIC_CONFIG,
        Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Request.GET_ALL_CONSUMER_OFFSET,
    ),
    *(Request.GET_BROKER_CONFIG, Request.GET_ALL_PRODUCER_INFO, Request.GET_BROKER_RUNTIME_INFO),
)


@dataclass(frozen=True, slots=True)
class Places:
    """The ports of a group, as addresses."""

    brokers: list[str]  # the master first
    fast: list[str]
    namesrvs: list[str]
    controllers: list[str]
    ha: list[str]
    raft: list[str]

    def asked(self, chance: random.Random) -> str:
        """Mostly the master."""
        if chance.random() < 0.6:
            return self.brokers[0]
        return chance.choice(chance.choice((self.brokers, self.fast, self.namesrvs, self.controllers)))


@dataclass(slots=True)
class Tally:
    """What was done, and what came of it."""

    moves: Counter[str] = field(default_factory=Counter)
    requests: Counter[int] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    connections: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    body_bytes: int = 0

    def asked(self, command: Command) -> bytes:
        self.requests[command.code] += 1
        self.body_bytes += len(command.body)
        return encode(command)

    def heard(self, answers: list[Command]) -> None:
        self.answers.update(answer.code for answer in answers)


Move = Callable[[random.Random, Places, Tally], Awaitable[None]]


async def ask(chance: random.Random, places: Places, tally: Tally) -> None:
    """Some requests of any code, their answers read."""
    async with Wire(places.asked(chance)) as wire:
        for _ in range(chance.randrange(1, 8)):
            command = requests.draw(chance)
            await wire.send(tally.asked(command))
            if not command.is_oneway:
                tally.heard(await wire.answers(1, ANSWER_S if command.code not in _HELD else 0.3))


_HELD: Final = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)


async def flood(chance: random.Random, places: Places, tally: Tally) -> None:
    """Hundreds of small ones in one write."""
    code = chance.choice((*requests.OFTEN, None))
    count = chance.choice((50, 100, 300))
    frames = _frames(chance, tally, code, count)
    async with Wire(places.asked(chance)) as wire:
        await wire.send(frames)
        tally.heard(await wire.answers(count, ANSWER_S))


def _frames(chance: random.Random, tally: Tally, code: int | None, count: int) -> bytes:
    """Up to ``count`` frames, and not many bytes more than half a megabyte."""
    out = bytearray()
    for _ in range(count):
        out += tally.asked(requests.draw(chance, code))
        if len(out) > 1 << 19:
            break
    return bytes(out)


async def unread(chance: random.Random, places: Places, tally: Tally) -> None:
    """Questions with long answers, none of them read."""
    code = chance.choice(LONG_ANSWERS)
    frames = _frames(chance, tally, code, chance.choice((10, 100)))
    async with Wire(places.asked(chance)) as wire:
        wire.leave(frames)
        await asyncio.sleep(chance.choice((0.5, 3.0)))


async def half_frame(chance: random.Random, places: Places, tally: Tally) -> None:
    """A frame that announces megabytes and brings a part of them."""
    size = chance.choice((100, 1 << 16, 1 << 20, 4 << 20, (16 << 20) - 4, 1 << 30, 2**31 - 1))
    header = chance.choice((10, 200, 1 << 20, 0xFFFFFF))
    sent = chance.choice((0, 10, 1000, min(size, 1 << 19)))
    async with Wire(places.asked(chance)) as wire:
        await wire.send(struct.pack(">iI", size, chance.choice((0, 1, 2)) << 24 | header) + bytes(sent))
        closed = await wire.until_closed(chance.choice((0.2, 2.0, 8.0)))
        tally.ended["by the server" if closed else "by us"] += 1


async def slow_loris(chance: random.Random, places: Places, tally: Tally) -> None:
    """A good frame, a byte at a time."""
    frame = tally.asked(requests.draw(chance, Request.GET_MAX_OFFSET))
    async with Wire(places.asked(chance)) as wire:
        for at in range(min(len(frame), 40)):
            await wire.send(frame[at : at + 1])
            await asyncio.sleep(0.1)


async def crowd(chance: random.Random, places: Places, tally: Tally) -> None:
    """Many connections at once, silent or with one request each."""
    address, count = places.asked(chance), chance.choice((20, 60, 150))
    spoken = chance.random() < 0.5

    async def one(frame: bytes) -> None:
        async with Wire(address) as wire:
            await wire.send(frame)
            await asyncio.sleep(2.0)

    tally.connections += count
    frames = [tally.asked(requests.draw(chance)) if spoken else b"" for _ in range(count)]
    await asyncio.gather(*(one(frame) for frame in frames), return_exceptions=True)


async def held_pulls(chance: random.Random, places: Places, tally: Tally) -> None:
    """Pulls at the end of a queue, held by the broker; then the connection goes."""
    frames = []
    for number in range(chance.choice((1, 50, 300))):
        header = PullHeader(
            f"GID_H{number % 40}",
            chance.choice((TOPIC, "H1", "TBW102")),
            number % 8,
            chance.choice((0, 10**6, 2**62)),
            32,
            sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
            suspend_timeout_ms=chance.choice((1000, 15_000, 2**62)),
            subscription="||".join(f"t{n}" for n in range(chance.choice((1, 100, 2000)))),
        )
        frames.append(tally.asked(Command(int(Request.PULL_MESSAGE), header.to_ext(), opaque=number)))
    async with Wire(places.brokers[0]) as wire:
        await wire.send(b"".join(frames))
        tally.heard(await wire.answers(len(frames), chance.choice((0.5, 4.0))))


async def garbage(chance: random.Random, places: Places, tally: Tally) -> None:
    """A good frame with a few bytes changed, or one dialect under the other's mark."""
    frame = bytearray(tally.asked(requests.draw(chance))[: 1 << 16])
    if chance.random() < 0.4:
        frame[4] ^= 1
    for _ in range(chance.randrange(6)):
        frame[chance.randrange(len(frame))] = chance.randrange(256)
    async with Wire(places.asked(chance)) as wire:
        await wire.send(bytes(frame))
        closed = await wire.until_closed(0.5)
        tally.ended["by the server" if closed else "by us"] += 1


async def answers_unasked(chance: random.Random, places: Places, tally: Tally) -> None:
    """Answers to questions nobody put."""
    command = Command(0, {"a": "b"}, bytes(chance.randrange(2000)), chance.randrange(2**31), FLAG_RESPONSE)
    async with Wire(places.asked(chance)) as wire:
        await wire.send(tally.asked(command) * chance.choice((1, 200)))
        await asyncio.sleep(0.2)


async def abandon(chance: random.Random, places: Places, tally: Tally) -> None:
    """Requests, and no one there for the answers."""
    frames = _frames(chance, tally, None, chance.choice((1, 20, 60)))
    async with Wire(places.asked(chance)) as wire:
        wire.leave(frames)
        await asyncio.sleep(chance.choice((0.0, 0.05)))


async def peers_ports(chance: random.Random, places: Places, tally: Tally) -> None:
    """Strangers on the HA and Raft ports: good first words, bad ones, and silence."""
    words = chance.choice(
        (
            ha_codec.encode_slave_handshake(
                ha_codec.SlaveHandshake(BrokerId(chance.randrange(1, 5)), False, False)
            ),
            ha_codec.encode_ack(PhysicalOffset(chance.choice((0, 2**62)))),
            classic_codec.encode_report(PhysicalOffset(chance.choice((0, 2**62)))),
            b"\xffKMQHA01" + chance.randbytes(80),
            chance.randbytes(chance.randrange(1, 300)),
            encode(requests.draw(chance))[:4096],
            b"",
        )
    )
    async with Wire(chance.choice((*places.ha, *places.raft))) as wire:
        await wire.send(words)
        closed = await wire.until_closed(1.0)
        tally.ended["by the server" if closed else "by us"] += 1


MOVES: Final[tuple[tuple[int, Move], ...]] = (
    (60, ask),
    (6, flood),
    (4, unread),
    (8, half_frame),
    (4, slow_loris),
    (2, crowd),
    (5, held_pulls),
    (8, garbage),
    (2, answers_unasked),
    (6, abandon),
    (6, peers_ports),
)
_WEIGHTS: Final = [weight for weight, _ in MOVES]


async def one(chance: random.Random, places: Places, tally: Tally) -> None:
    """A move, drawn. That the servers end it, or take no more, is no failure."""
    (move,) = chance.choices([move for _, move in MOVES], _WEIGHTS)
    tally.moves[getattr(move, "__name__", str(move))] += 1
    tally.connections += 1
    try:
        await move(chance, places, tally)
    except TimeoutError:
        tally.ended["takes no more"] += 1
    except PeerError:
        tally.ended["broken answer"] += 1
    except OSError as error:
        tally.ended[type(error).__name__] += 1
