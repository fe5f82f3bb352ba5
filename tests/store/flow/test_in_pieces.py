"""The promises of what is done in pieces at the store: a long append, and the counting at a promotion."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from model.ids import PhysicalOffset
from model.message import BORN_HOST_V6, TRANSACTION_PREPARED
from runtime.turns import Slice
from store.files.record import walk
from store.flow import queue_offsets
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import fill, message, opened


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
