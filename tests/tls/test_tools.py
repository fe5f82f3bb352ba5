"""The promise of --tls: a command reaches a cluster that speaks TLS, or is told what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admin import tls
from admin.exits import DONE, UNFINISHED, USAGE, run
from cli.main import command
from model.config import NamesrvConfig
from model.errors import Unknown
from namesrv.service import NameServer
from runtime.os_env import OsEnv
from runtime.tls.network import TlsNetwork
from runtime.tls.state import TlsState
from tests.remoting.support import HOST
from tests.tls.site import Site, ask, run_on


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (tls.TLS, tls.CA, tls.CERT, tls.KEY):
        monkeypatch.delenv(variable, raising=False)


def listed(values: dict[str, str], *options: str) -> int:
    """The exit code of ``keelmq topic list`` at a NameServer with ``values``."""

    async def work() -> int:
        server = NameServer(
            OsEnv(network=TlsNetwork(TlsState(values))),
            NamesrvConfig(listen_port=0, bind_address="127.0.0.1"),
        )
        await server.start()
        try:
            arguments = ["topic", "list", "--namesrv", server.address, *options]
            return await asyncio.to_thread(run, command(), arguments)
        finally:
            await server.stop()

    return asyncio.run(work())


def test_a_command_dials_with_tls(site: Site) -> None:
    assert listed(site.server(), "--tls-ca", site.ca) == DONE
    assert listed(site.server("permissive")) == DONE


def test_a_connection_that_spoke_tls_and_ended_is_not_said_to_lack_it(site: Site, loop: str) -> None:
    async def work() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        server = await asyncio.start_server(hang_up, HOST, 0, ssl=TlsState(site.server()).server)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unknown, match=rf"the TLS connection to {HOST}:{port} ended before the answer$"):
            await ask(f"{HOST}:{port}", site.client())
        server.close()

    run_on(loop, work)


def test_the_environment_says_it_as_well(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tls.TLS, "true")
    monkeypatch.setenv(tls.CA, site.ca)
    assert listed(site.server()) == DONE
    monkeypatch.setenv(tls.TLS, "false")
    assert listed(site.server()) == UNFINISHED
    assert listed(site.server(), "--tls") == DONE


def test_a_command_shows_its_certificate(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        **site.server(),
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": site.ca,
    }
    own = ("--tls-cert", site.path("client.pem"), "--tls-key", site.path("client.key"))
    assert listed(values, "--tls-ca", site.ca, *own) == DONE
    capsys.readouterr()
    assert listed(values, "--tls-ca", site.ca) == UNFINISHED
    assert "it wants a certificate" in capsys.readouterr().err


def test_who_believes_nobody_is_told_why(
    site: Site, strangers: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(site.server(), "--tls-ca", strangers.ca) == UNFINISHED
    assert "its certificate is not believed" in capsys.readouterr().err
    assert listed(site.server(), "--tls") == UNFINISHED
    assert "its certificate is not believed" in capsys.readouterr().err


def test_wrong_options_are_named_by_their_names(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(site.server(), "--tls-ca", str(tmp_path / "none.pem")) == USAGE
    assert "--tls-ca=" in capsys.readouterr().err
    assert listed(site.server(), "--tls-cert", site.path("client.pem")) == USAGE
    assert "--tls-key and --tls-cert go together" in capsys.readouterr().err
    monkeypatch.setenv(tls.TLS, "maybe")
    assert listed(site.server()) == USAGE
    assert "expected true or false" in capsys.readouterr().err
