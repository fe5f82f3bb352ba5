"""The promise of controller.raft.health: a member that stands still or lags says so, with numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from controller.raft.health import (
    LATE_WINDOW_MS,
    Bounds,
    PeerProgress,
    Progress,
    Pulse,
    Watch,
    behind,
    stalled,
)
from controller.raft.node import Node
from controller.raft.raft import Raft
from tests.fakes.controller.raft_sim import Group, Member, wait_for

BOUNDS: Final = Bounds.of(election_max_ms=500, compact_entries=30)  # of the simulated group


def played(main: Callable[[Group], Awaitable[None]]) -> None:
    group = Group(4, compact_entries=BOUNDS.lag_entries)

    async def inside() -> None:
        await group.wait_leader()
        assert await group.propose()
        # Not by their health: that is what is looked at here.
        await wait_for(lambda: all(m.applied == [b"c1"] and raft(m).admitted for m in group.members.values()))
        await main(group)

    group.play(inside)


def raft(member: Member) -> Raft:
    assert member.raft is not None, "it runs"
    return member.raft


def node(member: Member) -> Node:
    found = raft(member)._node
    assert found is not None, "it runs"
    return found


async def follower_of(group: Group) -> tuple[Member, Member, Member]:
    """A follower, the leader, and the third."""
    leader = await group.wait_leader()
    one, other = (member for member in group.members.values() if member is not leader)
    return one, leader, other


async def a_tick_stands_still(group: Group) -> None:
    """A follower hears its leader, and nothing else moves it any more: say, a lost wake-up."""
    stuck, *well = await follower_of(group)
    node(stuck).next_tick_s = lambda: 3600.0  # type: ignore[method-assign]
    await asyncio.sleep(BOUNDS.stalled_ms / 1000 / 2)
    assert raft(stuck).health() is None
    await asyncio.sleep(BOUNDS.stalled_ms / 1000 + 2)
    assert raft(stuck).leader_id == well[0].name
    assert str(raft(stuck).health()).startswith("Raft stands still: its last tick was ")
    assert raft(stuck).status()["tickAgeMs"] > BOUNDS.stalled_ms
    assert [raft(member).health() for member in well] == [None, None]
    assert all(raft(member).status()["tickAgeMs"] <= 1100 for member in well)


async def a_follower_lags(group: Group) -> None:
    """A follower hears what is committed, and the entries never come."""
    late, leader, third = await follower_of(group)

    def refuse(*_message: object) -> None:
        """As if neither entries nor snapshot had arrived."""

    taken = node(late)._take_entries, node(late)._take_snapshot
    node(late)._take_entries = node(late)._take_snapshot = refuse  # type: ignore
    for _ in range(5):
        assert await group.propose()
    await wait_for(lambda: raft(late).status()["lagEntries"] == 5)
    assert raft(late).health() is None
    await asyncio.sleep(BOUNDS.unmoved_ms / 1000 + 0.5)
    assert str(raft(late).health()).startswith("5 decisions behind, and none was applied for ")
    status = raft(late).status()
    assert status["unmovedMs"] > BOUNDS.unmoved_ms
    assert status["appendAgeMs"] <= 200
    seen = raft(leader).status()
    assert seen["peers"][late.name]["lagEntries"] == 5
    assert seen["peers"][third.name]["lagEntries"] == 0
    assert seen["peers"][third.name]["answerAgeMs"] <= 200
    # It answered nothing since: that shows as well.
    assert seen["peers"][late.name]["answerAgeMs"] > BOUNDS.unmoved_ms
    assert seen["appendAgeMs"] is None
    assert [raft(member).health() for member in (leader, third)] == [None, None]
    while raft(late).status()["lagEntries"] <= BOUNDS.lag_entries:
        assert await group.propose()
        await asyncio.sleep(0.1)
    assert "decisions behind (at most 30)" in str(raft(late).health())
    node(late)._take_entries, node(late)._take_snapshot = taken  # type: ignore[method-assign]
    await wait_for(lambda: raft(late).health() is None)
    await wait_for(lambda: raft(leader).status()["peers"][late.name]["lagEntries"] == 0)
    assert raft(late).status()["lagEntries"] == 0


@pytest.mark.sim
@pytest.mark.parametrize("story", [a_tick_stands_still, a_follower_lags])
def test_a_member_that_does_not_keep_up_says_so(
    story: Callable[[Group], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    played(story)
    monkeypatch.setattr(Raft, "health", lambda self: None)
    with pytest.raises(AssertionError):
        played(story)  # always healthy


@pytest.mark.sim
def test_a_process_that_was_held_up_shows_how_late_its_tick_was_and_forgets_it() -> None:
    async def main(group: Group) -> None:
        held, *_ = await follower_of(group)
        assert held.life is not None
        await asyncio.sleep(5)
        assert raft(held).status()["tickLateMaxMs"] < 100
        group.loop.pause(held.life)
        await asyncio.sleep(8)
        assert "stands still" in str(raft(held).health())
        group.loop.resume(held.life)
        await wait_for(lambda: raft(held).health() is None)
        assert 6_000 < raft(held).status()["tickLateMaxMs"] < 9_000
        await asyncio.sleep(2.1 * LATE_WINDOW_MS / 1000)
        assert raft(held).status()["tickLateMaxMs"] < 100

    played(main)


@pytest.mark.sim
def test_a_leader_shows_who_does_not_answer() -> None:
    async def main(group: Group) -> None:
        gone, leader, third = await follower_of(group)
        gone.kill()
        for _ in range(3):
            assert await group.propose()
        await asyncio.sleep(20)
        peers = raft(leader).status()["peers"]
        assert peers[gone.name]["answerAgeMs"] > 19_000
        assert peers[third.name]["answerAgeMs"] <= 200
        assert peers[gone.name]["lagEntries"] >= 3
        assert raft(leader).health() is None
        assert raft(third).status()["peers"] == {}

    played(main)


def progress(applied: int, known: int, unmoved_ms: float = 0.0) -> Progress:
    return Progress(
        applied_index=applied,
        commit_index=known,
        unmoved_ms=unmoved_ms,
        append_age_ms=0.0,
        peers={"b": PeerProgress(match_index=1, lag_entries=10**6, answer_age_ms=None)},
        journal_entries=1,
        journal_bytes=1,
        compaction_error=None,
    )


def test_the_bounds_are_some_election_timeouts_and_a_compaction() -> None:
    assert Bounds.of(1000, 4096) == Bounds(stalled_ms=3000, unmoved_ms=10_000, lag_entries=4096)
    assert Bounds.of(5000, 10) == Bounds(stalled_ms=15_000, unmoved_ms=50_000, lag_entries=10)
    assert stalled(None, BOUNDS) is None
    assert stalled(BOUNDS.stalled_ms, BOUNDS) is None
    assert stalled(BOUNDS.stalled_ms + 1, BOUNDS) is not None
    assert behind(progress(1, 31, BOUNDS.unmoved_ms), BOUNDS) is None
    assert behind(progress(1, 32), BOUNDS) is not None
    assert behind(progress(1, 2, BOUNDS.unmoved_ms + 1), BOUNDS) is not None


def test_time_without_work_is_no_lag() -> None:
    watch = Watch()
    watch.applied(0, 7, 7)
    watch.applied(3_600_000, 7, 7)
    assert watch.unmoved_ms(3_600_100, 7, 9) == 100
    watch.applied(3_600_200, 7, 9)
    watch.applied(3_600_300, 8, 9)
    assert watch.unmoved_ms(3_600_350, 8, 9) == 50
    watch.applied(3_600_400, 8, 9)
    assert watch.unmoved_ms(3_600_450, 8, 9) == 150
    assert watch.unmoved_ms(3_600_450, 9, 9) == 0


def test_a_tick_is_as_late_as_its_end_and_its_lateness_stays_for_a_while() -> None:
    pulse = Pulse()
    assert pulse.age_ms(5) is None
    pulse.ticked(due_ms=100, now_ms=150)
    assert (pulse.age_ms(175), pulse.late_max_ms) == (25, 50)
    pulse.ticked(due_ms=200, now_ms=201)
    assert pulse.late_max_ms == 50
    pulse.ticked(due_ms=LATE_WINDOW_MS + 200, now_ms=LATE_WINDOW_MS + 202)
    assert pulse.late_max_ms == 50
    pulse.ticked(due_ms=2 * LATE_WINDOW_MS + 300, now_ms=2 * LATE_WINDOW_MS + 303)
    assert pulse.late_max_ms == 3
