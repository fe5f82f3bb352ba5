"""The promise of the index after a failed sync: a restart in the same boot finds in the page cache what is
not on the disk; nothing of that counts as durable before it was written again.

A flush of the index syncs three times: entries, slots, header. Each of them fails here in turn.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from model.errors import DiskError
from store.files.key_hash import KeyHash
from store.files.record import decode
from store.flow.writing import Put
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, fill, message, opened

IDLE: dict[str, Any] = {"flush_interval_ms": 3_600_000, "flush_queue_interval_ms": 3_600_000}


def _fails_at(number: int, part: str = "/index/") -> Callable[[str, str], int | None]:
    """Sync ``number`` (from 1) of a file whose path holds ``part`` fails, and all behind it."""
    seen = 0

    def fail(what: str, path: str) -> int | None:
        nonlocal seen
        if what not in ("sync", "sync_dir") or part not in f"{path}/":
            return None
        seen += 1
        return errno.EIO if seen >= number else None

    return fail


async def _flushed(store: MessageStore) -> None:
    store.log.sync()
    await store.background.housekeeping.queues.flush()
    await store.background.housekeeping.flush_index()
    await store.background.housekeeping.write_checkpoint()


async def _broken(disk: FaultyDisk, number: int, *, before: int, after: int, part: str = "/index/") -> None:
    """``before`` messages are in a durable index; the flush of ``after`` more fails, and the process ends."""
    store = MessageStore(FaultyEnv(disk), config(**IDLE))
    await store.open()
    if before:
        await fill(store, before, queues=1)
        await _flushed(store)
    for part_of in range(after):
        await fill(store, 1, queues=1, topic=f"T{part_of % 2}")
    disk.fail = _fails_at(number, part)
    await store.background.housekeeping.flush_index()
    assert store.why_not_writable is not None
    disk.fail = lambda what, path: None


async def _restarted(disk: FaultyDisk, *, clean: bool) -> None:
    """The next life in the same boot writes what it owes, and then its checkpoint covers it."""
    store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
    await store.open()
    if clean:
        await store.close()
    else:
        await _flushed(store)


def _found(disk: FaultyDisk, topic: str, key: str) -> int:
    async def run() -> int:
        async with opened(FaultyEnv(disk), **IDLE) as store:
            await store.indexed()
            found = store.query(topic, key, 64, 0, 1 << 62)
            return len({decode(data).physical_offset for data in found})

    return asyncio.run(run())


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("before", "number"), [(30, 1), (30, 2), (30, 3), (0, 1), (0, 2), (0, 3), (0, 4)])
def test_keys_are_found_after_a_power_failure_whichever_sync_of_the_index_failed(
    before: int, number: int, clean: bool
) -> None:
    """The first flush of a file syncs its directory before its entries."""
    disk = FaultyDisk()
    asyncio.run(_broken(disk, number, before=before, after=20))
    asyncio.run(_restarted(disk, clean=clean))
    after = disk.crash()
    assert [_found(after.copy(), "T", f"U{n}") for n in range(before)] == [1] * before
    assert _found(after.copy(), "T0", "U0") == 10
    assert _found(after.copy(), "T1", "U0") == 10


@pytest.mark.parametrize("clean", [False, True])
def test_the_name_of_an_index_file_is_durable_before_what_is_in_it_counts(clean: bool) -> None:
    disk = FaultyDisk()

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        await fill(store, 20, queues=1)
        disk.fail = lambda what, path: errno.EIO if (what, path) == ("sync_dir", "/store/index") else None
        await store.background.housekeeping.flush_index()
        assert store.why_not_writable is not None
        disk.fail = lambda what, path: None

    asyncio.run(broken())
    asyncio.run(_restarted(disk, clean=clean))
    assert [_found(disk.crash(), "T", f"U{number}") for number in range(20)] == [1] * 20


@pytest.mark.parametrize("number", [1, 2, 3])
def test_slots_that_a_cut_took_back_do_not_come_back_behind_new_entries(number: int) -> None:
    """The disk holds slots of entries that were cut; later entries have those numbers, and other keys."""
    disk = FaultyDisk()
    large: dict[str, Any] = IDLE | {"index_slots": 65536}
    hash_of = KeyHash()
    slots_of_a_page = 1024
    assert hash_of("T", "old") % 65536 // slots_of_a_page != hash_of("T", "new") % 65536 // slots_of_a_page

    def put(store: MessageStore, count: int, key: str) -> list[Put]:
        return [put for _ in range(count) for put in store.put(message(b"x", keys=key))]

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**large))
        await store.open()
        puts = put(store, 40, "old")
        store.confirm(store.log.end)
        await store.caught_up()
        await _flushed(store)
        disk.fail = _fails_at(number)
        with pytest.raises(DiskError, match="cutting"):
            store.truncate(puts[20].physical_offset)
        disk.fail = lambda what, path: None

    async def again() -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**large))
        await store.open()
        put(store, 40, "new")
        store.confirm(store.log.end)
        await store.caught_up()
        await store.indexed()
        await _flushed(store)

    async def found(key: str) -> int:
        async with opened(FaultyEnv(disk.crash()), **large) as store:
            await store.indexed()
            return len(store.query("T", key, 64, 0, 1 << 62))

    asyncio.run(broken())
    asyncio.run(again())
    assert asyncio.run(found("old")) == 20
    assert asyncio.run(found("new")) == 40


@pytest.mark.parametrize("number", range(2, 11))
def test_full_index_files_that_were_not_synced_are_written_again(number: int) -> None:
    """Sync 1 is the directory's; three follow for each of three files."""
    disk = FaultyDisk()
    small: dict[str, Any] = IDLE | {"index_entries": 16}

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**small))
        await store.open()
        await fill(store, 40, queues=1)  # two full files, and one that takes entries
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        disk.fail = _fails_at(number)
        await store.background.housekeeping.flush_index()
        assert store.why_not_writable is not None
        disk.fail = lambda what, path: None

    async def again() -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**small))
        await store.open()
        await _flushed(store)

    def found(key: str) -> int:
        async def run() -> int:
            async with opened(FaultyEnv(disk.crash()), **small) as store:
                await store.indexed()
                return len(store.query("T", key, 64, 0, 1 << 62))

        return asyncio.run(run())

    asyncio.run(broken())
    asyncio.run(again())
    assert [found(f"U{number}") for number in range(40)] == [1] * 40
