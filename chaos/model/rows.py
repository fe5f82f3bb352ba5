"""Which explorations are run: a small set with every change of the code, a large one by command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.model.world import Budget, Setting

SMALL: Final[Mapping[str, Setting]] = {
    "all, two of three, a proposal": Setting(start="two", budget=Budget(1, 1, proposals=1)),
    "all, a kill": Setting(budget=Budget(1, 1, kills=1)),
    "all, alone, a proposal and a lease": Setting(start="alone", budget=Budget(1, 1, proposals=1, leases=1)),
    "all, a wiped log": Setting(budget=Budget(1, 1, wipes=1)),
    "all, a change of a table": Setting(start="alone", budget=Budget(0, 1, proposals=1, leases=1, changes=1)),
    "all, two brokers, kill and power loss": Setting(brokers=2, budget=Budget(1, 2, kills=1, powers=1)),
    "all, two copies at least": Setting(copies_min=2, budget=Budget(1, 0, proposals=2, leases=1)),
    "one of the members, two elections": Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
}
"""Complete within seconds."""

LARGE: Final[Mapping[str, Setting]] = {
    **SMALL,
    "all, a power loss": Setting(budget=Budget(1, 1, powers=1)),
    "all, elected, a power loss": Setting(start="elected", budget=Budget(1, 1, powers=1)),
    "all, two brokers, kill, proposal, lease": Setting(
        brokers=2, budget=Budget(1, 1, kills=1, proposals=1, leases=1)
    ),
    "all, two brokers, two writes": Setting(brokers=2, budget=Budget(2, 2, kills=1, leases=1)),
    "all, two brokers, kill, power loss, proposal": Setting(
        brokers=2, budget=Budget(1, 2, kills=1, powers=1, proposals=1)
    ),
    "all, two brokers, wipe and proposal": Setting(brokers=2, budget=Budget(1, 2, wipes=1, proposals=1)),
    "all, kill and proposal": Setting(budget=Budget(1, 2, kills=1, proposals=1)),
    "all, two of three, kill, two proposals": Setting(start="two", budget=Budget(1, 2, kills=1, proposals=2)),
    "all, alone, kill, two proposals, lease": Setting(
        start="alone", budget=Budget(1, 2, kills=1, proposals=2, leases=1)
    ),
    "all, kill, power loss, proposal": Setting(budget=Budget(1, 2, kills=1, powers=1, proposals=1)),
    "all, suspect, kill, power loss, proposal": Setting(
        start="suspect", budget=Budget(0, 1, kills=1, powers=1, proposals=1)
    ),
    "all, alone, power loss and lease": Setting(start="alone", budget=Budget(1, 2, powers=1, leases=1)),
    "majority, a kill": Setting(wait="majority", budget=Budget(1, 1, kills=1, leases=1)),
    "majority, a power loss": Setting(wait="majority", budget=Budget(1, 1, powers=1, leases=1)),
    "majority, a wiped log": Setting(wait="majority", budget=Budget(1, 1, wipes=1, leases=1)),
    "majority, kill, two elections, two leases": Setting(
        wait="majority", budget=Budget(1, 2, kills=1, leases=2)
    ),
    "two of the members, a kill": Setting(wait="count", budget=Budget(1, 1, kills=1, leases=1)),
    "one of the members, two leases": Setting(wait="count", acks=1, budget=Budget(1, 2, leases=2)),
    "unclean elections allowed": Setting(unclean=True, budget=Budget(1, 2, kills=1, proposals=1)),
}
"""What is not complete within its time says to which depth it came."""
