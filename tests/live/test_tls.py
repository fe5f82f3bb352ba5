"""The promise of TLS in a cluster of real processes: with certificates at both ends of every link a master's
death loses nothing, strangers are refused, and new certificates need no stop."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.settings import split_address
from runtime.tls.validity import validity
from tests.live.commands import keelmq, status
from tests.tls.secured import Secured, secured_cluster, wait

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster


def test_a_masters_death_loses_nothing(secured: Secured) -> None:
    done = secured.run("drill", "kill-master")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none lost" in done.stdout
    found = [one["tls"] for one in secured.statuses()]
    assert {one["mode"] for one in found} == {"enforcing"}
    assert sum(one["handshakes"]["ok"] for one in found) > 10
    assert sum(one["handshakes"]["refused"] for one in found) == 0


def test_commands_go_through_with_a_certificate_and_not_without(secured: Secured) -> None:
    assert secured.run("topic", "create", "Secured").returncode == 0
    assert secured.run("send", "Secured", "hello").returncode == 0
    plain = secured.run("topic", "list", KEELMQ_TLS_CA="", KEELMQ_TLS_CERT="", KEELMQ_TLS_KEY="")
    assert plain.returncode == 3
    assert "refused: it begins without TLS, and tls.server.mode=enforcing here" in secured.logs()
    bare = secured.run("topic", "list", KEELMQ_TLS_CERT="", KEELMQ_TLS_KEY="")
    assert bare.returncode == 3
    assert "it wants a certificate" in bare.stderr
    assert "failed: it shows no certificate" in secured.logs()


def test_another_authority_is_refused_by_both_ends(secured: Secured, tmp_path: Path) -> None:
    for made in (("ca",), ("client", "shop")):
        assert keelmq("certs", *made, "--dir", tmp_path).returncode == 0
    other = secured.run("topic", "list", KEELMQ_TLS_CA=str(tmp_path / "ca.pem"))
    assert other.returncode == 3
    assert "its certificate is not believed" in other.stderr
    mine = {"KEELMQ_TLS_CERT": str(tmp_path / "shop.pem"), "KEELMQ_TLS_KEY": str(tmp_path / "shop.key")}
    unknown = secured.run("topic", "list", **mine)
    assert unknown.returncode == 3
    assert "it does not know the authority of our certificate" in unknown.stderr


def test_renewed_certificates_are_shown_without_a_stop(secured: Secured) -> None:
    address = split_address(secured.master())

    def ends() -> str:
        context = ssl.create_default_context(cafile=str(secured.certs / "ca.pem"))
        context.load_cert_chain(secured.certs / "shop.pem", secured.certs / "shop.key")
        with (
            socket.create_connection(address, 5) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as link,
        ):
            shown = ssl.DER_cert_to_PEM_cert(link.getpeercert(binary_form=True) or b"")
        return validity(shown).not_after

    before = ends()
    assert keelmq("certs", "renew", "node", "--days", "700", "--dir", secured.certs).returncode == 0
    wait("the new certificate to be shown", lambda: ends() > before)
    wait("all servers to read it", lambda: all(one["tls"]["reloads"] >= 1 for one in secured.statuses()))
    assert secured.run("send", "Secured", "again").returncode == 0
    assert all(one["tls"]["error"] is None for one in secured.statuses())


def test_a_broken_file_keeps_the_old_one_and_says_so(secured: Secured) -> None:
    key = secured.certs / "node.key"
    good = key.read_bytes()
    shutil.copy(secured.certs / "shop.key", key)
    try:
        wait("all to tell", lambda: all(one["tls"]["error"] for one in secured.statuses()))
        assert secured.run("send", "Secured", "still").returncode == 0
        assert f"tls.server.keyPath={key}: key values mismatch" in secured.logs()
    finally:
        key.write_bytes(good)
    wait("all to be content", lambda: all(one["tls"]["error"] is None for one in secured.statuses()))


def test_the_mode_changes_while_all_serve(secured: Secured) -> None:
    secured.write("permissive", **{"tls.server.need.client.auth": "optional"})
    wait("permissive", lambda: all(one["tls"]["mode"] == "permissive" for one in secured.statuses()))
    plain = {"KEELMQ_TLS_CA": "", "KEELMQ_TLS_CERT": "", "KEELMQ_TLS_KEY": ""}
    assert secured.run("send", "Secured", "plain", **plain).returncode == 0
    assert secured.run("send", "Secured", "secret").returncode == 0
    secured.write("enforcing")
    wait("enforcing", lambda: all(one["tls"]["mode"] == "enforcing" for one in secured.statuses()))
    assert secured.run("send", "Secured", "plain", **plain).returncode == 3
    assert secured.run("send", "Secured", "secret").returncode == 0
    assert status(secured.directory / "c")["groups"][0]["syncStateSet"] == [1, 2, 3]
    assert "Traceback" not in secured.logs()
