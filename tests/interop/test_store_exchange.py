"""The promise of the store: what keelmq wrote, the real broker opens and serves, and the other way round."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from admin.local.layout import free_base_port
from chaos.worlds import rocketmq
from tests import ROOT
from tests.interop.conftest import facts
from tests.interop.real_pair import SEGMENT, rocketmq_pair

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_TOPIC = "Exchange"


@contextmanager
def _keelmq(role: str, directory: Path, **settings: object) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "cli.main", role]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with (directory / "err").open("a") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), (directory / "err").read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (directory / "err").read_text()[-2000:]
        assert process.stdout is not None
        process.stdout.close()


def _driver(namesrv: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    classes = rocketmq.compile_java(Path(__file__).parent / "java" / "ClientDriver.java")
    command = rocketmq.java(
        "ClientDriver", arguments[0], namesrv, *arguments[1:], classes=classes, user_home=home
    )
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@contextmanager
def _keelmq_pair(base: Path, store: Path) -> Iterator[str]:
    namesrv_port = free_base_port(20)
    port = namesrv_port + 10
    namesrv = f"127.0.0.1:{namesrv_port}"
    with (
        _keelmq("namesrv", base / "ns", listenPort=namesrv_port),
        _keelmq(
            "broker",
            base / "b",
            listenPort=port,
            brokerId=0,
            brokerRole="ASYNC_MASTER",
            namesrvAddr=namesrv,
            storePathRootDir=store,
            **SEGMENT,
        ),
    ):
        yield namesrv


def _sent(output: str) -> dict[str, tuple[str, str]]:
    return {s["key"]: (s["queue"], s["offset"]) for s in facts(output, "sent")}


def _read(output: str) -> dict[str, tuple[str, str]]:
    for line in facts(output, "read"):
        number = line["key"].rpartition("-")[2]
        assert line["number"] == number
        assert line["tags"] == ("even" if int(number) % 2 == 0 else "odd")
        assert line["body"] == f"sync_body_{number}"
    return {r["key"]: (r["queue"], r["offset"]) for r in facts(output, "read")}


@pytest.mark.covers("A store of keelmq, served by the real broker", client="store files", sides="together")
def test_a_store_keelmq_wrote_is_served_whole_by_the_real_broker(real_rocketmq: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with _keelmq_pair(tmp_path / "k", store) as namesrv:
        done = _driver(namesrv, tmp_path, "sync", _TOPIC, "1000")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with rocketmq_pair(tmp_path / "r", store, end_with=signal.SIGKILL) as namesrv:
        back = _driver(namesrv, tmp_path, "pull", _TOPIC, "1000")
        assert back.returncode == 0, back.stdout[-2000:] + back.stderr[-2000:]
        by_key = rocketmq.mqadmin(
            namesrv, "queryMsgByKey", "-t", _TOPIC, "-k", "sync-777", user_home=tmp_path
        ).stdout
    assert _read(back.stdout) == _sent(done.stdout)
    assert sum("@sync-777@" in row for row in by_key.splitlines()) == 1, by_key[-2000:]


@pytest.mark.covers("A store of the real broker, served by keelmq", client="store files", sides="together")
@pytest.mark.more  # Of a killed one, in every run: test_round_trip.py.
def test_a_store_the_real_broker_wrote_is_served_whole_by_keelmq(real_rocketmq: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with rocketmq_pair(tmp_path / "r", store) as namesrv:
        done = _driver(namesrv, tmp_path, "sync", _TOPIC, "1000")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    with _keelmq_pair(tmp_path / "k", store) as namesrv:
        back = _driver(namesrv, tmp_path, "pull", _TOPIC, "1000")
        assert back.returncode == 0, back.stdout[-2000:] + back.stderr[-2000:]
        more = _driver(namesrv, tmp_path, "sync", _TOPIC, "8")
        assert more.returncode == 0, more.stdout[-2000:] + more.stderr[-2000:]
    assert _read(back.stdout) == _sent(done.stdout)
    # Offsets go on where the real broker stopped: none is handed out twice.
    assert not set(_sent(done.stdout).values()) & set(_sent(more.stdout).values())
