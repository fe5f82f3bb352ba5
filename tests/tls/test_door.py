"""The promise of runtime.tls.door: the first byte decides, and who says nothing holds nothing."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import cast

import pytest

from model.config.tls import Mode
from model.errors import Unknown
from model.settings import split_address
from remoting.codec import Command, encode
from remoting.service import Connection, Limits, RemotingServer
from runtime.os_env import OsEnv
from runtime.tls import door as doors
from runtime.tls.door import Choice, choose
from runtime.tls.network import TlsNetwork
from runtime.tls.places import Places
from runtime.tls.state import TlsState
from tests.remoting.support import echo
from tests.tls.site import Site, ask, run_on, serving
from tests.waiting import until

BODY = bytes(range(256)) * 2048


def door_of(server: RemotingServer) -> doors.Door:
    (listener,) = server._listeners
    found = listener.door  # type: ignore[attr-defined]
    assert isinstance(found, doors.Door)
    return found


async def begun(
    address: str, count: int, source: str = "127.0.0.1"
) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """So many handshakes that begin and go no further."""
    place = split_address(address)
    slow = [await asyncio.open_connection(*place, local_addr=(source, 0)) for _ in range(count)]
    for _, writer in slow:
        writer.write(b"\x16\x03")
    return slow


async def ask_again(address: str, values: dict[str, str]) -> bytes:
    """A handshake that stands still with its machine is a slow one to the door, and gives way as well."""
    for _ in range(4):
        with suppress(ConnectionError, Unknown):
            return await ask(address, values)
    return await ask(address, values)


@pytest.mark.parametrize(
    ("mode", "plain", "tls"),
    [
        (Mode.DISABLED, Choice.PLAIN, Choice.NO_TLS),
        (Mode.PERMISSIVE, Choice.PLAIN, Choice.TLS),
        (Mode.ENFORCING, Choice.NO_PLAIN, Choice.TLS),
    ],
)
def test_the_first_byte_and_the_mode_decide(mode: Mode, plain: Choice, tls: Choice) -> None:
    assert choose(mode, 0x16) is tls
    assert {choose(mode, byte) for byte in range(256) if byte != 0x16} == {plain}


def test_a_permissive_port_takes_both(site: Site, loop: str) -> None:
    async def work() -> None:
        state = TlsState(site.server("permissive"))
        async with serving(state) as (_, address):
            assert await ask(address, None, BODY) == BODY
            assert await ask(address, site.client(), BODY) == BODY
            assert state.handshakes == {"ok": 1, "failed": 0, "refused": 0}

    run_on(loop, work)


def test_an_enforcing_port_refuses_plain_and_says_so(
    site: Site, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        state = TlsState(site.server("enforcing"))
        async with serving(state) as (_, address):
            with pytest.raises(Unknown):
                await ask(address, None)
            assert await ask(address, site.client()) == b"x"
            assert state.handshakes["refused"] == 1

    run_on(loop, work)
    assert "it begins without TLS, and tls.server.mode=enforcing here" in caplog.text


def test_a_disabled_port_refuses_tls_and_says_so(
    site: Site, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving(TlsState(site.server("disabled"))) as (_, address):
            with pytest.raises(ConnectionError, match="TLS handshake failed"):
                await ask(address, site.client())
            assert await ask(address, None) == b"x"

    run_on(loop, work)
    assert "it begins a TLS handshake, and tls.server.mode=disabled here" in caplog.text


def test_a_server_that_has_no_tls_says_so(site: Site, loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server = RemotingServer(OsEnv(), "test", echo)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        with pytest.raises(ConnectionError, match="TLS handshake failed"):
            await ask(address, site.client())
        await server.stop()

    run_on(loop, work)
    assert "it begins a TLS handshake, and there is no TLS here" in caplog.text


def test_the_ha_port_stays_open_to_plain_links_where_tls_ha_enable_is_false(site: Site, loop: str) -> None:
    """RocketMQ's brokers have nothing else there."""

    async def work() -> None:
        state = TlsState(site.server("enforcing", **{"tls.ha.enable": "false"}))
        network = TlsNetwork(state, ha=True)
        listener = await network.listen(_Echo, "127.0.0.1", 0)
        for env in (OsEnv(), OsEnv(network=TlsNetwork(TlsState(site.client())))):
            done = asyncio.get_running_loop().create_future()
            transport, _ = await env.network.connect(partial(_Hearer, done), "127.0.0.1", listener.port)
            transport.write(b"hello")
            assert await done == b"hello"
            transport.close()
        done = asyncio.get_running_loop().create_future()
        transport, _ = await network.connect(partial(_Hearer, done), "127.0.0.1", listener.port)
        assert transport.get_extra_info("ssl_object") is None
        transport.close()
        listener.close()

    run_on(loop, work)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Hearer(asyncio.Protocol):
    def __init__(self, heard: asyncio.Future[bytes]) -> None:
        self._heard = heard

    def data_received(self, data: bytes) -> None:
        self._heard.set_result(data)


def test_a_flood_of_plain_connections_is_a_few_lines(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        state = TlsState(site.server("enforcing"))
        async with serving(state) as (_, address):
            for _ in range(60):
                _, writer = await asyncio.open_connection(*split_address(address))
                writer.write(b"\0")
                await writer.drain()
                writer.close()
            await until(lambda: state.handshakes["refused"] == 60)

    run_on("asyncio", work)
    lines = [r for r in caplog.records if "refused" in r.message and r.levelno == logging.WARNING]
    assert len(lines) < 20


def test_a_connection_that_says_nothing_ends(site: Site, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "FIRST_BYTE_S", 0.1)

    async def work() -> None:
        async with serving(TlsState(site.server("permissive"))) as (server, address):
            reader, writer = await asyncio.open_connection(*split_address(address))
            assert await reader.read() == b""
            writer.close()
            assert not server.connections

    run_on(loop, work)


def test_a_handshake_that_does_not_end_ends(site: Site, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HANDSHAKE_S", 0.2)

    async def work() -> None:
        state = TlsState(site.server())
        async with serving(state) as (_, address):
            reader, writer = await asyncio.open_connection(*split_address(address))
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            assert await reader.read() == b""
            writer.close()
            await until(lambda: state.handshakes["failed"] == 1)
            assert await ask(address, site.client()) == b"x"

    run_on(loop, work)


def test_the_oldest_silent_one_gives_way_when_places_are_taken(site: Site, loop: str) -> None:
    async def work() -> None:
        async with serving(TlsState(site.server()), Places(total=4, per_address=100)) as (_, address):
            silent = [await asyncio.open_connection(*split_address(address)) for _ in range(6)]
            for reader, _ in silent[:2]:
                assert await reader.read() == b""
            assert await ask(address, site.client()) == b"x"
            for _, writer in silent:
                writer.close()

    run_on(loop, work)


def test_one_address_has_its_share_of_the_places(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(TlsState(site.server()), Places(total=100, per_address=2)) as (_, address):
            opened = [await asyncio.open_connection(*split_address(address)) for _ in range(3)]
            assert await opened[2][0].read() == b""
            for _, writer in opened:
                writer.close()

    run_on("asyncio", work)
    assert "too many connections that say nothing" in caplog.text


def test_slow_handshakes_give_way_to_those_that_wait(
    site: Site, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "SHAKING_MAX", 2)
    monkeypatch.setattr(doors, "GIVE_WAY_S", 0.2)
    monkeypatch.setattr(doors, "HANDSHAKE_S", 3600.0)  # so none of them ends of itself

    async def work() -> None:
        state = TlsState(site.server())
        async with serving(state) as (server, address):
            door = door_of(server)
            slow = await begun(address, 6)
            await until(lambda: len(door._shaking) + len(door._queued) + state.handshakes["failed"] == 6)
            assert await ask_again(address, site.client()) == b"x"
            assert state.handshakes["failed"] >= 1, "it was served because a slow one gave way"
            for _, writer in slow:
                writer.transport.abort()
            await until(lambda: not door.waiting)

    run_on(loop, work)


def test_a_flood_of_begun_handshakes_keeps_its_own_waiting(
    site: Site, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one address, too: many clients may be behind one."""
    monkeypatch.setattr(doors, "SHAKING_MAX", 2)
    monkeypatch.setattr(doors, "GIVE_WAY_S", 0.1)

    async def work() -> None:
        state = TlsState(site.server())
        async with serving(state) as (server, address):
            door = door_of(server)
            slow = await begun(address, 300)
            assert await ask_again(address, site.client()) == b"x"
            assert state.handshakes["failed"] < 250, "the one behind them did not wait for all of them"
            for _, writer in slow:
                writer.transport.abort()
            await until(lambda: not door.waiting)

    run_on(loop, work)


def test_half_handshakes_of_one_address_keep_no_other_from_its_place(
    site: Site, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "SHAKING_MAX", 4)
    monkeypatch.setattr(doors, "GIVE_WAY_S", 3600.0)
    monkeypatch.setattr(doors, "HANDSHAKE_S", 3600.0)  # so none of them ends but for another address

    async def work() -> None:
        state = TlsState(site.server())
        async with serving(state) as (server, address):
            door = door_of(server)
            slow = await begun(address, 100, "127.0.0.9")
            await until(lambda: len(door._queued) == 96)
            for n in range(1, 5):
                assert await ask(address, site.client()) == b"x"
                assert state.handshakes == {"ok": n, "failed": n, "refused": 0}, "one gave way each time"
                await until(lambda: len(door._shaking) == 4)
            for _, writer in slow:
                writer.transport.abort()
            await until(lambda: not door.waiting)

    run_on(loop, work)


def test_a_handshake_that_waits_for_its_turn_ends(
    site: Site, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "SHAKING_MAX", 1)
    monkeypatch.setattr(doors, "GIVE_WAY_S", 60.0)
    monkeypatch.setattr(doors, "HANDSHAKE_S", 0.3)

    async def work() -> None:
        state = TlsState(site.server())
        async with serving(state) as (_, address):
            slow = await begun(address, 3)
            for reader, _ in slow:
                with suppress(OSError):
                    assert await reader.read() == b""
            await until(lambda: state.handshakes["failed"] == 3)
            for _, writer in slow:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    run_on(loop, work)


def test_many_clients_at_once_all_get_in(site: Site, loop: str) -> None:
    async def work() -> None:
        state = TlsState(site.server("permissive"))
        async with serving(state) as (_, address):
            asked = [ask(address, site.client() if n % 2 else None, b"%d" % n) for n in range(60)]
            assert await asyncio.gather(*asked) == [b"%d" % n for n in range(60)]
            assert state.handshakes == {"ok": 30, "failed": 0, "refused": 0}

    run_on(loop, work)


def test_whatever_peers_do_what_waits_is_counted(
    site: Site, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five hundred peers that begin, hang up, or send nonsense, in any order."""
    monkeypatch.setattr(doors, "SHAKING_MAX", 4)
    monkeypatch.setattr(doors, "GIVE_WAY_S", 0.05)
    monkeypatch.setattr(doors, "FIRST_BYTE_S", 0.3)
    chance = random.Random(7)
    checked = 0

    def checking(name: str) -> None:
        method = getattr(doors.Door, name)

        def checked_method(door: doors.Door, *given: object) -> object:
            nonlocal checked
            found = method(door, *given)
            door.check_invariants()
            checked += 1
            return found

        monkeypatch.setattr(doors.Door, name, checked_method)

    for name in ("_knock", "_look", "_pump", "_end"):
        checking(name)

    async def peer(address: tuple[str, int]) -> None:
        await asyncio.sleep(chance.random())
        what = chance.choice(("plain", "tls", "silent", "half", "nonsense", "gone"))
        if what in ("plain", "tls"):
            with suppress(OSError, Unknown):
                await ask(f"{address[0]}:{address[1]}", site.client() if what == "tls" else None)
            return
        reader, writer = await asyncio.open_connection(*address)
        if what == "half":
            writer.write(b"\x16\x03\x01\x02")
        elif what == "nonsense":
            writer.write(b"\x16" + chance.randbytes(200))
        if what != "gone":
            await asyncio.sleep(chance.random())
        writer.transport.abort()
        with suppress(OSError):
            await reader.read()

    async def work() -> None:
        state = TlsState(site.server("permissive"))
        async with serving(state, Places(total=40, per_address=30)) as (server, address):
            await asyncio.gather(*(peer(split_address(address)) for _ in range(500)))
            door = door_of(server)
            await until(lambda: not door.waiting)
            assert await ask(address, site.client()) == b"x"
            assert checked > 500

    run_on(loop, work)


def test_connections_count_against_the_caps_as_ever(site: Site, loop: str) -> None:
    async def work() -> None:
        limits = Limits(connections_max=1)
        async with serving(TlsState(site.server("permissive")), limits=limits) as (server, address):
            _, first = await asyncio.open_connection(*split_address(address))
            first.write(b"\0\0\1")
            await until(lambda: len(server.connections) == 1)
            assert await ask(address, site.client()) == b""  # the server is busy
            assert server.guard.refused["maxConnections"] == 1
            first.close()

    run_on(loop, work)


def test_a_port_that_closes_ends_who_says_nothing_and_lets_the_others_go_on(site: Site, loop: str) -> None:
    async def work() -> None:
        state = TlsState(site.server("permissive"))
        async with serving(state) as (server, address):
            reader, writer = await asyncio.open_connection(*split_address(address))
            await asyncio.sleep(0.05)
            asked = [asyncio.create_task(ask(address, site.client())) for _ in range(20)]
            asked.append(asyncio.create_task(ask(address, None)))
            await until(lambda: state.handshakes["ok"] > 2)
            server.stop_accepting()
            assert await reader.read() == b""
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(one == b"x" for one in found) > 2
            assert all(one == b"x" or isinstance(one, OSError | Unknown) for one in found)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*split_address(address))
            writer.close()

    run_on(loop, work)


def test_a_server_without_delay_sends_small_answers_at_once(site: Site, loop: str) -> None:
    """Nagle's algorithm would hold every second small frame for 40 ms."""

    async def work() -> None:
        async with serving(TlsState(site.server("permissive"))) as (server, address):
            _, writer = await asyncio.open_connection(*split_address(address))
            writer.write(b"\0\0\1")
            await until(lambda: len(server.connections) == 1)
            transport = next(iter(server.connections))._transport
            assert transport is not None
            own = transport.get_extra_info("socket")
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()

    run_on(loop, work)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_both_versions_of_java_clients(site: Site, loop: str, version: str) -> None:
    async def work() -> None:
        async with serving(TlsState(site.server())) as (_, address):
            context = ssl.create_default_context(cafile=site.ca)
            context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
            host, port = split_address(address)
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            assert writer.get_extra_info("ssl_object").version() == version.replace("_", ".")
            writer.close()
            await writer.wait_closed()
            assert await reader.read() == b""

    run_on(loop, work)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_openssl_s_client_verifies_the_server(site: Site, loop: str) -> None:
    async def work() -> None:
        async with serving(TlsState(site.server())) as (_, address):
            process = await asyncio.create_subprocess_exec(
                *("openssl", "s_client", "-connect", address, "-CAfile", site.ca),
                *("-verify_return_error", "-verify_ip", "127.0.0.1", "-brief"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            assert process.returncode == 0, said
            assert b"Verification: OK" in said
            assert b"TLSv1.3" in said

    run_on(loop, work)


def test_answers_that_a_peer_does_not_read_do_not_pile_up(site: Site, loop: str) -> None:
    """As without TLS: no further answer is made before those before are read."""
    made = 0

    async def long_answer(connection: Connection, request: Command) -> Command:
        nonlocal made
        made += 1
        return request.reply(0, body=bytes(1 << 20))

    async def work() -> None:
        env = OsEnv(network=TlsNetwork(TlsState(site.server())))
        server = RemotingServer(env, "test", long_answer)
        port = await server.start("127.0.0.1", 0)
        context = ssl.create_default_context(cafile=site.ca)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"".join(encode(Command(1, {}).numbered(n)) for n in range(200)))
        await until(lambda: made)
        await asyncio.sleep(1)
        assert made < 20
        writer.transport.abort()
        await server.stop()

    run_on(loop, work)
