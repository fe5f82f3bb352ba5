"""How far is a log replicated without Controllers? Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ha.master.ack_policy import AckPolicy
from ha.master.replicas import check_ack


@dataclass
class ConnectedSet:
    """The replicas of a group without Controllers: nobody is elected, so every connected slave counts.

    ``replicated`` waits for as many brokers as the policy asks; ``confirmed`` is the log's end (with
    SYNC_FLUSH as far as it is on disk), as in the original: the master stays master, so nothing a consumer
    has read is ever cut from its log by a successor.
    """

    self_id: int
    policy: AckPolicy
    end: int
    flushed: int
    confirmed: int
    epoch: int = 0
    set_epoch: int = 0
    replicated: int = 0
    _ends: dict[int, int] = field(default_factory=dict)
    _acknowledged: dict[int, int] = field(default_factory=dict)  # the furthest, on any connection
    _copies: int = 1  # what the policy asked for when ``replicated`` moved last

    def __post_init__(self) -> None:
        self._advance()

    @property
    def members(self) -> frozenset[int]:
        return frozenset({self.self_id, *self._ends})

    @property
    def candidates(self) -> frozenset[int]:
        return frozenset(self._ends)

    @property
    def members_to_write(self) -> int:
        return self.policy.members_to_write(len(self.members))

    def on_append(self, end: int) -> None:
        self.end = end
        self._advance()

    def on_flush(self, flushed: int) -> None:
        self.flushed = flushed
        self._advance()

    def on_connect(
        self, broker_id: int, now_ms: float, *, learner: bool = False, answers_heartbeats: bool = True
    ) -> None:
        """A slave connected; a former connection of the same id no longer counts."""
        if broker_id not in self._ends:
            self.set_epoch += 1
        self._ends[broker_id] = -1
        self._advance()

    def on_ack(self, broker_id: int, end: int, now_ms: float) -> None:
        """A connected slave has everything below ``end``. Raises PeerError when that cannot be."""
        check_ack(broker_id, end, self._ends[broker_id], self.end)
        self._ends[broker_id] = end
        self._acknowledged[broker_id] = max(end, self._acknowledged.get(broker_id, -1))
        self._advance()

    def on_disconnect(self, broker_id: int) -> None:
        if self._ends.pop(broker_id, None) is not None:
            self.set_epoch += 1
            self._advance()

    def on_tick(self, now_ms: float) -> None:
        """Nothing depends on time."""

    def on_lease(self) -> None:
        """Nobody else can become master."""

    def acked_by_all_recently(self, now_ms: float, within_ms: float) -> bool:
        """Asked instead of a lease, which nobody needs here."""
        return False

    def check_invariants(self) -> None:
        """Raises AssertionError when OK means fewer copies than the policy asks for."""
        assert self.confirmed <= self.end, f"confirmed {self.confirmed} lies beyond the log's end {self.end}"
        having = 1 + sum(end >= self.replicated for end in self._acknowledged.values())
        assert having >= self._copies or not self.replicated, (
            f"{having} brokers have what is answered up to {self.replicated}, {self._copies} must"
        )

    def _advance(self) -> None:
        own, known = self.policy.own_end(self.end, self.flushed), len(self.members)
        self.confirmed = max(self.confirmed, own)
        copies = self.policy.copies(known)
        _, replicated = self.policy.watermarks(own, own, list(self._ends.values()), copies)
        if replicated > self.replicated:
            self.replicated, self._copies = replicated, copies.to_ack
