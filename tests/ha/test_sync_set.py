"""The promise of ha.master.sync_set: a confirmed byte is on every member, late answers or not."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha.master.ack_policy import AckPolicy, Wait
from ha.master.connected_set import ConnectedSet
from model.errors import BrokenInvariantError, PeerError
from model.ids import BrokerId, PhysicalOffset
from tests.fakes.ha.sync_set import NOT_CATCHUP_MS, SELF, STEPS, Model, sync_set, with_slaves


@given(steps=STEPS, mode=st.sampled_from([(True, 1), (False, 1), (False, 2), (False, 3)]))
@settings(max_examples=400)
def test_confirmed_never_passes_a_member_nor_moves_back(
    steps: list[tuple[str, int, int]], mode: tuple[bool, int]
) -> None:
    model = Model(*mode)
    confirmed = replicated = 0
    for what, who, amount in steps:
        model.step(what, who, amount)
        sync = model.sync
        assert confirmed <= sync.confirmed <= sync.end
        assert replicated <= sync.replicated <= sync.end
        confirmed, replicated = sync.confirmed, sync.replicated
        for member in model.members - {SELF}:
            assert confirmed <= model.held[member], f"{member} may be elected and lacks confirmed bytes"


@given(
    steps=STEPS,
    mode=st.sampled_from([(True, 1, 0), (False, 1, 0), (False, 2, 0), (False, 1, 3)]),
    copies_min=st.sampled_from([2, 3]),
)
@settings(max_examples=400)
def test_no_answer_leaves_for_what_fewer_members_have_than_min_in_sync_replicas(
    steps: list[tuple[str, int, int]], mode: tuple[bool, int, int], copies_min: int
) -> None:
    all_ack, ack_count, majority_of = mode
    model = Model(all_ack, ack_count, majority_of=majority_of, copies_min=copies_min)
    for what, who, amount in steps:
        before = model.sync.replicated
        model.step(what, who, amount)
        sync = model.sync
        if sync.replicated > before:
            having = [broker for broker in sync.members - {SELF} if model.held[broker] >= sync.replicated]
            assert 1 + len(having) >= copies_min


def test_a_lone_master_confirms_what_it_has() -> None:
    sync = sync_set(end=50)
    assert (sync.confirmed, sync.replicated) == (50, 50)
    sync.on_append(80)
    assert (sync.confirmed, sync.replicated) == (80, 80)


def test_a_lone_master_confirms_nothing_while_another_may_have_been_elected() -> None:
    holds_lease = True
    sync = sync_set(end=50, holds_lease=lambda: holds_lease)
    assert sync.replicated == 50
    holds_lease = False
    sync.on_append(80)
    assert (sync.confirmed, sync.replicated) == (50, 50)
    holds_lease = True
    sync.on_lease()
    assert (sync.confirmed, sync.replicated) == (80, 80)


def test_members_stand_for_a_lease_while_they_acknowledge_all_there_is() -> None:
    sync = with_slaves(2, 3)
    assert sync.acked_by_all_recently(1000, 1000)
    assert not sync.acked_by_all_recently(1001, 1000), "silent"
    sync.on_append(200)
    sync.on_ack(2, 200, 1500)
    sync.on_ack(3, 100, 1500)
    assert not sync.acked_by_all_recently(1500, 1000), "3 has not got what was there when it was level last"
    sync.on_ack(3, 200, 1600)
    assert sync.acked_by_all_recently(1600, 1000)
    sync.on_disconnect(3)
    assert not sync.acked_by_all_recently(1600, 1000)
    assert not sync_set(end=50).acked_by_all_recently(0, 1000), "a lone master has nobody to acknowledge"
    assert not with_slaves(2, all_ack=False).acked_by_all_recently(0, 1000)


def test_where_outsiders_may_be_elected_members_do_not_stand_for_a_lease() -> None:
    """The master and a member are cut off together, and go on by each other's word while the third, which is
    no member, is elected (enableElectUncleanMaster)."""
    lease = True
    sync = sync_set({SELF, 2}, end=100, may_confirm=lambda all_must: lease)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    assert sync.replicated == 100
    lease = False
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert (sync.confirmed, sync.replicated) == (100, 100)
    lease = True
    sync.on_lease()
    assert (sync.confirmed, sync.replicated) == (200, 200)


def test_every_member_must_acknowledge_before_a_byte_is_confirmed() -> None:
    sync = with_slaves(2, 3)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert sync.confirmed == 100
    sync.on_ack(3, 150, 1)
    assert sync.confirmed == 150


def test_a_lost_member_holds_the_confirmed_offset_until_the_controller_dropped_it() -> None:
    sync = with_slaves(2)
    sync.on_append(200)
    sync.on_disconnect(2)
    assert sync.confirmed == 100
    proposal = sync.propose(NOT_CATCHUP_MS + 1)
    assert proposal is not None
    assert proposal.members == {SELF}
    assert sync.confirmed == 100
    sync.on_view(frozenset({SELF}), 2)
    assert sync.confirmed == 200


def test_a_set_below_min_in_sync_replicas_answers_nothing_and_consumers_go_on_reading() -> None:
    sync = with_slaves(2, copies_min=2)
    assert sync.replicated == 100
    sync.on_append(200)
    sync.on_disconnect(2)
    sync.on_view(frozenset({SELF}), 2)
    assert (sync.replicated, sync.confirmed) == (100, 200), "all that can be elected have it, one broker"
    sync.on_connect(2, 10)
    sync.on_ack(2, 200, 10)
    assert sync.replicated == 100, "not a member yet"
    sync.on_view(frozenset({SELF, 2}), 3)
    assert sync.replicated == 200


def test_more_copies_may_be_asked_for_while_a_master_leads() -> None:
    sync = with_slaves(2, copies_min=1)
    sync.on_disconnect(2)
    sync.on_view(frozenset({SELF}), 2)
    sync.on_append(200)
    assert (sync.replicated, sync.members_to_write) == (200, 1)
    sync.on_copies_min(2)
    sync.on_append(300)
    assert (sync.replicated, sync.members_to_write) == (200, 2), "what was answered stays answered"
    sync.check_invariants()
    sync.on_copies_min(1)
    assert sync.replicated == 300


def test_a_master_about_to_step_down_keeps_members_that_are_not_heard_for_them_to_be_elected() -> None:
    sync = with_slaves(2, 3, copies_min=2)
    late_ms = NOT_CATCHUP_MS + 1
    sync.keeps_set = lambda: True
    for now_ms in range(0, late_ms, 500):
        sync.on_tick(now_ms)
    assert sync.propose(late_ms) is None, "silent"
    assert sync.is_cut_off(late_ms)
    sync.on_disconnect(2)
    assert sync.propose(late_ms) is None, "gone"
    sync.on_append(200)
    assert sync.confirmed == 100, "what they lack is neither answered nor read"
    sync.on_ack(3, 200, late_ms)
    assert not sync.is_cut_off(late_ms)
    proposal = sync.propose(late_ms)
    assert proposal is not None
    assert proposal.members == {SELF, 3}, "two copies are enough"


def test_a_master_that_needs_no_copy_or_leads_since_a_moment_is_not_cut_off() -> None:
    assert not with_slaves(2).is_cut_off(10 * NOT_CATCHUP_MS)
    sync = with_slaves(2, copies_min=2)
    sync.on_disconnect(2)
    assert not sync.is_cut_off(NOT_CATCHUP_MS)
    assert sync.is_cut_off(NOT_CATCHUP_MS + 1)


def test_min_in_sync_replicas_raises_the_number_of_acknowledgements_in_counting_modes() -> None:
    sync = with_slaves(2, 3, all_ack=False, ack_count=1, copies_min=2)
    sync.on_append(200)
    assert sync.replicated == 100
    sync.on_ack(3, 180, 1)
    assert (sync.replicated, sync.confirmed) == (180, 100)
    sync = with_slaves(2, 3, majority_of=3, copies_min=3)
    sync.on_append(200)
    sync.on_ack(3, 200, 1)
    assert sync.replicated == 100
    sync.on_ack(2, 150, 1)
    assert sync.replicated == 150


def test_a_learner_never_counts() -> None:
    sync = sync_set(end=100, all_ack=False, ack_count=2)
    sync.on_connect(2, 0, learner=True)
    sync.on_ack(2, 100, 0)
    assert sync.desired_members(0) == {SELF}
    assert sync.replicated == 0


def test_a_slave_outside_the_set_does_not_make_an_answer_leave() -> None:
    sync = sync_set(end=0, all_ack=False, ack_count=2)
    sync.on_connect(2, 0)
    sync.on_append(100)
    sync.on_ack(2, 100, 0)
    assert sync.replicated == 0
    proposal = sync.propose(0)
    assert proposal is not None
    sync.on_view(proposal.members, 2)
    assert sync.replicated == 100


def test_counting_mode_needs_so_many_members_but_consumers_wait_for_all() -> None:
    sync = with_slaves(2, 3, all_ack=False, ack_count=2)
    sync.on_append(200)
    assert sync.replicated == 100
    sync.on_ack(3, 180, 1)
    assert (sync.replicated, sync.confirmed) == (180, 100)


def test_an_ack_beyond_the_log_or_backwards_ends_the_connection() -> None:
    sync = with_slaves(2)
    with pytest.raises(PeerError, match="beyond"):
        sync.on_ack(2, 101, 1)
    with pytest.raises(PeerError, match="after"):
        sync.on_ack(2, 99, 1)


def test_with_sync_flush_nothing_is_confirmed_that_only_the_masters_memory_holds() -> None:
    sync = sync_set({SELF}, end=100, flushed=60)
    assert (sync.confirmed, sync.replicated) == (60, 60)
    sync.on_flush(100)
    assert (sync.confirmed, sync.replicated) == (100, 100)


def test_a_confirmed_offset_that_moves_back_is_a_broken_promise() -> None:
    sync = with_slaves(2)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    sync.check_invariants()
    sync.check_invariants()
    sync.on_checked()
    sync.confirmed = PhysicalOffset(150)  # as a mistake of ours would have it
    for _ in range(2):  # a check changes nothing, so it says so each time
        with pytest.raises(BrokenInvariantError, match="confirmed moved back from 200 to 150"):
            sync.check_invariants()


def test_a_member_that_came_back_with_less_is_not_counted_for_what_it_had() -> None:
    sync = with_slaves(2)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    sync.on_append(300)
    sync.on_disconnect(2)
    sync.on_connect(2, learner=False, now_ms=2)
    sync.on_ack(2, 120, 3)  # a lost page cache
    sync.check_invariants()
    sync.confirmed = PhysicalOffset(201)  # as a mistake of ours would have it
    with pytest.raises(BrokenInvariantError, match="broker 2 may be elected and acknowledged 120"):
        sync.check_invariants()


def test_a_master_begins_with_what_was_confirmed_and_never_falls_below() -> None:
    sync = sync_set({SELF, 2}, end=100, confirmed=80)
    sync.check_invariants()
    sync.confirmed = PhysicalOffset(79)
    with pytest.raises(AssertionError, match="confirmed moved back from 80 to 79"):
        sync.check_invariants()


BROKEN = [
    pytest.param({"copies_min": 1}, 200, {2: 150, 3: 200}, 200, "beyond confirmed 150", id="all"),
    pytest.param({"copies_min": 3}, 200, {2: 150, 3: 200}, 200, "beyond confirmed 150", id="all, 3 copies"),
    pytest.param({"all_ack": False, "ack_count": 2}, 200, {}, 200, "1 brokers have", id="count"),
    pytest.param({"majority_of": 3}, 200, {}, 200, "1 brokers have", id="majority"),
    pytest.param(
        {"copies_min": 1}, 200, {2: 200, 3: 200}, 201, "beyond the log's end 200", id="no such byte"
    ),
    pytest.param({"copies_min": 1}, 200, {2: 200, 3: 200}, 199, "moved back from 200 to 199", id="back"),
    pytest.param({"majority_of": 3}, 200, {2: 200}, 199, "moved back from 200 to 199", id="back, majority"),
]


@pytest.mark.parametrize(("mode", "end", "acks", "wrong", "text"), BROKEN)
def test_an_answer_for_what_has_not_its_copies_is_a_broken_promise_in_every_mode(
    mode: dict[str, Any], end: int, acks: dict[int, int], wrong: int, text: str
) -> None:
    sync = with_slaves(2, 3, **mode)
    sync.on_append(end)
    for broker_id, acked in acks.items():
        sync.on_ack(broker_id, acked, 1)
    sync.check_invariants()
    sync.on_checked()
    sync.replicated = PhysicalOffset(wrong)  # as a mistake of ours would have it
    with pytest.raises(AssertionError, match=text):
        sync.check_invariants()


@pytest.mark.parametrize("all_ack", [True, False])
def test_with_sync_flush_an_answer_for_what_no_disk_holds_is_a_broken_promise(all_ack: bool) -> None:
    sync = sync_set({SELF}, end=100, flushed=60, all_ack=all_ack)
    sync.check_invariants()
    sync.on_checked()
    sync.replicated = sync.confirmed = PhysicalOffset(61)
    with pytest.raises(AssertionError, match="own copy, 60" if all_ack else "0 brokers have"):
        sync.check_invariants()
    sync.on_flush(100)
    sync.check_invariants()


@pytest.mark.parametrize("mode", [{}, {"all_ack": False}, {"all_ack": False, "ack_count": 2}])
def test_with_sync_flush_slaves_may_have_what_the_masters_disk_lacks(mode: dict[str, Any]) -> None:
    """A copy of a slave is one that counts: the answer waits for the master's disk apart (PendingAcks)."""
    sync = sync_set({SELF, 2, 3}, end=100, flushed=60, **mode)
    for slave in (2, 3):
        sync.on_connect(slave, 0)
        sync.on_ack(slave, 100, 0)
    sync.check_invariants()
    assert sync.replicated == (100 if mode else 60)
    sync.on_append(200)
    sync.on_flush(200)
    sync.check_invariants()


@pytest.mark.parametrize(
    ("wait", "wrong", "text"),
    [
        (Wait.NOBODY, 101, "beyond the log's end 100"),
        (Wait.NOBODY, 99, "moved back from 100 to 99"),
        (Wait.COUNT, 51, "1 brokers have what is answered up to 51, 2 must"),
        (Wait.COUNT, 49, "moved back from 50 to 49"),
    ],
)
def test_without_controllers_an_answer_without_its_copies_is_a_broken_promise(
    wait: Wait, wrong: int, text: str
) -> None:
    policy, end = AckPolicy(wait, acks_min=2), PhysicalOffset(100)
    sync = ConnectedSet(BrokerId(0), policy, end=end, flushed=end, confirmed=end)
    sync.on_connect(BrokerId(2), 0)
    sync.on_ack(BrokerId(2), PhysicalOffset(50), 0)
    sync.check_invariants()
    sync.on_checked()
    sync.replicated = PhysicalOffset(wrong)
    with pytest.raises(AssertionError, match=text):
        sync.check_invariants()


def test_without_controllers_sync_flush_counts_the_masters_copy_as_far_as_its_disk() -> None:
    policy, end = AckPolicy(Wait.NOBODY, synced=True), PhysicalOffset(100)
    sync = ConnectedSet(
        BrokerId(0), policy, end=end, flushed=PhysicalOffset(60), confirmed=PhysicalOffset(60)
    )
    sync.check_invariants()
    sync.on_checked()
    sync.replicated = PhysicalOffset(61)
    with pytest.raises(AssertionError, match="0 brokers have"):
        sync.check_invariants()
