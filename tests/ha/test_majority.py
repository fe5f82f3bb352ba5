"""The promise of majority mode: an answer needs a majority of all replicas, in the current epoch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.master.sync_set import Leadership
from model.ids import Epoch, PhysicalOffset
from tests.fakes.ha.sync_set import NOT_CATCHUP_MS, SELF, sync_set, with_slaves
from tests.plain import broker_ids


def test_in_majority_mode_an_answer_needs_a_majority_of_all_replicas_whatever_the_set_holds() -> None:
    sync = with_slaves(2, 3, majority_of=3)
    sync.on_append(200)
    assert sync.replicated == 100, "the master alone is one of three"
    sync.on_ack(2, 200, 1)
    assert (sync.replicated, sync.confirmed) == (200, 100), "consumers wait for every member"
    sync.on_view(frozenset({SELF}), 2)
    sync.on_append(300)
    sync.on_ack(2, 300, 2)
    assert sync.replicated == 200, "the set has shrunk to the master: no answer leaves"
    assert sync.members_to_write == 2


def test_in_majority_mode_nobody_leaves_before_those_that_stay_have_what_was_answered() -> None:
    """3 stays and lacks what 2 has: without 2 an election could ask 3 alone of the last set."""
    sync = with_slaves(2, 3, majority_of=3)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert sync.replicated == 200
    sync.on_disconnect(2)
    assert sync.desired_members(2) == {SELF, 2, 3}
    sync.on_ack(3, 200, 3)
    assert sync.desired_members(3) == {SELF, 3}
    sync.on_disconnect(3)
    assert sync.desired_members(4) == {SELF}, "the master has all of it itself"


def test_who_is_kept_as_the_set_would_be_too_small_stays_with_those_that_have_what_was_answered() -> None:
    """3 hears too little to keep up, and acknowledged just now: the set keeps it, as it would be too small
    for an answer. It lacks what 2 has, whose connection ended: elected as one of the last set that was a
    majority, it would cut that off (swarm, seed 4182)."""
    sync = with_slaves(2, 3, majority_of=3)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert sync.replicated == 200
    sync.on_disconnect(2)
    sync.on_ack(3, 150, 100)
    behind_ms = NOT_CATCHUP_MS + 50
    assert sync.desired_members(behind_ms) == {SELF, 2, 3}
    assert sync.desired_members(2 * behind_ms) == {SELF}, "nobody is heard: the master has all of it itself"


def test_counted_by_two_nobody_leaves_before_those_that_stay_have_what_was_answered() -> None:
    """Without 2 the furthest member besides the master is 3, and that lacks what 2 and the master have."""
    sync = with_slaves(2, 3, all_ack=False, ack_count=2)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert sync.replicated == 200
    sync.on_disconnect(2)
    assert sync.desired_members(2) == {SELF, 2, 3}
    sync.on_ack(3, 200, 3)
    assert sync.desired_members(3) == {SELF, 3}
    sync.on_disconnect(3)
    assert sync.desired_members(4) == {SELF}, "the master has all of it itself"


@pytest.mark.parametrize("mode", [{"all_ack": False, "ack_count": 2}, {"majority_of": 5}])
def test_who_leaves_is_not_held_by_what_was_answered_since(mode: dict[str, Any]) -> None:
    """Under a steady load the slave that is farthest always lacks what was answered just now. What rests on
    the one that leaves ends with its last acknowledgement."""
    sync = with_slaves(2, 3, 4, 5, **mode)
    sync.on_append(200)
    for slave in (2, 3, 5):
        sync.on_ack(slave, 200, 1)
    sync.on_disconnect(5)
    assert sync.replicated == 200
    assert sync.desired_members(1) == {SELF, 2, 3, 4, 5}, "4 lacks what was answered by the word of 5"
    for now_ms in range(2, 50):
        end = now_ms * 100 + 100
        sync.on_append(end)
        sync.on_ack(2, end, now_ms)
        sync.on_ack(3, end, now_ms)
        sync.on_ack(4, end - 100, now_ms)
        assert sync.desired_members(now_ms) == {SELF, 2, 3, 4}
    assert sync.replicated == end


def test_who_was_never_heard_does_not_leave_before_those_that_stay_have_what_was_answered_before() -> None:
    """The former master and this one have all of the former epoch; 3 is on its way there."""
    sync = sync_set({SELF, 2, 3}, end=100, epoch_start=100, all_ack=False, ack_count=2)
    for now_ms in range(0, NOT_CATCHUP_MS + 2000, 1000):
        sync.on_tick(now_ms)
    sync.on_connect(3, now_ms)
    sync.on_ack(3, 50, now_ms)
    assert sync.desired_members(now_ms) == {SELF, 2, 3}
    sync.on_ack(3, 100, now_ms)
    assert sync.desired_members(now_ms) == {SELF, 3}


def test_counted_by_one_members_leave_at_once() -> None:
    """What only the master was asked for may go with it, and a slave that is behind holds nobody."""
    sync = with_slaves(2, 3, all_ack=False, ack_count=1)
    sync.on_append(200)
    assert sync.replicated == 200
    sync.on_disconnect(2)
    assert sync.desired_members(2) == {SELF, 3}


def test_in_mode_all_members_leave_at_once() -> None:
    sync = with_slaves(2, 3)
    sync.on_append(200)
    sync.on_disconnect(2)
    assert sync.desired_members(2) == {SELF, 3}


def test_in_majority_mode_records_of_former_epochs_count_only_with_the_current_one() -> None:
    sync = sync_set({SELF, 2, 3}, end=100, epoch_start=100, majority_of=3)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    assert sync.replicated == 0, "a first report: it need not have noted this epoch"
    sync.on_ack(2, 100, 1)
    assert sync.replicated == 100, "an answer to a frame with this epoch's label"
    sync.on_elected(Leadership(Epoch(2), PhysicalOffset(100), broker_ids({SELF, 2, 3}), 2), 2)
    sync.on_disconnect(2)
    sync.on_connect(3, 2)
    sync.on_ack(3, 90, 2)
    sync.on_ack(3, 95, 2)
    sync.on_append(200)
    assert sync.replicated == 100
    sync.on_ack(3, 150, 3)
    assert sync.replicated == 150


def test_in_majority_mode_replicas_that_were_not_counted_on_raise_the_majority() -> None:
    sync = with_slaves(2, 3, majority_of=3)
    assert sync.members_to_write == 2
    sync.on_connect(4, 1)
    sync.on_connect(5, 1, learner=True)
    assert sync.members_to_write == 3, "four replicas now; a learner is none"


def test_in_majority_mode_a_joining_slave_has_what_was_answered_before_the_set_was_known() -> None:
    """The Controllers take it for one that stands for a replica that was forgotten (``Group.holders``)."""
    sync = with_slaves(2, 3, majority_of=3)
    sync.on_connect(4, 0)
    sync.on_ack(4, 100, 0)
    sync.on_append(200)
    for slave in (2, 3):
        sync.on_ack(slave, 200, 1)
    assert (sync.replicated, sync.confirmed) == (200, 100), "answered, and held for the slave that joins"
    assert 4 in sync.desired_members(1)
    sync.on_view(frozenset({SELF, 3}), 2)  # 2 was forgotten
    assert 4 not in sync.desired_members(2), "it lacks what was answered by the word of 2"
    sync.on_append(300)
    sync.on_ack(3, 300, 3)
    sync.on_ack(4, 200, 3)
    assert 4 in sync.desired_members(3), "what was answered since is not by the word of 2"


@given(
    st.sampled_from([3, 5]),
    st.lists(st.tuples(st.sampled_from(["append", "ack", "drop", "join", "set"]), st.integers(2, 5))),
)
def test_no_answer_leaves_without_a_majority(size: int, steps: list[tuple[str, int]]) -> None:
    sync = sync_set({SELF}, majority_of=size)
    held: dict[int, int] = {}
    set_epoch = 1
    for step, who in steps:
        before = sync.replicated
        if step == "append":
            sync.on_append(sync.end + who)
        elif step == "join":
            sync.on_connect(who, 0)
        elif step == "ack" and who in sync.slave_ends():
            sync.on_ack(who, sync.end, 0)
            held[who] = sync.end
        elif step == "drop":
            sync.on_disconnect(who)
        elif step == "set":
            set_epoch += 1
            sync.on_view(frozenset(range(1, who + 1)), set_epoch)
        if sync.replicated > before:
            holders = 1 + sum(end >= sync.replicated for end in held.values())
            assert holders * 2 > size
