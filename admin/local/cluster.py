"""How is a cluster of real processes on this machine brought up, looked at, and taken down?

``up`` may be called again at any time: it starts what is missing and waits until each group has a master,
every broker is in the SyncStateSet, and every NameServer routes to the master.

Who holds a directory's lock reads its state file first: another command may have started servers since this
one read it, and they would be started twice, or be forgotten.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from admin import ending
from admin.host.serve import plan
from admin.local import layout as layouts
from admin.local import processes
from admin.local.layout import Layout, Node
from model.errors import ConfigError, MqError

DEFAULT_DIRECTORY: Final = Path("clusters/default")
POLL_S: Final = 0.1
STATUS_TIMEOUT_S: Final = 1.0
UP_TIMEOUT_S: Final = 60.0
LOG_LINES: Final = 12


class ClusterNotReady(MqError):
    """The cluster did not come up in time, or one of its servers ended; the text says which and why."""


class LocalCluster:
    """The cluster in one directory. Make it by ``open`` or ``create``."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.directory = directory.resolve()
        self.layout = layout
        self._known: str | None = None
        """The state file as it was read or written here last; None: neither was done."""

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Raises ConfigError when there is none."""
        text = layouts.read(directory)
        cluster = cls(directory, layouts.load(directory) if text is None else layouts.parse(text, directory))
        cluster._known = text
        return cluster

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        controllers: int | None = None,
        groups: int | None = None,
        brokers: int | None = None,
        base_port: int | None = None,
        settings: Sequence[str] = (),
    ) -> Self:
        """Open the cluster in ``directory``, or lay out a new one (3 NameServers, one group of 3 brokers).

        Raises ConfigError when an existing one has another shape than asked for, or for a wrong setting.
        """
        wanted = {"controllers": controllers, "groups": groups, "brokers": brokers, "base_port": base_port}
        given = {name: value for name, value in wanted.items() if value is not None}
        cluster = cls._wanted(directory, given, settings)  # first: what is wrong makes no directory
        directory.mkdir(parents=True, exist_ok=True)
        with cluster._alone():
            if layouts.read(directory) != cluster._known:
                cluster = cls._wanted(directory, given, settings)
            cluster.save()
        return cluster

    @classmethod
    def _wanted(cls, directory: Path, given: Mapping[str, int], settings: Sequence[str]) -> Self:
        """As ``create``; nothing is written."""
        if layouts.read(directory) is None:
            cluster = cls(directory, Layout.make(**given))
        else:
            cluster = cls.open(directory)
            for name, value in given.items():
                there = getattr(cluster.layout, name)
                if there != value:
                    raise ConfigError(
                        f"{directory} holds a cluster with {name}={there}, not {value}: "
                        "take it down and remove the directory, or use another --dir"
                    )
        cluster.take(settings)
        return cluster

    def save(self) -> None:
        """Write the state file."""
        self._known = layouts.save(self.layout, self.directory)

    def take(self, settings: Sequence[str]) -> None:
        """``ROLE.KEY=VALUE`` for the next starts; not kept in the directory yet. Raises ConfigError."""
        for node in self.layout.nodes:
            self._look_at_file(node)
        self.layout.add_settings(settings)
        if settings:
            # Before they are kept: a mistyped one would fail every later start of this directory, too.
            for node in self.layout.nodes:
                plan(node.role, self.layout.conf(node, self.directory))

    # --- processes

    def conf_path(self, node: Node) -> Path:
        return self.directory / "conf" / f"{node.name}.conf"

    def log_path(self, node: Node) -> Path:
        return self.directory / "log" / f"{node.name}.log"

    def store_path(self, node: Node) -> Path:
        return self.directory / "store" / node.name

    def is_running(self, node: Node) -> bool:
        return processes.is_ours(node.pid, self.conf_path(node))

    def start(self, node: Node) -> None:
        """Start one server that is not running; does not wait for it."""
        self.prepare(node)
        self.launch(node)

    def prepare(self, node: Node) -> None:
        """Write what its next start needs; it may run meanwhile. Raises ConfigError, OSError."""
        for name in ("conf", "log", "store", "raft"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        layouts.make_secret(self.directory / "raft.secret")
        self._look_at_file(node)
        node.written = self.layout.conf(node, self.directory)
        self.save()  # first: who ends here has not changed the file by hand
        layouts.replace(self.conf_path(node), "".join(f"{k}={v}\n" for k, v in node.written.items()))

    def launch(self, node: Node) -> None:
        """Start it with what ``prepare`` wrote."""
        node.pid = processes.start_server(
            node.role, self.conf_path(node), self.log_path(node), node.wrap, code=node.code
        )
        self.save()

    def _look_at_file(self, node: Node) -> None:
        """What was changed in its file since its start holds for the next one, too. Raises ConfigError."""
        path = self.conf_path(node)
        changed = layouts.changed_in(path, node.written)
        for key in sorted(layouts.PLACES & changed.keys()):
            was = node.written.get(key)
            raise ConfigError(
                f"{path}: {key} is what the cluster's other servers and commands know this one by: "
                + ("take the line out" if was is None else f"put {key}={was} back")
            )
        node.kept |= changed
        node.written |= changed  # what is given after it goes before it

    def send_signal(self, node: Node, number: int) -> bool:
        """Signal one server; False when it does not run."""
        return processes.send_signal(node.pid, self.conf_path(node), number)

    def down(self, grace_s: float = processes.GRACE_S) -> list[str]:
        """End the servers that are ours, brokers first; names of those that had to be killed, ``grace_s``
        after they were told to."""
        with self.locked():
            return self.end(self.layout.nodes, grace_s)

    def end(self, chosen: Sequence[Node], grace_s: float = processes.GRACE_S) -> list[str]:
        """End ``chosen``, brokers first; names of those that had to be killed."""
        killed = []
        with ending.uncut():
            for nodes in (self.layout.broker_nodes, self.layout.namesrvs):
                ours = [node for node in nodes if node in chosen]
                pids = processes.end_all([(one.pid, self.conf_path(one)) for one in ours], grace_s=grace_s)
                killed += [node.name for node in ours if node.pid in pids]
            for node in chosen:
                node.pid = None
            self.save()
        return killed

    async def up(
        self, *, timeout_s: float = UP_TIMEOUT_S, tell: Callable[[str], object] | None = None
    ) -> dict[str, Any]:
        """Start what is missing, wait until all is in order, return the status.

        Interrupted, it ends what it started. Raises ClusterNotReady; the servers are then left to look at.
        """
        started: list[Node] = []
        with self.locked():
            try:
                for node in self.layout.nodes:
                    if not self.is_running(node):
                        self.start(node)
                        started.append(node)
                return await self.wait_ready(timeout_s=timeout_s, tell=tell)
            except (asyncio.CancelledError, KeyboardInterrupt):
                self.end(started)
                raise

    async def wait_ready(
        self, *, timeout_s: float = UP_TIMEOUT_S, tell: Callable[[str], object] | None = None
    ) -> dict[str, Any]:
        """Wait until nothing is ``missing``. Raises ClusterNotReady."""
        deadline = time.monotonic() + timeout_s
        last = ""
        while True:
            ended = [node for node in self.layout.nodes if not self.is_running(node)]
            if ended:
                raise ClusterNotReady(f"{ended[0].name} ended:\n{self.log_tail(ended[0])}")
            views = await self.views()
            missing = self.missing(views)
            if not missing:
                return self.status_of(views)
            if missing != last and tell is not None:
                tell(missing)
            last = missing
            if time.monotonic() > deadline:
                raise ClusterNotReady(f"not ready after {timeout_s:.0f} s: {missing}")
            await asyncio.sleep(POLL_S)

    def log_tail(self, node: Node) -> str:
        path = self.log_path(node)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-LOG_LINES:])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One ``up``, ``down`` or restart at a time: two would start servers twice. What others changed since
        the state file was read holds. Raises ConfigError."""
        with self._alone():
            text = layouts.read(self.directory) if self._known is not None else None
            if text is not None and text != self._known:
                self.layout, self._known = layouts.parse(text, self.directory), text
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.directory / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another command is working on {self.directory}") from None
            yield

    # --- what the servers say

    async def views(self) -> dict[str, dict[str, Any] | None]:
        """/status of every server by name; None when it gives none."""
        timeout = aiohttp.ClientTimeout(total=STATUS_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            nodes = self.layout.nodes
            found = await asyncio.gather(*(self.look(http, node) for node in nodes))
        return {node.name: view for node, view in zip(nodes, found, strict=True)}

    async def look(self, http: aiohttp.ClientSession, node: Node) -> dict[str, Any] | None:
        """/status of one server; None when it gives none."""
        return await fetch(http, node)

    def missing(self, views: dict[str, dict[str, Any] | None]) -> str:
        """What a full cluster still lacks, in words; empty when nothing."""
        silent = [name for name, view in views.items() if view is None]
        if silent:
            return f"waiting for {', '.join(silent)}"
        leader = self.leader(views)
        if leader is None:
            return "waiting for a Controller leader"
        lacks = (self._lacks(group, leader, views) for group in self.layout.group_names)
        return next(filter(None, lacks), "")

    def _lacks(self, group: str, leader: dict[str, Any], views: dict[str, dict[str, Any] | None]) -> str:
        known = (leader.get("groups") or {}).get(group) or {}
        if known.get("master") is None:
            return f"waiting for a master of {group}"
        count = len(known.get("syncStateSet") or [])
        if count < self.layout.brokers:
            return f"{count} of {self.layout.brokers} brokers of {group} are in the SyncStateSet"
        master = self.master_view(group, views)
        if master is None or master.get("epoch") != known.get("epoch"):
            return f"waiting for the master of {group} to take over"
        address = (master.get("groupAddress") or {}).get("address") or master.get("address")
        for node in self.layout.namesrvs:
            routed = ((views[node.name] or {}).get("brokers") or {}).get(group) or {}
            if _by_id(routed).get(0) != address:
                return f"{node.name} has no route to the master of {group} yet"
        return ""

    def status_of(self, views: dict[str, dict[str, Any] | None]) -> dict[str, Any]:
        """The status as scripts read it (its members may grow, not change)."""
        # Between two leaders the followers still know what the last one decided.
        known = self.leader(views) or self._most_advanced(views)
        return {
            "namesrv": [node.address for node in self.layout.namesrvs],
            "controllers": [
                {
                    "id": node.controller_id,
                    "address": node.controller_address,
                    "leader": self.controller(views, node).get("isLeader") is True,
                    "lagEntries": (self.controller(views, node).get("raft") or {}).get("lagEntries"),
                    "pid": node.pid if self.is_running(node) else None,
                }
                for node in self.layout.namesrvs
            ],
            "groups": [self._group_status(name, known, views) for name in self.layout.group_names],
            "missing": self.missing(views),
        }

    async def status(self) -> dict[str, Any]:
        return self.status_of(await self.views())

    def _group_status(
        self, group: str, leader: dict[str, Any], views: dict[str, dict[str, Any] | None]
    ) -> dict[str, Any]:
        known = (leader.get("groups") or {}).get(group) or {}
        ids = {b.get("address"): int(i) for i, b in (known.get("brokers") or {}).items()}
        brokers = []
        for node in self.layout.broker_nodes:
            if node.group != group:
                continue
            view = views.get(node.name)
            running = self.is_running(node)
            brokers.append(
                {
                    "id": (view or {}).get("brokerId", ids.get(node.address)),
                    "address": node.address,
                    "pid": node.pid if running else None,
                    "role": view["role"] if view else "silent" if running else "down",
                    "maxOffset": (view or {}).get("maxOffset"),
                    "confirmOffset": (view or {}).get("confirmOffset"),
                    "store": str(self.store_path(node)),
                    "name": node.name,
                    "status": f"http://{node.admin_host}:{node.admin_port}/status",
                }
            )
        return {
            "name": group,
            "master": known.get("master"),
            "epoch": known.get("epoch"),
            "syncStateSet": sorted(known.get("syncStateSet") or []),
            "brokers": brokers,
        }

    def controller(self, views: dict[str, dict[str, Any] | None], node: Node) -> dict[str, Any]:
        return (views.get(node.name) or {}).get("controller") or {}

    def leader(self, views: dict[str, dict[str, Any] | None]) -> dict[str, Any] | None:
        # A deposed leader may not know yet: the highest term is the one that counts.
        claims = [self.controller(views, node) for node in self.layout.namesrvs]
        leaders = [claim for claim in claims if claim.get("isLeader")]
        return max(leaders, key=lambda claim: int(claim.get("term") or 0), default=None)

    def _most_advanced(self, views: dict[str, dict[str, Any] | None]) -> dict[str, Any]:
        known = [self.controller(views, node) for node in self.layout.namesrvs]
        return max(known, key=lambda view: int(view.get("commitIndex") or 0))

    def master_view(self, group: str, views: dict[str, dict[str, Any] | None]) -> dict[str, Any] | None:
        for node in self.layout.broker_nodes:
            view = views.get(node.name)
            if node.group == group and view is not None and view.get("role") == "master":
                return view
        return None


def _by_id(table: dict[Any, Any]) -> dict[int, str]:
    """JSON has text keys; a status read in the same process has numbers."""
    return {int(key): str(value) for key, value in table.items()}


async def fetch(http: aiohttp.ClientSession, node: Node) -> dict[str, Any] | None:
    """/status of one server; None when it gives none."""
    try:
        async with http.get(f"http://{node.admin_host}:{node.admin_port}/status") as response:
            if response.status != 200:
                return None
            found = json.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None  # not started yet, frozen, or gone: what the caller asks is whether it answers
    # Whoever holds the port may be another cluster's server: ours then ends in a moment.
    return found if isinstance(found, dict) and found.get("pid") == node.pid else None
