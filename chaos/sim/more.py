"""Pops and what waits, in the simulated world: what they need of it, and what its faults excuse."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from broker.service import Broker
from chaos.checks import Violation
from chaos.history import Happened
from chaos.pops import Pops
from chaos.scenarios import Plan
from chaos.sim.cluster import BROKER_PORT, GROUP, SimCluster
from chaos.sim.env import EPOCH_MS
from chaos.sim.losses import Losses
from chaos.waits import Waits

POPPED_S: Final = 25.0
"""What was popped is hidden for 2 s at most, and comes again within a second or two, perhaps some times."""
SHOWN_S: Final = 45.0
"""A producer tells a broker that was started anew of itself within 30 s; until then nobody is asked."""
AHEAD_MS_MIN: Final = 10_000
FAR_MS: Final = 60_000
NOTED_MS: Final = 1500.0
"""A master has noted what it delivered, and others have the note, unless its links are slow."""
ROLLS: Final = frozenset({"timerRollWindowSlot", "timerPrecisionMs"})


class _Site:
    group = GROUP

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.namesrv: Sequence[str] = cluster.namesrv_addresses

    def skews(self) -> Mapping[str, int]:
        return {f"{node.host}:{BROKER_PORT}": node.skew_ms for node in self._cluster.of("broker")}

    def true_ms(self) -> int:
        return EPOCH_MS + int(self._cluster.loop.now_s * 1000)

    async def topics(self) -> Mapping[str, frozenset[str]]:
        running = [node for node in self._cluster.of("broker") if node.running]
        return {node.name: frozenset(cast(Broker, node.server).topics.table) for node in running}


class SimMore:
    """Each works on a machine of its own from ``begin`` to ``stop``; then ``settled``."""

    def __init__(self, cluster: SimCluster, plan: Plan) -> None:
        self._cluster, self._plan = cluster, plan
        self._late: Counter[str] = Counter()
        self.pops: Pops | None = None
        self.waits: Waits | None = None
        if plan.pops:
            self._popping, env = cluster.client("pops")
            namesrvs, chance = cluster.namesrv_addresses, cluster.chance("pops")
            self.pops = Pops(env, GROUP, namesrvs, plan.pops, chance, cluster.clock)
        if plan.waits:
            self._waiting, env = cluster.client("waits")
            self._site = _Site(cluster)
            self.waits = Waits(self._site, env, cluster.chance("waits"))

    def begin(self) -> list[asyncio.Task[None]]:
        """Those that come to their end after ``stop``; who pops does later."""
        if self.pops is not None:
            self._cluster.inside(self._popping, self.pops.run(), name="pops")
        if self.waits is not None:
            return [self._cluster.inside(self._waiting, self.waits.run(), name="waits")]
        return []

    def stop(self) -> None:
        for part in (self.pops, self.waits):
            if part is not None:
                part.stop()

    def done(self) -> Counter[str]:
        parts = [part.done for part in (self.pops, self.waits) if part is not None]
        return Counter({key: count for part in (*parts, self._late) for key, count in part.items() if count})

    async def settled(self, losses: Losses) -> list[Violation]:
        """What of it the healed cluster does not show, though it was promised."""
        found: list[Violation] = []
        if losses.of_tables_allowed:
            return found
        if self.pops is not None and self.pops.ready:
            found += await self._settled_pops(self.pops, losses)
        if self.waits is not None:
            found += await self._settled_waits(self.waits, losses)
        return found

    async def _settled_pops(self, pops: Pops, losses: Losses) -> list[Violation]:
        """In modes but *all* a slave may have offsets that are ahead of a log of which it lacks the end."""
        loop = self._cluster.loop
        if losses.any_allowed and not keeps_offsets(self._plan):
            await pops.close()
            return []
        for again in (False, True):
            if again and not self._set_ahead():
                break
            until_s = loop.time() + POPPED_S
            late = lambda until_s=until_s: loop.time() > until_s  # noqa: E731
            await self._cluster.inside(self._popping, pops.drain(late), name="pops-drain")
            look = pops.broken(all_is_there=not losses.any_allowed)
            found = await self._cluster.inside(self._popping, look, name="pops-look")
            if not found:
                self._late["pop.late_by_a_clock"] += again
                break
        await pops.close()
        return found

    async def _settled_waits(self, waits: Waits, losses: Losses) -> list[Violation]:
        cluster = self._cluster
        once = not second_copies_excused(cluster.history.happened(), self._plan)
        until_s, again = cluster.loop.time() + SHOWN_S, False
        while True:
            look = waits.look(self._now_ms(), tables_only=losses.any_allowed, once=once)
            told = await cluster.inside(self._waiting, look, name="waits-look")
            due = not losses.any_allowed and waits.waits_on(self._now_ms())
            late = cluster.loop.time() > until_s
            if told and late and not again and self._set_ahead():
                until_s, again = cluster.loop.time() + SHOWN_S, True
            elif late or not (told or due):
                self._late["wait.late_by_a_clock"] += again and not told
                return waits.broken(told)
            await asyncio.sleep(0.5)

    def _set_ahead(self) -> bool:
        """Where some clock was ahead, all are as far from now on, but a minute at the most: what was stored
        by it is due then. What was stored by one that was farther ahead has to come without (P6, P9)."""
        nodes = [*self._cluster.of("broker"), *self._cluster.of("learner")]
        ahead: Counter[str] = Counter()
        farthest = 0
        for event in self._cluster.history.happened("clock_jump"):
            ahead[event.node] += int(event.fields["by_ms"])
            farthest = max(farthest, ahead[event.node])
        if farthest < AHEAD_MS_MIN:
            return False
        for node in nodes:
            node.skew_ms = max(node.skew_ms, min(farthest, FAR_MS) + AHEAD_MS_MIN)
            if node.env is not None:
                node.env.skew_ms = node.skew_ms
        return True

    def _now_ms(self) -> int:
        """By the master's clock."""
        master = self._cluster.master()
        skew_ms = self._cluster.nodes[master].skew_ms if master is not None else 0
        return self._site.true_ms() + skew_ms


def keeps_offsets(plan: Plan) -> bool:
    """Whether the mode is *all*, and stays so."""
    return (
        plan.always("allAckInSyncStateSet", "true", default="true")
        and plan.always("majorityAck", "false", default="false")
        and plan.always("brokerRole", "SYNC_MASTER", default="SYNC_MASTER")
    )


def second_copies_excused(happened: Iterable[Happened], plan: Plan) -> bool:
    """P7, not covered: a master's own clock goes ahead by more than a minute and back, and it dies before it
    noted what it delivered in between. And what rolled may come twice where one is killed beside another
    window (docs/timers.md)."""
    ahead: dict[str, int] = {}
    back: dict[str, float] = {}
    died = False
    for event in happened:
        if event.name == "clock_jump":
            by_ms = int(event.fields["by_ms"])
            if by_ms <= -FAR_MS and ahead.get(event.node, 0) >= FAR_MS:
                back[event.node] = event.at_ms
            ahead[event.node] = ahead.get(event.node, 0) + by_ms
        elif event.name in ("kill", "power_fail"):
            died = True
            if event.at_ms - back.get(event.node, -1e9) < NOTED_MS:
                return True
    return died and any(ROLLS & set(getattr(step.fault, "values", ())) for step in plan.steps)
