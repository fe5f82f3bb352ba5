"""The promises of remoting.service: requests are answered in any order, waits end, an end loses nothing."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from model.codes import Request, Response
from model.errors import PeerError, Refused, Unknown
from remoting.codec import ROCKETMQ, Command, decode, encode, frame_end
from remoting.service import Connection, Limits, RemotingClient
from remoting.transport.answering import answer_to
from runtime.direct import NO_DESCRIPTOR
from runtime.report.complaints import LINES_AT_ONCE
from tests.lines import lines_of
from tests.remoting.support import HOST, client_of, read_command, run, serving
from tests.remoting.wires import Transport, endpoint_of
from tests.tls.site import LOOPS, run_on
from tests.waiting import until

SENT_BYTES = 8 << 20  # more than two kernels hold


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
    assert [bool(record.exc_info) for record in lines_of(caplog)] == [True, False]


async def test_a_request_that_finds_a_mistake_of_ours_fills_no_log_and_a_flood_hides_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [PeerError("not a body"), KeyError("lost")]

    async def handle(connection: Connection, request: Command) -> Command:
        raise errors[request.code]

    endpoint = endpoint_of(handle)
    connection = Connection(endpoint)
    connection.connection_made(Transport())
    for code in (0, 1):
        for _ in range(5 * LINES_AT_ONCE):
            answer = await answer_to(endpoint, connection, Command(code))
            assert answer is not None
            assert answer.code == Response.SYSTEM_ERROR
    told = [bool(record.exc_info) for record in lines_of(caplog)]
    assert told == [False] * LINES_AT_ONCE + [True] * LINES_AT_ONCE
    assert endpoint.guard.complaints.log_of_mistakes.left_out == 4 * LINES_AT_ONCE
    connection.abort()


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
            await client.call(address, Command(1))  # a dial may take longer than the call has
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


def under_way(client: RemotingClient, address: str) -> int:
    """Calls that ``client`` waits for; a server may have a connection before its client knows of it."""
    connection = client._open.get(address)
    return 0 if connection is None else len(connection._calls)


def test_a_retired_connection_still_brings_the_answers_under_way() -> None:
    async def work() -> None:
        opened: list[Connection] = []
        async with serving(on_open=opened.append) as (_, address), client_of() as client:
            slow = asyncio.ensure_future(client.call(address, Command(1, {"delay": "0.2"})))
            await until(lambda: len(opened) == 1 and under_way(client, address))
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
            await until(lambda: len(opened) == 2 and under_way(client, address))
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
            call = asyncio.ensure_future(busy.call(address, Command(1, {"delay": "2"})))
            await until(lambda: len(server.connections) == 2 and under_way(busy, address))
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
            server.stop_accepting()
            server.go_away()
            # Longer than a request may be on its way, also on a machine that stands still for a moment.
            assert await server.dismiss(0.5, 30.0)
            await server.stop()
            going = False
            await asyncio.gather(*senders)
            assert outcomes["sent away"] >= 8
            assert outcomes["refused"] > 0
            assert outcomes["unknown"] == 0

    run(work)


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

            connection._outbox.descriptor = NO_DESCRIPTOR
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


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_connection_sent_before_it_was_accepted_is_not_read_while_all_are_held(loop: str) -> None:
    """A loop may begin to read behind ``connection_made``, though that said to wait."""

    async def work() -> None:
        async with serving() as (server, address):
            server._endpoint.hold(True)
            host, port = address.split(":")
            peers = [socket.create_connection((host, int(port))) for _ in range(20)]
            for peer in peers:
                peer.sendall(encode(Command(1, {}, b"x", opaque=7)) * 3)
                peer.setblocking(False)
            await until(lambda: len(server.connections) == len(peers))
            for _ in range(3):
                await asyncio.sleep(0.01)
                for peer in peers:
                    peer.send(encode(Command(1, {}, b"x", opaque=7)))
            assert not any(connection.handling for connection in server.connections)
            assert max(connection.frame_bytes for connection in server.connections) <= 1
            for peer in peers:
                with pytest.raises(BlockingIOError):
                    peer.recv(1)
            server._endpoint.hold(False)
            due = 6 * len(encode(Command(1, {}, b"x", opaque=7, flag=1)))
            for peer in peers:
                got = b""
                while len(got) < due:
                    got += await asyncio.get_running_loop().sock_recv(peer, due)
                peer.close()

    run_on(loop, work)


def test_after_a_reset_nothing_of_what_was_sent_arrives_any_more() -> None:
    """As behind a broken link, the peer's kernel takes nothing for a while: what a close leaves to the own
    kernel would arrive when it does."""

    async def arrived(end: Callable[[RemotingClient, str], None]) -> int:
        with socket.create_server((HOST, 0)) as server:
            server.setblocking(False)
            address = f"{HOST}:{server.getsockname()[1]}"
            loop = asyncio.get_running_loop()
            async with client_of() as client:
                call = asyncio.ensure_future(client.call(address, Command(1, {}, bytes(SENT_BYTES)), 0.3))
                peer, _ = await loop.sock_accept(server)
                with peer:
                    peer.setblocking(False)
                    with pytest.raises(Unknown):
                        await call
                    end(client, address)
                    total = 0
                    with contextlib.suppress(ConnectionResetError):
                        while data := await loop.sock_recv(peer, 65536):
                            total += len(data)
                    return total

    async def work() -> None:
        assert await arrived(RemotingClient.drop) > SENT_BYTES
        assert await arrived(RemotingClient.reset) < SENT_BYTES

    run(work)


def test_what_is_answered_late_is_told_and_what_is_held_is_not() -> None:
    """A handler without an answer holds its request, as a pull waits for messages."""

    async def work() -> None:
        async with serving(limits=Limits(slow_request_ms=20)) as (server, address), client_of() as client:
            await client.call(address, Command(int(Request.GET_CONSUME_STATS), {"delay": "0.05"}))
            with pytest.raises(Unknown):
                await client.call(address, Command(int(Request.PULL_MESSAGE), {"never": "1"}), 0.05)
            found = server.guard.slow.requests.status()
            assert found["byRequest"] == {"GET_CONSUME_STATS": 1}
            (one,) = found["last"]
            assert one["client"].startswith(f"{HOST}:")
            assert one["ms"] >= 50

    run(work)
