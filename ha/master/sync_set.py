"""Which slaves count, and how far is the log confirmed?

No I/O of its own: time comes as ``now_ms`` (a monotonic clock, milliseconds), offsets are bytes in the
CommitLog. It asks the callback ``may_confirm`` whether the lease holds, anew at each event that could confirm
bytes: by then a lease that held at an earlier event may be over.
``AckPolicy`` says how many copies are enough, ``Membership`` which brokers may be in the SyncStateSet,
``SyncSet`` what both mean for the log of one master.

Two promises, whatever answers of the Controllers are late or lost (``check_invariants``):

* ``confirmed`` never moves back within an epoch, and never passes what a member of any SyncStateSet the
  Controllers may hold has acknowledged. So every broker elected from it has each confirmed byte.
* ``replicated`` (answers to producers leave up to it, ``_advance`` moves it) counts members of the
  SyncStateSet only: never a learner, never a slave that merely connects. It moves only over what has the
  copies that the policy asks. What is checked: it never moves back, and that number of brokers has it,
  learners excepted; with SYNC_FLUSH the master counts only as far as it is on its disk. Where all members
  must have it, it never passes ``confirmed`` either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ha.master.ack_policy import AckPolicy, Copies, Wait
from ha.master.membership import Membership, Proposal
from ha.master.replicas import check_ack
from model.errors import BrokenInvariantError
from model.ids import NOWHERE, BrokerId, Epoch, PhysicalOffset

JOIN_LAG_MS: Final = 200
"""A slave that was level with the master so shortly ago begins to join the SyncStateSet."""
JOINING_MS: Final = 1000
"""A joining slave holds the confirmed offset back at most this long before it reaches it."""

_BEGIN: Final = PhysicalOffset(0)


class Leadership(NamedTuple):
    """What the Controllers made this broker master of."""

    epoch: Epoch
    epoch_start: PhysicalOffset
    """Where the epoch begins in the master's log, bytes."""
    members: frozenset[BrokerId]
    set_epoch: int


class LogEnds(NamedTuple):
    """How far the master's own log reaches when it begins to lead, bytes."""

    end: PhysicalOffset
    confirmed: PhysicalOffset
    flushed: PhysicalOffset


@dataclass(slots=True)
class _Slave:
    """One connected slave."""

    learner: bool
    caught_up_ms: float  # when it last had everything the master had at that moment
    mark_end: PhysicalOffset  # the master's end ...
    mark_ms: float  # ... at this time: an ack that reaches it proves the slave was level then
    answers_heartbeats: bool  # so silence means failure
    end: PhysicalOffset = NOWHERE  # acknowledged on this connection; -1 before its first report
    reported: bool = False  # before, in the epoch there is
    has_epoch: bool = False  # it has recorded the current epoch, and all of the log before it
    excused_until_ms: float = 0.0  # silence before this is not its fault: the master stood still
    progress_ms: float = 0.0  # its last acknowledgement of something new, or of all there was


@dataclass(slots=True)
class _Counting:
    """Whose ends both watermarks are computed from. Made anew whenever one of them may be another."""

    connected: tuple[_Slave, ...]
    """Connected slaves that could be elected."""
    all_must: bool
    """Mode *all*, and another broker could be elected: what moves has been acknowledged by each."""
    absent: bool
    """One that could be elected is not connected."""
    surely_members: tuple[_Slave, ...]
    """Connected members, whatever the Controllers answer to open proposals."""
    members_to_write: int
    """Members, this master included, that the set has at least before a write is taken."""
    copies: Copies
    own_end_moves: bool
    """Whether a watermark may move because the master's own log grew."""
    complete: bool
    """Each member is connected, and each connected slave that may be one is a member."""


@dataclass(slots=True)
class _Time:
    """Milliseconds of a monotonic clock."""

    not_catchup_ms: int
    """A member may be silent or behind for this long (``haMaxTimeSlaveNotCatchup``)."""
    tick_ms: float
    """When time passed last."""
    since_ms: float
    """When this broker became master; later by the time it stood still."""


@dataclass(slots=True)
class _Evidence:
    """What was acknowledged to this master: the facts that both watermarks are checked against, whenever one
    of them moved."""

    acknowledged: dict[BrokerId, PhysicalOffset] = field(default_factory=dict)
    """The furthest that each broker ever acknowledged."""
    confirmed_when_counted: dict[BrokerId, PhysicalOffset] = field(default_factory=dict)
    """What was confirmed when a broker began to count, or connected anew: it may have less than before."""
    copies: int = 1
    """What the policy asked for when ``replicated`` moved last."""
    replicated_at_view: PhysicalOffset = _BEGIN
    """``replicated`` as it was when the present set became known. Part of it may rest on brokers that have
    left."""
    confirmed: PhysicalOffset = _BEGIN
    """How far the log was confirmed at the last check."""
    replicated: PhysicalOffset = _BEGIN
    """How far producers were answered at the last check."""
    told: tuple[PhysicalOffset, PhysicalOffset] = (NOWHERE, NOWHERE)
    """Both; before the first check nothing."""


class SyncSet:
    """The master's view of its SyncStateSet, and what it lets it confirm.

    In: ``on_append on_flush on_connect on_ack on_disconnect on_tick on_lease``, of the Controllers ``on_view
    on_refused on_unanswered on_elected``. Out: ``confirmed``, ``replicated``, the proposals of ``propose``.
    """

    def __init__(
        self,
        self_id: BrokerId,
        leadership: Leadership,
        log: LogEnds,
        policy: AckPolicy,
        *,
        not_catchup_ms: int,
        now_ms: float,
        may_confirm: Callable[[bool], bool] = lambda all_must: True,
        eligible: Callable[[BrokerId], bool] = lambda broker_id: True,
    ) -> None:
        """``may_confirm(all_must)``: whether no other master can be there now; asked whenever bytes could be
        confirmed. ``all_must``: mode *all*, and another broker could be elected, so each acknowledged them.
        ``eligible``: whether a slave has all that a member must have besides the log; one that has not
        neither joins nor is proposed."""
        self.self_id = self_id
        self._leadership = leadership
        self.end = log.end
        self.confirmed = min(log.confirmed, log.end)
        self.replicated = _BEGIN
        self._flushed = log.flushed
        self._policy = policy
        self._membership = Membership(self_id, leadership.members, leadership.set_epoch)
        self._time = _Time(not_catchup_ms, now_ms, now_ms)
        self._may_confirm = may_confirm
        self._eligible = eligible
        self.keeps_set: Callable[[], bool] = lambda: False
        """Whether members that are not heard stay in a set that would be too small without them, as this
        master is about to step down for one of them."""
        self._slaves: dict[BrokerId, _Slave] = {}
        self.evidence = _Evidence(confirmed=self.confirmed)
        self._changed()

    # What happened

    def on_append(self, end: PhysicalOffset) -> None:
        """The master's own log reaches ``end``."""
        self.end = end
        if self._counting.own_end_moves:
            self._advance()

    def on_flush(self, flushed: PhysicalOffset) -> None:
        """The master's own log is on disk up to ``flushed``."""
        self._flushed = flushed
        self._advance()

    def on_connect(
        self, broker_id: BrokerId, now_ms: float, *, learner: bool = False, answers_heartbeats: bool = True
    ) -> None:
        """A slave made itself known; a former connection of the same id no longer counts.

        One that does not answer heartbeats is behind only while it lacks something.
        """
        self._slaves[broker_id] = _Slave(
            learner, now_ms, self.end, now_ms, answers_heartbeats, progress_ms=now_ms
        )
        if broker_id in self.evidence.confirmed_when_counted:
            self.evidence.confirmed_when_counted[broker_id] = self.confirmed
        self._membership.on_connected(broker_id)
        self._changed()

    def on_ack(self, broker_id: BrokerId, end: PhysicalOffset, now_ms: float) -> bool:
        """A connected slave has everything below ``end``. Returns whether the desired set may be another one
        by it; if not, which is usual, there is nothing to propose before the next ``on_tick``. Raises
        PeerError when that cannot be."""
        slave = self._slaves[broker_id]
        if not slave.end <= end <= self.end:
            check_ack(broker_id, end, slave.end, self.end)
        if end > slave.end or end >= self.end:
            slave.end, slave.progress_ms = end, now_ms
        if not slave.learner:
            acknowledged = self.evidence.acknowledged
            if end > acknowledged.get(broker_id, -1):
                acknowledged[broker_id] = end
        if not slave.has_epoch:
            # The first report is where the stream begins; the frame that takes a slave to the epoch's start,
            # or finds it there, names the epoch, and the slave notes it before it answers.
            epoch_start = self._leadership.epoch_start
            slave.has_epoch = end > epoch_start or (slave.reported and end == epoch_start)
            slave.reported = True
        if end >= slave.mark_end:
            level = end >= self.end
            slave.caught_up_ms = now_ms if level else max(slave.caught_up_ms, slave.mark_ms)
            slave.mark_end, slave.mark_ms = self.end, now_ms
            if broker_id not in self._membership.members and now_ms - slave.caught_up_ms <= JOIN_LAG_MS:
                self._join(broker_id, slave, now_ms)
        self._advance()
        return slave.end < self.confirmed or not self._counting.complete

    def on_eligible(self, broker_id: BrokerId, now_ms: float) -> None:
        """``eligible`` may say yes for this slave from now on: it joins at once if it is level."""
        slave = self._slaves.get(broker_id)
        if slave is not None and (slave.end >= self.end or now_ms - slave.caught_up_ms <= JOIN_LAG_MS):
            self._join(broker_id, slave, now_ms)

    def on_disconnect(self, broker_id: BrokerId) -> None:
        """The connection ended: what the slave holds is unknown from now on."""
        if self._slaves.pop(broker_id, None) is not None:
            self._membership.forget(broker_id)
            self._changed()

    def on_tick(self, now_ms: float) -> None:
        """Time passes; call it several times within ``not_catchup_ms``."""
        time = self._time
        gap_ms = now_ms - time.tick_ms
        time.tick_ms = now_ms
        if gap_ms > time.not_catchup_ms / 2:
            # The master itself stood still (a paused process). Its slaves are not to blame: shift their
            # silence by the gap. Their old words do not become newer by it.
            time.since_ms = min(time.since_ms + gap_ms, now_ms)
            for slave in self._slaves.values():
                slave.excused_until_ms = min(max(slave.caught_up_ms, slave.excused_until_ms) + gap_ms, now_ms)
        stalled = []
        for broker_id, slave in self._slaves.items():
            since_ms = self._membership.joining.get(broker_id, now_ms)
            late = now_ms - since_ms > JOINING_MS
            if late and not self._may_be_proposed(broker_id, slave):
                stalled.append(broker_id)
            if not slave.answers_heartbeats and slave.end >= self.end:
                slave.caught_up_ms = now_ms
        if stalled:
            self._membership.drop_joining(stalled)
            self._recount()
        self._advance()

    def on_lease(self) -> None:
        """``may_confirm`` is true again: confirm what waited for it."""
        self._advance()

    def on_copies_min(self, copies_min: int) -> None:
        """From now on OK means so many copies at least."""
        self._policy = replace(self._policy, copies_min=copies_min)
        self._changed()

    # The Controllers

    def propose(self, now_ms: float) -> Proposal | None:
        """What to ask of the Controllers now, or None. It counts until one of ``on_view``, ``on_refused`` and
        ``on_unanswered`` is called. Call ``on_tick`` before: when this process stood still, a proposal that
        was due comes before the tick."""
        if self._membership.open is not None:
            return None
        desired = self.desired_members(now_ms)
        if desired == self.members:
            return None
        proposal = self._membership.propose(desired, now_ms)
        self._changed()
        return proposal

    def on_view(self, members: frozenset[BrokerId], set_epoch: int, asked_ms: float | None = None) -> bool:
        """Take the Controllers' view if it is newer than ours; return whether it was.

        ``asked_ms``: when the view was requested. An unanswered proposal stops counting when (a) a newer set
        makes it unapplicable, or (b) a view requested at least ``UNKNOWN_HOLD_MS`` after the first later
        answer does not contain it.
        """
        newer = self._membership.on_view(members, set_epoch, asked_ms)
        if newer:
            self.evidence.replicated_at_view = self.replicated
        self._changed()
        return newer

    def on_refused(self, proposal: Proposal, now_ms: float) -> None:
        """The Controllers said no: ``proposal`` will never be applied."""
        self._membership.on_refused(proposal, now_ms)
        self._changed()

    def on_unanswered(self, proposal: Proposal) -> None:
        """The Controllers may hold ``proposal`` or not: it goes on counting (see ``on_view``)."""
        self._membership.on_unanswered(proposal)
        self._changed()

    def on_elected(self, leadership: Leadership, now_ms: float) -> None:
        """The same master was elected again.

        In majority mode its slaves must connect again: an answer to a frame of the former epoch does not tell
        that they have noted this one."""
        self._leadership = leadership
        self.evidence.replicated_at_view = self.replicated
        self._membership.on_elected(leadership.members, leadership.set_epoch)
        self._time.since_ms = now_ms
        for slave in self._slaves.values():
            slave.has_epoch = False
        self._changed()

    # What can be asked

    @property
    def epoch(self) -> Epoch:
        return self._leadership.epoch

    @property
    def members(self) -> frozenset[BrokerId]:
        """The SyncStateSet by the Controllers' last word, and this master."""
        return self._membership.members

    @property
    def set_epoch(self) -> int:
        return self._membership.set_epoch

    @property
    def candidates(self) -> frozenset[BrokerId]:
        """Every other broker that the Controllers may elect, as far as this master knows."""
        return frozenset(self._membership.may_be_members)

    @property
    def members_to_write(self) -> int:
        """Members, this master included, that the set has at least before a write is taken."""
        return self._counting.members_to_write

    @property
    def enough_members(self) -> bool:
        """Whether there are so many."""
        return len(self._membership.members) >= self._counting.members_to_write

    def desired_members(self, now_ms: float) -> frozenset[BrokerId]:
        """The SyncStateSet the master would like: itself, members that keep up, slaves that have caught
        up."""
        desired = {self.self_id}
        for broker_id, slave in self._slaves.items():
            if slave.learner:
                continue
            if broker_id in self.members:
                silent_ms = now_ms - max(slave.caught_up_ms, slave.excused_until_ms)
                keeps_up = silent_ms <= self._time.not_catchup_ms
                # A member that came back with less (a lost page cache) must not be elected before it caught
                # up.
                if keeps_up and not 0 <= slave.end < self.confirmed:
                    desired.add(broker_id)
            elif broker_id in self._membership.joining and self._may_be_proposed(broker_id, slave):
                desired.add(broker_id)
        if now_ms - self._time.since_ms <= self._time.not_catchup_ms:
            # Right after this broker became master its members are still on their way to it.
            desired |= self._membership.not_yet_connected & self.members
        if len(desired) < self.copies_needed <= len(self.members):
            desired |= self._kept(now_ms)
        # Asked last: it is about all that stay, those that are kept as well.
        if self._leave_too_early(desired):
            desired |= self.members
        return frozenset(desired)

    def _kept(self, now_ms: float) -> set[BrokerId]:
        """Members that are not heard and stay in the set, so that one of them can still be elected when this
        master asks for a replacement: only while it may do so, as they hold every answer until then."""
        if self._heard(now_ms) >= self.copies_needed:
            # One that was level when it fell silent is a moment from not being heard.
            return {broker_id for broker_id in self.members if self._was_level_at_last_ack(broker_id)}
        if not self.keeps_set():
            return set()
        return {broker_id for broker_id in self.members if not self._hears(broker_id, now_ms)}

    def _was_level_at_last_ack(self, broker_id: BrokerId) -> bool:
        slave = self._slaves.get(broker_id)
        return slave is not None and slave.progress_ms - slave.caught_up_ms <= JOIN_LAG_MS

    @property
    def copies_needed(self) -> int:
        """Copies without which no producer is told OK."""
        return self._counting.copies.to_ack

    def is_cut_off(self, now_ms: float) -> bool:
        """Whether too few slaves are heard for an OK, though they had the time to come."""
        had_time = now_ms - self._time.since_ms > self._time.not_catchup_ms
        return had_time and self._heard(now_ms) < self.copies_needed

    def _heard(self, now_ms: float) -> int:
        return 1 + sum(self._hears(broker_id, now_ms) for broker_id in self._slaves)

    def _hears(self, broker_id: BrokerId, now_ms: float) -> bool:
        """Whether it acknowledges what it is sent. One that this master no longer reaches may still tell, in
        time, that it has nothing new."""
        slave = self._slaves.get(broker_id)
        if slave is None or slave.learner:
            return False
        silent_ms = now_ms - max(slave.progress_ms, slave.excused_until_ms)
        return not slave.answers_heartbeats or silent_ms <= self._time.not_catchup_ms

    def acked_by_all_recently(self, now_ms: float, within_ms: float) -> bool:
        """Whether every broker that could be elected acknowledged all there was ``within_ms`` ago: none of
        them was elected by then, and they are there to acknowledge what comes."""
        counted = self._membership.may_be_members
        if self._policy.wait is not Wait.ALL or not counted:
            return False
        for broker_id in counted:
            slave = self._slaves.get(broker_id)
            if slave is None or slave.end < 0 or now_ms - slave.caught_up_ms > within_ms:
                return False
        return True

    def slave_ends(self) -> dict[BrokerId, PhysicalOffset]:
        """Acknowledged end of each connected slave, bytes; -1 before its first report."""
        return {broker_id: slave.end for broker_id, slave in sorted(self._slaves.items())}

    def check_invariants(self) -> None:
        """Raises BrokenInvariantError when a promise of the module's first lines is broken. Changes nothing:
        what is compared with moves in ``on_checked``."""
        evidence, end, confirmed, replicated = self.evidence, self.end, self.confirmed, self.replicated
        if confirmed > end:
            raise BrokenInvariantError(f"confirmed {confirmed} lies beyond the log's end {end}")
        if replicated > end:
            raise BrokenInvariantError(f"replicated {replicated} lies beyond the log's end {end}")
        if confirmed < evidence.confirmed:
            raise BrokenInvariantError(f"confirmed moved back from {evidence.confirmed} to {confirmed}")
        if len(evidence.confirmed_when_counted) != len(self._membership.may_be_members):
            raise BrokenInvariantError("a broker that may be elected is not checked")
        for broker_id, before in evidence.confirmed_when_counted.items():
            slave = self._slaves.get(broker_id)
            held = evidence.acknowledged.get(broker_id, NOWHERE) if slave is None else slave.end
            if confirmed > before and confirmed > held:
                raise BrokenInvariantError(
                    f"broker {broker_id} may be elected and acknowledged {held}, confirmed is {confirmed}"
                )
        if replicated < evidence.replicated:
            raise BrokenInvariantError(f"replicated moved back from {evidence.replicated} to {replicated}")
        if replicated:
            self._check_copies()

    def _check_copies(self) -> None:
        evidence, replicated, end = self.evidence, self.replicated, self.end
        own = self._policy.own_end(end, self._flushed) if self._policy.synced else end
        if self._policy.wait is Wait.ALL:
            # Each broker that can be elected has it. So it may be read too, and what that takes stands above.
            if replicated > self.confirmed:
                raise BrokenInvariantError(f"replicated {replicated} lies beyond confirmed {self.confirmed}")
            if replicated > own:
                raise BrokenInvariantError(
                    f"replicated {replicated} lies beyond the master's own copy, {own}"
                )
        having = int(own >= replicated)
        for acked in evidence.acknowledged.values():
            having += acked >= replicated
        if having < evidence.copies:
            raise BrokenInvariantError(
                f"{having} brokers have what is answered up to {replicated}, {evidence.copies} must"
            )

    def on_checked(self) -> None:
        """The promises hold, and what is confirmed and answered is told: neither may move back from here."""
        evidence = self.evidence
        evidence.told = evidence.confirmed, evidence.replicated = self.confirmed, self.replicated

    # Decisions

    def _join(self, broker_id: BrokerId, slave: _Slave, now_ms: float) -> None:
        # It joins before it is proposed: under a steady load the master is always a little ahead, and a slave
        # that must reach a moving confirmed offset would never get in. From here on it holds that offset.
        has_start = slave.end >= self._leadership.epoch_start
        joins = not slave.learner and has_start and self._eligible(broker_id)
        if joins and self._membership.begin_joining(broker_id, now_ms):
            self._recount()

    def _leave_too_early(self, desired: set[BrokerId]) -> bool:
        """Whether a member would leave that has what was answered, while one that stays still lacks it: an
        election asks the members of the set for what so many of them have. In mode *all* each has it, and
        where the master alone answers nobody else need have it."""
        leave = self.members - desired
        if self._policy.wait is Wait.ALL or self.copies_needed < 2 or not leave:
            return False
        # What was answered since rests on others: under a steady load one that stays always lacks some of it.
        acknowledged = max(self.evidence.acknowledged.get(b, _BEGIN) for b in leave)
        had = max(min(acknowledged, self.replicated), self._leadership.epoch_start)
        stay = desired - {self.self_id}
        return any(b not in self._slaves or self._slaves[b].end < had for b in stay)

    def _may_be_proposed(self, broker_id: BrokerId, slave: _Slave) -> bool:
        """Whether a joining slave has all that a member must have."""
        # A new member may stand for a replica that an operator gave up (``Group.holders``): so it has what
        # was answered by that one's word.
        answered = self.evidence.replicated_at_view if self._policy.wait is Wait.MAJORITY else _BEGIN
        # Tables first, then membership: elected, it would have to serve with what it has.
        has_log = slave.end >= max(self.confirmed, self._leadership.epoch_start, answered)
        return has_log and self._eligible(broker_id)

    def _changed(self) -> None:
        """The counted ids, or what is known of them, changed."""
        self._recount()
        self._advance()

    def _recount(self) -> None:
        counted, evidence = self._membership.may_be_members, self.evidence
        self._counting = self._counting_of(counted)
        before = evidence.confirmed_when_counted
        evidence.confirmed_when_counted = {b: before.get(b, self.confirmed) for b in counted}

    def _counting_of(self, counted: tuple[BrokerId, ...]) -> _Counting:
        slaves, membership = self._slaves, self._membership
        connected = tuple(slaves[b] for b in counted if b in slaves)
        policy, known = self._policy, 0
        wait = policy.wait
        if wait is Wait.MAJORITY:
            known = len({*membership.members, *(b for b, slave in slaves.items() if not slave.learner)})
        copies, all_must = policy.copies(known), wait is Wait.ALL and bool(counted)
        return _Counting(
            connected,
            all_must=all_must,
            absent=len(connected) < len(counted),
            surely_members=tuple(
                slaves[b] for b in membership.surely_members if b in slaves and not slaves[b].learner
            ),
            members_to_write=policy.members_to_write(known),
            copies=copies,
            # No slave has more than the master. So without SYNC_FLUSH the master's own end moves a watermark
            # only where no slave's copy is needed.
            own_end_moves=policy.synced or not (all_must or copies.to_read > 1),
            complete=membership.members
            == {self.self_id, *(b for b, slave in slaves.items() if not slave.learner)},
        )

    def _advance(self) -> None:
        policy, counting = self._policy, self._counting
        end = self.end
        # AckPolicy.own_end, inline as each acknowledgement comes by here.
        own = slowest = min(end, self._flushed) if policy.synced else end
        if counting.absent:
            slowest = NOWHERE
        else:
            for slave in counting.connected:
                if slave.end < slowest:
                    slowest = slave.end
        if policy.wait is Wait.ALL and slowest <= self.confirmed and slowest <= self.replicated:
            return  # most calls, in mode *all*: nothing moves
        if not self._may_confirm(counting.all_must):
            return
        if policy.wait is Wait.ALL:
            members = 1 + len(counting.surely_members)
            readable, replicated = policy.by_all(slowest, members, counting.copies)
        else:
            readable, replicated = self._watermarks(own, slowest)
        if readable < self.replicated:
            readable = self.replicated  # what producers were told of may be read ...
        if readable > slowest:
            readable = slowest  # ... as far as every replica has it that could be elected
        if readable > self.confirmed:
            self.confirmed = readable
        if replicated > self.replicated:
            self.replicated = replicated
            self.evidence.copies = counting.copies.to_ack

    def _watermarks(
        self, own: PhysicalOffset, slowest: PhysicalOffset
    ) -> tuple[PhysicalOffset, PhysicalOffset]:
        policy, counting = self._policy, self._counting
        # In majority mode a slave that has not noted this epoch may lose an election against one with an
        # epoch between: what it holds of former epochs counts only together with this one (Raft, 5.4.2).
        any_epoch_counts = policy.wait is not Wait.MAJORITY
        ends = [slave.end for slave in counting.surely_members if any_epoch_counts or slave.has_epoch]
        return policy.watermarks(own, slowest, ends, counting.copies)
