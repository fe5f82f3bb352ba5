"""The promise of TLS: who is not of the authority gets nowhere, and is told why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from model.errors import ConfigError, Unknown
from runtime.tls.contexts import load
from runtime.tls.state import TlsState
from tests.tls.site import Site, ask, run_on, serving
from tests.waiting import until


def needs_certificate(site: Site) -> dict[str, str]:
    return {
        **site.server(),
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": site.ca,
    }


def test_a_client_with_its_certificate_gets_in(site: Site, loop: str) -> None:
    async def work() -> None:
        async with serving(TlsState(needs_certificate(site))) as (_, address):
            assert await ask(address, site.client(shows=True)) == b"x"

    run_on(loop, work)


@pytest.mark.parametrize("who", ["none", "stranger", "expired"])
def test_a_client_without_a_good_certificate_does_not(
    site: Site, strangers: Site, loop: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = site.client(shows=who != "none")
    if who == "stranger":
        values["tls.client.certPath"] = strangers.path("client.pem")
        values["tls.client.keyPath"] = strangers.path("client.key")

    said = "it wants a certificate" if who == "none" else "it does not know the authority"

    async def work() -> None:
        state = TlsState(needs_certificate(site))
        async with serving(state) as (_, address):
            with pytest.raises((ConnectionError, Unknown), match=said):
                await ask(address, values)
            await until(lambda: state.handshakes["failed"] == 1)
            assert state.handshakes["ok"] == 0

    if who == "expired":
        site.put("late", site.pair(days=10, ago=20))
        values["tls.client.certPath"] = site.path("late.pem")
        values["tls.client.keyPath"] = site.path("late.key")
        with pytest.raises(ConfigError, match="it expired at"):
            TlsState(values)  # it says so itself, before anybody is dialled
        return
    run_on(loop, work)
    told = "it shows no certificate" if who == "none" else "its certificate is not believed"
    assert told in caplog.text


def test_a_client_believes_only_its_authority(site: Site, strangers: Site, loop: str) -> None:
    async def work() -> None:
        state = TlsState(site.server())
        async with serving(state) as (_, address):
            with pytest.raises(ConnectionError, match="its certificate is not believed"):
                await ask(address, strangers.client())
            await until(lambda: state.handshakes["failed"] == 1)
            assert await ask(address, {**strangers.client(), "tls.client.authServer": "false"}) == b"x"

    run_on(loop, work)


def test_a_certificate_that_expired_while_a_server_runs_is_refused(site: Site, loop: str) -> None:
    site.put("over", site.pair(days=10, ago=20))
    values = site.server(
        **{"tls.server.certPath": site.path("over.pem"), "tls.server.keyPath": site.path("over.key")}
    )

    async def work() -> None:
        state = TlsState(site.server())
        then_ms = state.now.own.not_before_ms - 15 * 86_400_000 if state.now.own else 0
        late = TlsState(values, lambda: then_ms)
        async with serving(late) as (_, address):
            with pytest.raises(ConnectionError, match="certificate has expired"):
                await ask(address, site.client())

    run_on(loop, work)


def test_a_certificate_has_to_name_the_address(site: Site, loop: str) -> None:
    site.put("other", site.pair(hosts=("broker-a.example", "10.0.0.1")))
    values = site.server(
        **{"tls.server.certPath": site.path("other.pem"), "tls.server.keyPath": site.path("other.key")}
    )

    async def work() -> None:
        async with serving(TlsState(values)) as (_, address):
            with pytest.raises(ConnectionError, match="IP address mismatch"):
                await ask(address, site.client())
            relaxed = {**site.client(), "tls.client.checkHostName": "false"}
            assert await ask(address, relaxed) == b"x"

    run_on(loop, work)


def test_a_server_without_tls_is_named(site: Site, loop: str) -> None:
    async def work() -> None:
        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionError, match="it does not speak TLS"):
            await ask(address, site.client())
        server.close()

    run_on(loop, work)


def test_test_mode_makes_a_certificate_that_nobody_checks(loop: str) -> None:
    values = {"tls.server.mode": "enforcing", "tls.test.mode.enable": "true"}

    async def work() -> None:
        async with serving(TlsState(values)) as (_, address):
            assert await ask(address, values) == b"x"

    run_on(loop, work)


def test_a_key_with_a_password(site: Site, tmp_path: Path, loop: str) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(Path(site.path("server.key")).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open it"))
    )
    values = {**site.server(), "tls.server.keyPath": str(locked)}
    with pytest.raises(ConfigError, match=r"its password goes into tls.server.keyPassword"):
        TlsState(values)
    assert load(TlsState({**values, "tls.server.keyPassword": "open it"}).now.config, 0).server
