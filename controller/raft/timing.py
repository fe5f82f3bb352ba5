"""How long does a Raft member wait for what?"""

from __future__ import annotations

from dataclasses import dataclass


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
