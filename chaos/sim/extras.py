"""What clients ask for besides sends and reads, in the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, cast

from broker.service import Broker
from chaos.extras import Extras, Tables
from chaos.faults import ClockJump
from chaos.sim.cluster import GROUP, SimCluster
from chaos.sim.env import EPOCH_MS

SHOWN_S: Final = 12.0
"""How long a healed cluster may take to show what was answered."""


class SimSite:
    """A simulated cluster, whose brokers' tables are looked at where they are."""

    group = GROUP

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.namesrv: Sequence[str] = cluster.namesrv_addresses

    def true_ms(self) -> int:
        return EPOCH_MS + int(self._cluster.loop.now_s * 1000)

    def clocks_true(self) -> bool:
        """One that was set and is right again may have stored what waits, or delivered it."""
        return all(event.name != ClockJump.name for event in self._cluster.history.happened())

    async def tables(self) -> Mapping[str, Tables]:
        running = [node for node in self._cluster.of("broker") if node.running]
        brokers = {node.name: cast(Broker, node.server) for node in running}
        return {name: Tables(one.topics.table, one.groups.table) for name, one in brokers.items()}


class SimExtras(Extras):
    """Works on a machine of its own from ``begin`` to ``stop``; then ``settle``."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._node, env = cluster.client("extras")
        super().__init__(SimSite(cluster), env, cluster.chance("extras"))

    def begin(self) -> asyncio.Task[None]:
        return self._cluster.inside(self._node, self.run(), name="extras")

    async def settle(self, *, tables_only: bool) -> None:
        """Wait until the healed cluster shows all that was answered, or long enough. ``tables_only``: but for
        messages, which may be lost."""
        loop = self._cluster.loop
        until_s = loop.time() + SHOWN_S
        while await self._cluster.inside(self._node, self.look(tables_only=tables_only), name="extras-look"):
            if loop.time() > until_s:
                return
            await asyncio.sleep(0.5)
