"""The promise of the live world: a moment without a master is no reason to give a drill up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.local.cluster import LocalCluster
from chaos.worlds import live
from chaos.worlds.live import CannotDrill, LiveWorld
from runtime.os_env import OsEnv

MASTERS: tuple[dict[str, str], ...] = (
    {},
    {"broker-a-1": "master"},
    {"broker-a-0": "master", "broker-a-1": "master"},
)


@dataclass
class Cluster:
    """Three brokers; each look shows the next of ``masters``, and the last one for ever."""

    masters: list[dict[str, str]]
    looks: int = 0
    layout: Any = field(init=False)

    def __post_init__(self) -> None:
        brokers = [
            SimpleNamespace(name=f"broker-a-{n}", group="broker-a", address=f"127.0.0.1:{n}")
            for n in range(3)
        ]
        self.layout = SimpleNamespace(group_names=["broker-a"], namesrvs=[], broker_nodes=brokers)

    async def views(self) -> dict[str, dict[str, str]]:
        roles = self.masters[min(self.looks, len(self.masters) - 1)]
        self.looks += 1
        return {b.name: {"role": roles.get(b.name, "slave")} for b in self.layout.broker_nodes}


def choose(cluster: Cluster) -> live.Victim:
    world = LiveWorld(OsEnv(seed=1), cast(LocalCluster, cluster))
    return asyncio.run(world.choose("kill-master", random.Random(1)))


def test_a_master_that_is_elected_meanwhile_is_the_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_S", 0.001)
    none, one, two = MASTERS
    cluster = Cluster([none, two, none, one])
    assert choose(cluster).name == "broker-a-1"
    assert cluster.looks == 4


def test_a_group_that_stays_without_one_ends_the_drill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_S", 0.001)
    monkeypatch.setattr(live, "CALM_S", 0.05)
    with pytest.raises(CannotDrill, match="has 0 masters"):
        choose(Cluster([MASTERS[0]]))
