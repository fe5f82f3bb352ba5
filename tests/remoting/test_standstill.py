"""The promise to a peer: its time limits run only while its bytes are asked for.

A process that was stopped (SIGSTOP, a paused machine, no CPU) reads nothing. The loop's clock is turned here.
"""

from __future__ import annotations

import asyncio

import pytest

from remoting.codec import Command, encode, frame_end
from remoting.guard import Guard, Limits
from remoting.transport.connection import Connection
from remoting.transport.endpoint import CLOSING_S, Endpoint
from remoting.transport.inbox import PARTIAL_FRAME_S
from remoting.transport.sweeps import SWEEP_S, SWEPT_AT_ONCE, Sweeps
from runtime.turns import Slice, Unhurried
from tests.remoting.wires import Wire

FRAME = encode(Command(310, {}, bytes(200)))
IDLE_S = 60.0


class World:
    """A server with so many connections, and the time."""

    def __init__(self, count: int) -> None:
        self.now_s = 1000.0
        self.taken = 0
        guard = Guard("test", Limits(idle_s=IDLE_S), lambda: self.now_s * 1000)
        self.sweeps: Sweeps[Connection]
        self.endpoint = Endpoint[Connection]("test", None, guard, fast=self)
        self.clients = [Connection(self.endpoint) for _ in range(count)]

    def process(
        self, _connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        while stop := frame_end(buffer, start, end):
            self.taken += 1
            start = stop
        return start, []

    def open(self, sent: bytes) -> None:
        for port, client in enumerate(self.clients):
            client.connection_made(Wire(port))
            self.read(client, sent)

    def read(self, client: Connection, data: bytes) -> None:
        if data:
            client.get_buffer(-1)[: len(data)] = data
            client.buffer_updated(len(data))

    async def sweep(self, after_s: float = SWEEP_S) -> None:
        self.now_s += after_s
        await self.sweeps.look()

    @property
    def closed(self) -> int:
        return sum(client.closed for client in self.clients)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(2 * SWEPT_AT_ONCE)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.now_s)
    made.sweeps = Sweeps(made.endpoint)
    monkeypatch.setattr(Unhurried, "_pause", Slice._pause)
    return made


async def test_who_was_not_read_is_not_closed_for_half_a_frame_and_is_read_then(world: World) -> None:
    world.open(FRAME[:100])
    await world.sweep(12 + SWEEP_S)
    assert world.closed == 0
    for client in world.clients:
        world.read(client, FRAME[100:])
    assert world.taken == len(world.clients)


async def test_time_before_and_after_a_standstill_counts(world: World) -> None:
    world.open(FRAME[:100])
    for _ in range(5):
        await world.sweep()
    await world.sweep(60)
    for _ in range(int(PARTIAL_FRAME_S) - 6):
        await world.sweep()
        assert world.closed == 0
    await world.sweep(SWEEP_S + 0.1)
    assert world.closed == len(world.clients)


async def test_who_was_idle_before_a_standstill_is_not_idle_for_longer_by_it(world: World) -> None:
    world.open(b"")
    await world.sweep()
    await world.sweep(10 * IDLE_S)
    assert world.closed == 0
    for _ in range(int(IDLE_S) - 2):
        await world.sweep()
    assert world.closed == 0
    for _ in range(3):
        await world.sweep()
    assert world.closed == len(world.clients)


async def test_a_standstill_in_the_middle_of_a_look_counts_to_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open(FRAME[:100])
    await world.sweep()
    breathe, calls = Unhurried.breathe, 0

    async def breathing(slice_: Unhurried) -> None:
        nonlocal calls
        calls += 1
        world.now_s += 15.0 * (calls == 2)
        await breathe(slice_)

    monkeypatch.setattr(Unhurried, "breathe", breathing)
    for _ in range(3):
        await world.sweep()
    assert calls > 2
    assert world.closed == 0


async def test_a_look_that_is_a_little_late_counts(world: World) -> None:
    """A busy loop reads in each of its turns."""
    world.open(FRAME[:100])
    await world.sweep()
    for _ in range(7):
        await world.sweep(SWEEP_S * 1.5)
    assert world.closed == len(world.clients)


async def test_a_look_that_is_long_but_lets_the_loop_go_round_is_no_standstill(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of a look is the count of what is unread, and grows with the connections."""
    stands_still = False

    async def recount(slice_: Slice) -> None:
        for _ in range(12):
            world.now_s += 15.0 if stands_still else 0.1
            await slice_.breathe()

    monkeypatch.setattr(world.endpoint.guard, "recount", recount)
    world.open(FRAME[:100])
    for _ in range(int(PARTIAL_FRAME_S) // 2):
        await world.sweep()
        stands_still = True
    assert world.closed == 0
    stands_still = False
    for _ in range(int(PARTIAL_FRAME_S) // 2):
        await world.sweep()
    assert world.closed == len(world.clients)


async def test_a_standstill_leaves_a_closing_connection_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted: list[float] = []
    monkeypatch.setattr(Wire, "abort", lambda wire: aborted.append(world.now_s))
    world.open(b"")
    for client in world.clients:
        client.close()
    await world.sweep(2 * CLOSING_S)
    for _ in range(int(CLOSING_S) - 1):
        await world.sweep()
    assert not aborted
    await world.sweep()
    assert len(aborted) == len(world.clients)
