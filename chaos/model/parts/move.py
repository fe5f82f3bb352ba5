"""One step of the group."""

from __future__ import annotations

from typing import NamedTuple

from chaos.model.world import World


class Move(NamedTuple):
    """``text`` for a trace; ``leads``: the master whose knowledge changed, which may answer now; 0 = none."""

    text: str
    world: World
    leads: int = 0
