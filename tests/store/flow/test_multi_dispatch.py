"""The promise of light queues: one record, found in each queue it names, whoever dispatches it and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from model.errors import Refused
from model.ids import PhysicalOffset
from model.message import SCHEDULE_TOPIC, decode_properties, encode_properties
from store.files.record import BadRecord, NewMessage, decode, encode, prop_crc_ok, walk
from store.message_store import MessageStore
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import config, message, opened

LIGHT: dict[str, Any] = {"lmq_enable": True, "multi_dispatch_enable": True}
A, B = "%LMQ%a", "%LMQ%b"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def _light(body: str, names: str, **properties: str) -> NewMessage:
    return message(
        body, properties=encode_properties({"INNER_MULTI_DISPATCH": names, "TAGS": "A"} | properties)
    )


def _bodies(store: MessageStore, name: str) -> list[bytes]:
    got = store.get(name, 0, store.min_queue_offset(name, 0), 100, 1 << 20)
    return [decode(chunk[at : at + size]).body for chunk in got.chunks for at, size in _split(chunk)]


def _split(chunk: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(chunk):
        size = int.from_bytes(chunk[at : at + 4], "big")
        found.append((at, size))
        at += size
    return found


async def _fill(store: MessageStore) -> None:
    store.put(message("plain"))
    store.put([_light("1", f"{A},{B}"), _light("2", A)])
    store.put(_light("3", f"{B},{A}"))
    store.confirm(store.log.end)
    await store.caught_up()


def _check(store: MessageStore) -> None:
    assert _bodies(store, A) == [b"1", b"2", b"3"]
    assert _bodies(store, B) == [b"1", b"3"]
    assert _bodies(store, "T") == [b"plain", b"1", b"2", b"3"]
    assert [store.next_offset(name, 0) for name in (A, B, "T")] == [3, 2, 4]


@pytest.mark.parametrize("how", ["served", "clean", "killed", "power", "queues_removed", "undispatched"])
async def test_light_queues_are_the_same_after_every_way_to_make_them(how: str) -> None:
    env = FaultyEnv()
    store = MessageStore(env, config(**LIGHT))
    await store.open()
    disk: FaultyDisk = env.disk
    if how == "undispatched":
        store.put([_light("1", f"{A},{B}"), _light("2", A)])
        store.rebuild_queue_offsets()
        assert [store.next_offset(name, 0) for name in (A, B)] == [2, 1]
        store.put(_light("3", f"{B},{A}"))
        disk = disk.killed()
    else:
        await _fill(store)
        _check(store)
        if how == "served":
            await store.close()
            return
        if how in ("clean", "queues_removed"):
            await store.close()
            if how == "queues_removed":
                disk.rmtree("/store/consumequeue")
        elif how == "power":
            store.log.sync()
            disk = disk.crash()
        else:
            disk = disk.killed()
    async with opened(FaultyEnv(disk), **LIGHT) as again:
        if how == "undispatched":
            assert (_bodies(again, A), _bodies(again, B)) == ([b"1", b"2", b"3"], [b"1", b"3"])
            return
        _check(again)
        again.put(_light("4", A))
        again.confirm(again.log.end)
        await again.caught_up()
        assert _bodies(again, A)[-1] == b"4"


async def test_a_slave_and_a_foreign_log_give_the_same_queues() -> None:
    async with opened(FaultyEnv(), **LIGHT) as master, opened(FaultyEnv(), **LIGHT) as slave:
        await _fill(master)
        slave.append_raw(PhysicalOffset(0), master.log.read(0, master.log.end))
        slave.confirm(slave.log.end)
        await slave.caught_up()
        slave.rebuild_queue_offsets()  # as a promotion does
        _check(slave)
        slave.truncate(PhysicalOffset(_offset_of(master, "T", 3)))
        assert _bodies(slave, A) == [b"1", b"2"]
        assert [slave.next_offset(name, 0) for name in (A, B)] == [2, 1]


def _offset_of(store: MessageStore, topic: str, index: int) -> int:
    chunk = store.get(topic, 0, index, 1, 1 << 20).chunks[0]
    return decode(chunk).physical_offset


async def test_offsets_a_producer_made_up_are_replaced_and_other_names_ignored() -> None:
    async with opened(FaultyEnv(), **LIGHT) as store:
        store.put(_light("1", f"Other,{A},%LMQ%x/y", INNER_MULTI_QUEUE_OFFSET="7,8,9"))
        store.confirm(store.log.end)
        await store.caught_up()
        record = decode(store.get(A, 0, 0, 1, 1 << 20).chunks[0])
        found = decode_properties(record.properties)
        assert (found["INNER_MULTI_DISPATCH"], found["INNER_MULTI_QUEUE_OFFSET"]) == (A, "0")
        assert store.max_queue_offset("Other", 0) == 0
        assert sorted(topic for topic, _ in store.queues()) == [A, "T"]


@pytest.mark.parametrize(("names", "offsets"), [(f"{A},{B}", "1"), (A, "x"), (A, "-1"), ("T", "5")])
async def test_what_a_foreign_record_says_wrongly_makes_no_queue(names: str, offsets: str) -> None:
    async with opened(FaultyEnv(), **LIGHT) as store:
        one = _light("1", names, INNER_MULTI_QUEUE_OFFSET=offsets)
        store.append_raw(PhysicalOffset(0), encode(one, 0, 0, 1_700_000_000_000))
        store.confirm(store.log.end)
        await store.caught_up()
        assert list(store.queues()) == [("T", 0)]
        assert store.max_queue_offset("T", 0) == 1


async def test_without_the_keys_there_are_no_light_queues() -> None:
    async with opened(FaultyEnv()) as store:
        await _fill(store)
        assert list(store.queues()) == [("T", 0)]


def test_verify_knows_light_queues() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, **LIGHT) as store:
            await _fill(store)
        return env.disk

    verdict = verify(asyncio.run(run()), "/store", config(), None)
    assert verdict["damage"] == []


async def test_a_record_of_light_queues_is_repaired_from_another_replica() -> None:
    async with opened(FaultyEnv(), **LIGHT) as store:
        await _fill(store)
        entry = store.files.queues.open("T", 0).entry(1)
        assert entry is not None
        offset, size, _ = entry
        right = store.log.read(offset, size)
        store.log.overwrite(offset, right[:88] + bytes([right[88] ^ 1]) + right[89:])
        store.repairer.note(offset, BadRecord("crc_mismatch", ""))
        [wanted] = store.repairer.wanted()
        await store.repairer.mend(wanted, wanted.before + right + wanted.behind)
        _check(store)


def _named(*names: int) -> str:
    return ",".join(f"%LMQ%{name}" for name in names)


async def test_there_are_at_most_so_many_light_queues_and_a_restart_counts_them_again() -> None:
    env = FaultyEnv()
    async with opened(env, **LIGHT, lmq_queues_max=3) as store:
        store.put([_light("1", _named(1, 2)), _light("2", _named(2))])
        for wanted in (_light("no", _named(2, 3, 4)), [_light("no", _named(3)), _light("no", _named(4))]):
            with pytest.raises(Refused, match="maxLmqConsumeQueueNum") as refused:
                store.put(wanted)
            assert refused.value.code == 1
        for topic in (SCHEDULE_TOPIC, HALF_TOPIC):  # they would name them later
            with pytest.raises(Refused):
                store.put(replace(_light("no", _named(3, 4)), topic=topic))
        store.put(_light("3", _named(3, 1)))
        assert store.next_offset("T", 0) == 3, "nothing of what was refused is in the log"
        store.confirm(store.log.end)
        await store.caught_up()
    async with opened(FaultyEnv(env.disk), **LIGHT, lmq_queues_max=3) as again:
        again.rebuild_queue_offsets()
        with pytest.raises(Refused):
            again.put(_light("no", _named(4)))
        again.put(_light("4", _named(1, 2, 3)))


async def test_a_message_admitted_to_wait_that_finds_no_room_comes_without_the_new_queues() -> None:
    async with opened(FaultyEnv(), **LIGHT, lmq_queues_max=1) as store:
        store.put(_light("1", A))
        store.put([_light("2", f"{A},{B}")], stored_before=True)
        store.confirm(store.log.end)
        await store.caught_up()
        assert _bodies(store, A) == [b"1", b"2"]
        assert sorted(topic for topic, _ in store.queues()) == [A, "T"]


async def test_a_batch_names_at_most_2048_light_queues() -> None:
    async with opened(FaultyEnv(), **LIGHT) as store:
        with pytest.raises(Refused, match="3000 light queues") as refused:
            store.put([_light("no", _named(*range(1500))), _light("no", _named(*range(1500)))])
        assert refused.value.code == 13
        assert store.log.end == 0


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("light", [False, True])
async def test_records_made_in_slices_are_those_that_are_made_in_one_go(light: bool, crc: bool) -> None:
    """Of a batch, messages that name light queues are encoded with their places, the others before."""
    keys: dict[str, Any] = {"append_prop_crc": crc, **(LIGHT if light else {})}
    batch = [_light(str(n), f"{A},{B}" if n % 3 else B) if n % 2 else message(str(n)) for n in range(9)]
    logs, nexts = [], []
    for sliced in (False, True):
        async with opened(FaultyEnv(), **keys) as store:
            store.put(_light("before", A))
            await asyncio.sleep(0)
            if sliced:
                made = [store.writer.prepare(one) for one in batch]
                assert [bool(one.record) for one in made] == [not light or n % 2 == 0 for n in range(9)]
                puts = store.put_prepared(store.writer.gather(made))
            else:
                puts = store.put(batch)
            assert [put.queue_offset for put in puts] == list(range(1, 10))
            data = bytearray(store.log.read(0, store.log.end))
            at = 0
            for record in walk(bytes(data), 0):
                data[at + 56 : at + 64] = bytes(8)  # when it was stored
                if crc:
                    assert prop_crc_ok(store.log.read(at, record.size)), record.body
                    data[at + record.size - 20 : at + record.size] = bytes(20)
                at += record.size
            logs.append(bytes(data))
            nexts.append([store.next_offset(name, 0) for name in (A, B, "T")])
    assert logs[0] == logs[1]
    assert nexts[0] == nexts[1]


async def test_a_long_batch_makes_no_more_light_queues_than_there_may_be() -> None:
    """Those of ``put`` are counted, and so are those of a batch that is made in slices."""
    async with opened(FaultyEnv(), **LIGHT, lmq_queues_max=1) as store:
        plain = [store.writer.prepare(message("plain")) for _ in range(3)]
        with pytest.raises(Refused, match="maxLmqConsumeQueueNum"):
            store.put_prepared([*plain, store.writer.prepare(_light("no", f"{A},{B}"))])
        assert store.log.end == 0
        store.put_prepared([*plain, store.writer.prepare(_light("1", A))])
        assert store.writer.offsets.light_queues == 1
        with pytest.raises(Refused, match="maxLmqConsumeQueueNum"):
            store.put(_light("no", B))


@pytest.mark.parametrize("topic", [HALF_TOPIC, "rmq_sys_wheel_timer", SCHEDULE_TOPIC, "%RETRY%g", "%DLQ%g"])
async def test_what_waits_or_is_dead_is_in_no_light_queue(topic: str) -> None:
    async with opened(FaultyEnv(), **LIGHT) as store:
        store.put(replace(_light("waits", A), topic=topic, sys_flag=0))
        store.put(_light("there", A))
        store.confirm(store.log.end)
        await store.caught_up()
        assert _bodies(store, A) == [b"there"]
