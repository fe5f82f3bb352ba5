"""Who certainly still followed, and until when; which reads may be answered?

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
        self._needed = (others + 1) // 2  # with the leader itself a majority
        self._rounds: dict[str, int] = {}  # newest round each peer answered
        self._proofs: tuple[int, dict[str, int]] = (0, {})  # term -> newest ``sent_us`` each peer answered
        self._waiting: list[Read] = []

    def answered(self, peer: str, message: Ack, asked: int, now_us: float) -> None:
        """``peer`` still followed when it answered. ``asked``: the newest round that exists."""
        if message.round <= asked:
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

    def wait(self, read: Read) -> None:
        self._waiting.append(read)

    def ripe(self, asked: int) -> bool:
        """Whether a majority answered what some read waits for."""
        return bool(self._waiting) and min(read.round for read in self._waiting) <= self._confirmed(asked)

    def answer(self, term: int | None, asked: int, applied: int) -> None:
        """Answer the reads that may be. ``term``: the one led now, None when another member leads."""
        waiting, self._waiting = self._waiting, []
        confirmed = self._confirmed(asked)
        for read in waiting:
            if read.term != term:
                safely(read.done, None, "not the leader")
            elif read.round <= confirmed and read.index <= applied:
                safely(read.done, b"", None)
            else:
                self._waiting.append(read)

    def _confirmed(self, asked: int) -> int:
        """The newest round a majority answered."""
        if self._needed == 0:
            return asked
        newest = sorted(self._rounds.values(), reverse=True)
        return newest[self._needed - 1] if len(newest) >= self._needed else 0
