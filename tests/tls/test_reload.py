"""The promise of runtime.tls.state: new files are used without a stop, wrong ones are not."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from client.session import Session
from model.config.tls import Mode
from model.errors import Unknown
from model.settings import split_address
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from runtime.tls import contexts
from runtime.tls.network import TlsNetwork
from runtime.tls.reminder import SOON_MS
from runtime.tls.state import TlsState
from runtime.tls.validity import validity
from tests.broker.helpers import eventually
from tests.tls.site import Site, ask, run_on, serving


@pytest.fixture
def own(tmp_path: Path) -> Site:
    """A site whose files the test changes."""
    return Site(tmp_path)


def look_twice(state: TlsState) -> None:
    """It reads what stayed the same between two looks."""
    state.look()
    state.look()


async def test_a_client_that_runs_follows_its_files(own: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another authority and another client certificate, without a restart; open connections go on."""
    monkeypatch.setattr("client.session.LOOK_S", 0.01)
    monkeypatch.setattr("runtime.tls.network.LOOK_S", 0.02)
    needs = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": own.ca}
    state = TlsState({**own.client(shows=True)})
    session = Session(OsEnv(network=TlsNetwork(state)), "127.0.0.1:1")
    await session.start()
    try:
        async with serving(TlsState(own.server(**needs))) as (_, address):
            assert (await session.remoting.call(address, Command(1, {}, b"1"))).body == b"1"
        other = Site(own.directory, own.name)  # its files, anew
        async with serving(TlsState(other.server(**needs))) as (_, address):
            await eventually(lambda: state.reloads, "the client read its files")
            assert (await session.remoting.call(address, Command(1, {}, b"2"))).body == b"2"
    finally:
        await session.stop()


async def test_two_that_share_a_network_look_no_more_often(own: Site) -> None:
    class World(OsEnv):
        def monotonic_ms(self) -> float:
            return at[0]

    at, looks = [1_000_000.0], list[int]()
    state = TlsState(own.client())
    state.look = lambda: looks.append(1)  # type: ignore[method-assign]
    network, env = TlsNetwork(state), World()
    for late_ms in (0, 10, 2_000, 2_010):
        at[0] = 1_000_000.0 + late_ms
        await network.look(env)
    assert len(looks) == 2


def shown(site: Site, address: str) -> str:
    """Until when the certificate is good that a server shows now."""
    host, port = split_address(address)
    return validity(ssl.get_server_certificate((host, port), ca_certs=site.ca)).not_after


def test_a_new_certificate_is_shown_and_open_connections_go_on(own: Site, loop: str) -> None:
    async def work() -> None:
        state = TlsState(own.server())
        env = OsEnv()
        async with serving(state) as (_, address):
            client = RemotingClient(OsEnv(network=TlsNetwork(TlsState(own.client()))), "client")
            assert (await client.call(address, Command(1, {}, b"1"))).body == b"1"
            before = await env.offload(lambda: shown(own, address))
            own.put("server", own.pair(days=200))
            look_twice(state)
            after = await env.offload(lambda: shown(own, address))
            assert state.reloads == 1
            assert before < after == state.status()["notAfter"]
            assert (await client.call(address, Command(1, {}, b"2"))).body == b"2"
            await client.close()

    run_on(loop, work)


@pytest.mark.parametrize("how", ["half", "gone", "other key", "expired", "nonsense"])
def test_files_that_are_wrong_change_nothing_and_are_told_once(
    own: Site, strangers: Site, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = TlsState(own.server())
    cert, key = Path(own.path("server.pem")), Path(own.path("server.key"))
    good = cert.read_bytes(), key.read_bytes()
    before = state.now
    if how == "half":
        cert.write_bytes(good[0][:200])
    elif how == "gone":
        key.unlink()
    elif how == "other key":
        key.write_bytes(Path(strangers.path("server.key")).read_bytes())
    elif how == "expired":
        own.put("server", own.pair(days=1, ago=2))
    else:
        cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for _ in range(5):
        state.look()
    assert state.now is before
    assert state.error is not None
    assert "tls.server." in state.error
    assert state.status()["error"] == state.error
    assert len([r for r in caplog.records if "the new files are not used" in r.message]) == 1
    own.put("server", own.pair(days=100))
    look_twice(state)
    assert state.error is None
    assert state.now is not before


def test_a_certificate_of_an_authority_that_nobody_trusts_yet_is_not_used(own: Site, strangers: Site) -> None:
    state = TlsState(own.server())
    before = state.now
    own.put("server", strangers.pair())
    look_twice(state)
    assert state.now is before
    assert state.error is not None
    assert "could not dial this one" in state.error

    both = own.authority.cert + strangers.authority.cert
    Path(own.ca).write_bytes(both)
    look_twice(state)
    assert state.status()["error"] is None
    assert state.reloads == 1
    assert state.now is not before


def test_a_clients_certificate_for_a_server_is_said_to_be_one(own: Site) -> None:
    state = TlsState(own.server())
    for kind in ("pem", "key"):
        Path(own.path(f"server.{kind}")).write_bytes(Path(own.path(f"client.{kind}")).read_bytes())
    look_twice(state)
    assert state.error is not None
    assert "A client's certificate serves nobody: make one for a server (keelmq certs server)" in state.error


def test_the_line_of_a_reload_says_whom_it_asks_for_a_certificate(
    own: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tls.properties"
    asks = "tls.server.need.client.auth=require\n"
    file.write_text(asks)
    values = {**own.server(), "tls.server.trustCertPath": own.ca, "tls.config.file": str(file)}
    state = TlsState(values)
    file.write_text("tls.server.need.client.auth=none\n")
    with caplog.at_level(logging.INFO):
        look_twice(state)
    assert "tls.server.mode=enforcing, tls.server.need.client.auth=none, certificate until" in caplog.text


def test_a_server_that_its_own_files_never_believed_takes_any_certificate(own: Site, strangers: Site) -> None:
    state = TlsState({**own.server(), "tls.client.trustCertPath": strangers.ca})
    own.put("server", own.pair(days=90))
    look_twice(state)
    assert (state.error, state.reloads) == (None, 1)


def test_files_that_are_being_written_are_waited_for(own: Site) -> None:
    state = TlsState(own.server())
    new = own.pair(days=90)
    Path(own.path("server.pem")).write_bytes(new.cert)
    state.look()
    Path(own.path("server.key")).write_bytes(new.key)
    state.look()
    state.look()
    assert (state.reloads, state.error) == (1, None)


def test_files_replaced_while_they_are_read_are_read_again(
    own: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = TlsState(own.server())
    own.put("server", own.pair(days=90))

    def load_slowly(*given: Any) -> Any:
        found = contexts.load(*given)
        monkeypatch.undo()
        own.put("server", own.pair(days=200))
        return found

    monkeypatch.setattr("runtime.tls.state.load", load_slowly)
    look_twice(state)
    between = state.status()["notAfter"]
    look_twice(state)
    assert state.reloads == 2
    assert between < state.status()["notAfter"]


def test_the_mode_changes_without_a_stop(own: Site, tmp_path: Path, loop: str) -> None:
    file = tmp_path / "tls.properties"

    def write(mode: str) -> None:
        file.write_text("".join(f"{k}={v}\n" for k, v in own.server(mode).items()))

    async def work() -> None:
        write("permissive")
        state = TlsState({"tls.config.file": str(file)})
        async with serving(state) as (_, address):
            assert await ask(address, None) == b"x"
            write("enforcing")
            look_twice(state)
            assert state.now.config.mode is Mode.ENFORCING
            with pytest.raises(Unknown):
                await ask(address, None)
            assert await ask(address, own.client()) == b"x"

    run_on(loop, work)


@pytest.mark.parametrize("lines", [0, 1, 2, 3])
def test_a_file_that_is_cut_off_opens_nothing(own: Site, tmp_path: Path, lines: int) -> None:
    """Without its mode it would be permissive, without any key disabled."""
    file = tmp_path / "tls.properties"
    said = own.server("enforcing") | {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": own.ca,
    }
    text = [f"{name}={value}\n" for name, value in said.items()]
    file.write_text("".join(text))
    state = TlsState({"tls.config.file": str(file)})
    before = state.now
    for cut in ("", "tls.server.mode="):
        file.write_text("".join(text[:lines]) + cut)
        look_twice(state)
        assert state.now is before
        assert "tls.server.need.client.auth" in (state.error or "")
    file.write_text("".join(text).replace("=require", "=none"))
    look_twice(state)
    assert (state.error, state.now.config.client_auth) == (None, "none")


def test_a_certificate_that_ends_soon_is_complained_about_once_a_day(
    own: Site, caplog: pytest.LogCaptureFixture
) -> None:
    own.put("server", own.pair(days=5))
    now_ms = TlsState(own.server()).now.own
    assert now_ms is not None
    at = [now_ms.not_after_ms - SOON_MS + 1000]
    state = TlsState(own.server(), lambda: at[0])

    async def work() -> None:
        for _ in range(3):
            await state.look_off_loop(OsEnv())
        at[0] += 25 * 3600 * 1000
        await state.look_off_loop(OsEnv())

    run_on("asyncio", work)
    assert len([r for r in caplog.records if "renew it" in r.message]) == 2
