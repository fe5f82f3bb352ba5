"""The promise of compose.yaml: it is valid, and its servers accept their keys and find each other."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from admin.host.serve import plan, read_values
from audit.reading.storage import parse_stores
from model.config.limits import LimitsConfig
from remoting.guard import Limits
from tests import ROOT

BROKERS = ("broker-0", "broker-1", "broker-2")
NAMESRVS = ("namesrv-0", "namesrv-1", "namesrv-2")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


def uses(compose: dict[str, Any], service: str, kind: str) -> dict[str, str]:
    """Which of the file's secrets or configs ``service`` has: its path inside -> its name."""
    found = {}
    for use in compose["services"][service].get(kind, []):
        use = {"source": use} if isinstance(use, str) else use
        default = f"/run/secrets/{use['source']}" if kind == "secrets" else f"/{use['source']}"
        found[use.get("target", default)] = use["source"]
    return found


def source(compose: dict[str, Any], kind: str, name: str) -> Path:
    """The file on the host behind a secret or a config."""
    return ROOT / str(compose[kind][name]["file"])


def settings(compose: dict[str, Any], service: str) -> dict[str, str]:
    """What the server of ``service`` is started with: the file it is given, and what it sets itself."""
    _, option, path, *rest = compose["services"][service]["command"]
    assert option == "-c"
    assert all(part.startswith("--set=") for part in rest)
    file = source(compose, "configs", uses(compose, service, "configs")[path])
    return read_values(str(file), [part.removeprefix("--set=") for part in rest])


def address(compose: dict[str, Any], service: str) -> str:
    return str(compose["services"][service]["networks"]["mq"]["ipv4_address"])


def has_compose() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


def test_it_is_valid(compose: dict[str, Any]) -> None:
    """By Docker itself where it is installed, and by a schema of what the file uses everywhere."""
    schema = json.loads((Path(__file__).parent / "compose.schema.json").read_text())
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(compose)
    if has_compose():
        command = [
            "docker",
            "compose",
            "--profile",
            "audit",
            "--profile",
            "watch",
            "-f",
            str(ROOT / "compose.yaml"),
            "config",
            "--quiet",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_schema_refuses_what_compose_would(compose: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "compose.schema.json").read_text())
    broken = {**compose, "services": {"x": {"image": "y", "comand": []}}}
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(broken, schema)


@pytest.mark.parametrize("service", [*NAMESRVS, *BROKERS])
def test_every_server_accepts_its_configuration(compose: dict[str, Any], service: str) -> None:
    role = compose["services"][service]["command"][0]
    made = plan(role, settings(compose, service))
    assert made.role == role
    assert made.admin_port == 9000


@pytest.mark.parametrize("kind", ["secrets", "configs"])
def test_a_read_only_service_gets_its_secrets_and_configs_from_files(
    compose: dict[str, Any], kind: str
) -> None:
    """Anything else Compose copies into the container, and a read-only root file system refuses that
    (docker/compose#12303). A file is mounted as it is: uid and mode would be promised and not given."""
    for service, its in compose["services"].items():
        for name in uses(compose, service, kind).values():
            if its.get("read_only"):
                assert set(compose[kind][name]) == {"file"}, f"{service}: {name}"
        for use in its.get(kind, []):
            assert isinstance(use, str) or set(use) <= {"source", "target"}, f"{service}: {use}"


def test_configs_are_in_the_repository_and_secrets_are_not(compose: dict[str, Any], tmp_path: Path) -> None:
    for name in compose["configs"]:
        assert source(compose, "configs", name).is_file()
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    shutil.copy(ROOT / "Makefile", tmp_path)
    subprocess.run(["make", "-C", str(tmp_path), "secrets"], check=True, capture_output=True)
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - {tmp_path / "Makefile"}
    assert made == {tmp_path / compose["secrets"][name]["file"] for name in compose["secrets"]}
    for path in made:
        # Who runs in the container reads it, and on the host only who may enter the directory.
        assert path.stat().st_mode & 0o777 == 0o444
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert re.search(r"\b[0-9a-f]{64}\b", path.read_text())


def test_a_secret_that_cannot_be_made_leaves_no_file_that_looks_like_one(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("raft", "peers"):
        again = ["make", "-C", str(tmp_path), f"deploy/secrets/{name}"]
        assert subprocess.run([*again, "PYTHON=false"], check=False, capture_output=True).returncode
        assert not (tmp_path / "deploy/secrets" / name).exists()
        subprocess.run(again, check=True, capture_output=True)
        assert (tmp_path / "deploy/secrets" / name).stat().st_size > 64
    assert sorted(path.name for path in (tmp_path / "deploy/secrets").iterdir()) == ["peers", "raft"]


def test_secrets_are_mounted_where_the_servers_look(compose: dict[str, Any]) -> None:
    for service in (*NAMESRVS, *BROKERS):
        looked_for = {v for k, v in settings(compose, service).items() if v.startswith("/run/secrets/")}
        assert looked_for == set(uses(compose, service, "secrets"))


def test_no_server_believes_a_peer_that_proves_nothing(compose: dict[str, Any]) -> None:
    for name in (*NAMESRVS, *BROKERS):
        own = settings(compose, name)
        assert own["bindAddress"] == "0.0.0.0"
        assert "trustPeers" not in own
        assert uses(compose, name, "secrets")[own["peerCredentialsFile"]] == "peers"
        if name in BROKERS:
            assert uses(compose, name, "secrets")[own["haSecretFile"]] == "ha"


def test_controllers_and_name_servers_are_where_others_look(compose: dict[str, Any]) -> None:
    here = {name: address(compose, name) for name in NAMESRVS}
    peers = {settings(compose, name)["controllerDLegerPeers"] for name in NAMESRVS}
    assert peers == {";".join(f"n{i}-{here[name]}:9877" for i, name in enumerate(NAMESRVS))}
    assert [settings(compose, n)["controllerDLegerSelfId"] for n in NAMESRVS] == ["n0", "n1", "n2"]
    for broker in BROKERS:
        own = settings(compose, broker)
        assert own["namesrvAddr"] == ";".join(f"{here[n]}:9876" for n in NAMESRVS)
        assert own["controllerAddr"] == ";".join(f"{here[n]}:9877" for n in NAMESRVS)
        assert own["brokerIP1"] == address(compose, broker)


def test_replication_goes_through_toxiproxy(compose: dict[str, Any]) -> None:
    file = source(compose, "configs", uses(compose, "toxiproxy", "configs")["/etc/toxiproxy.json"])
    assert "-config=/etc/toxiproxy.json" in compose["services"]["toxiproxy"]["command"]
    proxies = {p["name"]: p for p in json.loads(file.read_text())}
    for number, broker in enumerate(BROKERS):
        own = settings(compose, broker)
        assert own["brokerIP2"] == address(compose, "toxiproxy")
        assert proxies[f"ha-{number}"]["listen"] == f"0.0.0.0:{own['haListenPort']}"
        assert proxies[f"ha-{number}"]["upstream"] == f"{address(compose, broker)}:{own['haListenPort']}"


def test_names_used_are_names_declared(compose: dict[str, Any]) -> None:
    subnet = ipaddress.ip_network(compose["networks"]["mq"]["ipam"]["config"][0]["subnet"])
    addresses = []
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"]
        for kind in ("secrets", "configs"):
            assert set(uses(compose, name, kind).values()) <= set(compose[kind])
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        addresses += [ipaddress.ip_address(n["ipv4_address"]) for n in service.get("networks", {}).values()]
    assert len(set(addresses)) == len(addresses)
    assert all(a in subnet for a in addresses)


def health_check() -> list[str]:
    """What the image asks its server, as the words of a command."""
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert found is not None
    command = json.loads(found[1])
    assert isinstance(command, list)
    return command


def test_servers_have_health_checks_on_their_admin_port(compose: dict[str, Any]) -> None:
    asked = f"/dev/tcp/127.0.0.1/{settings(compose, 'broker-0')['adminPort']}"
    for name in (*NAMESRVS, *BROKERS):
        assert settings(compose, name)["adminPort"] == "9000"
        assert "test" not in compose["services"][name]["healthcheck"], "the image's is the one"
    assert asked in health_check()[-1]


@pytest.mark.parametrize(("status", "code"), [("200 OK", 0), ("503 Service Unavailable", 1), (None, 1)])
def test_the_health_check_says_what_the_server_says(status: str | None, code: int) -> None:
    """``None``: nobody listens. No Python is started for it: six of them every 2 s are a fifth of a core."""
    command = health_check()
    assert command[0] == "bash"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            with server.accept()[0] as link:
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):  # closed over unread bytes, it would reset the answer
                    more = link.recv(1000)
                    assert more, asked
                    asked += more
                assert asked.startswith(b"GET /healthz HTTP/1.0\r\n")
                link.sendall(f"HTTP/1.0 {status}\r\n\r\nHTTP/1.0 200 of old\n".encode())

        if status is None:
            server.close()
        thread = threading.Thread(target=answer)
        if status is not None:
            thread.start()
        asked = [word.replace("/9000", f"/{port}") for word in command]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        if status is not None:
            thread.join()
    assert done.returncode == code, done
    assert status is None or status in done.stdout, "docker inspect shows it"


def test_the_servers_have_one_image_and_it_is_built_once(compose: dict[str, Any]) -> None:
    """Compose builds for each service that says how: six images of one name, five of them left over."""
    assert {compose["services"][name]["image"] for name in (*NAMESRVS, *BROKERS)} == {"keelmq:local"}
    assert [name for name, its in compose["services"].items() if "build" in its] == ["namesrv-0", "audit"]


def test_prometheus_asks_every_server_and_judges_by_our_rules(compose: dict[str, Any]) -> None:
    mounted = uses(compose, "prometheus", "configs")
    text = source(compose, "configs", mounted["/etc/prometheus/prometheus.yml"]).read_text()
    told = yaml.safe_load(text)
    (job,) = told["scrape_configs"]
    servers = {f"{address(compose, name)}:9000" for name in (*NAMESRVS, *BROKERS)}
    assert set(job["static_configs"][0]["targets"]) == servers
    for name in (*NAMESRVS, *BROKERS):
        own = settings(compose, name)
        assert (own["adminAddress"], own["adminPort"]) == ("0.0.0.0", "9000")
    (rules,) = told["rule_files"]
    assert source(compose, "configs", mounted[f"/etc/prometheus/{rules}"]).name == "keelmq.rules.yml"
    for service in ("prometheus", "grafana"):
        assert all(port.startswith("127.0.0.1:") for port in compose["services"][service]["ports"])


def test_grafana_is_given_every_dashboard_where_it_looks(compose: dict[str, Any]) -> None:
    mounted = uses(compose, "grafana", "configs")
    provisioning = "/etc/grafana/provisioning"
    (provider,) = yaml.safe_load(
        source(compose, "configs", mounted[f"{provisioning}/dashboards/keelmq.yml"]).read_text()
    )["providers"]
    found = {
        source(compose, "configs", name).name
        for at, name in mounted.items()
        if Path(at).parent == Path(provider["options"]["path"])
    }
    assert found == {path.name for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    (data,) = yaml.safe_load(
        source(compose, "configs", mounted[f"{provisioning}/datasources/keelmq.yml"]).read_text()
    )["datasources"]
    assert (data["type"], data["url"]) == ("prometheus", "http://prometheus:9090")
    home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounted


def test_the_audit_reads_every_store_and_cannot_write_one(compose: dict[str, Any]) -> None:
    audit = compose["services"]["audit"]
    assert audit["profiles"] == ["audit"]
    specs = parse_stores([part for part in audit["command"][1:] if not part.startswith("--")])
    mounted = {v.split(":")[1]: v for v in audit["volumes"]}
    for spec, broker in zip(specs, BROKERS, strict=True):
        volume = mounted[spec.location.removesuffix("/store")]
        own = compose["services"][broker]["volumes"][0].split(":")[0]
        assert volume == f"{own}:{spec.location.removesuffix('/store')}:ro"
    named = (audit["network_mode"], audit["hostname"])
    assert named == ("none", "localhost"), "a JVM asks for the address of its name"


def test_the_image_holds_every_package_and_runs_as_nobody_special() -> None:
    text = (ROOT / "Dockerfile").read_text()
    packages = re.search(
        r"wheel\.hooks\.custom\]\npackages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.S
    )
    assert packages is not None
    for package in ["keelmq", *re.findall(r'"(\w+)"', packages[1])]:
        assert f"COPY {package} {package}\n" in text
        assert f"!{package}\n" in (ROOT / ".dockerignore").read_text()
    assert "!hatch_build.py\n" in (ROOT / ".dockerignore").read_text()
    assert "\nUSER 10001:10001\n" in text
    assert "-c constraints.txt" not in text, "hashes say more than versions"


def test_every_container_has_its_limits(compose: dict[str, Any]) -> None:
    units = {"m": 1 << 20, "g": 1 << 30}
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["pids_limit"]) >= 64, name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        assert int(service["mem_limit"][:-1]) * units[service["mem_limit"][-1]] >= 256 << 20, name
    limits = LimitsConfig.from_mapping({})
    broker = compose["services"]["broker-0"]["mem_limit"]
    bounds = Limits()
    own = bounds.begun_bytes_max + bounds.unread_bytes_max + limits.held_pulls_max * 2048 + (400 << 20)
    own += limits.offset_pairs_max * 3072 + limits.held_pull_bytes_max + limits.client_bytes_max
    assert int(broker[:-1]) * units[broker[-1]] >= own, "what its bounds allow, tables and itself"


def test_the_image_looks_after_its_server_and_installs_with_hashes() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert health_check()
    assert "for lock in server $(echo" in text
    assert '--require-hashes -r "requirements-$lock.lock"' in text


def test_what_is_no_server_has_no_servers_health_check_and_the_proxys_api_is_its_own(
    compose: dict[str, Any],
) -> None:
    assert compose["services"]["audit"]["healthcheck"] == {"disable": True}
    assert "-host=127.0.0.1" in compose["services"]["toxiproxy"]["command"]
    assert {settings(compose, name)["minInSyncReplicas"] for name in BROKERS} == {"2"}
