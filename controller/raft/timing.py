"""How long does a Raft member wait for what?"""

from __future__ import annotations

from dataclasses import dataclass

from controller.links.transport import Limits
from controller.raft.health import Bounds
from model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.

    ``append_s``: between two signs of life of a leader. ``election_min_s`` to ``election_max_s``: the silence
    of a leader after which a follower looks for another one. ``fallback_s``: a leader without answers of a
    majority for this long steps down. ``retry_s``: the first wait between two tries to be elected.
    """

    append_s: float
    election_min_s: float
    election_max_s: float
    fallback_s: float
    retry_s: float


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Times in ms. A leader is silent for ``election_min_ms`` before others look for a new one.

    A killed leader is noticed by its closed connections; these times are for frozen and cut-off ones, and
    should be longer than a sync takes on a busy disk.
    """

    append_ms: int = 100
    election_min_ms: int = 500
    election_max_ms: int = 1000
    compact_entries: int = 4096

    def __post_init__(self) -> None:
        """Raises ConfigError when the times contradict each other."""
        if not self.append_ms * 3 < self.election_min_ms < self.election_max_ms:
            raise ConfigError("need 3 x raftAppendPeriodMs < raftElectionMinMs < raftElectionMaxMs")

    def timing(self) -> Timing:
        return Timing(
            append_s=self.append_ms / 1000,
            election_min_s=self.election_min_ms / 1000,
            election_max_s=self.election_max_ms / 1000,
            # A leader that was cut off stops before the others can have another one.
            fallback_s=self.election_min_ms * 0.75 / 1000,
            retry_s=self.election_min_ms / 10 / 1000,
        )

    def bounds(self) -> Bounds:
        return Bounds.of(self.election_max_ms, self.compact_entries)

    def limits(self) -> Limits:
        silence_s = max(4 * self.election_max_ms / 1000, 1.0)
        return Limits(
            handshake_s=max(2 * self.election_max_ms / 1000, 1.0),
            ping_s=silence_s / 4,
            silence_s=silence_s,
            retry_s=self.append_ms / 1000,
        )
