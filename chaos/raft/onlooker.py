"""Sees all members at once: which promise is broken?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chaos.raft.members import Broken, Member
from controller.raft.calls import Done
from controller.raft.codec import RequestVote, Vote


class Onlooker:
    """Raises Broken. Votes and leaders are those of machines: what has a seat, and what had it, are two."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.longest: list[bytes] = []
        self.answered: list[bytes] = []
        self.reads = 0
        self._compared: dict[str, tuple[int, int, list[bytes]]] = {}  # what each had applied at the last look
        self._known = 0  # so many of the answered were looked for
        self._complete: tuple[str, int, int, int] | None = None  # leader, term, log's end, answered
        self._shown = 0  # so many commands are in what was answered, or read, so far
        self._stale: str | None = None

    # what members say

    def heard(self, sender: Member, to: str, message: object) -> None:
        """``sender`` says this."""
        assert sender.journal is not None, "it runs"
        if isinstance(message, RequestVote) and sender.journal.admitted:
            self._voted(sender.name, message.term, sender.name)
        elif isinstance(message, Vote) and message.granted and message.admitted:
            self._voted(sender.name, message.term, to)

    def _voted(self, voter: str, term: int, candidate: str) -> None:
        given = self.votes.setdefault((voter, term), candidate)
        if given != candidate:
            raise Broken(f"{voter} votes for {given} and for {candidate} in term {term}")

    def forget_votes(self, voter: str) -> None:
        """It lost its directory: what counts is that it has no vote until it is admitted."""
        self.votes = {key: vote for key, vote in self.votes.items() if key[0] != voter}

    # what clients are told

    def proposed(self, member: Member, command: bytes) -> Done:
        """What the proposer of ``command`` is called back with."""
        applied = member.applied

        def done(_result: Any, why: str | None) -> None:
            if why is None:
                self.answered.append(command)
                last = next((at for at in range(len(applied), 0, -1) if applied[at - 1] == command), 0)
                self._shown = max(self._shown, last)

        return done

    def asked(self, member: Member) -> Done:
        """What the reader of ``member`` is called back with: what it reads holds all that any client had an
        answer about before it asked, be it to a command or to a read."""
        applied, shown = member.applied, self._shown

        def done(_result: Any, why: str | None) -> None:
            if why is not None:
                return
            self.reads += 1
            if len(applied) < shown:  # raised by look: the node catches what a callback raises
                self._stale = f"{member.name} answers a read with {len(applied)} commands, {shown} were shown"
            self._shown = max(self._shown, len(applied))

        return done

    # after each step

    def look(self, members: Iterable[Member]) -> None:
        if self._stale is not None:
            raise Broken(self._stale)
        for member in members:
            self._look_at(member)
        if len(self.answered) > self._known:
            applied = set(self.longest)
            for command in self.answered[self._known :]:
                if command not in applied:
                    raise Broken(f"{command!r} was answered, and nobody applied it")
            self._known = len(self.answered)
        self._leader_completeness(members)

    def _look_at(self, member: Member) -> None:
        node, applied = member.node, member.applied
        if node is None:
            return
        if node.leads() and self.leaders.setdefault(node.term, member.name) != member.name:
            raise Broken(f"term {node.term} is led by {self.leaders[node.term]} and {member.name}")
        now = id(applied), len(applied), applied[-1:]
        if self._compared.get(member.name) == now:
            return
        self._compared[member.name] = now
        both = min(len(applied), len(self.longest))
        if applied[:both] != self.longest[:both]:
            raise Broken(f"{member.name} applied another sequence: {applied[max(0, both - 3) : both]!r}")
        if len(applied) > len(self.longest):
            self.longest = list(applied)

    def _leader_completeness(self, members: Iterable[Member]) -> None:
        newest = max(self.leaders, default=0)
        for member in members:
            node, journal = member.node, member.journal
            if node is None or journal is None or not node.leads() or node.term != newest:
                continue
            seen = (member.name, newest, journal.last_index, len(self.answered))
            if seen == self._complete:
                continue
            self._complete = seen
            held = {*member.applied, *(command[1:] for command, _, _ in journal[:])}
            lacks = [command for command in self.answered if command not in held]
            if lacks:
                raise Broken(f"{member.name} leads term {newest} and lacks the answered {lacks[:3]!r}")
