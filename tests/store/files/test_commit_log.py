"""The promise of store.files.commit_log: what was cut or torn is gone, and a log has no gap after a crash."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from model.errors import DiskError
from store.files.segment import Segment
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, config, fill, message, opened

LAZY: dict[str, Any] = {"flush_interval_ms": 3_600_000, "flush_queue_interval_ms": 3_600_000}


def full(what: str, path: str) -> int | None:
    return errno.ENOSPC if "commitlog" in path and what in ("pwrite", "data_from") else None


def bytes_of(disk: FaultyDisk, start: int = 0) -> bytes:
    """What a segment holds in the page cache."""
    return bytes(disk.nodes[f"/store/commitlog/{start:020}"].cache)


async def test_a_cut_erases_what_a_failed_write_left_behind_the_end_too() -> None:
    env = FaultyEnv()
    async with opened(env, **LAZY) as store:
        puts = await fill(store, 3, queues=1)
        end = store.log.end
        env.disk.fail = full
        with pytest.raises(DiskError):
            store.put([message("torn".ljust(100)) for _ in range(6)])
        env.disk.fail = lambda what, path: None
        assert any(bytes_of(env.disk)[end:]), "half of it was written, and could not be erased"
        store.log.cut(puts[2].physical_offset)
        assert not any(bytes_of(env.disk)[store.log.end :])
        store.flow.dispatcher.move_back(store.log.end)


async def test_a_segment_that_a_failed_roll_did_not_use_goes_with_a_cut() -> None:
    env = FaultyEnv()
    async with opened(env, **LAZY) as store:
        puts = await fill(store, 3, queues=1)
        names = store.log.segment_names()
        env.disk.fail = lambda what, path: full(what, path) if what == "pwrite" else None
        with pytest.raises(DiskError):
            store.log.roll()
        env.disk.fail = lambda what, path: None
        assert f"/store/commitlog/{SEGMENT:020}" in env.disk.nodes, "it was made before the write failed"
        assert store.log.segment_names() == names
        store.log.cut(puts[2].physical_offset)
        store.flow.dispatcher.move_back(store.log.end)
        assert [path for path in env.disk.nodes if "/commitlog/" in path] == [
            f"/store/commitlog/{name}" for name in names
        ]


async def test_a_segment_is_on_disk_in_its_full_size_before_there_is_a_next_one() -> None:
    """One that is too short in the middle of the log keeps it from being opened."""
    env = FaultyEnv()
    seen: list[tuple[str, str]] = []

    def note(what: str, path: str) -> None:
        if "/commitlog/" in path and what in ("allocate", "sync"):
            seen.append((what, path.rpartition("/")[2]))

    env.disk.fail = note
    async with opened(env, **LAZY) as store:
        for _ in range(3):
            store.put(message("x"))
            store.log.roll()
        made = list(seen)
    allocated = [name for what, name in made if what == "allocate"]
    assert len(allocated) == 4
    for at, (what, name) in enumerate(made):
        if what == "allocate":
            assert made[at + 1 : at + 2] == [("sync", name)]


async def test_a_segment_that_retention_took_while_it_was_made_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log made it sooner itself, went on, and all of it expired while a thread stood still."""
    env = FaultyEnv()
    async with opened(env, **LAZY) as store:
        store.put(message("x"))
        ahead, wanted, taken = store.log.ahead, iter([9 * SEGMENT]), list[str]()
        make = ahead._make

        def made_and_taken(segment: Segment) -> None:
            make(segment)
            env.disk.remove(segment.path)
            taken.append(segment.path)

        monkeypatch.setattr(ahead, "_make", made_and_taken)
        ahead.look()
        await ahead.run(lambda: next(wanted, None), lambda: bool(taken))
        assert taken == [f"/store/commitlog/{9 * SEGMENT:020}"]
        assert ahead.ready is None


async def test_a_segment_that_a_cut_took_while_it_was_made_is_not_gone_on_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log made it sooner itself, went into it, and was cut: what a thread had opened has no name."""
    env = FaultyEnv()
    async with opened(env, **LAZY) as store:
        store.put(message("x"))
        ahead, taken = store.log.ahead, list[str]()
        make = ahead._make

        def made_and_cut(segment: Segment) -> None:
            make(segment)
            env.disk.remove(segment.path)
            store.log.cut(store.log.end)
            taken.append(segment.path)

        monkeypatch.setattr(ahead, "_make", made_and_cut)
        ahead.look()
        await ahead.run(lambda: 9 * SEGMENT, lambda: bool(taken))
        assert taken == [f"/store/commitlog/{9 * SEGMENT:020}"]
        assert ahead.ready is None


def test_a_sync_that_was_under_way_is_told_of_a_cut_and_of_a_reset() -> None:
    store = MessageStore(FaultyEnv(), config())
    log = store.log
    moves: list[Callable[[], None]] = [lambda: log.cut(0), lambda: log.reset(0)]
    for move in moves:
        before = log.generation
        move()
        assert log.generation > before, "what it made durable may be other bytes by now"
