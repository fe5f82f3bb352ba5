"""What does an operator of the simulated cluster do while it is being broken, and afterwards?

Hands the group over, changes its mode by a rolling restart, has the Controllers forget a broker whose disk is
gone. It waits where the documents say to wait, and gives up where they say that waiting is in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, cast

from admin.handover import hand_over
from broker.service import Broker
from chaos.history import Happened
from chaos.sim.cluster import GROUP, Node, SimCluster
from chaos.sim.env import SimEnv
from client.admin import AdminClient, SyncState
from model.codes import Request
from model.errors import MqError
from runtime.tasks import Tasks

CLUSTER: Final = "DefaultCluster"
WAIT_S: Final = 4.0
"""How long a rolling change waits for all members before the next broker."""

FORGET_S: Final = 2.5
"""Longer than a living broker takes to be heard of again."""
FORGET_TRIES: Final = 4
LEADERLESS_S: Final = 6.0
"""Longer than an election among those that are well."""
REFUSED_S: Final = 0.5
"""How often the operator looks for slaves that keep a log of their own."""


class Operator:
    """Works on a machine of its own; one thing at a time of each kind."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._tasks = Tasks("operator")
        self._changing = False
        self.gave_up = False
        """Whether an election was allowed to lose what only forgotten brokers had."""
        self._number = 0
        self._working = 0

    @property
    def busy(self) -> bool:
        return self._changing or self._working > 0

    def hand_over(self) -> bool:
        """Ask for another master."""
        cluster = self._cluster

        async def ask(env: SimEnv) -> None:
            await hand_over(env, cluster.namesrv_addresses, cluster.controller_addresses, CLUSTER, GROUP)

        self._work("handed_over", ask)
        return True

    async def forget_the_dead(self) -> None:
        """Have the Controllers forget brokers whose disks are gone for good, once all that can start did."""
        for _ in range(FORGET_TRIES):
            await asyncio.sleep(FORGET_S)
            self._work("forgot", self._forget)

    async def _forget(self, env: SimEnv) -> None:
        controllers = self._cluster.controller_addresses
        async with AdminClient(env, self._cluster.namesrv_addresses) as admin:
            state = (await admin.sync_state(controllers, [GROUP])).get(GROUP)
            dead = [] if state is None else [number for number, alive in state.alive.items() if not alive]
            if dead:
                await admin.forget(controllers, CLUSTER, GROUP, dead)
            elif state is not None and state.master is None and self._nobody_may_lead(state):
                # All members, or half of a majority's replicas, are gone for good: any is better than none.
                self.gave_up = True
                self._cluster.changes.note("", "unclean_elections_allowed")
                body = b"enableElectUncleanMaster=true"
                for address in controllers:
                    await admin.session.call(address, Request.UPDATE_CONTROLLER_CONFIG, {}, body=body)

    def _nobody_may_lead(self, state: SyncState) -> bool:
        brokers = self._cluster.of("broker")
        settings = [{**self._cluster.config.broker, **node.own} for node in brokers]
        by_majority = any(values.get("majorityAck") == "true" for values in settings)
        return not state.in_sync or (by_majority and len(state.alive) * 2 <= len(brokers))

    async def look_after_stores(self, may_give_up: Callable[[], bool], lost: Callable[[], bool]) -> None:
        """What docs/operations.md leaves to the operator, and to whatever restarts a process that ended: its
        start may have failed by the last fault. A store that broke needs a restart, and so does a Controller
        whose disk refused. Where a slave holds confirmed messages that the master lacks, after an unclean
        election, the master's log counts: the slave starts with an empty one. So does a learner where all
        brokers ``lost`` what it holds: nobody elects it."""
        cluster = self._cluster
        without_master_s = 0.0
        while True:
            await asyncio.sleep(REFUSED_S)
            without_master_s = 0.0 if cluster.master() else without_master_s + REFUSED_S
            if without_master_s > LEADERLESS_S:
                await self._go_on_without_epochs()
            known = cluster.registered()
            self._start_all()
            for node in cluster.failed_controllers():
                await self.restart(node)
            for node in [*cluster.of("broker"), *cluster.of("learner")]:
                if node.running and cast(Broker, node.server).store.files.health.broken is not None:
                    await self.restart(node)
                may = may_give_up() or (node.kind == "learner" and lost())
                if may and node.running and self._must_begin_anew(node, known):
                    await self.restart(node, empty=True)

    def _start_all(self) -> None:
        for node in list(self._cluster.nodes.values()):
            if node.state == "down" and node.kind != "client":
                self._cluster.start(node.name)

    async def _go_on_without_epochs(self) -> None:
        """Nobody leads, and one that is waited for has no readable copy of its epochs and nobody to copy them
        from: it starts without any. Its log passes for older than the others', so that what it alone has is
        given up as what a disk lost that had promised it."""
        for node in self._cluster.of("broker"):
            broker = cast(Broker, node.server)
            if node.running and broker.store.epochs.unreadable is not None:
                node.own["startWithDamagedTables"] = "true"
                self._cluster.changes.note(node.name, "reconfigured", startWithDamagedTables="true")
                node.machine.counts.lied += 1
                await self.restart(node)

    @staticmethod
    def _must_begin_anew(node: Node, known: Collection[int]) -> bool:
        broker = cast(Broker, node.server)
        # One that the Controllers forgot was declared gone: it begins anew. It may not know it, and without
        # what it lost it has no role that tells its id.
        gone = node.kind == "broker" and bool(known) and broker.role.broker_id not in (None, *known)
        return gone or broker.ha.needs_reseed is not None

    async def restart(self, node: Node, *, empty: bool = False) -> None:
        cluster = self._cluster
        cluster.stop(node.name)
        if await cluster.until(lambda: None if node.state == "down" else "it stops", 5.0) is None:
            if empty:
                node.machine.wipe()
            what = "log_given_up" if empty else "restarted"
            cluster.history.add(Happened(cluster.clock(), node.name, what))
            cluster.start(node.name)

    def change(self, values: Mapping[str, str]) -> bool:
        """Begin a rolling change; False while another one is under way."""
        if self._changing:
            return False
        self._changing = True
        self._tasks.spawn(self._change(values), name="rolling-change")
        return True

    async def _change(self, values: Mapping[str, str]) -> None:
        cluster = self._cluster
        left = [node.name for node in cluster.of("broker")]
        try:
            while left:
                if await cluster.until(cluster.complete, WAIT_S) is not None:
                    return
                name = next((name for name in left if name != cluster.master()), left[0])
                left.remove(name)
                cluster.nodes[name].own.update(values)
                cluster.changes.note(name, "reconfigured", **values)
                if cluster.stop(name) is None:
                    return
                cluster.start(name)
        finally:
            self._changing = False

    def _work(self, what: str, ask: Callable[[SimEnv], Awaitable[None]]) -> None:
        self._number += 1
        self._working += 1
        node, env = self._cluster.client(f"operator{self._number}")

        async def work() -> None:
            try:
                await ask(env)
            except (MqError, OSError):
                return  # the cluster said no, or could not be asked: nothing was promised
            finally:
                self._working -= 1
            self._cluster.history.add(Happened(self._cluster.clock(), node.name, what))

        self._cluster.inside(node, work(), name=what)
