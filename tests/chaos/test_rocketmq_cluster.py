"""The promise of RocketMQ in a drill by plan: its servers stand where ours would, and start quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chaos.worlds import rocketmq
from chaos.worlds.rocketmq_cluster import RocketMQCluster


def test_six_jvms_start_without_what_takes_them_seconds_and_the_plan_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(command: list[str], conf: Path, log: Path) -> int:
        started.append(command)
        return 1

    monkeypatch.setattr(rocketmq, "fetch", lambda: tmp_path / "lib")
    monkeypatch.setattr("admin.local.processes.start", start)
    settings = ["broker.transactionMetricFlushInterval=7", "broker.allAckInSyncStateSet=true"]
    cluster = RocketMQCluster.create(tmp_path / "cluster", brokers=3, settings=settings)
    for node in cluster.layout.nodes:
        node.wrap = ["nsenter", node.name]
        cluster.start(node)
    for node, command in zip(cluster.layout.nodes, started, strict=True):
        assert command[:3] == ["nsenter", node.name, "java"]
        assert {*rocketmq.PLAIN.split(), rocketmq.NO_TLS} <= set(command)
    conf = dict(_keys(cluster.conf_path(cluster.layout.broker_nodes[0]).read_text()))
    assert conf["listenPort"] == str(cluster.layout.broker_nodes[0].base_port + 2)
    assert (conf["timerWheelEnable"], conf["transactionMetricFlushInterval"]) == ("false", "7")
    assert conf["allAckInSyncStateSet"] == "true"


def _keys(text: str) -> list[Any]:
    return [line.split("=", 1) for line in text.splitlines()]
