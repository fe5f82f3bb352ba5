"""The promises of what is done in pieces at the store: a long append, and the counting at a promotion."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from model.ids import PhysicalOffset
from model.message import BORN_HOST_V6, TRANSACTION_PREPARED
from runtime.turns import Slice
from store.files.record import walk
from store.flow.dispatching import queue_offsets
from store.flow.upkeep import queue_flush
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import fill, message, opened

T = TypeVar("T")
NEVER_S = 3600
QUEUES = 40


class Thread(FaultyEnv):
    """An Env that says what is done off the loop. ``before``: called on the loop before that."""

    is_off = False
    before = staticmethod(lambda: None)

    async def offload(self, call: Callable[[], T]) -> T:
        def off() -> T:
            self.is_off = True
            try:
                return call()
            finally:
                self.is_off = False

        self.before()
        return await super().offload(off)


async def test_files_of_new_queues_are_made_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy disk may take long for each, and others wait for the loop."""
    monkeypatch.setattr(Slice, "is_over", lambda self: True)
    env, made = Thread(), Counter[tuple[bool, str]]()

    def note(what: str, path: str) -> None:
        if what == "truncate" and "consumequeue" in path:
            made[env.is_off, path] += 1

    env.disk.fail = note
    async with opened(env, flush_queue_interval_ms=NEVER_S * 1000) as store:
        await fill(store, 2 * QUEUES, queues=QUEUES)
        assert not made
        await store.background.housekeeping.queues.flush()
        assert len(made) == made.total() == QUEUES, "each once"
        assert all(is_off for is_off, _ in made)
        assert not store.files.queues.dirty
        await fill(store, 2 * QUEUES, queues=QUEUES)
        await store.background.housekeeping.queues.flush()
        assert made.total() == QUEUES
    async with opened(env) as store:
        assert [store.max_queue_offset("T", n) for n in range(QUEUES)] == [4] * QUEUES


async def test_a_sweep_over_many_queues_takes_rounds_and_settles_what_it_began_with() -> None:
    async with opened(FaultyEnv(), flush_queue_interval_ms=NEVER_S * 1000) as store:
        keeping, settled = store.background.housekeeping, store.files.checkpoint.now
        await fill(store, QUEUES, queues=QUEUES)
        begun = store.dispatched
        for turn in range(4):
            assert settled.settled_offset == 0
            await store.background.flusher._sync()
            await keeping.queues.flush(QUEUES // 4)
            waiting = [queue.queue_id for queue in store.files.queues.dirty]
            assert waiting[: QUEUES - (turn + 1) * QUEUES // 4] == list(
                range((turn + 1) * QUEUES // 4, QUEUES)
            )
            await fill(store, QUEUES // 4, queues=QUEUES)  # of the first ones: they wait behind the others
        assert settled.settled_offset == begun < store.dispatched
        await store.background.flusher._sync()
        await keeping.queues.flush(QUEUES)
        assert settled.settled_offset == store.dispatched
        assert not store.files.queues.dirty


async def test_a_cut_ends_a_sweep() -> None:
    """What it began with is no more, and the queues may hold other entries below that."""
    async with opened(FaultyEnv(), flush_queue_interval_ms=NEVER_S * 1000) as store:
        keeping = store.background.housekeeping
        puts = await fill(store, QUEUES, queues=QUEUES)
        await keeping.queues.flush(QUEUES // 2)
        cut = puts[QUEUES // 4].physical_offset
        store.truncate(cut)
        store.rebuild_queue_offsets()
        await fill(store, 2 * QUEUES, queues=QUEUES)
        for _ in range(2):
            assert store.files.checkpoint.now.settled_offset <= cut
            await store.background.flusher._sync()
            await keeping.queues.flush(QUEUES // 2)
        assert store.files.checkpoint.now.settled_offset == store.dispatched


@pytest.mark.parametrize(("count", "waiting"), [(10, [0]), (100, [88, *range(77, 0, -10), 0])])
async def test_queues_wait_few_rounds_for_their_sync(
    count: int, waiting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync costs as much for one entry as for many: a round syncs a few, or a part of more."""
    monkeypatch.setattr(queue_flush, "SYNC_QUEUES", 10)
    async with opened(FaultyEnv(), flush_queue_interval_ms=NEVER_S * 1000) as store:
        await fill(store, count, queues=count)
        found = []
        for _ in waiting:
            await store.background.housekeeping.queues.flush()
            found.append(store.files.queues.unsynced_count)
        assert found == waiting


async def test_rounds_write_more_queues_the_more_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_flush, "WRITE_QUEUES_A_S", 100)
    monkeypatch.setattr(queue_flush, "SWEEP_S", 0.2)
    env = FaultyEnv()
    async with opened(env, flush_queue_interval_ms=100) as store:
        for count, rounds in ((10, 1), (QUEUES, 2)):
            await fill(store, count, queues=count)
            dirty = [count]
            while dirty[-1]:
                await asyncio.sleep(0.01)
                if len(store.files.queues.dirty) != dirty[-1]:
                    dirty.append(len(store.files.queues.dirty))
            assert len(dirty) - 1 <= rounds + 1, dirty


async def test_no_file_is_made_of_queues_that_went_meanwhile() -> None:
    env = Thread()
    async with opened(env, flush_queue_interval_ms=NEVER_S * 1000) as store:
        await fill(store, QUEUES, queues=QUEUES)
        env.before = store.files.queues.destroy
        await store.background.housekeeping.queues.flush()
        assert not [path for path in env.disk.nodes if "consumequeue" in path]
        env.before = lambda: None


async def test_a_long_batch_is_dispatched_in_pieces_as_it_is_read_from_the_log() -> None:
    async with opened(FaultyEnv(), segment_bytes=1 << 22) as store:
        batch = [message("x" * 600) for _ in range(3000)]
        store.put_prepared([store.writer.prepare(one) for one in batch])
        store.put(message("behind"))
        dispatcher, moves = store.flow.dispatcher, []
        dispatcher.confirmed = store.log.end
        while not dispatcher.is_level:
            before = store.max_queue_offset("T", 0)
            dispatcher.step()
            moves.append(store.max_queue_offset("T", 0) - before)
        assert sum(moves) == 3001
        assert max(moves) < 1000, "no step of the dispatcher takes all of it"
        assert store.next_offset("T", 0) == 3001


@pytest.mark.parametrize("flags", [0, BORN_HOST_V6])
async def test_records_of_several_queues_get_their_places_in_one_append(flags: int) -> None:
    """As a transaction that ends: the message for its topic, and the note that its half is done."""
    host = bytes(20 if flags else 8)
    one = [replace(message(str(n), queue_id=n % 2), sys_flag=flags, born_host=host) for n in range(6)]
    half = replace(one[0], sys_flag=flags | TRANSACTION_PREPARED)
    logs = []
    for sliced in (False, True):
        async with opened(FaultyEnv()) as store:
            store.put(message("before"))
            batch = [*one, half, message("op", topic="OP")]
            if sliced:
                puts = store.put_prepared([store.writer.prepare(item) for item in batch])
            else:
                puts = store.put(batch)
            assert [put.queue_offset for put in puts] == [1, 0, 2, 1, 3, 2, 0, 0]
            found = list(walk(store.log.read(0, store.log.end), 0))
            logs.append([replace(record, store_timestamp_ms=0) for record in found])
            assert [store.next_offset("T", 0), store.next_offset("T", 1)] == [4, 3]
            assert store.next_offset("OP", 0) == 1
    assert logs[0] == logs[1]


async def test_queue_offsets_are_made_anew_in_slices_and_stand_when_all_of_them_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others run meanwhile; what they see is the table as it was."""
    monkeypatch.setattr(queue_offsets, "STEP_QUEUES", 4)
    monkeypatch.setattr(Slice, "is_over", lambda self: True)
    async with (
        opened(FaultyEnv(), segment_bytes=1 << 20) as master,
        opened(FaultyEnv(), segment_bytes=1 << 20) as slave,
    ):
        await fill(master, 200, queues=50)
        slave.append_raw(PhysicalOffset(0), master.log.read(0, 1 << 20))
        slave.confirm(PhysicalOffset(slave.log.end // 2))
        seen: set[int] = set()

        async def look() -> None:
            while True:
                seen.add(len(slave.writer.offsets.table))
                slave.confirm(slave.log.end)  # what is dispatched meanwhile counts once
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        rounds = 0
        for _ in range(2):
            await asyncio.sleep(0)
        before = slave.writer.offsets.table
        steps = slave.writer.rebuilding_offsets()
        for _ in steps:
            rounds += 1
            assert slave.writer.offsets.table is before
            await asyncio.sleep(0)
        looking.cancel()
        assert rounds > 20
        assert slave.writer.offsets.table == master.writer.offsets.table
        await slave.rebuild_queue_offsets_in_slices(Slice(lambda: 0.0))
        assert slave.writer.offsets.table == master.writer.offsets.table
