"""The promise of a master that stood still: nobody is blamed, and what was said before proves nothing."""

from ha.master.membership import UNKNOWN_HOLD_MS
from tests.fakes.ha.sync_set import NOT_CATCHUP_MS, SELF, sync_set, with_slaves


def test_time_in_which_the_controllers_stood_still_settles_no_proposal() -> None:
    # They had the request in their socket when the machine stopped, and work on it now.
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    awake_ms = 3 * UNKNOWN_HOLD_MS
    sync.on_tick(awake_ms)
    sync.on_unanswered(proposal)
    sync.on_disconnect(2)
    sync.on_append(200)
    sync.on_view(frozenset({SELF}), 1, awake_ms)
    assert sync.confirmed == 100
    sync.on_view(frozenset({SELF}), 1, awake_ms + UNKNOWN_HOLD_MS)
    assert sync.confirmed == 200


def test_a_master_that_stood_still_does_not_blame_its_slaves() -> None:
    sync = with_slaves(2)
    sync.on_tick(100)
    sync.on_tick(60_000)
    assert sync.desired_members(60_000) == {SELF, 2}


def test_a_proposal_that_was_due_when_the_master_stood_still_blames_nobody() -> None:
    # It is made before anything else when the process goes on.
    sync = with_slaves(2)
    sync.on_tick(100)
    sync.on_tick(60_000)
    assert sync.propose(60_000) is None


def test_a_slave_heard_right_after_the_master_stood_still_is_waited_for_no_longer_than_others() -> None:
    # Its acknowledgement lay in the socket and is read before the master looks at its clock.
    sync = with_slaves(2)
    sync.on_tick(100)
    sync.on_ack(2, 100, 60_000)
    for now_ms in range(60_000, 60_000 + NOT_CATCHUP_MS + 1, 500):
        sync.on_tick(now_ms)
        assert sync.desired_members(now_ms) == {SELF, 2}
    sync.on_tick(60_500 + NOT_CATCHUP_MS)
    assert sync.desired_members(60_500 + NOT_CATCHUP_MS) == {SELF}


def test_a_master_that_stood_still_blames_nobody_and_learns_nothing_from_what_was_said_before() -> None:
    sync = with_slaves(2, 3)
    sync.on_tick(100)
    sync.on_tick(60_000)
    assert sync.desired_members(60_000) == {SELF, 2, 3}
    assert not sync.acked_by_all_recently(60_000, 1000), (
        "what they said is a minute old: another may be master by now"
    )
    sync.on_ack(2, 100, 60_000)
    sync.on_tick(60_000 + NOT_CATCHUP_MS / 4)
    sync.on_ack(3, 100, 60_000)
    assert sync.acked_by_all_recently(60_900, 1000)
    for now_ms in range(60_500, 60_000 + NOT_CATCHUP_MS + 1, 500):
        sync.on_tick(now_ms)
    assert sync.desired_members(60_000 + NOT_CATCHUP_MS + 1) == {SELF}, (
        "silent since, for as long as is excused"
    )
