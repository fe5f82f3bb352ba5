"""The promise of ha.service: every slave becomes and stays a byte-identical copy, and only then it counts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.master.log_reader import Budget
from ha.service import HaService
from ha.slave.follower import State
from model.errors import Unknown
from model.ids import BrokerId, Epoch
from tests.fakes.ha.group import Group, Node
from tests.fakes.ha.store import FakeStore
from tests.plain import broker_ids
from tests.waiting import until


async def test_slaves_copy_what_the_master_has_and_gets_and_join() -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        await group.elect(1)
        group.master.store.grow(b"0123456789" * 5000)
        await group.full()
        replicated: list[int] = []
        group.master.ha.on_replicated.append(replicated.append)
        for _ in range(50):
            group.master.store.grow(b"abcdefghij")
            await asyncio.sleep(0)
        end = group.master.store.log.end
        await until(lambda: group.master.ha.replicated == end, "every member has it")
        await group.level()
        assert replicated == sorted(replicated)
        assert replicated[-1] == end
        group.assert_identical()
        assert [slave["id"] for slave in group.master.ha.slaves()] == [2, 3]
        assert all(slave["lagBytes"] == 0 for slave in group.master.ha.slaves())


async def test_a_confirmed_offset_reaches_idle_slaves_without_data() -> None:
    async with Group(Node(1, ha_heartbeat_ms=60_000, ha_housekeeping_ms=60_000), Node(2)) as group:
        await group.elect(1)
        await group.full()
        group.master.store.grow(b"0123456789")
        # The frame with the data cannot know of the ack it causes; no heartbeat is due for a minute.
        await until(lambda: group.nodes[2].store.confirmed == 10, "the slave hears of the confirmation")


async def test_a_divergent_suffix_is_cut_and_the_logs_end_identical() -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        await group.elect(1)
        group.master.store.grow(b"common....")
        await group.full()
        await group.nodes[2].ha.become_fenced()
        await group.nodes[3].ha.become_fenced()
        group.nodes[1].store.grow(b"lost......" * 7)  # no slave ever gets this
        await group.elect(2, followers=False)
        await group.follow(3)
        group.nodes[2].store.grow(b"won......." * 900)
        await until(lambda: group.nodes[3].store.log.end == group.master.store.log.end)
        await group.follow(1)
        await group.full()
        assert group.nodes[1].store.cuts == [10]
        group.assert_identical()


async def test_elections_without_a_write_do_not_stop_replication() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        group.master.store.grow(b"0123456789")
        await group.full()
        for master in (2, 1, 2, 1):
            await group.elect(master)
            await group.full()
        group.master.store.grow(b"9876543210")
        await group.full()
        group.assert_identical()
        assert [entry.epoch for entry in group.nodes[2].store.epochs.entries] == [1, 5]


async def test_a_master_elected_again_keeps_its_slaves_and_tells_them_the_epoch() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        group.master.store.grow(b"0123456789")
        await group.full()
        addresses = [slave["address"] for slave in group.master.ha.slaves()]
        await group.elect(1)
        await group.full()
        assert [slave["address"] for slave in group.master.ha.slaves()] == addresses
        await until(lambda: group.nodes[2].store.epochs.last == (2, 10), "the slave notes the epoch")
        group.assert_identical()


async def test_epochs_of_a_few_bytes_reach_a_new_slave() -> None:
    nodes = [Node(1), Node(2)]
    async with Group(*nodes) as group:
        for _ in range(5):
            await group.elect(1, followers=False)
            group.master.store.grow(b"0123456789")
        await group.follow(2)
        await group.full()
        group.assert_identical()


async def test_a_half_record_left_by_a_broken_link_is_completed_on_reconnect() -> None:
    async with Group(Node(1), Node(2)) as group:
        group.nodes[2].store.log.data += b"0123456789012"
        group.nodes[2].store.epochs.append(1, 0)
        group.nodes[1].store.epochs.append(1, 0)
        group.nodes[1].store.log.data += b"0123456789" * 3
        group.epoch = 1
        await group.elect(1)
        await group.full()
        group.assert_identical()


async def test_a_dead_slave_leaves_at_once_and_writes_go_on() -> None:
    async with Group(Node(1, ha_not_catchup_ms=60_000), Node(2), Node(3)) as group:
        await group.elect(1)
        await group.full()
        await group.nodes[3].ha.become_fenced()
        group.master.store.grow(b"0123456789")
        await until(lambda: group.members == {1, 2}, "the dead slave is dropped")
        await until(lambda: group.master.ha.replicated == 10, "writes go on without it")
        await group.follow(3)
        await group.full()


async def test_two_slaves_that_die_together_leave_together_and_writes_go_on() -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        await group.elect(1)
        await group.full()
        await asyncio.gather(group.nodes[2].ha.stop(), group.nodes[3].ha.stop())
        group.master.store.grow(b"0123456789")
        await until(lambda: group.members == {1}, "neither removal undoes the other")
        await until(lambda: group.master.ha.replicated == 10)
        assert group.proposals[-1] == {1}


async def test_a_frozen_slave_leaves_the_set_while_its_connection_stays_open() -> None:
    """Sent is not acknowledged: the original counts it as caught up until the connection times out."""

    quick = {"ha_not_catchup_ms": 300, "ha_housekeeping_ms": 60_000}
    async with Group(Node(1, **quick), Node(2, ha_housekeeping_ms=60_000)) as group:
        await group.elect(1)
        await group.full()
        frozen = group.nodes[2].ha._follower
        assert frozen is not None
        assert frozen._session is not None
        assert frozen._session.link._transport is not None
        frozen._session.link._transport.pause_reading()
        group.master.store.grow(b"0123456789")
        await until(lambda: group.members == {1}, "it leaves")
        await until(lambda: group.master.ha.replicated == 10, "and the answer does")
        assert [slave["id"] for slave in group.master.ha.slaves()] == [2], "still connected"


async def test_a_machine_that_stood_still_ends_no_link_and_empties_no_set() -> None:
    async with Group(*(Node(i, ha_housekeeping_ms=400, ha_not_catchup_ms=400) for i in (1, 2, 3))) as group:
        await group.elect(1)
        await group.full()
        links, count = dict(group.master.ha.links.by_id), len(group.proposals)
        proposals = group.master.ha._proposals
        assert proposals is not None
        for _ in range(3):
            time.sleep(1)  # noqa: ASYNC251 - every broker at once, and all their timers with them
            proposals._wake.set()  # as an answer does that is read before the timers run
            await asyncio.sleep(0.2)
        assert group.master.ha.links.by_id == links
        assert len(group.proposals) == count
        group.master.store.grow(b"0123456789")
        await group.level()


async def test_a_fresh_group_has_confirmed_nothing_and_takes_its_first_record() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        await group.full()
        assert [node.store.confirmed for node in group.nodes.values()] == [0, 0], "0, not -1"
        assert group.master.ha.replicated == 0
        group.master.store.grow(b"0123456789")
        await group.level()
        assert group.master.store.confirmed == 10


async def test_a_refused_proposal_is_made_again_and_holds_nobody_meanwhile() -> None:
    async with Group(Node(1), Node(2)) as group:
        answers = ["no", "unknown", "no connection"]

        async def propose(members: frozenset[BrokerId], base: int) -> tuple[frozenset[BrokerId], int] | None:
            answer = answers.pop(0) if answers else "yes"
            if answer == "no":
                return None
            if answer == "unknown":
                raise Unknown("no answer in time")
            if answer == "no connection":
                raise ConnectionRefusedError("nobody listens")
            return await group.propose(members, base)

        group.epoch, group.set_epoch, group.master_id, group.members = 1, 1, 1, broker_ids({1})
        node = group.nodes[1]
        node.store.epochs.append(1, 0)
        await node.ha.become_master(BrokerId(1), Epoch(1), broker_ids({1}), 1, propose)
        await group.follow(2)
        node.store.grow(b"0123456789")
        await group.full()
        assert answers == []


async def test_min_in_sync_replicas_refuses_until_a_slave_joined() -> None:
    async with Group(Node(1, min_in_sync_replicas=2), Node(2)) as group:
        await group.elect(1, followers=False)
        refused = group.master.ha.refuse()
        assert refused is not None
        assert refused.code == 1
        assert "in-sync replicas not enough" in refused.remark
        await group.follow(2)
        await group.full()
        assert group.master.ha.refuse() is None


async def test_in_majority_mode_writes_are_refused_while_no_majority_is_in_sync() -> None:
    async with Group(Node(1, majority_ack=True, total_replicas=3), Node(2), Node(3)) as group:
        await group.elect(1, followers=False)
        refused = group.master.ha.refuse()
        assert refused is not None
        assert "1 of 2" in str(refused)
        await group.follow(2)
        await until(lambda: group.master.ha.refuse() is None, "two of three are in sync")


async def test_a_learner_copies_but_never_joins() -> None:
    async with Group(Node(1), Node(2, async_learner=True)) as group:
        await group.elect(1)
        group.master.store.grow(b"0123456789" * 10)
        await group.level()
        for _ in range(5):
            group.master.store.grow(b"0123456789")
            await group.level()
        assert group.members == {1}
        assert group.proposals == []


async def test_with_sync_flush_a_slave_acknowledges_only_what_it_synced() -> None:
    async with Group(Node(1), Node(2, flush_disk_type="SYNC_FLUSH")) as group:
        await group.elect(1)
        await group.full()
        slave = group.nodes[2].store
        slave.auto_flush = False
        group.master.store.grow(b"0123456789")
        await until(lambda: slave.synced_to == 10, "the slave asks for a sync")
        assert slave.log.end == 10
        assert group.master.ha.replicated == 0
        slave.flush()
        await until(lambda: group.master.ha.replicated == 10, "synced, so acknowledged")


async def test_with_sync_flush_a_slave_with_an_unsynced_log_connects_where_it_ends() -> None:
    async with Group(Node(1), Node(2, flush_disk_type="SYNC_FLUSH")) as group:
        group.nodes[1].store.log.data += b"0123456789" * 4
        group.nodes[1].store.epochs.append(1, 0)
        group.epoch = 1
        group.nodes[2].store.log.data += b"0123456789" * 2
        group.nodes[2].store.epochs.append(1, 0)
        await group.elect(1)
        await group.full()
        group.assert_identical()


async def test_a_slave_with_a_foreign_log_says_so_and_keeps_it() -> None:
    rocketmq_peer = FakeStore()
    rocketmq_peer.log.data += b"something " * 3
    rocketmq_peer.epochs.append(7, 0)
    rocketmq_peer.confirmed = 20
    async with Group(Node(1), Node(2, rocketmq_peer)) as group:
        group.epoch = 7
        await group.elect(1)
        group.master.store.grow(b"0123456789" * 9)
        slave = group.nodes[2].ha
        await until(lambda: slave.needs_reseed, "the slave tells that it must be re-seeded")
        assert slave.status()["following"]["state"] == "needs_reseed"
        assert "no consistent point" in (slave.needs_reseed or "")
        assert bytes(rocketmq_peer.log.data) == b"something " * 3
        assert group.members == {1}


async def test_flow_control_bounds_what_slaves_are_sent_a_second() -> None:
    limit = {"ha_flow_control": True, "ha_bytes_per_s_max": 100_000}
    async with Group(Node(1, **limit), Node(2)) as group:
        await group.elect(1)
        await group.full()
        begin_ms = group.master.env.monotonic_ms()
        group.master.store.grow(b"0123456789" * 5000)
        await group.full()
        # 50 000 bytes at 100 000 a second, one tenth of a second at once.
        assert group.master.env.monotonic_ms() - begin_ms >= 300
        group.assert_identical()


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1 << 20)), max_size=50))
def test_a_budget_never_gives_more_than_its_rate(asks: list[tuple[int, int]]) -> None:
    now_ms = 0.0
    budget = Budget(100_000, lambda: now_ms)
    given_bytes = 0
    for wait_ms, wanted in asks:
        now_ms += wait_ms
        taken = budget.take(wanted)
        assert 0 <= taken <= wanted
        given_bytes += taken
        assert given_bytes <= 10_000 + now_ms * 100 + 1


async def test_a_first_master_that_confirmed_nothing_follows_one_that_has_none_of_it() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        await group.full()
        await group.nodes[2].ha.become_fenced()
        group.nodes[1].store.grow(b"unheard...")
        await group.elect(2)
        group.master.store.grow(b"0123456789" * 3)
        await group.full()
        group.assert_identical()


async def test_a_slave_whose_range_the_master_deleted_says_so_and_an_empty_one_is_filled() -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        await group.elect(1, followers=False)
        master = group.master.store
        behind = group.nodes[2].store
        behind.log.data += b"0123456789" * 10
        behind.epochs.append(1, 0)
        master.grow(b"0123456789" * 2000)
        del master.log.data[:8192]
        master.log.min_offset = 8192
        await group.follow(2)
        await group.follow(3)
        await until(lambda: group.nodes[2].ha.needs_reseed, "the slave behind tells it")
        await until(lambda: group.members == {1, 3}, "the empty slave is filled and joins")
        assert group.nodes[3].store.log.min_offset == 8192
        assert group.nodes[3].store.log.data == master.log.data
        assert behind.log.end == 100


async def test_a_slave_whose_disk_refuses_says_so_and_goes_on_when_it_recovers() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        await group.full()
        slave = group.nodes[2]
        slave.store.fail_appends = True
        group.master.store.grow(b"0123456789")
        await until(lambda: slave.ha.status()["following"]["state"] == State.BROKEN, "broken is visible")
        await until(lambda: group.members == {1}, "it left the SyncStateSet")
        slave.store.fail_appends, slave.store.why_not_writable = False, None
        await group.full()


async def test_a_slave_goes_on_whatever_went_wrong_with_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Group(Node(1), Node(2)) as group:
        append, failures = FakeStore.append_raw, [RuntimeError("nobody foresaw this")]

        def broken(self: FakeStore, offset: int, data: bytes) -> None:
            if failures:
                raise failures.pop()
            append(self, offset, data)

        monkeypatch.setattr(FakeStore, "append_raw", broken)
        await group.elect(1)
        group.master.store.grow(b"0123456789")
        await group.full()
        assert not failures
        group.assert_identical()


async def test_a_master_goes_on_proposing_whatever_went_wrong_with_one_proposal() -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        propose, failures = group.propose, [RuntimeError("nobody foresaw this")]

        async def broken(members: frozenset[BrokerId], base: int) -> tuple[frozenset[BrokerId], int] | None:
            if failures:
                raise failures.pop()
            return await propose(members, base)

        group.propose = broken  # type: ignore[method-assign]
        await group.elect(1)
        await group.full()
        assert not failures


async def test_a_slave_moves_to_a_new_master_at_once() -> None:
    async with Group(Node(1), Node(2), Node(3)) as group:
        await group.elect(1)
        group.master.store.grow(b"0123456789")
        await group.full()
        await group.nodes[1].ha.stop()
        del group.nodes[1]
        await group.elect(2)
        group.master.store.grow(b"abcdefghij")
        await group.full()
        group.assert_identical()


async def test_a_broker_that_is_not_master_turns_slaves_away() -> None:
    async with Group(Node(1), Node(2)) as group:
        group.master_id, group.epoch = 1, 1
        await group.follow(2)
        slave = group.nodes[2].ha
        await until(lambda: slave.status()["following"]["reason"] not in (None, "stopped"))
        assert slave.status()["following"]["state"] in (State.CONNECTING, State.HANDSHAKE)
        await group.nodes[2].ha.become_slave(BrokerId(2), Epoch(1), None)
        await until(lambda: slave.status()["following"]["state"] == State.NO_MASTER)


@pytest.mark.parametrize("mode", ["all", "count", "majority", "async"])
async def test_what_an_answer_waits_for_follows_the_mode(mode: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "all": {},
        "majority": {"majority_ack": True, "total_replicas": 3},
        "count": {"all_ack_in_sync_state_set": False, "in_sync_replicas": 2},
        "async": {"broker_role": "ASYNC_MASTER"},
    }

    async with Group(Node(1, ha_not_catchup_ms=60_000, **settings[mode]), Node(2), Node(3)) as group:
        await group.elect(1)
        await group.full()
        held = group.nodes[3].store
        frozen = group.nodes[3].ha._follower  # a slave that stops reading, its connection still open
        assert frozen is not None
        assert frozen._session is not None
        assert frozen._session.link._transport is not None
        frozen._session.link._transport.pause_reading()
        group.master.store.grow(b"0123456789")
        await until(lambda: group.nodes[2].store.log.end == 10)
        if mode != "all":
            await until(lambda: group.master.ha.replicated == 10)
        else:
            await asyncio.sleep(0.05)
            assert group.master.ha.replicated == 0
        assert group.master.store.confirmed == 0, "consumers wait for every member in each mode"
        assert held.log.end == 0
        frozen._session.link._transport.resume_reading()
        await group.full()


def test_a_view_that_outruns_an_answer_is_no_refusal(caplog: pytest.LogCaptureFixture) -> None:
    class Hasty(Group):
        async def propose(
            self, members: frozenset[BrokerId], base: int
        ) -> tuple[frozenset[BrokerId], int] | None:
            answer = await super().propose(members, base)
            assert answer is not None
            self.master.ha.adopt(*answer)
            return answer

    async def run() -> None:
        async with Hasty(Node(1), Node(2)) as group:
            await group.elect(1)
            await group.full()

    asyncio.run(run())
    assert "was refused" not in caplog.text


async def test_with_controllers_nothing_is_confirmed_before_the_lease_is_wired() -> None:
    """A forgotten wire is safe: no write is taken, nothing is answered."""
    async with Group(Node(1, enable_controller_mode=True), Node(2)) as group:
        await group.elect(1)
        master = group.master.ha
        await until(lambda: len(master.slaves()) == 1, "the slave is there")
        group.master.store.grow(b"x" * 10)
        refused = master.refuse()
        assert refused is not None
        assert refused.code == 14
        assert master.replicated == 0
        master.conditions.holds_lease = lambda: True
        master.on_lease()
        assert master.refuse() is None


@pytest.mark.parametrize(("timeout_ms", "within_ms"), [(1500, 1200), (600_000, 8000)])
def test_the_word_of_all_members_is_worth_as_long_as_a_lease(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int, within_ms: int
) -> None:
    """A lease has an end that no key moves; what stands for one is not worth more."""
    node = Node(1, controller_heartbeat_timeout_ms=timeout_ms)
    asked: list[float] = []

    class Acked:
        def acked_by_all_recently(self, now_ms: float, within_ms: float) -> bool:
            asked.append(within_ms)
            return True

    monkeypatch.setattr(node.ha.links, "replicas", Acked())
    node.ha.conditions.acks_replace_lease = lambda: True
    assert node.ha.acked_by_all_recently()
    assert asked == [within_ms]


async def test_a_slave_keeps_no_house_until_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Counter[HaService] = Counter()
    tick = HaService._tick

    def noted(self: HaService) -> None:
        ticks[self] += 1
        tick(self)

    monkeypatch.setattr(HaService, "_tick", noted)
    async with Group(Node(1), Node(2)) as group:
        first, second = group.nodes[1].ha, group.nodes[2].ha
        await group.elect(1)
        await group.full()
        rested = ticks[second]
        until_ticks = ticks[first] + 4
        await until(lambda: ticks[first] >= until_ticks, "the master looks at its links")
        assert ticks[second] == rested
        await group.elect(2)
        await until(lambda: ticks[second] >= rested + 4, "it leads, and looks at its links")


async def test_a_connection_to_a_slave_that_says_nothing_ends() -> None:
    async with Group(Node(1), Node(2, ha_heartbeat_ms=50, ha_housekeeping_ms=200)) as group:
        await group.elect(1)
        await group.full()
        reader, writer = await asyncio.open_connection("127.0.0.1", group.nodes[2].ha.port)
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
