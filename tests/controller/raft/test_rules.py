"""The promise of controller.raft.node, message by message: no stale, forged or repeated word moves it."""

import asyncio
import itertools

import pysyncobj.syncobj
import pytest
from pysyncobj.version import VERSION

from controller.raft.codec import (
    SNAPSHOT_CHUNK_BYTES,
    Ack,
    AppendEntries,
    Entry,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    Snapshot,
    TimeoutNow,
    Vote,
    decode_message,
    encode_message,
    encode_snapshot,
)
from controller.raft.disk.journal import Journal
from controller.raft.library import library, need_version
from controller.raft.node import REGULAR, Diverged, Failed
from controller.raft.seats import SEAT
from model.errors import PeerError
from tests.fakes.controller.node import TIMING, Lab, append, entries, run


def test_the_library_is_the_one_these_rules_were_checked_with() -> None:
    # Another version may name its insides differently: run tests/controller, then change this.
    need_version(VERSION)
    with pytest.raises(ImportError, match=r"exactly pysyncobj 0\.3\.17, this is 0\.3\.18"):
        need_version("0.3.18")


def test_other_users_of_the_library_find_it_unchanged() -> None:
    assert library is not pysyncobj.syncobj
    assert pysyncobj.syncobj.createJournal.__module__ == "pysyncobj.journal"
    assert pysyncobj.syncobj.pickle is not None


def test_a_delayed_duplicate_takes_nothing_away() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 10, 1), commit=10))
        lab.node.tick()
        assert len(lab.applied) == 9
        lab.node.received("b", append(1, (1, 0), entries(2, 3, 1), commit=3))
        assert lab.log[-1] == (10, 1)
        assert lab.last_ack() == Ack(1, 4, reset=False, success=True)
        await asyncio.sleep(1)
        lab.node.received("c", RequestVote(2, 3, 1))
        assert lab.heard(Vote) == [("c", Vote(2, granted=False))]

    run(main)


def test_a_contradicting_tail_is_replaced() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 5, 1)))
        lab.node.received("c", append(2, (3, 1), entries(4, 4, 2)))
        assert lab.log == [(1, 0), (2, 1), (3, 1), (4, 2)]
        assert lab.last_ack() == Ack(2, 5, reset=False, success=True)

    run(main)


def test_a_contradiction_of_what_is_committed_stops_the_node() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 5, 1), commit=5))
        with pytest.raises(Diverged, match="entry 4"):
            lab.node.received("c", append(2, (3, 1), entries(4, 4, 2)))
        assert lab.log[-1] == (5, 1)

    run(main)


def test_a_leader_that_does_not_fit_is_told_where_to_look() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 6, 1), commit=3))
        lab.said.clear()
        lab.node.received("c", append(3, (6, 2)))
        assert lab.last_ack() == Ack(3, 4, reset=True, success=False)  # the whole term, nothing committed
        lab.node.received("c", append(3, (9, 3)))
        assert lab.last_ack() == Ack(3, 7, reset=True, success=False)

    run(main)


def test_only_what_was_compared_is_committed() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 9, 1)))
        lab.node.received("c", append(2, (3, 1), commit=9))
        assert lab.node.commit_index == 3

    run(main)


def test_a_leader_commits_entries_of_its_own_term_only() -> None:
    """Figure 8 of the paper: an entry of a former term on a majority may still be overwritten by a leader
    whose log ends in a later term, so it is committed only together with an entry of this term."""

    async def main() -> None:
        lab = Lab("bcde")
        lab.node.received("b", append(2, (1, 0), entries(2, 2, 2)))  # the entry of term 2 in the figure
        term = await lab.lead()
        assert term > 2
        assert lab.log == [(1, 0), (2, 2), (3, term)]
        for peer in ("b", "c", "d", "e"):
            # All hold the entry of term 2, and none the one this leader began with.
            lab.node.received(peer, Ack(term, 3, reset=False, success=True))
            lab.node.tick()
        assert (lab.node.commit_index, lab.applied) == (1, [])
        lab.node.received("b", Ack(term, 4, reset=False, success=True))
        lab.node.tick()
        assert lab.node.commit_index == 1, "two of five"
        lab.node.received("c", Ack(term, 4, reset=False, success=True))
        lab.node.tick()
        assert (lab.node.commit_index, lab.applied) == (3, [b"2"])

    run(main)


def test_an_acknowledgement_of_another_term_counts_nothing() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        for number in range(3):
            lab.propose(b"%d" % number)
        lab.node.tick()
        last = lab.journal.last_index
        lab.node.received("b", Ack(term - 1, last + 1, reset=False, success=True))
        lab.node.tick()
        assert lab.results == []
        lab.node.received("b", Ack(term, last + 1, reset=False, success=True))
        lab.node.tick()
        assert lab.results == [(b"1", None), (b"2", None), (b"3", None)]

    run(main)


def test_an_acknowledgement_of_what_does_not_exist_is_refused() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        heard = lab.node.progress().peers["c"]
        await asyncio.sleep(0.01)
        with pytest.raises(PeerError, match="does not exist"):
            lab.node.received("c", Ack(term, 99, reset=False, success=True))
        assert (heard.answer_age_ms, lab.node.progress().peers["c"]) == (None, heard)

    run(main)


def test_a_voter_counts_once() -> None:
    async def main() -> None:
        lab = Lab("bcde")
        term = await lab.stand()
        lab.node.received("b", Vote(term, True))
        lab.node.received("b", Vote(term, True))
        assert not lab.node.leads()
        lab.node.received("c", Vote(term, True))
        assert lab.node.leads()

    run(main)


def test_a_refused_vote_counts_nothing() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.stand()
        lab.node.received("b", Vote(term, False))
        lab.node.received("c", Vote(term - 1, True))
        assert not lab.node.leads()

    run(main)


def test_no_term_is_raised_without_the_consent_of_a_majority() -> None:
    async def main() -> None:
        lab = Lab("bcde")
        for _ in range(10):
            await asyncio.sleep(1)
            lab.node.tick()
            asked = lab.heard(PreVote)
            assert len(asked) == 4
            lab.node.received("b", PreVoteAnswer(1, 0, True))
            lab.node.received("b", PreVoteAnswer(1, 0, True))
            lab.node.received("c", PreVoteAnswer(1, 0, False))
        assert lab.node.term == 0

    run(main)


def test_a_healthy_leader_is_not_deposed_by_a_hopeless_candidate() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        lab.said.clear()
        lab.node.received("c", RequestVote(99, 1, 0))
        lab.node.received("c", PreVote(99, 100, 99))
        assert lab.node.leads()
        assert lab.node.term == term
        assert lab.heard(PreVoteAnswer) == [("c", PreVoteAnswer(99, term, False, blank=True))]

    run(main)


def test_followers_of_a_healthy_leader_do_not_vote_unless_it_asks_them_to() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0)))
        lab.said.clear()
        lab.node.received("c", RequestVote(5, 9, 1))
        assert lab.said == []
        lab.node.received("c", RequestVote(5, 9, 1, transfer=True))
        assert lab.heard(Vote) == [("c", Vote(5, granted=True, blank=True))]

    run(main)


def test_a_vote_is_given_once_a_term_and_survives_a_restart() -> None:
    async def main() -> None:
        lab = Lab()
        await asyncio.sleep(1)
        lab.node.received("b", RequestVote(4, 9, 1))
        lab.node.received("c", RequestVote(4, 9, 1))
        yes, no = Vote(4, granted=True, blank=True), Vote(4, granted=False, blank=True)
        assert lab.heard(Vote) == [("b", yes), ("c", no)]
        again = Journal(lab.disk, "/raft/raft.journal", "a")
        assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (4, "b")

    run(main)


def test_a_deposed_leader_is_told_the_newer_term() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(5, (1, 0)))
        lab.said.clear()
        lab.node.received("c", append(3, (1, 0)))
        assert lab.heard(Ack) == [("c", Ack(5, 2, reset=False, success=False))]

    run(main)


def test_a_leader_that_hears_of_a_newer_term_steps_down() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        lab.node.received("c", Ack(term + 3, 2, reset=False, success=False))
        assert not lab.node.leads()
        assert lab.node.term == term + 3

    run(main)


def test_a_second_leader_of_the_same_term_is_a_broken_peer() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        with pytest.raises(PeerError, match="which is led from here"):
            lab.node.received("c", append(term, (1, 0)))

    run(main)


def test_a_leader_without_answers_steps_down_before_others_may_elect() -> None:
    async def main() -> None:
        lab = Lab()
        await lab.lead()
        since = asyncio.get_running_loop().time()
        while lab.node.leads():
            await asyncio.sleep(TIMING.append_s)
            lab.node.tick()
        assert asyncio.get_running_loop().time() - since < TIMING.election_min_s

    run(main)


def test_a_leader_that_was_held_up_itself_does_not_blame_its_followers() -> None:
    async def main() -> None:
        lab = Lab()
        await lab.lead()
        await asyncio.sleep(10 * TIMING.election_max_s)
        lab.node.tick()
        assert lab.node.leads()

    run(main)


def test_a_poison_command_is_an_error_to_its_proposer_and_the_log_goes_on() -> None:
    async def main() -> None:
        lab = Lab("")
        await asyncio.sleep(1)
        lab.node.tick()
        lab.propose(b"poison")
        lab.propose(b"good")
        lab.node.tick()
        assert lab.results == [(Failed("ValueError: poison"), None), (b"1", None)]

    run(main)


def test_a_failing_callback_does_not_apply_the_command_twice() -> None:
    async def main() -> None:
        lab = Lab("")
        await asyncio.sleep(1)
        lab.node.tick()

        def fail(_result: object, _why: str | None) -> None:
            raise ValueError("the caller's own mistake")

        lab.node.propose(REGULAR + b"once", fail)
        for _ in range(3):
            lab.node.tick()
        assert lab.applied == [b"once"]

    run(main)


def test_an_entry_of_an_unknown_kind_changes_nothing() -> None:
    async def main() -> None:
        lab = Lab()
        strange = ((b"\x02\x80\x05payload", 2, 1), (REGULAR + b"good", 3, 1))
        lab.node.received("b", append(1, (1, 0), strange, commit=3))
        lab.node.tick()
        assert lab.applied == [b"good"]

    run(main)


@pytest.mark.parametrize(
    "message",
    [
        AppendEntries(1, 1, None, None, entries(2, 2, 1)),
        AppendEntries(1, 1, 1, None, ()),
        append(1, (1, 0), entries(3, 3, 1)),
        append(1, (1, 0), entries(2, 2, 5)),
        append(2, (1, 0), entries(2, 2, 2) + entries(3, 3, 1)),
    ],
)
def test_entries_that_are_no_log_are_refused_and_change_nothing(message: AppendEntries) -> None:
    async def main() -> None:
        lab = Lab()
        with pytest.raises(PeerError):
            lab.node.received("b", message)
        assert lab.log == [(1, 0)]
        assert lab.node.term == 0

    run(main)


def test_a_handover_makes_the_chosen_one_stand_at_once() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0)))
        lab.node.received("c", TimeoutNow(1))
        lab.node.tick()
        assert lab.node.term == 1  # not the leader's word
        lab.node.received("b", TimeoutNow(1))
        lab.node.tick()
        assert [m for _, m in lab.heard(RequestVote)] == [RequestVote(2, 1, 0, transfer=True)] * 2

    run(main)


def test_a_leader_hands_over_to_one_that_holds_everything() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        assert lab.node.transfer_leadership() is None
        lab.node.received("c", Ack(term, lab.journal.last_index + 1, reset=False, success=True))
        assert lab.node.transfer_leadership() == "c"
        assert lab.heard(TimeoutNow) == [("c", TimeoutNow(term))]

    run(main)


def test_a_leader_hands_over_to_nobody_that_fell_silent_and_asks_another_when_one_does_not_stand() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()

        def answers(*peers: str) -> None:
            for peer in peers:
                lab.node.received(peer, Ack(term, lab.journal.last_index + 1, reset=False, success=True))

        answers("b", "c")
        await asyncio.sleep(4 * TIMING.append_s)
        answers("c")
        assert lab.node.transfer_leadership() == "c"
        assert lab.node.transfer_leadership("b") is None
        asked = []
        for _ in range(40):
            answers("b", "c")
            asked.append(lab.node.transfer_leadership())
            await asyncio.sleep(TIMING.retry_s)
        turns = [peer for peer, _ in itertools.groupby(asked)]
        assert turns[:4] == ["c", "b", "c", "b"]
        assert len(turns) < 10, "each has time to win before another one is asked"

    run(main)


def test_compaction_keeps_the_state_and_a_far_follower_gets_the_snapshot() -> None:
    async def main() -> None:
        lab = Lab(compact_entries=10)
        term = await lab.lead()
        big = bytes(SNAPSHOT_CHUNK_BYTES // 8)
        for number in range(20):
            lab.propose(b"%d" % number + big)
        lab.node.tick()
        lab.node.received("b", Ack(term, lab.journal.last_index + 1, reset=False, success=True))
        lab.node.tick()
        assert lab.journal.first_index > 10
        assert len(lab.stored) == 1
        lab.said.clear()
        lab.node.received("c", Ack(term, 2, reset=True, success=False))
        lab.node.tick()
        to_c = [m for peer, m in lab.said if peer == "c" and isinstance(m, AppendEntries)]
        pieces = [m.serialized for m in to_c if m.serialized is not None]
        assert len(pieces) > 1
        assert b"".join(data for data, _, _ in pieces) == lab.stored[0]
        assert [first for _, first, _ in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [last for _, _, last in pieces] == [False] * (len(pieces) - 1) + [True]

        other = Lab()
        for message in to_c:
            other.node.received("b", message)
        other.node.tick()
        assert other.applied == lab.applied
        assert other.stored == lab.stored
        assert other.last_ack().next_index == lab.journal.last_index + 1

    run(main)


SNAPSHOT = Snapshot((REGULAR + b"8", 8, 2), (REGULAR + b"9", 9, 2), b"s1\ns2")


def test_a_damaged_snapshot_is_not_installed() -> None:
    async def main() -> None:
        lab = Lab()
        data = bytearray(encode_snapshot(SNAPSHOT))
        data[-1] ^= 1
        with pytest.raises(PeerError, match="damaged"):
            lab.node.received("b", AppendEntries(2, 9, serialized=(bytes(data), True, True)))
        assert (lab.stored, lab.applied, lab.log) == ([], [], [(1, 0)])

    run(main)


def test_a_snapshot_of_the_past_takes_nothing_back() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(2, (1, 0), entries(2, 12, 2), commit=11))
        lab.node.tick()
        lab.said.clear()
        lab.node.received("b", AppendEntries(2, 9, serialized=(encode_snapshot(SNAPSHOT), True, True)))
        assert lab.log[-1] == (12, 2)
        assert len(lab.applied) == 10
        assert lab.last_ack().next_index == 12

    run(main)


def test_entries_behind_an_installed_snapshot_stay_if_they_continue_it() -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(2, (1, 0), entries(2, 12, 2), commit=3))
        lab.node.tick()
        lab.node.received("b", AppendEntries(2, 9, serialized=(encode_snapshot(SNAPSHOT), True, True)))
        assert lab.log[0] == (8, 2)
        assert lab.log[-1] == (12, 2)
        assert lab.applied == [b"s1", b"s2"]

    run(main)


def test_a_node_starts_from_its_snapshot() -> None:
    async def main() -> None:
        lab = Lab(snapshot=SNAPSHOT)
        assert lab.applied == [b"s1", b"s2"]
        assert (lab.node.last_applied, lab.node.commit_index) == (9, 9)
        lab.node.received("b", append(2, (9, 2), entries(10, 10, 2), commit=10))
        lab.node.tick()
        assert lab.applied == [b"s1", b"s2", b"10"]

    run(main)


def _snapshot_of(last: Entry, *, damaged: bool) -> AppendEntries:
    """The only piece of a snapshot whose last entry is ``last``."""
    data = bytearray(encode_snapshot(Snapshot((REGULAR + b"8", 8, 2), last, b"s1\ns2")))
    data[-1] ^= damaged
    return AppendEntries(7, 9, None, None, (), (bytes(data), True, True))


BROKEN_SEAT = SEAT + b"\xc1"  # no msgpack


@pytest.mark.parametrize(
    "message",
    [
        AppendEntries(7, 3, 3, 1, ((BROKEN_SEAT, 4, 7),)),
        AppendEntries(7, 3, 2, 1, ((REGULAR + b"3", 3, 1), (BROKEN_SEAT, 4, 7))),
        AppendEntries(7, 3, 8, 7, ((BROKEN_SEAT, 9, 7),)),  # beyond the end of this log
        _snapshot_of((REGULAR + b"9", 9, 2), damaged=True),
        _snapshot_of((BROKEN_SEAT, 9, 2), damaged=False),
    ],
)
def test_a_frame_with_a_broken_seat_or_snapshot_changes_neither_term_nor_leader_nor_commit(
    message: AppendEntries,
) -> None:
    async def main() -> None:
        lab = Lab()
        lab.node.received("b", append(1, (1, 0), entries(2, 3, 1), commit=2))
        lab.node.tick()
        await asyncio.sleep(0.1)
        node, before = lab.node, (lab.node.progress(), lab.log, list(lab.applied))
        lab.said.clear()
        with pytest.raises(PeerError):
            node.received("c", message)
        assert (node.term, node.leader(), node.commit_index, node.voted_for) == (1, "b", 2, None)
        assert (node.progress(), lab.log, list(lab.applied)) == before
        assert (lab.said, lab.stored, node.seats.current) == ([], [], {})

    run(main)


def test_every_message_survives_the_wire_and_nothing_else_is_one() -> None:
    for message in (
        append(1, (1, 0), entries(2, 3, 1)),
        Ack(1, 2, True, False),
        RequestVote(1, 2, 3),
        Vote(1, True),
        PreVote(1, 2, 3),
        PreVoteAnswer(1, 2, True),
        TimeoutNow(1),
    ):
        assert decode_message(encode_message(message)) == message
    for junk in (b"", b"\x80", b"\x04\x95cos\nsystem\n", encode_message(Vote(1, True)) + b"x"):
        with pytest.raises(PeerError):
            decode_message(junk)
    for wrong in (
        {"type": "vote", "term": -1, "granted": True},
        {"type": "status"},
        {"type": "vote", "term": 1},
    ):
        with pytest.raises(PeerError):
            decode_message(encode_message(wrong))
