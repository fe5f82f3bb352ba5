"""Which slaves count, how far the log is confirmed, and where a slave's log stops being its master's.

Pure: time comes as ``now_ms`` (a monotonic clock, milliseconds), offsets are bytes in the CommitLog.

Two promises, whatever answers of the Controller are late or lost:

* ``confirmed`` never moves back within an epoch, and never passes what a member of any SyncStateSet the
  Controller may hold has acknowledged. So whoever is elected from it has every confirmed byte.
* ``replicated`` (answers to producers leave up to it) counts members of the SyncStateSet only: never a
  learner, never a slave that merely connects.

``ConnectedSet`` is what is left of it in a group without Controller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.errors import PeerError

JOIN_LAG_MS: Final = 200
"""A slave that was level with the master so shortly ago is invited into the SyncStateSet."""
COURT_MS: Final = 1000
"""An invited slave holds the confirmed offset at most so long before it reaches it."""
REFUSED_MS: Final = 2000
"""A slave the Controller refused is not invited again for so long."""
UNKNOWN_HOLD_MS: Final = 5000
"""A proposal without an answer may still be applied for so long after Controllers answered something else:
the time they work on a request. Counted from there, as they may have stood still with it before."""


class Proposal(NamedTuple):
    """A SyncStateSet asked for; the Controller applies it only while its set has epoch ``base``."""

    members: frozenset[int]
    base: int
    sent_ms: float


@dataclass(slots=True)
class _Slave:
    learner: bool
    end: int  # acknowledged on this connection; -1 before its first report
    caught_up_ms: float  # when it last had everything the master had at that moment
    mark_end: int  # the master's end ...
    mark_ms: float  # ... at this time: an ack that reaches it proves the slave was level then
    prompt: bool  # its silence says something even while there is nothing to acknowledge
    reports: int = 0
    noted: bool = False  # it has noted the current epoch, and all of the log before it
    courted_ms: float = -1.0  # invited, not yet proposed, since; -1 = not
    refused_until_ms: float = 0.0
    blamed_ms: float = 0.0  # it is to blame for no silence before: the master stood still


class SyncSet:
    """The master's view of its SyncStateSet, and what it lets it confirm.

    In: ``appended``, ``connected``, ``acked``, ``disconnected``, ``tick``, ``adopt``, ``refused``,
    ``unknown``. Out: ``confirmed``, ``replicated``, and the proposals of ``propose``.
    """

    def __init__(
        self,
        self_id: int,
        *,
        epoch: int,
        epoch_start: int,
        members: frozenset[int],
        set_epoch: int,
        end: int,
        confirmed: int,
        all_ack: bool,
        ack_count: int,
        not_catchup_ms: int,
        now_ms: float,
        majority_of: int = 0,
        copies_min: int = 1,
        flushed: int | None = None,
        entitled: Callable[[], bool] = lambda: True,
        eligible: Callable[[int], bool] = lambda broker_id: True,
    ) -> None:
        """``all_ack``: answers wait for every member; otherwise for ``ack_count`` members, the master
        included. ``copies_min``: in every mode an answer needs so many members that have the record
        (``minInSyncReplicas``). ``majority_of``: they wait for members that are a majority of so many
        replicas, in the set or not, and of all that are known; 0 = no majority mode. ``flushed``: how far
        the own log is on disk, when that counts (SYNC_FLUSH), else None. ``entitled``: whether no other
        master can be there now; asked whenever bytes could be confirmed without the acknowledgement of
        everyone who could be elected. ``eligible``: whether a slave has all that a member must have
        besides the log; one that has not is neither invited nor proposed."""
        self.self_id = self_id
        self.epoch = epoch
        self.epoch_start = epoch_start
        self.members = members | {self_id}
        self.set_epoch = set_epoch
        self.end = end
        self.confirmed = min(confirmed, end)
        self.replicated = 0
        # A majority may confirm what a member of the set lacks: then not everyone was asked.
        self._all_ack = all_ack and not majority_of
        self._ack_count = ack_count
        self._majority_of = majority_of
        self._copies_min = copies_min
        self._flushed = flushed
        self._not_catchup_ms = not_catchup_ms
        self._entitled = entitled
        self._eligible = eligible
        self._slaves: dict[int, _Slave] = {}
        self._pending: Proposal | None = None
        self._doubtful: dict[Proposal, float | None] = {}  # since when (ms) Controllers answer again
        self._tick_ms = now_ms
        self._since_ms = now_ms
        self._awaited = self.members  # not heard of since this broker became master
        self._counted: tuple[int, ...] = ()
        self._countable: tuple[int, ...] = ()
        self._changed()

    # What happened

    def appended(self, end: int) -> None:
        """The master's own log reaches ``end``."""
        self.end = end
        self._advance()

    def flushed(self, flushed: int) -> None:
        """The master's own log is on disk up to ``flushed``; heard with SYNC_FLUSH only."""
        if self._flushed is not None:
            self._flushed = flushed
            self._advance()

    def connected(self, broker_id: int, now_ms: float, *, learner: bool = False, prompt: bool = True) -> None:
        """A slave made itself known; a former connection of the same id no longer counts.

        ``prompt``: it answers heartbeats. One that does not is behind only while it lacks something.
        """
        self._awaited -= {broker_id}
        self._slaves[broker_id] = _Slave(learner, -1, now_ms, self.end, now_ms, prompt)
        self._changed()

    def acked(self, broker_id: int, end: int, now_ms: float) -> None:
        """A connected slave has everything below ``end``. Raises PeerError when that cannot be."""
        slave = self._slaves[broker_id]
        if end > self.end:
            raise PeerError(f"slave {broker_id} acknowledged {end}, beyond our end {self.end}")
        if end < slave.end:
            raise PeerError(f"slave {broker_id} acknowledged {end} after {slave.end}")
        slave.end = end
        slave.reports += 1
        # The first report is where the stream begins; the frame that takes a slave to the epoch's start, or
        # finds it there, bears the epoch's label, and the slave notes it before it answers.
        slave.noted = slave.noted or end > self.epoch_start or (slave.reports > 1 and end == self.epoch_start)
        if end >= slave.mark_end:
            level = end >= self.end
            slave.caught_up_ms = now_ms if level else max(slave.caught_up_ms, slave.mark_ms)
            slave.mark_end, slave.mark_ms = self.end, now_ms
            if now_ms - slave.caught_up_ms <= JOIN_LAG_MS:
                self._court(broker_id, slave, now_ms)
        self._advance()

    def on_eligible(self, broker_id: int, now_ms: float) -> None:
        """``eligible`` may say yes for this slave from now on: invite it at once if it is level."""
        slave = self._slaves.get(broker_id)
        if slave is not None and (slave.end >= self.end or now_ms - slave.caught_up_ms <= JOIN_LAG_MS):
            self._court(broker_id, slave, now_ms)

    def disconnected(self, broker_id: int) -> None:
        """The connection ended: what the slave holds is unknown from now on."""
        if self._slaves.pop(broker_id, None) is not None:
            self._changed()

    def tick(self, now_ms: float) -> None:
        """Note that time passes; call it several times within ``not_catchup_ms``."""
        gap_ms = now_ms - self._tick_ms
        self._tick_ms = now_ms
        if gap_ms > self._not_catchup_ms / 2:
            # The master itself stood still (a paused process): its slaves are not to blame for the silence.
            # What they said before it is as old as it is: they vouch for nobody with that.
            self._since_ms = min(self._since_ms + gap_ms, now_ms)
            for slave in self._slaves.values():
                slave.blamed_ms = min(max(slave.caught_up_ms, slave.blamed_ms) + gap_ms, now_ms)
        expired = False
        for broker_id, slave in self._slaves.items():
            late = slave.courted_ms >= 0 and now_ms - slave.courted_ms > COURT_MS
            if late and (slave.end < self.confirmed or not self._eligible(broker_id)):
                slave.courted_ms = -1.0
                expired = True
            if not slave.prompt and slave.end >= self.end:
                slave.caught_up_ms = now_ms
        if expired:
            self._changed()

    # The Controller

    def wanted(self, now_ms: float) -> frozenset[int]:
        """The SyncStateSet the master would like: itself, members that keep up, slaves that have caught
        up."""
        wanted = {self.self_id}
        for broker_id, slave in self._slaves.items():
            if slave.learner:
                continue
            if broker_id in self.members:
                silent_ms = now_ms - max(slave.caught_up_ms, slave.blamed_ms)
                keeps_up = silent_ms <= self._not_catchup_ms
                # A member that came back with less (a lost page cache) must not be elected before it caught
                # up.
                if keeps_up and not 0 <= slave.end < self.confirmed:
                    wanted.add(broker_id)
            elif slave.courted_ms >= 0 and slave.end >= max(self.confirmed, self.epoch_start):
                # Tables first, then membership: elected, it would have to serve with what it has.
                wanted |= {broker_id} if self._eligible(broker_id) else set()
        if now_ms - self._since_ms <= self._not_catchup_ms:
            # Right after this broker became master its members are still on their way to it.
            wanted |= self._awaited & self.members
        return frozenset(wanted)

    def propose(self, now_ms: float) -> Proposal | None:
        """What to ask of the Controller now, or None. It counts until ``adopt`` or ``refused`` is called."""
        self.tick(now_ms)  # a proposal that was due when this process stood still comes before the next one
        if self._pending is not None:
            return None
        wanted = self.wanted(now_ms)
        if wanted == self.members:
            return None
        self._pending = Proposal(wanted, self.set_epoch, now_ms)
        self._changed()
        return self._pending

    def adopt(self, members: frozenset[int], set_epoch: int, asked_ms: float | None = None) -> bool:
        """Take the Controller's view if it is newer than ours; return whether it was.

        ``asked_ms``: when the view was asked for. A proposal without an answer stops counting once a newer
        set shows that it cannot be applied any more, or once a view does not contain it that was asked for
        long enough after an earlier one.
        """
        newer = set_epoch > self.set_epoch
        if newer:
            self.members = members | {self.self_id}
            self.set_epoch = set_epoch
            self._doubtful = {p: since for p, since in self._doubtful.items() if p.base >= set_epoch}
            if self._pending is not None and self._pending.base < set_epoch:
                self._pending = None
            for broker_id, slave in self._slaves.items():
                if broker_id in self.members:
                    slave.courted_ms = -1.0
        elif set_epoch == self.set_epoch and asked_ms is not None:
            since_ms = {p: max(p.sent_ms, asked_ms if at is None else at) for p, at in self._doubtful.items()}
            self._doubtful = {p: at for p, at in since_ms.items() if asked_ms - at < UNKNOWN_HOLD_MS}
        self._changed()
        return newer

    def refused(self, proposal: Proposal, now_ms: float) -> None:
        """The Controller said no, so ``proposal`` will never be applied: forget it."""
        if self._pending == proposal:
            self._pending = None
        for broker_id in proposal.members - self.members:
            slave = self._slaves.get(broker_id)
            if slave is not None:
                slave.courted_ms = -1.0
                slave.refused_until_ms = now_ms + REFUSED_MS
        self._changed()

    def unknown(self, proposal: Proposal) -> None:
        """No answer came: the Controller may hold ``proposal`` or not, so it goes on counting (see
        ``adopt``)."""
        if self._pending == proposal:
            self._pending = None
            self._doubtful[proposal] = None
            self._changed()

    def elected(
        self, epoch: int, epoch_start: int, members: frozenset[int], set_epoch: int, now_ms: float
    ) -> None:
        """The same master was elected again: proposals of its former epoch can no longer be applied.

        In majority mode its slaves must connect again: an answer to a frame of the former epoch does not tell
        that they have noted this one."""
        self.epoch, self.epoch_start = epoch, epoch_start
        self.members, self.set_epoch = members | {self.self_id}, set_epoch
        self._pending, self._doubtful = None, {}
        self._since_ms = now_ms
        for slave in self._slaves.values():
            slave.courted_ms = -1.0
            slave.noted = False
        self._changed()

    def renewed(self) -> None:
        """``entitled`` is true again: confirm what waited for it."""
        self._advance()

    def vouched(self, now_ms: float, within_ms: float) -> bool:
        """Whether every broker that could be elected acknowledged all there was ``within_ms`` ago: none of
        them was elected by then, and they are there to acknowledge what comes."""
        if not self._all_ack or not self._counted:
            return False
        for broker_id in self._counted:
            slave = self._slaves.get(broker_id)
            if slave is None or slave.end < 0 or now_ms - slave.caught_up_ms > within_ms:
                return False
        return True

    @property
    def needed(self) -> int:
        """Members an answer waits for at least, the master included; with ``all_ack`` it waits for all."""
        if not self._majority_of:
            return self._ack_count
        known = {self.self_id, *self.members, *(b for b, s in self._slaves.items() if not s.learner)}
        return max(self._ack_count, max(self._majority_of, len(known)) // 2 + 1)

    # For status

    @property
    def proposed(self) -> frozenset[int]:
        """Ids that count although the Controller's set, as far as known, does not hold them."""
        return frozenset(self._counted) - self.members

    def slave_ends(self) -> dict[int, int]:
        """Acknowledged end of each connected slave, bytes; -1 before its first report."""
        return {broker_id: slave.end for broker_id, slave in sorted(self._slaves.items())}

    # Decisions

    def _court(self, broker_id: int, slave: _Slave, now_ms: float) -> None:
        # Invited before it is proposed: under a steady load the master is always a little ahead, and a
        # slave that must reach a moving confirmed offset would never join. From here on it holds the offset
        # still.
        if slave.learner or broker_id in self.members or slave.courted_ms >= 0:
            return
        if slave.end < self.epoch_start or now_ms < slave.refused_until_ms or not self._eligible(broker_id):
            return
        slave.courted_ms = now_ms
        self._changed(advance=False)

    def _changed(self, *, advance: bool = True) -> None:
        # An invited slave counts from the invitation on, a proposed one from the proposal on: the
        # Controller may have applied it before we hear so, and could elect that slave from then on.
        counted = set(self.members)
        countable = set(self.members)
        for proposal in (*self._doubtful, *((self._pending,) if self._pending else ())):
            counted |= proposal.members
            countable &= proposal.members
        counted |= {b for b, slave in self._slaves.items() if slave.courted_ms >= 0}
        self._counted = tuple(sorted(counted - {self.self_id}))
        self._countable = tuple(
            b for b in sorted(countable - {self.self_id}) if b in self._slaves and not self._slaves[b].learner
        )
        if advance:
            self._advance()

    def _advance(self) -> None:
        if not (self._all_ack and self._counted) and not self._entitled():
            return
        # With SYNC_FLUSH the master is a replica like the others: what only its memory holds is not safe to
        # read, because it is gone when all of them lose power.
        slowest = self._own
        for broker_id in self._counted:
            slave = self._slaves.get(broker_id)
            slowest = min(slowest, slave.end if slave is not None else -1)
        if self._all_ack:
            # The set may have shrunk while answers waited: what fewer members have than copies_min asks for
            # is not answered. Consumers may read it: all that can be elected have it.
            replicated = slowest if 1 + len(self._countable) >= self._copies_min else -1
        else:
            # Consumers never read what fewer than ``needed`` have.
            slowest = min(slowest, max(self._nth_highest(self.needed), self.replicated))
            replicated = self._nth_highest(max(self.needed, self._copies_min))
        if slowest > self.confirmed:
            self.confirmed = slowest
        if replicated > self.replicated:
            self.replicated = replicated

    @property
    def _own(self) -> int:
        return self.end if self._flushed is None else min(self.end, self._flushed)

    def _nth_highest(self, needed: int) -> int:
        """The end that ``needed`` members have, the master included; -1: there are not so many."""
        if needed <= 1:
            return self._own
        slaves = [self._slaves[b] for b in self._countable]
        if self._majority_of:
            # A slave that has not noted this epoch may lose an election against one with an epoch between:
            # what it holds of former epochs counts only together with this one (as in Raft, 5.4.2).
            slaves = [slave for slave in slaves if slave.noted]
        ends = [self._own, *(slave.end for slave in slaves)]
        if len(ends) < needed:
            return -1
        ends.sort(reverse=True)
        return ends[needed - 1]


class ConnectedSet(SyncSet):
    """The same questions in a group without Controller: nobody is elected, so every connected slave counts.

    ``replicated`` waits for ``ack_count`` brokers, or a majority; ``confirmed`` is the log's end (with
    SYNC_FLUSH as far as it is on disk), as in the original: the master stays master, so nothing a consumer
    has read is ever cut from its log by a successor.
    """

    def __init__(
        self,
        self_id: int,
        *,
        end: int,
        confirmed: int,
        ack_count: int,
        majority_of: int,
        now_ms: float,
        copies_min: int = 1,
        flushed: int | None = None,
    ) -> None:
        super().__init__(
            self_id,
            epoch=0,
            epoch_start=0,
            members=frozenset({self_id}),
            set_epoch=0,
            end=end,
            confirmed=confirmed,
            all_ack=False,
            ack_count=ack_count,
            not_catchup_ms=0,
            now_ms=now_ms,
            majority_of=majority_of,
            copies_min=copies_min,
            flushed=flushed,
        )

    def tick(self, now_ms: float) -> None:
        """Nothing depends on time."""

    def wanted(self, now_ms: float) -> frozenset[int]:
        return self.members

    def _court(self, broker_id: int, slave: _Slave, now_ms: float) -> None:
        """There is no set to invite anyone to."""

    def _changed(self, *, advance: bool = True) -> None:
        self._countable = tuple(sorted(self._slaves))
        members = frozenset({self.self_id, *self._countable})
        if members != self.members:
            self.members = members
            self.set_epoch += 1
        if advance:
            self._advance()

    def _advance(self) -> None:
        self.confirmed = max(self.confirmed, self._own)
        self.replicated = max(self.replicated, self._nth_highest(max(self.needed, self._copies_min)))


def excused_ms(heard_ms: float, late_ms: float, silence_ms: float, now_ms: float) -> float:
    """Since when the other side of a link is silent, when the look at it at ``now_ms`` is ``late_ms`` late
    and a silence of ``silence_ms`` would end the link.

    Who looks that late stood still himself, and perhaps the whole machine with him: the time does not count.
    """
    return min(heard_ms + late_ms, now_ms) if late_ms > silence_ms / 2 else heard_ms


def consistent_point(
    master: Sequence[tuple[int, int]], slave: Sequence[tuple[int, int]], master_end: int, slave_end: int
) -> int | None:
    """Up to where two logs hold the same bytes, or None when no common epoch is known.

    Epochs are (epoch, start offset), oldest first; an epoch ends where the next starts, the last one at the
    log's end. The newest epoch both logs know under the same number and start decides. An empty slave has
    nothing to compare: 0.
    """
    if slave_end == 0:
        return 0
    ends = [start for _, start in master[1:]] + [master_end]
    master_ends = {entry: min(end, master_end) for entry, end in zip(master, ends, strict=False)}
    epoch_end = slave_end
    for entry in reversed(slave):
        if entry in master_ends:
            return min(master_ends[entry], epoch_end)
        # An epoch noted before its first byte arrived may start beyond the end a crash left.
        epoch_end = min(epoch_end, entry[1])
    return None


def missed(
    epochs: Sequence[tuple[int, int]], offset: int, known: tuple[int, int] | None, next_label: tuple[int, int]
) -> list[tuple[int, int]]:
    """The epochs from ``offset`` on, between the one a slave knows and the label of its next frame.

    An epoch so short that its only frame is its tail batch appears in no label: a slave of a real master
    never learns of it and later finds no consistent point.
    """
    found = []
    for at, entry in enumerate(epochs):
        ended = at + 1 < len(epochs) and epochs[at + 1][1] <= offset
        older = entry[0] < next_label[0] and entry[1] < next_label[1]
        newer = known is None or (entry[0] > known[0] and entry[1] > known[1])
        if older and newer and not ended:
            found.append(entry)
    return found


def label(epochs: Sequence[tuple[int, int]], offset: int, size_max: int) -> tuple[int, tuple[int, int]]:
    """How many of ``size_max`` bytes at ``offset`` fit in one frame, and the (epoch, start) it is labelled
    with.

    A frame never crosses an epoch's end; one that reaches it carries the label of the next epoch, as a real
    master's does, so that the slave notes the epoch before its first byte. Raises ValueError when no epoch
    holds ``offset``.
    """
    for at in range(len(epochs) - 1, -1, -1):
        if epochs[at][1] <= offset:
            if at + 1 < len(epochs) and offset + size_max >= epochs[at + 1][1]:
                return epochs[at + 1][1] - offset, epochs[at + 1]
            return size_max, epochs[at]
    raise ValueError(f"no epoch holds offset {offset}; the first of {len(epochs)} begins later")
