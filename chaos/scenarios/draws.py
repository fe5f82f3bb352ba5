"""What do all scenarios draw from their seed? Networks from quick to jittery, disks from fast to slow."""

from __future__ import annotations

import random
from typing import TypedDict


class Ground(TypedDict):
    """The fields of a ``Plan`` that say on what ground a run takes place."""

    network: dict[str, float]
    offload_ms: tuple[float, float]
    shuffle_tasks: bool


def ground(rng: random.Random) -> Ground:
    """Swarm testing: each seed has its own kind of network and disk, so that no one kind hides a bug."""
    slowest = rng.choice((0.0005, 0.002, 0.002, 0.01, 0.03))
    network = {
        "latency_min_s": 0.0001,
        "latency_max_s": slowest,
        "jitter_s": rng.choice((0.0001, 0.0005, 0.003)),
        "spike_share": rng.choice((0.0, 0.002, 0.01)),
        "spike_s": rng.choice((0.02, 0.1)),
        "slice_share": rng.choice((0.0, 0.05, 0.3)),
    }
    return {
        "network": network,
        "offload_ms": rng.choice(((0.1, 1.0), (0.1, 5.0), (1.0, 30.0))),
        "shuffle_tasks": rng.random() < 0.25,
    }
