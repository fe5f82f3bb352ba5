"""The promise to gRPC clients: through the real rocketmq-proxy they see the same before keelmq as before
RocketMQ: types of messages, order, delays, recalls, transactions, acknowledgements, invisible times."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from client.admin import AdminClient
from runtime.os_env import OsEnv
from tests.interop import grpc_sides
from tests.interop.conftest import Cluster, beside, keelmq
from tests.interop.real_pair import rocketmq_pair

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

LANGUAGES = ("py", "java", "go", "node")
FAILED = "f-0,f-2,f-2,f-4"
"""What fails comes again before its next."""


@dataclass(frozen=True)
class Side:
    """One system with a proxy before it."""

    namesrv: str
    endpoint: str
    scratch: Path


@pytest.fixture(scope="module")
def ours(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    directory = tmp_path_factory.mktemp("ours")
    sets = [f"--set=broker.{name}={value}" for name, value in grpc_sides.BROKER.items()]
    up = keelmq("cluster", "up", "--dir", str(directory / "c"), "--brokers", "3", *sets)
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        status = json.loads(keelmq("cluster", "status", "--dir", str(directory / "c"), "--json").stdout)
        yield from _side(";".join(status["namesrv"]), directory)
    finally:
        down = keelmq("cluster", "down", "--dir", str(directory / "c"))
        assert down.returncode == 0, down.stdout + down.stderr


@pytest.fixture(scope="module")
def real(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    directory = tmp_path_factory.mktemp("real")
    settings = grpc_sides.REAL_BROKER
    with rocketmq_pair(directory, directory / "store", end_with=signal.SIGKILL, **settings) as namesrv:
        yield from _side(namesrv, directory)


def _side(namesrv: str, directory: Path) -> Iterator[Side]:
    grpc_sides.prepare(namesrv, directory, *LANGUAGES)
    with grpc_sides.proxy_before(namesrv, directory / "proxy") as endpoint:
        yield Side(namesrv, endpoint, directory)


def _same(driver: list[str], language: str, ours: Side, real: Side, even: str = FAILED) -> None:
    one, other = beside(
        *(
            partial(grpc_sides.seen, driver, side.endpoint, language, side.scratch / language)
            for side in (ours, real)
        )
    )
    assert not any(line.startswith("DRIVER late") for line in one), sorted(one)
    assert "DRIVER acked bodies=n-0,n-1,n-2" in one
    assert f"DRIVER order group=even bodies={even}" in one
    assert "DRIVER order group=odd bodies=f-1,f-3,f-5" in one
    assert "DRIVER done push=d-0,n-0,n-1,n-1,n-2,t-check,t-commit early=False" in one
    assert "DRIVER rest simple=0" in one, "what was acknowledged does not come again"
    assert one == other


@pytest.mark.more
@pytest.mark.covers(
    "Through the proxy: every type of message, recall, orphaned transactions, push and simple consumers",
    client="gRPC Python 5.1.2",
    sides="both",
)
def test_the_python_client_sees_the_same_through_the_proxy(ours: Side, real: Side) -> None:
    _same(grpc_sides.python_driver(), "py", ours, real)


@pytest.mark.more
@pytest.mark.covers(
    "Through the proxy: every type of message, recall, orphaned transactions, push and simple consumers",
    client="gRPC Java 5.2.0",
    sides="both",
)
def test_the_java_client_sees_the_same_through_the_proxy(ours: Side, real: Side) -> None:
    _same(grpc_sides.java_driver(), "java", ours, real)


@pytest.mark.more
@pytest.mark.covers(
    "Through the proxy: every type of message, orphaned transactions, push and simple consumers",
    client="gRPC Go 5.1.3",
    sides="both",
)
def test_the_go_client_sees_the_same_through_the_proxy(ours: Side, real: Side) -> None:
    """It cannot recall; and after a failure in order it goes on, so none fails here."""
    _same(grpc_sides.go_driver(), "go", ours, real, even="f-0,f-2,f-4")


@pytest.mark.more
@pytest.mark.covers(
    "Through the proxy: every type of message, recall, orphaned transactions, push and simple consumers",
    client="gRPC Node 1.0.8",
    sides="both",
)
def test_the_node_client_sees_the_same_through_the_proxy(ours: Side, real: Side) -> None:
    """After a failure in order it goes on, so none fails here."""
    _same(grpc_sides.node_driver(), "node", ours, real, even="f-0,f-2,f-4")


async def _create(namesrv: str, *topics: str) -> None:
    async with AdminClient(OsEnv(), namesrv.split(";")) as admin:
        for topic in topics:
            await admin.create_topic(topic, 2)


@pytest.mark.more  # until the proxy is fetched where make test runs
@pytest.mark.covers(
    "Through the proxy: messages are sent, received and acknowledged",
    client="gRPC Python 5.1.2",
    sides="keelmq",
)
def test_a_grpc_client_sends_and_receives_through_the_proxy(cluster: Cluster, tmp_path: Path) -> None:
    """What every run looks at of the above."""
    python, _ = grpc_sides.python_driver()
    asyncio.run(_create(cluster.namesrv, "DefaultHeartBeatSyncerTopic", "few"))
    with grpc_sides.proxy_before(cluster.namesrv, tmp_path / "proxy") as endpoint:
        command = [python, str(grpc_sides.DRIVERS / "few.py"), endpoint, "few", "few_cg"]
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert "DRIVER few 0 1 2 3 4 5 6 7 8 9\n" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
