"""The promise of drills on a staging cluster: only what its file allows is done, and all of it is undone."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from chaos.remote.cluster import RemoteCluster
from chaos.remote.hosts import UNDONE_BY, read
from model.errors import ConfigError
from tests.live.commands import Shell

SERVER = """
[[server]]
name = "{name}"
role = "{role}"
address = "127.0.0.1:1"
ssh = "ops@{name}"
status = "http://127.0.0.1:1/status"
unit = "keelmq {role}"
"""


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """A file that holds what was asked over ssh, a line each."""
    ssh, out = tmp_path / "ssh", tmp_path / "said"
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {out}\ncase "$1" in *bad) echo refused >&2; exit 255;; esac\n')
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    return out


def hosts(tmp_path: Path, head: str = "", names: str = "b0 b1") -> Path:
    path = tmp_path / "hosts.toml"
    servers = [SERVER.format(name=name, role="broker") for name in names.split()]
    text = f'group = "g"\nssh = ["{tmp_path}/ssh"]\n{head}\n'
    path.write_text(text + "".join([*servers, SERVER.format(name="n0", role="namesrv")]))
    return path


def lines(path: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 30
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text().splitlines()


def test_each_command_leaves_what_undoes_it_on_the_host(tmp_path: Path, said: Path) -> None:
    cluster = RemoteCluster(read(hosts(tmp_path, "undo_s = 20")), tmp_path)
    node = cluster.layout.node("b1")
    assert cluster.send_signal(node, signal.SIGSTOP)
    (pause,) = lines(said, 1)
    assert pause.startswith(
        "ops@b1 sudo -n systemctl kill --signal=STOP 'keelmq broker'; done=$?; nohup sh -c "
    )
    assert "sleep 20; sudo -n systemctl kill --signal=CONT" in pause
    assert cluster.send_signal(node, signal.SIGKILL)
    assert not cluster.is_running(node)
    assert not cluster.send_signal(node, signal.SIGTERM), "it was told to end already"
    assert "sleep 20; sudo -n systemctl start" in lines(said, 2)[1]
    cluster.start(node)
    assert cluster.is_running(node)
    assert lines(said, 3)[2] == "ops@b1 sudo -n systemctl start 'keelmq broker'", (
        "nothing is left to be undone"
    )
    assert cluster.down() == []
    assert [line.split()[0] for line in lines(said, 6)[3:]] == ["ops@b0", "ops@b1", "ops@n0"]


def test_a_host_that_does_not_answer_is_told(tmp_path: Path, said: Path) -> None:
    path = hosts(tmp_path, names="b0 bad")
    cluster = RemoteCluster(read(path), tmp_path)
    cluster.send_signal(cluster.layout.node("bad"), signal.SIGKILL)
    assert cluster.mend() == ["bad: refused"]
    assert cluster.failed == ["kill bad: refused"]
    assert "2 of 3 servers were told to run" in Shell()("drill", "heal", "--hosts", str(path), code=3)


def test_a_host_that_hangs_keeps_none_from_being_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[1])
        if command[1] == "ops@b0":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, 0, "", "")

    cluster = RemoteCluster(read(hosts(tmp_path)), tmp_path)
    monkeypatch.setattr("chaos.remote.cluster.subprocess.run", run)
    (told,) = cluster.mend()
    assert told.startswith("b0: no answer")
    assert asked == ["ops@b0", "ops@b1", "ops@n0"]


def test_nobody_waits_for_a_host_that_is_slow_and_its_commands_come_in_order(
    tmp_path: Path, said: Path
) -> None:
    slow = f'#!/bin/sh\nread line < {tmp_path}/go\necho "$@" >> {said}\n'
    (tmp_path / "ssh").write_text(slow)
    os.mkfifo(tmp_path / "go")
    cluster = RemoteCluster(read(hosts(tmp_path)), tmp_path)
    node = cluster.layout.node("b1")
    assert cluster.send_signal(node, signal.SIGKILL)
    cluster.start(node)
    assert not said.exists(), "it is not waited for"
    for count in (1, 2):
        (tmp_path / "go").write_text("go\n")
        last = lines(said, count)[-1]
        assert ("sleep" in last) == (count == 1), "the start comes after the kill"


def test_what_is_not_allowed_is_not_asked(tmp_path: Path, said: Path) -> None:
    path = hosts(tmp_path, 'allowed = ["pause"]')
    assert "and no kill" in Shell()("drill", "staging", str(path), "--yes", code=64)
    assert "not ready" in Shell()("drill", "staging", str(path), "--kind", "pause", "--yes", code=3)
    assert not said.exists(), "it was not whole before"


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ('allowed = ["wipe"]', "wipe is none of"),
        ("undo_s = 1", "give it at least"),
        ("[[server]]", "no file of hosts"),
        ("group = 3", "hosts.toml"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, head: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(hosts(tmp_path, head))


def test_every_fault_that_may_be_allowed_is_undone() -> None:
    assert set(UNDONE_BY) == {"kill", "stop", "pause"}
