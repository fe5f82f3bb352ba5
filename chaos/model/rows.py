"""Which explorations are run: a small set with every change of the code, a large one by command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.model.world import Budget, Mode, Setting

SMALL: Final[Mapping[str, Setting]] = {
    "all, two of three, a proposal": Setting(start="two", budget=Budget(1, 1, proposals=1)),
    "all, a kill": Setting(budget=Budget(1, 1, kills=1)),
    "all, alone, a proposal and a lease": Setting(start="alone", budget=Budget(1, 1, proposals=1, leases=1)),
    "all, a wiped log": Setting(budget=Budget(1, 1, wipes=1)),
    "all, a change of a table": Setting(start="alone", budget=Budget(0, 1, proposals=1, leases=1, changes=1)),
    "all, alone, a change of a table and a power loss": Setting(
        start="alone", budget=Budget(0, 1, powers=1, leases=1, changes=1)
    ),
    "all, two brokers, kill and power loss": Setting(brokers=2, budget=Budget(1, 2, kills=1, powers=1)),
    "all, two copies at least": Setting(copies_min=2, budget=Budget(1, 0, proposals=2, leases=1)),
    "all, late views": Setting(start="two", budget=Budget(1, 1, proposals=1, views=1)),
    "majority, a change of a table": Setting(
        wait="majority", start="two", budget=Budget(0, 1, leases=1, changes=1)
    ),
    "all, another Controller leads": Setting(
        start="alone", budget=Budget(1, 1, proposals=1, leases=1, leaders=1)
    ),
    "all, a replica is removed": Setting(start="two", budget=Budget(1, 1, leases=1, forgets=1)),
    "from all to majority, two brokers": Setting(
        brokers=2, then=Mode("majority"), budget=Budget(1, 2, kills=1, modes=1, leases=1)
    ),
    "unclean elections, a lease": Setting(unclean=True, start="two", budget=Budget(1, 1, leases=1)),
    "unclean elections, the key is set": Setting(
        unclean=True, start="two", budget=Budget(1, 1, leases=1, keys=2)
    ),
    "all, a clock stands still": Setting(start="alone", budget=Budget(1, 1, proposals=1, leases=1, stops=1)),
    "one of the members, two elections": Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
    "majority, a stranded master": Setting(wait="majority", budget=Budget(1, 1, leases=1, strands=1)),
    "two of the members, a stranded master": Setting(
        wait="count", budget=Budget(1, 0, proposals=1, leases=1, strands=1)
    ),
    "one of the members, a handover": Setting(
        wait="count", acks=1, budget=Budget(1, 1, leases=2, handovers=1)
    ),
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
    "two of the members, a power loss": Setting(wait="count", budget=Budget(1, 1, powers=1, leases=1)),
    "unclean, a kill and a proposal": Setting(
        unclean=True, budget=Budget(1, 2, kills=1, proposals=1, leases=1)
    ),
    "unclean, the key is set, a kill": Setting(
        unclean=True, start="two", budget=Budget(1, 2, kills=1, leases=1, keys=1)
    ),
    "unclean, the key is set, a proposal": Setting(
        unclean=True, start="two", budget=Budget(1, 2, proposals=1, leases=1, keys=1)
    ),
    "unclean, two brokers, a power loss": Setting(
        brokers=2, unclean=True, budget=Budget(1, 2, powers=1, proposals=1, leases=1)
    ),
    "majority, unclean": Setting(wait="majority", unclean=True, budget=Budget(1, 2, kills=1, leases=2)),
    "all, late views, kill, two elections": Setting(
        brokers=2, budget=Budget(1, 2, kills=1, proposals=1, leases=1, views=2)
    ),
    "all, three brokers, late views and a kill": Setting(
        start="two", budget=Budget(1, 2, kills=1, proposals=1, views=1)
    ),
    "all, a clock stands still, a kill": Setting(
        budget=Budget(1, 2, kills=1, proposals=1, leases=1, stops=1)
    ),
    "all, a broken link, kill, proposal": Setting(budget=Budget(1, 1, kills=1, proposals=1, cuts=1)),
    "all, two brokers, links break, power loss": Setting(
        brokers=2, budget=Budget(2, 2, powers=1, proposals=1, cuts=2)
    ),
    "majority, a broken link and a kill": Setting(
        wait="majority", budget=Budget(1, 1, kills=1, leases=1, cuts=1)
    ),
    "all, proposals come twice": Setting(start="two", budget=Budget(1, 1, proposals=2, twice=1)),
    "all, two brokers, power losses, proposals come twice": Setting(
        brokers=2, start="some", budget=Budget(1, 2, powers=2, proposals=2, twice=1)
    ),
    "all, another Controller leads, a kill": Setting(
        budget=Budget(1, 2, kills=1, proposals=1, leases=1, leaders=1)
    ),
    "majority, another Controller leads": Setting(wait="majority", budget=Budget(1, 2, leases=2, leaders=1)),
    "one of the members, another Controller leads": Setting(
        wait="count", acks=1, budget=Budget(1, 2, leases=2, leaders=1)
    ),
    "from all to majority": Setting(then=Mode("majority"), budget=Budget(1, 2, kills=1, modes=1, leases=1)),
    "from all alone to majority": Setting(
        start="alone", then=Mode("majority"), budget=Budget(1, 2, kills=1, modes=1, leases=1)
    ),
    "from majority to all": Setting(
        wait="majority", then=Mode("all"), budget=Budget(1, 2, kills=1, modes=1, leases=1)
    ),
    "from all to majority, three restarts": Setting(
        then=Mode("majority"), budget=Budget(1, 3, kills=3, modes=3, proposals=2, leases=2)
    ),
    "from majority to two of the members": Setting(
        wait="majority", then=Mode("count"), budget=Budget(1, 2, kills=2, modes=2, leases=1)
    ),
    "from all to all with two copies": Setting(
        then=Mode("all", copies_min=2), budget=Budget(1, 2, kills=1, modes=1, proposals=1)
    ),
    "all, a new replica joins": Setting(start="joins", budget=Budget(1, 1, kills=1, proposals=1, leases=1)),
    "majority, a new replica joins": Setting(
        wait="majority", start="joins", budget=Budget(1, 2, kills=1, proposals=1, leases=1)
    ),
    "all, a replica is removed, a kill": Setting(
        budget=Budget(1, 2, kills=1, proposals=1, leases=1, forgets=1)
    ),
    "majority, a replica is removed": Setting(wait="majority", budget=Budget(1, 2, leases=2, forgets=1)),
    "majority, tables, kill, two elections": Setting(
        wait="majority", budget=Budget(0, 2, kills=1, proposals=1, leases=2, changes=1)
    ),
    "majority, a stranded master, a kill": Setting(
        wait="majority", budget=Budget(1, 1, kills=1, leases=1, strands=1)
    ),
    "majority, a stranded master, a power loss": Setting(
        wait="majority", budget=Budget(1, 1, powers=1, leases=1, strands=1)
    ),
    "majority, masters strand twice": Setting(wait="majority", budget=Budget(2, 1, leases=2, strands=2)),
    "majority, unclean, a stranded master": Setting(
        wait="majority", unclean=True, budget=Budget(1, 1, leases=2, strands=1)
    ),
    "all with two copies, a stranded master, a kill": Setting(
        copies_min=2, budget=Budget(1, 1, kills=1, proposals=1, leases=1, strands=1)
    ),
    "all with two copies, a stranded master, a power loss": Setting(
        copies_min=2, budget=Budget(1, 1, powers=1, proposals=1, strands=1)
    ),
    "two of the members, a stranded master, a kill": Setting(
        wait="count", budget=Budget(1, 1, kills=1, proposals=1, leases=1, strands=1)
    ),
    "all, a handover, a kill": Setting(budget=Budget(1, 1, kills=1, proposals=1, handovers=1)),
    "all, alone, a handover": Setting(start="alone", budget=Budget(1, 1, proposals=1, leases=1, handovers=1)),
    "all, a handover and tables": Setting(budget=Budget(0, 1, proposals=1, changes=1, handovers=1)),
    "all, two brokers, a handover and a power loss": Setting(
        brokers=2, budget=Budget(2, 1, powers=1, proposals=1, leases=1, handovers=1)
    ),
    "majority, a handover": Setting(wait="majority", budget=Budget(1, 1, leases=2, handovers=1)),
    "majority, a handover, a kill": Setting(
        wait="majority", budget=Budget(1, 1, kills=1, leases=1, handovers=1)
    ),
    "two of the members, a handover, a kill": Setting(
        wait="count", budget=Budget(1, 1, kills=1, proposals=1, leases=1, handovers=1)
    ),
    "one of the members, a handover, another Controller leads": Setting(
        wait="count", acks=1, budget=Budget(1, 1, leases=2, leaders=1, handovers=1)
    ),
    "unclean, a handover": Setting(
        unclean=True, start="two", budget=Budget(1, 1, proposals=1, leases=1, handovers=1)
    ),
    "all, alone, tables, a power loss": Setting(
        start="alone", budget=Budget(1, 2, powers=1, leases=1, changes=1)
    ),
    "all, tables, kill, two elections": Setting(
        budget=Budget(0, 2, kills=1, proposals=1, leases=1, changes=2)
    ),
}
"""What is not complete within its time says to which depth it came."""
