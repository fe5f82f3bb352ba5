"""The promise of the settled offset: whatever a crash takes, all below it is on the disk, log and queues."""

from __future__ import annotations

import asyncio
import random

import pytest

from runtime.env import read_file
from store.files.checkpoint import READ_BYTES, Checkpoint
from store.files.consume_queue import ENTRY
from store.files.record import HEAD, BadRecord, decode, whole
from store.flow.upkeep import queue_flush
from store.message_store import MessageStore
from store.recover import recovery
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv, FaultyFile
from tests.store.support import SEGMENT, config, fill, message, opened, records_of

HOUR_MS = 3_600_000
QUEUES = 7


async def _worked(seed: int) -> FaultyDisk:
    """A store that writes, flushes, cuts and is left in the middle of it."""
    chance = random.Random(seed)
    env = FaultyEnv()
    store = MessageStore(env, config(flush_interval_ms=HOUR_MS, flush_queue_interval_ms=HOUR_MS))
    await store.open()
    coordinator = store.background.housekeeping
    for _ in range(40):
        step = chance.random()
        if step < 0.55:
            for _ in range(chance.randrange(1, 12)):
                store.put(message(b"x" * chance.randrange(200), queue_id=chance.randrange(QUEUES)))
            store.confirm(store.log.end)
            await store.caught_up()
        elif step < 0.8:
            await coordinator.queues.flush(chance.choice([None, None, 1, 3]))
            await coordinator.write_checkpoint()
        elif step < 0.95:
            await store.background.flusher._sync()
        elif store.dispatched:
            got = records_of(store, "T", chance.randrange(QUEUES))
            if got:
                store.truncate(chance.choice(got).physical_offset)
    return env.disk


def _what_is_there(disk: FaultyDisk) -> int:
    """The settled offset on ``disk``; AssertionError when not all below it is there."""
    settled = Checkpoint.decode(read_file(disk, "/store/checkpoint")[:READ_BYTES]).settled_offset
    queues = {
        number: b"".join(
            read_file(disk, f"/store/consumequeue/T/{number}/{name}")
            for name in disk.listdir(f"/store/consumequeue/T/{number}")
        )
        for number in range(QUEUES)
    }
    at = 0
    while at < settled:
        data = read_file(disk, f"/store/commitlog/{at - at % SEGMENT:020}")
        size = whole(data, at % SEGMENT, at, prop_crc=False)
        assert size, f"no record at {at}"
        if size > 0:
            record = decode(data, at % SEGMENT)
            place = record.queue_offset * ENTRY.size
            entry = queues[record.queue_id][place : place + ENTRY.size]
            assert entry[:12] == ENTRY.pack(at, size, 0)[:12], f"no entry of the record at {at}"
        at += abs(size)
    assert at == settled, "no record ends at the settled offset"
    return settled


@pytest.mark.parametrize("few", [False, True])
def test_all_below_the_settled_offset_survives_a_power_failure(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:  # a round does not reach every queue
        monkeypatch.setattr(queue_flush, "SYNC_QUEUES", 2)
    found = []
    for seed in range(60):
        disk = asyncio.run(_worked(seed))
        found += [_what_is_there(disk.crash(crash)) for crash in (None, seed)]
    assert sum(offset > 0 for offset in found) > 40


@pytest.mark.parametrize("what", ["/commitlog/", "/consumequeue/"])
def test_a_sync_left_out_is_noticed_by_this_test(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FaultyFile.sync

    def sync(self: FaultyFile) -> None:
        if what not in self.path:
            real(self)

    monkeypatch.setattr(FaultyFile, "sync", sync)

    def all_seeds() -> None:
        for seed in range(60):
            _what_is_there(asyncio.run(_worked(seed)).crash(seed))

    with pytest.raises((AssertionError, BadRecord)):
        all_seeds()


@pytest.mark.parametrize("seed", range(30))
async def test_what_was_served_before_a_kill_is_served_after_it(seed: int) -> None:
    disk = (await _worked(seed)).killed()
    async with opened(FaultyEnv(disk)) as store:
        served = {n: [r.physical_offset for r in records_of(store, "T", n)] for n in range(QUEUES)}
        places = {n: [r.queue_offset for r in records_of(store, "T", n)] for n in range(QUEUES)}
        all_of = sorted(offset for offsets in served.values() for offset in offsets)
        expected = []
        at = 0
        while at < store.log.end:
            head = store.log.read(at, HEAD.size)
            size = int.from_bytes(head[:4], "big")
            if int.from_bytes(head[4:8], "big") != 0xCBD43194:
                expected.append(at)
            at += size
        assert all_of == expected
        assert all(places[n] == list(range(len(places[n]))) for n in range(QUEUES))


async def test_a_start_reads_little_more_than_what_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LOOK_BACK_BYTES", 1000)

    env = FaultyEnv()
    store = MessageStore(env, config(flush_interval_ms=HOUR_MS, flush_queue_interval_ms=HOUR_MS))
    await store.open()
    await fill(store, 200)
    await store.background.flusher._sync()
    await store.background.housekeeping.queues.flush()
    await store.background.housekeeping.write_checkpoint()
    settled = store.log.end
    await fill(store, 10)
    async with opened(FaultyEnv(env.disk.killed())) as again:
        assert again.recovered is not None
        assert not again.recovered.clean
        assert settled - 1000 <= again.recovered.start < settled
        assert again.recovered.records < 20
        assert len(records_of(again)) == 105


async def test_queues_somebody_removed_are_made_again() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 50)
    env.disk.rmtree("/store/consumequeue")
    async with opened(FaultyEnv(env.disk)) as store:
        assert len(records_of(store)) == 25


async def test_an_index_left_behind_catches_up_while_the_store_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = FaultyEnv()
    store = MessageStore(env, config(flush_interval_ms=HOUR_MS, flush_queue_interval_ms=HOUR_MS))
    await store.open()
    await fill(store, 60)
    disk = env.disk.killed()
    monkeypatch.setattr("store.flow.dispatching.indexing.AT_ONCE_BYTES", 100)
    async with opened(FaultyEnv(disk)) as again:
        assert again.indexing_bytes
        assert len(records_of(again)) == 30
        assert not again.query("T", "U7", 9, 0, 1 << 62)
        again.put(message("new", uniq="U7"))
        again.confirm(again.log.end)
        await again.indexed()
        assert not again.indexing_bytes
        assert len(again.query("T", "U7", 9, 0, 1 << 62)) == 2
        assert all(again.query("T", f"U{n}", 9, 0, 1 << 62) for n in range(60))


async def test_a_log_without_keys_is_not_read_again_for_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        for _ in range(50):
            store.put(message("no key"))
        store.confirm(store.log.end)
    monkeypatch.setattr("store.flow.dispatching.indexing.AT_ONCE_BYTES", -1)
    async with opened(FaultyEnv(env.disk)) as again:
        assert again.indexing_bytes <= 1
