"""The promise of a replacement (docs/raft.md): the seat of a lost member goes to a new machine, no decision
is lost and no term has two leaders, at whatever moment something dies; the old machine counts for nothing."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from controller.links.roster import Roster
from controller.raft.codec import Ack, Admit, PreVote, PreVoteAnswer, RequestVote, Seat, Vote
from controller.raft.disk.journal import Journal
from controller.raft.seats import Seats, pack_seat
from model.errors import Refused
from tests.fakes.controller.node import Lab, append, run
from tests.fakes.controller.raft_sim import Group, Member, wait_for
from tests.fakes.disk.crashing import CrashingDisk, machine

ADDRESS, RAFT = "new:9878", "new:9000"


def refused(lab: Lab, old: str = "c") -> str | None:
    try:
        lab.node.replace(old, ADDRESS, RAFT, lambda result, why: lab.results.append((result, why)))
    except Refused as error:
        return str(error)
    return None


async def leading(others: str = "bc") -> tuple[Lab, int]:
    """It leads, the entry its term began with is committed, and all others answered."""
    lab = Lab(others)
    term = await lab.lead()
    for peer in others:
        lab.node.received(peer, Ack(term, 3, reset=False, success=True))
    lab.node.tick()
    assert lab.node.commit_index == 2
    return lab, term


def test_the_old_member_counts_for_nothing_from_the_appending_on() -> None:
    async def main() -> None:
        lab, term = await leading("bcde")
        assert refused(lab, "e") is None
        for peer in "be":
            lab.node.received(peer, Ack(term, 4, reset=False, success=True))
        lab.node.tick()
        assert (lab.node.commit_index, lab.results) == (2, []), "a, b and the one that was replaced"
        lab.node.received("c", Ack(term, 4, reset=False, success=True))
        lab.node.tick()
        assert (lab.node.commit_index, lab.results) == (3, [(b"1", None)])

    run(main)


def test_its_vote_does_not_elect_where_the_entry_is_held_though_not_committed() -> None:
    async def main() -> None:
        lab = Lab("bcde")
        entry = (pack_seat(Seat("e", 1, ADDRESS, RAFT)), 2, 1)
        lab.node.received("b", append(1, (1, 0), (entry,)))
        await asyncio.sleep(1)
        lab.node.tick()
        (_, asked), *_ = lab.heard(PreVote)
        assert isinstance(asked, PreVote)
        for peer in "be":
            lab.node.received(peer, PreVoteAnswer(asked.term, asked.term - 1, True))
        lab.node.tick()
        assert lab.heard(RequestVote) == []
        lab.node.received("c", PreVoteAnswer(asked.term, asked.term - 1, True))
        lab.node.tick()
        for peer in "be":
            lab.node.received(peer, Vote(asked.term, True))
        assert not lab.node.leads()
        lab.node.received("c", Vote(asked.term, True))
        assert lab.node.leads()

    run(main)


def test_an_entry_that_is_cut_brings_the_old_member_back() -> None:
    async def main() -> None:
        lab = Lab("bcde")
        entry = (pack_seat(Seat("e", 1, ADDRESS, RAFT)), 2, 1)
        lab.node.received("b", append(1, (1, 0), (entry,)))
        assert lab.node.seats.incarnation("e") == 1
        lab.node.received("c", append(2, (1, 0), ((b"\x01", 2, 2),)))
        assert lab.node.seats.current == {}

    run(main)


def test_only_one_change_at_a_time_and_only_with_a_majority_without_it() -> None:
    async def main() -> None:
        lab, term = await leading("bcde")
        assert refused(lab, "e") is None
        assert "of e is not committed yet" in str(refused(lab, "d"))
        for peer in "bcd":
            lab.node.received(peer, Ack(term, 4, reset=False, success=True))
        lab.node.tick()
        assert "e was replaced and does not vote yet" in str(refused(lab, "d"))
        assert refused(lab, "e") is None, "its new machine may be lost, too"
        assert lab.node.seats.incarnation("e") == 2

    run(main)


def test_without_a_majority_of_the_others_nothing_is_replaced() -> None:
    async def main() -> None:
        lab, _ = await leading()
        lab.node.down("b")
        before = lab.log
        assert "without c only 1 of 3 Controllers vote and answer (this one)" in str(refused(lab))
        assert lab.log == before

    run(main)


def test_a_leader_first_commits_an_entry_of_its_own_term() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        for peer in "bc":
            lab.node.received(peer, Ack(term, 2, reset=False, success=True))
        assert "has not committed an entry of its own term" in str(refused(lab))

    run(main)


def test_the_new_machine_is_admitted_once_it_holds_the_committed_change() -> None:
    async def main() -> None:
        lab, term = await leading()
        assert refused(lab) is None
        lab.node.down("c")
        lab.node.up("c")

        def answer(peer: str, next_index: int, number: int, *, admitted: bool = True) -> None:
            lab.node.received(peer, Ack(term, next_index, False, True, 0, number, admitted))

        answer("c", 4, 0, admitted=False)
        lab.node.tick()
        answer("b", 3, 1)  # it follows, asked later than c began
        lab.node.tick()
        answer("c", 4, 1, admitted=False)
        assert lab.heard(Admit) == [], "that the seat is vacant is not committed"
        answer("b", 4, 1)
        lab.node.tick()
        answer("c", 3, 1, admitted=False)
        assert lab.heard(Admit) == [], "c lacks it"
        answer("c", 4, 1, admitted=False)
        assert lab.heard(Admit) == [("c", Admit(term, 1))]

    run(main)


def test_an_admitted_member_has_voted_for_its_leader() -> None:
    """Its past self may have voted in this term for that leader: no second vote is left."""

    async def main() -> None:
        lab = Lab(admitted=False)
        lab.node.received("b", append(4, (1, 0)))
        lab.node.received("b", Admit(4, 2))
        assert (lab.journal.admitted, lab.journal.incarnation) == (True, 2)
        assert lab.journal.getVotedForNodeId() == "b"
        lab.node.received("c", RequestVote(4, 9, 3, transfer=True))
        assert lab.heard(Vote) == [("c", Vote(4, granted=False, blank=True))]

    run(main)


def test_a_new_machine_is_not_elected_before_the_change_is_committed_and_then_in_its_incarnation() -> None:
    """All vote for it, so an empty past does not matter; that the former one is out must be certain."""

    async def main() -> None:
        lab = Lab(admitted=False)
        entry = (pack_seat(Seat("a", 1, ADDRESS, RAFT)), 2, 1)
        lab.node.received("b", append(1, (1, 0), (entry,)))
        assert not await elected_by_all(lab)
        lab.node.received("b", append(lab.node.term + 1, (2, 1), commit=2))
        assert await elected_by_all(lab)
        assert (lab.journal.admitted, lab.journal.incarnation) == (True, 1)

    run(main)


async def elected_by_all(lab: Lab) -> bool:
    await asyncio.sleep(1)
    lab.said.clear()
    lab.node.tick()
    (_, asked), *_ = lab.heard(PreVote)
    assert isinstance(asked, PreVote)
    for peer in lab.node.peers:
        lab.node.received(peer, PreVoteAnswer(asked.term, asked.term - 1, True))
    lab.node.tick()
    for peer in lab.node.peers:
        lab.node.received(peer, Vote(asked.term, True))
    return lab.node.leads()


def test_a_directory_remembers_its_incarnation_also_without_its_admission() -> None:
    disk = CrashingDisk(machine())
    journal = Journal(disk, "/raft/raft.journal", "a")
    assert journal.incarnation is None
    journal.admit(3)
    assert Journal(disk, "/raft/raft.journal", "a").incarnation == 3
    again = Journal(disk, "/raft/raft.journal", "a")
    again.clear()
    assert Journal(disk, "/raft/raft.journal", "a").incarnation == 3


def test_snapshots_hold_the_seats_and_begin_them_anew() -> None:
    seats, one, two = Seats(), Seat("a", 1, ADDRESS, RAFT), Seat("b", 1, ADDRESS, RAFT)
    seats.load((one,), 5, [(pack_seat(two), 5, 1), (pack_seat(two), 7, 1)])
    assert (seats.until(6), seats.until(7)) == ((one,), (one, two))
    assert (seats.index_of("a"), seats.index_of("b")) == (0, 7)
    assert seats.open_change(6) == two
    seats.cut_from(7)
    assert seats.current == {"a": one}


# whole members, in the simulated network


async def replace(group: Group, old: str, host: str) -> bool:
    leader = group.leader()
    if leader is None or leader.raft is None:
        return False
    work = partial(leader.raft.replace, old, f"{host}:8000", f"{host}:9000", 1.0)
    return await group.inside(leader, work) is not None


async def replaced(group: Group, old: str, host: str) -> None:
    """As an operator does it: again until the answer is yes."""
    for _ in range(400):
        if await replace(group, old, host):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{old} was not replaced")


async def lost(group: Group) -> Member:
    """A follower that is gone with its machine, for now; its directory is as it was."""
    await wait_for(lambda: all(member.up for member in group.members.values()))
    leader = await group.wait_leader()
    member = next(m for m in group.members.values() if m is not leader)
    member.kill(power=True)
    return member


@pytest.mark.parametrize("old_id", ["n0", "n2"])
@pytest.mark.sim
def test_a_new_machine_takes_over_and_the_old_one_is_refused(old_id: str) -> None:
    """n0 dials all others, n2 is dialed by all."""
    group = Group(3)

    async def main() -> None:
        await group.wait_leader()
        await wait_for(lambda: all(member.up for member in group.members.values()))
        if group.leader() is group.members[old_id]:
            leader = group.members[old_id]
            assert leader.raft is not None
            await group.inside(leader, leader.raft.transfer)
        for _ in range(30):
            await group.propose()
        old = group.members[old_id]
        old.kill(power=True)
        await replaced(group, old_id, f"{old_id}b")
        new = group.members[old_id] = Member(group, old_id, f"{old_id}b")
        await new.start()
        await wait_for(lambda: new.up)
        await old.start()
        for _ in range(30):
            assert old.raft is not None
            assert old.raft.peers == [], "nothing listens to it"
            assert not old.up
            await group.propose()
            await asyncio.sleep(0.1)
        # The new one votes: with one other it is a majority.
        other = next(m for m in group.members.values() if m is not new and m is not group.leader())
        leader = await group.wait_leader()
        (other if leader is new else leader).kill()
        for _ in range(100):
            if await group.propose():
                break
            await asyncio.sleep(0.1)
        else:
            raise TimeoutError("two of three decide nothing")
        old.kill()
        await group.settle()

    group.play(main)
    assert group.verdict() == {}


async def the_old_machine_comes_first(group: Group) -> list[str]:
    """n0's seat goes to n0b. The machine at n0 starts with an empty directory, then n0b: what is wrong."""
    await group.wait_leader()
    await wait_for(lambda: all(member.up for member in group.members.values()))
    old = group.members["n0"]
    if group.leader() is old:
        assert old.raft is not None
        await group.inside(old, old.raft.transfer)
    old.kill(power=True)
    await replaced(group, "n0", "n0b")
    old.replace_disk()
    await old.start()
    await asyncio.sleep(5)
    assert old.raft is not None
    wrong = ["the old machine has the seat"] if old.raft.admitted or old.raft.peers else []
    new = group.members["n0"] = Member(group, "n0", "n0b")
    await new.start()
    try:
        await wait_for(lambda: new.up)
    except TimeoutError:
        wrong.append("the new machine does not get the seat")
    old.kill()
    return wrong


def test_the_old_machine_with_an_empty_directory_does_not_take_the_seat_before_the_new_one() -> None:
    group = Group(3)

    async def main() -> None:
        assert await the_old_machine_comes_first(group) == []
        await group.settle()

    group.play(main)
    assert group.verdict() == {}


def test_planted_an_address_that_is_not_looked_at_gives_the_seat_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Roster.check_claim

    def claims_nothing(self: Roster, label: str, address: str | None) -> str:
        return original(self, label, self.addresses["n0"])

    monkeypatch.setattr(Roster, "check_claim", claims_nothing)
    group, wrong = Group(3), list[str]()

    async def main() -> None:
        wrong.extend(await the_old_machine_comes_first(group))

    group.play(main)
    assert "the old machine has the seat" in wrong


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.sim
def test_kills_in_the_middle_cost_nothing(seed: int) -> None:
    """While a seat changes hands members are killed, also with loss of power, and cut off; the old machine
    comes back in the middle, and compactions leave the change to snapshots."""
    group = Group(seed, count=3 if seed % 2 else 5, compact_entries=40)
    chance = group.random

    async def main() -> None:
        old = await lost(group)
        writer = asyncio.ensure_future(group.write_for_ever())
        new = Member(group, old.name, f"{old.name}b")
        asking = asyncio.ensure_future(replaced(group, old.name, new.host))
        for _ in range(12):
            await asyncio.sleep(chance.uniform(0, 0.3))
            victim = chance.choice(list(group.members.values()))
            if victim.raft is None and victim is not old:
                await victim.start()
            elif victim is not old and sum(m.raft is not None for m in group.members.values()) > 1:
                victim.kill(power=chance.random() < 0.5)
            if old.raft is None and chance.random() < 0.3:
                await old.start()
            if asking.done() and group.members[old.name] is old:
                group.members[old.name] = new
                await new.start()
        for member in group.members.values():
            if member.raft is None and member is not old:
                await member.start()
        await asking
        group.members[old.name] = new
        if new.raft is None:
            await new.start()
        await wait_for(lambda: new.up, 60)
        await wait_for(group.leader)
        wanted = len(group.acked) + 10
        await wait_for(lambda: len(group.acked) >= wanted, 60)
        if old.raft is None:
            await old.start()
        await asyncio.sleep(2)
        assert not old.up
        old.kill()
        writer.cancel()
        await group.settle()
        for member in group.members.values():
            assert member.raft is not None
            assert member.raft.seats[old.name].address == f"{new.host}:8000"

    group.play(main)
    assert group.verdict() == {}


async def the_replaced_machines_find_an_empty_member(group: Group) -> tuple[Member, Member]:
    """n1 and n2 are given to new machines. Both old ones run on, that of n2 with an empty directory, when n0
    loses its own and still dials where they are (shrunk from seed 5309 of the fuzzer)."""
    await wait_for(lambda: all(member.up for member in group.members.values()))
    for _ in range(30):
        await group.propose()
    old1, old2 = group.members["n1"], group.members["n2"]
    for old in (old1, old2):
        old.kill(power=True)
        if old is old2:
            old.replace_disk()
        await replaced(group, old.name, f"{old.name}b")
        new = group.members[old.name] = Member(group, old.name, f"{old.name}b")
        new.addresses.update({"n1": "n1b:9000"})
        await new.start()
        await wait_for(partial(getattr, new, "up"))
    wiped = group.members["n0"]
    wiped.kill(power=True)
    wiped.replace_disk()
    for member in (old1, old2, wiped):
        await member.start()
    return old1, old2


def test_replaced_machines_and_an_empty_member_elect_nobody() -> None:
    """None of the three knows that two were replaced, and all vote for n1. The group that has the seats goes
    on, and n0 comes back once it looks for the right ones."""
    group = Group(3)

    async def main() -> None:
        olds = await the_replaced_machines_find_an_empty_member(group)
        before = len(group.acked)
        for _ in range(100):
            assert not any(old.raft is not None and old.raft.is_leader for old in olds)
            assert group.members["n0"].raft is not None
            assert not group.members["n0"].raft.admitted
            await group.propose()
            await asyncio.sleep(0.1)
        assert len(group.acked) > before
        assert olds[0].raft is not None
        assert "1 of 3 Controllers has its directory" in str(olds[0].raft.health())
        for member in (*olds, group.members["n0"]):
            member.kill()
        group.members["n0"].addresses.update({"n1": "n1b:9000", "n2": "n2b:9000"})
        await group.settle()

    group.play(main)
    assert group.verdict() == {}


def test_planted_the_votes_of_all_alone_would_make_a_replaced_machine_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.raft.voting.may_elect", lambda voters: True)
    group = Group(3)

    async def main() -> None:
        old, _ = await the_replaced_machines_find_an_empty_member(group)
        await wait_for(lambda: old.raft is not None and old.raft.is_leader)

    group.play(main)
