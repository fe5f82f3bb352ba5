"""The promise of ``keelmq doctor``: what is wrong is named, with what to do; what is in order is not."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from admin.doctor import cluster, cluster_checks, local_checks, machine
from admin.doctor.cluster_checks import Answer, Clock, Cluster, clock_of_runtime
from admin.doctor.findings import Finding, Level, worst
from admin.doctor.local_checks import Limits, Local, Port, SecretFile, Space
from admin.exits import FAILED, run
from cli.main import command
from client.admin import SyncState
from model.codes import Request
from model.errors import Refused
from runtime.os_env import OsEnv

GIB = 1 << 30
SOUND = Local(
    "broker.conf",
    "broker",
    secrets=[SecretFile("haSecretFile", "/etc/ha", "", 0o600)],
    spaces=[Space("storePathRootDir", "/store", 100 * GIB, 50 * GIB, 900, 1000, True, is_store=True)],
    ports=[Port("listenPort", "h:1", "taken"), Port("haListenPort", "h:2", "taken")],
    limits=Limits(1 << 20, 50, 7),
    running=True,
    connections_max=20_000,
    segment_bytes=GIB,
)


def wrong(found: list[Finding]) -> list[tuple[Level, str, str]]:
    """What is not in order; and every such thing says what to do."""
    assert all(one.todo for one in found if one.level is not Level.OK)
    assert not any(one.todo for one in found if one.level is Level.OK)
    return [(one.level, one.check, one.text) for one in found if one.level is not Level.OK]


def test_a_sound_server_is_in_order() -> None:
    assert wrong(local_checks.judge(SOUND)) == []
    stopped = replace(SOUND, running=None, ports=[replace(p, state="free") for p in SOUND.ports])
    assert wrong(local_checks.judge(stopped)) == []


def space(**changes: object) -> Local:
    return replace(SOUND, spaces=[replace(SOUND.spaces[0], **changes)])  # type: ignore[arg-type]


JOURNAL = Space("controllerStorePath", "/raft", 100 * GIB, 1 * GIB, 900, 1000, True)


@pytest.mark.parametrize(
    ("seen", "level", "check", "text"),
    [
        (Local("x", "broker", error="unknown key y"), Level.FAILED, "configuration", "unknown key y"),
        (
            replace(SOUND, doubts=["a=1: few mean that: set a to 2"]),
            Level.WARNING,
            "configuration",
            "a=1: few",
        ),
        (replace(SOUND, running=False, ports=[]), Level.FAILED, "process", "not running"),
        (replace(SOUND, health="fenced: no Controller"), Level.FAILED, "health", "serve: fenced: no Contr"),
        (
            replace(SOUND, secrets=[SecretFile("k", "/s", "permission denied")]),
            Level.FAILED,
            "secrets",
            "permission denied",
        ),
        (replace(SOUND, secrets=[SecretFile("k", "/s", "", 0o640)]), Level.WARNING, "secrets", "mode 640"),
        (space(writable=False), Level.FAILED, "disk", "cannot write"),
        (space(free_bytes=9 * GIB), Level.FAILED, "disk", "refused above 90 %"),
        (space(free_bytes=20 * GIB), Level.WARNING, "disk", "any hour above 75 %"),
        (space(total_bytes=3 * GIB, free_bytes=GIB), Level.FAILED, "disk", "two segments"),
        (space(free_inodes=49), Level.FAILED, "disk", "49 inodes"),
        (replace(SOUND, spaces=[replace(JOURNAL, free_bytes=1000)]), Level.FAILED, "disk", "100 % used"),
        (
            replace(SOUND, ports=[*SOUND.ports, Port("adminPort", "h:3", "free")]),
            Level.WARNING,
            "ports",
            "nobody listens here",
        ),
        (
            replace(SOUND, ports=[Port("listenPort", "h:1", "cannot assign requested address")]),
            Level.FAILED,
            "ports",
            "cannot assign",
        ),
        (replace(SOUND, limits=Limits(1024, None, None)), Level.WARNING, "limits", "may need 21,000"),
        (replace(SOUND, limits=Limits(1 << 20, 900_000, 7)), Level.FAILED, "limits", "900,000 open"),
    ],
)
def test_what_is_wrong_with_a_server_here_is_named(seen: Local, level: Level, check: str, text: str) -> None:
    ((found, of, said),) = wrong(local_checks.judge(seen))
    assert (found, of) == (level, check)
    assert text in said


def test_a_journal_needs_less_room_than_a_store() -> None:
    assert wrong(local_checks.judge(replace(SOUND, spaces=[JOURNAL]))) == []


def test_another_program_at_one_of_the_ports_is_told_from_a_server_that_runs() -> None:
    stopped = replace(
        SOUND, running=None, ports=[Port("listenPort", "h:1", "taken"), Port("haListenPort", "h:2", "free")]
    )
    assert [(level, check) for level, check, _ in wrong(local_checks.judge(stopped))] == [
        (Level.FAILED, "ports"),
        (Level.WARNING, "ports"),
    ]
    down = replace(SOUND, running=False, ports=[Port("listenPort", "h:1", "taken")])
    assert "another program" in wrong(local_checks.judge(down))[1][2]


STATE = SyncState(
    "a",
    1,
    "h:10",
    3,
    7,
    {1: "h:10", 2: "h:20"},
    {},
    {1: True, 2: True},
    {},
    {},
)
MEMBERS = {0: "h:10", 2: "h:20"}
WELL = Cluster(
    nameservers=[Answer("NameServer", f"n:{i}", said={"brokers": {"a": MEMBERS}}) for i in range(2)],
    controllers=[
        Answer("Controller", f"c:{i}", said={"controllerLeaderAddress": "c:0"}, clock=Clock(3, 2))
        for i in range(3)
    ],
    brokers=[
        Answer("broker", address, said={"commitLogDiskRatio": "0.5"}, clock=Clock(-4, 2))
        for address in ("h:10", "h:20")
    ],
    groups={"a": MEMBERS},
    states={"a": STATE},
)


def broker(**changes: object) -> Cluster:
    return replace(WELL, brokers=[WELL.brokers[0], replace(WELL.brokers[1], **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("master", "members", "gives_up"), [(1, {1}, False), (1, {1, 2}, False), (None, {2}, True)]
)
def test_of_a_dead_member_that_no_master_drops_it_is_said_how_to_give_it_up(
    master: int | None, members: set[int], gives_up: bool
) -> None:
    both = {1: "h:10", 2: "h:20"}
    inside = {number: both[number] for number in members}
    outside = {number: address for number, address in both.items() if number not in members}
    state = replace(STATE, master=master, in_sync=inside, not_in_sync=outside, alive={1: True, 2: False})
    found = cluster_checks.judge(replace(WELL, states={"a": state}))
    (todo,) = [one.todo for one in found if one.check == "replicas" and "group forget" in one.todo]
    assert todo.endswith("--broker 2" + " --give-up" * gives_up)


def test_a_sound_cluster_is_in_order() -> None:
    found = cluster_checks.judge(WELL)
    assert wrong(found) == []
    assert {one.check for one in found} == {
        *("reachable", "routes", "Controllers", "groups", "replicas", "disk", "clocks")
    }


@pytest.mark.parametrize(
    ("seen", "level", "check", "text"),
    [
        (broker(problem="cannot connect"), Level.FAILED, "reachable", "cannot connect"),
        (
            replace(
                WELL, nameservers=[WELL.nameservers[0], replace(WELL.nameservers[1], said={"brokers": {}})]
            ),
            Level.WARNING,
            "routes",
            "different brokers",
        ),
        (
            replace(WELL, controllers=[replace(one, said={}) for one in WELL.controllers]),
            Level.FAILED,
            "Controllers",
            "no leader",
        ),
        (
            replace(WELL, controllers=[replace(WELL.controllers[0], said={}), *WELL.controllers[1:]]),
            Level.FAILED,
            "Controllers",
            "c:0 follows nobody, c:1 follows c:0",
        ),
        (replace(WELL, states_problem="it refuses"), Level.FAILED, "Controllers", "it refuses"),
        (replace(WELL, groups={"a": {2: "h:20"}}), Level.FAILED, "groups", "no master: messages"),
        (replace(WELL, groups={}, brokers=[], states={}), Level.FAILED, "groups", "no broker is known there"),
        (
            replace(WELL, states={"a": replace(STATE, master=None)}),
            Level.FAILED,
            "groups",
            "Controllers have no master",
        ),
        (
            replace(WELL, states={"a": replace(STATE, master=2, master_address="h:20")}),
            Level.WARNING,
            "groups",
            "NameServers say h:10, Controllers h:20",
        ),
        (replace(WELL, states={"a": replace(STATE, alive={1: True})}), Level.FAILED, "replicas", "dead"),
        (broker(said={"commitLogDiskRatio": "0.80"}), Level.WARNING, "disk", "80 % used"),
        (broker(said={"commitLogDiskRatio": "0.95"}), Level.FAILED, "disk", "95 % used"),
        (broker(said={"dispatchBehindBytes": str(GIB)}), Level.WARNING, "dispatch", "1024 MiB"),
        (broker(said={"brokerActive": "false"}), Level.FAILED, "broker", "not active"),
        (broker(clock=Clock(-5_000, 10)), Level.WARNING, "clocks", "5.0 s behind of the other servers"),
        (broker(clock=Clock(400_000, 10)), Level.FAILED, "clocks", "signed requests are refused"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_named(seen: Cluster, level: Level, check: str, text: str) -> None:
    ((found, of, said),) = wrong(cluster_checks.judge(seen))
    assert (found, of) == (level, check)
    assert text in said


def test_a_replica_alone_in_sync_is_a_failure_and_the_others_are_named() -> None:
    alone = replace(STATE, in_sync={1: "h:10"}, not_in_sync={2: "h:20"})
    found = wrong(cluster_checks.judge(replace(WELL, states={"a": alone})))
    assert [(level, check) for level, check, _ in found] == [
        (Level.WARNING, "replicas"),
        (Level.FAILED, "replicas"),
    ]


def test_this_machines_clock_may_be_the_one_that_is_wrong() -> None:
    """All servers are 10 s ahead: none of them is named."""
    moved = [replace(one, clock=Clock(10_000, 5)) for one in (*WELL.controllers, *WELL.brokers)]
    ((level, check, text),) = wrong(
        cluster_checks.judge(replace(WELL, controllers=moved[:3], brokers=moved[3:]))
    )
    assert (level, check) == (Level.WARNING, "clocks")
    assert text == "this machine is 10.0 s from the servers"


async def test_a_refusal_for_its_clock_is_a_clock_finding() -> None:
    text = "User:x is not found.; x is a key of peerCredentialsFile, and GET_BROKER_RUNTIME_INFO is refused: "

    class Refusing:
        env = OsEnv()

        async def call(self, *_: object, **__: object) -> None:
            raise Refused(f"{text}its time is 599 s behind this server's clock", 16)

    class Admin:
        session = Refusing()

    answer = await cluster._ask(Admin(), "broker", "h:1", Request.GET_BROKER_RUNTIME_INFO, dict)  # type: ignore[arg-type]
    assert (answer.refused, answer.clock) == (True, Clock(599_000, 1000))
    found = cluster_checks.judge(replace(WELL, brokers=[*WELL.brokers, answer]))
    reached, clocks = [one for one in found if one.level is Level.FAILED]
    assert (reached.check, reached.todo[:38]) == ("reachable", "its clock and this machine's differ, s")
    assert (clocks.check, clocks.where) == ("clocks", "broker h:1")
    assert "599.0 s ahead of the other servers (known to 1000 ms)" in clocks.text


def test_a_clock_that_is_known_to_the_second_is_not_blamed_for_less() -> None:
    assert wrong(cluster_checks.judge(broker(clock=Clock(1_900, 1_010)))) == []
    assert wrong(cluster_checks.judge(broker(clock=Clock(2_500, 1_010))))


def test_the_clock_of_a_broker_is_when_it_booted_and_how_long_ago() -> None:
    boot = {"bootTimestamp": "1000"}
    assert clock_of_runtime({**boot, "runtime": "[ 61 seconds ]"}) == 62_000
    real = "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert clock_of_runtime({**boot, "runtime": real}) == 1000 + (((24 + 2) * 60 + 3) * 60 + 4) * 1000
    assert clock_of_runtime({"runtime": real}) is None
    assert clock_of_runtime(boot) is None


@pytest.mark.parametrize(
    ("values", "role"),
    [
        ({"brokerName": "a", "listenPort": "1"}, "broker"),
        ({"listenPort": "1", "enableControllerInNamesrv": "true", "controllerDLegerSelfId": "n0"}, "namesrv"),
        ({"controllerDLegerSelfId": "n0", "controllerDLegerPeers": "n0-h:1"}, "controller"),
        ({"listenPort": "1"}, None),
        ({}, None),
    ],
)
def test_a_file_tells_by_its_keys_whose_it_is(values: dict[str, str], role: str | None) -> None:
    assert machine.role_of(values) == role


def test_a_look_at_this_machine_sees_files_ports_and_limits_and_changes_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "ha.secret"
    secret.write_text("x" * 20)
    secret.chmod(0o604)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        values = {
            "listenPort": str(port),
            "haListenPort": "1",
            "enableFastPort": "false",
            "brokerName": "a",
            "storePathRootDir": str(tmp_path / "not" / "yet"),
            "haSecretFile": str(secret),
            "peerCredentialsFile": str(tmp_path / "none.json"),
            "sendMessageThreadPoolNums": "16",
            "diskMaxUsedSpaceRatio": "60",
        }
        seen = machine.look("broker.conf", "broker", values)
    assert (seen.error, seen.ignored) == ("", ("sendMessageThreadPoolNums",))
    assert {one.key: (one.problem, one.mode) for one in seen.secrets} == {
        "haSecretFile": ("", 0o604),
        "peerCredentialsFile": ("no such file or directory", 0),
    }
    assert [one.state for one in seen.ports if one.key == "listenPort"] == ["taken"]
    assert seen.spaces[0].total_bytes > 0
    assert seen.limits is not None
    assert seen.limits.most > 0
    assert seen.disk_percent == (60, 90)
    assert sorted(tmp_path.iterdir()) == [secret]


class _Status(http.server.BaseHTTPRequestHandler):
    """What a server says at its adminPort."""

    body = b""
    health = 200, b"ok"

    def do_GET(self) -> None:
        code, text = {"/status": (200, self.body), "/healthz": self.health}.get(self.path, (404, b""))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


def looked_at(handler: type[_Status]) -> Local:
    """What a look sees of a server that answers like this."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        answering = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        answering.start()
        try:
            values = {"adminPort": str(server.server_port), "listenPort": "1"}
            return machine.look("n.conf", "namesrv", values)
        finally:
            server.shutdown()
            answering.join()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b'{"tls": {"error": "tls.server.certPath=/s.pem: expired"}}', "/s.pem: expired"),
        (
            b'{"controller": {"raft": {"tls": {"error": "tls.server.certPath=/s.pem: expired"}}}}',
            "/s.pem: expired",
        ),
        (b'{"tls": {"error": null}}', None),
        (b'{"serverRole": "namesrv"}', None),
        (b"another program", None),
    ],
)
def test_tls_files_that_a_running_server_does_not_take_are_a_failure(said: bytes, text: str | None) -> None:
    handler = type("Status", (_Status,), {"body": said})
    seen = looked_at(handler)
    found = [one for one in wrong(local_checks.judge(seen)) if one[1] == "tls"]
    if text is None:
        assert found == []
    else:
        assert found == [(Level.FAILED, "tls", f"the running server says: tls.server.certPath={text}")]


@pytest.mark.parametrize(
    ("said", "health", "text"),
    [
        (
            b'{"serverRole": "broker"}',
            (503, b"fenced: no Controller answers"),
            "fenced: no Controller answers",
        ),
        (b'{"serverRole": "broker"}', (200, b"ok"), None),
        (b'{"serverRole": "broker"}', (404, b"what?"), None),
        (b"another program", (503, b"down"), None),
    ],
)
def test_a_running_server_that_does_not_serve_is_a_failure(
    said: bytes, health: tuple[int, bytes], text: str | None
) -> None:
    handler = type("Status", (_Status,), {"body": said, "health": health})
    seen = looked_at(handler)
    assert seen.health == (text or "")


SOUND_KEY = '{"accessKey":"peers","secretKey":"0123456789abcdef"}'


@pytest.mark.parametrize(
    ("key", "content", "level", "text"),
    [
        ("peerCredentialsFile", "{", Level.FAILED, "not JSON"),
        ("peerCredentialsFile", '{"accessKey":"a","secretKey":"short"}', Level.FAILED, "at least 16 bytes"),
        ("peerCredentialsFile", SOUND_KEY[:-1] + ',"for":"peer"}', Level.FAILED, '"for" is peers'),
        ("haSecretFile", "short", Level.FAILED, "at least 16 bytes"),
        ("aclHome", "accounts: [", Level.FAILED, "not YAML"),
        ("aclHome", "globalWhiteRemoteAddresses: [10.10.300.*]", Level.FAILED, "10.10.300"),
        ("aclHome", "accounts: []\nglobalWhiteRemoteAdresses: []", Level.WARNING, "has no effect"),
    ],
)
def test_secrets_and_accounts_are_read_as_the_server_reads_them(
    tmp_path: Path, key: str, content: str, level: Level, text: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(content)
    path.chmod(0o600)
    given = {"aclEnable": "true", "aclHome": str(tmp_path)} if key == "aclHome" else {key: str(path)}
    seen = machine.look(
        "broker.conf", "broker", {"brokerName": "a", "listenPort": "18911", "haListenPort": "18912", **given}
    )
    ((found, check, said),) = wrong([one for one in local_checks.judge(seen) if one.check == "secrets"])
    assert (found, check) == (level, "secrets")
    assert text in said


def test_what_a_file_allows_and_nobody_needs_is_a_warning(tmp_path: Path) -> None:
    conf, key = tmp_path / "broker.conf", tmp_path / "peers.json"
    key.write_text(SOUND_KEY)
    key.chmod(0o600)
    conf.write_text("")
    conf.chmod(0o644)
    values = {
        "brokerName": "a",
        "listenPort": "18911",
        "haListenPort": "18912",
        "peerCredentialsFile": str(key),
        "trustPeers": "true",
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"secret"}',
    }
    found = wrong(
        [f for f in local_checks.judge(machine.look(str(conf), "broker", values)) if f.check == "secrets"]
    )
    assert [level for level, _, _ in found] == [Level.WARNING, Level.WARNING]
    assert "trustPeers=true beside peerCredentialsFile" in found[0][2]
    assert "the secret of initAuthenticationUser" in found[1][2]
    conf.chmod(0o600)
    assert len(machine.look(str(conf), "broker", values).risks) == 1


def test_what_a_start_warns_of_is_a_warning() -> None:
    values = {"listenPort": "18911", "haListenPort": "18912", "majorityAck": "true"}
    refused = machine.look("broker.conf", "broker", values)
    assert refused.error.startswith("majorityAck=true with totalReplicas=1: ")
    seen = machine.look("broker.conf", "broker", {**values, "totalReplicas": "1"})
    (found,) = [
        one for one in local_checks.judge(seen) if one.check == "configuration" and one.level > Level.OK
    ]
    assert found.todo.startswith("set totalReplicas to the number of brokers")


@pytest.mark.parametrize(
    ("problem", "refused", "todo"),
    [
        ("TLS handshake failed: its certificate is not believed: self-signed", False, "--tls-ca"),
        ("User:people2 is not found.", True, "--credentials"),
        ("the connection to h:1 ended before the answer", False, "--tls-ca"),
        ("the TLS connection to h:1 ended before the answer", False, "its log says why"),
        ("cannot connect to h:1", False, "is it running?"),
    ],
)
def test_the_advice_goes_by_how_a_server_failed_to_answer(problem: str, refused: bool, todo: str) -> None:
    seen = Cluster(nameservers=[Answer("NameServer", "h:1", problem, refused=refused)])
    (found,) = [one for one in cluster_checks.judge(seen) if one.check == "reachable"]
    assert todo in found.todo


def test_controllers_that_nobody_reached_are_not_said_to_have_no_leader() -> None:
    seen = Cluster(controllers=[Answer("Controller", "h:1", "cannot connect to h:1")])
    assert [text for _, check, text in wrong(cluster_checks.judge(seen)) if check == "Controllers"] == [
        "none of them was reached"
    ]


def test_who_follows_nobody_is_named_and_a_replaced_seat_is_thought_of() -> None:
    leads = {"controllerLeaderAddress": "h:3"}
    seen = Cluster(
        controllers=[Answer("Controller", "h:1", said=leads), Answer("Controller", "h:2", said={})],
    )
    (found,) = [one for one in cluster_checks.judge(seen) if one.check == "Controllers"]
    assert found.text == "they do not agree who leads: h:1 follows h:3, h:2 follows nobody"
    assert "controller replace" in found.todo


def test_a_file_with_a_mistake_is_a_finding_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, torn = tmp_path / "broker.conf", tmp_path / "torn.conf"
    bad.write_text("brokerName=a\nbrokerNam=b\n")
    torn.write_text("no equals sign\n")
    assert run(command(), ["doctor", "-c", str(bad), "-c", str(torn), "--json"]) == FAILED
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "failed"
    assert [(f["check"], f["where"]) for f in found["findings"]] == [
        ("configuration", str(bad)),
        ("configuration", str(torn)),
    ]
    assert "did you mean brokerName?" in found["findings"][0]["text"]
    assert "line 1" in found["findings"][1]["text"]
    assert worst([]) is Level.OK
