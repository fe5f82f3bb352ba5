"""The promise to a slave that ends in the middle of a record, as frames of the HA link are cut anywhere: what
is there of it counts as not yet written, however much of it was flushed, and nothing of it as damage."""

from __future__ import annotations

from typing import Any

import pytest

from model.ids import PhysicalOffset
from store.files.damage import DamagedRange, Lost
from store.files.record import walk
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import abandoned, fill, message, opened, records_of

KEYS: dict[str, Any] = {"segment_bytes": 1 << 14}


async def log_of_a_master() -> tuple[bytes, int]:
    """A log, and where its last record begins; its properties are long."""
    async with opened(FaultyEnv(), **KEYS) as store:
        await fill(store, 5, queues=1)
        store.put(message(b"last".ljust(900, b"x"), keys="k" * 300))
        data = bytes(store.log.read(0, store.log.end))
        return data, list(walk(data, 0))[-1].physical_offset


async def slave_that_ended_at(cut: int, log: bytes, *, clean: bool) -> FaultyDisk:
    """The disk of a slave that had flushed so much of ``log``, and had noted that, when it stopped."""
    env = FaultyEnv()

    async def copy(store: MessageStore) -> None:
        await follow(store, log, cut)
        store.log.sync()
        await store.background.housekeeping.write_checkpoint()

    if clean:
        async with opened(env, controller_mode=True, **KEYS) as store:
            await copy(store)
        return env.disk
    await abandoned(env, copy, controller_mode=True, **KEYS)
    return env.disk.killed()


async def follow(store: MessageStore, log: bytes, until: int) -> None:
    store.append_raw(store.log.end, log[store.log.end : until])
    store.confirm(store.log.end)
    await store.caught_up()


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("share", [0.01, 0.04, 0.08, 0.3, 0.72, 0.76, 0.9, 0.999])
async def test_a_slave_that_ended_in_a_record_ends_before_it_and_copies_it_again(
    share: float, clean: bool
) -> None:
    log, last = await log_of_a_master()
    cut = last + int((len(log) - last) * share)
    disk = await slave_that_ended_at(cut, log, clean=clean)
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        assert store.log.end == last
        assert store.damage.ranges == []
        assert store.was_longer.end is None, "all that counted is there"
        await follow(store, log, len(log))
        assert store.why_not_writable is None
        assert [r.queue_offset for r in records_of(store)] == list(range(6))
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        assert (store.log.end, store.damage.ranges) == (len(log), [])


@pytest.mark.parametrize("byte", [0, 2, 3, 5, 30, 87, 200])
async def test_rot_in_a_last_record_that_was_safe_is_damage_as_ever(byte: int) -> None:
    """Also in its lengths: a record that was whole fits into what was flushed."""
    log, last = await log_of_a_master()
    disk = await slave_that_ended_at(len(log), log, clean=False)
    (segment,) = disk.listdir("/store/commitlog")
    disk.nodes[f"/store/commitlog/{segment}"].cache[last + byte] ^= 4
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        assert [(one.begin, one.until) for one in store.damage.ranges] == [(last, len(log))]
        assert store.log.end == len(log)


async def test_a_range_that_was_noted_for_a_torn_record_is_forgotten_once_the_record_is_whole() -> None:
    """As stores have it that were opened before this was known: the rest of the record came behind it."""
    log, last = await log_of_a_master()
    disk = await slave_that_ended_at(len(log), log, clean=True)
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        store.damage.note([DamagedRange(last, last + 500, "unreadable_region")])
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        assert store.damage.ranges == []
        assert [r.queue_offset for r in records_of(store)] == list(range(6))


async def test_what_is_confirmed_in_the_middle_of_a_record_confirms_nothing_of_it() -> None:
    """A slave may not keep a successor from cutting it: no record that counted would go."""
    log, last = await log_of_a_master()
    async with opened(FaultyEnv(), controller_mode=True, **KEYS) as store:
        store.append_raw(store.log.end, log)
        store.confirm(PhysicalOffset(last + 500))
        assert store.confirmed_records_end == store.confirmed, "it may be the end of one not looked at yet"
        await store.caught_up()
        assert (store.confirmed, store.confirmed_records_end) == (last + 500, last)
        store.confirm(PhysicalOffset(len(log)))
        await store.caught_up()
        assert store.confirmed_records_end == len(log)


async def copied_from(disk: FaultyDisk, log: bytes) -> tuple[list[tuple[int, int]], int, list[Lost]]:
    """Open the slave, let it copy the rest of ``log`` and mend all from there. What was damaged when it had
    opened, where its log ended, and what its ledger said was lost before the repair."""
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        found, end = [(one.begin, one.until) for one in store.damage.ranges], store.log.end
        await follow(store, log, len(log))
        lost = [one for item in store.damage.ranges for one in item.lost]
        for wanted in store.repairer.wanted():
            await store.repairer.mend(wanted, log[wanted.begin : wanted.until])
        assert (store.damage.ranges, store.why_not_writable) == ([], None)
        assert store.log.read(0, store.log.end) == log
        assert [r.queue_offset for r in records_of(store)] == list(range(6))
        return found, end, lost


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("byte", [0, 2, 3, 5, 30, 87, 120])
async def test_rot_before_a_record_that_came_in_part_costs_that_record_alone(byte: int, clean: bool) -> None:
    log, last = await log_of_a_master()
    before = list(walk(log, 0))[-2].physical_offset
    disk = await slave_that_ended_at(last + 300, log, clean=clean)
    (segment,) = disk.listdir("/store/commitlog")
    disk.nodes[f"/store/commitlog/{segment}"].cache[before + byte] ^= 4
    found, end, lost = await copied_from(disk, log)
    assert (found, end) == ([(before, last)], last)
    assert {one.offset for one in lost} <= {before}


@pytest.mark.parametrize("byte", [3, 5])
async def test_where_nothing_tells_where_a_partial_record_began_its_rest_is_damage_of_the_same_range(
    byte: int,
) -> None:
    """No replica has whole records for either part alone."""
    log, _ = await log_of_a_master()
    rotten, partial, _ = [record.physical_offset for record in walk(log, 0)][-3:]
    disk = await slave_that_ended_at(partial + 20, log, clean=False)
    (segment,) = disk.listdir("/store/commitlog")
    disk.nodes[f"/store/commitlog/{segment}"].cache[rotten + byte] ^= 4
    found, end, _ = await copied_from(disk, log)
    assert found == [(rotten, end)]
    assert end == (partial if byte == 5 else partial + 20), "its lengths tell where it ends, or nothing does"


async def test_two_ranges_that_an_older_version_noted_of_one_are_one_after_a_start() -> None:
    log, last = await log_of_a_master()
    starts = [record.physical_offset for record in walk(log, 0)]
    disk = await slave_that_ended_at(len(log), log, clean=True)
    (segment,) = disk.listdir("/store/commitlog")
    for at in (starts[1] + 5, starts[3] + 5, starts[4] + 5):
        disk.nodes[f"/store/commitlog/{segment}"].cache[at] ^= 4
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        store.damage.clear(store.damage.ranges[:1])
        middle = starts[2] + 50
        for begin, until in ((starts[1], middle), (middle, starts[3]), (starts[3], starts[4])):
            store.damage.note([DamagedRange(begin, until, "unreadable_region")])
    async with opened(FaultyEnv(disk), controller_mode=True, **KEYS) as store:
        found = [(one.begin, one.until) for one in store.damage.ranges]
        assert found == [(starts[1], starts[3]), (starts[3], last)], "a record begins at the second"
