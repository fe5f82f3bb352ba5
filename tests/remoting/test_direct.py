"""The promise of runtime/direct: what is written at once leaves in order, and nothing twice or in part."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, cast

import pytest
import uvloop

from remoting.codec import Command, encode
from remoting.guard import Guard, Limits
from remoting.transport.calls import AT_ONCE_BYTES, PIECE_BYTES, Outbox, alone, weight
from remoting.transport.connection import APART_BYTES, Connection
from remoting.transport.endpoint import Endpoint
from remoting.transport.together import write_all_now
from runtime import direct, native
from runtime.direct import NO_DESCRIPTOR, PARTS_MAX, descriptor_of, handed
from runtime.env import Buffer

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def answer(opaque: int, size: int) -> bytes:
    return encode(Command(0, {}, bytes([opaque % 256]) * size, opaque=opaque, flag=1))


async def linked() -> tuple[Connection, socket.socket]:
    """A connection, and the other end of it, of which nobody reads."""
    ours, theirs = socket.socketpair()
    endpoint = Endpoint[Connection]("test", None, Guard("test", Limits(), lambda: 0.0))
    loop = asyncio.get_running_loop()
    connection = Connection(endpoint)
    await loop.create_connection(lambda: connection, sock=ours)
    theirs.setblocking(False)
    return connection, theirs


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_is_written_at_once_arrives_whole_and_in_order(new_loop: Any) -> None:
    """Also when the peer reads nothing for a while, and when some of it waits for the end of the turn."""

    async def main() -> None:
        connection, theirs = await linked()
        assert connection._outbox.descriptor >= 0
        expected = bytearray()
        for number in range(200):
            frame = answer(number, AT_ONCE_BYTES * 2 if number % 41 == 40 else 3000)
            expected += frame
            (connection.write if number % 17 == 16 else connection.write_now)(frame)
            if number % 29 == 28:
                await asyncio.sleep(0)
            assert connection.room_for(1000) == 1000 - connection.untaken
        assert connection.untaken > 0, "the socket took less than all, and the rest counts as unread"
        got = bytearray()
        loop = asyncio.get_running_loop()
        while len(got) < len(expected):
            got += await asyncio.wait_for(loop.sock_recv(theirs, 1 << 20), 10)
        assert got == expected
        connection.abort()
        theirs.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def test_a_short_answer_has_left_when_it_is_written() -> None:
    connection, theirs = await linked()
    connection.write_now(answer(1, 10))
    assert theirs.recv(1 << 16) == answer(1, 10), "no turn of the loop is needed"
    connection.abort()
    theirs.close()


async def test_a_long_answer_and_its_header_leave_in_one_write_without_being_joined() -> None:
    connection, theirs = await linked()
    command = Command(0, {}, bytes(3 * APART_BYTES), opaque=7, flag=1)
    connection.send(command)
    connection.send(command)
    await asyncio.sleep(0)
    expected = encode(command) * 2
    assert theirs.recv(len(expected) + 1) == expected
    connection.abort()
    theirs.close()


def test_of_parts_the_system_does_not_take_the_rest_is_left() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    parts: list[Buffer] = [bytes([number % 256]) * 1000 for number in range(3 * PARTS_MAX)]
    whole, got = b"".join(parts), bytearray()
    left = memoryview(handed(ours.fileno(), parts, len(whole)))
    assert 0 < len(left) < len(whole), "a socket of this kind takes less"
    while len(got) < len(whole) - len(left):
        got += theirs.recv(1 << 20)
    assert bytes(got) + bytes(left) == whole
    assert handed(ours.fileno(), [b"a", b"b"], 2) == b""
    theirs.close()
    assert handed(ours.fileno(), [b"a", b"b"], 2) == b"ab"
    ours.close()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_a_peer_leaves_unread_counts_as_what_stays_in_memory_for_it(new_loop: Any) -> None:
    """A rest of 40 KB kept all 3 MB of its answer, and counted 40 KB."""

    async def main() -> None:
        connection, theirs = await linked()
        loop, got, held_at = asyncio.get_running_loop(), bytearray(), dict[int, int]()
        body = bytes(range(256)) * (3 << 12)
        connection.send(Command(0, {}, body, opaque=7, flag=1))
        for _ in range(5):
            await asyncio.sleep(0)
        whole = encode(Command(0, {}, body, opaque=7, flag=1))
        while len(got) < len(whole):
            outbox = connection._outbox
            assert outbox.size <= sum(map(weight, outbox.frames)) <= connection.held, (
                "what is held is counted"
            )
            assert connection.held <= 2 * connection.untaken + PIECE_BYTES, (
                "and is not much more than is left"
            )
            assert bool(connection.held) == bool(connection.untaken), "it ends with what is left"
            held_at[connection.untaken] = connection.held
            got += await asyncio.wait_for(loop.sock_recv(theirs, 100_000), 10)
            await asyncio.sleep(0)
        assert got == whole
        assert max(held_at.values()) > len(body) - PIECE_BYTES
        assert held_at[min(held_at)] <= PIECE_BYTES
        connection.abort()
        theirs.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_a_rest_is_copied_when_its_whole_is_much_more_and_counts_with_it_otherwise() -> None:
    whole = memoryview(bytes(4 * PIECE_BYTES))
    assert alone(whole[:-1]).__class__ is memoryview
    assert weight(whole[5:]) == len(whole)
    assert alone(whole[2 * PIECE_BYTES :]).__class__ is bytes
    long = memoryview(bytes(9 * PIECE_BYTES))
    assert weight(alone(long[6 * PIECE_BYTES :])) == len(long), "not in one go"
    assert weight(b"abc") == 3
    outbox = Outbox()
    outbox.handed(b"x" * 1000, 0)
    assert [outbox.held(untaken) for untaken in (1000, 1, 0)] == [1000, 1000, 0], (
        "all of it until it has gone"
    )
    outbox.handed(b"x" * 10, 1)
    assert [outbox.held(untaken) for untaken in (1010, 11, 5)] == [1010, 1010, 1005]
    outbox.handed(b"x" * 10, 0)
    assert outbox.held(10) == 10, "what has gone is forgotten"


async def test_a_broken_connection_ends_at_its_next_answer() -> None:
    connection, theirs = await linked()
    theirs.close()
    connection.write_now(answer(1, 10))
    connection.write_now(answer(2, 10))
    for _ in range(5):
        await asyncio.sleep(0)
    assert connection.closed
    connection.write_now(answer(3, 10))


def ways() -> list[Any]:
    """Python's, and the compiled one where it is built."""
    module = native.module()
    return [direct._all_taken, *([] if module is None else [module.all_taken])]


@pytest.mark.parametrize("all_taken", ways())
def test_of_many_parts_those_that_the_system_takes_whole_are_told(all_taken: Any) -> None:
    """And how much of the first that it does not; nothing behind that is handed over."""
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, theirs in pairs:
        ours.setblocking(False)
        theirs.setblocking(False)
    descriptors = [ours.fileno() for ours, _ in pairs]
    parts = [b"%d" % number * 10 for number in range(150)]
    assert all_taken([descriptors[number % 3] for number in range(150)], parts) == (150, 0)
    for at, (_, theirs) in enumerate(pairs):
        assert theirs.recv(1 << 16) == b"".join(parts[at::3])
    long = bytes(16 << 20)
    count, sent = all_taken([descriptors[0], descriptors[1], descriptors[2]], [b"a", long, b"c"])
    assert count == 1
    assert 0 < sent < len(long)
    assert pairs[0][1].recv(10) == b"a"
    with pytest.raises(BlockingIOError):
        pairs[2][1].recv(10)
    pairs[2][1].close()
    assert all_taken([descriptors[0], descriptors[2]], [b"b", b"c"]) == (1, 0), "a broken one takes nothing"
    assert all_taken([], []) == (0, 0)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("way", ways())
async def test_answers_written_together_arrive_whole_and_in_order(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of connections that are there more than once, that read nothing for a while, that have ended."""
    monkeypatch.setattr("remoting.transport.together.all_taken", way)
    linked_ = [await linked() for _ in range(3)]
    ended, gone = await linked()
    ended.abort()
    gone.close()
    expected = [bytearray() for _ in linked_]
    for turn in range(40):
        if turn % 7 == 6:  # it waits for the end of the turn, and goes first
            linked_[0][0].write(answer(turn, 2000))
            expected[0] += answer(turn, 2000)
        answered: list[tuple[Connection, bytes]] = [(ended, answer(turn, 10))]
        for number in range(9):
            frame = answer(9 * turn + number, AT_ONCE_BYTES * 2 if number == turn % 23 else 3000)
            answered.append((linked_[number % 3][0], frame))
            expected[number % 3] += frame
        write_all_now(answered)
        if turn % 5 == 4:
            await asyncio.sleep(0)
    assert any(connection.untaken for connection, _ in linked_), "a socket took less than all"
    loop = asyncio.get_running_loop()
    for (connection, theirs), whole in zip(linked_, expected, strict=True):
        got = bytearray()
        while len(got) < len(whole):
            got += await asyncio.wait_for(loop.sock_recv(theirs, 1 << 20), 10)
        assert got == whole
        connection.abort()
        theirs.close()


def test_only_plain_sockets_have_a_descriptor() -> None:
    class Transport:
        def __init__(self, **info: object) -> None:
            self._info = info

        def get_extra_info(self, name: str, default: object = None) -> object:
            return self._info.get(name, default)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert descriptor_of(cast(Any, Transport(socket=ours))) == ours.fileno()
        assert descriptor_of(cast(Any, Transport(socket=ours, sslcontext=os))) == NO_DESCRIPTOR
        assert descriptor_of(cast(Any, Transport())) == NO_DESCRIPTOR
