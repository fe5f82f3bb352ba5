"""The promise of flow/dispatching: each confirmed record becomes visible once, whatever was cut before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from model.ids import PhysicalOffset
from store.files.record import Dispatch
from store.flow.dispatching import dispatch
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import message, opened, records_of


def indexed(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The physical offsets that go into the index from now on."""
    indexer = store.flow.dispatcher._indexer
    offsets: list[int] = []
    take, take_packed = indexer.take, indexer.take_packed

    def taken(batch: Sequence[Dispatch], end: int) -> None:
        offsets.extend(one.offset for one in batch)
        take(batch, end)

    def taken_packed(block: Any, first: int, until: int, end: int) -> None:
        offsets.extend(one.offset for one in block.items(first, until))
        take_packed(block, first, until, end)

    monkeypatch.setattr(indexer, "take", taken)
    monkeypatch.setattr(indexer, "take_packed", taken_packed)
    return offsets


async def batch_of(master: MessageStore, count: int) -> tuple[bytes, list[Dispatch]]:
    """The log of a master that took ``count`` messages, and what is to be dispatched of it."""
    puts = master.put([message(f"{number}", uniq=f"U{number}") for number in range(count)])
    dispatcher = master.flow.dispatcher
    data = master.log.read(0, master.log.end)
    found, _ = dispatcher._parser.parse(data, 0, master.log.end)
    assert [one.offset for one in found] == [put.physical_offset for put in puts]
    return data, list(found)


@pytest.mark.parametrize("packs", [True, False])
async def test_a_batch_confirmed_in_parts_is_entered_once(
    packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as store:
        data, found = await batch_of(master, 4)
        if packs:
            store.append_raw(PhysicalOffset(0), data)
        else:
            store.append((data,), len(data), found)
        offsets = indexed(store, monkeypatch)
        for end in (found[1].offset, found[2].offset + 1, len(data)):  # a whole record, a part of one, all
            store.confirm(PhysicalOffset(end))
            await store.caught_up()
        assert offsets == [one.offset for one in found]
        assert [record.body for record in records_of(store)] == [b"0", b"1", b"2", b"3"]


async def test_a_dispatch_that_waited_for_the_rest_of_a_record_goes_on_after_a_cut() -> None:
    """The same confirmed offset stands for other records then: it is not level because it was."""
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        puts = master.put([message("first"), message("a second one of another length")])
        data = master.log.read(0, master.log.end)
        until = puts[1].physical_offset + 10
        slave.append_raw(PhysicalOffset(0), data[:until])
        slave.confirm(PhysicalOffset(until))
        await slave.caught_up()
        assert slave.dispatched == puts[1].physical_offset
        slave.truncate_partial_tail()
        dispatcher = slave.flow.dispatcher
        slave.append_raw(PhysicalOffset(slave.log.end), data[slave.log.end :])
        slave.confirm(PhysicalOffset(until))
        assert not dispatcher.is_level, "nobody has looked yet whether a record ends here now"
        await slave.caught_up()
        slave.confirm(PhysicalOffset(len(data)))
        await slave.caught_up()
        assert slave.dispatched == len(data)


@pytest.mark.parametrize("remembered", [True, False])
async def test_the_time_of_the_last_record_is_that_of_what_was_dispatched(remembered: bool) -> None:
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        data, found = await batch_of(master, 2)
        store = master if remembered else slave
        if not remembered:
            slave.append_raw(PhysicalOffset(0), data)
        assert store.flow.dispatcher.last_timestamp_ms == 0
        store.confirm(store.log.end)
        await store.caught_up()
        assert store.flow.dispatcher.last_timestamp_ms == found[-1].store_timestamp_ms > 0


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_record_that_lies_before_the_end_of_its_queue_is_not_entered(remembered: bool) -> None:
    """Recovery dispatches again what the queues on disk may have: their entries tell up to where."""
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        data, _ = await batch_of(master, 2)
        store = master if remembered else slave
        if not remembered:
            slave.append_raw(PhysicalOffset(0), data)
        queue = store.files.queues.open("T", 0)
        queue.max_physical = len(data)
        store.confirm(store.log.end)
        await store.caught_up()
        assert (queue.max_offset, queue.max_physical) == (0, len(data))


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "ended_by", ["time", "a reader", "the link's end", "a cut", "a close", "a master's own"]
)
async def test_copies_in_quick_succession_are_dispatched_together(
    ended_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "COPIED_S", 0.05 if ended_by == "time" else 60.0)
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as store:
        data, found = await batch_of(master, 4)
        store.append_raw(PhysicalOffset(0), data)
        store.confirm_copied(found[1].offset)
        await turns()
        assert store.dispatched == found[1].offset, "it was quiet before"
        for one in found[2:]:
            store.confirm_copied(one.offset)
            await turns()
        assert store.confirmed == found[3].offset
        assert store.dispatched == found[1].offset, "nobody waits for them here"
        expected = found[3].offset
        if ended_by == "time":
            await asyncio.sleep(0.1)
        elif ended_by == "a reader":
            store.on_arrive.append(lambda arrived: None)
            store.confirm_copied(PhysicalOffset(len(data)))
            expected = PhysicalOffset(len(data))
        elif ended_by == "the link's end":
            store.hurry()
        elif ended_by == "a cut":
            store.truncate(expected := found[2].offset)
            store.hurry()
        elif ended_by == "a close":
            await store.close()
        else:
            store.confirm(expected := PhysicalOffset(len(data)))
        await turns()
        assert store.dispatched == expected
        store.check_invariants()


async def test_copies_are_dispatched_once_in_a_while_however_often_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "COPIED_S", 0.02)
    loop = asyncio.get_running_loop()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        taken.begin()

    taken = dispatch._Turns(step)
    began_s = loop.time()
    for _ in range(200):
        taken.for_copies(at_once=False)
        await asyncio.sleep(0.001)
    assert 2 <= steps <= (loop.time() - began_s) / 0.02 + 1


async def test_many_copies_are_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "COPIED_S", 60.0)
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as store:
        data, found = await batch_of(master, 4)
        monkeypatch.setattr(dispatch, "COPIED_BYTES", len(data) - found[1].offset)
        store.append_raw(PhysicalOffset(0), data)
        store.confirm_copied(found[1].offset)
        await turns()
        store.confirm_copied(PhysicalOffset(len(data) - 1))
        await turns()
        assert store.dispatched == found[1].offset
        store.confirm_copied(PhysicalOffset(len(data)))
        await turns()
        assert store.dispatched == len(data)
