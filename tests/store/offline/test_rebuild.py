"""The promise of an offline repair: with the log alone, queues and index come back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

import pytest

from store.files.consume_queue import FILL_ENTRIES_MAX
from store.files.record import Record, decode, encode
from store.offline.directory import SegmentInfo
from store.offline.queues.begins import QueueBegins
from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import config, fill, message, opened, records_of

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


def test_index_files_are_taken_in_the_order_of_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are local time, which comes twice in autumn."""
    disk, small = _written(), config(index_entries=40)
    disk.rmtree("/store/index")
    assert repair(disk, "/store", [], config=small).indexed == COUNT
    files = sorted(_files(disk, "/store/index/"))
    assert len(files) > 2
    held = [disk.nodes[path].cache for path in files]
    monkeypatch.setattr("store.offline.index_check.OWED_MAX", 5)
    for order in (held, held[::-1], [*held[1:], held[0]]):
        for path, data in zip(files, order, strict=True):
            disk.nodes[path].cache = data
        assert verify(disk, "/store", small, None)["damage"] == []


def test_an_index_of_which_no_file_is_left_gets_the_replicas_shape() -> None:
    """Not a file of 420 MB in the place of small ones, which this broker's configuration does not open."""
    disk = _written()
    assert repair(disk, "/store", [], config=config()).left == []
    files = _files(disk, "/store/index/")
    for path, data in _files(disk, "/store/").items():
        target = f"/peer/{path.removeprefix('/store/')}"
        disk.makedirs(target.rpartition("/")[0])
        disk.open(target, create=True).pwrite(data, 0)
    disk.rmtree("/store/index")
    assert repair(disk, "/store", ["/peer"]).indexed == COUNT
    assert {len(data) for data in _files(disk, "/store/index/").values()} == {
        len(data) for data in files.values()
    }


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


PER_FILE = 200
"""Bytes of a queue's file: the 40 messages of a queue are in four."""
FILES = [PER_FILE * at for at in range(4)]


def _in_small_files(queues: int = QUEUES) -> FaultyDisk:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, queue_file_bytes=PER_FILE) as store:
            await fill(store, COUNT, queues=queues)
        return env.disk

    return completed(run())


def _queue_files(starts: tuple[int, ...]) -> list[str]:
    return [f"/store/consumequeue/T/1/{start:020}" for start in starts]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_files_of_a_queue_that_are_gone_before_others_are_made_from_the_log(count: int) -> None:
    """An entry of a message that the log holds is made again, wherever in its queue it stood."""
    for starts in combinations(FILES, count):
        disk = _in_small_files()
        queues = _files(disk, "/store/consumequeue/")
        for path in _queue_files(starts):
            disk.remove(path)
        assert "cq_missing" in {d["kind"] for d in verify(disk, "/store", config())["damage"]}
        outcome = repair(disk, "/store", [], config=config())
        assert (outcome.left, outcome.entries) == ([], 10 * count)
        assert _files(disk, "/store/consumequeue/") == queues
        assert verify(disk, "/store", config())["damage"] == []
        assert _files(disk.crash(), "/store/consumequeue/") == queues


def test_files_that_were_made_in_part_when_a_repair_was_cut_short_are_made_by_the_next() -> None:
    for point in range(0, 40, 2):
        disk = _in_small_files()
        queues = _files(disk, "/store/consumequeue/")
        for path in _queue_files((0, PER_FILE)):
            disk.remove(path)
        disk.durable = dict(disk.nodes)
        calls = 0

        def fail(what: str, path: str, point: int = point) -> int | None:
            nonlocal calls
            calls += "/consumequeue/" in path and what != "pread"
            if calls > point:
                raise KeyboardInterrupt
            return None

        disk.fail = fail
        with suppress(KeyboardInterrupt):
            repair(disk, "/store", [], config=config())
        after = disk.crash(point)
        assert repair(after, "/store", [], config=config()).left == []
        found = _files(after, "/store/consumequeue/")
        assert {path: data for path, data in found.items() if not path.endswith(".made")} == queues


def test_what_retention_took_of_a_queue_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv(now_ms=1 << 40)
        async with opened(env, queue_file_bytes=PER_FILE, commit_log_megabytes_max=1) as store:
            await fill(store, COUNT, queues=1)
            store.log.sync()
            monkeypatch.setattr(store.retention, "_is_due", lambda *_: len(store.log.segments) > 2)
            assert await store.retention.round() > 0
        return env.disk

    disk = completed(run())
    assert f"/store/consumequeue/T/0/{0:020}" not in disk.nodes
    assert verify(disk, "/store", config())["damage"] == []


def test_a_queue_begins_where_it_went_on_far_ahead() -> None:
    """As its broker made it: what stood before that in the log has no entry."""
    store = _Queue(first_file=PER_FILE * 1000, count=1)
    begins = QueueBegins(store, PER_FILE)  # type: ignore[arg-type]
    far = FILL_ENTRIES_MAX
    for at, place in enumerate((0, 1, far + 3)):
        begins.take(record(at, place))
    assert list(begins.gone()) == []
    near = QueueBegins(_Queue(first_file=PER_FILE * 2, count=1), PER_FILE)  # type: ignore[arg-type]
    for at, place in enumerate((0, 1, 20)):
        near.take(record(at, place))
    assert [int(gone.path[-20:]) for gone in near.gone()] == [PER_FILE * 0, PER_FILE * 1]


class _Queue:
    """A store with one queue, in files from ``first_file`` on."""

    def __init__(self, first_file: int, count: int) -> None:
        self._files = [
            SegmentInfo(first_file + n * PER_FILE, PER_FILE, f"{first_file + n * PER_FILE:020}")
            for n in range(count)
        ]

    def queue_files(self, topic: str, queue_id: int) -> list[SegmentInfo]:
        return self._files

    def queue_entries(self, topic: str, queue_id: int) -> Iterator[tuple[int, int, int, int]]:
        yield self._files[0].start // 20, 1 << 40, 100, 0


def record(at: int, place: int) -> Record:
    raw = encode(message("x"), place, at * 1000, 1)
    return decode(raw)
