"""The promise of ``abort``: a start knows whether all that the last process wrote is there, until others have
noted that it is not."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from model.errors import DiskError
from model.ids import PhysicalOffset
from store.message_store import MessageStore
from store.recover.abort_file import Stop
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, fill, message, records_of


async def started(disk: FaultyDisk) -> MessageStore:
    """A store that nobody stops: the next one finds it killed."""
    store = MessageStore(FaultyEnv(disk), config(flush_interval_ms=3_600_000))
    await store.open()
    return store


async def fail_sync(store: MessageStore, disk: FaultyDisk) -> None:
    disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
    with pytest.raises(DiskError):
        store.log.sync()
    disk.fail = lambda what, path: None
    await store.close()


async def test_what_the_last_stop_left() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    assert store.abort.found is Stop.ORDERLY
    await store.close()
    disk = disk.crash()
    assert (await started(disk)).abort.found is Stop.ORDERLY
    disk = disk.killed()
    assert (await started(disk)).abort.found is Stop.KILLED
    disk = disk.crash()
    assert (await started(disk)).abort.found is Stop.UNKNOWN
    disk = disk.killed()
    assert (await started(disk)).abort.found is Stop.KILLED, "all of it was made durable"


async def test_a_note_that_was_cut_short_says_that_a_sync_failed() -> None:
    """The rest of the boot's name stood behind it, and nobody was suspect."""
    disk = FaultyDisk()
    disk.boots = 10**12  # a name that is longer than the note
    store = await started(disk)
    await fill(store, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(disk.open(f"{store.root}/abort")), "truncate", no_truncate)
        await fail_sync(store, disk)
    assert (await started(disk.killed())).abort.found is Stop.LOST


def no_truncate(*_: object) -> None:
    raise OSError(errno.EROFS, "read-only")


async def test_a_failed_sync_is_known_until_it_is_noted_elsewhere() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    await fail_sync(store, disk)
    for _ in range(2):
        disk = disk.killed()
        store = await started(disk)
        assert store.abort.found is Stop.LOST
    store.abort.on_noted()
    disk = disk.killed()
    assert (await started(disk)).abort.found is Stop.KILLED


async def test_a_failed_sync_is_told_before_the_disk_is_asked_for_more() -> None:
    """A sick disk may take seconds for each write; another broker is to lead meanwhile."""
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    order: list[str] = []
    store.on_broken.append(lambda error: order.append("told"))

    def fail(what: str, path: str) -> int | None:
        if path.endswith("/abort"):
            order.append(what)
        return errno.EIO if what == "sync" and "commitlog" in path else None

    disk.fail = fail
    with pytest.raises(DiskError):
        store.log.sync()
    assert order == ["pwrite", "told", "pwrite", "truncate"], "into the page cache; no sync blocks the loop"
    await store.close()
    assert "sync" in order, "a store does not end before it is noted"


async def test_a_recovery_whose_sync_fails_says_so_to_the_next_one() -> None:
    disk = FaultyDisk()
    await fill(await started(disk), 3)
    disk = disk.killed()
    disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
    with pytest.raises(DiskError):
        await started(disk)
    disk = disk.killed()
    assert (await started(disk)).abort.found is Stop.LOST


async def test_a_block_that_the_kernel_dropped_after_a_failed_sync_is_not_served() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    put = store.put(message("m", properties="a\x01" + "b" * 2000 + "\x02"))[0]
    store.put(message("n"))
    await fail_sync(store, disk)
    disk = disk.killed()
    node = disk.nodes["/store/commitlog/" + "0" * 20]
    at = -(-(put.physical_offset + 200) // 512) * 512
    node.cache[at : at + 512] = bytes(512)
    assert records_of(await started(disk)) == []


async def test_a_disk_that_takes_no_write_is_found_before_anything_else_is_read() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    store.log.sync()
    await store.background.housekeeping.flush_queues()
    await store.background.housekeeping.write_checkpoint()
    for after in (disk.killed(), disk.crash()):
        after.fail = lambda what, path: errno.EIO if what == "pwrite" else None
        store = MessageStore(FaultyEnv(after), config())
        with pytest.raises(DiskError):
            await store.open()
        assert store.checkpoint.now.settled_offset == 0


def dropped(disk: FaultyDisk, begin: int = 0) -> FaultyDisk:
    """The process was killed, and the kernel has dropped the log's bytes from ``begin`` on."""
    disk = disk.killed()
    log = disk.open(f"/store/commitlog/{0:020d}")
    log.pwrite(bytes(max(log.size() - begin, 0)), begin)
    log.close()
    return disk


@pytest.mark.parametrize("lost", ["all", "the end", "nothing"])
async def test_what_a_sync_was_to_write_whose_process_was_killed_before_it_heard_is_missed(lost: str) -> None:
    """Nobody heard that it failed (seed 6 of sim/test_losses): the log had bytes by its own word."""
    disk = FaultyDisk()
    store = await started(disk)
    puts = await fill(store, 5)
    store.log.sync()
    end = store.log.end
    store.put(message("after it"))  # no turn of the loop: another sync would note this one, too
    begin = {"all": 0, "the end": puts[-1].physical_offset, "nothing": store.log.end}[lost]
    disk = dropped(disk, begin)
    for _ in range(2):
        store = await started(disk)
        assert store.abort.found is Stop.KILLED
        assert store.was_longer.end == (None if lost == "nothing" else end)
        disk = disk.killed()
    store.was_longer.forget()
    assert (await started(disk.killed())).was_longer.end is None


async def test_a_record_of_which_a_slave_had_a_part_is_not_missed() -> None:
    source = await started(FaultyDisk())
    puts = await fill(source, 3)
    raw = source.log.read(0, 1 << 20)
    for end in range(puts[-1].physical_offset, len(raw) + 1, 7):
        disk = FaultyDisk()
        store = await started(disk)
        store.append_raw(PhysicalOffset(0), raw[:end])
        store.log.sync()
        again = await started(disk.killed())
        assert again.was_longer.end is None, f"{end} of {len(raw)} bytes"


async def test_what_a_cut_took_is_not_missed() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    puts = await fill(store, 5)
    store.log.sync()
    store.truncate(PhysicalOffset(puts[2].physical_offset))
    disk = disk.killed()
    store = await started(disk)
    assert (store.log.end, store.was_longer.end) == (puts[2].physical_offset, None)
    store.quarantine()
    assert (await started(disk.killed())).was_longer.end is None


@pytest.mark.parametrize("keys", [{"flush_disk_type": "SYNC_FLUSH"}, {}], ids=["SYNC_FLUSH", "another boot"])
async def test_nothing_is_missed_where_nothing_was_acknowledged_before_its_sync_or_all_is_doubted(
    keys: dict[str, str],
) -> None:
    disk = FaultyDisk()
    store = MessageStore(FaultyEnv(disk), config(flush_interval_ms=3_600_000, **keys))
    await store.open()
    await fill(store, 5)
    if not keys:
        disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
    with suppress(DiskError):
        store.log.sync()
    disk.fail = lambda what, path: None
    again = await started(dropped(disk) if keys else disk.crash())
    assert again.was_longer.end is None


async def test_a_disk_that_does_not_take_how_far_the_log_reached_still_takes_the_sync() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    disk.fail = lambda what, path: errno.EMFILE if path.endswith("/abort") else None
    store.log.sync()
    assert store.log.flushed == store.log.end
    disk.fail = lambda what, path: None
    await store.close()
    assert not disk.exists("/store/abort")
    store.abort.on_reach(7)
    assert not disk.exists("/store/abort"), "the stop was an orderly one"
