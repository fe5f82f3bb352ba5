"""The promise after a failed sync: what was not synced counts again only once it was written again.

Linux marks the pages of a failed sync clean: the page cache shows them, and no later sync writes them. A
process that is restarted in the same boot reads them all the same.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from runtime.env import read_file
from store.files.checkpoint import Checkpoint
from store.files.damage import DamagedRange, load_ranges
from store.files.epoch_file import EpochEntry, EpochFile
from store.files.record import NewMessage, encode
from store.message_store import MessageStore
from tests.fakes.disk.memory import PAGE, FaultyDisk, FaultyEnv
from tests.store.support import config, fill, message, opened, records_of, records_on
from tests.waiting import until

OVERHEAD_BYTES = len(encode(message(b"", uniq="U00"), 0, 0, 0))
IDLE: dict[str, Any] = {"flush_interval_ms": 3_600_000, "flush_queue_interval_ms": 3_600_000}


async def _broken(disk: FaultyDisk, *, before: int, after: int) -> None:
    """``before`` messages are settled, ``after`` more written; their sync fails, and the process ends."""
    store = MessageStore(FaultyEnv(disk), config(**IDLE))
    await store.open()
    await fill(store, before, queues=1)
    store.log.sync()
    await store.background.housekeeping.queues.flush()
    await store.background.housekeeping.write_checkpoint()
    await fill(store, after, queues=1)
    disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
    store.sync_to(store.log.end)
    await until(lambda: store.why_not_writable is not None)
    disk.fail = lambda what, path: None


@pytest.mark.parametrize("size", [5, 60, 200])
def test_what_a_failed_sync_dropped_is_on_the_disk_before_it_counts_as_flushed(size: int) -> None:
    disk = FaultyDisk()
    asyncio.run(_broken(disk, before=40, after=size))

    async def restarted() -> tuple[int, int]:
        env = FaultyEnv(disk.killed())
        store = MessageStore(env, config(**IDLE))
        await store.open()
        found = len(records_of(store))
        assert store.log.flushed == store.log.end
        return store.log.flushed, found

    flushed, read = asyncio.run(restarted())
    assert read == 40 + size
    end, bodies = records_on(disk.crash())
    assert (end, len(bodies)) == (flushed, read)


def test_what_was_cut_before_a_failed_sync_does_not_come_back_behind_new_records() -> None:
    """The zeros behind the cut were dropped as well: the disk still holds the old records there."""
    disk = FaultyDisk()

    def one(number: int) -> NewMessage:
        return message(b"x" * (PAGE - OVERHEAD_BYTES), uniq=f"U{number:02}")

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        puts = [put for number in range(10) for put in store.put(one(number))]
        assert puts[1].physical_offset == PAGE, "a record a page: new ones end where old ones begin"
        store.confirm(store.log.end)
        await store.caught_up()
        store.log.sync()
        disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
        with pytest.raises(DiskError, match="cutting"):
            store.truncate(puts[5].physical_offset)
        disk.fail = lambda what, path: None

    async def again() -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
        await store.open()
        assert len(records_of(store)) == 5
        assert store.put(one(50))[0].queue_offset == 5
        store.log.sync()

    asyncio.run(broken())
    asyncio.run(again())
    assert records_on(disk.crash())[0] == 6 * PAGE


def test_a_checkpoint_whose_sync_failed_is_written_again_before_a_cut_relies_on_it() -> None:
    disk = FaultyDisk()

    async def broken() -> int:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        puts = await fill(store, 40, queues=1)
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()
        disk.fail = lambda what, path: errno.EIO if what == "sync" and "checkpoint" in path else None
        with pytest.raises(DiskError, match="cutting"):
            store.truncate(puts[30].physical_offset)
        disk.fail = lambda what, path: None
        return puts[30].physical_offset

    async def again(cut: int) -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
        await store.open()
        assert len(records_of(store)) == 40, "the cut failed before the log was touched"
        store.truncate(PhysicalOffset(cut))

    cut = asyncio.run(broken())
    asyncio.run(again(cut))
    found = Checkpoint.decode(read_file(disk.crash(), "/store/checkpoint"))
    assert found.trusted
    assert max(found.settled_offset, found.confirm_offset, found.master_flushed_offset) <= cut


def test_queue_entries_a_failed_sync_dropped_are_written_again() -> None:
    disk = FaultyDisk()

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        await fill(store, 40, queues=1)
        store.log.sync()
        disk.fail = lambda what, path: errno.EIO if what == "sync" and "consumequeue" in path else None
        await store.background.housekeeping.queues.flush()
        assert store.why_not_writable is not None
        disk.fail = lambda what, path: None

    async def again() -> None:
        async with opened(FaultyEnv(disk.killed()), **IDLE):
            pass  # a clean stop: the next start believes the queues

    asyncio.run(broken())
    asyncio.run(again())
    after = disk.crash()
    assert not after.exists("/store/abort")
    assert len(records_on(after)[1]) == 40


def test_the_name_of_a_segment_whose_sync_failed_is_durable_before_what_is_in_it_counts() -> None:
    disk = FaultyDisk()

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        await fill(store, 10, queues=1)
        disk.fail = lambda what, path: errno.EIO if what == "sync_dir" and "commitlog" in path else None
        store.sync_to(store.log.end)
        await until(lambda: store.why_not_writable is not None)
        disk.fail = lambda what, path: None

    async def again() -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
        await store.open()
        assert store.log.flushed == store.log.end > 0

    asyncio.run(broken())
    asyncio.run(again())
    assert len(records_on(disk.crash())[1]) == 10


def test_the_names_of_a_queue_are_durable_before_its_entries_count_as_settled() -> None:
    disk = FaultyDisk()

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        await fill(store, 10, queues=1, topic="KNOWN")
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()
        await fill(store, 10, queues=1)
        store.log.sync()
        disk.fail = lambda what, path: errno.EIO if what == "sync_dir" and "consumequeue/T" in path else None
        await store.background.housekeeping.queues.flush()
        assert store.why_not_writable is not None
        disk.fail = lambda what, path: None

    async def again() -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
        await store.open()
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()
        assert store.checkpoint.now.settled_offset == store.log.end

    asyncio.run(broken())
    asyncio.run(again())
    assert len(records_on(disk.crash())[1]) == 10


def test_queue_entries_that_a_cut_erased_do_not_come_back_when_their_sync_failed() -> None:
    disk = FaultyDisk()

    async def broken() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        puts = await fill(store, 40, queues=1)
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()
        store.truncate(puts[15].physical_offset)
        disk.fail = lambda what, path: errno.EIO if what == "sync" and "consumequeue" in path else None
        await store.background.housekeeping.queues.flush()
        assert store.why_not_writable is not None
        disk.fail = lambda what, path: None

    async def again() -> None:
        """The log grows past what was cut, in another queue, and is settled."""
        store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
        await store.open()
        await fill(store, 60, queues=1, topic="OTHER")
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()

    asyncio.run(broken())
    asyncio.run(again())
    assert len(records_on(disk.crash())[1]) == 15


def test_an_epoch_is_durable_before_it_counts_as_there_already() -> None:
    """``append`` of the last epoch is a no-op: what a restart reads must not be in the page cache only."""
    disk = FaultyDisk()
    disk.makedirs("/epochs")
    file = EpochFile(disk, "/epochs/epochFileCheckpoint")
    file.load()
    file.append(Epoch(1), PhysicalOffset(0))
    disk.fail = lambda what, path: errno.EIO if what == "sync_dir" else None
    with pytest.raises(DiskError, match="writing"):
        file.append(Epoch(2), PhysicalOffset(500))
    disk.fail = lambda what, path: None

    again = EpochFile(disk.killed(), "/epochs/epochFileCheckpoint")
    again.load()
    again.append(Epoch(2), PhysicalOffset(500))
    after = EpochFile(disk.crash(), "/epochs/epochFileCheckpoint")
    after.load()
    assert after.last == EpochEntry(Epoch(2), PhysicalOffset(500))


def test_damage_that_a_restart_knows_of_is_durable_before_it_is_believed() -> None:
    disk = FaultyDisk()

    async def broken() -> int:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.open()
        await fill(store, 10, queues=1)
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.write_checkpoint()
        first = store.lookup(0)
        assert first is not None
        disk.open("/store/commitlog/" + "0" * 20).pwrite(b"\xff" * 4, len(first) + 100)
        disk.fail = lambda what, path: errno.EIO if what == "sync_dir" else None
        with pytest.raises(DiskError, match="damagedRanges"):
            store.damage.note([DamagedRange(len(first), 2 * len(first), "crc_mismatch")])
        disk.fail = lambda what, path: None
        return len(first)

    async def again() -> None:
        store = MessageStore(FaultyEnv(disk.killed()), config(**IDLE))
        await store.open()
        assert [item.begin for item in store.damage.ranges] == [begin]

    begin = asyncio.run(broken())
    asyncio.run(again())
    assert [item.begin for item in load_ranges(disk.crash(), "/store/damagedRanges")] == [begin]


def test_who_waits_for_a_sync_hears_when_it_is_done_when_the_log_is_cut_and_when_it_failed() -> None:
    disk = FaultyDisk()

    async def waits() -> None:
        store = MessageStore(FaultyEnv(disk), config(**IDLE))
        await store.synced(1 << 30)  # not open: nothing is written
        await store.open()
        await fill(store, 10, queues=1)
        end = store.log.end
        assert store.log.flushed < end
        await store.synced(end)
        assert store.log.flushed == end
        await fill(store, 10, queues=1)
        await store.synced(1 << 30)
        assert store.log.flushed == store.log.end > end, "what the log has not is not waited for"
        await fill(store, 10, queues=1)
        disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
        with pytest.raises(DiskError):
            await store.synced(store.log.end)
        assert store.on_flush == []
        disk.fail = lambda what, path: None

    asyncio.run(waits())
