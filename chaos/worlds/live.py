"""How is a cluster of real processes broken, mended and looked at?

Faults are signals to processes this cluster started. What the servers did about them, and when, is read from
the events in their ``/status``; all run on one machine, so their wall clocks agree with ours.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from admin import credentials
from admin.handover import CannotHandOver, hand_over
from admin.local.cluster import POLL_S, ClusterNotReady, LocalCluster
from admin.local.layout import CLUSTER, Node
from chaos.links.cluster_links import LINK_FAULTS, ClusterLinks
from client.admin import AdminClient
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

GONE_S: Final = 10.0
CALM_S: Final = 30.0


class CannotDrill(MqError):
    """The scenario cannot be carried out here; the text says why."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Milliseconds from the fault to each step of the failover; None = the step was not seen.

    ``noticed``: the Controller knows that the master is lost. ``elected``: it has named another.
    ``promoted``: that one is master. ``routed``: the first NameServer says so. ``leader``: where the
    Controllers' leader was killed, another answers a request that only a leader can answer.
    """

    noticed_ms: float | None = None
    elected_ms: float | None = None
    promoted_ms: float | None = None
    routed_ms: float | None = None
    leader_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Victim:
    """Whom the fault hits (``also``: the others it hits), and who was master before it."""

    name: str
    master: str
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)


class World(Protocol):
    """A running cluster as a drill sees it."""

    target: str
    namesrv: list[str]
    group: str

    async def wait_full(self, timeout_s: float) -> None:
        """Until every replica is in the SyncStateSet and routed. Raises ClusterNotReady."""

    async def choose(self, fault: str, chance: random.Random) -> Victim:
        """Raises CannotDrill."""

    async def inflict(self, fault: str, victim: Victim) -> None:
        """Returns when the fault has happened. Raises CannotDrill."""

    async def mend(self, fault: str, victim: Victim) -> None:
        """Undo it: restart or thaw the victim."""

    async def led(self, timeout_s: float) -> bool:
        """Wait until a new leader answers where the last fault took one away; whether it did in time."""

    async def timeline(self, fault_ms: int) -> Timeline:
        """What happened since ``fault_ms`` (wall clock)."""


FAULTS: Final[dict[str, tuple[str, int | None]]] = {
    # fault -> (whom, signal); no signal: an orderly request, or a fault of links
    "kill-master": ("master", signal.SIGKILL),
    "stop-master": ("master", signal.SIGTERM),
    "freeze-master": ("master", signal.SIGSTOP),
    "handover": ("master", None),
    "kill-slave": ("slave", signal.SIGKILL),
    "freeze-slave": ("slave", signal.SIGSTOP),
    "kill-controller-leader": ("leader", signal.SIGKILL),
    "kill-leader-and-master": ("leader and master", signal.SIGKILL),
    "kill-namesrv": ("follower", signal.SIGKILL),
    **dict.fromkeys(LINK_FAULTS, ("master", None)),
}

WATCH_S: Final = 0.02
HITS_MASTER: Final = frozenset({"master", "leader and master"})
HITS_LEADER: Final = frozenset({"leader", "leader and master"})


class LeaderWatch:
    """When did the Controllers that are left have a leader that answers? Asked every 20 ms."""

    def __init__(self, env: Env, namesrv: Sequence[str]) -> None:
        self._env, self._namesrv = env, list(namesrv)
        self._tasks = Tasks("drill.leader")
        self._task: asyncio.Task[None] | None = None
        self.answered_ms: int | None = None

    def start(self, controllers: Sequence[str], group: str) -> None:
        """Begin to ask ``controllers``, those that were left alone."""
        self.answered_ms = None
        self._task = self._tasks.spawn(self._ask(controllers, group), name="ask")

    async def wait(self, timeout_s: float) -> bool:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
        return self._task is None or self._task.done()

    async def stop(self) -> None:
        self._task = None
        await self._tasks.cancel()

    async def _ask(self, controllers: Sequence[str], group: str) -> None:
        async with AdminClient(self._env, self._namesrv) as admin:
            while True:
                try:
                    if group in await admin.sync_state(controllers, [group]):
                        self.answered_ms = self._env.now_ms()
                        return
                except (OSError, MqError):
                    pass  # no leader yet: that is what is being waited for
                await asyncio.sleep(WATCH_S)


class LiveWorld:
    """A ``LocalCluster`` as a drill's world."""

    target = "keelmq"

    def __init__(self, env: Env, cluster: LocalCluster, links: ClusterLinks | None = None) -> None:
        self._env = env
        self._cluster = cluster
        self._links = links
        self.group = cluster.layout.group_names[0]
        self.namesrv = [node.address for node in cluster.layout.namesrvs]
        self._leader = LeaderWatch(env, self.namesrv)

    async def wait_full(self, timeout_s: float) -> None:
        await self._cluster.wait_ready(timeout_s=timeout_s)

    async def choose(self, fault: str, chance: random.Random) -> Victim:
        """Raises CannotDrill. On a busy machine the group, or the Controllers, may be without a leader for a
        moment: that is waited for."""
        if FAULTS[fault][0] in HITS_MASTER and len(self._brokers()) < 2:
            raise CannotDrill(f"{fault} needs at least two brokers in {self.group}")
        until_ms = self._env.monotonic_ms() + CALM_S * 1000
        while True:
            views = await self._cluster.views()
            try:
                return self._victim(fault, chance, views)
            except CannotDrill:
                if self._env.monotonic_ms() > until_ms:
                    raise
            await asyncio.sleep(POLL_S)

    def _victim(
        self, fault: str, chance: random.Random, views: Mapping[str, Mapping[str, Any] | None]
    ) -> Victim:
        masters = [n for n in self._brokers() if (views[n.name] or {}).get("role") == "master"]
        if len(masters) != 1:
            raise CannotDrill(f"group {self.group} has {len(masters)} masters")
        whom, _ = FAULTS[fault]
        able = self._able(whom, masters[0], views)
        if not able:
            raise CannotDrill(f"{fault} needs a {whom}, and the cluster has none")
        also = (masters[0].name,) if whom == "leader and master" else ()
        return Victim(chance.choice(able).name, masters[0].address, also)

    def _able(self, whom: str, master: Node, views: Mapping[str, Mapping[str, Any] | None]) -> list[Node]:
        if whom == "master":
            return [master]
        if whom == "slave":
            return [node for node in self._brokers() if node is not master]
        wanted = whom in HITS_LEADER
        return [node for node in self._cluster.layout.namesrvs if leads(views[node.name]) is wanted]

    async def inflict(self, fault: str, victim: Victim) -> None:
        whom, number = FAULTS[fault]
        if fault in LINK_FAULTS:
            assert self._links is not None, "the links of a cluster made for this fault go through proxies"
            await self._links.inflict(fault, self._cluster.layout.node(victim.name))
            return
        if number is None:
            await self._hand_over(victim)
            return
        for name in victim.names:
            if not self._cluster.send_signal(self._cluster.layout.node(name), number):
                raise CannotDrill(f"{name} does not run")
        if whom in HITS_LEADER:
            left = [node for node in self._cluster.layout.namesrvs if node.name not in victim.names]
            self._leader.start([node.controller_address for node in left], self.group)

    async def mend(self, fault: str, victim: Victim) -> None:
        await self._leader.stop()
        if fault in LINK_FAULTS and self._links is not None:
            await self._links.heal()
        _, number = FAULTS[fault]
        for node in map(self._cluster.layout.node, victim.names):
            if number == signal.SIGSTOP:
                self._cluster.send_signal(node, signal.SIGCONT)
            elif number is not None:
                await self._gone(node)
                self._cluster.start(node)

    async def led(self, timeout_s: float) -> bool:
        return await self._leader.wait(timeout_s)

    async def timeline(self, fault_ms: int) -> Timeline:
        views = await self._cluster.views()
        happened: list[tuple[str, Mapping[str, Any]]] = []
        for node in self._cluster.layout.nodes:
            view = views[node.name] or {}
            seen = {str(e): e for e in _events(view)}  # an embedded Controller's are listed with its host's
            happened += [(node.name, event) for event in seen.values()]
        return Timeline(
            self._first(happened, fault_ms, "master_lost", group=self.group),
            self._first(happened, fault_ms, "master_elected", group=self.group),
            self._first(
                [(n, e) for n, e in happened if self._group_of(n) == self.group], fault_ms, "promoted"
            ),
            self._first(
                happened, fault_ms, "route_changed", lambda e: bool(e.get("master")), group=self.group
            ),
            since(self._leader.answered_ms, fault_ms),
        )

    def _brokers(self) -> list[Node]:
        return [node for node in self._cluster.layout.broker_nodes if node.group == self.group]

    def _group_of(self, name: str) -> str:
        return self._cluster.layout.node(name).group

    @staticmethod
    def _first(
        happened: Iterable[tuple[str, Mapping[str, Any]]],
        fault_ms: int,
        name: str,
        accept: Callable[[Mapping[str, Any]], bool] = lambda event: True,
        **fields: object,
    ) -> float | None:
        times = [
            int(event["at_ms"]) - fault_ms
            for _, event in happened
            if event.get("event") == name
            and int(event["at_ms"]) >= fault_ms
            and all(event.get(key) == value for key, value in fields.items())
            and accept(event)
        ]
        return float(min(times)) if times else None

    async def _gone(self, node: Node) -> None:
        """A port and a lock are free again only when the process is gone."""
        until = self._env.monotonic_ms() + GONE_S * 1000
        while self._cluster.is_running(node):
            if self._env.monotonic_ms() > until:
                raise ClusterNotReady(f"{node.name} does not end")
            await asyncio.sleep(POLL_S)

    async def _hand_over(self, victim: Victim) -> None:
        """What ``keelmq group handover`` does."""
        controllers = [node.controller_address for node in self._cluster.layout.namesrvs]
        try:
            key = credentials.read()
            await hand_over(self._env, self.namesrv, controllers, CLUSTER, self.group, credentials=key)
        except CannotHandOver as error:
            raise CannotDrill(str(error)) from None


def leads(view: Mapping[str, Any] | None) -> bool:
    """Whether a NameServer's Controller says that it is the leader."""
    return bool(((view or {}).get("controller") or {}).get("isLeader"))


def since(at_ms: int | None, fault_ms: int) -> float | None:
    """Milliseconds from the fault to ``at_ms``, which may not have come."""
    return None if at_ms is None else float(at_ms - fault_ms)


def _events(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    embedded = view.get("controller") or {}
    return [*(view.get("events") or []), *(embedded.get("events") or [])]


def named(cluster: LocalCluster) -> Mapping[str, Node]:
    """Every node by its name here, and by its name in the simulated world."""
    layout = cluster.layout
    named = {node.name: node for node in layout.nodes}
    named |= {f"n{node.index}": node for node in layout.namesrvs}
    return named | {
        f"b{node.index + 1}": node for node in layout.broker_nodes if node.group == layout.group_names[0]
    }
