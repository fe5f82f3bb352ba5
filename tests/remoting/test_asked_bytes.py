"""The promise of remoting about whole requests: what waits for its answer has a bound in bytes, by connection
and in all."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack

from model.errors import Refused
from remoting.codec import Command, encode
from remoting.guard import Guard, Limits, Standing, Tally
from remoting.service import RemotingServer
from remoting.transport.answering import answer_to
from remoting.transport.connection import Connection
from remoting.transport.inbox import ASKED_BYTES_MAX, LATER_BYTES, READ_BYTES_USUAL, REQUEST_BYTES
from remoting.transport.starts import A_TURN
from tests.remoting.strangers import Dialled, dialled, fill
from tests.remoting.support import client_of, read_command, serving
from tests.remoting.wires import Transport, Wire, endpoint_of, feed
from tests.waiting import until

MIB = 1 << 20


class Waiting:
    """Answers code 105 when it is let go, all else at once."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = 0

    async def __call__(self, connection: Connection, request: Command) -> Command:
        if request.code == 105:
            self.begun += 1
            await self.go.wait()
        return request.reply()


def frames(count: int, size: int) -> bytes:
    return b"".join(encode(Command(105, {}, bytes(size), opaque=n)) for n in range(count))


def counted(server: RemotingServer) -> Tally:
    return server.guard.tallies[Standing.CLIENT].begun


async def rest() -> None:
    """More than enough turns of the loop for what comes over loopback."""
    await asyncio.sleep(0.1)


async def test_a_connection_is_read_no_further_while_its_requests_take_too_much() -> None:
    waiting = Waiting()
    async with serving(waiting) as (server, address), dialled(address) as (reader, writer):
        writer.write(frames(20, MIB))
        await until(lambda: waiting.begun * MIB >= ASKED_BYTES_MAX)
        await rest()
        assert waiting.begun * MIB == ASKED_BYTES_MAX, "one more than may wait, less its head"
        assert counted(server).total < ASKED_BYTES_MAX + MIB
        waiting.go.set()
        assert [(await read_command(reader)).opaque for _ in range(20)] == list(range(20))
        await until(lambda: counted(server).total == 0)
        server.guard.check_invariants()


async def test_who_has_little_is_read_while_all_have_half_and_others_are_not() -> None:
    waiting = Waiting()
    async with (
        serving(waiting, limits=Limits(begun_bytes_max=4 * MIB)) as (server, address),
        dialled(address) as (reader, writer),
        client_of() as client,
    ):
        writer.write(frames(7, MIB // 2))
        await until(lambda: waiting.begun >= 3)
        await rest()
        assert waiting.begun in (3, 4), "with the begin of the fourth, or its head, that is more than half"
        assert (await client.call(address, Command(1, {}, bytes(1000)))).code == 0
        waiting.go.set()
        assert [(await read_command(reader)).opaque for _ in range(7)] == list(range(7))
        assert server.guard.refused["maxBegunFrameBytes"] == 0


async def test_requests_that_wait_have_a_cap_in_all_and_who_has_most_gives_way() -> None:
    waiting = Waiting()
    async with (
        serving(waiting, limits=Limits(begun_bytes_max=4 * MIB)) as (server, address),
        AsyncExitStack() as stack,
        client_of() as client,
    ):
        streams = await fill(stack, server, address, 8)
        streams[0][1].write(frames(1, MIB // 2))
        await until(lambda: waiting.begun == 1)
        for _, writer in streams[1:]:
            writer.write(frames(1, MIB))
        await until(lambda: server.guard.refused["maxBegunFrameBytes"] >= 4)
        assert counted(server).total <= 4 * MIB
        assert (await client.call(address, Command(1))).code == 0
        server.guard.check_invariants()
        waiting.go.set()
        assert (await read_command(streams[0][0])).code == 0, "one that has less goes on"


async def test_what_a_connection_left_under_way_counts_until_it_is_done() -> None:
    waiting = Waiting()
    async with serving(waiting) as (server, address):
        async with dialled(address) as (_, writer):
            writer.write(frames(2, MIB))
            await until(lambda: waiting.begun == 2)
        await until(lambda: not server.connections)
        assert (counted(server).total, counted(server).by) == (0, {})
        assert server.guard.status()["begunBytes"] == counted(server).behind > 2 * MIB
        server.guard.check_invariants()
        waiting.go.set()
        await until(lambda: counted(server).behind == 0)
        server.guard.check_invariants()


async def test_frames_that_wait_for_their_turn_count_and_go_with_their_connection() -> None:
    waiting = Waiting()
    endpoint = endpoint_of(waiting)
    connection, guard = Connection(endpoint), endpoint.guard
    connection.connection_made(Transport())
    data = frames(3 * A_TURN, 10)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    begun = len(frames(A_TURN, 10)) + A_TURN * REQUEST_BYTES
    rest = len(data) - len(frames(A_TURN, 10)) + 2 * A_TURN * LATER_BYTES
    assert guard.status()["begunBytes"] == begun + rest
    connection.abort()
    assert guard.status()["begunBytes"] == begun, "what had begun goes on"
    guard.check_invariants()
    waiting.go.set()
    await until(lambda: not connection.handling)
    assert guard.status()["begunBytes"] == 0


async def test_frames_that_begin_in_later_turns_count_what_requests_take() -> None:
    """Nothing more is read of the connection, and nothing of it ends."""
    waiting, count = Waiting(), 3 * A_TURN
    endpoint = endpoint_of(waiting)
    connection = Connection(endpoint)
    connection.connection_made(Transport())
    data = frames(count, 10)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    await until(lambda: waiting.begun == count)
    assert endpoint.guard.status()["begunBytes"] == len(data) + count * REQUEST_BYTES
    waiting.go.set()
    await until(lambda: not connection.handling)
    assert endpoint.guard.status()["begunBytes"] == 0


async def test_the_smallest_requests_count_what_they_take_and_few_of_a_connection_are_under_way() -> None:
    waiting, count = Waiting(), 3000
    endpoint = endpoint_of(waiting)
    connection, wire = Connection(endpoint), Wire(40_000)
    connection.connection_made(wire)
    feeding = asyncio.create_task(feed(connection, wire, frames(count, 0)))
    for _ in range(2 * count // A_TURN):
        await asyncio.sleep(0)
    most = ASKED_BYTES_MAX // REQUEST_BYTES
    assert most * 0.9 < waiting.begun <= most, "with their bytes less than as many"
    assert endpoint.guard.status()["begunBytes"] <= ASKED_BYTES_MAX + 2 * READ_BYTES_USUAL
    waiting.go.set()
    await until(lambda: waiting.begun == count and not connection.handling)
    await feeding
    assert endpoint.guard.status()["begunBytes"] == 0
    endpoint.guard.check_invariants()


async def test_the_smallest_requests_of_many_connections_have_the_cap_of_all() -> None:
    waiting, most = Waiting(), 256 * REQUEST_BYTES
    endpoint = endpoint_of(waiting)
    endpoint.guard = guard = Guard("test", Limits(begun_bytes_max=most), lambda: 0.0)
    for n in range(20):
        connection, wire = Connection(endpoint), Wire(40_000 + n)
        connection.connection_made(wire)
        data = frames(A_TURN, 0)
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        for _ in range(5):
            await asyncio.sleep(0)
        assert guard.tallies[Standing.CLIENT].begun.total <= most
    assert guard.refused["maxBegunFrameBytes"] > 10
    waiting.go.set()
    await until(lambda: guard.status()["begunBytes"] == 0)
    guard.check_invariants()


def test_what_was_left_behind_ends_nobody() -> None:
    guard = Guard("test", Limits(begun_bytes_max=100), lambda: 0.0)
    one, other = Dialled(1), Dialled(2)
    assert guard.admit(one)
    assert guard.admit(other)
    guard.on_frames(one, 90)
    guard.on_end(one, 90)
    guard.on_frames(other, 80)
    assert not other.ended
    assert guard.is_crowded(other)
    guard.on_frames(other, 10)
    guard.on_done(one, 90)
    assert not guard.is_crowded(other)
    guard.check_invariants()


async def test_who_owes_an_answer_to_this_side_is_read_on_and_what_waits_for_it_goes_on() -> None:
    """Replies of a client to itself: each is answered when the client has taken what was pushed."""

    paused = asyncio.Event()

    async def pushed(connection: Connection, request: Command) -> Command:
        await paused.wait()
        return request.reply((await connection.call(Command(326), 5.0)).code)

    async with serving(pushed) as (server, address), dialled(address) as (reader, writer):
        writer.write(b"".join(encode(Command(105, {}, bytes(4 * MIB), opaque=n)) for n in range(4)))
        await until(lambda: [one.handling for one in server.connections] == [2], "8 MiB and two heads")
        paused.set()
        answered = 0
        while answered < 4:
            command = await read_command(reader)
            if command.code == 326:
                writer.write(encode(command.reply(0)))
            else:
                assert command.code == 0, command.remark
                answered += 1
        await until(lambda: counted(server).total == 0)


class Weak(Command):
    """One that can be looked after."""


async def test_a_request_that_was_refused_is_gone_at_once_and_not_when_garbage_is_looked_for() -> None:
    async def refusing(connection: Connection, request: Command) -> None:
        refused = Refused("no", 14)
        raise refused

    endpoint = endpoint_of(refusing)
    connection = Connection(endpoint)
    connection.connection_made(Transport())
    gc.disable()
    try:
        request = Weak(105)
        gone = weakref.ref(request)
        answer = await answer_to(endpoint, connection, request)
        del request
        assert answer is not None
        assert (answer.code, gone()) == (14, None)
    finally:
        gc.enable()


async def test_frames_that_wait_for_their_turn_wait_on_while_answers_are_held() -> None:
    """What they ask for is not made before room is made by what was asked earlier."""
    begun = 0

    async def handle(connection: Connection, request: Command) -> None:
        nonlocal begun
        begun += 1

    endpoint = endpoint_of(handle)
    connection = Connection(endpoint)
    connection.connection_made(Transport())
    data = frames(3 * A_TURN, 10)
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    connection.hold(True)
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == A_TURN
    connection.hold(False)
    await until(lambda: begun == 3 * A_TURN)
    connection.hold(True)
    connection.abort()
    connection.hold(False)
