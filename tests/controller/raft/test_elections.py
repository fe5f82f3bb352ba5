"""The promise of controller.raft.voting: a lost leader is soon replaced, also after a split vote."""

import asyncio
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from controller.raft.codec import Ack, AppendEntries, PreVote, PreVoteAnswer, RequestVote, TimeoutNow
from controller.raft.voting import Voting
from tests.fakes.controller.node import TIMING, Lab, append, run
from tests.fakes.controller.raft_sim import Group, Member, wait_for


async def asked_at(lab: Lab, kind: type[PreVote] | type[RequestVote], seconds: float) -> list[float]:
    """When, from now on, the node asks b for a (pre-)vote."""
    loop = asyncio.get_running_loop()
    began, times = loop.time(), []
    while loop.time() - began < seconds:
        lab.node.tick()
        if any(peer == "b" for peer, _ in lab.heard(kind)):
            times.append(loop.time() - began)
        await asyncio.sleep(0.001)
    return times


def test_a_try_without_a_winner_is_repeated_soon_at_random_and_then_less_often() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0)))
        lab.said.clear()
        lab.node.down("b")
        times = await asked_at(lab, PreVote, 5)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert times[0] <= TIMING.retry_s * 1.1
        assert max(gaps[:2]) < TIMING.election_min_s
        assert gaps[0] < gaps[2] < gaps[4]
        assert max(gaps) < TIMING.election_max_s * 1.05
        assert lab.node.term == 1  # no term was used up

    run(main)


def test_candidates_that_split_the_votes_stand_again_before_a_silence_is_over() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.stand()
        lab.said.clear()
        (again, *_) = await asked_at(lab, PreVote, 1)
        assert again < TIMING.election_min_s
        lab.node.received("b", PreVoteAnswer(term + 1, term, granted=True))
        lab.node.tick()
        assert lab.node.term == term + 1

    run(main)


def test_whoever_grants_a_pre_vote_lets_the_other_go_first() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0)))
        lab.node.down("b")
        lab.node.received("c", PreVote(2, 1, 0))
        lab.said.clear()
        (first, *_) = await asked_at(lab, PreVote, 1)
        assert first >= TIMING.retry_s * 0.99

    run(main)


def test_a_leader_heard_again_ends_the_hurry() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0)))
        lab.node.down("b")
        await asked_at(lab, PreVote, 1)
        lab.node.up("b")
        lab.node.received("b", append(1, (1, 0)))
        lab.said.clear()
        assert await asked_at(lab, PreVote, TIMING.election_min_s * 0.9) == []
        assert [type(m) for _, m in lab.said if not isinstance(m, AppendEntries | Ack)] == []

    run(main)


def gaps_without_leader(seed: int, kills: int) -> list[float]:
    """Virtual seconds from each kill of the leader to the first answered read of its successor."""
    group = Group(seed)
    gaps: list[float] = []

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        for _ in range(kills):
            leader = await group.wait_leader()
            assert await wait_for(lambda: all(m.up for m in group.members.values()))
            leader.kill()
            began = group.loop.time()
            for _ in range(10_000):
                if await group.propose():
                    break
                await asyncio.sleep(0.001)
            gaps.append(group.loop.time() - began)
            await leader.start()
            await asyncio.sleep(0.5)

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()
    return gaps


@pytest.mark.sim
def test_a_killed_leader_is_replaced_within_a_fraction_of_the_silence_others_wait_for() -> None:
    gaps = sorted(gap for seed in range(4) for gap in gaps_without_leader(seed, 12))
    assert statistics.median(gaps) < TIMING.election_min_s / 2
    assert gaps[int(len(gaps) * 0.99)] < 1.0


@pytest.mark.sim
def test_without_quick_tries_it_would_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = max(gaps_without_leader(1, 8))
    monkeypatch.setattr(Voting, "_next_try_s", Voting._patience_s)
    monkeypatch.setattr(Voting, "_on_pre_vote", _never_steps_down(Voting._on_pre_vote))
    slow = max(max(gaps_without_leader(seed, 8)) for seed in range(3))
    assert slow > quick


def _never_steps_down(original: Callable[[Voting, Any, PreVote], None]) -> Callable[..., None]:
    def on_pre_vote(self: Voting, sender: object, message: PreVote) -> None:
        before = self.election_deadline
        original(self, sender, message)
        self.election_deadline = before

    return on_pre_vote


def test_a_node_that_hears_nobody_for_an_hour_still_tries_and_follows_whoever_leads_then() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.down("b")
        lab.node.down("c")
        until = asyncio.get_running_loop().time() + 3600
        while asyncio.get_running_loop().time() < until:
            lab.node.tick()
            await asyncio.sleep(lab.node.next_tick_s())
        assert len(lab.heard(PreVote)) > 2 * 1024, "as many tries as a float has powers of two"
        lab.node.up("b")
        lab.node.received("b", append(1, (1, 0)))
        assert lab.node.leader() == "b"

    run(main)


@pytest.mark.sim
def test_a_member_whose_others_were_gone_for_long_says_so_once_and_takes_part_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group(9)

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        leader = await group.wait_leader()
        assert await group.propose()
        alone, *others = [member for member in group.members.values() if member is not leader] + [leader]
        for other in others:
            other.kill()
        await asyncio.sleep(600)
        assert alone.raft is not None
        assert "no other one is linked to" in (alone.raft.health() or "")
        lines = [line for line in caplog.messages if "no other one is linked to" in line]
        assert len(lines) == 1
        assert (alone.raft.health() or "?") in lines[0], (
            "with its own Raft address: others may have another one"
        )
        for other in others:
            await other.start()
        await group.settle()

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()
    assert group.verdict() == {}


@pytest.mark.parametrize("consent", ["pre-votes", "a handover"])
def test_consent_ends_with_the_last_link_it_came_over(consent: str) -> None:
    async def main() -> None:
        lab, loop = Lab(), asyncio.get_running_loop()
        lab.node.received("b", append(1, (1, 0)))
        if consent == "a handover":
            lab.node.received("b", TimeoutNow(1))
        else:
            await asyncio.sleep(TIMING.election_max_s)
            lab.node.tick()
            for peer in ("b", "c"):
                lab.node.received(peer, PreVoteAnswer(2, 1, granted=True))
        lab.node.down("b")
        lab.node.down("c")
        until, ticks = loop.time() + 10, 0
        while loop.time() < until:
            lab.node.tick()
            ticks += 1
            await asyncio.sleep(lab.node.next_tick_s())
        assert ticks < 10 / TIMING.retry_s, "it waits between its tries"
        lab.said.clear()
        lab.node.up("b")
        await asyncio.sleep(lab.node.next_tick_s())
        lab.node.tick()
        assert lab.node.term == 1, "nobody was asked again"
        assert [type(message) for _, message in lab.said] == [PreVote, PreVote]

    run(main)


@pytest.mark.sim
@pytest.mark.parametrize("frozen", [0, 1])
def test_leadership_goes_to_any_member_that_is_not_frozen(frozen: int) -> None:
    group = Group(4)

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        leader = await group.wait_leader()
        assert await group.propose()
        await asyncio.sleep(1)
        others = [member for member in group.members.values() if member is not leader]
        still, awake = others[frozen], others[1 - frozen]
        assert still.life is not None
        assert leader.raft is not None
        # From this moment on: nobody has missed an answer yet.
        group.loop.pause(still.life)
        assert await group.inside(leader, leader.raft.transfer) == awake.name

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()


@pytest.mark.sim
def test_who_begins_and_who_ceases_to_lead_says_so_once() -> None:
    """By an event each, so a group without a leader can be looked into afterwards."""
    group = Group(5)

    def told(member: Member) -> list[tuple[str, int]]:
        assert member.raft is not None
        return [(event.name, event.fields["term"]) for event in member.raft._env.events]

    async def main() -> None:
        former = await group.wait_leader()
        first = former.raft.term if former.raft else 0
        others = [member for member in group.members.values() if member is not former]
        assert [told(member) for member in others] == [[], []]
        for other in others:
            group.fabric.cut(former.name, other.name)
            group.fabric.cut(other.name, former.name)
        await wait_for(lambda: [told(member) for member in others if told(member)], 20.0)
        group.fabric.heal_all()
        await wait_for(lambda: len(told(former)) == 2, 20.0)
        begun, ceased = told(former)
        assert begun == ("leader_elected", first)
        assert ceased[0] == "leader_lost"
        assert ceased[1] >= first
        (after,) = [told(member) for member in others if told(member)]
        assert [name for name, _ in after] == ["leader_elected"]
        assert after[0][1] > first

    group.play(main)
