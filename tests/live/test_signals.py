"""The promise of commands that start processes: whatever signal ends them, they leave none behind."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from admin.local.cluster import LocalCluster
from tests import ROOT

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SOON_S = 60.0
"""For a wait on a busy machine; what is promised is that it happens at all."""
BEGUN_CPU_S = 0.7
"""A worker that took so much has read its modules and computes; the process beside them hardly takes any."""


@contextmanager
def command(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "told").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for state in directory.rglob("cluster.json"):
            LocalCluster.open(state.parent).down()  # a failed test must not leave them either


def told(directory: Path) -> str:
    return (directory / "told").read_text(errors="replace")


def until(happened: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + SOON_S
    while not happened():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def servers(cluster: Path) -> dict[str, int]:
    """Those that were started, with their pids."""
    try:
        state = json.loads((cluster / "cluster.json").read_text())
    except (OSError, ValueError):
        return {}
    return {node["name"]: node["pid"] for node in state["nodes"] if node["pid"]}


def send(process: subprocess.Popen[bytes], signals: list[int]) -> None:
    for number in signals:
        process.send_signal(number)
        time.sleep(0.2)


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGINT]])
def test_cluster_up_that_is_interrupted_ends_what_it_started(tmp_path: Path, signals: list[int]) -> None:
    where = tmp_path / "cluster"
    with command(tmp_path, "cluster", "up", "--dir", str(where)) as process:
        until(lambda: len(servers(where)) == 6, lambda: told(tmp_path))
        pids = servers(where).values()
        send(process, signals)
        # A second one may come when all is done, and the interpreter is about to exit.
        assert process.wait(SOON_S) in (130, -signals[-1]), told(tmp_path)
        assert "aborted" in told(tmp_path)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
        assert servers(where) == {}


@pytest.mark.parametrize(
    "signals",
    [
        # The same handler as of ``cluster up``, which is hung up in every run.
        pytest.param([signal.SIGHUP], marks=pytest.mark.more),
        [signal.SIGINT, signal.SIGINT],
    ],
)
def test_a_demo_that_is_interrupted_leaves_no_server(tmp_path: Path, signals: list[int]) -> None:
    out = tmp_path / "demo"
    with command(tmp_path, "demo", "--seconds", "600", "--rate", "50", "--out", str(out)) as process:
        until(lambda: "messages/s" in told(tmp_path), lambda: told(tmp_path))
        pids = servers(out / "cluster").values()
        assert len(pids) == 6
        send(process, signals)
        # A second one may come when all is done, and the interpreter is about to exit.
        assert process.wait(SOON_S) in (130, -signals[-1]), told(tmp_path)
        assert "aborted" in told(tmp_path)
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGTERM, marks=pytest.mark.more), signal.SIGINT, signal.SIGKILL],
)
def test_a_simulation_that_is_ended_takes_its_workers_with_it(tmp_path: Path, number: int) -> None:
    """And at once: the workers' schedules are not waited for."""
    with command(tmp_path, "drill", "sim", "--seeds", "2000", "--jobs", "2") as process:
        parent = psutil.Process(process.pid)

        def workers() -> list[psutil.Process]:
            children = parent.children(recursive=True)
            return [child for child in children if child.cpu_times().user > BEGUN_CPU_S]

        until(lambda: len(workers()) == 2, lambda: told(tmp_path))
        children = parent.children(recursive=True)
        process.send_signal(number)
        process.wait(SOON_S)
        _, alive = psutil.wait_procs(children, timeout=SOON_S)
    assert not alive
