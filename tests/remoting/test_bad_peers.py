"""The promise of remoting.service to itself: a peer that sends nonsense, or does not read, costs one line."""

import asyncio

import pytest

from model.errors import Unknown
from remoting.codec import Command, encode
from remoting.service import Connection, Limits
from remoting.transport import connection as connection_module
from remoting.transport import inbox
from tests.lines import lines_of
from tests.remoting.support import HOST, client_of, read_command, run, serving
from tests.waiting import until

BROKEN = {
    "a negative length": b"\xff\xff\xff\xff",
    "a length of zero": b"\0\0\0\0rest",
    "a frame over the limit": b"\x7f\xff\xff\xff",
    "a header longer than its frame": b"\0\0\0\x08\0\0\0\x05",
    "an unknown header type": b"\0\0\0\x08\x07\0\0\x04abcd",
    "bad JSON": b"\0\0\0\x08\0\0\0\x04abcd",
    "no code": b"\0\0\0\x06\0\0\0\x02{}",
    "a TLS handshake": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
    "an HTTP request": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_frame_ends_its_connection_with_one_line_and_nothing_else(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            await client.call(address, Command(1))
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data * 3)
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                assert data  # the server closed while bytes of ours were unread: also an end
            writer.close()
            await until(lambda: len(server.connections) == 1)
            assert (await client.call(address, Command(1, body=b"still here"))).body == b"still here"

    run(work)
    assert len(lines_of(caplog)) == 1
    assert "test: closing connection of 127.0.0.1:" in caplog.text


def test_a_client_survives_a_server_that_sends_garbage(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(garbage, HOST, 0)
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        async with client_of() as client:
            with pytest.raises(Unknown):
                await client.call(address, Command(1))
        server.close()

    run(work)
    # On a busy machine a turn may be slow: that is told, too.
    assert [record.name for record in lines_of(caplog)] == ["remoting.guard"]


def test_a_frame_as_long_as_the_limit_passes_and_one_byte_more_does_not() -> None:
    async def work() -> None:
        async with serving(limits=Limits(frame_bytes_max=1_000_000)) as (_, address), client_of() as client:
            head = len(encode(Command(1, opaque=1)))
            body = b"x" * (1_000_000 - head)
            assert (await client.call(address, Command(1, body=body))).body == body
            with pytest.raises(Unknown):
                await client.call(address, Command(1, body=body + b"x"))

    run(work)


def test_a_frame_that_never_becomes_whole_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inbox, "PARTIAL_FRAME_S", 0.2)

    async def work() -> None:
        async with serving() as (server, address):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for byte in encode(Command(1))[:12]:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)
            assert await reader.read() == b""
            writer.close()
            await until(lambda: not server.connections)

    run(work)
    assert "not whole" in caplog.text
    assert len(lines_of(caplog)) == 1


def test_a_silent_connection_is_closed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(limits=Limits(idle_s=0.1)) as (server, address):
            reader, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]))
            assert await reader.read() == b""
            writer.close()
            await until(lambda: not server.connections)

    run(work)
    assert not lines_of(caplog)


def test_a_peer_that_does_not_read_is_not_read_from_until_it_does() -> None:
    handled = 0

    async def handler(_: Connection, request: Command) -> Command:
        nonlocal handled
        handled += 1
        return request.reply(0, body=bytes(200_000))

    async def work() -> None:
        async with serving(handler) as (server, address):
            reader, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]), limit=1024)
            sent = 400
            request = encode(Command(1, body=bytes(50_000)))
            feeding = asyncio.create_task(feed(writer, request, sent))
            await until(lambda: any(c._gate.paused for c in server.connections))
            stuck = handled
            await asyncio.sleep(0.1)
            assert handled <= stuck + 20
            assert handled < sent
            for _ in range(sent):
                assert len((await read_command(reader)).body) == 200_000
            assert handled == sent
            await feeding
            writer.close()

    async def feed(writer: asyncio.StreamWriter, request: bytes, count: int) -> None:
        for _ in range(count):
            writer.write(request)
            await writer.drain()

    run(work)


def test_a_peer_that_reads_nothing_at_all_is_dropped(caplog: pytest.LogCaptureFixture) -> None:

    async def work() -> None:
        async with serving(limits=Limits(unread_bytes_per_connection=4_000_000)) as (server, address):
            _, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]), limit=1024)
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            while not connection.closed:
                connection.oneway(Command(40, body=bytes(1_000_000)))
                await asyncio.sleep(0.001)
            writer.close()

    run(work)
    assert "what it left unread holds" in caplog.text
    assert len(lines_of(caplog)) == 1


def test_a_peer_that_keeps_a_closing_connection_open_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CLOSING_S", 0.1)

    async def work() -> None:
        async with serving() as (server, address):
            _, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]), limit=1024)
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            connection.oneway(Command(40, body=bytes(15_000_000)))
            connection.close()
            await until(lambda: not server.connections)
            writer.close()

    run(work)


def test_a_thousand_broken_peers_make_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving() as (_, address):
            host, port = address.split(":")
            for _ in range(100):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(BROKEN["bad JSON"])
                assert await reader.read() == b""
                writer.close()

    run(work)
    assert 1 <= len(lines_of(caplog)) <= 20
