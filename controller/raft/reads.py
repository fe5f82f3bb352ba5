"""Which members certainly still followed, and until when; which reads may be answered?

    acknowledgement (term, round, sent_us) ──► newest of each peer ──► what a majority has ──► reads, leases

Pure: ReadIndex, section 6.4 of Ongaro's dissertation. A round is the number of a question to all members;
``sent_us`` is when the leader sent what was answered, by its own monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.raft.calls import Done, safely
from controller.raft.codec import Ack


@dataclass(frozen=True, slots=True)
class Read:
    """A read of this member's state: ``done`` once ``index`` is applied and a majority answered ``round``."""

    term: int
    round: int
    index: int
    done: Done


class Reads:
    """What the other members' answers prove to their leader, and the reads that wait for it."""

    def __init__(self, others: int) -> None:
        self.round = 0  # of the newest question to all members
        self.asked = False  # the question of this round is not on its way yet
        self._needed = (others + 1) // 2  # with the leader itself a majority
        self._rounds: dict[str, int] = {}  # newest round each peer answered
        self._proofs: tuple[int, dict[str, int]] = (0, {})  # term -> newest ``sent_us`` each peer answered
        self._waiting: list[Read] = []

    def ask(self, term: int, index: int, done: Done) -> None:
        """Call ``done`` once ``index`` is applied and a majority answered a question asked from now on.

        Reads between two ticks share a round: no message of its number was sent yet, so a member that answers
        one follows later than now.
        """
        if not self.asked:
            self.asked = True
            self.round += 1
        self._waiting.append(Read(term, self.round, index, done))

    def on_ack(self, peer: str, message: Ack, now_us: float) -> None:
        """``peer`` still followed when it answered."""
        if message.round <= self.round:
            self._rounds[peer] = max(message.round, self._rounds.get(peer, 0))
        if self._proofs[0] != message.term:
            self._proofs = (message.term, {})
        if 0 < message.sent_us <= now_us:
            known = self._proofs[1].get(peer, 0)
            self._proofs[1][peer] = max(known, message.sent_us)

    def followed_ms(self, term: int, now_ms: float) -> float | None:
        """The newest time at which a majority certainly followed in ``term``; None if not known."""
        if self._needed == 0:
            return now_ms
        of_term, proofs = self._proofs
        if of_term != term or len(proofs) < self._needed:
            return None
        return sorted(proofs.values(), reverse=True)[self._needed - 1] / 1000

    def ripe(self) -> bool:
        """Whether a majority answered what some read waits for."""
        return bool(self._waiting) and min(read.round for read in self._waiting) <= self._confirmed()

    def answer(self, term: int | None, applied: int) -> None:
        """Answer the reads that may be. ``term``: the one led now, None when another member leads."""
        waiting, self._waiting = self._waiting, []
        confirmed = self._confirmed()
        for read in waiting:
            if read.term != term:
                safely(read.done, None, "not the leader")
            elif read.round <= confirmed and read.index <= applied:
                safely(read.done, b"", None)
            else:
                self._waiting.append(read)

    def _confirmed(self) -> int:
        """The newest round a majority answered."""
        if self._needed == 0:
            return self.round
        newest = sorted(self._rounds.values(), reverse=True)
        return newest[self._needed - 1] if len(newest) >= self._needed else 0
