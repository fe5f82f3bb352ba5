"""The promise of recovery: what was flushed is there, what was cut stays gone, no offset is used twice."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from store.files.record import encode
from store.flow.upkeep import queue_flush
from store.flow.writing import Put
from store.message_store import MessageStore
from store.recover import recovery
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import SEGMENT, abandoned, config, fill, message, opened, records_of, records_on
from tests.waiting import until


def no_space(what: str, path: str) -> int | None:
    return errno.ENOSPC if what == "pwrite" and "commitlog" in path else None


def test_a_killed_process_loses_nothing_it_wrote() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        await abandoned(env, lambda store: fill(store, 100, queues=1))
        return env.disk.killed()

    _, bodies = records_on(completed(run()))
    assert [body.split(b":")[0] for body in bodies] == [str(n).encode() for n in range(100)]


def left_by_a_power_failure(work: Callable[[MessageStore], object]) -> FaultyDisk:
    """What a store that syncs only when it is asked leaves."""

    async def run() -> FaultyDisk:
        env = FaultyEnv()
        await abandoned(env, work, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
        return env.disk.crash()

    return completed(run())


def test_a_power_failure_loses_nothing_that_was_flushed() -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 70, queues=1)
        store.sync_to(store.log.end)
        await until(lambda: store.log.flushed == store.log.end)
        store.put(message("unflushed"))

    end, bodies = records_on(left_by_a_power_failure(work))
    assert end > SEGMENT
    assert len(bodies) == 70


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), flushed=st.integers(0, 40), more=st.integers(0, 40))
def test_whatever_pages_survive_the_log_is_a_prefix_that_holds_the_flushed_and_goes_on_cleanly(
    seed: int, flushed: int, more: int
) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, flushed, queues=1)
        store.log.sync()
        for number in range(flushed, flushed + more):
            store.put(message(f"{number}:".encode().ljust(100, b"x")))

    async def run() -> FaultyDisk:
        env = FaultyEnv()
        await abandoned(env, work, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
        return env.disk.crash(seed)

    async def again(disk: FaultyDisk) -> tuple[list[int], FaultyDisk]:
        env = FaultyEnv(disk)
        kept: list[int] = []

        async def use(store: MessageStore) -> None:
            kept.extend(int(r.body.split(b":")[0]) for r in records_of(store))
            # As long as the lost ones: were those left on disk, they would follow these after the next crash.
            store.put(message(f"{len(kept)}:".encode().ljust(100, b"x")))
            store.log.sync()

        await abandoned(env, use, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
        return kept, env.disk.crash(seed + 1)

    kept, disk = completed(again(completed(run())))
    assert kept == list(range(len(kept)))
    assert len(kept) >= flushed
    assert len(records_on(disk)[1]) == len(kept) + 1


def test_a_page_that_was_lost_ends_the_log_also_where_a_clock_was_set_back_before_it_was_written() -> None:
    """What lies behind it is older than what was flushed, by its time (swarm, seed 7770)."""

    async def run() -> tuple[FaultyDisk, list[Put]]:
        env = FaultyEnv()

        puts: list[Put] = []

        async def work(store: MessageStore) -> None:
            await fill(store, 4, queues=1)
            store.log.sync()
            for _ in range(2):  # the time is that of the round before
                await store.background.housekeeping.write_checkpoint()
            env.clock_ms -= 3_600_000
            puts.extend(put for _ in range(3) for put in store.put(message(b"x" * 1500)))

        await abandoned(env, work, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
        return env.disk.killed(), puts

    disk, puts = completed(run())
    disk.boots += 1
    lost = puts[1]
    node = disk.nodes["/store/commitlog/" + "0" * 20]
    node.cache[lost.physical_offset : lost.physical_offset + lost.size] = bytes(lost.size)
    node.cache[lost.physical_offset] = 1  # not never written
    node.sync()
    end, bodies = records_on(disk)
    assert (end, len(bodies)) == (lost.physical_offset, 5)


def test_a_torn_last_record_is_cut_wherever_it_was_torn() -> None:
    async def written() -> tuple[FaultyDisk, int, int]:
        env = FaultyEnv()
        async with opened(env) as store:
            puts = await fill(store, 4, queues=1)
        return env.disk, puts[3].physical_offset, puts[3].size

    disk, start, size = completed(written())
    disk.remove("/store/checkpoint")  # it says that the record was whole: then it is damaged, not torn
    disk.sync_dir("/store")
    whole = bytes(disk.nodes["/store/commitlog/" + "0" * 20].cache)
    for kept in range(size):
        torn = disk.killed()
        torn.nodes = {path: node.after_crash(lambda: True) for path, node in disk.nodes.items()}
        torn.durable = dict(torn.nodes)
        node = torn.nodes["/store/commitlog/" + "0" * 20]
        node.cache[start + kept : start + size] = bytes(size - kept)
        node.sync()
        if node.cache == whole:
            continue  # what was cut off were zeros
        torn.open("/store/abort", create=True)
        end, bodies = records_on(torn)
        assert (end, len(bodies)) == (start, 3), kept
        assert not any(node.cache[start:]), kept


async def test_queue_offsets_of_unconfirmed_records_are_not_used_again() -> None:
    """Records that no consumer may see yet keep their places, those with long topics (v2) too."""
    long = "%RETRY%" + "g" * 140

    async def work(store: MessageStore) -> None:
        await fill(store, 4, queues=1)
        store.log.sync()
        await store.background.housekeeping.write_checkpoint()
        for number in range(5):
            store.put(message(f"late{number}"))
            store.put(message(f"late{number}", topic=long))

    env = FaultyEnv()
    await abandoned(env, work, controller_mode=True)
    async with opened(FaultyEnv(env.disk.killed()), controller_mode=True) as store:
        assert store.max_queue_offset("T", 0) == 4
        assert store.confirmed < store.log.end
        assert (store.next_offset("T", 0), store.next_offset(long, 0)) == (9, 5)
        store.confirm(store.log.end)
        await store.caught_up()
        assert [r.queue_offset for r in records_of(store)] == list(range(9))


async def test_the_confirm_offset_is_never_recovered_beyond_the_log() -> None:
    async def work(store: MessageStore) -> None:
        puts = await fill(store, 20, queues=1)
        store.log.sync()
        store.checkpoint.now.confirm_offset = PhysicalOffset(store.log.end + 1000)
        store.checkpoint.write(store.checkpoint.now.encode())
        assert puts

    env = FaultyEnv()
    await abandoned(env, work, controller_mode=True, flush_queue_interval_ms=3_600_000)
    async with opened(FaultyEnv(env.disk.crash()), controller_mode=True) as store:
        assert store.confirmed == store.log.end == store.dispatched


async def test_a_failed_sync_is_for_ever() -> None:
    env = FaultyEnv()
    store = MessageStore(env, config(flush_interval_ms=3_600_000))
    await store.open()
    await fill(store, 3)
    errors: list[DiskError] = []
    store.on_broken.append(errors.append)
    flushed = store.log.flushed
    env.disk.fail = lambda what, path: errno.EIO if what == "sync" and "commitlog" in path else None
    store.sync_to(store.log.end)
    await until(lambda: bool(errors))
    env.disk.fail = lambda what, path: None
    store.sync_to(store.log.end)
    await asyncio.sleep(0.02)
    assert store.log.flushed == flushed
    assert "syncing the CommitLog failed" in (store.why_not_writable or "")
    with pytest.raises(DiskError):
        store.put(message())
    assert len(errors) == 1
    await store.close()
    assert env.disk.exists("/store/abort")


async def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    env = FaultyEnv()
    async with opened(env, flush_interval_ms=3_600_000) as store:
        first = store.put(message("first"))[0]
        flushed: list[int] = []
        store.on_flush.append(flushed.append)
        begun, gate = asyncio.Event(), asyncio.Event()
        plain = env.offload

        async def slow(call: Callable[[], object]) -> object:
            result = await plain(call)
            begun.set()
            await gate.wait()
            return result

        env.offload = slow  # type: ignore[method-assign,assignment]
        store.sync_to(store.log.end)
        await begun.wait()
        second = store.put(message("second"))[0]
        store.sync_to(store.log.end)
        gate.set()
        env.offload = plain  # type: ignore[method-assign]
        await until(lambda: store.log.flushed == store.log.end)
        assert flushed == [first.size, first.size + second.size]


async def test_a_sync_that_was_under_way_during_a_cut_proves_nothing() -> None:
    env = FaultyEnv()
    async with opened(env, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000) as store:
        puts = await fill(store, 10)
        gates = [asyncio.Event(), asyncio.Event()]
        waiting = list(gates)
        plain = env.offload

        async def slow(call: Callable[[], object]) -> object:
            result = await plain(call)
            await waiting.pop(0).wait()
            return result

        env.offload = slow  # type: ignore[method-assign,assignment]
        try:
            store.sync_to(store.log.end)
            await until(lambda: waiting == gates[1:], "it has begun")
            store.truncate(puts[2].physical_offset)
            await fill(store, 8)  # the log ends where it did, with other bytes
            store.sync_to(store.log.end)
            gates[0].set()
            await until(lambda: not waiting, "the next sync has begun, and only that one will prove anything")
            assert store.log.flushed <= puts[2].physical_offset
        finally:  # a store that closes waits for its syncs
            env.offload = plain  # type: ignore[method-assign]
            for gate in gates:
                gate.set()
        await until(lambda: store.log.flushed == store.log.end)


def test_segments_left_behind_by_a_roll_are_synced_too() -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 200, queues=1)
        store.sync_to(store.log.end)
        await until(lambda: store.log.flushed == store.log.end)

    end, bodies = records_on(left_by_a_power_failure(work))
    assert end > 3 * SEGMENT
    assert len(bodies) == 200


async def test_a_full_disk_changes_nothing_and_passes() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 3, queues=1)
        end = store.log.end
        env.disk.fail = lambda what, path: no_space(what, path)
        env.disk.free_bytes = 0
        with pytest.raises(DiskError, match="No space"):
            store.put(message("lost"))
        assert (store.log.end, store.next_offset("T", 0)) == (end, 3)
        assert "No space" in (store.why_not_writable or "")
        await asyncio.sleep(0.03)
        assert store.why_not_writable is not None
        env.disk.fail = lambda what, path: None
        env.disk.free_bytes = 1 << 30
        await until(lambda: store.why_not_writable is None)
        assert store.put(message("found"))[0].queue_offset == 3
        store.confirm(store.log.end)
        await store.caught_up()
        assert records_of(store)[-1].body == b"found"


def test_what_a_failed_write_left_behind_does_not_come_back_after_a_crash() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()

        async def work(store: MessageStore) -> None:
            await fill(store, 3, queues=1)
            env.disk.fail = lambda what, path: no_space(what, path)
            batch = [
                message("torn".ljust(100)) for _ in range(6)
            ]  # the half of it that is written: 3 records
            with pytest.raises(DiskError):
                store.put(batch)
            env.disk.fail = lambda what, path: None
            store.retention.used_percent()
            store.log.retry_space()
            store.put(message("after".ljust(100)))
            store.log.sync()

        await abandoned(env, work, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
        return env.disk.crash()

    _, bodies = records_on(completed(run()))
    assert [body[:5] for body in bodies[3:]] == [b"after"]


def test_no_room_for_the_next_segment_refuses_and_recovers() -> None:
    async def run() -> None:
        env = FaultyEnv()
        async with opened(env) as store:
            env.disk.fail = lambda what, path: errno.ENOSPC if what == "allocate" and SEG1 in path else None
            env.disk.free_bytes = 0
            with pytest.raises(DiskError):
                await fill(store, 100, size=200)
            end = store.log.end
            assert end < SEGMENT
            env.disk.fail = lambda what, path: None
            env.disk.free_bytes = 1 << 30
            await until(lambda: store.why_not_writable is None)
            await fill(store, 30, size=200)
            assert store.log.end > SEGMENT

    SEG1 = f"{SEGMENT:020}"
    completed(run())


async def test_another_write_error_breaks_the_store() -> None:
    env = FaultyEnv()
    store = MessageStore(env, config())
    await store.open()
    await fill(store, 1)
    env.disk.fail = lambda what, path: errno.EIO if what == "pwrite" and "commitlog" in path else None
    with pytest.raises(DiskError):
        store.put(message())
    env.disk.fail = lambda what, path: None
    with pytest.raises(DiskError, match="Input/output"):
        store.put(message())
    await store.close()


def test_queue_entries_that_could_not_be_written_are_kept_and_written_later() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env) as store:
            env.disk.fail = lambda what, path: errno.ENOSPC if "consumequeue" in path else None
            await fill(store, 50, queues=1)
            await until(lambda: "ConsumeQueue" in (store.why_not_writable or ""))
            assert len(records_of(store)) == 50
            env.disk.fail = lambda what, path: None
            await until(lambda: store.why_not_writable is None)
        return env.disk

    assert len(records_on(completed(run()))[1]) == 50


async def test_a_clean_stop_leaves_no_abort_and_scans_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LOOK_BACK_BYTES", SEGMENT)

    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 200)
    assert not env.disk.exists("/store/abort")
    async with opened(FaultyEnv(env.disk.crash())) as store:
        assert store.recovered is not None
        assert store.recovered.clean
        assert store.recovered.start > 0
        assert len(records_of(store)) == 100


async def test_a_stop_with_more_queues_than_it_syncs_one_by_one_is_clean_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_flush, "CLOSE_QUEUES", 10)

    env = FaultyEnv()
    whole = env.disk.sync_all
    at_once: list[str] = []

    def watched(path: str) -> None:
        at_once.append(path)
        whole(path)

    monkeypatch.setattr(env.disk, "sync_all", watched)
    async with opened(env, flush_queue_interval_ms=3_600_000) as store:
        await fill(store, 120, queues=40)
    assert at_once == ["/store/consumequeue"]
    assert not env.disk.exists("/store/abort")
    async with opened(FaultyEnv(env.disk.crash()), flush_queue_interval_ms=3_600_000) as store:
        assert store.recovered is not None
        assert store.recovered.clean
        assert [store.max_queue_offset("T", queue) for queue in range(40)] == [3] * 40


async def test_a_stop_whose_one_sync_fails_is_not_a_clean_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_flush, "CLOSE_QUEUES", 10)

    env = FaultyEnv()
    async with opened(env, flush_queue_interval_ms=3_600_000) as store:
        await fill(store, 120, queues=40)
        env.disk.fail = lambda what, path: errno.EIO if what == "sync" and "consumequeue" in path else None
    assert env.disk.exists("/store/abort")
    async with opened(FaultyEnv(env.disk.crash())) as store:
        assert [store.max_queue_offset("T", queue) for queue in range(40)] == [3] * 40


async def test_an_unclean_start_goes_back_only_as_far_as_the_checkpoint_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "LOOK_BACK_BYTES", SEGMENT)

    env = FaultyEnv()

    async def work(store: MessageStore) -> None:
        for _ in range(20):
            await fill(store, 20, queues=1)
            env.clock_ms += 10_000
        await store.background.housekeeping.flush_index()
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        for _ in range(2):
            await store.background.housekeeping.write_checkpoint()

    await abandoned(env, work, flush_queue_interval_ms=3_600_000)
    async with opened(FaultyEnv(env.disk.crash())) as store:
        assert store.recovered is not None
        assert store.recovered.start > 2 * SEGMENT
        assert len(records_of(store)) == 400
        for number in (0, 7, 19):
            assert len(store.query("T", f"U{number}", 64, 0, 1 << 62)) == 20


async def test_a_store_without_log_drops_queues_that_speak_of_one() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 10)
    for path in [path for path in env.disk.nodes if "commitlog" in path]:
        env.disk.remove(path)
    async with opened(env) as store:
        assert list(store.queues()) == []
        assert store.log.end == 0


async def test_a_missing_or_odd_segment_stops_the_start_with_words() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 300)
    with pytest.raises(DiskError, match="mappedFileSizeCommitLog is 4096"):
        await MessageStore(env, config(segment_bytes=4096)).open()
    env.disk.remove(f"/store/commitlog/{SEGMENT:020}")
    with pytest.raises(DiskError, match="no segment between 0"):
        await MessageStore(env, config()).open()


async def test_epochs_behind_the_recovered_end_are_forgotten() -> None:
    env = FaultyEnv()

    async def work(store: MessageStore) -> None:
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        await fill(store, 10)
        store.log.sync()
        store.epochs.append(Epoch(2), store.log.end)
        await fill(store, 10)
        store.epochs.append(Epoch(3), store.log.end)

    await abandoned(env, work, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000)
    async with opened(FaultyEnv(env.disk.crash())) as store:
        assert [entry.epoch for entry in store.epochs.entries] == [1, 2]
        assert store.epochs.entries[-1].start == store.log.end


def test_recovery_with_the_crc_property_notices_a_damaged_header() -> None:
    async def written() -> tuple[FaultyDisk, int]:
        env = FaultyEnv()
        async with opened(env, append_prop_crc=True) as store:
            puts = await fill(store, 3, queues=1)
        return env.disk, puts[2].physical_offset

    disk, start = completed(written())
    node = disk.nodes["/store/commitlog/" + "0" * 20]
    node.cache[start + 19] ^= 1  # a bit of the user's flag: in no body CRC
    disk.open("/store/abort", create=True)
    assert len(records_on(disk, append_prop_crc=True)[1]) == 2


async def test_zeros_of_a_body_are_not_taken_for_a_torn_tail() -> None:
    env = FaultyEnv()
    await abandoned(env, lambda store: store.put(message(bytes(100), properties="")) and None)
    async with opened(FaultyEnv(env.disk.killed())) as store:
        assert store.log.end == len(encode(message(bytes(100), properties=""), 0, 0, 0))
