"""The promise of a step over damage: it ends with the message behind it, and a queue goes on where the log's
records say."""

from __future__ import annotations

from typing import Any

import pytest

from model.ids import PhysicalOffset, QueueOffset
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, config, message, opened, records_of

STEP = 100
QUEUE_FILE_BYTES = 20 * 5000


async def _stepped(store: MessageStore) -> PhysicalOffset:
    """Three messages, and behind a step a fourth one; where the log ended before that."""
    for number in range(3):
        store.put(message(f"{number}"))
    end = store.log.end
    store.writer.offsets.table["T", 0] = QueueOffset(3 + STEP)  # as for damage that nothing is known of
    store.put(message("behind the step"))
    store.confirm(store.log.end)
    await store.caught_up()
    assert store.max_queue_offset("T", 0) == 3 + STEP + 1
    return end


@pytest.mark.parametrize("how", ["cut", "lost with the power"])
async def test_offsets_of_a_step_whose_message_is_gone_are_given_by_the_next_master_and_entered_here(
    how: str,
) -> None:
    env = FaultyEnv()
    keys: dict[str, Any] = {"queue_file_bytes": QUEUE_FILE_BYTES}
    store = MessageStore(env, config(**keys))
    await store.open()
    end = await _stepped(store)
    disk: FaultyDisk = env.disk
    if how == "cut":
        store.truncate(end)
        await store.close()
    else:
        store.files.queues.write_out()
        disk = disk.killed()
        segment = disk.open("/store/commitlog/" + "0" * 20)
        segment.pwrite(bytes(store.log.segment_bytes - end), end)  # its page, not that of the queue
    async with opened(FaultyEnv(disk), **keys) as again, opened(FaultyEnv(), **keys) as other:
        assert (again.log.end, again.max_queue_offset("T", 0)) == (end, 3)
        other.append_raw(PhysicalOffset(0), again.log.read(0, end))
        other.confirm(end)
        await other.caught_up()
        other.rebuild_queue_offsets()
        assert other.put(message("next"))[0].queue_offset == 3
        again.append_raw(end, other.log.read(end, other.log.end - end))
        again.confirm(again.log.end)
        await again.caught_up()
        assert [record.body for record in records_of(again)] == [b"0", b"1", b"2", b"next"]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_step_behind_messages_that_expired_is_no_reason_not_to_start(clean: bool) -> None:
    """Empty entries end the queue, and the record before them is gone: nobody knows what they stood for."""
    env = FaultyEnv()
    store = MessageStore(env, config())
    await store.open()
    for number in range(3):
        store.put(message(f"{number}"))
    while store.log.end < 2 * SEGMENT:
        store.put(message(b"x" * 500, topic="Other"))
    queue = store.files.queues.open("T", 0)
    store.confirm(store.log.end)
    await store.caught_up()
    queue.skip_to(9)
    store.files.queues.dirty[queue] = None
    store.files.queues.write_out()
    store.log.sync()
    store.log.forget_first()
    await store.retention._remove_forgotten()
    await store.retention.follow_log_start()
    disk: FaultyDisk = env.disk
    if clean:
        store.writer.offsets.table["T", 0] = QueueOffset(9)
        await store.close()
    else:
        disk = disk.killed()
    async with opened(FaultyEnv(disk)) as again:
        assert again.max_queue_offset("T", 0) == 9
