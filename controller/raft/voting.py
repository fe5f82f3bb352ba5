"""Which member becomes leader, and whose votes count?

Beyond Raft's votes: a pre-vote comes before any term is raised; followers of a healthy leader vote for
nobody; each voter counts once, and only as long as the link it voted on stands. A try without a winner is
followed by the next one soon, at a random time; the tries grow apart until a leader is heard.

A member that begins with an empty directory may have forgotten a vote, so it has none until a leader admits
it (``journal.admit``). Two things of it count all the same: that it follows, which endangers nothing, and its
vote where *all* members vote for one candidate (``may_elect``). No decision can be lacking there that one of
them has. That is how a new group begins, and how one goes on of which a power failure cut most ends.

But who forgot does not know either that a member was replaced, and a replaced one may be among the voters. So
a majority must have its directory still, unless nobody ever heard of a decision.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from msgspec import UNSET

from controller.raft.codec import PreVote, PreVoteAnswer, RequestVote, Vote
from controller.raft.library import CANDIDATE, LEADER, LibraryNode, Outbox, Peer
from controller.raft.timing import Timing
from runtime.backoff import backoff_s

if TYPE_CHECKING:
    from collections.abc import Collection
    from random import Random

    from controller.raft.codec import Said
    from controller.raft.disk.journal import Journal
    from controller.raft.membership import Membership

log = logging.getLogger(__name__)

NEVER: Final = -1e9
ANSWERS_MISSED_MAX: Final = 3
"""A follower that left so many signs of life in a row unanswered is not asked to lead."""


class Memory(NamedTuple):
    """What a voter still knows. ``kept``: it was admitted once, and has its directory except for an end that
    was cut. ``blank``: its log holds no decision. None of the three: it began empty, and copied some."""

    admitted: bool
    kept: bool
    blank: bool

    @classmethod
    def of(cls, said: Vote | PreVoteAnswer) -> Self:
        return cls(said.admitted, said.kept is True, said.blank is True)

    def said(self) -> tuple[bool, Said, Said]:
        """The last fields of what a voter says."""
        return self.admitted, self.kept or UNSET, self.blank or UNSET


def have_directories(voters: Collection[Memory]) -> int:
    return sum(voter.admitted or voter.kept for voter in voters)


def may_elect(voters: Collection[Memory]) -> bool:
    """Whether ``voters``, all members there are, elect one together though most are not admitted."""
    if all(voter.blank for voter in voters):
        return True  # a new group: a decision needs a majority that is admitted
    return have_directories(voters) * 2 > len(voters)


@dataclass(slots=True)
class Ballots:
    """The votes for this member: voter -> what it still knows.

    ``votes`` are of ``term``, ``promised`` are pre-votes. ``electors``: all other members, where this leader
    was elected by all of them. ``admitted``: whether a majority of admitted members elected it.
    """

    term: int = 0
    votes: dict[str, Memory] = field(default_factory=dict)
    promised: dict[str, Memory] = field(default_factory=dict)
    electors: frozenset[str] = frozenset()
    admitted: bool = False

    def add(self, term: int, voter: str, memory: Memory) -> None:
        if term != self.term:
            self.term, self.votes = term, {}
        self.votes[voter] = memory

    def take_back(self, voter: str) -> None:
        self.promised.pop(voter, None)
        self.votes.pop(voter, None)
        self.electors -= {voter}


class Voting(LibraryNode):
    """What ``controller.raft.node.Node`` does to elect: its other file, not a part with its own state."""

    # Set by Node before the library is built.
    _journal: Journal
    _chance: Random
    _timing: Timing
    _outbox: Outbox
    _membership: Membership
    peers: dict[str, Peer]

    def _begin_voting(self) -> None:
        self._heard_leader = NEVER  # when the current leader last spoke
        self._ballots = Ballots()
        self._forced = False
        self._tries = 0  # since a leader was last heard
        self._turns: dict[str, float] = {}  # since when each peer was asked to lead instead
        self._ticked = 1e9  # when the last tick began
        self.unelected: str | None = None  # why nobody leads, though all vote for this member

    @property
    def is_replaced(self) -> bool:
        """Whether another machine has this one's seat, by its own log."""
        return self._membership.is_replaced(self.selfNode.id, self._journal.incarnation)

    @property
    def has_vote(self) -> bool:
        """False for a member that was not admitted, and for one that was replaced."""
        return self._journal.admitted and not self.is_replaced

    @property
    def memory(self) -> Memory:
        has_vote = self.has_vote
        kept = not has_vote and not self.is_replaced and self._journal.incarnation is not None
        return Memory(has_vote, kept, self._journal.blank)

    def waits_to_begin(self) -> bool:
        """Whether this leads a new group of which no majority is admitted yet. It takes no commands: so who
        has one in its log is of a group that had such a majority."""
        return (
            self.leads()
            and not self._ballots.admitted
            and self.commit_index < self.noop_index
            and self._journal.blank
        )

    def leader(self) -> str | None:
        found = self.leader_peer
        return None if found is None else str(found.id)

    # the leader's word

    def _on_leaders_word(self, leader: Peer) -> None:
        """``leader`` leads this term, and spoke."""
        self._heard_leader = self._now()
        self.election_deadline = self._heard_leader + self._patience_s()
        self._tries = 0
        self._ballots.promised.clear()
        self._forced = False
        self.unelected = None
        self.become_follower(leader)

    def _on_leader_gone(self) -> None:
        """The link to the leader ended: look for another soon, without waiting out its silence."""
        self._heard_leader = NEVER
        self._tries = 0
        soon = self._now() + self._timing.retry_s * self._chance.random()
        self.election_deadline = min(self.election_deadline, soon)

    def _forgive_own_delay(self) -> None:
        """A leader that did not run itself (a slow sync, a busy machine) cannot blame others for silence:
        their answers may lie unread. What it says as leader needs a majority anyway."""
        now = self._now()
        late = now - self._ticked - 2 * self._timing.append_s
        if self.role == LEADER and late > 0:
            answered = self.counted_answer_at
            for peer in self.peers.values():
                answered[peer] = min(now, answered.get(peer, NEVER) + late)
        self._ticked = now

    # standing for election

    def _ask_beforehand(self) -> None:
        """Pre-vote: when the silence is too long, ask for promises of votes before raising the term."""
        now = self._now()
        if self.leads() or self._forced or not self.peers or self.election_deadline >= now:
            return
        self._tries += 1
        self.election_deadline = now + self._next_try_s()
        self.leader_peer = None
        self._ballots.promised.clear()
        _command, index, term = self._journal[-1]
        for peer in self.peers.values():
            self._outbox.send(peer, PreVote(self.term + 1, index, term))

    def _next_try_s(self) -> float:
        """Random, and soon at first: candidates that split the votes must not wait out a whole silence.
        Doubled with each try, so that slow disks and links find time to answer."""
        return backoff_s(self._tries, self._timing.retry_s, self._timing.election_max_s, self._chance)

    def _patience_s(self) -> float:
        """How long a follower waits for its leader's next word."""
        timing = self._timing
        return timing.election_min_s + (timing.election_max_s - timing.election_min_s) * self._chance.random()

    def _stand_soon(self, *, transfer: bool) -> None:
        """Stand for election in the next tick."""
        self._forced = True
        self._outbox.transfer = transfer
        self.stand()

    def _on_pre_vote_answer(self, sender: Peer, message: PreVoteAnswer) -> None:
        if message.current_term > self.term:
            self._step_down(message.current_term)
            return
        if not message.granted or message.term != self.term + 1 or self.leads():
            return
        if self.leader_peer is not None:
            return  # one came back meanwhile
        self._ballots.promised[sender.id] = Memory.of(message)
        if self._elects(self._ballots.promised):
            self._ballots.promised.clear()
            self._stand_soon(transfer=False)

    def _on_vote(self, sender: Peer, message: Vote) -> None:
        if message.term > self.term:
            self._step_down(message.term)
            return
        if not message.granted or message.term != self.term:
            return
        if self.role != CANDIDATE:
            return
        ballots = self._ballots
        ballots.add(message.term, sender.id, Memory.of(message))
        if self._elects(ballots.votes):
            ballots.electors = frozenset(ballots.votes if len(ballots.votes) == len(self.peers) else ())
            ballots.admitted = self._are_majority([*ballots.votes.values(), self.memory])
            self.on_elected()

    def _elects(self, votes: dict[str, Memory]) -> bool:
        """Whether these and the own vote are a majority of admitted members, or all members and enough."""
        seats, own = self._membership.seats, str(self.selfNode.id)
        if self.is_replaced:
            return False
        if not self._journal.admitted and seats.index_of(own) > self.commit_index:
            return False  # that its seat is this machine's is not certain: its former one may still vote
        voters = [*votes.values(), self.memory]
        if self._are_majority(voters):
            return True
        if len(votes) < len(self.peers):
            return False
        if may_elect(voters):
            return True
        self._tell_why_not(have_directories(voters))
        return False

    def _are_majority(self, voters: Collection[Memory]) -> bool:
        return self._majority(sum(voter.admitted for voter in voters))

    def _tell_why_not(self, have: int) -> None:
        """What was decided may be lost with the other directories, or decided without this machine: nothing
        here can tell."""
        why = (
            f"all vote for this one, but only {have} of {len(self.peers) + 1} Controllers has its directory."
            " If this machine was replaced, end it for good; if the others lost theirs, see 'The Controllers"
            " lost their directories' in docs/operations.md"
        )
        if why != self.unelected:
            log.error("Controller %s: no leader: %s", self.selfNode.id, why)
        self.unelected = why

    def _take_votes_back(self, peer: str) -> None:
        """The link to ``peer`` ended: it may come back without a memory of its vote, and vote again."""
        self._ballots.take_back(peer)
        self.unelected = None
        if self._forced and not self.linked:
            # No member is left to vote; those that come back are asked again.
            self._forced = self._outbox.transfer = False
            self.election_deadline = self._now() + self._next_try_s()

    # handing leadership over

    def _transfer_target(self, to: str | None) -> Peer | None:
        """The next leader: the member asked last while its turn is not over, else the one that waited
        longest, of equals the one that answered last."""
        now, answered = self._now(), self.counted_answer_at
        matched, linked = self.match_index, self.linked
        lately = now - ANSWERS_MISSED_MAX * self._timing.append_s
        ready = [
            peer
            for peer in self.peers.values()
            if to in (None, peer.id)
            and peer in linked
            and answered.get(peer, NEVER) > lately
            and matched.get(peer, 0) == self._journal.last_index
        ]
        last, since = max(self._turns.items(), key=lambda turn: turn[1], default=("", NEVER))
        if since > now - self._timing.election_min_s / 2:
            # Two that are asked at once would split the votes.
            for peer in ready:
                if peer.id == last:
                    return peer
        chosen = min(
            ready, key=lambda peer: (self._turns.get(peer.id, NEVER), -answered[peer], peer.id), default=None
        )
        if chosen is not None:
            self._turns[chosen.id] = now
        return chosen

    # voting

    def _on_pre_vote(self, sender: Peer, message: PreVote) -> None:
        granted = (
            message.term > self.term
            and not self._leader_is_well()
            and self._reaches_as_far(message.last_log_term, message.last_log_index)
        )
        if granted:
            # Wait for it: two candidates that woke together would split the votes.
            later = self._now() + self._timing.retry_s
            self.election_deadline = max(self.election_deadline, later)
        answer = PreVoteAnswer(message.term, self.term, granted, *self.memory.said())
        self._outbox.send(sender, answer)

    def _on_request_vote(self, sender: Peer, message: RequestVote) -> None:
        if self._leader_is_well() and not message.transfer:
            return
        if message.term < self.term:
            self._outbox.send(sender, Vote(self.term, granted=False))
            return
        vote = None if message.term > self.term else self.voted_for
        granted = vote in (None, sender.id) and self._reaches_as_far(
            message.last_log_term, message.last_log_index
        )
        if message.term > self.term:
            self.become_follower(None)
            self.set_term(message.term, sender.id if granted else None)
        elif granted and vote is None:
            self.set_term(message.term, sender.id)
        if granted:
            self.election_deadline = self._now() + self._patience_s()
        self._outbox.send(sender, Vote(message.term, granted, *self.memory.said()))

    def _leader_is_well(self) -> bool:
        """Whether this member, leader or follower, has recent word that the current leader works."""
        since = self._now() - self._timing.election_min_s
        if self.leads():
            answered = self.counted_answer_at
            return self._majority(1 + sum(answered.get(p, NEVER) > since for p in self.peers.values()))
        return self._heard_leader > since

    def _reaches_as_far(self, last_term: int, last_index: int) -> bool:
        _command, index, term = self._journal[-1]
        return (last_term, last_index) >= (term, index)

    def _majority(self, count: int) -> bool:
        return count * 2 > len(self.peers) + 1

    def _step_down(self, term: int) -> None:
        """There is a later term: follow its leader."""
        self.set_term(term, None)
        self.become_follower(None)

    # what the library asks

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def patience_s(self) -> float:
        """The library asks when it is built, and when this member becomes a candidate."""
        return self._next_try_s() if self._forced else self._patience_s()

    def on_role(self, role: int) -> None:
        self._forced = False
        if role != CANDIDATE:
            self._outbox.transfer = False

    def on_elected(self) -> None:
        self._tries = 0
        self.unelected = None
        # Its log reaches as far as that of a majority which forgot nothing, or of every member there is.
        self._journal.admit(self._membership.seats.incarnation(str(self.selfNode.id)))
        self.become_leader()
