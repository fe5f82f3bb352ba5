"""The promises of remoting.service: requests are answered, broken peers cost one line, waits end."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from model.errors import PeerError, Refused, Unknown
from remoting import connection as connection_module
from remoting.codec import ROCKETMQ, Command, decode, encode, frame_end
from remoting.codes import Response
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv

HOST = "127.0.0.1"


async def echo(connection: Connection, request: Command) -> Command | None:
    if request.ext.get("refuse"):
        raise Refused("no", 17)
    if request.ext.get("fail"):
        raise KeyError("lost")
    if request.ext.get("broken"):
        raise PeerError("not a body")
    if request.ext.get("never"):
        return None
    if delay := request.ext.get("delay"):
        await asyncio.sleep(float(delay))
    return request.reply(0, ext=request.ext, body=request.body)


@asynccontextmanager
async def serving(handler: Any = echo, **options: Any) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(OsEnv(seed=1), "test", handler, **options)
    port = await server.start(HOST, 0)
    try:
        yield server, f"{HOST}:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(**options: Any) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(OsEnv(seed=1), "client", **options)
    try:
        yield client
    finally:
        await client.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the states waited for have no event
            await asyncio.sleep(0.005)


async def read_command(reader: asyncio.StreamReader) -> Command:
    start = await reader.readexactly(4)
    return decode(start + await reader.readexactly(int.from_bytes(start, "big")))


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(limited())


def test_many_calls_share_one_connection_and_are_answered_in_any_order() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            calls = [
                client.call(address, Command(1, {"delay": "0.05" if n % 2 else "0"}, b"%d" % n))
                for n in range(40)
            ]
            answers = await asyncio.gather(*calls)
            assert [answer.body for answer in answers] == [b"%d" % n for n in range(40)]
            assert len(server.connections) == 1

    run(work)


def test_a_binary_request_gets_a_binary_answer() -> None:
    async def work() -> None:
        async with serving() as (_, address), client_of() as client:
            answer = await client.call(address, Command(1, {"a": "b"}, serialize=ROCKETMQ))
            assert (answer.serialize, answer.ext) == (ROCKETMQ, {"a": "b"})

    run(work)


def test_refused_goes_back_with_its_code_and_an_error_as_system_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with serving() as (_, address), client_of() as client:
            refused = await client.call(address, Command(1, {"refuse": "x"}))
            failed = await client.call(address, Command(1, {"fail": "x"}))
            broken = await client.call(address, Command(1, {"broken": "x"}))
            assert (refused.code, refused.remark) == (17, "no")
            assert (failed.code, failed.remark) == (Response.SYSTEM_ERROR, "KeyError: 'lost'")
            assert (broken.code, broken.remark) == (Response.SYSTEM_ERROR, "not a body")

    run(work)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


def test_a_oneway_request_is_handled_and_never_answered() -> None:
    seen: list[bytes] = []

    async def handler(_: Connection, request: Command) -> Command:
        seen.append(request.body)
        if request.body == b"refused":
            raise Refused("no")
        return request.reply()

    async def work() -> None:
        async with serving(handler) as (_, address):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for body in (b"a", b"refused"):
                writer.write(encode(Command(1, body=body, opaque=5, flag=2)))
            writer.write(encode(Command(1, body=b"b", opaque=6)))
            assert (await read_command(reader)).opaque == 6
            writer.close()

    run(work)
    assert seen == [b"a", b"refused", b"b"]


def test_a_server_calls_its_client_and_gets_the_answer() -> None:
    async def client_side(_: Connection, request: Command) -> Command:
        return request.reply(0, body=request.body + b"!")

    async def work() -> None:
        async def handler(connection: Connection, request: Command) -> Command:
            return request.reply(0, body=(await connection.call(Command(220, body=b"hey"))).body)

        async with serving(handler) as (_, address), client_of(handler=client_side) as client:
            assert (await client.call(address, Command(1))).body == b"hey!"
        async with serving(handler) as (_, address), client_of() as client:
            assert (await client.call(address, Command(1))).body == b""  # answered: not supported

    run(work)


def test_no_answer_in_time_is_unknown_and_a_late_one_is_dropped() -> None:
    async def work() -> None:
        async with serving() as (_, address), client_of() as client:
            with pytest.raises(Unknown, match="did not answer"):
                await client.call(address, Command(1, {"delay": "0.1"}), timeout_s=0.02)
            await asyncio.sleep(0.15)
            assert (await client.call(address, Command(1, body=b"next"))).body == b"next"

    run(work)


def test_a_connection_that_ends_before_the_answer_is_unknown() -> None:
    async def work() -> None:
        async def handler(connection: Connection, request: Command) -> None:
            connection.close()

        closed: list[str] = []
        async with serving(handler) as (_, address):
            async with client_of(on_close=lambda c: closed.append(c.address)) as client:
                with pytest.raises(Unknown, match="ended before"):
                    await client.call(address, Command(1))
            assert closed == [address]

    run(work)


def test_when_nothing_was_sent_it_is_a_connection_error() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            await client.call(address, Command(1))
            await server.stop()
            await until(lambda: not client._open)
            with pytest.raises(ConnectionError, match="cannot connect"):
                await client.call(address, Command(1))
            for wrong in ("nowhere", "127.0.0.1:x"):
                with pytest.raises(ConnectionError, match="cannot connect"):
                    await client.oneway(wrong, Command(1))
            await client.close()
            with pytest.raises(ConnectionError, match="closed"):
                await client.call(address, Command(1))

    run(work)


def test_after_a_drop_the_next_call_makes_a_new_connection() -> None:
    async def work() -> None:
        opened: list[str] = []
        async with serving(on_open=lambda c: opened.append(c.remote)) as (_, address), client_of() as client:
            await client.call(address, Command(1))
            client.drop(address)
            await client.call(address, Command(1))
            assert len(set(opened)) == 2

    run(work)


def test_a_retired_connection_still_brings_the_answers_under_way() -> None:
    async def work() -> None:
        opened: list[Connection] = []
        async with serving(on_open=opened.append) as (_, address), client_of() as client:
            slow = asyncio.ensure_future(client.call(address, Command(1, {"delay": "0.2"})))
            await until(lambda: len(opened) == 1)
            await asyncio.sleep(0.02)
            client.retire(address, 30.0)
            assert (await client.call(address, Command(1))).code == 0
            assert len(opened) == 2
            assert not slow.done()
            assert (await slow).code == 0
            await until(lambda: opened[0].closed and not opened[1].closed)

    run(work)


def test_a_retired_connection_ends_when_its_grace_is_over_or_nothing_is_under_way() -> None:
    async def work() -> None:
        opened: list[Connection] = []
        async with serving(on_open=opened.append) as (_, address), client_of() as client:
            await client.call(address, Command(1))
            client.retire(address, 30.0)
            await until(lambda: opened[0].closed)
            never = asyncio.ensure_future(client.call(address, Command(1, {"never": "1"}), 30.0))
            await until(lambda: len(opened) == 2)
            await asyncio.sleep(0.02)
            client.retire(address, 0.05)
            with pytest.raises(Unknown):
                await never
            client.retire("127.0.0.1:1", 1.0)  # nothing there: nothing to do

    run(work)


def test_a_server_dismisses_who_is_silent_and_has_its_answers() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client, client_of() as busy:
            assert await server.dismiss(30.0, 0.0)  # nobody is connected
            await client.call(address, Command(1))
            call = asyncio.ensure_future(busy.call(address, Command(1, {"delay": "0.3"})))
            await until(lambda: len(server.connections) == 2)
            await asyncio.sleep(0.02)
            assert not await server.dismiss(0.01, 0.05)
            assert len(server.connections) == 1  # the one that waits for its answer
            assert await server.dismiss(0.01, 30.0)
            assert (await call).code == 0
            await client.call(address, Command(1))
            assert not await server.dismiss(60.0, 0.02)  # the answer has just left

    run(work)


def test_no_call_is_lost_to_a_server_that_dismisses_its_clients_under_load() -> None:
    """Whoever is told to go away hangs up, so no request is on its way when a connection ends."""

    async def work() -> None:
        async with serving() as (server, address), AsyncExitStack() as clients:
            outcomes: Counter[str] = Counter()
            going = True

            async def send(client: RemotingClient) -> None:
                while going:
                    try:
                        answer = await client.call(address, Command(1), 30.0)
                    except Unknown:
                        outcomes["unknown"] += 1
                    except ConnectionError:
                        outcomes["refused"] += 1
                        await asyncio.sleep(0.005)
                    else:
                        outcomes["answered"] += 1
                        if answer.code == Response.GO_AWAY:
                            outcomes["sent away"] += 1
                            client.retire(address, 30.0)

            own = [await clients.enter_async_context(client_of()) for _ in range(8)]
            senders = [asyncio.ensure_future(send(client)) for client in own for _ in range(4)]
            await until(lambda: outcomes["answered"] > 200)
            server.deafen()
            server.go_away()
            assert await server.dismiss(0.05, 30.0)
            await server.stop()
            going = False
            await asyncio.gather(*senders)
            assert outcomes["sent away"] >= 8
            assert outcomes["refused"] > 0
            assert outcomes["unknown"] == 0

    run(work)


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
    assert len(caplog.records) == 1
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
    assert len(caplog.records) == 1


def test_all_answers_of_one_read_leave_in_one_write() -> None:
    async def work() -> None:
        async with serving() as (server, address):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            transport = connection._transport
            assert transport is not None
            write = transport.write
            writes: list[int] = []

            class Counting:
                def __getattr__(self, name: str) -> Any:
                    return getattr(transport, name)

                def write(self, data: bytes) -> None:
                    writes.append(len(data))
                    write(data)

            connection._transport = Counting()  # type: ignore[assignment]
            writer.write(b"".join(encode(Command(1, opaque=n)) for n in range(50)))
            answers = [(await read_command(reader)).opaque for _ in range(50)]
            assert answers == list(range(50))
            assert len(writes) == 1
            writer.close()

    run(work)


class Fast:
    """Answers code 10 by itself, leaves the rest to the handler; refuses code 66."""

    def process(
        self, connection: Connection, buffer: bytearray, start: int, end: int
    ) -> tuple[int, list[bytes]]:
        slow: list[bytes] = []
        while stop := frame_end(buffer, start, end):
            frame = bytes(buffer[start:stop])
            command = decode(frame)
            if command.code == 66:
                raise PeerError("code 66")
            if command.code == 10:
                connection.send(command.reply(0, body=b"fast" + command.body))
            else:
                slow.append(frame)
            start = stop
        return start, slow


def test_the_fast_path_takes_what_it_wants_and_the_handler_gets_the_rest_in_order() -> None:
    seen: list[bytes] = []

    async def handler(_: Connection, request: Command) -> Command:
        seen.append(request.body)
        return request.reply(0, body=request.body)

    async def work() -> None:
        async with serving(handler, fast=Fast()) as (_, address), client_of() as client:
            calls = [client.call(address, Command(10 + n % 2, body=b"%d" % n * 3000)) for n in range(60)]
            for n, answer in enumerate(await asyncio.gather(*calls)):
                assert answer.body == (b"" if n % 2 else b"fast") + b"%d" % n * 3000
            assert seen == [b"%d" % n * 3000 for n in range(1, 60, 2)]
            with pytest.raises(Unknown):
                await client.call(address, Command(66))

    run(work)


@pytest.mark.parametrize("fast", [None, Fast()], ids=["plain", "fast"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_frames_cut_anywhere_are_put_together(step: int, fast: Fast | None) -> None:
    async def work() -> None:
        async with serving(fast=fast) as (server, address):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            frames = [encode(Command(11, opaque=n, body=b"x" * (n * 100))) for n in range(5)]
            data = b"".join(frames)
            for at in range(0, len(data), step):
                writer.write(data[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)
            for n in range(5):
                answer = await read_command(reader)
                assert (answer.opaque, len(answer.body)) == (n, n * 100)
            writer.close()
            await until(lambda: not server.connections)

    run(work)


def test_a_frame_as_long_as_the_limit_passes_and_one_byte_more_does_not() -> None:
    async def work() -> None:
        async with serving(frame_bytes_max=1_000_000) as (_, address), client_of() as client:
            head = len(encode(Command(1, opaque=1)))
            body = b"x" * (1_000_000 - head)
            assert (await client.call(address, Command(1, body=body))).body == body
            with pytest.raises(Unknown):
                await client.call(address, Command(1, body=body + b"x"))

    run(work)


def test_a_frame_that_never_becomes_whole_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "PARTIAL_FRAME_S", 0.2)

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
    assert len(caplog.records) == 1


def test_a_silent_connection_is_closed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(idle_s=0.1) as (server, address):
            reader, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]))
            assert await reader.read() == b""
            writer.close()
            await until(lambda: not server.connections)

    run(work)
    assert not caplog.records


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
            await until(lambda: any(c._read_paused for c in server.connections))
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


def test_a_peer_that_reads_nothing_at_all_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "UNSENT_BYTES_MAX", 4_000_000)

    async def work() -> None:
        async with serving() as (server, address):
            _, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]), limit=1024)
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            while not connection.closed:
                connection.oneway(Command(40, body=bytes(1_000_000)))
                await asyncio.sleep(0.001)
            writer.close()

    run(work)
    assert "bytes unread" in caplog.text
    assert len(caplog.records) == 1


def test_a_server_that_goes_away_sends_clients_elsewhere() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            server.go_away()
            assert (await client.call(address, Command(1))).code == Response.GO_AWAY
            assert (await client.call(address, Command(1, version=475))).code == Response.SUCCESS

    run(work)


def test_stop_delivers_what_is_written_and_can_be_called_again() -> None:
    async def work() -> None:
        async with serving() as (server, address):
            reader, writer = await asyncio.open_connection(HOST, int(address.split(":")[1]))
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            connection.oneway(Command(40, body=bytes(3_000_000)))
            stopping = asyncio.create_task(server.stop())
            assert len((await read_command(reader)).body) == 3_000_000
            await stopping
            await server.stop()
            assert not server.connections
            with pytest.raises(ConnectionError):
                await connection.call(Command(1))
            writer.close()

    run(work)


def test_one_server_listens_on_several_ports() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            second = f"{HOST}:{await server.start(HOST, 0)}"
            assert second != address
            assert (await client.call(second, Command(1, body=b"x"))).body == b"x"

    run(work)


def test_a_waiter_that_gives_up_leaves_the_connection_to_the_others() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            first = asyncio.create_task(client.call(address, Command(1)))
            second = asyncio.create_task(client.call(address, Command(1, body=b"2")))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).body == b"2"
            assert len(server.connections) == 1

    run(work)


def test_a_held_connection_is_not_read_until_it_is_let_go() -> None:
    async def work() -> None:
        async with serving() as (server, address), client_of() as client:
            await client.call(address, Command(1))
            (connection,) = server.connections
            connection.hold(True)
            with pytest.raises(Unknown):
                await client.call(address, Command(1), timeout_s=0.05)
            waiting = asyncio.create_task(client.call(address, Command(1, body=b"later")))
            connection.hold(False)
            assert (await waiting).body == b"later"

    run(work)


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
