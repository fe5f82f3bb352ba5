"""The promise of Node.read: it answers only after a majority, asked later than the read, still followed."""

import asyncio

import pytest

from controller.raft.codec import Ack, AppendEntries, RequestVote
from controller.raft.reads import Reads
from tests.fakes.controller.node import TIMING, Lab, entries, run


class Reader(Lab):
    """A lab that leads and reads."""

    def __init__(self, others: str = "bc") -> None:
        super().__init__(others)
        self.term = 0
        self.answers: list[str | None] = []

    async def begin(self) -> None:
        """Lead, with the first entry of the term committed, and nothing waiting."""
        self.term = await self.lead()
        self.answer("b")
        self.node.tick()
        self.said.clear()

    def read(self) -> None:
        self.node.read(lambda _result, why: self.answers.append(why))

    def round_said(self) -> int:
        """The number of the newest question to b."""
        return max(m.round for peer, m in self.said if peer == "b" and isinstance(m, AppendEntries))

    def answer(self, peer: str, number: int = 0, *, term: int | None = None) -> bool:
        term = self.term if term is None else term
        ack = Ack(term, self.journal.last_index + 1, reset=False, success=True, round=number)
        return self.node.received(peer, ack)


def test_a_read_writes_nothing_and_waits_for_a_majority_asked_after_it() -> None:
    async def main() -> None:
        lab = Reader("bcde")
        await lab.begin()
        lab.answer("c")
        lab.node.tick()
        size, last = lab.journal.size_bytes, lab.journal.last_index
        lab.read()
        lab.node.tick()
        number = lab.round_said()
        for peer in "bcde":
            lab.answer(peer, number - 1)  # what they were asked before the read
        lab.answer("b", number)
        lab.answer("b", number)
        lab.node.tick()
        assert lab.answers == []
        assert lab.answer("d", number)
        lab.node.tick()
        assert lab.answers == [None]
        assert (lab.journal.size_bytes, lab.journal.last_index) == (size, last)

    run(main)


def test_reads_that_wait_together_share_a_round_and_later_ones_do_not() -> None:
    async def main() -> None:
        lab = Reader()
        await lab.begin()
        for _ in range(50):
            lab.read()
        lab.node.tick()
        first = lab.round_said()
        assert sum(peer == "b" for peer, _ in lab.said) == 1
        lab.read()
        lab.answer("b", first)
        lab.node.tick()
        assert lab.answers == [None] * 50
        lab.answer("c", lab.round_said())
        lab.node.tick()
        assert lab.answers == [None] * 51

    run(main)


def test_a_new_leader_answers_no_read_before_its_first_entry_is_committed() -> None:
    async def main() -> None:
        lab = Reader()
        lab.node.received("b", AppendEntries(1, 1, 1, 0, entries(2, 5, 1)))  # committed or not: unknown here
        lab.said.clear()
        lab.term = await lab.lead()
        lab.read()
        lab.node.tick()
        reached = Ack(lab.term, 6, reset=False, success=True, round=lab.round_said())
        lab.node.received("b", reached)
        lab.node.tick()
        assert (lab.answers, lab.applied) == ([], [])
        lab.answer("b", lab.round_said())
        lab.node.tick()
        assert lab.answers == [None]
        assert lab.applied == [b"2", b"3", b"4", b"5"]

    run(main)


def test_a_leader_that_was_deposed_refuses_what_waits() -> None:
    async def main() -> None:
        lab = Reader()
        await lab.begin()
        lab.read()
        lab.node.tick()
        number = lab.round_said()
        lab.node.received("c", Ack(lab.term + 1, 2, reset=False, success=False))
        lab.answer("b", number)
        lab.node.tick()
        assert lab.answers == ["not the leader"]
        lab.read()
        assert lab.answers == ["not the leader"] * 2

    run(main)


def test_an_answer_of_a_former_term_or_to_what_was_never_asked_proves_nothing() -> None:
    async def main() -> None:
        lab = Reader()
        await lab.begin()
        lab.read()
        lab.node.tick()
        number = lab.round_said()
        lab.answer("b", number, term=lab.term - 1)
        lab.answer("b", number + 7)
        lab.node.tick()
        assert lab.answers == []

    run(main)


def test_a_group_of_one_reads_at_once() -> None:
    async def main() -> None:
        lab = Reader("")
        await asyncio.sleep(1)
        lab.node.tick()
        lab.read()
        lab.node.tick()
        assert lab.answers == [None]

    run(main)


def test_signs_of_life_and_their_answers_move_nothing() -> None:
    async def main() -> None:
        leader = Reader()
        await leader.begin()
        await asyncio.sleep(TIMING.append_s * 1.5)
        leader.node.tick()
        assert [m.entries for _, m in leader.said if isinstance(m, AppendEntries)] == [(), ()]
        assert not leader.answer("b")
        follower = Lab()
        quiet = AppendEntries(1, 1, 1, 0)
        assert follower.node.received("b", quiet)  # a leader nobody knew of
        assert not follower.node.received("b", quiet)
        assert follower.node.received("b", AppendEntries(1, 2, 1, 0, entries(2, 2, 1)))
        follower.node.tick()
        assert follower.node.received("c", RequestVote(9, 5, 1, transfer=True))

    run(main)


def test_a_command_behind_a_read_is_not_held_up_by_it() -> None:
    async def main() -> None:
        lab = Reader()
        await lab.begin()
        lab.read()
        lab.propose(b"x")
        lab.node.tick()
        lab.answer("b", 0)
        lab.node.tick()
        assert (lab.results, lab.answers) == ([(b"1", None)], [])

    run(main)


def test_a_read_that_does_not_ask_is_caught_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reads, "_confirmed", lambda reads: reads.round)
    with pytest.raises(AssertionError):
        test_a_read_writes_nothing_and_waits_for_a_majority_asked_after_it()
