"""The promise of Raft's commit rule: only an entry of the leader's own term is committed by counting members.

Figure 8 of the Raft paper: an entry of a former term may be on a majority and still be overwritten, by a
leader that has an entry of a later term in its place. It counts once an entry of the leader's term, behind
it, is on a majority.
"""

from __future__ import annotations

from controller.raft.codec import Ack, AppendEntries
from tests.fakes.controller.node import Lab, append, entries, run

OLD_TERM, S5_TERM = 2, 3


async def led_again() -> tuple[Lab, int]:
    """Figure 8 (c): a leads anew, and b and c hold its entry 2 of a former term, and nothing else."""
    lab = Lab("bcde")
    lab.node.received("b", append(OLD_TERM, (1, 0), entries(2, 2, OLD_TERM)))
    term = await lab.lead()
    assert term > OLD_TERM
    assert lab.log == [(1, 0), (2, OLD_TERM), (3, term)]
    for peer in "bc":
        lab.node.received(peer, Ack(term, 3, reset=False, success=True))
    lab.node.tick()
    return lab, term


def test_an_entry_of_a_former_term_is_not_committed_by_counting() -> None:
    async def main() -> None:
        lab, _ = await led_again()
        assert lab.node.commit_index == 1, "a majority holds entry 2, and it may still be overwritten"
        assert lab.applied == []

    run(main)


def test_it_may_be_overwritten_while_no_entry_of_the_new_term_is_on_a_majority() -> None:
    """Figure 8 (d): e, which has an entry 2 of its own, leads next with the votes of c, d and e."""

    async def main() -> None:
        lab, term = await led_again()
        lab.node.received("e", append(term + 1, (1, 0), entries(2, 2, S5_TERM), commit=2))
        lab.node.tick()
        assert lab.log == [(1, 0), (2, S5_TERM)]
        assert lab.applied == [b"2"]

    run(main)


def test_it_is_committed_with_the_first_entry_of_the_new_term_behind_it() -> None:
    """Figure 8 (e): from then on e cannot be elected, its log is older than that of a majority."""

    async def main() -> None:
        lab, term = await led_again()
        for peer in "bc":
            lab.node.received(peer, Ack(term, 4, reset=False, success=True))
        lab.node.tick()
        assert lab.node.commit_index == 3
        assert lab.applied == [b"2"]
        lab.said.clear()
        lab.node.tick()
        told = [message for _, message in lab.heard(AppendEntries) if isinstance(message, AppendEntries)]
        assert all(message.commit_index == 3 for message in told)

    run(main)
