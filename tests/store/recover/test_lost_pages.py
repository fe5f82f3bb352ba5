"""The promise of a start: whichever files a crash took of those that wait for their sync, each acknowledged
message is found by its queue and by each of its keys."""

from __future__ import annotations

from typing import Any

import pytest

from store.files.consume_queue import ENTRY_BYTES
from store.flow.reading import GetStatus
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, fill, message, opened

NEVER_MS = 3_600_000
FILE_BYTES = 400
PLACES = FILE_BYTES // ENTRY_BYTES
ALL_MS = 1 << 62


@pytest.mark.parametrize("settled", [0, 15], ids=["nothing settled", "another queue settled"])
@pytest.mark.parametrize("lost", range(6))
async def test_a_file_of_zeros_before_others_of_a_queue_that_nothing_of_was_settled(
    lost: int, settled: int
) -> None:
    disk = FaultyDisk()
    store = MessageStore(FaultyEnv(disk), config(flush_queue_interval_ms=NEVER_MS))
    await store.open()
    if settled:
        await fill(store, settled, queues=1, topic="Other")
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()
        assert store.checkpoint.now.settled_offset == store.log.end
    await fill(store, 5 * PLACES + 10, queues=1)
    store.log.sync()
    store.files.queues.write_out()
    image = disk.copy()
    file = image.open(f"/store/consumequeue/T/0/{lost * FILE_BYTES:020}")
    file.pwrite(bytes(FILE_BYTES), 0)
    image.boots += 1
    image.locks.clear()
    async with opened(FaultyEnv(image), flush_queue_interval_ms=NEVER_MS) as again:
        assert (again.min_queue_offset("T", 0), again.next_offset("T", 0)) == (0, 5 * PLACES + 10)
        for place in range(5 * PLACES + 10):
            assert again.get("T", 0, place, 1, 1 << 20).status is GetStatus.FOUND, place


async def test_keys_of_a_message_that_lie_in_two_index_files_are_all_there_after_a_kill_between_them() -> (
    None
):
    """Each message has two keys, and a file has room for an odd number of them."""
    keys: dict[str, Any] = {"index_slots": 40, "index_entries": 100, "flush_queue_interval_ms": NEVER_MS}
    disk = FaultyDisk()
    images: list[FaultyDisk] = []
    async with opened(FaultyEnv(disk), **keys) as store:
        for number in range(80):
            store.put(message(b"m", uniq=f"u{number}", keys=f"k{number}"))
        store.confirm(store.log.end)
        await store.caught_up()
        _, second = sorted(path for path in disk.nodes if "/index/" in path)

        def kill(what: str, path: str) -> None:
            if what == "pwrite" and path == second and not images:
                images.append(disk.copy())

        disk.fail = kill
        await store.background.housekeeping.flush_index()
        disk.fail = lambda what, path: None
    async with opened(FaultyEnv(images[0]), **keys) as again:
        await again.indexed()
        for number in range(80):
            for key in (f"u{number}", f"k{number}"):
                assert len(again.query("T", key, 10, 0, ALL_MS)) == 1, key


@pytest.mark.parametrize("gone", [1, 3])
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_file_that_is_gone_between_others_takes_no_place_with_it(gone: int, stopped: bool) -> None:
    disk = FaultyDisk()
    async with opened(FaultyEnv(disk)) as store:
        await fill(store, 5 * PLACES, queues=1)
    if not stopped:
        disk.open("/store/abort", create=True)
        disk.boots += 1
    disk.remove(f"/store/consumequeue/T/0/{gone * FILE_BYTES:020}")
    async with opened(FaultyEnv(disk)) as again:
        assert (again.min_queue_offset("T", 0), again.next_offset("T", 0)) == (0, 5 * PLACES)
        for place in range(5 * PLACES):
            assert again.get("T", 0, place, 1, 1 << 20).status is GetStatus.FOUND, place
