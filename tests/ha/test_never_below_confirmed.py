"""The promise: a log is not cut below what is confirmed on it, and a broken promise stops the broker."""

from __future__ import annotations

import asyncio

import pytest

from ha.master.sync_set import SyncSet
from ha.service import HaService
from ha.slave.follower import State
from model.ids import PhysicalOffset
from tests.fakes.ha.group import Group, Node
from tests.waiting import until

RECORD = b"0123456789"


async def confirmed_on_both(group: Group) -> None:
    await group.elect(1)
    await group.full()
    group.master.store.grow(RECORD * 5)
    await group.level()


def state_of(ha: HaService) -> tuple[str, str]:
    following = ha.status()["following"]
    return following["state"], following["reason"] or ""


@pytest.mark.parametrize("auto_reseed", [False, True])
@pytest.mark.parametrize("written_since", [0, 20])
async def test_a_successor_without_confirmed_records_cuts_nothing_until_an_operator_spoke(
    written_since: int, auto_reseed: bool
) -> None:
    """As after an unclean election, or when the successor's disk lost what it had acknowledged."""
    async with Group(Node(1, auto_reseed=auto_reseed), Node(2)) as group:
        await confirmed_on_both(group)
        lost, kept = group.nodes[2], group.nodes[1]
        await lost.ha.become_fenced()
        lost.store.truncate(30)
        await group.elect(2)
        if written_since:
            lost.store.grow(RECORD * written_since)
        await until(lambda: kept.ha.needs_reseed is not None, "it waits for an operator")
        state, reason = state_of(kept.ha)
        assert state == State.NEEDS_RESEED
        assert "leaves ours at 30, and ours is confirmed up to 50" in reason
        await asyncio.sleep(0.2)
        assert bytes(kept.store.log.data) == RECORD * 5
        assert kept.store.put_asides == []
        assert group.members == {2}, "it is no member meanwhile"
        assert kept.env.events.totals["cut_refused"] == 1, "told once, not with each try"
        # The operator decides for the longer log: its broker leads again, the other one copies it.
        if not written_since:
            await group.elect(1)
            await group.full()
            group.assert_identical()


async def test_a_slave_of_a_real_master_goes_on_by_its_word_and_by_its_successors() -> None:
    # A real one confirms what it alone has (allAckInSyncStateSet=false), so confirmed proves nothing there.
    async with Group(Node(1), Node(2)) as group:
        await confirmed_on_both(group)
        lost, slave = group.nodes[2], group.nodes[1]
        await lost.ha.become_fenced()
        lost.store.truncate(30)
        slave.ha.expect_master(rocketmq_peer=True)
        await group.elect(2)
        await group.level()
        assert slave.store.cuts == [30]
        # Level it is as soon as it is cut; that it followed a real one counts from the first frame on.
        await until(lambda: slave.ha.follows, "it follows the real one")
        # The next one is of ours; what is confirmed here is still the real one's word.
        slave.ha.expect_master(rocketmq_peer=False)
        await slave.ha.become_fenced()
        await lost.ha.become_fenced()
        lost.store.truncate(20)
        lost.store.epochs.truncate_suffix(20)
        await group.elect(2)
        await group.level()
        assert slave.store.cuts == [30, 20]


async def test_what_was_not_confirmed_is_still_cut() -> None:
    async with Group(Node(1), Node(2)) as group:
        await confirmed_on_both(group)
        old = group.nodes[1]
        await group.nodes[2].ha.become_fenced()
        old.store.grow(RECORD)
        await group.elect(2)
        await group.full()
        assert old.store.cuts == [50]
        group.assert_identical()


async def test_a_broken_promise_of_replication_is_told_and_nothing_is_answered_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Group(Node(1), Node(2)) as group:
        await confirmed_on_both(group)
        ha = group.master.ha
        told: list[BaseException] = []
        ha.on_broken.append(told.append)
        assert ha.refuse() is None
        assert isinstance(ha.sync, SyncSet)
        ha.sync.confirmed = PhysicalOffset(60)  # as a mistake of ours would have it
        group.master.store.grow(RECORD * 2)
        await until(lambda: ha.broken is not None)
        await asyncio.sleep(0.1)
        assert ha.replicated == 50
        assert group.master.store.confirmed == 50
        refused = ha.refuse()
        assert refused is not None
        assert refused.code == 14
        assert len(told) == 1
        assert (
            "fenced until a restart: a promise of replication is broken: broker 2 may be elected"
            in caplog.text
        )
        assert group.master.env.events.totals["invariant_broken"] == 1
