"""What does the HA port need of a master's replicas, with or without Controllers? Pure."""

from __future__ import annotations

from typing import Protocol

from model.errors import PeerError
from model.ids import BrokerId, Epoch, PhysicalOffset


class Checked(Protocol):
    """What the promises are checked against."""

    told: tuple[PhysicalOffset, PhysicalOffset]
    """``confirmed`` and ``replicated``, as they were at the last check."""


class Replicas(Protocol):
    """What the HA port needs of a master's replicas: ``SyncSet``, without Controllers ``ConnectedSet``."""

    self_id: BrokerId
    confirmed: PhysicalOffset
    replicated: PhysicalOffset

    @property
    def evidence(self) -> Checked: ...

    @property
    def epoch(self) -> Epoch: ...
    @property
    def members(self) -> frozenset[BrokerId]: ...
    @property
    def candidates(self) -> frozenset[BrokerId]: ...
    @property
    def set_epoch(self) -> int: ...
    @property
    def members_to_write(self) -> int: ...
    @property
    def enough_members(self) -> bool:
        """Whether there are so many."""

    def on_append(self, end: PhysicalOffset) -> None: ...
    def on_flush(self, flushed: PhysicalOffset) -> None: ...
    def on_connect(
        self, broker_id: BrokerId, now_ms: float, *, learner: bool = False, answers_heartbeats: bool = True
    ) -> None: ...
    def on_ack(self, broker_id: BrokerId, end: PhysicalOffset, now_ms: float) -> bool:
        """Whether there may be something to propose by it."""

    def on_disconnect(self, broker_id: BrokerId) -> None: ...
    def on_tick(self, now_ms: float) -> None: ...
    def on_lease(self) -> None: ...
    def on_copies_min(self, copies_min: int) -> None: ...
    def acked_by_all_recently(self, now_ms: float, within_ms: float) -> bool: ...
    def check_invariants(self) -> None: ...
    def on_checked(self) -> None: ...


def check_ack(
    broker_id: BrokerId, end: PhysicalOffset, before: PhysicalOffset, own_end: PhysicalOffset
) -> None:
    """Raises PeerError when a slave cannot have acknowledged ``end`` after ``before``."""
    if end > own_end:
        raise PeerError(f"slave {broker_id} acknowledged {end}, beyond our end {own_end}")
    if end < before:
        raise PeerError(f"slave {broker_id} acknowledged {end} after {before}")
