"""How do drills by plan strike the real RocketMQ? Its servers stand in the places of ours.

A ``LocalCluster`` of the same names, ports, machines and disks, whose processes are JVMs. What ours say in
their ``/status`` is asked of the Controllers here: who is master, of which epoch, and which Controller leads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from admin.local import processes
from admin.local.cluster import UP_TIMEOUT_S, ClusterNotReady, LocalCluster
from admin.local.layout import Node
from chaos.history import Happened
from chaos.live.onlooker import LOOK_S, Onlooker
from chaos.worlds import rocketmq
from chaos.worlds.live import CannotDrill
from chaos.worlds.rocketmq_live import node_of
from client.admin import AdminClient, SyncState
from model.errors import MqError
from runtime.env import Env

POLL_S: Final = 0.2
START_S: Final = 300.0
QUICK: Final = f"{rocketmq.PLAIN} {rocketmq.NO_TLS}"
"""Six JVMs start on one machine, and each that was killed starts again under load: it is the time of its
protocol that counts here, not that of its compiler."""


class RocketMQCluster(LocalCluster):
    """Make it by ``create``, then give it its ``env``."""

    env: Env

    def take(self, settings: Sequence[str]) -> None:
        """RocketMQ reads its own keys, and says nothing of others."""
        self.layout.add_settings(settings)

    def start(self, node: Node) -> None:
        kept = self.directory / ("store" if node.role == "broker" else "raft") / node.name
        home = self.directory / "home" / node.name
        for path in (kept, home, self.directory / "conf", self.directory / "log"):
            path.mkdir(parents=True, exist_ok=True)
        made = node_of(self.layout, node, home, kept)
        if node.role == "broker":
            made.config = {**rocketmq.QUICK_BROKER, **made.config}
        conf = self.conf_path(node)
        conf.write_text("".join(f"{key}={value}\n" for key, value in made.config.items()), encoding="utf-8")
        command = rocketmq.java(
            made.main, "-c", str(conf), user_home=home, heap_mb=made.heap_mb, options=QUICK
        )
        node.pid = processes.start([*node.wrap, *command], conf, self.log_path(node))
        self.save()

    async def up(
        self, *, timeout_s: float = UP_TIMEOUT_S, tell: Callable[[str], object] | None = None
    ) -> dict[str, Any]:
        """Start all, NameServers first. Raises ClusterNotReady, CannotDrill."""
        missing = rocketmq.unavailable()
        if missing is not None:
            raise CannotDrill(f"the real RocketMQ cannot run here: {missing}")
        await self.env.offload(rocketmq.fetch)
        with self.locked():
            try:
                for node in self.layout.namesrvs:
                    self.start(node)
                await self._until("a Controller leader", self._has_leader, START_S)
                for node in self.layout.broker_nodes:
                    self.start(node)
                return await self.wait_ready(timeout_s=START_S)
            except (asyncio.CancelledError, KeyboardInterrupt):
                self.end(self.layout.nodes)
                raise

    async def wait_ready(
        self, *, timeout_s: float = UP_TIMEOUT_S, tell: Callable[[str], object] | None = None
    ) -> dict[str, Any]:
        """Wait for the full SyncStateSet, and its master in every NameServer. Raises ClusterNotReady."""
        await self._until("a full SyncStateSet", self._is_full, timeout_s)
        return {}

    async def state(self, admin: AdminClient) -> tuple[str, SyncState] | None:
        """The Controller that leads, by name, and what it knows of the group; None: none answers so."""
        group, found = self.layout.group_names[0], []
        for node in self.layout.namesrvs:
            try:
                states = await admin.sync_state_at(f"{node.admin_host}:{node.base_port + 1}", [group])
            except (OSError, MqError):
                continue  # it does not lead, or does not answer
            if group in states:
                found.append((states[group].epoch, node.name, states[group]))
        newest = max(found, key=lambda one: one[0], default=None)
        return None if newest is None else newest[1:]

    async def _has_leader(self) -> bool:
        async with AdminClient(self.env, self.watched()) as admin:
            return (
                await admin.controller_leader([n.controller_address for n in self.layout.namesrvs])
                is not None
            )

    async def _is_full(self) -> bool:
        async with AdminClient(self.env, self.watched()) as admin:
            found = await self.state(admin)
        if found is None or len(found[1].in_sync) < self.layout.brokers:
            return False
        for address in self.watched():
            async with AdminClient(self.env, [address]) as one:
                try:
                    brokers = (await one.cluster_info()).brokers
                except (OSError, MqError):
                    return False
            if brokers.get(self.layout.group_names[0], {}).get(0) != found[1].master_address:
                return False
        return True

    def watched(self) -> list[str]:
        """The NameServers, where no fault of links befalls them."""
        return [f"{node.admin_host}:{node.base_port}" for node in self.layout.namesrvs]

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not await holds():
            for node in self.layout.nodes:
                if node.pid is not None and not self.is_running(node):
                    raise ClusterNotReady(f"RocketMQ's {node.name} ended:\n{self.log_tail(node)}")
            if time.monotonic() > deadline:
                raise ClusterNotReady(f"RocketMQ has not reached {what} after {timeout_s:.0f} s")
            await asyncio.sleep(POLL_S)


class RocketMQOnlooker(Onlooker):
    """Asks the Controllers, one after the other, who is what."""

    _cluster: RocketMQCluster

    def start(self) -> None:
        self._tasks.spawn(self._ask(), name="controllers")

    async def _ask(self) -> None:
        last = (0, "")
        async with AdminClient(self._env, self._cluster.watched()) as admin:
            while True:
                found = await self._cluster.state(admin)
                self.views = {} if found is None else self._views(*found)
                self._note_leader("" if found is None else found[0])
                if found is not None and found[1].master_address:
                    now = (found[1].epoch, self._name(found[1].master_address))
                    if now != last:
                        last, values = now, {"group": found[1].group, "epoch": now[0]}
                        self._history.add(Happened(round(self._clock(), 1), now[1], "elected", values))
                await asyncio.sleep(LOOK_S)

    def _note_leader(self, leader: str) -> None:
        """Of another one than it names nobody hears what it is."""
        for name in self._controllers.keys() | ({leader} - {""}):
            self._led(name, "leader" if name == leader else "silent", 0)

    def _views(self, leader: str, state: SyncState) -> dict[str, Any]:
        views: dict[str, Any] = {leader: {"controller": {"isLeader": True, "term": 1}}}
        for address in (*state.in_sync.values(), *state.not_in_sync.values()):
            role = "master" if address == state.master_address else "slave"
            if name := self._name(address):
                views[name] = {"role": role, "epoch": state.epoch}
        return views

    def _name(self, address: str) -> str:
        nodes = self._cluster.layout.broker_nodes
        return next((node.name for node in nodes if node.address == address), "")
