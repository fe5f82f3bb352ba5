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
from store.recover.evidence import LogWasLonger
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv, FaultyFile
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
    heard = order.index("told")
    assert order[:heard] == ["pwrite", "sync"], "how far the log reached"
    assert order[heard + 1 :] == ["pwrite", "truncate"], "into the page cache; no sync blocks the loop"
    await store.close()
    assert "sync" in order[heard:], "a store does not end before it is noted"


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
    await store.background.housekeeping.queues.flush()
    await store.background.housekeeping.write_checkpoint()
    for after in (disk.killed(), disk.crash()):
        after.fail = lambda what, path: errno.EIO if what == "pwrite" else None
        store = MessageStore(FaultyEnv(after), config())
        with pytest.raises(DiskError):
            await store.open()
        assert store.checkpoint.now.settled_offset == 0


def dropped(disk: FaultyDisk, begin: int = 0, *, stop: bool = False) -> FaultyDisk:
    """The process was killed, and the kernel has dropped the log's bytes from ``begin`` on; ``stop``: and
    what of ``abort`` was not synced."""
    disk = disk.killed()
    if stop:
        node = disk.nodes["/store/abort"]
        node.cache = bytearray(node.disk)
    log = disk.open(f"/store/commitlog/{0:020d}")
    log.pwrite(bytes(max(log.size() - begin, 0)), begin)
    log.close()
    return disk


@pytest.mark.parametrize("stop", [False, True], ids=["abort kept", "abort dropped"])
@pytest.mark.parametrize("lost", ["all", "the end", "nothing"])
async def test_what_a_sync_was_to_write_whose_process_was_killed_before_it_heard_is_missed(
    lost: str, stop: bool
) -> None:
    """Nobody heard that it failed (seed 6 of sim/test_losses): the log had bytes by its own word."""
    disk = FaultyDisk()
    store = await started(disk)
    puts = await fill(store, 5)
    store.log.sync()
    end = store.log.end
    store.put(message("after it"))  # no turn of the loop: another sync would note this one, too
    begin = {"all": 0, "the end": puts[-1].physical_offset, "nothing": store.log.end}[lost]
    disk = dropped(disk, begin, stop=stop)
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


@pytest.mark.parametrize("refused", ["sync", "pwrite"])
async def test_a_disk_that_refuses_how_far_the_log_reached_has_failed_its_sync_and_no_page_of_it(
    refused: str,
) -> None:
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    asked: list[str] = []

    def fail(what: str, path: str) -> int | None:
        asked.append(f"{what} {path}")
        return errno.EIO if what == refused and path.endswith("/abort") else None

    disk.fail = fail
    with pytest.raises(DiskError):
        store.log.sync()
    assert store.files.health.broken is not None
    assert not [call for call in asked if call.startswith("sync") and "commitlog" in call]
    disk.fail = lambda what, path: None
    again = await started(dropped(disk.copy(), store.log.end, stop=True))
    assert (again.log.end, again.was_longer.end) == (store.log.end, None), "its pages were dirty still"
    await store.close()
    assert (await started(disk.killed())).abort.found is Stop.LOST


async def test_a_sync_of_what_is_synced_asks_nothing_of_abort_and_one_of_more_a_single_sync() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    asked: list[str] = []

    def count(what: str, path: str) -> None:
        asked.extend([what] if path.endswith("/abort") else [])

    disk.fail = count
    for _ in range(2):
        await fill(store, 3)
        asked.clear()
        store.log.sync()
        assert asked == ["pwrite", "sync"]
        store.log.sync()
        assert asked == ["pwrite", "sync"]


async def test_what_came_while_the_line_was_synced_is_missed_by_the_page_cache() -> None:
    """The log's sync takes it along."""
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)

    def more(what: str, path: str) -> None:
        if what == "sync" and path.endswith("/abort"):
            disk.fail = lambda what, path: None
            store.put(message("meanwhile"))

    disk.fail = more
    store.log.note_reach(store.log.generation)
    end = store.log.end
    assert (await started(dropped(disk))).was_longer.end == end


async def test_a_full_disk_that_does_not_take_how_far_the_log_reached_still_takes_the_sync() -> None:
    """One that copies on write."""
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    disk.fail = lambda what, path: errno.ENOSPC if path.endswith("/abort") else None
    store.log.sync()
    assert store.log.flushed == store.log.end
    disk.fail = lambda what, path: None
    await store.close()
    assert not disk.exists("/store/abort")
    store.abort.before_sync(lambda: 7)
    assert not disk.exists("/store/abort"), "the stop was an orderly one"


@pytest.mark.parametrize("descriptors", [True, False])
async def test_one_that_somebody_removed_is_made_again(
    descriptors: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(disk: FaultyDisk, path: str, *, create: bool = False) -> FaultyFile:
        raise OSError(errno.EMFILE, "none is free", path)

    disk = FaultyDisk()
    store = await started(disk)
    path = f"{store.root}/abort"
    await fill(store, 3)
    disk.remove(path)
    with monkeypatch.context() as patch:
        patch.setattr(FaultyDisk, "open", without)
        store.log.sync()
    assert not disk.exists(path)
    if descriptors:
        await fill(store, 3)
        store.log.sync()
        assert (await started(disk.killed())).abort.found is Stop.KILLED
        assert (await started(disk.crash())).abort.found is Stop.UNKNOWN
    await store.close()
    assert "gone" in caplog.text
    assert (await started(disk.killed())).abort.found is Stop.ORDERLY


async def test_one_that_says_that_a_sync_failed_says_so_when_it_is_made_again() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    await fail_sync(store, disk)
    disk = disk.killed()
    store = await started(disk)
    assert store.abort.found is Stop.LOST
    disk.remove(f"{store.root}/abort")
    await fill(store, 3)
    store.log.sync()
    assert (await started(disk.killed())).abort.found is Stop.LOST, "nobody has noted it"


async def test_a_cut_without_a_free_descriptor_leaves_nobody_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line told the old end, and a rightly cut log was suspect after a kill."""
    disk = FaultyDisk()
    store = await started(disk)
    puts = await fill(store, 5)
    store.log.sync()
    opens = disk.open

    def refuse(path: str, *, create: bool = False) -> FaultyFile:
        if path.endswith("/abort"):
            raise OSError(errno.EMFILE, "too many open files", path)
        return opens(path, create=create)

    monkeypatch.setattr(disk, "open", refuse)
    store.truncate(PhysicalOffset(puts[2].physical_offset))
    again = await started(disk.killed())
    assert (again.log.end, again.was_longer.end) == (puts[2].physical_offset, None)


async def test_a_sync_that_was_begun_before_a_cut_does_not_note_what_that_took() -> None:
    """In its thread, and the process was killed before it heard of the cut."""
    disk = FaultyDisk()
    store = await started(disk)
    puts = await fill(store, 5)
    store.log.sync()
    end, generation = store.log.end, store.log.generation
    noted: list[int] = []

    def meanwhile(what: str, path: str) -> None:
        if what == "sync" and path.endswith("/abort") and not noted:  # the log ends where it did, still
            noted.append(store.log.end)
            store.log.flushed = PhysicalOffset(0)
            store.log.note_reach(generation)

    disk.fail = meanwhile
    store.truncate(PhysicalOffset(puts[2].physical_offset))
    assert noted == [end]
    again = await started(disk.killed())
    assert (again.log.end, again.was_longer.end) == (puts[2].physical_offset, None)


async def test_where_the_line_cannot_be_lowered_nothing_is_cut() -> None:
    disk = FaultyDisk()
    store = await started(disk)
    puts = await fill(store, 5)
    store.log.sync()
    end = store.log.end
    disk.fail = lambda what, path: errno.EIO if path.endswith("/abort") else None
    with pytest.raises(DiskError):
        store.truncate(PhysicalOffset(puts[2].physical_offset))
    again = await started(disk.killed())
    assert (again.log.end, again.was_longer.end) == (end, None)


class Killed(Exception):
    """The process is, at this call."""


def kill_at(disk: FaultyDisk, what: str, path: str) -> None:
    def fail(did: str, where: str) -> None:
        if did == what and path in where:
            raise Killed

    disk.fail = fail


async def test_a_recovery_that_is_killed_after_it_cut_a_part_of_a_record_leaves_nobody_suspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = await started(FaultyDisk())
    puts = await fill(source, 3)
    raw = source.log.read(0, 1 << 20)
    disk = FaultyDisk()
    store = await started(disk)
    store.append_raw(PhysicalOffset(0), raw[: puts[-1].physical_offset + 150])
    store.log.sync()
    disk = disk.killed()

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LogWasLonger, "compare", kill)
        with pytest.raises(Killed):
            await started(disk)
    again = await started(disk.killed())
    assert (again.log.end, again.was_longer.end) == (puts[-1].physical_offset, None)


@pytest.mark.parametrize("stop", [False, True], ids=["abort kept", "abort dropped"])
async def test_what_a_recovery_that_was_killed_could_not_sync_is_missed(stop: bool) -> None:
    """Its log reached further than the line of the last sync."""
    disk = FaultyDisk()
    store = await started(disk)
    await fill(store, 3)
    store.log.sync()
    synced = store.log.end
    store.put(message("no turn of the loop, no sync"))
    end = store.log.end
    disk = disk.copy()
    kill_at(disk, "sync", "/commitlog/0")
    with pytest.raises(Killed):
        await started(disk)
    again = await started(dropped(disk, synced, stop=stop))
    assert (again.log.end, again.was_longer.end) == (synced, end)
