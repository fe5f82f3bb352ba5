"""How far is a log replicated without Controllers? Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ha.master.ack_policy import AckPolicy, Copies
from ha.master.replicas import check_ack
from model.errors import BrokenInvariantError
from model.ids import NO_EPOCH, NOWHERE, BrokerId, Epoch, PhysicalOffset

_BEGIN: Final = PhysicalOffset(0)


@dataclass(slots=True)
class _Evidence:
    """What ``replicated`` is checked against."""

    acknowledged: dict[BrokerId, PhysicalOffset] = field(default_factory=dict)
    """The furthest, on any connection."""
    copies: int = 1
    """What the policy asked for when ``replicated`` moved last."""
    replicated: PhysicalOffset = _BEGIN
    """How far producers were answered at the last check."""
    told: tuple[PhysicalOffset, PhysicalOffset] = (NOWHERE, NOWHERE)
    """What was confirmed, and that; before the first check nothing."""

    def keep_few(self, left: Iterable[BrokerId]) -> None:
        """Of slaves that have ``left``, those that prove what was answered: a slave without an id of its own
        is another one on each connection."""
        furthest = sorted(left, key=lambda broker_id: self.acknowledged[broker_id], reverse=True)
        for broker_id in furthest[self.copies :]:
            del self.acknowledged[broker_id]


@dataclass
class ConnectedSet:
    """The replicas of a group without Controllers: nobody is elected, so every connected slave counts.

    ``replicated`` waits for as many brokers as the policy asks; ``confirmed`` is the log's end (with
    SYNC_FLUSH as far as it is on disk), as in RocketMQ: the master stays master, so nothing a consumer
    has read is ever cut from its log by a successor.
    """

    self_id: BrokerId
    policy: AckPolicy
    end: PhysicalOffset
    flushed: PhysicalOffset
    confirmed: PhysicalOffset
    epoch: Epoch = NO_EPOCH
    set_epoch: int = 0
    replicated: PhysicalOffset = _BEGIN
    _ends: dict[BrokerId, PhysicalOffset] = field(default_factory=dict)
    evidence: _Evidence = field(default_factory=_Evidence)
    members: frozenset[BrokerId] = field(init=False)
    members_to_write: int = field(init=False)
    """Members, the master included, that there are at least before a write is taken."""
    enough_members: bool = field(init=False)
    _copies: Copies = field(init=False)
    _own_decides: bool = field(init=False)  # the policy asks for one copy, and none is ahead of our own

    def __post_init__(self) -> None:
        self._regroup()

    @property
    def candidates(self) -> frozenset[BrokerId]:
        return frozenset(self._ends)

    def _regroup(self) -> None:
        """Who is connected changed. What follows from it is asked for at each append: it is kept."""
        self.members = frozenset({self.self_id, *self._ends})
        known = len(self.members)
        self.members_to_write = self.policy.members_to_write(known)
        self.enough_members = known >= self.members_to_write
        self._copies = self.policy.copies(known)
        self._own_decides = self._copies.to_ack == 1 and (known == 1 or not self.policy.synced)
        self._advance()

    def on_append(self, end: PhysicalOffset) -> None:
        self.end = end
        self._advance()

    def on_flush(self, flushed: PhysicalOffset) -> None:
        self.flushed = flushed
        self._advance()

    def on_connect(
        self, broker_id: BrokerId, now_ms: float, *, learner: bool = False, answers_heartbeats: bool = True
    ) -> None:
        """A slave connected; a former connection of the same id no longer counts."""
        if broker_id not in self._ends:
            self.set_epoch += 1
        self._ends[broker_id] = NOWHERE
        self._regroup()

    def on_ack(self, broker_id: BrokerId, end: PhysicalOffset, now_ms: float) -> bool:
        """A connected slave has everything below ``end``. There is nothing to propose by it. Raises PeerError
        when that cannot be."""
        check_ack(broker_id, end, self._ends[broker_id], self.end)
        self._ends[broker_id] = end
        acknowledged = self.evidence.acknowledged
        acknowledged[broker_id] = max(end, acknowledged.get(broker_id, NOWHERE))
        self._advance()
        return False

    def on_disconnect(self, broker_id: BrokerId) -> None:
        if self._ends.pop(broker_id, None) is not None:
            self.set_epoch += 1
            self._regroup()
        self.evidence.keep_few(left=self.evidence.acknowledged.keys() - self._ends.keys())

    def on_tick(self, now_ms: float) -> None:
        """Nothing depends on time."""

    def on_lease(self) -> None:
        """Nobody else can become master."""

    def on_copies_min(self, copies_min: int) -> None:
        """From now on OK means so many copies at least."""
        self.policy = replace(self.policy, copies_min=copies_min)
        self._regroup()

    def acked_by_all_recently(self, now_ms: float, within_ms: float) -> bool:
        """Asked instead of a lease, which nobody needs here."""
        return False

    def check_invariants(self) -> None:
        """Raises BrokenInvariantError when OK means fewer copies than the policy asks for, or a watermark
        moved where it must not. Changes nothing: what is compared with moves in ``on_checked``."""
        end, replicated, evidence = self.end, self.replicated, self.evidence
        if self.confirmed > end:
            raise BrokenInvariantError(f"confirmed {self.confirmed} lies beyond the log's end {end}")
        if replicated > end:
            raise BrokenInvariantError(f"replicated {replicated} lies beyond the log's end {end}")
        if replicated < evidence.replicated:
            raise BrokenInvariantError(f"replicated moved back from {evidence.replicated} to {replicated}")
        having = int(self.policy.own_end(end, self.flushed) >= replicated)
        for acked in evidence.acknowledged.values():
            having += acked >= replicated
        if having < evidence.copies and replicated:
            raise BrokenInvariantError(
                f"{having} brokers have what is answered up to {replicated}, {evidence.copies} must"
            )

    def on_checked(self) -> None:
        """What is replicated is told: it may not move back from here."""
        self.evidence.replicated = self.replicated
        self.evidence.told = self.confirmed, self.replicated

    def _advance(self) -> None:
        policy = self.policy
        own = policy.own_end(self.end, self.flushed) if policy.synced else self.end
        if own > self.confirmed:
            self.confirmed = own
        if self._own_decides:  # the same as below, in fewer steps
            if own > self.replicated:
                self.replicated, self.evidence.copies = own, 1
            return
        _, replicated = policy.watermarks(own, own, list(self._ends.values()), self._copies)
        if replicated > self.replicated:
            self.replicated, self.evidence.copies = replicated, self._copies.to_ack
