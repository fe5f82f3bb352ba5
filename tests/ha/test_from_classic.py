"""The promise to a log without epochs under a master with them: it goes on where its end is the master's."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.ha.group import Group, Node
from tests.waiting import until

DATA = b"0123456789" * 2048


def group_of(theirs: bytes, ours: bytes) -> Group:
    """A master that led two epochs over ``theirs``, to be elected, and a slave that holds ``ours``."""
    master, slave = Node(1), Node(2)
    master.store.grow(theirs)
    for epoch, start in ((1, 0), (2, 5000), (3, 6000)):
        master.store.epochs.append(epoch, start)
    slave.store.grow(ours)
    slave.store.confirm(slave.store.log.end)
    group = Group(master, slave)
    group.epoch = 3
    return group


@pytest.mark.parametrize("end", [10, 4090, 6000, 10_000, 12_280, 20_480])
async def test_a_log_with_the_same_end_takes_over_the_epochs_and_goes_on(end: int) -> None:
    async with group_of(DATA, DATA[:end]) as group:
        await group.elect(1)
        group.master.store.grow(b"more......")
        await group.full()
        group.assert_identical()
        assert group.nodes[2].store.cuts == []


@pytest.mark.parametrize("end", [10, 4090, 20_480])
async def test_a_log_with_another_end_acknowledges_nothing_of_it_and_is_kept(end: int) -> None:
    """20,480: it ends with a segment, where a classic link compares nothing."""

    ours = DATA[: end - 10] + b"otherbytes"
    async with group_of(DATA, ours) as group:
        await group.elect(1)
        await until(lambda: group.nodes[2].ha.needs_reseed is not None)
        assert bytes(group.nodes[2].store.log.data) == ours
        assert group.nodes[2].store.epochs.entries == []
        assert group.members == {1}
        assert not group.nodes[2].ha.agreed


async def test_a_log_that_is_longer_than_the_masters_is_kept() -> None:
    async with group_of(DATA, DATA + b"0123456789") as group:
        await group.elect(1)
        await until(lambda: group.nodes[2].ha.needs_reseed is not None)
        group.master.store.grow(b"9876543210" * 2000)
        await asyncio.sleep(0.3)
        assert group.nodes[2].ha.needs_reseed is not None, "also when the master is beyond it by now"
        assert group.nodes[2].store.log.end == len(DATA) + 10
        assert group.members == {1}
