"""The promise of retention: only what is due goes, and never the last segment."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import pytest

from model.ids import Epoch, PhysicalOffset
from runtime.env import read_file
from store.files.checkpoint import Checkpoint
from store.files.damage import DamagedRange
from store.flow.upkeep import retention
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import SEGMENT, fill, message, opened, records_of
from tests.waiting import until

HOUR_MS: Final = 3_600_000
T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE_S", 0)


def _at_hour(hour: int) -> int:
    return int(datetime(2024, 5, 17, hour, 30).timestamp() * 1000)


def _set_used(env: FaultyEnv, percent: int) -> None:
    env.disk.free_bytes = (1 << 41) * (100 - percent) // 100


async def test_a_clock_that_is_set_ahead_makes_no_segment_older(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    monkeypatch.setattr(env.disk, "mtime_ms", lambda path: _at_hour(4))
    up_ms = [0.0]
    monkeypatch.setattr(env, "monotonic_ms", lambda: up_ms[0])
    async with opened(env) as store:
        await fill(store, 200, queues=1)
        store.log.sync()
        segments = len(store.log.segments)
        env.clock_ms += 100 * 24 * HOUR_MS
        assert await store.retention.round() == 0
        assert await store.retention.round(any_hour=True) == 0
        assert caplog.text.count("the clock was set 2400.0 h ahead") == 1
        up_ms[0] += 73 * HOUR_MS
        assert await store.retention.round(any_hour=True) == segments - 1


async def test_a_clock_that_stays_ahead_was_behind_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts before the clock is set from the network deleted nothing by age."""
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    up_ms = [0.0]
    monkeypatch.setattr(env, "monotonic_ms", lambda: up_ms[0])
    async with opened(env) as store:
        await fill(store, 200, queues=1)
        store.log.sync()
        segments = len(store.log.segments)
        env.clock_ms += 10_000 * HOUR_MS
        set_ms = env.clock_ms
        monkeypatch.setattr(env.disk, "mtime_ms", lambda path: set_ms)
        for _ in range(72):
            assert await store.retention.round(any_hour=True) == 0
            env.clock_ms += HOUR_MS
            up_ms[0] += HOUR_MS
        env.clock_ms += HOUR_MS
        up_ms[0] += HOUR_MS
        assert await store.retention.round(any_hour=True) == segments - 1


async def test_old_segments_go_at_the_hour_and_queues_index_and_epochs_follow() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    async with opened(env) as store:
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        await fill(store, 100, queues=1)
        store.epochs.append(Epoch(2), store.log.end)
        await fill(store, 100, queues=1)
        store.log.sync()
        segments = len(store.log.segments)
        assert await store.retention.round() == segments - 1
        assert store.log.min_offset == (segments - 1) * SEGMENT
        kept = records_of(store)
        assert kept[0].physical_offset == store.log.min_offset
        assert kept[-1].queue_offset == 199
        assert kept[0].queue_offset == store.min_queue_offset("T", 0)
        assert store.epochs.entries == [(2, store.epochs.entries[-1].start)]
        assert env.disk.listdir("/store/commitlog")[0] == f"{store.log.min_offset:020}"
        assert store.query("T", "U0", 10, 0, 1 << 62) == []
        assert len(store.query("T", "U99", 10, 0, 1 << 62)) == 1
    # An audit of a stopped store tells by this what retention took from what somebody else did.
    assert Checkpoint.decode(read_file(env.disk, "/store/checkpoint")).log_start == (segments - 1) * SEGMENT
    async with opened(env) as store:
        assert records_of(store) == kept


async def test_young_segments_and_other_hours_are_left_alone() -> None:
    env = FaultyEnv(now_ms=_at_hour(5))
    _set_used(env, 50)
    async with opened(env) as store:
        await fill(store, 200)
        store.log.sync()
        assert await store.retention.round() == 0
        store.retention._config.delete_when = "04;05"  # as mqadmin changes it while the broker runs
        assert await store.retention.round() > 0
        await fill(store, 200)
        store.log.sync()
        env.disk.mtime_ms = lambda path: env.clock_ms - 71 * 3_600_000  # type: ignore[method-assign]
        env.clock_ms = _at_hour(4)
        assert await store.retention.round() == 0


async def test_a_full_disk_takes_the_oldest_whatever_its_age_and_refuses_writes_until_below() -> None:
    env = FaultyEnv(now_ms=_at_hour(12))
    env.disk.mtime_ms = lambda path: env.clock_ms  # type: ignore[method-assign]
    async with opened(env) as store:
        await fill(store, 200)
        store.log.sync()
        _set_used(env, 80)
        assert await store.retention.round() == 0
        _set_used(env, 95)
        assert await store.retention.round() >= 2
        assert len(store.log.segments) == 1
        assert "95 %" in (store.why_not_writable or "")
        _set_used(env, 60)
        await store.retention.round()
        assert store.why_not_writable is None


async def test_a_full_disk_takes_nothing_young_where_it_may_not_and_refuses_writes() -> None:
    env = FaultyEnv(now_ms=_at_hour(12))
    env.disk.mtime_ms = lambda path: env.clock_ms  # type: ignore[method-assign]
    async with opened(env, clean_forcibly=False) as store:
        await fill(store, 200)
        store.log.sync()
        kept, segments = records_of(store), len(store.log.segments)
        for used_percent in (88, 95):
            _set_used(env, used_percent)
            assert await store.retention.round() == 0
        assert "95 %" in (store.why_not_writable or "")
        assert (records_of(store), len(store.log.segments)) == (kept, segments)
        env.disk.mtime_ms = lambda path: env.clock_ms - 73 * HOUR_MS  # type: ignore[method-assign]
        assert await store.retention.round() == segments - 1, "what is old goes, at this hour, too"


async def test_a_store_on_a_disk_that_is_too_full_refuses_writes_from_its_start() -> None:
    env = FaultyEnv()
    _set_used(env, 95)
    async with opened(env) as store:
        assert "95 %" in (store.why_not_writable or "")
        _set_used(env, 50)
        await until(lambda: store.why_not_writable is None, "it looks again long before its first round")


async def test_queues_and_damage_follow_the_log_though_a_file_cannot_be_removed_and_no_gap_is_left() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    refused: list[str] = []

    def check(what: str, path: str) -> None:
        if what == "remove" and path in refused:
            raise OSError(errno.EIO, "no", path)

    env.disk.check = check  # type: ignore[method-assign]
    async with opened(env) as store:
        await fill(store, 200, queues=1)
        store.log.sync()
        store.damage.note([DamagedRange(100, 300, "body_crc")])
        names = store.log.segment_names()
        refused.append(f"/store/commitlog/{names[1]}")
        with pytest.raises(OSError, match="no"):
            await store.retention.round()
        assert store.log.min_offset == 2 * SEGMENT
        assert records_of(store)[0].queue_offset == store.min_queue_offset("T", 0)
        assert store.damage.ranges == []
        with pytest.raises(OSError, match="no"):
            await store.retention.round()
        assert env.disk.listdir("/store/commitlog")[0] == names[1]
        assert store.log.min_offset == 2 * SEGMENT
        refused.clear()
        assert await store.retention.round() == len(names) - 3
        kept = records_of(store)
    async with opened(env) as store:
        assert store.log.segment_names() == names[-1:]
        assert records_of(store) == kept


async def test_a_log_begun_again_takes_over_no_file_that_could_not_be_removed() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    full = True

    def check(what: str, path: str) -> None:
        if what == "remove" and full and "/commitlog/" in path:
            raise OSError(errno.EIO, "no", path)

    env.disk.check = check  # type: ignore[method-assign]
    async with opened(env) as store:
        await fill(store, 100, queues=1)
        store.log.sync()
        with pytest.raises(OSError, match="no"):
            await store.retention.round()
        full = False
        store.reset(0)
        await fill(store, 10, queues=1)
        await store.retention.round()
        assert len(records_of(store)) == 10
    async with opened(env) as store:
        assert len(records_of(store)) == 10


async def test_nothing_is_wanted_of_a_segment_that_is_gone_before_the_ledger_knows() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    wanted: list[int] = []
    async with opened(env) as store:
        await fill(store, 200, queues=1)
        store.log.sync()
        later = store.log.segments[-1].start + 100
        store.damage.note([DamagedRange(at, at + 200, "body_crc") for at in (100, later)])

        def remove(path: str) -> None:
            wanted.extend(one.of.begin for one in store.repairer.wanted())

        env.disk.remove = remove  # type: ignore[method-assign]
        assert await store.retention.round() > 0
        assert set(wanted) == {later}


async def test_segments_that_no_queue_has_yet_stay() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    async with opened(env, controller_mode=True) as store:
        puts = await fill(store, 30)
        cut = puts[-1].physical_offset
        for number in range(200):
            store.put(message(str(number)))
        store.log.sync()
        assert store.dispatched < cut + 1000
        await store.retention.round()
        assert store.log.min_offset <= store.dispatched


async def test_a_log_beyond_its_bound_loses_its_oldest_segments_and_takes_writes_all_the_while() -> None:
    env = FaultyEnv(now_ms=_at_hour(5))
    _set_used(env, 50)
    env.disk.mtime_ms = lambda path: env.clock_ms  # type: ignore[method-assign]  # all of them young
    async with opened(env, segment_bytes=1 << 18, commit_log_megabytes_max=1) as store:
        while len(store.log.segments) < 25:
            store.put(message("x" * 100_000))
        store.confirm(store.log.end)
        await store.caught_up()
        store.log.sync()
        written: list[bool] = []

        async def write() -> None:
            for _ in range(3):
                store.put(message("while it deletes"))
                written.append(store.why_not_writable is None)
                await asyncio.sleep(0)

        gone = [(await asyncio.gather(store.retention.round(), write()))[0]]
        assert gone == [retention.FILES_PER_ROUND]
        while count := await store.retention.round():
            gone.append(count)
        assert (gone, len(store.log.segments)) == ([10, 10, 1], 4)
        assert written == [True] * 3
        assert store.log.min_offset == store.log.segments[0].start > 0
        assert records_of(store)[0].physical_offset >= store.log.min_offset


async def test_without_a_bound_young_segments_stay_however_many() -> None:
    env = FaultyEnv(now_ms=_at_hour(5))
    _set_used(env, 50)
    env.disk.mtime_ms = lambda path: env.clock_ms  # type: ignore[method-assign]
    async with opened(env, segment_bytes=1 << 18) as store:
        for _ in range(60):
            store.put(message("x" * 100_000))
        store.confirm(store.log.end)
        await store.caught_up()
        store.log.sync()
        assert await store.retention.round() == 0


async def test_queue_files_a_crash_left_behind_go_at_the_next_start() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    async with opened(env) as store:
        await fill(store, 200, queues=1)
        store.log.sync()
        await store.background.housekeeping.queues.flush()
        before = env.disk.listdir("/store/consumequeue/T/0")

        async def dies() -> None:
            raise OSError(errno.EIO, "killed")

        store.retention.follow_log_start = dies  # type: ignore[method-assign]
        with pytest.raises(OSError, match="killed"):
            await store.retention.round()
    assert env.disk.listdir("/store/consumequeue/T/0") == before
    async with opened(env) as store:
        first = records_of(store)[0].queue_offset
        kept = [name for name in before if int(name) // 20 + 20 > first]
        assert 0 < len(kept) < len(before)
        assert env.disk.listdir("/store/consumequeue/T/0") == kept


async def test_a_removal_on_its_way_takes_no_file_of_a_log_begun_again_meanwhile() -> None:
    env = FaultyEnv(now_ms=_at_hour(4))
    _set_used(env, 50)
    real, begun_again = env.offload, asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        await begun_again.wait()  # the threads have other work
        return await real(call)

    async with opened(env, flush_interval_ms=HOUR_MS, flush_queue_interval_ms=HOUR_MS) as store:
        await fill(store, 100, queues=1)
        store.log.sync()
        env.offload = slow  # type: ignore[method-assign]
        round_ = asyncio.create_task(store.retention.round())
        await asyncio.sleep(0)
        assert len(store.log.forgotten) == 1
        store.reset(0)
        store.put(message(b"new"))
        begun_again.set()
        await round_
        assert env.disk.listdir("/store/commitlog") == store.log.segment_names()
