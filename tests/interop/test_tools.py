"""The promise to who watches a cluster by rocketmq-exporter and rocketmq-dashboard: what they ask is answered
as by the real broker, and nothing is refused that is answered there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from chaos.worlds import rocketmq
from tests.interop.acl_sides import compiled, java, old_library
from tests.interop.answers.workload import OTHER, TOPIC, worked
from tests.interop.conftest import beside
from tests.interop.mixed import MixedCluster, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.more]

COUNTED_S: Final = 32.0
"""Both systems look at their counters every 10 s."""
RUN_S: Final = 300.0
DASHBOARD: Final = Path(__file__).parent / "java" / "DashboardDriver.java"

DIFFERS: Final = {
    "runtime putMessageDistributeTime": "RocketMQ tells none in its first minute",
    "runtime brokerVersion": "RocketMQ 5.5 tells none, and the exporter gives up what comes behind it",
    "asked 38 ": "a client's own question, now and then",
}
"""Lines (up to their value) that need not be the same, and why."""


@dataclass(frozen=True)
class Side:
    exporter: list[str]
    dashboard: list[str]


@contextmanager
def _cluster(kind: str, base: Path) -> Iterator[MixedCluster]:
    cluster = MixedCluster(base / "c")
    if kind == "real":
        cluster.add_real_controllers(1)
        cluster.add_broker(kind, timerWheelEnable="true")  # without, it cannot delete a topic
    else:
        cluster.add_keelmq_controllers(1)
        cluster.add_broker(kind)
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a master", lambda: cluster.is_full(1))
        yield cluster


def _lines(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [line.removeprefix("TOOL ") for line in done.stdout.splitlines() if line.startswith("TOOL ")]


async def _exported(namesrv: str, scratch: Path) -> list[str]:
    async with worked(namesrv, scratch):
        await asyncio.sleep(COUNTED_S)
        command = java(old_library(), "ExporterDriver", namesrv, TOPIC, OTHER, home=scratch)
        return await asyncio.to_thread(_lines, command)


def _side(kind: str, base: Path) -> Side:
    scratch = base / "java"
    scratch.mkdir(parents=True)
    with _cluster(kind, base) as cluster:
        namesrv = cluster.namesrvs[0]
        exporter = asyncio.run(_exported(namesrv, scratch))
        classes = rocketmq.compile_java(DASHBOARD)
        command = rocketmq.java("DashboardDriver", namesrv, classes=classes, user_home=scratch, heap_mb=256)
        return Side(exporter, _lines(command))


@pytest.fixture(scope="module")
def sides(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, Side]:
    """(keelmq, RocketMQ)."""
    compiled("ExporterDriver", old_library())  # once, not by both at once
    rocketmq.compile_java(DASHBOARD)
    ours, theirs = beside(
        *(partial(_side, kind, tmp_path_factory.mktemp(kind)) for kind in ("keelmq", "real"))
    )
    return ours, theirs


def _compared(lines: list[str]) -> list[str]:
    return [line for line in lines if not any(line.startswith(name) for name in DIFFERS)]


@pytest.mark.covers(
    "rocketmq-exporter: offsets, lag, counters, runtime; nothing refused", client="Java 4.9.7", sides="both"
)
def test_the_exporter_is_told_the_same(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    assert len(ours.exporter) > 60
    assert _compared(ours.exporter) == _compared(theirs.exporter)


@pytest.mark.covers(
    "rocketmq-dashboard: each page's questions and acts; nothing refused", client="Java 5.5.0", sides="both"
)
def test_the_dashboard_is_told_the_same(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    assert len(ours.dashboard) > 60
    assert _compared(ours.dashboard) == _compared(theirs.dashboard)
