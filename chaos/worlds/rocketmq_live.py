"""How does the real RocketMQ take the same drill? Its Controller trio and its brokers, a JVM each, our
client.

RocketMQ tells nobody when it noticed or promoted; when it elected and routed is seen by asking every 20 ms.
Brokers run with ``allAckInSyncStateSet=true``, as ours do by default: else the two would not promise the
same.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from admin.local.cluster import ClusterNotReady
from admin.local.layout import BROKER_DEFAULTS, HOST, Layout, Node
from chaos.links.cluster_links import LINK_FAULTS
from chaos.live import folder
from chaos.worlds import rocketmq
from chaos.worlds.live import (
    FAULTS,
    HITS_LEADER,
    HITS_MASTER,
    WATCH_S,
    CannotDrill,
    LeaderWatch,
    Timeline,
    Victim,
    since,
)
from client.admin import AdminClient, SyncState
from model.errors import MqError, Refused
from runtime.env import Env
from runtime.tasks import Tasks

POLL_S: Final = 0.2
START_S: Final = 120.0
STOP_S: Final = 20.0
ANY_HOST: Final = "0.0.0.0"


class RocketMQWorld:
    """Three NameServers with Controllers and ``brokers`` brokers of one group in ``directory``."""

    target = "rocketmq"

    def __init__(
        self,
        env: Env,
        directory: Path,
        *,
        brokers: int = 3,
        settings: Sequence[str] = (),
        base_port: int | None = None,
    ) -> None:
        """Raises ConfigError for ``settings`` that are none, CannotDrill without Java or the jars."""
        missing = rocketmq.unavailable()
        if missing is not None:
            raise CannotDrill(f"the real RocketMQ cannot run here: {missing}")
        layout = Layout.make(brokers=brokers, base_port=base_port)
        layout.add_settings(settings)
        self._env = env
        self._directory = directory
        self._layout = layout
        self._addresses = {node.name: node.address for node in layout.nodes}
        self.group = layout.group_names[0]
        self.namesrv = [node.address for node in layout.namesrvs]
        self._controllers = [node.controller_address for node in layout.namesrvs]
        self._nodes = {node.name: node for node in self._make()}
        self._watch = Tasks("watch")
        self._led = LeaderWatch(env, self.namesrv)
        self._elected_ms: int | None = None
        self._routed_ms: int | None = None

    def _make(self) -> list[rocketmq.Node]:
        settings = self._layout.settings
        settings["broker"] = {"allAckInSyncStateSet": "true", **settings.get("broker", {})}
        found = []
        for node in self._layout.nodes:
            where = self._directory / node.name
            kept = where / ("store" if node.role == "broker" else "controller")
            found.append(node_of(self._layout, node, where, kept))
        return found

    @property
    def brokers(self) -> list[rocketmq.Node]:
        """The processes of the brokers, without those of the NameServers."""
        return [self._nodes[node.name] for node in self._layout.broker_nodes]

    @property
    def pids(self) -> list[int]:
        """Of all JVMs that were started."""
        return [node.process.pid for node in self._nodes.values() if node.process is not None]

    @property
    def broker_addresses(self) -> dict[str, str]:
        """Where each broker answers, by its name in the layout."""
        return {node.name: node.address for node in self._layout.broker_nodes}

    async def start(self, tell: Callable[[str], object]) -> None:
        """Start the JVMs, NameServers first. Raises ClusterNotReady."""
        tell("fetching RocketMQ, if need be")
        await self._env.offload(rocketmq.fetch)
        for node in self._layout.namesrvs:
            self._nodes[node.name].start()
        tell("waiting for RocketMQ's Controllers")
        await self._until("a Controller leader", self._has_leader, START_S)
        for node in self._layout.broker_nodes:
            self._nodes[node.name].start()
        tell("waiting for RocketMQ's brokers")
        await self.wait_full(START_S)

    async def stop(self) -> None:
        """End the JVMs and remove what they wrote."""
        await self._led.stop()
        await self._watch.cancel()
        for nodes in (self._layout.broker_nodes, self._layout.namesrvs):
            for node in nodes:
                self._nodes[node.name].send_signal(signal.SIGCONT)
                self._nodes[node.name].send_signal(signal.SIGTERM)
            for node in nodes:
                await self._env.offload(self._nodes[node.name].stop)
        await self._env.offload(lambda: folder.remove(self._directory))

    async def wait_full(self, timeout_s: float) -> None:
        await self._until("a full SyncStateSet", self._is_full, timeout_s)

    async def choose(self, fault: str, chance: random.Random) -> Victim:
        state = await self._state()
        if state is None or state.master_address is None:
            raise CannotDrill(f"group {self.group} has no master")
        leader = await self._leader()
        names = {address: name for name, address in self._addresses.items()}
        controllers = {node.controller_address: node.name for node in self._layout.namesrvs}
        master = names[state.master_address]
        if fault in LINK_FAULTS:
            raise CannotDrill(f"{fault}: the links of a real RocketMQ do not go through proxies here")
        whom, _ = FAULTS[fault]
        candidates = {
            "master": [master],
            "slave": [node.name for node in self._layout.broker_nodes if node.name != master],
            "leader": [controllers[leader]] if leader in controllers else [],
            "follower": [name for address, name in controllers.items() if address != leader],
        }
        candidates["leader and master"] = candidates["leader"]
        able = candidates[whom]
        if not able:
            raise CannotDrill(f"{fault} needs a {whom}, and the cluster has none")
        also = (master,) if whom == "leader and master" else ()
        return Victim(chance.choice(able), state.master_address, also)

    async def inflict(self, fault: str, victim: Victim) -> None:
        whom, number = FAULTS[fault]
        self._elected_ms = self._routed_ms = None
        if whom in HITS_MASTER:
            self._watch.spawn(self._watch_election(victim.master), name="election")
            self._watch.spawn(self._watch_route(victim.master), name="route")
        if number is not None:
            for name in victim.names:
                self._nodes[name].send_signal(number)
            if whom in HITS_LEADER:
                left = [node for node in self._layout.namesrvs if node.name not in victim.names]
                self._led.start([node.controller_address for node in left], self.group)
            return
        state = await self._state()
        targets = sorted(i for i in state.in_sync if i != state.master) if state else []
        if not targets:
            raise CannotDrill(f"no slave of {self.group} is in the SyncStateSet")
        async with AdminClient(self._env, self.namesrv) as admin:
            try:
                await admin.elect(self._controllers, "DefaultCluster", self.group, targets[0])
            except Refused as error:
                raise CannotDrill(f"the Controller refuses to hand {self.group} over: {error}") from None

    async def mend(self, fault: str, victim: Victim) -> None:
        await self._led.stop()
        await self._watch.cancel()
        _, number = FAULTS[fault]
        for node in (self._nodes[name] for name in victim.names):
            if number == signal.SIGSTOP:
                node.send_signal(signal.SIGCONT)
            elif number is not None:
                await self._env.offload(partial(node.stop, timeout_s=STOP_S))
                node.start()

    async def led(self, timeout_s: float) -> bool:
        return await self._led.wait(timeout_s)

    async def timeline(self, fault_ms: int) -> Timeline:
        return Timeline(
            elected_ms=since(self._elected_ms, fault_ms),
            routed_ms=since(self._routed_ms, fault_ms),
            leader_ms=since(self._led.answered_ms, fault_ms),
        )

    # --- looking

    async def _watch_election(self, old_master: str) -> None:
        async with AdminClient(self._env, self.namesrv) as admin:
            while True:
                state = await self._state(admin)
                if state is not None and state.master_address not in (None, "", old_master):
                    self._elected_ms = self._env.now_ms()
                    return
                await asyncio.sleep(WATCH_S)

    async def _watch_route(self, old_master: str) -> None:
        async with AdminClient(self._env, self.namesrv) as admin:
            while True:
                if await self._routed(admin) not in (None, old_master):
                    self._routed_ms = self._env.now_ms()
                    return
                await asyncio.sleep(WATCH_S)

    async def _routed(self, admin: AdminClient) -> str | None:
        """The master as the first NameServer that answers has it."""
        try:
            return (await admin.cluster_info()).brokers.get(self.group, {}).get(0)
        except (OSError, MqError):
            return None  # none answers now: ask again

    async def _state(self, admin: AdminClient | None = None) -> SyncState | None:
        if admin is None:
            async with AdminClient(self._env, self.namesrv) as own:
                return await self._state(own)
        try:
            return (await admin.sync_state(self._controllers, [self.group])).get(self.group)
        except (OSError, MqError):
            return None  # no leader now, or one that just lost it: ask again

    async def _leader(self) -> str | None:
        async with AdminClient(self._env, self.namesrv) as admin:
            return await admin.controller_leader(self._controllers)

    async def _has_leader(self) -> bool:
        return await self._leader() is not None

    async def _is_full(self) -> bool:
        async with AdminClient(self._env, self.namesrv) as admin:
            state = await self._state(admin)
            if state is None or len(state.in_sync) < len(self._layout.broker_nodes):
                return False
            for address in self.namesrv:
                async with AdminClient(self._env, [address]) as one:
                    if await self._routed(one) != state.master_address:
                        return False
            return True

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        until = self._env.monotonic_ms() + timeout_s * 1000
        while True:
            if await holds():
                return
            for node in self._nodes.values():
                if node.process is not None and node.process.poll() is not None:
                    raise ClusterNotReady(f"RocketMQ's {node.name} ended:\n{node.tail()}")
            if self._env.monotonic_ms() > until:
                raise ClusterNotReady(f"RocketMQ has not reached {what} after {timeout_s:.0f} s")
            await asyncio.sleep(POLL_S)


def node_of(layout: Layout, node: Node, where: Path, kept: Path) -> rocketmq.Node:
    """RocketMQ's server in the place of ``node``, its output in ``where`` and what it keeps in ``kept``."""
    controllers = [one.controller_address for one in layout.namesrvs]
    if node.role == "namesrv":
        own = {
            "bindAddress": HOST if node.host == HOST else ANY_HOST,
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "drill",
            "controllerDLegerPeers": ";".join(
                f"{n.controller_id}-{n.controller_address}" for n in layout.namesrvs
            ),
            "controllerDLegerSelfId": node.controller_id,
            "controllerStorePath": str(kept),
            "mappedFileSize": str(16 * 1024 * 1024),
            # Read only with controllerType=jRaft, whose members talk on ports of their own.
            "jRaftGroupId": "drill",
            "jRaftServerId": node.raft_address,
            "jRaftInitConf": ",".join(n.raft_address for n in layout.namesrvs),
            "jRaftControllerRPCAddr": ",".join(controllers),
            **layout.settings.get("namesrv", {}),
        }
        made = rocketmq.namesrv_node(where, node.base_port, **own)
    else:
        own = {
            "brokerId": "-1",
            "brokerRole": "SLAVE",
            "brokerIP1": node.host,
            "brokerIP2": node.host,
            "enableControllerMode": "true",
            "controllerAddr": ";".join(controllers),
            **BROKER_DEFAULTS,
            **layout.settings.get("broker", {}),
        }
        namesrv = ";".join(one.address for one in layout.namesrvs)
        made = rocketmq.broker_node(where, node.base_port + 2, namesrv, kept, **own)
    made.name = node.name
    return made
