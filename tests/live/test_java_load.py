"""The promise of drills under the official Java client, on real processes: a master that dies loses nothing
that it was told is stored, and the client ends with its drill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.drills.live.commands import PREFIX
from chaos.drills.live.java_load import JAVA, SOURCE
from chaos.live.ground import client_home
from chaos.live.noted import LEDGER, began
from chaos.worlds import rocketmq
from tests import ROOT
from tests.live.commands import keelmq

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.skipif(rocketmq.unavailable() is not None, reason=str(rocketmq.unavailable())),
]
KILLS = ("--kinds", "kill", "--modes", "default", "--strikes", "1")


def until(what: str, holds: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s until {what}"
        time.sleep(0.02)
    return found


def test_a_killed_master_loses_nothing_that_java_was_acknowledged(tmp_path: Path) -> None:
    done = keelmq("drill", "matrix", tmp_path, *KILLS, "--client", JAVA, "--histories", timeout_s=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in 1 of 1 runs the official Java client sent and read" in done.stdout
    result = json.loads((tmp_path / "kill-default-1.json").read_text())
    assert (result["client"], result["faults"]["done"]["kill"]) == (JAVA, 1)
    assert (result["lost_total"], result["violations"], result["unfinished_total"]) == (0, [], 0)
    assert result["drills"][0]["judged"]
    told = result["java_client"]
    assert (told["version"], told["send_retries"]) == (rocketmq.VERSION, 0)
    assert told["received"] >= result["acked_total"] > 0
    sent = [json.loads(line) for line in (tmp_path / "kill-default-1.jsonl").read_text().splitlines()]
    of_java = [one for one in sent if one["type"] == "ok" and one["process"].startswith("drill0jp")]
    assert {one["queue"][2] for one in of_java} == {0, 1, 2, 3}
    assert len({(one["process"], one["queue"][2]) for one in of_java}) == 4, "each has one queue"
    assert len({one["address"] for one in of_java}) > 1, "the new master acknowledged, too"


def test_its_process_ends_when_nobody_holds_its_pipe(tmp_path: Path) -> None:
    command = rocketmq.java(
        SOURCE.stem,
        *("name=x", "namesrv=127.0.0.1:1", "members=0", "send_timeout_ms=1", "poll_ms=1000"),
        "ask_timeout_ms=100",
        classes=rocketmq.compile_java(SOURCE),
        user_home=client_home(tmp_path),
        heap_mb=128,
        options=rocketmq.PLAIN,
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as java:
        assert java.stdin is not None
        assert java.stdout is not None
        java.stdin.write(b"ping 7\n")
        java.stdin.flush()
        told = [json.loads(java.stdout.readline()) for _ in range(2)]
        assert sorted(one["event"] for one in told) == ["pong", "ready"]
        java.stdin.close()
        assert java.wait(60) == 0


def test_after_a_drill_was_killed_heal_ends_a_java_client_that_stood_still(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    def client() -> tuple[Path, int] | None:
        for ledger in tmp_path.glob(f"{PREFIX}*/{LEDGER}"):
            if client := json.loads(ledger.read_text()).get("client"):
                return ledger.parent, client[0]
        return None

    command = [sys.executable, "-m", "cli.main", "drill", "matrix", str(tmp_path / "out")]
    with subprocess.Popen([*command, *KILLS, "--client", JAVA], cwd=ROOT, env=env) as drill:
        try:
            place, pid = until("the client is noted", client, 180)
            os.kill(pid, signal.SIGSTOP)
        finally:
            drill.kill()
    assert f"-Duser.home={client_home(place)}" in Path(f"/proc/{pid}/cmdline").read_text()
    healed = keelmq("drill", "heal", place, env=env)
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert "ended the Java client" in healed.stdout
    until("it is gone", lambda: began(pid) is None)
    assert not place.exists()
