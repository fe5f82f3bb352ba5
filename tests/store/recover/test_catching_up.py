"""The promise of what a start makes up: it is what the life before left behind, and it holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any

import pytest

from chaos.sim.loop import SimLoop
from runtime.env import read_file
from store.files import index_file
from store.files.checkpoint import READ_BYTES, Checkpoint
from store.files.record import Dispatch
from store.flow.dispatching import indexing
from store.flow.upkeep import housekeeping
from store.flow.upkeep.throttle import POSTPONE_S, STEP_PAUSE_S
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, fill, message, opened

SECOND = {"flush_interval_ms": 500, "flush_queue_interval_ms": 1000}  # as by default
LIFE_S = 3.0
"""Less than the index is written back every."""
ALL_MS = 1 << 62


@pytest.fixture(autouse=True)
def _behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery makes nothing up itself, as with slots as many as by default."""
    monkeypatch.setattr(indexing, "AT_ONCE_BYTES", -1)


def _life(disk: FaultyDisk, work: Callable[[MessageStore], Awaitable[None]], **keys: Any) -> FaultyDisk:
    """A store is opened, ``work`` uses it, then its process is killed: the disk it leaves."""
    loop = SimLoop(0)
    env = FaultyEnv(disk)

    async def live() -> None:
        store = MessageStore(env, config(**(SECOND | {"segment_bytes": 1 << 20} | keys)))
        _count(store)
        await store.open()
        await work(store)

    _run(loop, live())
    return env.disk.killed()


def _run(loop: SimLoop, work: Coroutine[Any, Any, None]) -> None:
    asyncio.set_event_loop(loop)
    life = loop.new_life("broker")

    async def main() -> None:
        await loop.spawn(life, work, name="work")
        loop.kill(life)

    try:
        loop.run_until_complete(main())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _count(store: MessageStore) -> None:
    """Keep (records, bytes, virtual s) of each step that makes the index up in ``made_up`` of the store."""
    store.made_up = []  # type: ignore[attr-defined]
    put = store.flow.indexer._put

    def counting(batch: Sequence[Dispatch]) -> None:
        if not store.flow.indexer.caught_up:
            size = sum(item.size for item in batch)
            store.made_up.append((len(batch), size, asyncio.get_running_loop().time()))  # type: ignore[attr-defined]
        put(batch)

    store.flow.indexer._put = counting  # type: ignore[method-assign]


def _steps(store: MessageStore) -> list[tuple[int, int, float]]:
    return store.made_up  # type: ignore[attr-defined, no-any-return]


def _indexed_on(disk: FaultyDisk) -> int:
    return Checkpoint.decode(read_file(disk, "/store/checkpoint")[:READ_BYTES]).indexed_offset


def _killed_often(times: int) -> tuple[list[int], FaultyDisk]:
    """How many records each of so many lives made up; 100 are written at the end of each."""
    made_up: list[int] = []

    async def work(store: MessageStore) -> None:
        await asyncio.sleep(LIFE_S)
        made_up.append(sum(records for records, _, _ in _steps(store)))
        await fill(store, 100)

    disk = FaultyDisk()
    for _ in range(times):
        disk = _life(disk, work, index_entries=5000)
    return made_up, disk


def test_what_a_start_makes_up_does_not_grow_with_the_kills_before() -> None:
    made_up, disk = _killed_often(8)
    assert made_up == [0] + 7 * [100]

    async def work(store: MessageStore) -> None:
        await store.indexed()
        assert all(len(store.query("T", f"U{number}", 99, 0, ALL_MS)) == 8 for number in range(100))

    _life(disk, work, index_entries=5000)


def test_a_part_of_much_is_written_back_before_all_of_it_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives too short to come level still come nearer."""
    monkeypatch.setattr(indexing, "STEP_BYTES", 500)
    monkeypatch.setattr("store.flow.upkeep.throttle.STEP_PAUSE_S", 0.1)
    monkeypatch.setattr(housekeeping, "CATCH_UP_BYTES", 2000)

    async def write(store: MessageStore) -> None:
        await fill(store, 300)

    async def read(store: MessageStore) -> None:
        await asyncio.sleep(LIFE_S)
        assert store.indexing_bytes

    disk = _life(FaultyDisk(), write)
    before = 0
    for _ in range(4):
        disk = _life(disk, read)
        assert _indexed_on(disk) >= before + 2000
        before = _indexed_on(disk)


def test_a_step_is_short_and_the_rest_behind_it_no_shorter() -> None:
    async def write(store: MessageStore) -> None:
        for number in range(3000):
            store.put(message(b"", uniq=f"U{number}"))
        store.confirm(store.log.end)
        await store.caught_up()

    async def read(store: MessageStore) -> None:
        await store.indexed()
        steps = _steps(store)
        assert sum(records for records, _, _ in steps) == 3000
        assert max(size for _, size, _ in steps) <= 1 << 14
        assert max(records for records, _, _ in steps) <= 170
        times = [at for _, _, at in steps]
        assert min(b - a for a, b in pairwise(times)) >= 0.9 * STEP_PAUSE_S

    _life(_life(FaultyDisk(), write, index_entries=5000), read, index_entries=5000)


def test_what_is_written_meanwhile_does_not_keep_the_index_from_being_level() -> None:
    async def write(store: MessageStore) -> None:
        await fill(store, 1000)

    async def read(store: MessageStore) -> None:
        number = 0
        for number in range(100):  # more with each rest than a step alone would make up
            if not store.indexing_bytes:
                break
            for _ in range(150):
                store.put(message(b"x" * 30, uniq=f"M{number}"))
            store.confirm(store.log.end)
            await asyncio.sleep(STEP_PAUSE_S)
        assert 5 < number < 99
        assert max(size for _, size, _ in _steps(store)) <= (1 << 14) + indexing.GROWN_BYTES_MAX

    disk = _life(FaultyDisk(), write, index_entries=100_000)
    _life(disk, read, index_entries=100_000)


def test_nothing_is_made_up_while_a_role_changes() -> None:
    async def write(store: MessageStore) -> None:
        await fill(store, 1000)

    async def read(store: MessageStore) -> None:
        await asyncio.sleep(2 * STEP_PAUSE_S)
        begun = len(_steps(store))
        store.throttle.postpone()
        await asyncio.sleep(0.9 * POSTPONE_S)
        assert 0 < begun <= len(_steps(store)) <= begun + 1
        assert store.indexing_bytes
        await store.indexed()

    _life(_life(FaultyDisk(), write, index_entries=5000), read, index_entries=5000)


def test_a_clean_start_makes_nothing_up() -> None:
    async def write(store: MessageStore) -> None:
        await fill(store, 300)
        await store.close()

    async def read(store: MessageStore) -> None:
        await asyncio.sleep(LIFE_S)
        assert store.recovered is not None
        assert store.recovered.clean
        assert not _steps(store)

    _life(_life(FaultyDisk(), write), read)


def test_messages_indexed_while_a_flush_copies_are_found_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy is made in steps; a kill right behind the write leaves slots newer than the header."""
    monkeypatch.setattr(index_file, "_PICTURE_BYTES", 4096)
    keys = {"index_slots": 8192, "index_entries": 5000}
    again = " ".join(f"U{number}" for number in range(40))  # in the slots of earlier ones, on all pages

    async def write(store: MessageStore) -> None:
        await fill(store, 600)
        index = store.files.index
        assert index is not None
        for step, _ in enumerate(index.picture()):
            store.put(message("late", uniq=f"L{step}", keys=again))
            store.confirm(store.log.end)
            await store.caught_up()
        assert step == 5
        index.write_picture()

    async def read(store: MessageStore) -> None:
        await store.indexed()
        counts = [len(store.query("T", f"U{number}", 99, 0, ALL_MS)) for number in range(600)]
        assert counts == 40 * [1 + 6] + 560 * [1]
        assert all(len(store.query("T", f"L{step}", 9, 0, ALL_MS)) == 1 for step in range(6))

    _life(_life(FaultyDisk(), write, **keys), read, **keys)


def test_a_cut_while_a_flush_copies_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "_PICTURE_BYTES", 4096)
    keys = {"index_slots": 8192, "index_entries": 5000}

    async def write(store: MessageStore) -> None:
        puts = await fill(store, 600)
        index = store.files.index
        assert index is not None
        steps = index.picture()
        next(steps)
        store.truncate(puts[5].physical_offset)
        assert list(steps) == []
        assert not index.pictured
        index.end_flush(False)

    disk = _life(FaultyDisk(), write, **keys)

    async def read(store: MessageStore) -> None:
        assert store.files.index is not None
        assert store.files.index.files[-1].head.count == 6
        await store.indexed()
        assert [bool(store.query("T", f"U{number}", 9, 0, ALL_MS)) for number in range(7)] == 5 * [True] + [
            False,
            False,
        ]

    _life(disk, read, **keys)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_batch_of_very_many_keys_is_indexed_in_pieces_and_no_otherwise(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lawful batch may have a million keys; files fill within it."""
    pieces: list[int] = []

    def written(most: int) -> list[bytes]:
        monkeypatch.setattr(indexing, "KEYS_AT_ONCE", most)
        monkeypatch.setattr(indexing, "PACKED_KEYS_AT_ONCE", most if compiled else 0)
        pieces.clear()
        loop, env = SimLoop(0), FaultyEnv()

        async def live() -> None:
            store = MessageStore(env, config(segment_bytes=1 << 20, index_entries=500))
            put = store.flow.indexer._put

            def counting(batch: Sequence[Dispatch]) -> None:
                pieces.append(sum(1 + len(item.keys.split()) for item in batch))
                put(batch)

            monkeypatch.setattr(store.flow.indexer, "_put", counting)
            await store.open()
            await fill(store, 3)
            store.put(
                [message(b"", uniq=f"V{n}", keys=" ".join(f"k{w}" for w in range(n))) for n in range(50)]
            )
            store.confirm(store.log.end)
            await store.caught_up()
            assert (store.indexing_bytes > 0) is (most < 1000)
            await fill(store, 3)
            await store.indexed()
            assert not store.indexing_bytes
            await fill(store, 3)
            await store.caught_up()
            assert not store.indexing_bytes, "few keys are placed at once, again"
            assert len(store.query("T", "k7", 99, 0, ALL_MS)) == 42
            await store.close()

        _run(loop, live())
        names = sorted(env.disk.listdir("/store/index"))
        return [read_file(env.disk, f"/store/index/{name}") for name in names]

    in_pieces = written(60)
    assert max(pieces) <= 60
    whole = written(10_000)
    assert len(whole) == 3
    assert in_pieces == whole


async def test_many_messages_of_few_keys_stay_level_when_a_file_gets_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "KEYS_AT_ONCE", 60)
    async with opened(FaultyEnv(), segment_bytes=1 << 20, index_entries=500) as store:
        for first in range(0, 1200, 400):
            store.put([message(b"", uniq=f"U{first + n}", keys="k") for n in range(400)])
            store.confirm(store.log.end)
            await store.caught_up()
            assert not store.indexing_bytes, "they are not read from the log once more"
        assert len(store.query("T", "k", 2000, 0, ALL_MS)) == 1200


async def test_an_index_that_is_turned_off_is_noted_and_made_of_the_whole_log_when_it_is_on_again() -> None:
    """Its files may be removed meanwhile: no note may speak for them."""
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 5)
    assert _indexed_on(env.disk) > 0
    async with opened(env, message_index_enable=False) as store:
        await fill(store, 5)
        for name in env.disk.listdir("/store/index"):
            env.disk.remove(f"/store/index/{name}")
    assert _indexed_on(env.disk) == 0
    async with opened(env) as store:
        await store.indexed()
        assert [len(store.query("T", f"U{n}", 99, 0, ALL_MS)) for n in range(5)] == [2] * 5
