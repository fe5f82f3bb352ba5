"""The promise of model.config.tls: RocketMQ's keys mean what they mean there, and what cannot be is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.host.serve import plan
from admin.host.tls import tls_of
from model.config.tls import Mode, TlsConfig, split_tls
from model.errors import ConfigError
from runtime.tls.state import TlsState
from tests.tls.site import Site


def test_rocketmqs_own_page_of_keys_is_read(site: Site, tmp_path: Path) -> None:
    """docs/en/Configuration_TLS.md, whose file this is."""
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\n"
        "tls.server.need.client.auth=require\n"
        f"tls.server.keyPath={site.path('server.key')}\n"
        "tls.server.keyPassword=\n"
        f"tls.server.certPath={site.path('server.pem')}\n"
        "tls.server.authClient=true\n"
        f"tls.server.trustCertPath={site.ca}\n"
        f"tls.client.keyPath={site.path('client.key')}\n"
        "tls.client.keyPassword=\n"
        f"tls.client.certPath={site.path('client.pem')}\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={site.ca}\n"
    )
    state = TlsState({"tls.config.file": str(file), "tls.server.mode": "enforcing"})
    config = state.now.config
    assert (config.mode, config.dials, config.checks_clients, config.checks_servers) == (
        Mode.ENFORCING,
        True,
        True,
        True,
    )
    assert state.now.own is not None


def test_a_servers_own_file_goes_before_the_file_it_names(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{k}={v}\n" for k, v in site.server("permissive").items()))
    assert TlsState({"tls.config.file": str(file)}).now.config.mode is Mode.PERMISSIVE
    own = {"tls.config.file": str(file), "tls.server.mode": "ENFORCING"}
    assert TlsState(own).now.config.mode is Mode.ENFORCING


@pytest.mark.parametrize(
    ("values", "dials", "dials_ha", "ha_mode"),
    [
        ({"tls.server.mode": "disabled"}, False, False, "disabled"),
        ({}, False, False, "permissive"),
        ({"tls.server.mode": "permissive"}, False, False, "permissive"),
        ({"tls.server.mode": "permissive", "tls.enable": "true"}, True, True, "permissive"),
        ({"tls.server.mode": "enforcing"}, True, True, "enforcing"),
        ({"tls.server.mode": "enforcing", "tls.ha.enable": "false"}, True, False, "permissive"),
        ({"tls.server.mode": "enforcing", "tls.enable": "false"}, False, False, "permissive"),
    ],
)
def test_who_dials_with_tls_and_what_the_ha_port_takes(
    values: dict[str, str], dials: bool, dials_ha: bool, ha_mode: str
) -> None:
    own = {"tls.server.certPath": "c", "tls.server.keyPath": "k"}
    config = TlsConfig.from_mapping({**own, **values})
    assert (config.dials, config.dials_ha, config.ha_mode) == (dials, dials_ha, ha_mode)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tls.server.mode": "strict"}, "tls.server.mode=strict: expected one of"),
        ({"tls.server.mode": "enforcing"}, "needs tls.server.keyPath and tls.server.certPath"),
        ({"tls.enable": "yes"}, "tls.enable=yes: expected true or false"),
        ({"tls.server.keypath": "x"}, "unknown key tls.server.keypath; did you mean tls.server.keyPath"),
        ({"tls.server.mode": "disabled", "tls.client.keyPath": "k"}, "go together"),
        (
            {
                "tls.server.certPath": "c",
                "tls.server.keyPath": "k",
                "tls.server.need.client.auth": "require",
            },
            "needs tls.server.trustCertPath",
        ),
    ],
)
def test_what_cannot_be_is_named(values: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TlsConfig.from_mapping(values)


def test_files_that_cannot_be_used_are_named_with_their_key(
    site: Site, strangers: Site, tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    site.put("expired", site.pair(days=10, ago=20))
    cert, key, trust = "tls.server.certPath", "tls.server.keyPath", "tls.client.trustCertPath"
    for more, told in (
        ({cert: "/nowhere.pem"}, f"{cert}=/nowhere.pem: cannot be read: No such file"),
        ({cert: str(nonsense)}, f"{cert}=.*nonsense.pem: it holds no PEM certificate; expected PEM"),
        ({key: "/nowhere.key"}, f"{key}=/nowhere.key: there is no such file"),
        ({key: strangers.path("server.key")}, f"{key}=.*key values mismatch.*must be a PEM key of this"),
        ({trust: "/nowhere.pem"}, f"{trust}=/nowhere.pem: cannot be read"),
        ({trust: str(nonsense)}, f"{trust}=.*nonsense"),
        (
            {cert: site.path("expired.pem"), key: site.path("expired.key")},
            f"{cert}=.*it expired at .*renew it",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            TlsState({**site.server(), **more})
    with pytest.raises(ConfigError, match=r"tls.config.file=/nowhere: cannot be read"):
        TlsState({"tls.config.file": "/nowhere"})


def test_a_server_takes_the_keys_out_of_its_file(site: Site) -> None:
    tls, others = split_tls({"useTLS": "true", "listenPort": "1", "tls.server.mode": "disabled"})
    assert (tls, others) == ({"tls.enable": "true", "tls.server.mode": "disabled"}, {"listenPort": "1"})
    made = plan("namesrv", {"listenPort": "9876", **site.server("permissive")})
    assert set(made.tls) == set(site.server())
    assert plan("broker", {"brokerRole": "ASYNC_MASTER"}).tls == {}


def test_a_key_that_others_can_read_is_complained_about(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_key = tmp_path / "open.key"
    open_key.write_bytes(Path(site.path("server.key")).read_bytes())
    open_key.chmod(0o644)
    state = tls_of({**site.server(), "tls.server.keyPath": str(open_key)})
    assert state is not None
    assert "open.key can be read by others than its owner" in caplog.text
    caplog.clear()
    both = {"tls.server.keyPath": str(open_key), "tls.client.certPath": site.path("server.pem")}
    both["tls.client.keyPath"] = str(open_key)
    tls_of({**site.server(), **both})
    assert caplog.text.count("open.key can be read") == 1
    tls_of({**site.server(), **both}, told=[str(open_key)])
    assert caplog.text.count("open.key can be read") == 1


def test_a_file_that_turns_tls_off_has_none() -> None:
    for values in ({}, {"tls.enable": "false"}, {"tls.server.mode": "disabled"}):
        assert tls_of(values) is None
