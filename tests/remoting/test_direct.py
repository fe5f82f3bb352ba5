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
from remoting.transport.calls import AT_ONCE_BYTES
from remoting.transport.connection import APART_BYTES, Connection
from remoting.transport.endpoint import Endpoint
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
    left = memoryview(handed(ours.fileno(), parts))
    assert 0 < len(left) < len(whole), "a socket of this kind takes less"
    while len(got) < len(whole) - len(left):
        got += theirs.recv(1 << 20)
    assert bytes(got) + bytes(left) == whole
    assert handed(ours.fileno(), [b"a", b"b"]) == b""
    theirs.close()
    assert handed(ours.fileno(), [b"a", b"b"]) == b"ab"
    ours.close()


async def test_a_broken_connection_ends_at_its_next_answer() -> None:
    connection, theirs = await linked()
    theirs.close()
    connection.write_now(answer(1, 10))
    connection.write_now(answer(2, 10))
    for _ in range(5):
        await asyncio.sleep(0)
    assert connection.closed
    connection.write_now(answer(3, 10))


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
