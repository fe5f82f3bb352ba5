"""The promise of cutting: what was cut stays gone, and a crash at any step leaves a store that opens."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar, cast

import pytest

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from store.files import segment
from store.message_store import MessageStore
from store.recover import recovery
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, abandoned, fill, message, opened, records_of, records_on
from tests.waiting import until

HOUR_MS: Final = 3_600_000
T = TypeVar("T")


def test_a_cut_tail_stays_gone_after_a_crash_and_new_records() -> None:
    """The real broker brings the old tail back: it is still on its disk."""

    async def work(store: MessageStore) -> None:
        puts = await fill(store, 100, queues=1)
        store.log.sync()
        store.truncate(puts[50].physical_offset)
        store.put(message(b"new".ljust(100, b"x"), uniq="U50"))
        store.log.sync()

    async def run() -> FaultyDisk:
        env = FaultyEnv()
        await abandoned(env, work)
        return env.disk.crash()

    end, bodies = records_on(asyncio.run(run()))
    assert len(bodies) == 51
    assert bodies[-1].startswith(b"new")
    assert end < SEGMENT * 2


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("point", range(0, 40, 3))
def test_a_crash_during_a_cut_leaves_a_prefix(
    point: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:  # as a long stretch is: by the file system, not by writing zeros
        monkeypatch.setattr(segment, "ZERO_BLOCK", bytes(512))

    async def run() -> FaultyDisk:
        env = FaultyEnv()

        async def work(store: MessageStore) -> None:
            puts = await fill(store, 150, queues=1)
            store.log.sync()
            calls = 0

            def fail(what: str, path: str) -> int | None:
                nonlocal calls
                calls += 1
                return errno.EIO if calls > point else None

            env.disk.fail = fail
            with suppress(DiskError):
                store.truncate(puts[10].physical_offset)

        await abandoned(env, work, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
        return env.disk.crash(point)

    _, bodies = records_on(asyncio.run(run()))
    assert 10 <= len(bodies) <= 150
    assert [int(body.split(b":")[0]) for body in bodies] == list(range(len(bodies)))


async def test_a_cut_takes_the_recorded_confirm_offset_back_before_the_log() -> None:
    async def work(store: MessageStore) -> None:
        puts = await fill(store, 20, queues=1)
        store.log.sync()
        await store.background.housekeeping.write_checkpoint()
        store.truncate(puts[5].physical_offset)
        for _ in range(10):
            store.put(message("unconfirmed"))
        store.log.sync()

    env = FaultyEnv()
    await abandoned(env, work, controller_mode=True, flush_queue_interval_ms=3_600_000)
    async with opened(FaultyEnv(env.disk.crash()), controller_mode=True) as store:
        assert len(records_of(store)) == 5


def test_a_log_put_aside_is_kept_whole_whenever_the_process_dies() -> None:
    """Killed before any one operation, the segments lie in the log or aside, and the store opens."""

    async def quarantine(store: MessageStore, at: int) -> bool:
        await fill(store, 120, size=200, queues=1)
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        store.sync_to(store.log.end)
        await until(lambda: store.log.flushed == store.log.end)
        calls = itertools.count()
        disk = cast(FaultyDisk, store.retention._env.disk)
        disk.fail = lambda what, path: errno.EIO if next(calls) >= at else None
        with suppress(DiskError):
            store.quarantine()
            return True
        return False

    for at in range(100):
        env = FaultyEnv()
        done: list[bool] = []

        async def run(env: FaultyEnv = env, done: list[bool] = done, at: int = at) -> None:
            async def work(store: MessageStore) -> None:
                done.append(await quarantine(store, at))

            await abandoned(env, work)

        asyncio.run(run())
        for disk in (env.disk.killed(), env.disk.crash()):
            log, aside = (set(disk.listdir(f"/store/{name}commitlog")) for name in ("", ".before-reseed/"))
            assert log | aside >= {f"{n * SEGMENT:020d}" for n in range(4)}
            end, bodies = records_on(disk)
            assert [body.split(b":")[0] for body in bodies] == [str(n).encode() for n in range(len(bodies))]
            if done[0]:
                assert end == 0
        if done[0]:
            return
    raise AssertionError("never done")


def test_a_checkpoint_on_its_way_while_the_log_is_cut_does_not_cover_what_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread comes to run while the loop waits for the cut's own sync, and a crash follows the cut."""
    monkeypatch.setattr(recovery, "LOOK_BACK_BYTES", 512)  # as where more than 8 MiB are cut

    async def run() -> tuple[int, FaultyDisk]:
        env = FaultyEnv()
        asked: list[Callable[[], object]] = []
        async with opened(env, flush_interval_ms=HOUR_MS, flush_queue_interval_ms=HOUR_MS) as store:
            puts = await fill(store, 100, queues=1)
            store.log.sync()
            await store.background.housekeeping.queues.flush()

            async def offload(call: Callable[[], T]) -> T:
                asked.append(call)
                await asyncio.sleep(0)
                return call()

            def meanwhile(what: str, path: str) -> int | None:
                if what == "sync" and path == "/store/checkpoint" and asked:
                    asked.pop()()
                return None

            env.offload = offload  # type: ignore[method-assign]
            write = asyncio.create_task(store.background.housekeeping.write_checkpoint())
            await asyncio.sleep(0)
            assert len(asked) == 1
            env.disk.fail = meanwhile
            store.truncate(puts[50].physical_offset)
            assert not asked
            crashed = env.disk.crash()
            await write
            return puts[50].physical_offset, crashed

    cut, disk = asyncio.run(run())
    end, bodies = records_on(disk)
    assert (end, len(bodies)) == (cut, 50)


async def test_a_disk_that_was_full_once_while_a_log_is_put_aside_keeps_nobody_from_writing() -> None:
    disk = FaultyDisk()
    async with opened(FaultyEnv(disk)) as store:
        await fill(store, 5)
        full = errno.ENOSPC
        disk.fail = lambda what, path: full if what == "sync_dir" and "before-reseed" in path else None
        with pytest.raises(DiskError, match="putting the log aside"):
            store.quarantine()
        assert store.why_not_writable is None
        await fill(store, 5)
