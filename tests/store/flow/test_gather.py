"""The promise of runtime/native/pulls.pxi: what a pull is given is what Python's way gives, or nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from model.message import java_hash
from runtime import native
from runtime.os_env import OsEnv
from store.files.compiled import compiled
from store.flow.reading import Got
from store.message_store import MessageStore
from tests.store.support import config, message

pytestmark = pytest.mark.skipif(compiled() is None, reason=f"path of sends: {native.describe()}")


async def opened_at(path: Path, **keys: object) -> MessageStore:
    store = MessageStore(OsEnv(seed=1), config(str(path), **keys))
    await store.open()
    return store


async def fill(store: MessageStore, chance: random.Random, count: int) -> None:
    for number in range(count):
        body = chance.randbytes(chance.choice([0, 5, 90, 700])).hex()
        tag = chance.choice("ABC")
        store.put(message(body, queue_id=chance.choice([0, 0, 1, 2]), properties=f"TAGS\x01{tag}\x02"))
        if number % 7 == 0:
            store.confirm(store.log.end)
            await store.caught_up()
    store.confirm(store.log.end)
    await store.caught_up()


async def test_both_ways_give_the_same(tmp_path: Path) -> None:
    chance = random.Random(15)
    store = await opened_at(tmp_path, segment_bytes=64 * 1024, queue_file_bytes=2000)
    reader, gather = store.reader, store.reader._gather_plain
    taken = 0
    try:
        await fill(store, chance, 600)
        for _ in range(800):
            tags = chance.sample("ABCD", chance.choice([0, 0, 1, 2]))
            wanted = {java_hash(tag) for tag in tags} or None
            queue_id = chance.randrange(4)
            most = store.max_queue_offset("T", queue_id)
            asked = (
                "T",
                queue_id,
                chance.randrange(-1, most + 2),
                chance.choice([1, 2, 32, 500]),
                chance.choice([1, 300, 5000, 1 << 20]),
                wanted,
            )
            reader._gather_plain = gather
            fast = reader.get(*asked)
            reader._gather_plain = None
            slow = reader.get(*asked)
            assert said(fast) == said(slow)
            queue = reader._queues.get("T", queue_id)
            reader._gather_plain = gather
            if queue is not None and 0 <= asked[2] < most:
                taken += reader._gather(queue, *asked[2:]) is not None
        assert taken > 100, "it is what pulls take"
    finally:
        await store.close()


def said(got: Got) -> tuple[object, ...]:
    return got.status, got.next_offset, got.min_offset, got.max_offset, got.count, b"".join(got.chunks)


@pytest.mark.parametrize("what", ["entry", "record"])
async def test_an_entry_whose_record_is_not_there_is_left_to_pythons_way(tmp_path: Path, what: str) -> None:
    store = await opened_at(tmp_path)
    try:
        await fill(store, random.Random(1), 12)
        queue = store.reader._queues.get("T", 0)
        assert queue is not None
        assert store.reader._gather(queue, 0, 32, 1 << 20, None) is not None
        offset, size, tags_code = queue.entry(1) or (0, 0, 0)
        if what == "entry":
            queue.patch(1, offset + 1, size, tags_code)
        else:
            segment = store.log._dir.at(offset)
            assert segment is not None
            segment.write(b"\0\0\0\x09", offset + 12)  # it says that it is of another queue
        assert store.reader._gather(queue, 0, 32, 1 << 20, None) is None
        assert store.reader._gather(queue, 0, 1, 1 << 20, None) is not None
    finally:
        await store.close()
