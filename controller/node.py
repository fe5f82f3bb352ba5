"""What does PySyncObj do here, and what is done in its place?

PySyncObj 0.3.17 keeps the roles, the terms, the timers, who has which part of the log, the commit rule and
the order in which entries are applied. ``Node`` replaces the rest:

    its journal, files, threads   ``controller.journal``; synced before anything is said that depends on it
    its sockets and pickle        ``controller.transport`` and ``controller.codec``
    append_entries on a follower  entries already held are skipped; the log is cut only where it really
                                  contradicts the leader's, never below what is committed
    acknowledgements              carry the term; those of another term are ignored
    votes                         one for each voter; a pre-vote comes first; a healthy leader's followers
                                  do not vote; a deposed leader is told the newer term
    commands                      an error in ``apply`` is a result, not an endless loop; one in a callback
                                  is logged
    snapshots                     checked; durable before the journal is shortened or replaced

The library's private names used here are those of 0.3.17; ``tests/controller/test_raft_rules.py`` fails when
a new version moves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from controller.codec import (
    BATCH_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Ack,
    AppendEntries,
    Entry,
    Message,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    Snapshot,
    TimeoutNow,
    Vote,
    decode_snapshot,
    encode_snapshot,
)
from controller.journal import Journal
from controller.library import Outbox, Peer, SnapshotSender, library
from model.errors import DiskError, MqError, PeerError

if TYPE_CHECKING:
    from random import Random

log = logging.getLogger(__name__)

REGULAR: Final = b"\x00"  # first byte of an entry's command: a command of ours, or nothing to do
NO_OP: Final = b"\x01"
_FOLLOWER, _CANDIDATE, _LEADER = 0, 1, 2
COMMANDS_PER_TICK_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Failed:
    """What a command comes to when ``apply`` raised: the same text on every member."""

    text: str


class Diverged(MqError):
    """The leader contradicts what is committed here: one of the two logs is not Raft's. Never go on."""


Done = Callable[[Any, str | None], None]
"""Called with (result, None) when applied, or (None, why) when the command is certainly gone."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. ``fallback_s``: a leader without answers of a majority for this long steps down."""

    append_s: float
    election_min_s: float
    election_max_s: float
    fallback_s: float


class Node(library.SyncObj):  # type: ignore[misc]
    """One Raft member without time, sockets or files of its own: it is ticked and handed messages.

    A DiskError or Diverged out of ``tick`` or ``received`` is final: the node must never be used again.
    PeerError means the sender broke the rules; nothing was changed.
    """

    # What the library keeps under its own names.
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLeader: Peer | None
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__newAppendEntriesTime: float

    def __init__(
        self,
        node_id: str,
        others: Iterable[str],
        *,
        timing: Timing,
        journal: Journal,
        chance: Random,
        send: Callable[[str, bytes], bool],
        apply: Callable[[bytes], bytes],
        state: Callable[[], bytes],
        restore: Callable[[bytes], None],
        store_snapshot: Callable[[bytes], None],
        snapshot: Snapshot | None,
        compact_entries: int,
        clock_ms: Callable[[], float] | None = None,
    ) -> None:
        """``snapshot``: what the disk holds, already checked; ``store_snapshot`` makes bytes durable.

        ``clock_ms``: for what ``followed_ms`` says; by default the loop's.
        """
        self._journal = journal
        self._chance = chance
        self._apply_entry = apply
        self._state = state
        self._restore = restore
        self._store_snapshot = store_snapshot
        self._compact_entries = compact_entries
        self._timing = timing
        self._clock_ms = clock_ms or (lambda: self._now() * 1000)
        self._answers_us = 0  # ``sent_us`` of the leader's message being answered
        self._proofs: tuple[int, dict[str, int]] = (0, {})  # term -> newest ``sent_us`` each peer answered
        self._heard_leader = -1e9  # when the current leader last spoke
        self._votes: tuple[int, set[str]] = (0, set())
        self._pre_votes: set[str] = set()
        self._forced = False
        self._ticked = 1e9  # when ``tick`` was last called
        self._incoming: bytearray | None = None
        self._queue: deque[tuple[bytes, Done]] = deque()
        self._outbox = Outbox(journal, send, self._clock_ms)
        self.peers = {peer: Peer(peer) for peer in sorted(others)}
        conf = library.SyncObjConf(
            autoTick=False,
            journalFile=journal,
            appendEntriesPeriod=timing.append_s,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.fallback_s,
            connectionTimeout=timing.election_max_s,
            appendEntriesBatchSizeBytes=BATCH_BYTES_MAX,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            useFork=False,
        )
        super().__init__(Peer(node_id), list(self.peers.values()), conf, transport=self._outbox)
        if snapshot is not None:
            self._sender.store(encode_snapshot(snapshot))
            self._adopt(snapshot)

    # what the owner does with a node

    def up(self, peer: str) -> None:
        """There is a link to ``peer``."""
        self._SyncObj__onNodeConnected(self.peers[peer])

    def down(self, peer: str) -> None:
        """The link to ``peer`` ended. If it led, do not wait for the full silence: look for another soon."""
        self._SyncObj__onNodeDisconnected(self.peers[peer])
        self._sender.cancelTransmisstion(self.peers[peer])
        if self.leads():
            # It may come back with an empty directory: believe again only what it then acknowledges.
            self._SyncObj__raftMatchIndex[self.peers[peer]] = 0
        if self.leader() == peer:
            self._heard_leader = -1e9
            soon = self._now() + self._timing.append_s * self._chance.random()
            self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def propose(self, command: bytes, done: Done) -> None:
        """Queue an entry (first byte REGULAR or NO_OP) for the next tick."""
        self._queue.append((command, done))

    def queued(self) -> int:
        return len(self._queue)

    def tick(self) -> None:
        """Move as far as is possible now: elections, commits, applied entries, messages, compaction."""
        journal = self._journal
        self._forgive_own_delay()
        for _ in range(8):
            before = (journal.last_index, self.raftCommitIndex, self._SyncObj__raftState)
            # A group of one commits within the tick: its own entries must be on the disk by then.
            journal.sync()
            self._ask_beforehand()
            self._onTick(0.0)
            journal.sync()
            if before == (journal.last_index, self.raftCommitIndex, self._SyncObj__raftState):
                break
            self._SyncObj__newAppendEntriesTime = -1.0

    def _forgive_own_delay(self) -> None:
        """A leader that did not run itself, behind a slow sync or on a busy machine, has no silence of others
        to complain about: their answers may lie unread. What it says as leader needs a majority anyway.
        """
        now = self._now()
        late = now - self._ticked - 2 * self._timing.append_s
        if self._SyncObj__raftState == _LEADER and late > 0:
            answered = self._SyncObj__lastResponseTime
            for peer in self.peers.values():
                answered[peer] = min(now, answered.get(peer, -1e9) + late)
        self._ticked = now

    def next_tick_s(self) -> float:
        """Seconds until ``tick`` has something to do, if nothing happens before."""
        if self._queue:
            return 0.0
        at = self._SyncObj__newAppendEntriesTime if self.leads() else self._SyncObj__raftElectionDeadline
        # A hair later, because the library compares with "greater than".
        return float(min(max(at - self._now(), 0.0), 1.0)) + 0.0005

    def leads(self) -> bool:
        return bool(self._SyncObj__raftState == _LEADER)

    def leader(self) -> str | None:
        found = self._SyncObj__raftLeader
        return None if found is None else str(found.id)

    def followed_ms(self) -> float | None:
        """The newest time at which a majority certainly still followed this leader; None if not known.

        A vote for another term comes later than the voter's answer in this one, so whoever leads next began
        to lead after this time. Measured from the sending of what was answered, on ``clock_ms``.
        """
        if not self.leads():
            return None
        needed = (len(self.peers) + 1) // 2
        if needed == 0:
            return self._clock_ms()
        term, proofs = self._proofs
        if term != self.raftCurrentTerm or len(proofs) < needed:
            return None
        return sorted(proofs.values(), reverse=True)[needed - 1] / 1000

    def hand_over(self) -> str | None:
        """Ask the follower with the longest log to stand for election at once: its id, or None."""
        matched = self._SyncObj__raftMatchIndex
        linked = self._SyncObj__connectedNodes
        ready = [
            peer
            for peer in self.peers.values()
            if peer in linked and matched.get(peer, 0) == self._journal.last_index
        ]
        if not self.leads() or not ready:
            return None
        self._outbox.send(ready[0], TimeoutNow(self.raftCurrentTerm))
        return str(ready[0].id)

    # messages

    def received(self, sender_id: str, message: Message) -> None:
        """Take one authenticated message. Raises PeerError, DiskError, Diverged."""
        sender = self.peers[sender_id]
        match message:
            case AppendEntries():
                self._on_append(sender, message)
            case Ack():
                self._on_ack(sender, message)
            case RequestVote():
                self._on_request_vote(sender, message)
            case Vote():
                self._on_vote(sender, message)
            case PreVote():
                self._on_pre_vote(sender, message)
            case PreVoteAnswer():
                self._on_pre_vote_answer(sender, message)
            case TimeoutNow():
                if message.term == self.raftCurrentTerm and sender == self._SyncObj__raftLeader:
                    self._stand(transfer=True)

    def _on_append(self, sender: Peer, message: AppendEntries) -> None:
        _check_entries(message)
        self._answers_us = message.sent_us
        if message.term < self.raftCurrentTerm:
            self._ack(sender, reset=False, success=False)  # tells a deposed leader that it is
            return
        if message.term == self.raftCurrentTerm and self.leads():
            raise PeerError(f"{sender.id} claims to lead term {message.term}, which is led from here")
        if message.term > self.raftCurrentTerm:
            self._SyncObj__setCurrentTerm(message.term, None)
        self._heard_leader = self._now()
        self._SyncObj__raftElectionDeadline = self._heard_leader + self._SyncObj__generateRaftTimeout()
        self._pre_votes.clear()
        self._forced = False
        if self._SyncObj__raftLeader != sender:
            self._incoming = None
        self._SyncObj__raftLeader = sender
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__leaderCommitIndex = message.commit_index
        if message.prevLogIdx is not None:
            self._take_entries(sender, message)
        elif message.serialized is not None:
            self._take_snapshot(sender, *message.serialized)
        else:
            # It has nothing to send from where it believes this log ends: say where it ends.
            self._ack(sender, reset=True, success=False)

    def _take_entries(self, sender: Peer, message: AppendEntries) -> None:
        journal = self._journal
        first, last, before = journal.first_index, journal.last_index, message.prevLogIdx
        assert before is not None, "looked at by the caller"
        if not first <= before <= last:
            self._ack(sender, reset=True, success=False)
            return
        if journal[before - first][2] != message.prevLogTerm:
            self._contradicted(before)
            # Skip the whole term that does not fit, but nothing committed: that fits for sure.
            wrong = journal[before - first][2]
            while before - 1 > self.raftCommitIndex and journal[before - 1 - first][2] == wrong:
                before -= 1
            self._ack(sender, reset=True, success=False, next_index=before)
            return
        checked = before
        for _command, index, term in message.entries:
            if index > last or journal[index - first][2] != term:
                break
            checked = index
        new = message.entries[checked - before :]
        if new and checked < last:
            self._contradicted(checked + 1)
            journal.deleteEntriesFrom(checked + 1 - first)
        for command, index, term in new:
            journal.add(command, index, term)
            checked = index
        # Beyond ``checked`` this log may still differ from the leader's.
        commit = min(message.commit_index, checked)
        if commit > self.raftCommitIndex:
            self._SyncObj__raftCommitIndex = commit
        self._ack(sender, reset=False, success=True, next_index=checked + 1)

    def _contradicted(self, index: int) -> None:
        if index <= self.raftCommitIndex:
            raise Diverged(
                f"the leader's entry {index} is not the one committed here (committed up to "
                f"{self.raftCommitIndex}): one Controller's directory was replaced or edited"
            )

    def _take_snapshot(self, sender: Peer, piece: bytes, first: bool, last: bool) -> None:
        if first:
            self._incoming = bytearray()
        if self._incoming is None:
            return  # the begin went to an earlier link; the leader starts again when it hears no ack
        self._incoming += piece
        if len(self._incoming) > SNAPSHOT_BYTES_MAX:
            self._incoming = None
            raise PeerError(f"a snapshot of more than {SNAPSHOT_BYTES_MAX} bytes")
        if not last:
            return
        data, self._incoming = bytes(self._incoming), None
        try:
            snapshot = decode_snapshot(data)
        except DiskError as error:
            raise PeerError(f"its snapshot is damaged: {error}") from None
        if snapshot.last[1] <= self.raftCommitIndex:
            self._ack(sender, reset=True, success=False, next_index=self.raftCommitIndex + 1)
            return
        self._store_snapshot(data)
        self._sender.store(data)
        self._adopt(snapshot)
        self._ack(sender, reset=False, success=True, next_index=snapshot.last[1] + 1)

    def _adopt(self, snapshot: Snapshot) -> None:
        """Let journal and state follow a durable snapshot. Entries behind it stay if they continue it."""
        align(self._journal, snapshot)
        self._restore(snapshot.state)
        index = snapshot.last[1]
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(index, self.raftCommitIndex)
        waiting = self._SyncObj__commandsWaitingCommit
        for passed in [at for at in waiting if at <= index]:
            del waiting[passed]  # whether they are in it is unknown; their callers have deadlines

    def _on_ack(self, sender: Peer, message: Ack) -> None:
        if message.term > self.raftCurrentTerm:
            self._step_down(message.term)
        if not self.leads() or message.term != self.raftCurrentTerm:
            return
        if self._proofs[0] != message.term:
            self._proofs = (message.term, {})
        if 0 < message.sent_us <= self._clock_ms() * 1000:
            known = self._proofs[1].get(sender.id, 0)
            self._proofs[1][sender.id] = max(known, message.sent_us)
        if message.next_index > self._journal.last_index + 1:
            if message.success:
                raise PeerError(f"acknowledges entry {message.next_index - 1}, which does not exist")
            message = Ack(message.term, self._journal.last_index + 1, message.reset, success=False)
        self._SyncObj__lastResponseTime[sender] = self._now()
        matched = self._SyncObj__raftMatchIndex
        if message.reset:
            wanted = max(message.next_index, matched.get(sender, 0) + 1, 2)
            self._SyncObj__raftNextIndex[sender] = wanted
            self._SyncObj__newAppendEntriesTime = -1.0
        elif message.success and matched.get(sender, 0) < message.next_index - 1:
            matched[sender] = message.next_index - 1
            if self._SyncObj__raftNextIndex[sender] < message.next_index:
                self._SyncObj__raftNextIndex[sender] = message.next_index

    # elections

    def _ask_beforehand(self) -> None:
        """Pre-vote: when the silence is too long, ask who would vote before raising the term."""
        now = self._now()
        if self._SyncObj__raftState == _LEADER:
            return
        if self._forced or not self.peers:
            return
        if self._SyncObj__raftElectionDeadline >= now:
            return
        self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftLeader = None
        self._pre_votes.clear()
        _command, index, term = self._journal[-1]
        for peer in self.peers.values():
            self._outbox.send(peer, PreVote(self.raftCurrentTerm + 1, index, term))

    def _stand(self, *, transfer: bool) -> None:
        """Stand for election in the next tick."""
        self._forced = True
        self._outbox.transfer = transfer
        self._SyncObj__raftElectionDeadline = -1.0

    def _on_pre_vote(self, sender: Peer, message: PreVote) -> None:
        granted = (
            message.term > self.raftCurrentTerm
            and not self._leader_is_well()
            and self._reaches_as_far(message.last_log_term, message.last_log_index)
        )
        self._outbox.send(sender, PreVoteAnswer(message.term, self.raftCurrentTerm, granted))

    def _on_pre_vote_answer(self, sender: Peer, message: PreVoteAnswer) -> None:
        if message.current_term > self.raftCurrentTerm:
            self._step_down(message.current_term)
            return
        if not message.granted or message.term != self.raftCurrentTerm + 1 or self.leads():
            return
        if self._SyncObj__raftLeader is not None:
            return  # one came back meanwhile
        self._pre_votes.add(sender.id)
        if self._majority(len(self._pre_votes) + 1):
            self._pre_votes.clear()
            self._stand(transfer=False)

    def _on_request_vote(self, sender: Peer, message: RequestVote) -> None:
        if self._leader_is_well() and not message.transfer:
            return
        if message.term < self.raftCurrentTerm:
            self._outbox.send(sender, Vote(self.raftCurrentTerm, granted=False))
            return
        vote = None if message.term > self.raftCurrentTerm else self._SyncObj__votedForNodeId
        granted = vote in (None, sender.id) and self._reaches_as_far(
            message.last_log_term, message.last_log_index
        )
        if message.term > self.raftCurrentTerm:
            self._SyncObj__raftLeader = None
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__setCurrentTerm(message.term, sender.id if granted else None)
        elif granted and vote is None:
            self._SyncObj__setCurrentTerm(message.term, sender.id)
        if granted:
            self._SyncObj__raftElectionDeadline = self._now() + self._SyncObj__generateRaftTimeout()
        self._outbox.send(sender, Vote(message.term, granted))

    def _on_vote(self, sender: Peer, message: Vote) -> None:
        if message.term > self.raftCurrentTerm:
            self._step_down(message.term)
            return
        if not message.granted or message.term != self.raftCurrentTerm:
            return
        if self._SyncObj__raftState != _CANDIDATE:
            return
        if self._votes[0] != message.term:
            self._votes = (message.term, set())
        self._votes[1].add(sender.id)
        if self._majority(len(self._votes[1]) + 1):
            self._SyncObj__onBecomeLeader()

    def _leader_is_well(self) -> bool:
        """Whether this member, leader or follower, has recent word that the current leader works."""
        since = self._now() - self._timing.election_min_s
        if self.leads():
            answered = self._SyncObj__lastResponseTime
            return self._majority(1 + sum(answered.get(p, -1e9) > since for p in self.peers.values()))
        return self._heard_leader > since

    def _reaches_as_far(self, last_term: int, last_index: int) -> bool:
        _command, index, term = self._journal[-1]
        return (last_term, last_index) >= (term, index)

    def _majority(self, count: int) -> bool:
        return count * 2 > len(self.peers) + 1

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    def _ack(self, to: Peer, *, reset: bool, success: bool, next_index: int | None = None) -> None:
        after = self._journal.last_index + 1 if next_index is None else next_index
        self._outbox.send(to, Ack(self.raftCurrentTerm, after, reset, success, self._answers_us))

    # in place of the library's own methods

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _SyncObj__generateRaftTimeout(self) -> float:
        timing = self._timing
        return timing.election_min_s + (timing.election_max_s - timing.election_min_s) * self._chance.random()

    def _SyncObj__setState(self, state: int) -> None:
        self._SyncObj__raftState = state
        self._forced = False
        if state != _CANDIDATE:
            self._outbox.transfer = False

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        if command[:1] == NO_OP:
            return b""
        if command[:1] != REGULAR:
            log.error("entry of unknown kind %r was committed; it changes nothing", command[:1])
            return Failed(f"entry of unknown kind {command[:1]!r}")
        try:
            return self._apply_entry(command[1:])
        except Exception as error:
            # Whatever it is: every member gets the same, and the log must go on.
            log.exception("a command could not be applied")
            return Failed(f"{type(error).__name__}: {error}")

    def _checkCommandsToApply(self) -> None:
        for _ in range(min(len(self._queue), COMMANDS_PER_TICK_MAX)):
            command, done = self._queue.popleft()
            if not self.leads():
                _safely(done, None, "not the leader")
                continue
            index, term = self._journal.last_index + 1, self.raftCurrentTerm
            self._journal.add(command, index, term)
            self._SyncObj__commandsWaitingCommit[index].append((term, _answer(done)))

    def _SyncObj__tryLogCompaction(self) -> None:
        journal, applied = self._journal, self.raftLastApplied
        done = applied - journal.first_index
        if done < self._compact_entries and not (done >= 64 and journal.size_bytes > 8 << 20):
            return
        before, last = journal[done - 1 : done + 1]
        data = encode_snapshot(Snapshot(before, last, self._state()))
        self._store_snapshot(data)
        # Only now: until here a crash finds the old journal whole.
        journal.deleteEntriesTo(done - 1)
        self._sender.store(data)

    @property
    def _sender(self) -> SnapshotSender:
        sender: SnapshotSender = self.__dict__["_SyncObj__serializer"]
        return sender


def align(journal: Journal, snapshot: Snapshot) -> None:
    """Make ``journal`` begin with the snapshot's two entries, keeping what continues them.

    Raises DiskError when entries between the two are missing.
    """
    index, term = snapshot.last[1], snapshot.last[2]
    if len(journal) and journal.first_index > index:
        raise DiskError(
            f"{journal.path} begins at entry {journal.first_index}, the snapshot ends at {index}: "
            "entries between them are lost. Remove this Controller's directory and start it again "
            "while a majority of the others is healthy"
        )
    if len(journal) and journal.last_index >= index and journal[index - journal.first_index][2] == term:
        if journal.first_index < index - 1:
            journal.deleteEntriesTo(index - 1 - journal.first_index)
        elif journal.first_index == index:
            journal.reset([snapshot.before, *journal[:]])
    else:
        journal.reset([snapshot.before, snapshot.last])


def _check_entries(message: AppendEntries) -> None:
    before, term = message.prevLogIdx, message.prevLogTerm
    if before is None:
        if message.entries:
            raise PeerError("entries without the one before them")
        return
    if term is None:
        raise PeerError("an entry without its term")
    for _command, index, of_term in message.entries:
        if index != before + 1 or not term <= of_term <= message.term:
            raise PeerError(f"entry {index} of term {of_term} after entry {before} of term {term}")
        before, term = index, of_term


def _answer(done: Done) -> Callable[[Any, int], None]:
    def callback(result: Any, reason: int) -> None:
        if reason == 0:
            _safely(done, result, None)
        else:
            _safely(done, None, "another command took its place")

    return callback


def _safely(done: Done, result: Any, why: str | None) -> None:
    try:
        done(result, why)
    except Exception:
        # The entry is applied; raised further, it would be applied a second time here and nowhere else.
        log.exception("the callback of a command failed")


__all__ = ["NO_OP", "REGULAR", "Diverged", "Entry", "Failed", "Node", "Timing", "align"]
