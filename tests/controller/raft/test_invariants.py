"""The promise of controller.raft.invariants: each rule is noticed, and stops the member that broke it."""

from __future__ import annotations

import asyncio

import pytest

from controller.raft.invariants import Invariants, Position
from tests.fakes.controller.node import Lab, append, entries, run
from tests.fakes.controller.raft_sim import Group, wait_for

FOLLOWER = Position(
    node_id="a",
    term=5,
    vote="b",
    stored_term=5,
    stored_vote="b",
    leads=False,
    leader="b",
    first_index=3,
    last_index=9,
    last_term=5,
    commit=8,
    applied=7,
    began_at=0,
    match={},
    next={},
)
LEADER = FOLLOWER._replace(
    leads=True, leader="a", vote="a", stored_vote="a", began_at=9, match={"b": 4}, next={"b": 5}
)


@pytest.mark.parametrize(
    ("position", "rule"),
    [
        (FOLLOWER._replace(applied=9), "applied 9 is beyond commit 8"),
        (FOLLOWER._replace(commit=10), "commit 10 is beyond the log's end 9"),
        (FOLLOWER._replace(first_index=8), "entries 7 to 8 are lost"),
        (FOLLOWER._replace(last_term=6), "the log ends in term 6"),
        (FOLLOWER._replace(stored_vote=None), "vote b is not stored"),
        (FOLLOWER._replace(stored_term=4, stored_vote="c"), "vote b is not stored"),
        (FOLLOWER._replace(stored_term=6), "term 6 is stored, beyond 5"),
        (LEADER._replace(leader="b"), "takes b for the leader"),
        (LEADER._replace(vote="b", stored_vote="b"), "voted for b"),
        (LEADER._replace(last_term=4), "its log ends in 4"),
        (LEADER._replace(began_at=10), "the entry 10 it began with is lost"),
        (LEADER._replace(match={"b": 10}, next={"b": 11}), "b matches up to 10, the log ends at 9"),
        (LEADER._replace(next={"b": 4}), "b matches up to 4, and gets 4 next"),
    ],
)
def test_a_position_that_breaks_a_rule_is_named(position: Position, rule: str) -> None:
    Invariants().check(FOLLOWER)
    Invariants().check(LEADER)
    with pytest.raises(AssertionError, match=rule):
        Invariants().check(position)


@pytest.mark.parametrize(
    ("before", "now", "rule"),
    [
        (FOLLOWER, FOLLOWER._replace(term=4, stored_term=4, last_term=4), "went back from 5 to 4"),
        (FOLLOWER, FOLLOWER._replace(commit=7), "commit went back from 8 to 7"),
        (FOLLOWER, FOLLOWER._replace(applied=6), "applied went back from 7 to 6"),
        (FOLLOWER, FOLLOWER._replace(first_index=2), "the log began at 3"),
        (FOLLOWER, FOLLOWER._replace(vote="c", stored_vote="c"), "two votes in term 5: b, c"),
        (FOLLOWER, FOLLOWER._replace(vote=None, stored_vote=None), "two votes in term 5: b, None"),
        (LEADER, LEADER._replace(last_index=8, began_at=7, commit=8), "a leader's log was cut"),
        (LEADER, LEADER._replace(leads=False, leader="b"), "b leads term 5, too"),
    ],
)
def test_a_step_that_breaks_a_rule_is_named(before: Position, now: Position, rule: str) -> None:
    invariants = Invariants()
    invariants.check(before)
    with pytest.raises(AssertionError, match=rule):
        invariants.check(now)


async def test_a_new_term_allows_a_new_vote_and_another_leader() -> None:
    invariants = Invariants()
    for position in (
        LEADER,
        FOLLOWER._replace(term=6, stored_term=6, vote=None, stored_vote=None, leader=None),
        FOLLOWER._replace(term=6, stored_term=6),
    ):
        invariants.check(position)


def test_a_node_checks_itself_after_each_message() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 5, 1), commit=4))
        lab.node.tick()
        lab.node.last_applied = 6
        with pytest.raises(AssertionError, match="applied 6 is beyond commit 4"):
            lab.node.received("b", append(1, (5, 1), commit=4))

    run(main)


@pytest.mark.sim
def test_a_member_that_breaks_a_rule_stops_with_one_clear_line(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(1)

    async def main() -> None:
        leader = await group.wait_leader()
        await wait_for(lambda: all(member.up for member in group.members.values()))
        assert await group.propose()
        victim = next(member for member in group.members.values() if member is not leader)
        assert victim.raft is not None
        node = victim.raft._node
        assert node is not None
        node.last_applied += 5
        await wait_for(lambda: not victim.up)
        assert "takes no part any more: applied" in str(victim.raft.health())
        assert await group.propose()
        await asyncio.sleep(5)
        assert not victim.up, "a broken rule is no full disk"
        victim.kill()
        await victim.start()
        await group.settle()

    group.play(main)
    assert group.verdict() == {}
    assert sum("takes no part any more" in record.message for record in caplog.records) == 1
