"""The promise of keelmq certs: a cluster's certificates with one command each, nothing lost by mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from admin.certs import CertDirectory
from admin.exits import DONE, FAILED, UNFINISHED, USAGE, WARNINGS, run
from cli.main import command
from model.errors import ConfigError
from runtime.tls.state import TlsState
from tests import ROOT
from tests.tls.site import ask, run_on, serving


def certs(directory: Path, *arguments: str) -> int:
    return run(command(), ["certs", *arguments, "--dir", str(directory)])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "certs"
    assert certs(directory, "ca") == DONE
    assert certs(directory, "server", "broker-a-0", "--host", "127.0.0.1", "--host", "b.example") == DONE
    assert certs(directory, "client", "shop") == DONE
    return directory


def keys(directory: Path, mode: str = "enforcing") -> dict[str, str]:
    return {
        "tls.server.mode": mode,
        "tls.server.certPath": str(directory / "broker-a-0.pem"),
        "tls.server.keyPath": str(directory / "broker-a-0.key"),
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": str(directory / "ca.pem"),
        "tls.client.certPath": str(directory / "shop.pem"),
        "tls.client.keyPath": str(directory / "shop.key"),
        "tls.client.trustCertPath": str(directory / "ca.pem"),
    }


def test_what_is_made_serves_and_is_believed(made: Path, loop: str) -> None:
    async def work() -> None:
        async with serving(TlsState(keys(made))) as (_, address):
            assert await ask(address, keys(made)) == b"x"

    run_on(loop, work)


def test_a_server_dials_with_its_own_certificate(made: Path) -> None:
    own = {
        **keys(made),
        "tls.client.certPath": str(made / "broker-a-0.pem"),
        "tls.client.keyPath": str(made / "broker-a-0.key"),
    }

    async def work() -> None:
        async with serving(TlsState(own)) as (_, address):
            assert await ask(address, own) == b"x"

    run_on("uvloop", work)


def test_openssl_verifies_the_chain_and_each_purpose(made: Path) -> None:
    for name, purpose in (("broker-a-0", "sslserver"), ("broker-a-0", "sslclient"), ("shop", "sslclient")):
        line = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(made / "ca.pem")]
        done = subprocess.run([*line, str(made / f"{name}.pem")], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_keys_are_for_their_owner_only(made: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    assert len(modes) == 6
    assert made.stat().st_mode & 0o777 == 0o700


def test_nothing_is_replaced_without_force(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    for again in (("ca",), ("server", "broker-a-0"), ("client", "shop")):
        assert certs(made, *again) == UNFINISHED
        assert "--force replaces" in capsys.readouterr().err
    assert certs(made, "ca", "--force") == UNFINISHED
    assert "broker-a-0, shop would be believed by nobody. A new authority: docs/" in capsys.readouterr().err
    (made / "lone.key").write_text("a key somebody wants to keep")
    assert certs(made, "client", "lone") == UNFINISHED
    assert {path: path.read_bytes() for path in before} == before
    assert certs(made, "client", "shop", "--force") == DONE
    assert (made / "shop.pem").read_bytes() != before[made / "shop.pem"]


def test_renewing_keeps_names_and_hosts_and_running_servers_take_it(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = TlsState(keys(made))
    before = {one.name: one for one in CertDirectory(made).list()}
    assert certs(made, "renew", "--days", "800") == DONE
    after = {one.name: one for one in CertDirectory(made).list()}
    for name, one in after.items():
        assert (one.hosts, one.kind) == (before[name].hosts, before[name].kind)
        assert (one.valid == before[name].valid) is (name == "ca")
    state.look()
    state.look()
    assert (state.error, state.reloads) == (None, 1)
    assert certs(made, "renew", "nobody") == UNFINISHED
    assert "no certificate nobody; there is broker-a-0, shop" in capsys.readouterr().err


def test_nothing_is_signed_with_a_key_that_is_not_the_authoritys(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    assert certs(other, "ca") == DONE
    (made / "ca.pem").write_bytes((other / "ca.pem").read_bytes())
    before = {path: path.read_bytes() for path in made.iterdir()}
    for asked in (("renew",), ("client", "new")):
        assert certs(made, *asked) == UNFINISHED
        assert "the authority's key belongs to none of its certificates" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in made.iterdir()} == before
    assert certs(made, "show") == FAILED
    shown = capsys.readouterr().out
    assert shown.count("UNFIT: it is of another authority") == 2
    assert "UNFIT: its key is another one's" in shown, "the authority's own"


def test_one_authority_follows_another_as_the_page_says(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    assert certs(new, "ca") == DONE
    both = (made / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes()
    (made / "ca.pem").write_bytes(both)
    (made / "ca.key").write_bytes((new / "ca.key").read_bytes())
    state = TlsState(keys(made))
    assert certs(made, "show") == DONE, capsys.readouterr().out
    assert certs(made, "renew") == DONE
    assert certs(made, "show") == DONE, capsys.readouterr().out
    for _ in range(2):
        state.look()
    assert (state.error, state.reloads) == (None, 1)
    (made / "ca.pem").write_bytes((new / "ca.pem").read_bytes())
    assert certs(made, "show") == DONE, capsys.readouterr().out
    for _ in range(2):
        state.look()
    assert (state.error, state.reloads) == (None, 2)


def test_an_authority_that_has_expired_signs_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, datetime, timedelta

    from runtime.tls.making import make_authority

    old = make_authority("old", 5, now=datetime.now(UTC) - timedelta(days=9))
    (made / "ca.pem").write_bytes(old.cert)
    (made / "ca.key").write_bytes(old.key)
    assert certs(made, "renew") == UNFINISHED
    assert "the authority expired at" in capsys.readouterr().err


def test_where_no_certificate_is_none_is_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs(tmp_path / "typo", "renew") == UNFINISHED
    assert "there is no certificate (--dir" in capsys.readouterr().err


def test_what_is_renewed_keeps_owner_group_and_mode(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, cert = made / "broker-a-0.key", made / "broker-a-0.pem"
    key.chmod(0o640)
    cert.chmod(0o604)
    if os.geteuid() == 0:
        for path in (key, cert):
            os.chown(path, 65534, 65534)
    for again in (("renew",), ("server", "broker-a-0", "--force")):
        assert certs(made, *again) == DONE
        assert (key.stat().st_mode & 0o777, cert.stat().st_mode & 0o777) == (0o640, 0o604)
        if os.geteuid() == 0:
            assert {(path.stat().st_uid, path.stat().st_gid) for path in (key, cert)} == {(65534, 65534)}
    assert capsys.readouterr().err == ""


def test_show_says_until_when_by_its_exit_code(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert certs(made, "show", "--json") == DONE
    shown = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert shown["broker-a-0"]["hosts"] == ["127.0.0.1", "b.example", "broker-a-0"]
    assert (shown["broker-a-0"]["kind"], shown["shop"]["kind"], shown["ca"]["kind"]) == (
        "server",
        "client",
        "authority",
    )
    assert shown["shop"]["daysLeft"] == 364
    assert certs(made, "client", "soon", "--days", "5") == DONE
    assert certs(made, "show") == WARNINGS
    assert "4 days left" in capsys.readouterr().out
    pair = CertDirectory(made)
    from datetime import UTC, datetime, timedelta

    from runtime.tls.making import issue

    old = issue(pair._authority(), "over", 5, server=False, now=datetime.now(UTC) - timedelta(days=9))
    (made / "over.pem").write_bytes(old.cert)
    assert certs(made, "show") == FAILED
    assert "EXPIRED" in capsys.readouterr().out


def test_wrong_names_and_missing_authorities_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(tmp_path, "client", "shop") == UNFINISHED
    assert "keelmq certs ca makes an authority" in capsys.readouterr().err
    assert certs(tmp_path, "ca") == DONE
    for name in ("../shop", "ca", "a b"):
        assert certs(tmp_path, "client", name) == USAGE


def test_without_the_library_its_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from admin.exits import run; from cli.main import command\n"
        f"sys.exit(run(command(), ['certs', 'ca', '--dir', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == USAGE
    assert done.stderr.strip() == (
        "keelmq: keelmq certs needs the library cryptography, the extra tls: pip install 'keelmq[tls]'"
    )


def test_a_host_that_is_none_and_an_empty_directory_are_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(made, "server", "b", "--host", "not a host!") == USAGE
    assert "neither a host name nor an IP address" in capsys.readouterr().err
    assert not (made / "b.pem").exists()
    assert certs(made, "server", "b", "--host", "*.b.example", "--host", "::1") == DONE
    assert certs(tmp_path / "none", "show") == UNFINISHED
    assert "holds no certificate" in capsys.readouterr().err


def test_a_relative_path_says_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"tls.server.mode": "enforcing", "tls.server.certPath": "s.pem", "tls.server.keyPath": "s.key"}
    with pytest.raises(ConfigError, match=rf"looked at {tmp_path}/s.pem: give the whole path"):
        TlsState(values)
