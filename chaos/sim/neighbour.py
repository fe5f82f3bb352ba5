"""Does a second group keep its promises while the first one is broken beside it, and it as well?

Both share NameServers and Controllers: elections, leases, heartbeats, Raft commands and routes of two groups
meet. A history of its own (``SimCluster.beside``) is held against the same checks; nothing is forgiven it,
as its brokers answer for what is on all their disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from chaos.checks import Evidence, Violation, check_all
from chaos.clients import ClientReader, ClientSender
from chaos.history import Observed
from chaos.partitions import NEIGHBOUR
from chaos.sim.cluster import NEIGHBOUR_GROUP, SimCluster
from chaos.workload import Load, ProducerLoad, ReaderLoad, queues_of

LOAD: Final = Load(topic="beside", producers=1, per_second=10.0, queues=2)
READER: Final = "beside-consumer"
READ_S: Final = 15.0
LAST_TRIES: Final = 3
"""The first send may meet a connection whose other end lost power."""


class Neighbour:
    """One producer works until ``stop``; ``settle`` looks at the healed group, ``broken`` says what was not
    kept."""

    def __init__(self, cluster: SimCluster, quiet_ms: int) -> None:
        self._cluster = cluster
        self._quiet_ms = quiet_ms
        self._node, env = cluster.client("beside")
        namesrvs, history = cluster.namesrv_addresses, cluster.beside
        queues = queues_of(LOAD, NEIGHBOUR_GROUP)
        self._sender = ClientSender(env, "beside", namesrvs)
        self._consumer = ClientReader(env, READER, namesrvs)
        chance = cluster.chance("beside")
        self._producer = ProducerLoad("beside", self._sender, queues, LOAD, history, cluster.clock, chance)
        self._reader = ReaderLoad(READER, self._consumer, queues, LOAD, history, cluster.clock)
        self._whole_by_s = 0.0
        self._found: list[str] = []
        self._read = False

    def begin(self) -> asyncio.Task[None]:
        return self._cluster.inside(self._node, self._run(), name="beside")

    async def _run(self) -> None:
        await self._sender.start()
        await self._consumer.start()
        await self._producer.run()

    def stop(self) -> None:
        """All is healed now: the time within which the group has to be whole begins."""
        self._whole_by_s = self._cluster.loop.time() + self._quiet_ms / 1000
        self._producer.stop()

    def incomplete(self) -> str | None:
        """None when it has a master and all its members; else what is missing."""
        return self._cluster.complete(NEIGHBOUR)

    async def settle(self) -> None:
        """Wait until the healed group is whole, send once more, and read all back."""
        cluster = self._cluster
        left_s = max(0.0, self._whole_by_s - cluster.loop.time())
        reason = await cluster.until(self.incomplete, left_s)
        if reason is not None:
            self._found.append(f"not whole {self._quiet_ms} ms after all was healed: {reason}")
            return
        until_s = cluster.loop.time() + READ_S
        self._read = await cluster.inside(self._node, self._look(until_s), name="beside-look")

    async def _look(self, until_s: float) -> bool:
        if not any([await self._producer.send_one() for _ in range(LAST_TRIES)]):
            last = self._cluster.beside.sends()[-1]
            self._found.append(f"a send failed after everything was healed: {last.key}: {last.error}")
        read = await self._reader.read_back(until_s=until_s)
        if not read:
            self._found.append(f"reading back failed: {self._reader.errors} errors")
        return read

    def broken(self) -> list[Violation]:
        """Every check there is, over what befell this group alone."""
        powerless = any(node.machine.counts.powerless for node in self._cluster.of(NEIGHBOUR))
        evidence = Evidence(
            self._cluster.beside, sources=[READER], complete=self._read, power_failures=powerless
        )
        told = [f"{violation.checker}: {violation.text}" for violation in check_all(evidence)]
        told += epochs_gone_back(self._cluster.beside.observed())
        return [Violation("neighbour", text) for text in (*self._found, *told)]


def epochs_gone_back(observed: Sequence[Observed]) -> Iterator[str]:
    """No broker's epoch falls within one of its lives, and who leads in the end leads in the newest one."""
    last: dict[tuple[str, int], Observed] = {}
    leading = [now for now in observed if now.role == "master"]
    for now in observed:
        before = last.get((now.node, now.life))
        if before is not None and now.epoch < before.epoch:
            yield f"{now.node} was in epoch {before.epoch}, and at {now.at_ms:.0f} ms in {now.epoch}"
        last[now.node, now.life] = now
    newest = max((now.epoch for now in leading), default=0)
    if leading and leading[-1].epoch < newest:
        yield f"{leading[-1].node} leads in epoch {leading[-1].epoch} in the end; {newest} was seen"
