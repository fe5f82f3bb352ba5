"""The promise of drills on a staging cluster: only what its file allows is done, and all of it is undone."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from chaos.drills.live import healing
from chaos.remote import hosts as files
from chaos.remote import topics
from chaos.remote.cluster import RemoteCluster
from chaos.remote.hosts import UNDONE_BY, read
from model.errors import ConfigError, MqError
from runtime.os_env import OsEnv
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
    assert pause.startswith("ops@b1 sh -c 'set -C; : > /tmp/keelmq-undo-"), "nothing is struck without it"
    assert "-lt 20 ]" in pause
    assert "sudo -n systemctl kill --signal=CONT" in pause
    assert pause.endswith("& sudo -n systemctl kill --signal=STOP 'keelmq broker'")
    assert cluster.send_signal(node, signal.SIGKILL)
    assert not cluster.is_running(node)
    assert not cluster.send_signal(node, signal.SIGTERM), "it was told to end already"
    assert "sudo -n systemctl start" in lines(said, 2)[1]
    cluster.start(node)
    assert cluster.is_running(node)
    assert lines(said, 3)[2].startswith("ops@b1 (sudo -n systemctl start 'keelmq broker') && sh -c 'rm -f ")
    assert cluster.down() == []
    assert sorted(line.split()[0] for line in lines(said, 6)[3:]) == ["ops@b0", "ops@b1", "ops@n0"]


LOCAL = """
[[server]]
name = "{name}"
role = "{role}"
address = "127.0.0.1:1"
ssh = "{name}"
status = "http://127.0.0.1:1/status"
kill = "echo kill >> {at}/{name}"
stop = "echo stop >> {at}/{name}"
pause = "echo pause >> {at}/{name}"
resume = "echo resume >> {at}/{name}"
start = "echo start >> {at}/{name}"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteCluster:
    """Hosts that are this one: what is asked is done, and noted in a file of each server's name."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(files, "ARMED", str(tmp_path / "undo"))
    servers = [LOCAL.format(name=n, role=r, at=tmp_path) for n, r in (("b0", "broker"), ("n0", "namesrv"))]
    path = tmp_path / "hosts.toml"
    path.write_text(f'group = "g"\nssh = ["{ssh}"]\n' + "".join(servers))
    return RemoteCluster(replace(read(path), undo_s=2), tmp_path)


def armed(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("undo-*"))


def test_a_strike_that_nobody_mends_is_mended_by_its_host(tmp_path: Path, here: RemoteCluster) -> None:
    here.send_signal(here.layout.node("b0"), signal.SIGSTOP)
    assert lines(tmp_path / "b0", 2) == ["pause", "resume"]
    assert here.failed == []


@pytest.mark.parametrize(
    ("strike", "mend"), [(signal.SIGKILL, "start"), (signal.SIGSTOP, "resume"), (signal.SIGTERM, "")]
)
def test_once_a_strike_is_mended_nothing_acts_any_more(
    tmp_path: Path, here: RemoteCluster, strike: signal.Signals, mend: str
) -> None:
    node = here.layout.node("b0")
    here.send_signal(node, strike)
    lines(tmp_path / "b0", 1)
    if mend == "start":
        here.start(node)
    elif mend == "resume":
        here.send_signal(node, signal.SIGCONT)
    else:
        assert here.mend() == []
    here._reap()
    before = lines(tmp_path / "b0", 2)
    assert armed(tmp_path) == []
    time.sleep(3.5)  # beyond undo_s: what an operator stops now stays stopped
    assert lines(tmp_path / "b0", 2) == before


def test_a_later_strike_on_the_same_server_is_not_mended_early(tmp_path: Path, here: RemoteCluster) -> None:
    node = here.layout.node("b0")
    here.send_signal(node, signal.SIGKILL)
    here.start(node)
    here.send_signal(node, signal.SIGKILL)
    here._reap()
    assert len(armed(tmp_path)) == 1
    assert lines(tmp_path / "b0", 4)[:3] == ["kill", "start", "kill"]


def test_where_nothing_can_be_armed_nothing_is_struck(
    tmp_path: Path, here: RemoteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ARMED", str(tmp_path / "no" / "such"))
    here.send_signal(here.layout.node("b0"), signal.SIGKILL)
    here._reap()
    assert not (tmp_path / "b0").exists()
    assert here.failed[0].startswith("kill b0: ")


def test_hosts_that_ssh_does_not_reach_are_told_before_anything_is_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole(*given: object, **named: object) -> None:
        """As it would be."""

    monkeypatch.setattr(RemoteCluster, "wait_ready", whole)
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho connect refused >&2\nexit 255\n")
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    told = " ".join(Shell()("drill", "staging", str(hosts(tmp_path)), "--yes", code=3).split())
    assert told.startswith(
        "nothing was struck: cannot go on: no host is reached by ssh (b0: connect refused)"
    )
    assert told.endswith("ssh ops@b0 true")
    assert "mended" not in told


def test_a_host_that_does_not_answer_is_told(
    tmp_path: Path, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "AGAIN_S", 0.0)
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
    assert sorted(asked) == ["ops@b0", "ops@b1", "ops@n0"]


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
        ('[[server]]\nname = "b9"\n', "server b9 has no role, ssh, status; its form: docs/chaos.md"),
        ('allowed = ["wipe"]', "wipe is none of"),
        ("undo_s = 1", "give it at least"),
        ("[[server]]", "server 1 has no name"),
        ("group = 3", "hosts.toml"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, head: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(hosts(tmp_path, head))


class Topics:
    """An AdminClient of a cluster with these topics."""

    there: ClassVar[list[str]] = []
    refuses = False

    def __init__(self, *given: object, **named: object) -> None:
        pass

    async def __aenter__(self) -> Topics:
        return self

    async def __aexit__(self, *given: object) -> None:
        pass

    async def topics(self) -> list[str]:
        return list(self.there)

    async def delete_topic(self, topic: str) -> None:
        if self.refuses:
            raise MqError("no master")
        self.there.remove(topic)


@pytest.mark.parametrize("refuses", [False, True])
def test_heal_deletes_the_topics_of_drills_or_says_how(
    tmp_path: Path, said: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(healing, "AGAIN_S", 0.0)
    monkeypatch.setattr(topics, "AdminClient", Topics)
    monkeypatch.setattr(Topics, "there", ["keelmq-drill-mine", "orders", left := topics.named()])
    monkeypatch.setattr(Topics, "refuses", refuses)
    code, told = Shell().ended(["drill", "heal", "--hosts", str(hosts(tmp_path))])
    assert (code, left in Topics.there) == ((3, True) if refuses else (0, False))
    assert Topics.there[:2] == ["keelmq-drill-mine", "orders"]
    assert "b1: done" in told
    if not refuses:
        assert f"topic {left} was deleted" in told


def test_what_stays_is_told_with_the_command_that_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "AdminClient", Topics)
    monkeypatch.setattr(Topics, "refuses", True)
    (told,) = asyncio.run(topics.delete(OsEnv(seed=1), ["h:1"], ["keelmq-drill-0"]))
    assert told == (
        "topic keelmq-drill-0 stays: no master; "
        "keelmq topic delete keelmq-drill-0 --yes --namesrv 'h:1' removes it"
    )


def test_every_fault_that_may_be_allowed_is_undone() -> None:
    assert set(UNDONE_BY) == {"kill", "stop", "pause"}
