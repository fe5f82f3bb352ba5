"""chaos.live.onlooker promises: who leads the Controllers is noted when that changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.history import CONTROLLER_ROLE, History
from chaos.live import onlooker as module
from chaos.live.onlooker import Onlooker
from chaos.worlds.rocketmq_cluster import RocketMQOnlooker
from runtime.os_env import OsEnv

NODE = SimpleNamespace(name="namesrv-0", role="namesrv")


def noted(history: History) -> list[tuple[str, str, int]]:
    return [(e.node, e.fields["role"], e.fields["term"]) for e in history.happened(CONTROLLER_ROLE)]


def test_a_controller_is_noted_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = [
        {"controller": {"isLeader": True, "term": 3}},
        {"controller": {"isLeader": True, "term": 3}},
        *[None] * 5,
        {"controller": {"isLeader": False, "term": 4}},
    ]

    class Cluster:
        layout = SimpleNamespace(nodes=[NODE])

        async def look(self, *given: object) -> Any:
            return said.pop(0) if said else None

        def is_running(self, node: object) -> bool:
            return bool(said)

    async def main() -> History:
        history, last = History(), asyncio.Event()
        history.watch(lambda event: last.set() if len(noted(history)) == 4 else None)
        onlooker = Onlooker(OsEnv(seed=1), cast(Any, Cluster()), history, lambda: 1.0)
        onlooker.start()
        await last.wait()
        await onlooker.stop()
        return history

    monkeypatch.setattr(module, "LOOK_S", 0.001)
    told = noted(asyncio.run(asyncio.wait_for(main(), 30)))
    assert told == [
        ("namesrv-0", "leader", 3),
        ("namesrv-0", "silent", 0),
        ("namesrv-0", "follower", 4),
        ("namesrv-0", "silent", 0),
    ]


def test_of_rocketmq_only_the_leader_is_heard_of() -> None:
    history = History()
    onlooker = RocketMQOnlooker(OsEnv(seed=1), cast(Any, SimpleNamespace()), history, lambda: 1.0)
    for leader in ("n0", "n0", "n1", ""):
        onlooker._note_leader(leader)
    assert sorted(noted(history)) == [
        ("n0", "leader", 0),
        ("n0", "silent", 0),
        ("n1", "leader", 0),
        ("n1", "silent", 0),
    ]
