"""The promise to a neighbour: its frames are taken within a few turns, whoever fills all of them.

Turns are counted, and no time: the loop of these tests reads in the order of its connections, floods first,
or in any.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import cast

import pytest

from remoting.codec import Command, encode, frame_end
from remoting.guard import Guard, Limits, Standing
from remoting.transport.connection import Connection
from remoting.transport.endpoint import Endpoint
from remoting.transport.inbox import FIRST_BYTES, MUCH_BYTES, PARTS_A_TURN, READ_BYTES_USUAL, Line
from remoting.transport.starts import READ_BYTES_A_TURN, READ_BYTES_LEAST, TURN_MS, WOKEN_BYTES_A_TURN
from tests.remoting.wires import Wire

BATCH = encode(Command(320, {}, bytes(100_000)))
SMALL = encode(Command(310, {}, bytes(200)))


class Turns:
    """What lies in the sockets, and in which turn each frame was taken. A read takes ``took_ms``, a frame
    ``frame_ms``. ``polls_first``: as asyncio's own loop does, which is not uvloop, it asks what there is to
    read before it runs what is to be done."""

    def __init__(self, took_ms: float, *, frame_ms: float = 0.0, polls_first: bool = False) -> None:
        self.now_ms = 0.0
        self.turn = 0
        self.read: Counter[int] = Counter()  # bytes of clients, by turn
        self.taken: dict[str, list[int]] = defaultdict(list)
        self.guard = Guard("test", Limits(), lambda: self.now_ms)
        self._took_ms = took_ms
        self._frame_ms = frame_ms
        self._polls_first = polls_first
        self.order: random.Random | None = None
        self.sockets: dict[Connection, bytearray] = {}
        self._floods: set[Connection] = set()

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        while stop := frame_end(buffer, start, end):
            self.taken[connection.remote].append(self.turn)
            self.now_ms += self._frame_ms
            start = stop
        return start, []

    def connect(self, *, floods: bool = False) -> Connection:
        connection = Connection(Endpoint[Connection]("test", None, self.guard, fast=self))
        connection.connection_made(Wire(len(self.sockets) + 1))
        self.sockets[connection] = bytearray()
        if floods:
            self._floods.add(connection)
        return connection

    def send(self, connection: Connection, data: bytes) -> None:
        self.sockets[connection] += data

    async def go_round(self) -> None:
        """What is to be done, then one read of each that is read."""
        polled = {one for one in self.sockets if cast(Wire, one._transport).reading}
        await asyncio.sleep(0)
        self.turn += 1
        found = [one for one in self.sockets if one in polled or not self._polls_first]
        if self.order is not None:
            self.order.shuffle(found)
        for connection in found:
            socket = self.sockets[connection]
            if connection in self._floods and len(socket) < READ_BYTES_USUAL:
                socket += BATCH * 4
            if socket and cast(Wire, connection._transport).reading:
                room = connection.get_buffer(-1)
                size = min(len(room), len(socket))
                room[:size] = socket[:size]
                del socket[:size]
                self.read[self.turn] += size
                connection.buffer_updated(size)
                self.now_ms += self._took_ms * (size > FIRST_BYTES)

    async def sent_and_taken(self, neighbours: list[Connection], data: bytes) -> int:
        """In how many turns one frame of each is taken."""
        began = self.turn
        due = {one.remote: len(self.taken[one.remote]) + 1 for one in neighbours}
        for one in neighbours:
            self.send(one, data)
        while any(len(self.taken[remote]) < count for remote, count in due.items()):
            assert self.turn - began < 200, "it waits for the end of the flood"
            await self.go_round()
        return self.turn - began

    async def ask_again(self, loads: dict[Connection, bytes], turns: int) -> dict[Connection, int]:
        """Each sends its next frame when its last one was taken. The longest wait of each, in turns."""
        longest, asked = dict.fromkeys(loads, 0), dict.fromkeys(loads, self.turn)
        count = {one: len(self.taken[one.remote]) for one in loads}
        for one, frame in loads.items():
            self.send(one, frame)
        for _ in range(turns):
            await self.go_round()
            for one, frame in loads.items():
                longest[one] = max(longest[one], self.turn - asked[one])
                if len(self.taken[one.remote]) > count[one]:
                    count[one], asked[one] = len(self.taken[one.remote]), self.turn
                    self.send(one, frame)
        return longest


async def flooded(
    floods: int, neighbours: int, took_ms: float, *, polls_first: bool = False
) -> tuple[Turns, list[Connection]]:
    """Both have sent before, and the share of a turn is as small as it gets when reads take long."""
    turns = Turns(took_ms, polls_first=polls_first)
    for _ in range(floods):
        turns.connect(floods=True)
    beside = [turns.connect() for _ in range(neighbours)]
    await turns.sent_and_taken(beside, SMALL)
    for _ in range(20):
        await turns.go_round()
    return turns, beside


@pytest.mark.parametrize("polls_first", [False, True])
@pytest.mark.parametrize("took_ms", [0.0, TURN_MS * 2])
@pytest.mark.parametrize(("floods", "neighbours"), [(1, 1), (1, 10), (4, 1), (4, 10)])
async def test_a_small_frame_is_taken_in_the_third_turn_whoever_the_loop_reads_before(
    floods: int, neighbours: int, took_ms: float, *, polls_first: bool
) -> None:
    turns, beside = await flooded(floods, neighbours, took_ms, polls_first=polls_first)
    waited = [await turns.sent_and_taken(beside, SMALL) for _ in range(20)]
    assert max(waited) <= 3
    assert all(turns.taken[f"127.0.0.1:{port}"] for port in range(1, floods + 1)), (
        "nor are the floods left out"
    )


async def test_a_turn_reads_no_more_than_before_though_each_that_waited_is_read_a_little() -> None:
    turns, _ = await flooded(3 * PARTS_A_TURN, 1, 0.0)
    assert WOKEN_BYTES_A_TURN == PARTS_A_TURN * FIRST_BYTES
    assert READ_BYTES_A_TURN + WOKEN_BYTES_A_TURN == 2 * READ_BYTES_USUAL
    settled = [turns.read[turn] for turn in range(turns.turn - 15, turns.turn)]
    late = 4 * PARTS_A_TURN  # a byte of each
    assert max(settled) <= READ_BYTES_A_TURN + WOKEN_BYTES_A_TURN + READ_BYTES_USUAL + late


async def test_who_was_woken_and_sent_nothing_has_its_little_in_that_turn_alone() -> None:
    """Thousands may be woken one after the other, and send all at once."""
    turns, beside = await flooded(1, 3 * PARTS_A_TURN, 0.0)
    for one in beside:
        turns.guard.lines.reads.wait(one)
    for _ in range(8):
        await turns.go_round()
    reads = turns.guard.tallies[Standing.CLIENT].reads
    reads.left = 0
    assert sum(len(one.get_buffer(-1)) > 1 for one in beside) <= PARTS_A_TURN


@pytest.mark.parametrize("took_ms", [0.0, TURN_MS * 2])
@pytest.mark.parametrize("floods", [1, 4, 3 * PARTS_A_TURN])
async def test_a_frame_that_fills_a_read_waits_as_long_as_there_are_floods(
    floods: int, took_ms: float
) -> None:
    turns, beside = await flooded(floods, 2, took_ms)
    waited = [await turns.sent_and_taken(beside, BATCH * 2) for _ in range(5)]
    assert max(waited) <= 10 + 2 * floods


async def test_those_that_spent_the_share_go_on_though_others_always_come_too_late() -> None:
    """A whole share of small sends a turn, each of one connection of hundreds."""
    turns, beside = await flooded(2, 4 * READ_BYTES_LEAST // len(SMALL), TURN_MS * 2)
    assert turns.guard.tallies[Standing.CLIENT].reads.low == READ_BYTES_LEAST // 2, "the least share"
    flood = turns.taken["127.0.0.1:1"]
    before, began = len(flood), turns.turn
    for _ in range(200):
        for one in beside:
            if not turns.sockets[one]:
                turns.send(one, SMALL)
        await turns.go_round()
    a_read = READ_BYTES_USUAL // MUCH_BYTES + 1
    assert len(flood) - before >= 200 // (2 * a_read)
    assert max(b - a for a, b in pairwise([began, *flood[before:]])) <= 3 * a_read


@pytest.mark.parametrize("polls_first", [False, True])
@pytest.mark.parametrize("order", ["any", "first come"])
@pytest.mark.parametrize(("count", "size"), [(600, 1000), (300, 10_000)])
async def test_of_many_small_senders_none_waits_for_longer_than_all_others_take(
    count: int, size: int, order: str, *, polls_first: bool
) -> None:
    """More than is read in a turn, for as long as one likes: who crosses the border of a share has no worse
    place by that."""
    turns = Turns(0.0, frame_ms=0.05, polls_first=polls_first)
    senders = [turns.connect() for _ in range(count)]
    turns.order = random.Random(7) if order == "any" else None
    longest = await turns.ask_again(dict.fromkeys(senders, encode(Command(310, {}, bytes(size)))), 150)
    reads = -(-size // FIRST_BYTES)
    assert max(longest.values()) <= reads * (count // PARTS_A_TURN + 5)


@pytest.mark.parametrize(("count", "size"), [(20, 100_000), (10, 2 << 20)])
async def test_batches_and_long_frames_go_on_beside_small_sends_that_never_end(count: int, size: int) -> None:
    turns = Turns(0.0, frame_ms=0.05)
    small = [turns.connect() for _ in range(300)]
    much = [turns.connect() for _ in range(count)]
    turns.order = random.Random(7)
    loads = {
        **dict.fromkeys(small, encode(Command(310, {}, bytes(1000)))),
        **dict.fromkeys(much, encode(Command(320, {}, bytes(size)))),
    }
    longest = await turns.ask_again(loads, 200)
    assert max(longest[one] for one in small) <= 300 // PARTS_A_TURN + 10
    assert max(longest[one] for one in much) <= 100


async def test_what_a_line_did_not_take_is_not_saved_up() -> None:
    """One cheap part a turn takes less than there is. Then many come at once, and those with little go on."""
    went: list[str] = []

    class Waits:
        def __init__(self, name: str) -> None:
            self.name = name

        def read_on(self) -> None:
            went.append(self.name)

        write_on = read_on

    line = Line(PARTS_A_TURN, lambda connection: connection.read_on())
    little, cheap = [Waits("little") for _ in range(2 * PARTS_A_TURN)], Waits("cheap")
    for _ in range(1000):
        line.wait(cheap)
        for one in little:
            line.wait_its_turn(one, 100)
        await asyncio.sleep(0)
    for _ in range(2 * PARTS_A_TURN):
        line.wait(Waits("long"), READ_BYTES_USUAL)
    went.clear()
    turns = 10
    for _ in range(turns):
        for one in little:
            line.wait_its_turn(one, 100)
        await asyncio.sleep(0)
    assert went.count("long") <= 1 + turns * MUCH_BYTES / READ_BYTES_USUAL
    assert len(went) == turns * PARTS_A_TURN
