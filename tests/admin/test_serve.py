"""The promises of admin.host.serve and admin.exits: a bad configuration is one line and 64."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from admin.exits import DONE, INTERRUPTED, UNFINISHED, USAGE, run
from admin.host import serve as serving
from admin.host.serve import NameServerWithController, plan, read_values
from model.codes import Request
from model.errors import ConfigError, DiskError
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests import ROOT
from tests.ports import free_port, free_ports

CONTROLLER = {
    "enableControllerInNamesrv": "true",
    "controllerDLegerPeers": "n0-127.0.0.1:9878",
    "controllerDLegerSelfId": "n0",
}


class FakeServer:
    def __init__(
        self, error: Exception | None = None, wait_s: float = 0.0, health: str | None = None
    ) -> None:
        self.calls: list[str] = []
        self._error = error
        self._wait_s = wait_s
        self._health = health
        self.companions: dict[str, Any] = {}

    async def start(self) -> None:
        self.calls.append("start")
        await asyncio.sleep(self._wait_s)
        if self._error is not None:
            raise self._error
        self.calls.append("started")

    async def stop(self) -> None:
        self.calls.append("stop")

    def status(self) -> dict[str, Any]:
        return {"calls": len(self.calls), **{n: c.status() for n, c in self.companions.items()}}

    def health(self) -> str | None:
        return self._health or next((c.health() for c in self.companions.values()), None)


def test_a_file_and_settings_are_read_settings_win(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# comment\nbrokerName = broker-b\nlistenPort=10911\n")
    assert read_values(str(conf), ["listenPort=20911"]) == {"brokerName": "broker-b", "listenPort": "20911"}


def test_no_server_starts_without_the_checks_of_its_promises() -> None:
    command = [sys.executable, "-O", "-m", "cli.main", "broker"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == USAGE
    (line,) = done.stderr.splitlines()
    assert "python -O or PYTHONOPTIMIZE" in line


def test_toml_is_read_by_its_name(tmp_path: Path) -> None:
    conf = tmp_path / "broker.toml"
    conf.write_text('brokerName = "broker-b"\nenableControllerMode = false\n')
    assert read_values(str(conf), []) == {"brokerName": "broker-b", "enableControllerMode": "false"}


@pytest.mark.parametrize("settings", [["x"], ["=1"]])
def test_a_setting_that_is_none_is_refused(settings: list[str]) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        read_values(None, settings)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/x\.conf"):
        read_values("/nowhere/x.conf", [])


def test_one_file_holds_the_keys_of_nameserver_and_controller() -> None:
    chosen = plan("namesrv", {**CONTROLLER, "listenPort": "9900", "raftElectionMinMs": "350"})
    assert (chosen.role, chosen.address) == ("namesrv", "127.0.0.1:9900")


def test_a_mistyped_key_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean listenPort"):
        plan("namesrv", {"listenport2": "1"})
    with pytest.raises(ConfigError, match="did you mean brokerName"):
        plan("broker", {"brokername": "x"})


def test_controller_keys_without_a_controller_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="enableControllerInNamesrv=true"):
        plan("namesrv", {"controllerDLegerPeers": "n0-h:1"})


def test_a_controller_of_its_own_is_known_by_its_own_peer_address() -> None:
    chosen = plan("controller", {"controllerDLegerPeers": "n0-h:1;n1-h:2", "controllerDLegerSelfId": "n1"})
    assert (chosen.role, chosen.address) == ("controller", "h:2")


def test_both_servers_of_a_process_start_stop_and_answer_together() -> None:
    nameserver, controller = FakeServer(), FakeServer(health="no leader")
    both = NameServerWithController(nameserver, controller)
    asyncio.run(both.start())
    assert both.health() == "no leader"
    assert both.status() == {"calls": 2, "controller": {"calls": 2}}
    asyncio.run(both.stop())
    assert nameserver.calls == controller.calls == ["start", "started", "stop"]


async def test_what_is_changed_at_either_server_of_a_process_is_in_its_file(tmp_path: Path) -> None:
    file, (port, raft) = tmp_path / "namesrv.conf", free_ports(2)
    address, env = f"127.0.0.1:{port}", OsEnv()
    given = {**CONTROLLER, "controllerDLegerPeers": f"n0-{address}", "raftPeers": f"n0-127.0.0.1:{raft}"}
    given |= {"controllerStorePath": str(tmp_path / "raft"), "listenPort": "0"}
    file.write_text("# ours\n" + "".join(f"{name}={text}\n" for name, text in given.items()))
    both = plan("namesrv", read_values(str(file), []), str(file)).make(env)
    client = RemotingClient(env, "operator")
    await both.start()
    try:
        asked = Command(Request.UPDATE_CONTROLLER_CONFIG, {}, b"electMasterMaxRetryCount=4")
        asked_too = Command(Request.UPDATE_NAMESRV_CONFIG, {}, b"supportActingMaster=true")
        where = both.status()["address"]
        answers = await asyncio.gather(client.call(address, asked), client.call(where, asked_too))
        assert [answer.code for answer in answers] == [0, 0]
    finally:
        await client.close()
        await both.stop()
    changed = {"electMasterMaxRetryCount": "4", "supportActingMaster": "true"}
    assert read_values(str(file), []) == given | changed
    assert file.read_text().startswith("# ours\n")


def test_a_controller_that_cannot_start_takes_its_nameserver_down() -> None:
    nameserver = FakeServer()
    both = NameServerWithController(nameserver, FakeServer(OSError("port taken")))
    with pytest.raises(OSError, match="port taken"):
        asyncio.run(both.start())
    assert nameserver.calls[-1] == "stop"


def chosen(server: FakeServer) -> serving.Plan:
    return serving.Plan("broker", "127.0.0.1:1", "127.0.0.1", 0, lambda env: server)


async def test_two_signals_at_once_are_one_and_a_later_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the second a master would be gone without a handover."""
    now_s, ended = [5.0], list[int]()
    monkeypatch.setattr("admin.host.serve.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr("admin.host.serve.os._exit", ended.append)
    told = serving.Told()
    told.heard(signal.SIGTERM)
    now_s[0] += 0.003
    told.heard(signal.SIGTERM)
    assert told.stopping.is_set()
    assert ended == []
    now_s[0] += serving.SECOND_S
    told.heard(signal.SIGINT)
    assert ended == [INTERRUPTED]


def test_sigterm_stops_in_order_with_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer()

    async def work() -> int:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
        return await serving._run(chosen(server))

    assert asyncio.run(work()) == DONE
    assert server.calls == ["start", "started", "stop"]
    assert capsys.readouterr().out == "ready broker 127.0.0.1:1\n"


def test_sigterm_during_a_long_start_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer(wait_s=60)

    async def work() -> int:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
        return await serving._run(chosen(server))

    assert asyncio.run(work()) == DONE
    assert server.calls == ["start", "stop"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [OSError("address in use"), DiskError("bad epoch file")])
def test_a_server_that_cannot_run_ends_with_3_and_is_stopped(error: Exception) -> None:
    server = FakeServer(error)
    assert asyncio.run(serving._run(chosen(server))) == UNFINISHED
    assert server.calls == ["start", "stop"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("unknown key x"), USAGE, "unknown key x"),
        (click.UsageError("no such option"), USAGE, "no such option"),
        (DiskError("torn"), UNFINISHED, "torn"),
        (OSError("refused"), UNFINISHED, "refused"),
        (click.ClickException("cannot"), UNFINISHED, "cannot"),
    ],
)
def test_errors_become_exit_codes_and_one_line(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    assert run(fails, []) == code
    assert text in capsys.readouterr().err


def test_a_commands_own_exit_code_is_kept() -> None:
    @click.command()
    @click.pass_context
    def finds(ctx: click.Context) -> None:
        ctx.exit(2)

    assert run(finds, []) == 2
    assert run(finds, ["--no-such-option"]) == USAGE


@pytest.mark.parametrize(
    ("role", "key_name"),
    [("namesrv", "peerCredentialsFile"), ("broker", "peerCredentialsFile"), ("broker", "haSecretFile")],
)
def test_a_key_that_others_can_read_is_named_at_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    role: str,
    key_name: str,
) -> None:
    async def nothing(*_: object) -> int:
        return DONE

    monkeypatch.setattr(serving, "_run", nothing)
    key = tmp_path / "peers.json"
    key.write_text('{"accessKey": "a", "secretKey": "0123456789abcdef"}')
    for mode, lines in ((0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)):
        key.chmod(mode)
        caplog.clear()
        assert serving.serve(role, None, [f"{key_name}={key}"]) == DONE
        found = [record.getMessage() for record in caplog.records if "chmod 600" in record.getMessage()]
        assert len(found) == lines, oct(mode)
        assert all(str(key) in line for line in found)


@pytest.mark.parametrize(
    ("role", "values"), [("broker", {}), ("namesrv", {}), ("namesrv", CONTROLLER), ("controller", CONTROLLER)]
)
def test_the_status_is_on_loopback_unless_admin_address_says_otherwise(
    role: str, values: dict[str, str]
) -> None:
    if role == "controller":
        values = {name: value for name, value in values.items() if name != "enableControllerInNamesrv"}
    assert plan(role, values).admin_address == "127.0.0.1"
    assert plan(role, {**values, "adminAddress": "0.0.0.0"}).admin_address == "0.0.0.0"


@pytest.mark.parametrize("text", ["", " ", "[]"])
def test_an_empty_admin_address_is_not_every_interface(text: str) -> None:
    with pytest.raises(ConfigError, match="adminAddress is empty"):
        plan("broker", {"adminAddress": text})


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_server_listens_for_its_status_where_it_is_told(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, int]] = []

    def bind(port: int, host: str) -> None:
        told.append((host, port))
        raise OSError("enough seen")

    monkeypatch.setattr(serving, "bind", bind)
    server = FakeServer()
    made = serving.Plan("broker", "h:1", address, 9801, lambda env: server)
    assert asyncio.run(serving._run(made)) == UNFINISHED
    assert told == [(address, 9801)]
    assert ("who reaches it reads the status" in caplog.text) == (address == "0.0.0.0")
    assert server.calls[-1] == "stop"


def test_nothing_is_started_when_the_port_of_the_status_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with serving.bind(0) as other:
        other.listen()
        port = other.getsockname()[1]
        server = FakeServer()
        made = serving.Plan("broker", "h:1", "127.0.0.1", port, lambda env: server)
        assert asyncio.run(serving._run(made)) == UNFINISHED
    assert "start" not in server.calls
    assert f"adminPort: 127.0.0.1:{port}: address already in use" in caplog.text


async def test_a_port_that_is_taken_is_named_by_its_key_before_anything_is_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        values = {"haListenPort": str(port), "listenPort": str(free_port()), "storePathRootDir": str(root)}
        assert await serving._run(plan("broker", values)) == UNFINISHED
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"haListenPort: 127.0.0.1:{port}: address already in use" in line
    assert not root.exists()


@pytest.mark.parametrize(
    ("role", "values", "text"),
    [
        ("broker", {"namesrvAddr": "127.0.0.1"}, "namesrvAddr: address '127.0.0.1': expected host:port"),
        ("broker", {"controllerAddr": "here"}, "controllerAddr: address 'here': expected host:port"),
        (
            "broker",
            {"minInSyncReplicas": "3", "totalReplicas": "2"},
            "minInSyncReplicas=3 is more",
        ),
        (
            "broker",
            {"majorityAck": "true", "inSyncReplicas": "2", "totalReplicas": "1"},
            "inSyncReplicas=2 is more than totalReplicas=1",
        ),
        ("broker", {"majorityAck": "true"}, "majorityAck=true with totalReplicas=1: a broker that"),
        (
            "controller",
            {"controllerDLegerPeers": "127.0.0.1:9878", "controllerDLegerSelfId": "n0"},
            "controllerDLegerPeers: peer '127.0.0.1:9878': expected id-host:port",
        ),
        (
            "namesrv",
            {"brokerIP1": "10.0.0.1"},
            "brokerIP1 is a key of a broker: start this",
        ),
        ("controller", {"brokerIP1": "10.0.0.1"}, "brokerIP1 is a key of a broker"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(role: str, values: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        plan(role, values)


def test_min_in_sync_replicas_without_a_number_of_replicas_is_taken() -> None:
    plan("broker", {"minInSyncReplicas": "2"})


def test_what_the_next_start_would_refuse_is_not_kept(tmp_path: Path) -> None:
    """By the file and what is given beside it, and by the file alone if it was enough before."""
    file, given = tmp_path / "broker.conf", ["enableControllerMode=false"]
    keep = serving._kept_by("broker", str(file), given)
    assert keep is not None
    file.write_text("enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\n")
    with pytest.raises(ConfigError, match=r"the next start would refuse .*needs controllerAddr"):
        keep({"controllerAddr": ""})
    keep({"deleteWhen": "05"})
    text = "enableControllerMode=true\ncontrollerAddr=127.0.0.1:1\ndeleteWhen=05\n"
    assert file.read_text() == text, "as it was, but for what may be kept"

    file.write_text("enableControllerMode=true\n")
    keep({"deleteWhen": "05"})  # it did not start alone before

    file.write_text("brokername=x\n")
    with pytest.raises(ConfigError, match=r"the next start would refuse .*unknown key brokername"):
        keep({"deleteWhen": "05"})
    assert file.read_text() == "brokername=x\n"
