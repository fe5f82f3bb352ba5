"""The promise of the look at stopped stores: a queue that does not agree with its log is told, but of no disk
that was to be damaged."""

from __future__ import annotations

from pathlib import Path

from chaos.drills.live.stores import CHECKER, damaged
from chaos.history import Happened, History
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster
from tests.store.support import fill, opened


async def test_a_queue_that_does_not_agree_with_its_log_is_told(tmp_path: Path) -> None:
    cluster, history = FakeCluster(tmp_path), History()
    for node in cluster.layout.broker_nodes:
        async with opened(OsEnv(), root=str(cluster.store_path(node))) as store:
            await fill(store, 20)
    assert damaged(cluster, history, full=True) == []
    hit = cluster.layout.broker_nodes[1]
    queue = next(path for path in (cluster.store_path(hit) / "consumequeue").rglob("0*") if path.is_file())
    with queue.open("r+b") as file:
        file.seek(20 + 3)
        file.write(b"\x55")
    [found] = damaged(cluster, history, full=True)
    assert found["checker"] == CHECKER
    assert f"the store of {hit.name} is damaged in" in found["text"]
    history.add(Happened(1.0, hit.name, "flip_bit"))
    assert damaged(cluster, history, full=True) == []


def test_a_store_that_cannot_be_read_is_told_where_the_group_was_full(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path)
    assert len(damaged(cluster, History(), full=True)) == len(cluster.layout.broker_nodes)
    assert damaged(cluster, History(), full=False) == []
