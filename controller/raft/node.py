"""What does one Raft member do with ticks and messages?

PySyncObj keeps the roles, the terms, the timers, match and next indexes, the commit rule and the order in
which entries are applied (``controller.raft.library``). ``Node`` replaces the rest:

    its journal, files, threads   ``controller.raft.disk.journal``; synced before a message that depends on it
    its sockets and pickle        ``controller.links`` and ``controller.raft.codec``
    append_entries on a follower  entries already held are skipped; the log is cut only where it really
                                  contradicts the leader's, never below what is committed
    acknowledgements              carry the term; those of another term are ignored;
                                  a deposed leader is told the newer term
    votes                         ``controller.raft.voting``
    commands                      an error in ``apply`` is a result, not an endless loop; one in a callback
                                  is logged
    snapshots                     checked; durable before the journal is shortened or replaced
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from controller.packing import Malformed
from controller.raft.calls import Done, Failed, StateMachine, library_callback, safely
from controller.raft.codec import (
    BATCH_BYTES_MAX,
    NO_OP,
    REGULAR,
    Ack,
    Admit,
    AppendEntries,
    Entry,
    Message,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    Seat,
    Snapshot,
    TimeoutNow,
    Vote,
    check_entries,
    decode_snapshot,
    encode_snapshot,
)
from controller.raft.disk.journal import Journal, align
from controller.raft.disk.snapshots import Compaction, Incoming, Storage
from controller.raft.health import PeerProgress, Progress, Watch
from controller.raft.invariants import Invariants, Position
from controller.raft.library import Outbox, Peer, library
from controller.raft.membership import Membership
from controller.raft.reads import Reads
from controller.raft.seats import SEAT, Seats, pack_seat, read_seat
from controller.raft.timing import Timing
from controller.raft.voting import NEVER, Voting
from model.errors import DiskError, MqError, PeerError, Refused

if TYPE_CHECKING:
    from random import Random

log = logging.getLogger(__name__)

COMMANDS_PER_TICK_MAX: Final = 1024
STEPS_PER_TICK_MAX: Final = 8
"""A member alone elects itself, appends, commits and applies in fewer. While commands keep coming each step
moves something: the rest waits for the next tick, so that the links are served between."""


class Diverged(MqError):
    """The leader contradicts what is committed here: one of the two logs is not Raft's. Never go on."""


class Node(Voting):
    """One Raft member without time, sockets or files of its own: it is ticked and handed messages.

    A DiskError or Diverged out of ``tick`` or ``received`` is final: the node must never be used again.
    PeerError means the sender broke the rules: nothing changed, except that pieces of a snapshot are dropped.

    ``Voting`` is this class's other file, not a part of it: one object, one state, split by what is decided.
    """

    def __init__(
        self,
        node_id: str,
        others: Iterable[str],
        *,
        timing: Timing,
        storage: Storage,
        machine: StateMachine,
        chance: Random,
        send: Callable[[str, bytes], bool],
        clock_ms: Callable[[], float] | None = None,
    ) -> None:
        """``clock_ms``: for what ``followed_ms`` says; by default the loop's."""
        journal = storage.journal
        self.peers = {peer: Peer(peer) for peer in sorted(others)}
        self._journal = journal
        self._machine = machine
        self._compaction = Compaction(storage)
        self._timing = timing
        self._chance = chance
        self._clock_ms = clock_ms or (lambda: self._now() * 1000)
        self._watch = Watch()
        self._invariants = Invariants()
        self._membership = Membership()
        self._incoming = Incoming()
        self._queue: deque[tuple[bytes, Done]] = deque()
        reads = self._reads = Reads(len(self.peers))
        self._outbox = Outbox(journal, send, self._clock_ms, lambda: reads.round)
        self._begin_voting()
        conf = _library_conf(timing, journal)
        super().__init__(Peer(node_id), list(self.peers.values()), conf, transport=self._outbox)
        if storage.snapshot is None:
            self.seats.load((), 0, journal[:])
        else:
            self.snapshots.store(encode_snapshot(storage.snapshot))
            self._adopt(storage.snapshot)

    @property
    def seats(self) -> Seats:
        """The members that were replaced."""
        return self._membership.seats

    # what the owner does with a node

    def up(self, peer: str) -> None:
        """There is a link to ``peer``."""
        self._membership.vacated.discard(peer)
        self.link_up(self.peers[peer])

    def down(self, peer: str) -> None:
        """The link to ``peer`` ended."""
        self._membership.vacated.discard(peer)
        self._forget(peer)

    def _forget(self, peer: str) -> None:
        """What ``peer`` said so far counts for nothing any more."""
        self.link_down(self.peers[peer])
        self.snapshots.cancelTransmisstion(self.peers[peer])
        self._take_votes_back(peer)
        self._membership.link_ended(peer)
        if self.leads():
            # It may come back with an empty directory: believe again only what it then acknowledges.
            self.match_index[self.peers[peer]] = 0
        if self.leader() == peer:
            self._on_leader_gone()

    def propose(self, command: bytes, done: Done) -> None:
        """Queue an entry (first byte REGULAR or NO_OP) for the next tick."""
        self._queue.append((command, done))

    def read(self, done: Done) -> None:
        """Call ``done`` when this member's state holds all that was committed before this call.

        Nothing is written: a majority confirms, after this call, that it still follows in this term
        (ReadIndex, section 6.4 of Ongaro's dissertation). Reads between two ticks share a round.
        """
        if not self.leads():
            safely(done, None, "not the leader")
            return
        # What former leaders committed lies before the entry this term began with.
        self._reads.ask(self.term, max(self.commit_index, self.noop_index), done)

    def replace(self, old: str, address: str, raft_address: str, done: Done, *, lost: bool = True) -> None:
        """Give the seat of ``old`` to a new machine. ``done`` gets its incarnation once that is committed.
        ``lost``: the caller knows that ``old`` is lost.

        Raises Refused with the reason: nothing was changed. docs/raft.md has the safety argument.
        """
        assert self.leads(), "looked at by the caller"
        since, answered = self._now() - self._timing.election_min_s, self.counted_answer_at
        answering = {peer.id for peer in self.peers.values() if answered.get(peer, NEVER) > since}
        if self.commit_index < self.noop_index:
            # Ongaro's bug of single-server changes: a change needs an entry of the own term before it.
            raise Refused("this leader has not committed an entry of its own term yet; try again")
        others, commit = set(self.peers), self.commit_index
        why = self._membership.why_not_replace(old, others, answering, commit, lost=lost)
        if why is not None:
            raise Refused(why)
        seat = self.seats.next_of(old, address, raft_address)
        index, term = self._journal.last_index + 1, self.term
        self._add_entry(pack_seat(seat), index, term, seat)
        self.waiting[index].append((term, library_callback(done)))
        self.speak_now()

    def _add_entry(self, command: bytes, index: int, term: int, seat: Seat | None) -> None:
        self._journal.add(command, index, term)
        if seat is None:
            return
        self.seats.add(index, seat)
        log.info("%s is replaced: incarnation %d, at %s", seat.node_id, seat.incarnation, seat.raft_address)
        if seat.node_id in self.peers:
            self._membership.vacated.add(seat.node_id)
            self._forget(seat.node_id)
            self.counted_answer_at[self.peers[seat.node_id]] = NEVER

    def queued(self) -> int:
        return len(self._queue)

    def tick(self) -> None:
        """Move as far as is possible now: elections, commits, applied entries, messages, compaction."""
        journal = self._journal
        self._forgive_own_delay()
        if self._reads.asked:
            self._reads.asked = False
            self.speak_now()
        for _ in range(STEPS_PER_TICK_MAX):
            before = (journal.last_index, self.commit_index, self.role)
            # A group of one commits within the tick: its own entries must be on the disk by then.
            journal.sync()
            self._ask_beforehand()
            self.library_tick()
            journal.sync()
            if before == (journal.last_index, self.commit_index, self.role):
                break
            self.speak_now()
        led = self.term if self.leads() else None
        self._reads.answer(led, self.last_applied)
        self._note_applied()
        self.check_invariants()

    def check_invariants(self) -> None:
        """Raises AssertionError with the rule that is broken: this member must not go on. Each tick and
        each message ends with it."""
        journal, leader, leads = self._journal, self.leader_peer, self.leads()
        self._invariants.check(
            Position(
                node_id=self.selfNode.id,
                term=self.term,
                vote=self.voted_for,
                stored_term=journal.getCurrentTerm(),
                stored_vote=journal.getVotedForNodeId(),
                leads=leads,
                leader=None if leader is None else leader.id,
                first_index=journal.first_index,
                last_index=journal.last_index,
                last_term=journal[-1][2],
                commit=self.commit_index,
                applied=self.last_applied,
                began_at=self.noop_index if leads else 0,
                match={peer.id: at for peer, at in self.match_index.items()},
                next={peer.id: at for peer, at in self.next_index.items()},
            )
        )

    def _note_applied(self) -> None:
        self._watch.applied(self._clock_ms(), self.last_applied, self._known_commit())

    def _known_commit(self) -> int:
        """The highest commit index heard of: entries up to it may not have come yet."""
        return max(int(self.commit_index), self.leader_commit or 0)

    def next_tick_s(self) -> float:
        """Seconds until ``tick`` has something to do, if nothing happens before."""
        if self._queue and not self.waits_to_begin():
            return 0.0
        at = self.append_due if self.leads() else self.election_deadline
        # A hair later, because the library compares with "greater than".
        return float(min(max(at - self._now(), 0.0), 1.0)) + 0.0005

    def followed_ms(self) -> float | None:
        """The newest time at which a majority certainly still followed this leader; None if not known.

        A vote for another term comes later than the voter's answer in this one, so the next leader begins
        after this time. Measured from the sending of what was answered, on ``clock_ms``.
        """
        if not self.leads():
            return None
        return self._reads.followed_ms(self.term, self._clock_ms())

    def transfer_leadership(self, to: str | None = None) -> str | None:
        """Ask ``to``, or any follower that holds the whole log and answered lately, to stand for election at
        once: its id, or None when there is none. A later call goes on to another one after a while."""
        transfer_target = self._transfer_target(to) if self.leads() else None
        if transfer_target is None:
            return None
        self._outbox.send(transfer_target, TimeoutNow(self.term))
        return str(transfer_target.id)

    def progress(self) -> Progress:
        """How far this member is, and how far behind."""
        now_ms, watch, leads = self._clock_ms(), self._watch, self.leads()
        matched, last = self.match_index, self._journal.last_index
        known = self._known_commit()
        peers = {
            peer.id: PeerProgress(
                match_index=matched.get(peer, 0),
                lag_entries=last - matched.get(peer, 0),
                answer_age_ms=watch.answer_age_ms(peer.id, now_ms),
            )
            for peer in self.peers.values()
        }
        return Progress(
            applied_index=self.last_applied,
            commit_index=known,
            unmoved_ms=watch.unmoved_ms(now_ms, self.last_applied, known),
            append_age_ms=None if leads or watch.append_ms is None else now_ms - watch.append_ms,
            peers=peers if leads else {},
            journal_entries=len(self._journal),
            journal_bytes=self._journal.size_bytes,
            compaction_error=self._compaction.error,
        )

    # messages

    def received(self, sender_id: str, message: Message) -> bool:
        """Take one authenticated message; whether ``tick`` has something to do now.

        Most messages are signs of life and their answers, of which a group that has nothing to do exchanges
        many. Raises PeerError, DiskError, Diverged.
        """
        if sender_id in self._membership.vacated:
            return False  # it was replaced, and its link is about to end
        before = self._position()
        self._take(self.peers[sender_id], message)
        self.check_invariants()
        return before != self._position() or self._reads.ripe()

    def _position(self) -> tuple[object, ...]:
        """All that a message may change and ``tick`` acts on."""
        return (
            self.role,
            self.leader_peer,
            self.term,
            self.commit_index,
            self._journal.last_index,
            self._forced,
            self._reads.asked,
            self.append_due,
            sum(self.match_index.values()),
        )

    def _take(self, sender: Peer, message: Message) -> None:
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
            case Admit():
                self._on_admit(sender, message)
            case TimeoutNow():
                if message.term == self.term and sender == self.leader_peer:
                    self._stand_soon(transfer=True)

    def _on_append(self, sender: Peer, message: AppendEntries) -> None:
        check_entries(message)
        seats = _seats_in(sender, message.entries)
        if message.term < self.term:
            self._ack(sender, message, reset=False, success=False)  # tells a deposed leader that it is
            return
        if message.term == self.term and self.leads():
            raise PeerError(f"{sender.id} claims to lead term {message.term}, which is led from here")
        arrived = self._snapshot_in(sender, message)
        # All that may be wrong with the message was looked at: only now is any of it believed.
        if message.term > self.term:
            self.set_term(message.term, None)
        self._watch.append_ms = self._clock_ms()
        self._on_leaders_word(sender)
        self.leader_commit = message.commit_index
        self._note_applied()
        if message.prevLogIdx is not None:
            self._take_entries(sender, message, seats)
        elif arrived is not None:
            self._take_snapshot(sender, message, *arrived)
        elif message.serialized is None:
            # It has nothing to send from where it believes this log ends: say where it ends.
            self._ack(sender, message, reset=True, success=False)

    def _take_entries(self, sender: Peer, message: AppendEntries, seats: list[Seat | None]) -> None:
        journal = self._journal
        first, last, before = journal.first_index, journal.last_index, message.prevLogIdx
        assert before is not None, "looked at by the caller"
        if not first <= before <= last:
            self._ack(sender, message, reset=True, success=False)
            return
        if journal[before - first][2] != message.prevLogTerm:
            self._contradicted(before)
            # Skip the whole term that does not fit, but nothing committed: that fits for sure.
            wrong = journal[before - first][2]
            while before - 1 > self.commit_index and journal[before - 1 - first][2] == wrong:
                before -= 1
            self._ack(sender, message, reset=True, success=False, next_index=before)
            return
        checked = before
        for _command, index, term in message.entries:
            if index > last or journal[index - first][2] != term:
                break
            checked = index
        held = checked - before
        new = [(*entry, seat) for entry, seat in zip(message.entries[held:], seats[held:], strict=True)]
        if new and checked < last:
            self._contradicted(checked + 1)
            journal.deleteEntriesFrom(checked + 1 - first)
            self.seats.cut_from(checked + 1)
        for command, index, term, seat in new:
            self._add_entry(command, index, term, seat)
            checked = index
        # Beyond ``checked`` this log may still differ from the leader's.
        self.commit_to(max(self.commit_index, min(message.commit_index, checked)))
        self._ack(sender, message, reset=False, success=True, next_index=checked + 1)

    def _contradicted(self, index: int) -> None:
        if index <= self.commit_index:
            raise Diverged(
                f"the leader's entry {index} is not the one committed here (committed up to "
                f"{self.commit_index}): one Controller's directory was replaced or edited"
            )

    def _snapshot_in(self, sender: Peer, message: AppendEntries) -> tuple[bytes, Snapshot] | None:
        """The leader's snapshot, checked, with its last piece; None before, and with entries."""
        if self.leader_peer != sender:
            self._incoming.clear()
        if message.prevLogIdx is not None or message.serialized is None:
            return None
        piece, first, last = message.serialized
        data = self._incoming.add(piece, first=first, last=last)
        if data is None:
            return None
        try:
            snapshot = decode_snapshot(data)
        except DiskError as error:
            raise PeerError(f"its snapshot is damaged: {error}") from None
        _seats_in(sender, (snapshot.before, snapshot.last))
        return data, snapshot

    def _take_snapshot(self, sender: Peer, message: AppendEntries, data: bytes, snapshot: Snapshot) -> None:
        if snapshot.last[1] <= self.commit_index:
            self._ack(sender, message, reset=True, success=False, next_index=self.commit_index + 1)
            return
        self._compaction.storage.store_snapshot(data)
        self.snapshots.store(data)
        self._adopt(snapshot)
        self._ack(sender, message, reset=False, success=True, next_index=snapshot.last[1] + 1)

    def _adopt(self, snapshot: Snapshot) -> None:
        """Let journal and state follow a durable snapshot. Entries behind it stay if they continue it."""
        align(self._journal, snapshot)
        self.seats.load(snapshot.seats, snapshot.last[1], self._journal[:])
        self._machine.restore(snapshot.state)
        self.skip_to(snapshot.last[1])

    def _ack(
        self, to: Peer, said: AppendEntries, *, reset: bool, success: bool, next_index: int | None = None
    ) -> None:
        """Answer ``said``."""
        after = self._journal.last_index + 1 if next_index is None else next_index
        ack = Ack(self.term, after, reset, success, said.sent_us, said.round, self.has_vote)
        self._outbox.send(to, ack)

    def _on_ack(self, sender: Peer, message: Ack) -> None:
        if message.term > self.term:
            self._step_down(message.term)
        if not self.leads() or message.term != self.term:
            return
        if message.next_index > self._journal.last_index + 1:
            if message.success:
                raise PeerError(f"acknowledges entry {message.next_index - 1}, which does not exist")
            message = msgspec.structs.replace(message, next_index=self._journal.last_index + 1)
        self._watch.heard_ms[sender.id] = self._clock_ms()
        matched = self.match_index
        if message.reset:
            wanted = max(message.next_index, matched.get(sender, 0) + 1, 2)
            self.next_index[sender] = wanted
            self.speak_now()
        if not message.admitted:
            self._consider_admission(sender, message)
            return
        self._membership.voting.add(sender.id)
        self.counted_answer_at[sender] = self._now()
        self._reads.on_ack(sender.id, message, self._clock_ms() * 1000)
        if not message.reset and message.success and matched.get(sender, 0) < message.next_index - 1:
            matched[sender] = message.next_index - 1
            if self.next_index[sender] < message.next_index:
                self.next_index[sender] = message.next_index

    def _consider_admission(self, sender: Peer, message: Ack) -> None:
        """Admit a member without a vote once it holds all that it may have acknowledged before.

        Until then what it acknowledges counts for nothing: it may have helped to elect a leader of a later
        term, or held a decision no other member has. That there is no leader of a later term is known by a
        read, confirmed by others after it began, or because all members, this one as it is now, elected this
        leader.
        """
        if sender.id in self._ballots.electors:
            self.counted_answer_at[sender] = self._now()
        elif not self._membership.is_confirmed(sender.id):
            self._membership.ask(sender.id, self.read)
            return
        seat_index = self.seats.index_of(sender.id)
        if seat_index > self.commit_index:
            return  # that its seat is vacant is not certain yet
        needed = max(self.commit_index, self.noop_index)
        if message.success and not message.reset and message.next_index > needed:
            log.info("Controller %s holds everything: admitted", sender.id)
            self._outbox.send(sender, Admit(self.term, self.seats.incarnation(sender.id)))
            self.speak_now()  # its answer says that it was

    def _on_admit(self, sender: Peer, message: Admit) -> None:
        if message.term == self.term and sender == self.leader_peer:
            log.info("admitted by %s: this Controller may vote", sender.id)
            if self.voted_for is None:
                # Its past self may have voted in this term, so it has no other vote than for its leader.
                self.set_term(self.term, sender.id)
            self._journal.admit(message.incarnation)

    # what the library asks

    def apply_command(self, command: bytes) -> Any:
        if command[:1] == NO_OP:
            return b""
        if command[:1] == SEAT:
            seat = read_seat(command)
            assert seat is not None, "looked at when it was added"
            return b"%d" % seat.incarnation
        if command[:1] != REGULAR:
            log.error("entry of unknown kind %r was committed; it changes nothing", command[:1])
            return Failed(f"entry of unknown kind {command[:1]!r}")
        try:
            return self._machine.apply(command[1:])
        except Exception as error:
            # Whatever it is: every member gets the same, and the log must go on.
            log.exception("a command could not be applied")
            return Failed(f"{type(error).__name__}: {error}")

    def take_queued(self) -> None:
        if self.waits_to_begin():
            return
        for _ in range(min(len(self._queue), COMMANDS_PER_TICK_MAX)):
            command, done = self._queue.popleft()
            if not self.leads():
                safely(done, None, "not the leader")
                continue
            index, term = self._journal.last_index + 1, self.term
            self._journal.add(command, index, term)
            self.waiting[index].append((term, library_callback(done)))

    def compact(self) -> None:
        applied, now = self.last_applied, self._now()
        if self._compaction.is_due(applied, now):
            data = self._compaction.run(applied, self._machine.snapshot(), self.seats.until(applied), now)
            if data is not None:
                self.snapshots.store(data)


def _seats_in(sender: Peer, entries: Iterable[Entry]) -> list[Seat | None]:
    try:
        return [read_seat(command) for command, _index, _term in entries]
    except Malformed as error:
        raise PeerError(f"{sender.id} sends an entry that is no replacement: {error}") from None


def _library_conf(timing: Timing, journal: Journal) -> Any:
    return library.SyncObjConf(
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


__all__ = ["NO_OP", "REGULAR", "Diverged", "Failed", "Node"]
