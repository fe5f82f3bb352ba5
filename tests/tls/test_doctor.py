"""The promise of ``keelmq doctor`` about TLS: what a start or a peer would refuse is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.doctor import local_checks, machine
from admin.doctor.findings import Finding, Level
from runtime.tls.making import Pair, issue
from tests.remoting.support import HOST
from tests.tls.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """One of its own: its files change."""
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site")


def judged(site: Site, tmp_path: Path, **changes: str) -> list[Finding]:
    keys = {
        "tls.enable": "true",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": site.path("server.pem"),
        "tls.server.keyPath": site.path("server.key"),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": site.ca,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": site.ca,
        "tls.client.certPath": site.path("client.pem"),
        "tls.client.keyPath": site.path("client.key"),
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in keys.items() if value))
    values = {
        "listenPort": "18911",
        "haListenPort": "18912",
        "brokerName": "a",
        "brokerIP1": HOST,
        "tls.config.file": str(file),
    }
    seen = machine.look("broker.conf", "broker", values)
    return [one for one in local_checks.judge(seen) if one.check in ("tls", "secrets", "configuration")]


def told(found: list[Finding]) -> list[tuple[Level, str]]:
    return [(one.level, one.text) for one in found if one.check == "tls"]


def test_files_that_fit_are_in_order_and_their_keys_are_looked_at(site: Site, tmp_path: Path) -> None:
    found = judged(site, tmp_path)
    ((level, text),) = told(found)
    assert (level, text[:14]) == (Level.OK, "its files fit;")
    assert [one.where.split(": ")[1].split("=")[0] for one in found if one.check == "secrets"] == [
        "tls.client.keyPath",
        "tls.server.keyPath",
    ]
    assert all(one.level is Level.OK for one in found)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tls_server_keyPath": "{d}/site-client.key"}, "key values mismatch"),
        ({"tls_server_mode": "enforced"}, "enforced"),
        ({"tls_sever_mode": "enforcing"}, "tls.sever.mode"),
        ({"tls_enable": "false"}, "dials the other servers without TLS"),
        ({"tls_client_certPath": "", "tls_client_keyPath": ""}, "it shows no certificate"),
        ({"tls_client_trustCertPath": "{d}/nothing.pem"}, "cannot be read"),
    ],
)
def test_what_the_start_or_a_peer_would_refuse_is_a_failure(
    site: Site, tmp_path: Path, changes: dict[str, str], text: str
) -> None:
    given = {name: value.replace("{d}", str(site.directory)) for name, value in changes.items()}
    ((level, said),) = told(judged(site, tmp_path, **given))
    assert level is Level.FAILED
    assert text in said


def of_a_stranger(site: Site, tmp_path: Path) -> Pair:
    (tmp_path / "other").mkdir()
    return issue(Site(tmp_path / "other", "other").authority, "server", 30, (HOST,), server=True)


@pytest.mark.parametrize(
    ("pair", "level", "text"),
    [
        (lambda site, _: site.pair(days=10, ago=20), Level.FAILED, "it expired at"),
        (lambda site, _: site.pair(ago=-3), Level.FAILED, "not good yet"),
        (lambda site, _: site.pair(hosts=("elsewhere",)), Level.FAILED, f"cannot dial it as {HOST}"),
        (of_a_stranger, Level.FAILED, "its certificate is not believed"),
        (lambda site, _: site.pair(days=3), Level.WARNING, "in 2 days"),
    ],
)
def test_a_certificate_that_is_wrong_or_ends_soon_is_named(
    site: Site, tmp_path: Path, pair: object, level: Level, text: str
) -> None:
    assert callable(pair)
    site.put("server", pair(site, tmp_path))
    ((found, said),) = told(judged(site, tmp_path))
    assert found is level
    assert text in said


def test_a_tls_file_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    values = {
        "brokerName": "a",
        "listenPort": "18911",
        "haListenPort": "18912",
        "tls.config.file": str(tmp_path / "none"),
    }
    found = local_checks.judge(machine.look("broker.conf", "broker", values))
    assert [one.text for one in found if one.check == "tls"] == [
        f"tls.config.file={tmp_path}/none: cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("pair", "level", "text"),
    [
        (lambda site: site.pair(), Level.OK, "its files fit; certificate until"),
        (lambda site: site.pair(days=10, ago=20), Level.FAILED, "it expired at"),
        (lambda site: site.pair(days=3), Level.WARNING, "in 2 days"),
        (lambda site: Site(site.directory, "other").pair(), Level.FAILED, "its certificate is not believed"),
    ],
)
def test_the_certificate_of_raft_is_looked_at(site: Site, pair: object, level: Level, text: str) -> None:
    assert callable(pair)
    ca = site.directory / "ca.before"
    ca.write_bytes(Path(site.ca).read_bytes())
    site.put("n1", pair(site))
    values = {
        "controllerDLegerSelfId": "n1",
        "controllerDLegerPeers": "n1-127.0.0.1:18911",
        "raftTlsCert": site.path("n1.pem"),
        "raftTlsKey": site.path("n1.key"),
        "raftTlsCaFile": str(ca),
    }
    found = local_checks.judge(machine.look("c.conf", "controller", values))
    ((seen, said),) = told(found)
    assert (seen, text in said) == (level, True), said
