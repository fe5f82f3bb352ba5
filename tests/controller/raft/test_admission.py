"""The promise to a group whose member lost its directory: it has no vote until it holds every decision."""

import asyncio

import pytest

from controller.raft.codec import (
    Ack,
    Admit,
    AppendEntries,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    Seat,
    TimeoutNow,
    Vote,
)
from controller.raft.disk.journal import Journal
from controller.raft.seats import pack_seat
from controller.raft.voting import Memory, Voting, may_elect
from tests.fakes.controller.node import TIMING, Lab, append, entries, run
from tests.fakes.controller.raft_sim import Group, Member, wait_for
from tests.fakes.disk.refusing import JOURNAL


def empty_ack(term: int, next_index: int, number: int = 0) -> Ack:
    return Ack(term, next_index, reset=False, success=True, round=number, admitted=False)


def test_an_empty_member_says_that_its_vote_is_none() -> None:
    async def main() -> None:
        lab = Lab(admitted=False)
        await asyncio.sleep(1)
        lab.node.received("b", PreVote(4, 9, 3))
        assert lab.heard(PreVoteAnswer) == [("b", PreVoteAnswer(4, 0, True, False, blank=True))]
        lab.node.received("b", RequestVote(4, 9, 3))
        assert lab.heard(Vote) == [("b", Vote(4, True, False, blank=True))]
        lab.node.received("b", append(4, (1, 0)))
        assert lab.last_ack() == Ack(4, 2, reset=False, success=True, admitted=False)

    run(main)


def wiped_member_votes() -> bool:
    """Whether the vote of a wiped member and the own one make a leader of three."""
    leads: list[bool] = []

    async def main() -> None:
        lab = Lab()
        await asyncio.sleep(1)
        lab.node.tick()
        lab.node.received("b", PreVoteAnswer(1, 0, granted=True, admitted=True))
        lab.node.tick()
        lab.node.received("b", Vote(1, granted=True, admitted=False))
        leads.append(lab.node.leads())
        lab.node.received("c", Vote(1, granted=True, admitted=True))
        assert lab.node.leads()

    run(main)
    return leads[0]


def test_the_vote_of_an_empty_member_elects_only_where_all_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not wiped_member_votes()
    # With every vote a vote, two of three would do: that is how decisions are lost.
    monkeypatch.setattr(Voting, "_elects", lambda self, votes: self._majority(len(votes) + 1))
    assert wiped_member_votes()


def test_an_empty_member_cannot_stand_with_a_majority_only() -> None:
    async def main() -> None:
        lab = Lab("bcde", admitted=False)
        await asyncio.sleep(1)
        lab.node.tick()
        for peer in "bc":
            lab.node.received(peer, PreVoteAnswer(1, 0, granted=True, admitted=True))
        lab.node.tick()
        assert lab.heard(RequestVote) == []
        lab.node.received("d", PreVoteAnswer(1, 0, granted=True, admitted=True))
        lab.node.tick()
        assert len(lab.heard(RequestVote)) == 4  # three of five that forgot nothing: its log is as long

    run(main)


def test_a_vote_given_on_a_link_that_broke_does_not_count() -> None:
    async def main() -> None:
        lab = Lab("bcde")
        term = await lab.stand()
        lab.node.received("b", Vote(term, granted=True))
        lab.node.down("b")
        lab.node.up("b")
        lab.node.received("c", Vote(term, granted=True))
        assert not lab.node.leads()
        lab.node.received("d", Vote(term, granted=True))
        assert lab.node.leads()

    run(main)


def test_the_word_of_an_empty_member_commits_nothing_and_proves_no_leadership() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        lab.propose(b"x")
        lab.node.tick()
        lab.said.clear()
        lab.node.down("b")
        lab.node.up("b")
        for _ in range(20):
            await asyncio.sleep(TIMING.append_s)
            for number in range(9):
                lab.node.received("b", empty_ack(term, lab.journal.last_index + 1, number))
            lab.node.tick()
        assert lab.results == []
        assert lab.heard(Admit) == []
        assert not lab.node.leads()

    run(main)


def test_a_member_is_admitted_once_it_holds_all_and_others_still_follow() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        lab.node.received("c", Ack(term, lab.journal.last_index + 1, reset=False, success=True))
        lab.propose(b"x")
        lab.node.tick()
        lab.node.received("c", Ack(term, lab.journal.last_index + 1, reset=False, success=True))
        lab.node.tick()
        lab.node.down("b")
        lab.node.up("b")
        lab.said.clear()
        last = lab.journal.last_index
        lab.node.received("b", empty_ack(term, last + 1))
        lab.node.tick()
        number = max(m.round for _, m in lab.said if isinstance(m, AppendEntries))
        lab.node.received("b", empty_ack(term, last + 1, number))
        assert lab.heard(Admit) == []  # nobody else has said since that this is the leader
        lab.node.received("c", Ack(term, last + 1, reset=False, success=True, round=number))
        lab.node.tick()
        lab.node.received("b", empty_ack(term, last, number))
        assert lab.heard(Admit) == []  # one decision is lacking
        lab.node.received("b", empty_ack(term, last + 1, number))
        assert lab.heard(Admit) == [("b", Admit(term))]

    run(main)


def test_only_the_leader_followed_admits_and_it_is_not_forgotten() -> None:
    async def main() -> None:
        lab = Lab(admitted=False)
        lab.node.received("b", append(3, (1, 0), entries(2, 4, 3)))
        lab.node.received("c", Admit(3))
        lab.node.received("b", Admit(2))
        assert not lab.journal.admitted
        lab.node.received("b", Admit(3))
        assert lab.journal.admitted
        assert Journal(lab.disk, "/raft/raft.journal", "a").admitted
        lab.journal.deleteEntriesTo(1)  # a compaction writes the file anew
        assert Journal(lab.disk, "/raft/raft.journal", "a").admitted

    run(main)


def test_leadership_is_not_handed_to_a_member_without_a_vote() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        lab.node.received("b", empty_ack(term, lab.journal.last_index + 1))
        assert lab.node.transfer_leadership() is None
        assert lab.heard(TimeoutNow) == []

    run(main)


@pytest.mark.sim
@pytest.mark.parametrize("wiped", [1, 2])
def test_nobody_leads_by_the_votes_of_all_where_a_majority_lost_its_directory(
    wiped: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It would lead without what only the others knew. With all directories empty the group begins anew."""
    group = Group(3)

    async def main() -> None:
        members = sorted(group.members.values(), key=lambda member: member.name)
        for member in members:
            await member.start()
        await group.wait_leader()
        assert await wait_for(lambda: all(m.up for m in members))
        assert await group.propose()
        await wait_for(lambda: all(len(m.applied) == 1 for m in members))
        await begin_again(members, members[:wiped])
        if wiped == 2:
            await asyncio.sleep(15)
            assert group.leader() is None
            why = [str(m.raft.health()) for m in members if m.raft is not None]
            assert "only 1 of 3 Controllers has its directory" in why[2]
            assert why[0] == "no leader among the Controllers"
            assert caplog.text.count("has its directory") == 1, "said once, not at each try"
            await begin_again(members, members)
        await wait_for(lambda: all(m.up for m in members))
        assert await group.propose()

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()


async def begin_again(members: list[Member], emptied: list[Member]) -> None:
    for member in members:
        member.kill()
    for member in emptied:
        member.replace_disk()
    for member in members:
        await member.start()


WHOLE, CUT, COPIES = Memory(True, False, False), Memory(False, True, False), Memory(False, False, False)
FOUNDS, EMPTY = Memory(True, False, True), Memory(False, False, True)


@pytest.mark.parametrize(
    ("voters", "elect"),
    [
        ([EMPTY, EMPTY, EMPTY], True),  # a new group
        ([FOUNDS, EMPTY, EMPTY], True),  # whose first leader was lost before it admitted anybody
        ([WHOLE, CUT, CUT], True),  # a power failure
        ([CUT, CUT, CUT], True),
        ([WHOLE, CUT, EMPTY], True),
        ([WHOLE, EMPTY, EMPTY], False),
        ([CUT, EMPTY, EMPTY], False),
        ([WHOLE, COPIES, EMPTY], False),
        ([WHOLE, COPIES, COPIES], False),
        ([COPIES, COPIES, COPIES], False),
        ([WHOLE, WHOLE, EMPTY, EMPTY, EMPTY], False),
        ([WHOLE, CUT, CUT, EMPTY, EMPTY], True),
    ],
)
def test_all_elect_where_a_majority_has_its_directory_or_nobody_heard_of_a_decision(
    voters: list[Memory], elect: bool
) -> None:
    assert may_elect(voters) is elect


def test_a_new_group_takes_no_command_before_a_majority_is_admitted() -> None:
    """So an empty log, and one with a command in it, tell a new group from one that lost its directories."""

    async def main() -> None:
        lab = Lab(admitted=False)
        await asyncio.sleep(1)
        lab.node.tick()
        for peer in "bc":
            lab.node.received(peer, PreVoteAnswer(1, 0, True, False, blank=True))
        lab.node.tick()
        for peer in "bc":
            lab.node.received(peer, Vote(1, True, False, blank=True))
        assert lab.node.leads()
        lab.propose(b"x")
        lab.node.tick()
        assert (lab.journal.last_index, lab.journal.blank) == (2, True)
        assert lab.node.next_tick_s() > 0, "it does not spin while it waits"
        lab.node.received("b", empty_ack(1, 3))
        assert [peer for peer, _ in lab.heard(Admit)] == ["b"]
        lab.node.received("b", Ack(1, 3, reset=False, success=True))
        lab.node.tick()
        assert (lab.journal.last_index, lab.journal.blank) == (3, False)

    run(main)


def test_who_knows_that_it_was_replaced_is_elected_by_nobody() -> None:
    async def main() -> None:
        lab = Lab()
        seat = (pack_seat(Seat("a", 1, "new:9878", "new:9000")), 2, 1)
        lab.node.received("b", append(1, (1, 0), (seat,)))
        await asyncio.sleep(1)
        lab.said.clear()
        lab.node.tick()
        for peer in "bc":
            lab.node.received(peer, PreVoteAnswer(lab.node.term + 1, lab.node.term, True))
        lab.node.tick()
        assert lab.heard(RequestVote) == []

    run(main)


@pytest.mark.parametrize("seed", range(4))
def test_a_wiped_member_cannot_elect_a_leader_that_lacks_decisions(seed: int) -> None:
    """n0 and n1 decide while n2 is away; n1 loses its disk, n0 is away: n2 must not lead with n1's help."""
    group = Group(seed)

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        leader = await group.wait_leader()
        assert await wait_for(lambda: all(m.up for m in group.members.values()))
        other, away = [m for m in group.members.values() if m is not leader]
        away.kill()
        for _ in range(30):
            assert await group.propose()
        leader.kill()
        other.kill()
        other.replace_disk()
        await other.start()
        await away.start()
        await asyncio.sleep(15)
        assert group.leader() is None
        assert other.raft is not None
        assert "no leader" in (other.raft.health() or "")
        await leader.start()
        await wait_for(lambda: other.up)  # admitted, and only now
        assert other.raft.admitted
        away.kill()
        assert await wait_for(lambda: group.leader())
        await group.settle()

    try:
        group.loop.run_until_complete(main())
        assert group.verdict() == {}
        assert len(group.acked) > 30
    finally:
        group.loop.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_torn_end_beside_a_lost_member_costs_no_decision_and_waits_for_its_seat(seed: int) -> None:
    """n0 and n1 decide while n2 is away; n0's next write is torn, n1 loses its disk. What n0 knew is not
    told apart from a damaged end, so only n2 votes; all three elect nobody that has less than n0."""
    group = Group(seed)

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        leader = await group.wait_leader()
        assert await wait_for(lambda: all(m.up for m in group.members.values()))
        lost, away = [m for m in group.members.values() if m is not leader]
        away.kill()
        for _ in range(30):
            assert await group.propose()
        leader.kill()
        lost.kill()
        journal = leader.machine.find(f"/raft/{JOURNAL}")
        assert journal is not None
        journal.write(b"KRB1, and no more of it", journal.size)
        lost.replace_disk()
        await leader.start()
        await away.start()
        await asyncio.sleep(15)
        assert group.leader() is None
        await lost.start()
        assert await wait_for(group.leader) is leader
        await wait_for(lambda: all(m.up for m in group.members.values()))
        await group.settle()

    try:
        group.loop.run_until_complete(main())
        assert group.verdict() == {}
        assert len(group.acked) > 30
    finally:
        group.loop.close()
