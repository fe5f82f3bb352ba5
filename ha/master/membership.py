"""Which brokers are in the SyncStateSet by the Controllers' last word, and which may be by now?

Pure: time comes as ``now_ms`` (a monotonic clock, milliseconds).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from model.ids import BrokerId

REFUSED_MS: Final = 2000
"""A slave the Controllers refused does not join again for this long."""
UNKNOWN_HOLD_MS: Final = 5000
"""A proposal without an answer may still be applied for this long after Controllers answered something else:
the time they work on a request. Counted from there, as they may have stood still with it before."""


class Proposal(NamedTuple):
    """A SyncStateSet asked for; the Controllers apply it only while their set has epoch ``base``."""

    members: frozenset[BrokerId]
    base: int
    sent_ms: float


class Membership:
    """Members, joining slaves and proposals of one master.

    In: ``on_...``, ``propose``, ``begin_joining``, ``drop_joining``, ``forget``. Out: ``may_be_members`` and
    ``surely_members``.
    """

    def __init__(self, self_id: BrokerId, members: frozenset[BrokerId], set_epoch: int) -> None:
        self.members = members | {self_id}
        self.set_epoch = set_epoch
        self.open: Proposal | None = None
        self.unanswered: dict[Proposal, float | None] = {}  # since when (ms) Controllers answer again
        self.joining: dict[BrokerId, float] = {}  # since when, ms
        self.refused_until_ms: dict[BrokerId, float] = {}
        self.may_be_members: tuple[BrokerId, ...] = ()
        """Every other broker that could be elected. A slave counts as soon as it joins or is proposed: the
        Controllers may have applied a proposal before this master hears so."""
        self.surely_members: tuple[BrokerId, ...] = ()
        """Every other broker that is a member whatever the Controllers answer."""
        self.not_yet_connected = self.members
        """Members not heard of since this broker became master."""
        self._self_id = self_id
        self.recount()

    def on_view(self, members: frozenset[BrokerId], set_epoch: int, asked_ms: float | None) -> bool:
        """See ``SyncSet.on_view``."""
        newer = set_epoch > self.set_epoch
        if newer:
            self.members = members | {self._self_id}
            self.set_epoch = set_epoch
            self.unanswered = {p: since for p, since in self.unanswered.items() if p.base >= set_epoch}
            if self.open is not None and self.open.base < set_epoch:
                self.open = None
            self.joining = {b: since for b, since in self.joining.items() if b not in self.members}
        elif set_epoch == self.set_epoch and asked_ms is not None:
            since_ms = {
                p: max(p.sent_ms, asked_ms if at is None else at) for p, at in self.unanswered.items()
            }
            self.unanswered = {p: at for p, at in since_ms.items() if asked_ms - at < UNKNOWN_HOLD_MS}
        self.recount()
        return newer

    def on_refused(self, proposal: Proposal, now_ms: float) -> None:
        if self.open == proposal:
            self.open = None
        for broker_id in proposal.members - self.members:
            self.joining.pop(broker_id, None)
            self.refused_until_ms[broker_id] = now_ms + REFUSED_MS
        self.recount()

    def on_unanswered(self, proposal: Proposal) -> None:
        if self.open == proposal:
            self.open = None
            self.unanswered[proposal] = None
            self.recount()

    def on_elected(self, members: frozenset[BrokerId], set_epoch: int) -> None:
        """Proposals of the former epoch can no longer be applied."""
        self.members, self.set_epoch = members | {self._self_id}, set_epoch
        self.open, self.unanswered, self.joining = None, {}, {}
        self.recount()

    def propose(self, desired: frozenset[BrokerId], now_ms: float) -> Proposal:
        self.open = Proposal(desired, self.set_epoch, now_ms)
        self.recount()
        return self.open

    def begin_joining(self, broker_id: BrokerId, now_ms: float) -> bool:
        """It counts from now on, unless it was refused a moment ago. Return whether that is new."""
        if broker_id in self.members or broker_id in self.joining:
            return False
        if now_ms < self.refused_until_ms.get(broker_id, now_ms):
            return False
        self.joining[broker_id] = now_ms
        self.recount()
        return True

    def on_connected(self, broker_id: BrokerId) -> None:
        self.not_yet_connected -= {broker_id}
        self.forget(broker_id)

    def drop_joining(self, broker_ids: Collection[BrokerId]) -> None:
        """They took too long, and hold the confirmed offset no more."""
        for broker_id in broker_ids:
            del self.joining[broker_id]
        self.recount()

    def forget(self, broker_id: BrokerId) -> None:
        """It connected anew, or no longer: what was begun with it is over."""
        self.refused_until_ms.pop(broker_id, None)
        if self.joining.pop(broker_id, None) is not None:
            self.recount()

    def recount(self) -> None:
        may_be_members, surely_members = set(self.members), set(self.members)
        for proposal in (*self.unanswered, *((self.open,) if self.open else ())):
            may_be_members |= proposal.members
            surely_members &= proposal.members
        may_be_members |= self.joining.keys()
        self.may_be_members = tuple(sorted(may_be_members - {self._self_id}))
        self.surely_members = tuple(sorted(surely_members - {self._self_id}))
