"""The promise of scrub and repair: whatever bit rots in one of three replicas, all of it comes back."""

from __future__ import annotations

import asyncio
import copy
import os
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from model.message import TRANSACTION_PREPARED
from runtime.turns import Slice
from store.files.consume_queue import ENTRY_BYTES, ConsumeQueue
from store.files.index_file import LOOKED_AT_ONCE, IndexFile
from store.files.record import BadRecord, Record, decode, walk
from store.flow.dispatching import dispatch
from store.heal.repair import Wanted
from store.heal.scrub import LOOKUPS_MAX
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import SEGMENT, config, fill, message, opened, records_of, scrub_all
from tests.waiting import until

FLIPS = int(os.environ.get("KEELMQ_FLIPS", "150"))
"""How many flips the long run makes; 2,000 take about two minutes."""
KEYS = {"append_prop_crc": True}
T = TypeVar("T")


async def write_all_kinds(store: MessageStore, rounds: int = 12) -> None:
    """Both record versions, transactions, several queues, four segments."""
    long_group = "%RETRY%" + "g" * 130
    store.epochs.append(Epoch(1), PhysicalOffset(0))
    for number in range(rounds):
        for queue_id in range(3):
            body = f"{number}:{queue_id}".encode().ljust(40 + 37 * (number % 5), b"x")
            store.put(message(body, queue_id=queue_id, uniq=f"U{number}.{queue_id}", keys=f"k{number}"))
        store.put(message(b"half", topic="RMQ_SYS_TRANS_HALF_TOPIC"))
        store.put(message(b"prepared", sys_flag=TRANSACTION_PREPARED))
        store.put([message(b"retry", topic=long_group), message(b"", topic="Empty")])
        if number == rounds // 2:
            store.epochs.append(Epoch(2), store.log.end)
    store.confirm(store.log.end)
    await store.caught_up()


def copy_of(disk: FaultyDisk) -> FaultyDisk:
    after = FaultyDisk()
    after.nodes = {path: copy.deepcopy(node) for path, node in disk.nodes.items()}
    after.durable = dict(after.nodes)
    after.dirs = set(disk.dirs)
    return after


def replica() -> FaultyDisk:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, **KEYS) as store:
            await write_all_kinds(store)
        return env.disk

    return completed(run())


def everything(store: MessageStore) -> dict[tuple[str, int], list[Record]]:
    return {queue: records_of(store, *queue) for queue in sorted(store.queues())}


async def mend_from(store: MessageStore, peer: MessageStore) -> int:
    """What the broker does over the wire: ask, check, write."""
    count = 0
    for wanted in store.repairer.wanted():
        count += await store.repairer.mend(wanted, read_log(peer, wanted.begin, wanted.until))
    return count


def read_log(store: MessageStore, begin: int, end: int) -> bytes:
    return store.log.read(begin, end - begin)


def record_bytes(store: MessageStore) -> list[bytes]:
    """All records of the log, byte for byte, without what lies behind the blanks."""
    found: list[bytes] = []
    for segment in store.log.segments:
        data = store.log.read(segment.start, SEGMENT)
        at = 0
        for record in walk(data, segment.start):
            found.append(data[at : at + record.size])
            at += record.size
    return found


def test_random_bit_flips_over_all_files_of_one_replica_cost_nothing() -> None:
    good = replica()
    chance = random.Random(20)

    async def run() -> tuple[int, int]:
        in_records = repaired = 0
        async with opened(FaultyEnv(copy_of(good)), **KEYS) as peer:
            whole, raw, end = everything(peer), record_bytes(peer), peer.log.end
            epochs = peer.epochs.entries
            paths = sorted(path for path, node in good.nodes.items() if node.cache)
            logs = [path for path in paths if "/commitlog/" in path]
            for number in range(FLIPS):
                path = chance.choice(logs if number % 2 else paths)
                disk = copy_of(good)
                cache = disk.nodes[path].cache
                bit = chance.randrange(len(cache) * 8)
                cache[bit // 8] ^= 1 << bit % 8
                disk.nodes[path].sync()
                if chance.random() < 0.5:
                    disk.open("/store/abort", create=True)
                what = f"flip {number}: bit {bit % 8} of byte {bit // 8} of {path}"
                async with opened(FaultyEnv(disk), **KEYS) as store:
                    assert store.log.end == end, what
                    scrub_all(store)
                    at = bit // 8 + int(path[-20:]) if path in logs else -1
                    in_record = any(r <= at < r + len(b) for r, b in zip(starts(raw), raw, strict=True))
                    if in_record:
                        in_records += 1
                        assert store.damage.at(at) is not None, what
                    repaired += len(store.damage.ranges)
                    await mend_from(store, peer)
                    assert store.damage.ranges == [], what
                    assert record_bytes(store) == raw, what
                    assert everything(store) == whole, what
                    for topic, queue_id in whole:
                        assert store.next_offset(topic, queue_id) >= peer.next_offset(topic, queue_id), what
                    if "epochFile" not in path:
                        assert store.epochs.entries == epochs, what
        return in_records, repaired

    in_records, repaired = completed(run())
    assert in_records > FLIPS // 5
    assert repaired >= in_records


def starts(raw: list[bytes]) -> list[int]:
    return [int.from_bytes(record[28:36], "big") for record in raw]


async def test_a_replica_with_another_history_mends_nothing() -> None:
    env = FaultyEnv()
    async with opened(env) as store, opened(FaultyEnv(now_ms=1_800_000_000_000)) as other:
        for one in (store, other):
            for number in range(9):
                one.put(message(f"{number}".rjust(50)))
            one.confirm(one.log.end)
            await one.caught_up()
        node = env.disk.nodes["/store/commitlog/" + "0" * 20]
        good = bytes(node.cache)
        at = 4 * (store.log.end // 9) + 95
        node.cache[at] ^= 1
        scrub_all(store)
        (wanted,) = store.repairer.wanted()
        assert (wanted.before, wanted.behind) != (b"", b"")
        with pytest.raises(BadRecord, match="not ours"):
            await store.repairer.mend(wanted, read_log(other, wanted.begin, wanted.until))
        with pytest.raises(BadRecord, match="CRC"):
            await store.repairer.mend(wanted, read_log(store, wanted.begin, wanted.until))
        with pytest.raises(BadRecord, match="bytes came"):
            await store.repairer.mend(wanted, b"short")
        assert len(store.damage.ranges) == 1
        await store.repairer.mend(wanted, good[wanted.begin : wanted.until])
        assert bytes(node.cache) == good
        assert len(records_of(store)) == 9


async def test_a_crash_between_a_repair_and_its_note_is_seen_at_the_next_start() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        put = [store.put(message(f"{number}".rjust(50)))[0] for number in range(9)][4]
        store.confirm(store.log.end)
        await store.caught_up()
    node = env.disk.nodes["/store/commitlog/" + "0" * 20]
    node.cache[put.physical_offset + 95] ^= 1
    async with opened(env) as store:
        assert [item.begin for item in store.damage.ranges] == [put.physical_offset]
    node.cache[put.physical_offset + 95] ^= 1
    async with opened(env) as store:
        assert store.damage.ranges == []
        assert len(records_of(store)) == 9


async def test_repair_gives_a_record_back_its_place_in_queue_and_index_even_when_its_entry_was_lost() -> None:
    good = replica()

    async with opened(FaultyEnv(copy_of(good)), **KEYS) as peer:
        disk = copy_of(good)
        (target,) = [r for r in records_of(peer, "T", 1) if r.queue_offset == 5]
        path = f"/store/commitlog/{target.physical_offset - target.physical_offset % SEGMENT:020}"
        at = target.physical_offset % SEGMENT
        disk.nodes[path].cache[at : at + target.size] = b"\xee" * target.size
        disk.nodes[path].sync()
        for name in [n for n in disk.nodes if "consumequeue" in n or "/index/" in n or "checkpoint" in n]:
            disk.remove(name)
        disk.open("/store/abort", create=True)
        async with opened(FaultyEnv(disk), **KEYS) as store:
            assert [r.queue_offset for r in records_of(store, "T", 1)] == [*range(5), *range(6, 12)]
            assert store.query("T", "U5.1", 9, 0, 1 << 62) == []
            assert await mend_from(store, peer) == 1
            assert everything(store) == everything(peer)
            assert store.query("T", "U5.1", 9, 0, 1 << 62) == peer.query("T", "U5.1", 9, 0, 1 << 62) != []
        async with opened(FaultyEnv(disk), **KEYS) as store:
            assert everything(store) == everything(peer)
            assert store.query("T", "U5.1", 9, 0, 1 << 62) != []


async def test_a_slave_that_copied_a_damaged_log_dispatches_the_rest_and_mends_it_later() -> None:
    good = replica()

    async with opened(FaultyEnv(good), **KEYS) as master, opened(FaultyEnv(), **KEYS) as slave:
        raw = bytearray(read_log(master, 0, SEGMENT))
        records = list(walk(bytes(raw), 0))
        bad = records[5]
        raw[bad.physical_offset + 5] ^= 1  # its magic
        for at in range(0, master.log.end, SEGMENT):
            slave.append_raw(
                PhysicalOffset(at), bytes(raw) if at == 0 else read_log(master, at, at + SEGMENT)
            )
        slave.confirm(slave.log.end)
        await slave.caught_up()
        assert slave.why_not_writable is None
        assert [(i.begin, i.until) for i in slave.damage.ranges] == [
            (bad.physical_offset, bad.physical_offset + bad.size)
        ]
        assert slave.dispatched == master.dispatched
        await mend_from(slave, master)
        assert everything(slave) == everything(master)


Cut = Callable[[list[Record], int], int]


async def a_slave_of_a_rotten_record(byte: int, cut: Cut, check: Callable[..., Awaitable[None]]) -> None:
    """``check(slave, raw, bad)``: a slave that copied ``raw`` up to ``cut(records, number of the rotten
    one)``, all of it confirmed; in record ``bad`` one bit of ``byte`` is another."""
    good = replica()
    async with opened(FaultyEnv(good), **KEYS) as master, opened(FaultyEnv(), **KEYS) as slave:
        raw = bytearray(read_log(master, 0, SEGMENT))
        records = list(walk(bytes(raw), 0))
        bad = records[8]
        raw[bad.physical_offset + byte] ^= 64
        slave.epochs.append(Epoch(1), PhysicalOffset(0))
        slave.append_raw(PhysicalOffset(0), bytes(raw[: cut(records, 8)]))
        slave.confirm(slave.log.end)
        await slave.caught_up()
        await check(slave, bytes(raw), bad)
        assert slave.why_not_writable is None
        await mend_from(slave, master)
        assert read_log(slave, 0, slave.log.end) == read_log(master, 0, slave.log.end)


CUTS: list[Cut] = [
    lambda records, number: records[number].physical_offset + 50,
    lambda records, number: records[number].physical_offset + records[number].size - 1,
    lambda records, number: records[number + 1].physical_offset,
    lambda records, number: records[number + 1].physical_offset + 20,
    lambda records, number: records[number + 2].physical_offset - 1,
]


@pytest.mark.parametrize("byte", [0, 1, 2, 3, 5, 35])  # its size, its magic, its place
@pytest.mark.parametrize("cut", range(len(CUTS)))
async def test_a_slave_that_copied_damage_in_pieces_waits_for_the_good_record_behind(
    cut: int, byte: int
) -> None:
    """A flipped bit of a size, too: so many bytes would be waited for, for ever."""

    async def check(slave: MessageStore, raw: bytes, bad: Record) -> None:
        assert (slave.dispatched, slave.why_not_writable) == (bad.physical_offset, None)
        assert slave.damage.ranges == []
        for _ in range(6):
            begin = slave.log.end
            slave.append_raw(begin, raw[begin : begin + 150])
            slave.confirm(slave.log.end)
            await slave.caught_up()
        assert [(i.begin, i.until) for i in slave.damage.ranges] == [
            (bad.physical_offset, bad.physical_offset + bad.size)
        ]
        assert slave.dispatched > bad.physical_offset + bad.size

    await a_slave_of_a_rotten_record(byte, CUTS[cut], check)


@pytest.mark.parametrize("byte", [0, 5, 35])
@pytest.mark.parametrize("cut", range(2, len(CUTS)))
async def test_a_slave_that_waits_behind_damage_keeps_it_when_it_becomes_master(cut: int, byte: int) -> None:
    """Its place in its queue is not given to another. Where only rot says how long it is, it is cut off."""

    async def check(slave: MessageStore, raw: bytes, bad: Record) -> None:
        end = slave.truncate_partial_tail()
        behind = bad.physical_offset + bad.size
        if byte == 0 and cut < 4:
            assert (end, slave.damage.ranges) == (bad.physical_offset, [])
            return
        assert (end, slave.log.end) == (behind, behind)
        assert [(i.begin, i.until) for i in slave.damage.ranges] == [(bad.physical_offset, behind)]
        slave.rebuild_queue_offsets()
        assert slave.next_offset(bad.topic, bad.queue_id) > bad.queue_offset
        slave.put(message(b"new"))
        slave.confirm(slave.log.end)
        await slave.caught_up()
        assert slave.dispatched == slave.log.end
        slave.truncate(PhysicalOffset(behind))

    await a_slave_of_a_rotten_record(byte, CUTS[cut], check)


async def test_what_is_good_behind_damage_stays_when_a_slave_becomes_master_before_it_is_confirmed() -> None:
    async def check(slave: MessageStore, raw: bytes, bad: Record) -> None:
        end = slave.log.end
        slave.append_raw(end, raw[end : end + 500])
        slave.truncate_partial_tail()
        assert slave.log.end > end
        assert [(i.begin, i.until) for i in slave.damage.ranges] == [
            (bad.physical_offset, bad.physical_offset + bad.size)
        ]

    await a_slave_of_a_rotten_record(5, CUTS[2], check)


async def test_a_slave_that_waits_behind_damage_is_cut_behind_it() -> None:
    async def check(slave: MessageStore, raw: bytes, bad: Record) -> None:
        end = slave.log.end
        slave.append_raw(end, raw[end : end + 500])
        third = bad.physical_offset + bad.size + int.from_bytes(raw[end : end + 4], "big")
        with pytest.raises(DiskError, match="no record starts there"):
            slave.truncate(PhysicalOffset(third - 20))
        slave.truncate(PhysicalOffset(third))
        assert slave.log.end == third
        assert [(i.begin, i.until) for i in slave.damage.ranges] == [(bad.physical_offset, end)]

    await a_slave_of_a_rotten_record(5, CUTS[2], check)


async def test_a_stretch_without_a_good_record_ends_where_its_segment_does() -> None:
    good = replica()
    async with opened(FaultyEnv(good), **KEYS) as master, opened(FaultyEnv(), **KEYS) as slave:
        raw = bytearray(read_log(master, 0, SEGMENT))
        blank = sum(record.size for record in walk(bytes(raw), 0))
        last = list(walk(bytes(raw), 0))[-1]
        slave.append_raw(PhysicalOffset(0), bytes(raw[: blank + 9]))
        slave.confirm(slave.log.end)
        await slave.caught_up()
        assert (slave.dispatched, slave.damage.ranges) == (blank, []), "a blank that came in part is none"
        slave.truncate(last.physical_offset)
        raw[last.physical_offset + 5] ^= 64
        raw[blank + 5] ^= 64
        slave.append_raw(last.physical_offset, bytes(raw[last.physical_offset :]))
        slave.confirm(slave.log.end)
        await slave.caught_up()
        assert [(i.begin, i.until) for i in slave.damage.ranges] == [(last.physical_offset, SEGMENT)]
        await mend_from(slave, master)
        assert read_log(slave, 0, SEGMENT) == read_log(master, 0, SEGMENT)


async def test_an_answer_that_comes_after_a_cut_overwrites_nothing() -> None:
    good = replica()

    disk = copy_of(good)
    async with opened(FaultyEnv(good), **KEYS) as peer, opened(FaultyEnv(disk), **KEYS) as store:
        records = list(walk(read_log(store, SEGMENT, 2 * SEGMENT), SEGMENT))
        at = records[3].physical_offset
        disk.nodes[f"/store/commitlog/{SEGMENT:020}"].cache[at % SEGMENT + 100] ^= 1
        scrub_all(store)
        (wanted,) = store.repairer.wanted()
        answer = read_log(peer, wanted.begin, wanted.until)
        store.truncate(records[2].physical_offset)
        for number in range(5):
            store.put(message(f"new {number}", queue_id=number))
        now = read_log(store, SEGMENT, store.log.end)
        assert await store.repairer.mend(wanted, answer) == 0
        assert read_log(store, SEGMENT, store.log.end) == now


async def test_bytes_nothing_good_follows_break_a_master_and_a_slave_after_the_longest_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "RECORD_BYTES_MAX", 499)
    async with opened(FaultyEnv()) as slave:
        slave.append_raw(PhysicalOffset(0), b"\x11" * 500)
        slave.confirm(PhysicalOffset(499))
        await slave.caught_up()
        slave.confirm(PhysicalOffset(500))
        with pytest.raises(DiskError):
            await slave.caught_up()
    env = FaultyEnv()
    async with opened(env) as master:
        master.put_prepared([master.writer.prepare(message())])
        env.disk.nodes["/store/commitlog/" + "0" * 20].cache[5] ^= 1
        master.confirm(master.log.end)
        with pytest.raises(DiskError):
            await master.caught_up()


@pytest.mark.parametrize("byte", [0, 7, 11])  # below 0; another place; another size
async def test_a_reader_that_meets_a_wrong_queue_entry_gets_its_record(byte: int) -> None:
    env = FaultyEnv()
    async with opened(env, queue_file_bytes=2000) as store:
        for number in range(40):
            store.put(message(f"{number}".rjust(50)))
        store.confirm(store.log.end)
        await store.caught_up()
        await store.background.housekeeping.queues.flush()
        env.disk.nodes["/store/consumequeue/T/0/" + "0" * 20].cache[9 * ENTRY_BYTES + byte] ^= 132
        assert [record.queue_offset for record in records_of(store)] == list(range(40))


@pytest.mark.parametrize("byte", [15, 27])  # queue id, queue offset: no CRC covers them by default
async def test_a_reader_that_meets_a_rotten_head_has_the_record_repaired(byte: int) -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        for number in range(20):
            store.put(message(f"{number}".rjust(50)))
        store.confirm(store.log.end)
        await store.caught_up()
        before = records_of(store)
        node = env.disk.nodes["/store/commitlog/" + "0" * 20]
        good = bytes(node.cache)
        at = before[7].physical_offset
        node.cache[at + byte] ^= 64
        assert len(records_of(store)) == 19
        await until(lambda: store.damage.ranges)
        assert [(i.begin, i.until, i.kind) for i in store.damage.ranges] == [
            (at, at + before[7].size, "bytes_differ")
        ]
        for wanted in store.repairer.wanted():
            await store.repairer.mend(wanted, good[wanted.begin : wanted.until])
        assert records_of(store) == before


def test_wanted_stays_in_its_segment_and_off_other_damage() -> None:
    good = replica()

    async def run() -> None:
        disk = copy_of(good)
        async with opened(FaultyEnv(disk), **KEYS) as store:
            first = list(walk(store.log.read(SEGMENT, SEGMENT), SEGMENT))[:2]
            for record in first:
                disk.nodes[f"/store/commitlog/{SEGMENT:020}"].cache[
                    record.physical_offset % SEGMENT + 100
                ] ^= 1
            scrub_all(store)
            wanted = store.repairer.wanted()
            assert all(isinstance(item, Wanted) and item.begin >= SEGMENT for item in wanted)
            assert sum(item.of.until - item.of.begin for item in wanted) == sum(r.size for r in first)

    completed(run())
    assert config().segment_bytes == SEGMENT


async def test_what_was_lost_is_found_without_reading_the_queues_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop waits meanwhile: a queue may have millions of entries."""

    async with opened(FaultyEnv(), queue_file_bytes=1 << 16) as store:
        puts = await fill(store, 3000, queues=2)
        hit = puts[2700]
        data = store.log.read(hit.physical_offset, hit.size)
        store.log.overwrite(hit.physical_offset, data[:90] + bytes([data[90] ^ 1]) + data[91:])
        read = 0
        real = ConsumeQueue.read

        def count(self: ConsumeQueue, index: int, count_max: int) -> bytes:
            nonlocal read
            got = real(self, index, count_max)
            read += len(got) // ENTRY_BYTES
            return got

        monkeypatch.setattr(ConsumeQueue, "read", count)
        store.repairer.note(hit.physical_offset, BadRecord("crc_mismatch", ""))
        [item] = store.damage.ranges
        assert [(one.offset, one.queue_offset) for one in item.lost] == [(hit.physical_offset, 1350)]
        assert read < 300


async def test_a_key_that_many_messages_share_holds_neither_a_scrub_nor_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RocketMQ walks the whole chain, too, but in a thread of its own."""

    env = FaultyEnv()
    async with opened(env, index_slots=50, index_entries=1 << 14) as store:
        for number in range(3000):
            env.clock_ms += 1000
            store.put(message(b"x", uniq=f"U{number}", keys="tenant"))
        store.confirm(store.log.end)
        await store.caught_up()
        await store.indexed()
        looked_at = 0
        real = IndexFile.entry

        def count(self: IndexFile, number: int) -> tuple[int, int, int, int]:
            nonlocal looked_at
            looked_at += 1
            return real(self, number)

        monkeypatch.setattr(IndexFile, "entry", count)
        store.scrub.at = 0
        store.scrub.step()
        assert looked_at <= (LOOKUPS_MAX + 2) * (LOOKED_AT_ONCE + 1)
        turns: list[int] = []

        async def others() -> None:
            nonlocal looked_at
            while True:
                turns.append(looked_at)
                looked_at = 0
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        window = (0, env.clock_ms - 2_990_000)
        found = await store.query_in_turns("T", "tenant", 5, *window, Slice(lambda: 0.0))
        beside.cancel()
        assert found == store.query("T", "tenant", 5, *window)
        assert [decode(raw).queue_offset for raw in found] == [5, 6, 7, 8, 9]
        assert len(turns) >= 2990 // LOOKED_AT_ONCE
        assert max(turns[1:]) <= LOOKED_AT_ONCE


def test_a_query_goes_on_though_the_log_is_cut_or_emptied_while_others_have_a_turn() -> None:
    async def run(offset: int) -> int:
        async with opened(FaultyEnv(), index_slots=50, index_entries=1 << 12) as store:
            for number in range(3 * LOOKED_AT_ONCE):
                store.put(message(b"x", queue_id=number % 2, keys="tenant"))
            store.confirm(store.log.end)
            await store.caught_up()
            query = asyncio.create_task(
                store.query_in_turns("T", "tenant", 1 << 20, 0, 1 << 62, Slice(lambda: 0.0))
            )
            await asyncio.sleep(0)
            cut = records_of(store)[offset].physical_offset
            store.truncate(cut)
            return len(await query)

    assert completed(run(100)) >= 200
    assert completed(run(0)) <= LOOKED_AT_ONCE


async def test_what_the_replicas_decided_is_not_overwritten_by_one_that_answers_meanwhile() -> None:
    """The range is on the ledger until the right bytes are synced: whoever repairs it asks any replica."""

    env = FaultyEnv()
    async with opened(env) as store:
        puts = await fill(store, 20, queues=1)
        hit = puts[7]
        right = store.log.read(hit.physical_offset, hit.size)
        wrong = right.replace(b"UNIQ_KEY\1U7", b"UNIQ_KEY\1U8")
        store.log.overwrite(hit.physical_offset, wrong)
        real, answered = env.offload, asyncio.Event()

        async def slow(call: Callable[[], T]) -> T:
            await answered.wait()
            return await real(call)

        env.offload = slow  # type: ignore[method-assign]
        deciding = asyncio.create_task(store.repairer.replace(hit.physical_offset, right))
        await asyncio.sleep(0)
        [item] = store.damage.ranges
        wanted = store.repairer.wanted()
        late = asyncio.create_task(store.repairer.mend(Wanted(item.begin, item.until, item, b"", b""), wrong))
        await asyncio.sleep(0)
        answered.set()
        assert (await deciding, await late, wanted) == (1, 0, [])
        assert store.log.read(hit.physical_offset, hit.size) == right
        assert store.damage.ranges == []


async def test_a_replica_whose_record_has_another_place_in_the_queues_than_ours_had_does_not_mend_it() -> (
    None
):
    """No CRC covers the place: that replica's rotted, and the next one is asked."""

    async with opened(FaultyEnv()) as store:
        puts = await fill(store, 20, queues=2)
        hit = puts[7]
        right = store.log.read(hit.physical_offset, hit.size)
        whole = everything(store)
        store.log.overwrite(hit.physical_offset, right[:90] + bytes([right[90] ^ 1]) + right[91:])
        store.repairer.note(hit.physical_offset, BadRecord("crc_mismatch", ""))
        for at in (15, 27):  # the low bytes of queue id and queue offset
            [wanted] = store.repairer.wanted()
            moved = right[:at] + bytes([right[at] ^ 2]) + right[at + 1 :]
            with pytest.raises(BadRecord, match="another place"):
                await store.repairer.mend(wanted, wanted.before + moved + wanted.behind)
        assert await store.repairer.mend(wanted, wanted.before + right + wanted.behind) == 1
        assert everything(store) == whole
