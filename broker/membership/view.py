"""What do the Controllers say of a broker group?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class View:
    """One answer of the Controllers. ``master_ha_address`` only keelmq's send."""

    epoch: int
    master_id: int | None
    master_address: str | None
    master_ha_address: str | None
    members: frozenset[int]
    set_epoch: int
    asked_ms: float  # when it was asked for, Env.monotonic_ms
    suspects: frozenset[int] = frozenset()  # replicas whose log may lack its end
    incarnations: Mapping[int, int] = field(default_factory=dict)  # of each replica; 0 = not said
