"""How are the servers of a local cluster restarted one at a time, while it goes on serving?

NameServers with a Controller first, the one that leads last; then each group: its slaves, then the master,
which hands over before. No step begins while the cluster lacks something: a second server away could cost
the majority, or the last copy that a send waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from admin import ending
from admin.handover import hand_over, need_right
from admin.local.cluster import POLL_S, UP_TIMEOUT_S, ClusterNotReady, LocalCluster
from admin.local.layout import CLUSTER, Layout, Node
from admin.numbers import whole
from model.errors import ConfigError, MqError
from remoting.keys import Signer
from runtime.env import Env

Views = Mapping[str, dict[str, Any] | None]

BEGIN_S: Final = 5.0
"""How long a cluster that is not whole may take to become so before the first step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One server, as what it stands in the cluster, and whether its group is handed over before."""

    server: str
    what: str
    handover: bool = False


@dataclass(frozen=True, slots=True)
class Restarted:
    """``new_master``: the broker id that took over; ``killed``: it did not stop in time."""

    server: str
    took_ms: float
    new_master: int | None = None
    killed: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "tookMs": self.took_ms,
            "newMaster": self.new_master,
            "killed": self.killed,
        }


class NotRestarted(MqError):
    """A rolling restart stopped; the text says before which server, why, and what is left alone."""


def order(cluster: LocalCluster, views: Views) -> list[Step]:
    """Every step, as long as nobody changes role for another reason."""
    found: list[Step] = []
    while (step := next_step(cluster, views, {one.server for one in found})) is not None:
        found.append(step)
    return found


def next_step(cluster: LocalCluster, views: Views, done: Collection[str]) -> Step | None:
    """The server that is due, as the roles are now; None when all are ``done``."""
    layout = cluster.layout
    namesrvs = [node for node in layout.namesrvs if node.name not in done]
    if namesrvs:
        leads = {node.name: bool(cluster.controller(dict(views), node).get("isLeader")) for node in namesrvs}
        node = min(namesrvs, key=lambda one: leads[one.name])
        what = "NameServer, leads the Controllers" if leads[node.name] else "NameServer with a Controller"
        return Step(node.name, what)
    for group in layout.group_names:
        brokers = [node for node in layout.broker_nodes if node.group == group and node.name not in done]
        if brokers:
            masters = {node.name: (views[node.name] or {}).get("role") == "master" for node in brokers}
            node = min(brokers, key=lambda one: masters[one.name])
            if not masters[node.name]:
                return Step(node.name, f"slave of {group}")
            return Step(node.name, f"master of {group}", handover=layout.brokers > 1)
    return None


def interruptions(layout: Layout) -> list[str]:
    """What would stop serving while one server is away, in words."""
    found = []
    if layout.controllers < 3:
        found.append(f"{layout.controllers} Controllers have no majority without one of them")
    groups: dict[int, list[str]] = {}
    for group in layout.group_names:
        groups.setdefault(_copies_needed(layout, group), []).append(group)
    for copies, names in groups.items():
        if layout.brokers - 1 < copies:
            found.append(
                f"a send needs {copies} of the {layout.brokers} brokers of {', '.join(names)},"
                " one away is one too many"
            )
    return found


def need_no_interruption(layout: Layout, *, force: bool) -> None:
    """Raises ConfigError where one server away would interrupt sends."""
    reasons = interruptions(layout)
    if reasons and not force:
        raise ConfigError(f"sends would be interrupted: {'; '.join(reasons)} (--force does it)")


def _copies_needed(layout: Layout, group: str) -> int:
    """With what each broker has at its next start, so also what was changed on it since (``Node.kept``)."""
    copies = 1
    for node in layout.broker_nodes:
        if node.group != group:
            continue
        values = {**layout.settings.get("broker", {}), **node.kept, **node.own}
        for key in ("minInSyncReplicas", "inSyncReplicas"):
            copies = max(copies, whole(values.get(key, "")) or 1)
        if values.get("majorityAck", "").lower() == "true":
            copies = max(copies, layout.brokers // 2 + 1)
    return copies


def lacking(cluster: LocalCluster, views: Views) -> str:
    """What must come before the next server is stopped, in words; empty when nothing.

    More than ``LocalCluster.missing`` asks: for a moment a SyncStateSet still names a broker that was
    stopped and started within it, and follows nobody yet.
    """
    seen = dict(views)
    missing = cluster.missing(seen)
    if missing:
        return missing
    layout = cluster.layout
    for node in layout.namesrvs:
        raft = cluster.controller(seen, node).get("raft") or {}
        if raft.get("lagEntries"):
            return f"{node.name} is {raft['lagEntries']} decisions behind"
    leader = cluster.leader(seen)
    assert leader is not None, "missing asks for a leader"
    for group in layout.group_names:
        if text := _lacking_in(cluster, seen, leader, group):
            return text
    return ""


def _lacking_in(cluster: LocalCluster, views: Views, leader: Mapping[str, Any], group: str) -> str:
    known = leader["groups"][group]
    for number, broker in known["brokers"].items():
        if not broker["alive"]:
            return f"the Controllers do not hear broker {number} of {group}"
    master = cluster.master_view(group, dict(views))
    assert master is not None, "missing asks for a master"
    if master.get("writable") is not None:
        return f"the master of {group} takes no messages: {master['writable']}"
    linked = {slave["id"] for slave in master["slaves"]}
    slaves = [n for n in cluster.layout.broker_nodes if n.group == group and views[n.name] is not master]
    return next(filter(None, (_behind(node, views[node.name] or {}, master, linked) for node in slaves)), "")


def _behind(node: Node, view: Mapping[str, Any], master: Mapping[str, Any], linked: set[int]) -> str:
    """What keeps ``node`` from being a slave that can take over; empty when nothing."""
    following = (view.get("life") or {}).get("following") or {}
    state = following.get("state")
    if view.get("role") != "slave" or state != "following" or view["brokerId"] not in linked:
        return f"{node.name} does not follow the master of {node.group} yet ({state or view.get('role')})"
    if view.get("epoch") != master.get("epoch"):
        return f"{node.name} has not heard of epoch {master.get('epoch')} yet"
    return ""


class RollingRestart:
    """Restarts every server once. ``tell`` gets a line when something is done or waited for.

    ``settings``: ``ROLE.KEY=VALUE`` from then on; kept when the first server is restarted with them.
    ``force``: also where one server away would interrupt sends.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        env: Env,
        *,
        credentials: Signer | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        tell: Callable[[str], object] = lambda text: None,
        settings: Sequence[str] = (),
        force: bool = False,
    ) -> None:
        self._cluster = cluster
        self._env = env
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._tell = tell
        self._settings = settings
        self._force = force
        self._done: dict[str, Restarted] = {}

    async def run(self) -> list[Restarted]:
        """Raises NotRestarted; servers that had no turn go on as they are. ConfigError: none had."""
        with self._cluster.locked():
            self._cluster.take(self._settings)
            need_no_interruption(self._cluster.layout, force=self._force)
            try:
                views = await self._whole(BEGIN_S)
                await self._need_right()
            except MqError as error:
                raise NotRestarted(f"nothing was restarted: {error}") from None
            while (step := next_step(self._cluster, views, self._done)) is not None:
                self._tell(f"{step.server}  {step.what}")
                try:
                    views = await self._restart(step)
                except (MqError, OSError) as error:
                    raise NotRestarted(self._stopped(step, error)) from None
        return list(self._done.values())

    async def _need_right(self) -> None:
        """Now, not at the first master, when all others are restarted. Raises CannotHandOver."""
        layout = self._cluster.layout
        if layout.brokers > 1:
            namesrv = [one.address for one in layout.namesrvs]
            controllers = [one.controller_address for one in layout.namesrvs]
            await need_right(self._env, namesrv, controllers, self._credentials)

    async def _restart(self, step: Step) -> Views:
        began = time.monotonic()
        node = self._cluster.layout.node(step.server)
        new_master = await self._hand_over(node) if step.handover else None
        self._cluster.prepare(node)  # first: where that fails the server goes on
        try:
            killed = self._cluster.end([node])
            self._cluster.launch(node)  # no await between the two: an interruption comes after both
        except (MqError, OSError) as error:
            down = "it runs" if self._cluster.is_running(node) else f"{node.name} is down"
            raise ClusterNotReady(f"{error}; {down}") from None
        views = await self._whole(self._timeout_s)
        took_ms = round((time.monotonic() - began) * 1000, 1)
        self._done[node.name] = Restarted(node.name, took_ms, new_master, bool(killed))
        if killed:
            self._tell(f"{node.name} did not stop in time and was killed")
        return views

    async def _hand_over(self, node: Node) -> int:
        layout = self._cluster.layout
        done = await hand_over(
            self._env,
            [one.address for one in layout.namesrvs],
            [one.controller_address for one in layout.namesrvs],
            CLUSTER,
            node.group,
            credentials=self._credentials,
        )
        self._tell(f"{node.group}: broker {done.master} is master of epoch {done.epoch}")
        await self._whole(self._timeout_s)
        return done.master

    async def _whole(self, timeout_s: float) -> Views:
        """Wait until nothing is ``lacking``. Raises ClusterNotReady."""
        cluster, deadline = self._cluster, time.monotonic() + timeout_s
        while True:
            ended = [node for node in cluster.layout.nodes if not cluster.is_running(node)]
            if ended:
                lines = cluster.log_tail(ended[0]).splitlines() or ["its log is empty"]
                raise ClusterNotReady(f"{ended[0].name} does not run: {lines[-1]}")
            views = await cluster.views()
            text = lacking(cluster, views)
            if not text:
                return views
            if time.monotonic() > deadline:
                raise ClusterNotReady(text)
            await asyncio.sleep(POLL_S)

    def _stopped(self, step: Step, error: MqError | OSError) -> str:
        left = [n.name for n in self._cluster.layout.nodes if n.name not in {*self._done, step.server}]
        rest = f"; left alone: {', '.join(left)}" if left else ""
        return f"stopped at {step.server}: {error}{rest}"


def restart(rolling: RollingRestart) -> Sequence[Restarted]:
    """Run it so that a signal ends it with no server left down. Raises NotRestarted."""
    with ending.in_order(quiet=True):
        return ending.run(rolling.run())
