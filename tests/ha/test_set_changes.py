"""The promise of a changing SyncStateSet: who keeps up is in it, who does not holds nobody up for long."""

import pytest
from hypothesis import given, settings

from ha.master.membership import REFUSED_MS, UNKNOWN_HOLD_MS
from ha.master.sync_set import JOIN_LAG_MS, JOINING_MS, Leadership
from model.ids import Epoch, PhysicalOffset
from tests.fakes.ha.sync_set import NOT_CATCHUP_MS, SELF, STEPS, Model, sync_set, with_slaves


@given(steps=STEPS)
@settings(max_examples=200)
def test_when_the_dust_settles_every_level_slave_joins_and_every_silent_one_leaves(
    steps: list[tuple[str, int, int]],
) -> None:
    model = Model(True, 1)
    for what, who, amount in steps:
        model.step(what, who, amount)
    sync = model.sync
    sync.on_disconnect(4)
    for slave in (2, 3):
        if slave not in sync.slave_ends():
            model.step("connect", slave, 0)
    for _ in range(120):
        model.now_ms += 100
        sync.on_tick(model.now_ms)
        for slave in (2, 3):
            model.held[slave] = sync.end
            sync.on_ack(slave, sync.end, model.now_ms)
        for what in ("answer", "read", "propose", "answer"):
            model.step(what, 2, 1)
    assert sync.members == model.members == {SELF, 2, 3}
    assert sync.confirmed == sync.replicated == sync.end
    assert sync.candidates == {2, 3}


def test_members_not_heard_of_yet_are_waited_for_and_lost_ones_are_not() -> None:
    sync = sync_set({SELF, 2, 3}, end=100)
    sync.on_connect(3, 10)
    assert sync.desired_members(20) == {SELF, 2, 3}
    sync.on_disconnect(3)
    assert sync.desired_members(30) == {SELF, 2}
    assert sync.desired_members(NOT_CATCHUP_MS + 1) == {SELF}


def test_a_slave_that_is_sent_everything_but_acknowledges_nothing_leaves() -> None:
    sync = with_slaves(2)
    sync.on_append(200)
    for now in range(0, NOT_CATCHUP_MS + 1000, 500):
        sync.on_tick(now)
    assert sync.desired_members(NOT_CATCHUP_MS + 1) == {SELF}


def test_a_slave_always_a_little_behind_stays() -> None:
    sync = with_slaves(2)
    for now in range(0, 20000, 100):
        sync.on_append(sync.end + 10)
        sync.on_ack(2, sync.end - 10, now)
        sync.on_tick(now)
        assert sync.desired_members(now) == {SELF, 2}


def test_a_slave_joins_under_a_load_that_never_pauses() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 0, 0)
    held = 0
    for now in range(1, 500):
        before = sync.end
        sync.on_append(sync.end + 10)
        held = max(held, before)  # always one round trip behind
        sync.on_ack(2, held, now)
        if sync.propose(now) is not None:
            break
    else:
        pytest.fail("the slave was never proposed")
    assert sync.confirmed <= held


def test_a_joining_slave_that_stalls_holds_writers_only_for_a_moment() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 0, 0)
    sync.on_append(200)
    sync.on_ack(2, 100, JOIN_LAG_MS)
    sync.on_append(300)
    assert sync.confirmed == 200
    sync.on_tick(JOIN_LAG_MS + JOINING_MS + 1)
    assert sync.confirmed == 300


def test_a_member_that_came_back_shorter_must_leave_until_it_caught_up() -> None:
    sync = with_slaves(2)
    sync.on_disconnect(2)
    sync.on_connect(2, 10)
    sync.on_ack(2, 60, 10)
    assert sync.confirmed == 100
    assert sync.desired_members(10) == {SELF}


def test_a_real_slave_without_news_stays_and_one_that_lacks_something_leaves() -> None:
    sync = sync_set({SELF, 2, 3}, end=100)
    sync.on_connect(2, 0, answers_heartbeats=False)
    sync.on_connect(3, 0)
    for slave in (2, 3):
        sync.on_ack(slave, 100, 0)
    for now_ms in range(500, 5000, 500):
        sync.on_tick(now_ms)
    # Ours answers heartbeats, so its silence is its death; a real one has nothing to say.
    assert sync.desired_members(4500) == {SELF, 2}
    sync.on_append(200)
    for now_ms in range(4500, 4500 + NOT_CATCHUP_MS + 1, 500):
        sync.on_tick(now_ms)
        assert sync.desired_members(now_ms) == {SELF, 2}
    sync.on_tick(5000 + NOT_CATCHUP_MS)
    assert sync.desired_members(5000 + NOT_CATCHUP_MS) == {SELF}


def test_a_slave_older_than_the_epoch_does_not_join() -> None:
    sync = sync_set(end=100, confirmed=0, epoch_start=100, all_ack=False, ack_count=5)
    sync.on_connect(2, 0)
    sync.on_ack(2, 90, 0)
    assert sync.desired_members(0) == {SELF}
    sync.on_ack(2, 100, 1)
    assert sync.desired_members(1) == {SELF, 2}


def test_a_refused_proposal_does_not_hold_writers() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    assert proposal.members == {SELF, 2}
    sync.on_append(200)
    assert sync.confirmed == 100
    sync.on_refused(proposal, 1)
    assert sync.confirmed == 200
    sync.on_ack(2, 200, 2)
    assert sync.propose(2) is None, "asked again at once"
    sync.on_ack(2, 200, REFUSED_MS + 2)
    assert sync.propose(REFUSED_MS + 2) is not None


def test_a_proposal_without_an_answer_counts_until_it_cannot_be_applied_any_more() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    sync.on_unanswered(proposal)
    sync.on_disconnect(2)
    sync.on_append(200)
    sync.on_view(frozenset({SELF}), 1, 10)
    assert sync.confirmed == 100, "the Controller may still be working on it"
    sync.on_view(frozenset({SELF}), 1, UNKNOWN_HOLD_MS + 9)
    assert sync.confirmed == 100
    sync.on_view(frozenset({SELF}), 1, UNKNOWN_HOLD_MS + 10)
    assert sync.confirmed == 200


def test_without_the_time_of_the_question_only_a_newer_set_settles_a_proposal_without_an_answer() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    sync.on_unanswered(proposal)
    sync.on_disconnect(2)
    sync.on_append(200)
    sync.on_tick(100 * UNKNOWN_HOLD_MS)
    sync.on_view(frozenset({SELF}), 1, None)
    assert sync.confirmed == 100, "whoever told us may not have heard of it yet"
    sync.on_view(frozenset({SELF}), 2, None)
    assert sync.confirmed == 200


def test_a_master_elected_again_forgets_proposals_of_its_former_epoch() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    assert sync.propose(0) is not None
    sync.on_elected(Leadership(Epoch(2), PhysicalOffset(100), frozenset({SELF}), 5), 0)
    assert (sync.epoch, sync.set_epoch, sync.candidates) == (2, 5, frozenset())
    assert sync.slave_ends() == {2: 100}
