"""The promises of a cluster of real processes, and of every drill: nothing is lost, and it comes back."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.local.cluster import LocalCluster
from client.consuming.pull import PullConsumer
from client.message import Message, SendStatus
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests import ROOT
from tests.live.commands import keelmq, status
from tests.toxiproxy import real_toxiproxy

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("cluster")
    done = keelmq("cluster", "up", "--dir", where)
    try:
        assert done.returncode == 0, done.stderr
        yield where
    finally:
        ended = keelmq("cluster", "down", "--dir", where)
    assert ended.returncode == 0, ended.stderr
    cluster = LocalCluster.open(where)
    assert not any(cluster.is_running(node) for node in cluster.layout.nodes)


def test_up_gives_a_full_cluster_and_may_be_called_again(directory: Path) -> None:
    before = status(directory)
    group = before["groups"][0]
    assert group["syncStateSet"] == [1, 2, 3]
    assert sorted(b["role"] for b in group["brokers"]) == ["master", "slave", "slave"]
    assert [c["leader"] for c in before["controllers"]].count(True) == 1
    assert keelmq("cluster", "up", "--dir", directory).returncode == 0
    again = status(directory)["groups"][0]["brokers"]
    assert [b["pid"] for b in again] == [b["pid"] for b in group["brokers"]]


def test_what_is_sent_is_read_back_and_reaches_every_replica(directory: Path) -> None:
    async def work() -> None:
        env = OsEnv(seed=5)
        namesrv = ";".join(status(directory)["namesrv"])
        async with Producer(env, "pg", namesrv) as producer:
            results = [
                await producer.send(Message(topic="Live", body=b"x" * 100, keys=[str(i)])) for i in range(50)
            ]
        assert {r.status for r in results} == {SendStatus.SEND_OK}
        async with PullConsumer(env, "cg", namesrv) as consumer:
            found = []
            for queue in await consumer.queues("Live"):
                found += await consumer.read_all(queue)
        assert sorted(m.msg_id for m in found) == sorted(r.msg_id for r in results)

    asyncio.run(work())
    ends = {b["maxOffset"] for b in status(directory)["groups"][0]["brokers"]}
    assert len(ends) == 1


def test_up_starts_only_what_is_missing(directory: Path) -> None:
    cluster = LocalCluster.open(directory)
    before = {node.name: node.pid for node in cluster.layout.nodes}
    victim = cluster.layout.broker_nodes[1]
    cluster.send_signal(victim, signal.SIGKILL)
    assert keelmq("cluster", "up", "--dir", directory).returncode == 0
    after = {node.name: node.pid for node in LocalCluster.open(directory).layout.nodes}
    assert [name for name in before if before[name] != after[name]] == [victim.name]


# The promise is about time, so here, and nowhere else, a test has a bound in seconds. It tells a failover by
# events, or by a silence of 1.5 s, from one by the original's timers, which takes 10 to 15 s on any machine;
# a tighter one would say how busy this machine is. What a failover takes is measured by bench/failover.py.
OUTAGE_MAX_MS = 9000
SCENARIOS = (
    "kill-master",
    "stop-master",
    "freeze-master",
    "handover",
    # Simulated in every run: each seed of the swarm draws such faults.
    pytest.param("kill-slave", marks=pytest.mark.more),
    pytest.param("freeze-slave", marks=pytest.mark.more),
    "kill-controller-leader",
    "kill-namesrv",
)
MOVES = ("kill-master", "stop-master", "freeze-master", "handover")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_drill_loses_nothing_and_comes_back_in_time(directory: Path, tmp_path: Path, scenario: str) -> None:
    out = tmp_path / "drill.json"
    done = keelmq("drill", scenario, "--dir", directory, "--json", out, "--history", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    drill = result["drills"][0]
    assert drill["acked"] > 100
    assert drill["acked"] <= drill["read_back"] <= drill["acked"] + drill["unknown"]
    assert (drill["lost"], drill["duplicates"], drill["order_violations"], drill["failed"]) == (0, 0, 0, 0)
    assert drill["unfinished"] is None
    assert len(drill["rto_queues_ms"]) == result["queues"]
    assert drill["rto_ms"] == max(drill["rto_queues_ms"]) < OUTAGE_MAX_MS
    if scenario in MOVES:
        steps = [drill[name] for name in ("elected_ms", "promoted_ms", "routed_ms")]
        assert steps == sorted(steps)
        assert drill["first_ack_ms"] >= drill["promoted_ms"] - 1  # clocks tick in whole ms
    if scenario in ("kill-master", "freeze-master"):
        assert drill["noticed_ms"] <= drill["elected_ms"]
    if scenario in ("stop-master", "handover"):
        assert drill["unknown"] == 0
    assert list(tmp_path.glob(f"{scenario}-0.jsonl"))


@pytest.mark.parametrize(
    "scenario",
    [
        "handover",
        pytest.param("stop-master", marks=pytest.mark.more),  # a handover, too
        "kill-leader-and-master",
    ],
)
def test_a_campaign_keeps_every_promise_over_all_its_drills(
    directory: Path, tmp_path: Path, scenario: str
) -> None:
    out = tmp_path / "campaign.json"
    options = ("--campaign", "--repeat", "2", "--rate", "300", "--dir", directory, "--json", out)
    done = keelmq("drill", scenario, *options, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert len(result["drills"]) == 2
    assert (
        result["read_back"] >= result["acked_total"] > sum(drill["acked"] for drill in result["drills"]) / 2
    )
    assert (result["lost_total"], result["acknowledged_twice_total"]) == (0, 0)
    if scenario == "kill-leader-and-master":
        assert all(drill["leader_ms"] is not None for drill in result["drills"])
        assert all("+" in drill["victim"] for drill in result["drills"])
    else:
        # The former master answers or refuses all that it took, so every send gets its answer.
        assert (result["failed_total"], result["unknown_total"]) == (0, 0)


def test_a_drill_on_a_directory_without_a_cluster_is_wrong_usage(tmp_path: Path) -> None:
    done = keelmq("drill", "kill-master", "--dir", tmp_path)
    assert done.returncode == 64
    assert "holds no cluster" in done.stderr


def test_a_taken_port_ends_up_with_3_and_says_why(directory: Path, tmp_path: Path) -> None:
    base = LocalCluster.open(directory).layout.base_port
    done = keelmq("cluster", "up", "--dir", tmp_path, "--base-port", str(base), "--timeout", "20")
    keelmq("cluster", "down", "--dir", tmp_path)
    assert done.returncode == 3
    assert "ended" in done.stderr


def whole(directory: Path) -> LocalCluster | None:
    """The cluster of the drill that keeps it below ``directory``, once each of its servers runs."""
    for state in directory.glob("keelmq-drill-*/cluster.json"):
        cluster = LocalCluster.open(state.parent)
        if all(cluster.is_running(node) for node in cluster.layout.nodes):
            return cluster
    return None


def test_a_drill_told_to_stop_takes_its_own_cluster_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "drill", "freeze-master", "--repeat", "9"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as drill:
        deadline = time.monotonic() + 60
        while not (cluster := whole(tmp_path)):
            assert time.monotonic() < deadline, "the drill started no cluster"
            time.sleep(0.1)
        drill.send_signal(signal.SIGTERM)
        assert drill.wait(60) == 130
    assert not any(cluster.is_running(node) for node in cluster.layout.nodes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "by"),
    [
        ("cut-replication", "toxiproxy"),
        # The relay slices in tests/chaos, what reads pieces is tested in tests/ha; its cut is below.
        pytest.param("slice-replication", "relay", marks=pytest.mark.more),
    ],
)
def test_a_fault_on_the_masters_links_loses_nothing(fault: str, by: str, tmp_path: Path) -> None:
    out = tmp_path / "drill.json"
    env = {**os.environ, "KEELMQ_TOXIPROXY": str(real_toxiproxy()) if by == "toxiproxy" else "relay"}
    done = keelmq("drill", fault, "--json", out, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (drill,) = json.loads(out.read_text())["drills"]
    assert drill["acked"] > 100
    assert (drill["lost"], drill["failed"], drill["unfinished"]) == (0, 0, None)


@pytest.mark.parametrize(
    "setting",
    [
        "broker.majorityAck=true",
        # Simulated in every run: tests/sim/test_stranded_master.py, cut off in both modes.
        pytest.param("broker.minInSyncReplicas=2", marks=pytest.mark.more),
    ],
)
def test_a_master_cut_off_from_its_slaves_only_is_replaced_while_the_cut_lasts(
    setting: str, tmp_path: Path
) -> None:
    out = tmp_path / "drill.json"
    done = keelmq("drill", "cut-replication", "--set", setting, "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    (drill,) = json.loads(out.read_text())["drills"]
    assert (drill["lost"], drill["failed"], drill["unfinished"]) == (0, 0, None)
    assert drill["elected_ms"] is not None, "another broker leads"
