"""What do the Controllers say of a broker group?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model.ids import BrokerId, Epoch


@dataclass(frozen=True, slots=True)
class TableSource:
    """Brokers, and their addresses, each of which has every change of the tables that was answered before
    ``epoch``. That epoch's master was elected from outside of them. ``life``: of the Controllers that count
    epochs so; "" = they are of an older version."""

    epoch: Epoch
    brokers: Mapping[BrokerId, str]
    life: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """One answer of the Controllers. ``master_ha_address`` only keelmq's send."""

    epoch: Epoch
    master_id: BrokerId | None
    master_address: str | None
    master_ha_address: str | None
    members: frozenset[BrokerId]
    set_epoch: int
    asked_ms: float  # when it was asked for, Env.monotonic_ms
    suspects: frozenset[BrokerId] = frozenset()  # replicas whose log may lack its end
    incarnations: Mapping[BrokerId, int] = field(default_factory=dict)  # of each replica; 0 = not said
    maintenance: frozenset[BrokerId] = frozenset()  # replicas that are not to lead
    registered_at: str | None = None
    """Where the asker is registered, as keelmq's Controllers say when asked for a view; "" = nowhere."""
    needs_lease: bool = False  # a broker from outside of the set may be elected: members' word is not enough
    table_sources: tuple[TableSource, ...] = ()  # where the master takes tables from first, the newest last
