"""The promise: a slave that lacks something besides the log does not join and holds no answer up."""

from __future__ import annotations

from ha.master.ack_policy import AckPolicy
from ha.master.sync_set import JOINING_MS
from model.ids import BrokerId
from tests.fakes.ha.sync_set import PlainSyncSet, leadership, log_ends


class Group:
    """A master alone in its set with 100 bytes, and slave 2, which has all of them."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.sync = PlainSyncSet(
            BrokerId(1),
            leadership(1, 0, frozenset({1}), 1),
            log_ends(100, 0, 0),
            AckPolicy(),
            not_catchup_ms=15_000,
            now_ms=0,
            eligible=self.ready.__contains__,
        )
        self.sync.on_append(100)
        self.sync.on_connect(2, 0)
        self.sync.on_ack(2, 100, 1)


def test_a_slave_that_is_not_eligible_is_not_proposed_and_does_not_hold_the_confirmed_offset() -> None:
    group = Group()
    assert group.sync.propose(2) is None
    assert group.sync.candidates == frozenset()
    group.sync.on_append(200)
    assert group.sync.confirmed == 200


def test_it_joins_as_soon_as_it_is_eligible_without_another_report() -> None:
    group = Group()
    group.ready.add(2)
    group.sync.on_eligible(2, 5000)
    proposal = group.sync.propose(5000)
    assert proposal is not None
    assert proposal.members == {1, 2}


def test_one_that_is_behind_joins_by_its_report_as_ever() -> None:
    group = Group()
    group.sync.on_append(200)
    group.ready.add(2)
    group.sync.on_eligible(2, 5000)
    assert group.sync.propose(5000) is None
    group.sync.on_ack(2, 200, 5001)
    assert group.sync.propose(5001) is not None


def test_a_joining_slave_that_lacks_a_newer_change_waits_and_is_let_go_when_that_takes_too_long() -> None:
    group = Group()
    group.ready.add(2)
    group.sync.on_eligible(2, 5000)
    group.ready.discard(2)
    assert group.sync.propose(5000) is None
    assert group.sync.candidates == {2}
    group.sync.on_tick(5001 + JOINING_MS)
    assert group.sync.propose(5001 + JOINING_MS) is None
    assert group.sync.candidates == frozenset()


def test_a_member_stays_one_while_it_copies_a_change() -> None:
    group = Group()
    group.sync.on_view(frozenset({1, 2}), 2)
    assert group.sync.propose(2) is None
    assert group.sync.members == {1, 2}
