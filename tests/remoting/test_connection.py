"""The promise of a connection: whatever the pieces a stream comes in, the frames in it are handled."""

import asyncio
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.codec import Command, decode, encode, frame_end
from remoting.transport import inbox as module
from remoting.transport.connection import Connection
from remoting.transport.starts import A_TURN
from tests.remoting.wires import Transport, endpoint_of


class Fast:
    """Answers nothing, keeps copies of even opaques, hands on the others."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        slow: list[bytes] = []
        while stop := frame_end(buffer, start, end):
            frame = bytes(buffer[start:stop])
            (slow if decode(frame).opaque % 2 else self.seen).append(frame)
            start = stop
        return start, slow


async def feed(connection: Connection, data: bytes, steps: list[int]) -> int:
    """Hand ``data`` over as a loop would, in pieces of ``steps``; returns the largest buffer seen."""
    at = turn = largest = 0
    while at < len(data):
        view = connection.get_buffer(-1)
        largest = max(largest, len(connection._inbox.buffer))
        step = min(steps[turn % len(steps)], len(view), len(data) - at)
        view[:step] = data[at : at + step]
        del view
        connection.buffer_updated(step)
        at += step
        turn += 1
        if turn % 7 == 0:
            await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    return largest


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=25),
    steps=st.lists(st.integers(1, 700), min_size=1, max_size=10),
    with_fast=st.booleans(),
)
def test_frames_of_any_size_survive_any_cut_of_the_stream(
    sizes: list[int], steps: list[int], with_fast: bool
) -> None:
    handled: list[Command] = []
    fast = Fast() if with_fast else None

    async def handler(_: Connection, command: Command) -> Command:
        handled.append(command)
        return command.reply(body=command.body)

    async def work() -> None:
        endpoint = endpoint_of(handler, fast=fast)
        connection, transport = Connection(endpoint), Transport()
        connection.connection_made(transport)
        sent = [Command(1, opaque=n, body=bytes([n]) * size) for n, size in enumerate(sizes)]
        largest = await feed(connection, b"".join(map(encode, sent)), steps)
        assert largest <= 2000 + 64
        slow = [command for command in sent if not fast or command.opaque % 2]
        assert handled == slow
        assert b"".join(transport.written) == b"".join(encode(c.reply(body=c.body)) for c in slow)
        if fast is not None:
            assert fast.seen == [encode(command) for command in sent if command.opaque % 2 == 0]
        assert not transport.ended
        assert connection._inbox.end == connection._inbox.start == 0
        connection.connection_lost(None)

    # Small buffers, so that they grow, move and shrink all the time.
    with mock.patch.multiple(module, READ_BYTES_MIN=64, READ_BYTES_USUAL=256):
        asyncio.run(work())


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), steps=st.lists(st.integers(1, 50), min_size=1, max_size=5))
async def test_arbitrary_bytes_end_the_connection_or_wait_for_more_and_never_raise(
    data: bytes, steps: list[int]
) -> None:
    async def handler(_: Connection, command: Command) -> Command:
        return command.reply()

    endpoint = endpoint_of(handler)
    connection, transport = Connection(endpoint), Transport()
    connection.connection_made(transport)
    await feed(connection, data, steps)
    assert connection.closed == bool(transport.ended)
    connection.connection_lost(None)


async def test_a_length_alone_reserves_no_memory() -> None:
    endpoint = endpoint_of(None, 16 * 1024 * 1024)
    connection, transport = Connection(endpoint), Transport()
    connection.connection_made(transport)
    begun = (16 * 1024 * 1024 - 4).to_bytes(4, "big") + (100).to_bytes(4, "big")
    await feed(connection, begun + bytes(50), [58])
    assert connection._inbox.owned <= 64 * 1024
    assert not transport.ended


def test_a_mistake_in_the_fast_path_costs_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong:
        def process(
            self, connection: Connection, buffer: bytearray, start: int, end: int
        ) -> tuple[int, list[bytes]]:
            raise LookupError("our own")

    async def work() -> None:
        endpoint = endpoint_of(None, fast=Wrong())
        connection, transport = Connection(endpoint), Transport()
        connection.connection_made(transport)
        await feed(connection, encode(Command(1)), [1000])
        assert transport.ended == "aborted"

    asyncio.run(work())
    assert "our own" in caplog.text


async def test_what_the_fast_path_leaves_begins_before_a_broken_frame_ends_the_connection() -> None:
    """As it would without one."""
    sent = [Command(1, opaque=n) for n in range(3)]
    data = b"".join(map(encode, sent)) + b"\x00\x00\x00\x05\x00\x00\x00\xff"

    class Leaving:
        def process(
            self, connection: Connection, buffer: bytearray, start: int, end: int
        ) -> tuple[int, list[bytes]]:
            return len(data) - 8, list(map(encode, sent))

    for fast in (None, Leaving()):
        handled: list[int] = []

        async def handler(_: Connection, command: Command, handled: list[int] = handled) -> None:
            handled.append(command.opaque)

        connection, transport = Connection(endpoint_of(handler, fast=fast)), Transport()
        connection.connection_made(transport)
        await feed(connection, data, [1000])
        assert transport.ended == "aborted"
        assert handled == [0, 1, 2]


async def test_frames_that_are_handled_again_are_not_overtaken_by_what_is_read_next() -> None:
    """More of them than begin in a turn wait, and meanwhile the connection is not read."""
    begun = 0

    async def handler(_: Connection, command: Command) -> None:
        nonlocal begun
        begun += 1

    connection, transport = Connection(endpoint_of(handler)), Transport()
    connection.connection_made(transport)
    connection.handle_again([encode(Command(1, opaque=n)) for n in range(A_TURN + 1)])
    assert connection._gate.paused
    for _ in range(9):
        await asyncio.sleep(0)
    assert begun == A_TURN + 1
    assert not connection._gate.paused
    connection.connection_lost(None)


async def test_what_was_read_before_that_pause_does_not_overtake_them_either() -> None:
    """A long frame that is whole is taken in a later turn. The fast path would take it at once."""
    begun: list[int] = []

    async def handler(_: Connection, command: Command) -> None:
        begun.append(command.opaque)

    class Taking:
        def process(
            self, connection: Connection, buffer: bytearray, start: int, end: int
        ) -> tuple[int, list[bytes]]:
            begun.append(-1)
            return end, []

    connection, transport = Connection(endpoint_of(handler, fast=Taking())), Transport()
    connection.connection_made(transport)
    frame = encode(Command(1, opaque=A_TURN + 1))
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.handle_again([encode(Command(1, opaque=n)) for n in range(A_TURN + 1)])
    connection.buffer_updated(len(frame))
    for _ in range(9):
        await asyncio.sleep(0)
    assert begun == list(range(A_TURN + 2))
    connection.connection_lost(None)


async def test_numbers_of_calls_start_again_before_they_leave_32_bits() -> None:
    connection, transport = Connection(endpoint_of(None)), Transport()
    connection.connection_made(transport)
    connection._calls._opaque = 2**31 - 2
    connection.oneway(Command(1))
    connection.oneway(Command(1))
    await asyncio.sleep(0)
    data = b"".join(transport.written)
    middle = frame_end(data, 0, len(data))
    assert [decode(data[:middle]).opaque, decode(data[middle:]).opaque] == [2**31 - 1, 1]
