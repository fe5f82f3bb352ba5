"""The promise of an offline repair: with the log alone, queues and index come back as they were."""

from __future__ import annotations

import pytest

from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import config, fill, opened, records_of

COUNT = 120
QUEUES = 3


def _written() -> FaultyDisk:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env) as store:
            await fill(store, COUNT, queues=QUEUES)
        return env.disk

    return completed(run())


def _serves_all(disk: FaultyDisk) -> None:
    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert store.recovered is not None
            assert store.recovered.clean
            assert [store.max_queue_offset("T", queue) for queue in range(QUEUES)] == [COUNT // QUEUES] * 3
            found = sorted(
                r.physical_offset for queue in range(QUEUES) for r in records_of(store, "T", queue)
            )
            assert len(set(found)) == COUNT
            await store.indexed()
            for number in range(COUNT):
                assert len(store.query("T", f"U{number}", 10, 0, 1 << 62)) == 1

    completed(run())


def _files(disk: FaultyDisk, under: str) -> dict[str, bytes]:
    return {path: bytes(node.cache) for path, node in disk.nodes.items() if path.startswith(under)}


@pytest.mark.parametrize("gone", ["consumequeue", "consumequeue/T/1", "index", "both"])
def test_what_is_gone_is_made_from_the_log(gone: str) -> None:
    disk = _written()
    queues = _files(disk, "/store/consumequeue/")
    for name in ("consumequeue", "index") if gone == "both" else (gone,):
        disk.rmtree(f"/store/{name}")
    outcome = repair(disk, "/store", [], config=config())
    assert outcome.left == []
    assert bool(outcome.entries) is (gone != "index")
    assert (outcome.indexed == COUNT) is (gone in ("index", "both"))
    assert _files(disk, "/store/consumequeue/") == queues
    assert verify(disk, "/store", config(), None)["damage"] == []
    _serves_all(disk.crash())


def test_a_damaged_index_is_made_anew_and_a_whole_store_is_left_alone() -> None:
    disk = _written()
    assert repair(disk, "/store", [], config=config()).to_json()["indexed"] is None
    path = next(path for path in disk.nodes if path.startswith("/store/index/"))
    disk.nodes[path].cache[40 + 50 * 4 + 20 + 3] ^= 0x55  # the key hash of the first entry
    assert "index_wrong" in {d["kind"] for d in verify(disk, "/store", config(), None)["damage"]}
    outcome = repair(disk, "/store", [], config=config())
    assert (outcome.indexed, outcome.entries) == (COUNT, 0)
    assert verify(disk, "/store", config(), None)["damage"] == []
    _serves_all(disk.crash())


def test_a_rebuild_that_was_cut_short_is_done_by_the_next() -> None:
    for point in range(0, 60, 4):
        disk = _written()
        disk.rmtree("/store/index")
        calls = 0

        def fail(what: str, path: str, point: int = point) -> int | None:
            nonlocal calls
            calls += ".index-rebuilt" in path or "/index" in path
            if calls > point:
                raise KeyboardInterrupt
            return None

        disk.fail = fail
        try:
            repair(disk, "/store", [], config=config())
        except KeyboardInterrupt:
            pass
        after = disk.crash(point)
        assert repair(after, "/store", [], config=config()).left == []
        _serves_all(after)
