"""One Node by hand: messages go in, what it says is collected, under virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from chaos.sim.loop import SimLoop
from controller.raft.calls import StateMachine
from controller.raft.codec import (
    Ack,
    AppendEntries,
    Message,
    PreVote,
    PreVoteAnswer,
    Snapshot,
    Vote,
    decode_message,
)
from controller.raft.disk.journal import Journal
from controller.raft.disk.snapshots import Storage
from controller.raft.node import REGULAR, Node
from controller.raft.timing import Timing
from tests.fakes.disk.crashing import CrashingDisk, machine

TIMING = Timing(append_s=0.05, election_min_s=0.25, election_max_s=0.5, fallback_s=0.15, retry_s=0.025)


class Lab:
    """Node a among b, c (d, e); messages are handed to it and what it says is collected."""

    def __init__(
        self,
        others: str = "bc",
        compact_entries: int = 10_000,
        snapshot: Snapshot | None = None,
        *,
        admitted: bool = True,
    ) -> None:
        self.disk = CrashingDisk(machine())
        self.journal = Journal(self.disk, "/raft/raft.journal", "a")
        if admitted:
            self.journal.admit()
        self.said: list[tuple[str, Message]] = []
        self.applied: list[bytes] = []
        self.results: list[object] = []
        self.stored: list[bytes] = []
        self.node = Node(
            "a",
            others,
            timing=TIMING,
            storage=Storage(self.journal, snapshot, self.stored.append, compact_entries),
            machine=StateMachine(self.apply, lambda: b"\n".join(self.applied), self.restore),
            chance=random.Random(1),
            send=self.send,
        )
        for peer in others:
            self.node.up(peer)

    def send(self, peer: str, data: bytes) -> bool:
        assert not self.journal.dirty, "said before it was on the disk"
        self.said.append((peer, decode_message(data)))
        return True

    def apply(self, command: bytes) -> bytes:
        if command == b"poison":
            raise ValueError("poison")
        self.applied.append(command)
        return b"%d" % len(self.applied)

    def restore(self, data: bytes) -> None:
        self.applied[:] = data.split(b"\n")

    def propose(self, command: bytes) -> None:
        self.node.propose(REGULAR + command, lambda result, why: self.results.append((result, why)))

    def heard(self, kind: type[Message]) -> list[tuple[str, Message]]:
        """What was said of this kind since the last call; everything else is forgotten."""
        found = [(peer, message) for peer, message in self.said if isinstance(message, kind)]
        self.said.clear()
        return found

    def last_ack(self) -> Ack:
        message = self.heard(Ack)[-1][1]
        assert isinstance(message, Ack)
        return message

    async def stand(self) -> int:
        """Let it become candidate, with the pre-votes of b (and c of five); the term it stands for."""
        await asyncio.sleep(1)
        self.node.tick()
        (_, asked), *_ = self.heard(PreVote)
        assert isinstance(asked, PreVote)
        for peer in ("b", "c"):
            self.node.received(peer, PreVoteAnswer(asked.term, asked.term - 1, True))
        self.node.tick()
        assert self.node.term == asked.term
        return asked.term

    async def lead(self) -> int:
        term = await self.stand()
        for peer in list(self.node.peers)[: len(self.node.peers) // 2]:
            self.node.received(peer, Vote(term, True))
        self.node.tick()
        assert self.node.leads()
        return term

    @property
    def log(self) -> list[tuple[int, int]]:
        return [(index, term) for _, index, term in self.journal[:]]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        await main()

    loop = SimLoop(1)
    try:
        loop.run_until_complete(inside())
    finally:
        loop.close()


def entries(first: int, last: int, term: int) -> tuple[tuple[bytes, int, int], ...]:
    return tuple((REGULAR + b"%d" % index, index, term) for index in range(first, last + 1))


def append(
    term: int, before: tuple[int, int], new: tuple[tuple[bytes, int, int], ...] = (), commit: int = 1
) -> AppendEntries:
    return AppendEntries(term, commit, before[0], before[1], new)
