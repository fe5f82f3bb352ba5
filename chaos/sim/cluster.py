"""How does a whole cluster, of the real classes, live in one simulated world?

``SimCluster`` holds machines, their processes (``Life``) and their servers: NameServers with an embedded
Controller each, brokers of one group, perhaps of a second one, clients. It starts, kills, pauses, cuts and
unplugs them, and looks at them from outside for the checks. Everything random comes from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

from broker.service import Broker
from chaos.history import Happened, History, Observed, readable
from chaos.partitions import NEIGHBOUR
from chaos.sim.changes import Changes
from chaos.sim.disk import Machine
from chaos.sim.env import EPOCH_MS, SimEnv
from chaos.sim.invariants import watch_servers
from chaos.sim.loop import START_S, Life, Shuffle, SimLoop
from chaos.sim.net import Fabric, NetProfile
from chaos.sim.standing import master_of, members_of, standing
from controller.service import Controller
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from namesrv.service import NameServer
from runtime.report.events import Event

T = TypeVar("T")

GROUP: Final = "broker-a"
NEIGHBOUR_GROUP: Final = "broker-b"
NEIGHBOURS: Final = 2
NAMESRV_PORT: Final = 9876
CONTROLLER_PORT: Final = 9878
BROKER_PORT: Final = 10911

HA_SECRET: Final = b"what the brokers of the group share"

BROKER_SETTINGS: Final = {
    "brokerName": GROUP,
    "storePathRootDir": "/store",
    "listenPort": str(BROKER_PORT),
    "enableFastPort": "false",
    "enableControllerMode": "true",
    "brokerRole": "SYNC_MASTER",
    "allAckInSyncStateSet": "true",
    # Small files, so that a few seconds of load roll segments and fill index files.
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 64),
    "maxHashSlotNum": "256",
    "maxIndexNum": "256",
    "registerNameServerPeriod": "2000",
}
NEIGHBOUR_SETTINGS: Final = {
    # Whatever mode the first group has: what this one answers OK is on each member's disk.
    "brokerName": NEIGHBOUR_GROUP,
    "flushDiskType": "SYNC_FLUSH",
    "totalReplicas": str(NEIGHBOURS),
}


class Server(Protocol):
    """What every server promises (docs/architecture.md)."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def health(self) -> str | None: ...


class _NameServerAndController:
    """One process that is both, as ``enableControllerInNamesrv`` makes it."""

    def __init__(self, namesrv: NameServer, controller: Controller) -> None:
        self.namesrv = namesrv
        self.controller = controller
        namesrv.companions["controller"] = controller

    async def start(self) -> None:
        await self.controller.start()
        await self.namesrv.start()

    async def stop(self) -> None:
        await self.controller.stop()
        await self.namesrv.stop()

    def status(self) -> dict[str, Any]:
        return self.namesrv.status()

    def health(self) -> str | None:
        return self.namesrv.health()


@dataclass(slots=True)
class Node:
    """One machine and the process on it. ``state``: down, up, paused, off (no power).

    ``again``: a start was asked for while the process still shut down; it comes when that has ended."""

    name: str
    kind: str
    host: str
    machine: Machine
    life: Life
    state: str = "down"
    starts: int = 0
    env: SimEnv | None = None
    server: Server | None = None
    skew_ms: int = 0
    stopping: bool = False
    again: bool = False
    own: dict[str, str] = field(default_factory=dict)
    """Keys of this broker's configuration alone; they count from its next start on."""

    @property
    def running(self) -> bool:
        return self.state == "up" and self.server is not None


@dataclass(slots=True)
class WorldConfig:
    """How one world is made; a scenario draws it from the seed."""

    namesrvs: int = 3
    brokers: int = 3
    network: NetProfile = field(default_factory=NetProfile)
    offload_s: tuple[float, float] = (0.0001, 0.002)
    shuffle: Shuffle = "nodes"
    broker: Mapping[str, str] = field(default_factory=dict)
    learners: int = 0
    neighbour: bool = False
    """A second group, of the same NameServers and Controllers."""
    neighbour_broker: Mapping[str, str] = field(default_factory=dict)
    namesrv: Mapping[str, str] = field(default_factory=dict)
    controller: Mapping[str, str] = field(default_factory=dict)


class SimCluster:
    """NameServers ``n0``.., brokers ``b1``.., neighbours ``c1``.., clients, each on a machine of its own."""

    def __init__(self, seed: int, config: WorldConfig, history: History) -> None:
        watch_servers()
        self.seed = seed
        self.config = config
        self.history = history
        self.beside = History()
        """What befalls the neighbours and what they say: a check looks at one group."""
        self.changes = Changes(self.clock)
        """What no step of the plan did; for whoever reads the run."""
        self.loop = SimLoop(seed, shuffle=config.shuffle)
        self.fabric = Fabric(self.loop, seed, config.network)
        self.nodes: dict[str, Node] = {}
        self.errors: list[str] = []
        """Starts that failed: a node whose store or journal cannot be opened."""
        for number in range(config.namesrvs):
            self._add(f"n{number}", "namesrv", f"127.0.1.{number + 1}")
        for number in range(1, config.brokers + 1):
            self._add(f"b{number}", "broker", f"127.0.2.{number}")
        for number in range(1, config.learners + 1):
            self._add(f"l{number}", "learner", f"127.0.4.{number}", {"asyncLearner": "true"})
        for number in range(1, NEIGHBOURS * config.neighbour + 1):
            self._add(f"c{number}", NEIGHBOUR, f"127.0.5.{number}")

    def _add(self, name: str, kind: str, host: str, own: Mapping[str, str] | None = None) -> Node:
        machine = Machine(name, self.seed, self._wall_ms)
        node = self.nodes[name] = Node(name, kind, host, machine, self.loop.new_life(name))
        node.own = dict(own or {})
        node.life.alive = False
        return node

    def _wall_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * 1000)

    def clock(self) -> float:
        """Milliseconds since the world began."""
        return round((self.loop.time() - START_S) * 1000, 3)

    @property
    def namesrv_addresses(self) -> list[str]:
        return [f"{node.host}:{NAMESRV_PORT}" for node in self.of("namesrv")]

    @property
    def controller_addresses(self) -> list[str]:
        return [f"{node.host}:{CONTROLLER_PORT}" for node in self.of("namesrv")]

    def of(self, kind: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    def of_group(self) -> list[str]:
        """Brokers that may be elected, by name."""
        return [node.name for node in self.of("broker")]

    # Processes

    def start(self, name: str) -> None:
        """Start a node's process; returns at once, ``server`` is there when it serves.

        While the old process still shuts down, the new one waits for its end, as under any supervisor."""
        node = self.nodes[name]
        if node.stopping:
            node.again = True
        if node.state != "down":
            return
        node.starts += 1
        self.changes.note(name, "process_started")
        node.machine.faults.no_descriptors = False  # they were the former process's
        node.life = self.loop.new_life(name)
        node.state = "up"
        node.server = None
        node.env = self._env(node)
        self.loop.spawn(node.life, self._boot(node, node.life), name="boot")

    def _env(self, node: Node) -> SimEnv:
        history = self.beside if node.kind == NEIGHBOUR else self.history

        def watch(event: Event) -> None:
            history.add(Happened(self.clock(), node.name, event.name, dict(event.fields)))

        env = SimEnv(
            self.loop,
            node.life,
            self.fabric,
            node.machine,
            node.host,
            seed=self.seed,
            watch=watch,
            offload_s=self.config.offload_s,
        )
        env.skew_ms = node.skew_ms
        return env

    async def _boot(self, node: Node, life: Life) -> None:
        assert node.env is not None, "set by start"
        try:
            server = self._build(node, node.env)
            await server.start()
        except Exception as error:  # noqa: BLE001
            # A process that cannot start exits with its reason; the checks see it.
            self.errors.append(f"{node.name} did not start: {type(error).__name__}: {error}")
            self.history.add(Happened(self.clock(), node.name, "start_failed", {"error": str(error)}))
            self.kill(node.name)
            return
        if life.alive:
            node.server = server

    def _build(self, node: Node, env: SimEnv) -> Server:
        if node.kind == "namesrv":
            return self._namesrv(node, env)
        neighbour = {**NEIGHBOUR_SETTINGS, **self.config.neighbour_broker}
        values = {
            **BROKER_SETTINGS,
            "bindAddress": node.host,
            "brokerIP1": node.host,
            "namesrvAddr": ";".join(self.namesrv_addresses),
            "controllerAddr": ";".join(self.controller_addresses),
            "totalReplicas": str(self.config.brokers),
            **(neighbour if node.kind == NEIGHBOUR else self.config.broker),
            **node.own,
        }
        _hand_out_secret(env, values.get("haSecretFile", ""))
        return Broker(env, BrokerConfig.from_mapping(values))

    def _namesrv(self, node: Node, env: SimEnv) -> Server:
        peers = ";".join(
            f"{other.name}-{address}"
            for other, address in zip(self.of("namesrv"), self.controller_addresses, strict=True)
        )
        controller = {
            "bindAddress": node.host,
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": node.name,
            "controllerStorePath": "/controller",
            **self.config.controller,
        }
        namesrv = {"bindAddress": node.host, "listenPort": str(NAMESRV_PORT), **self.config.namesrv}
        return _NameServerAndController(
            NameServer(env, NamesrvConfig.from_mapping(namesrv)),
            Controller(env, ControllerConfig.from_mapping(controller)),
        )

    def kill(self, name: str) -> bool:
        """SIGKILL. Returns whether there was something to kill."""
        node = self.nodes[name]
        if node.state not in ("up", "paused"):
            return False
        self.loop.kill(node.life)
        self.fabric.process_died(node.life)
        node.machine.process_died(node.life)
        node.server, node.state, node.stopping = None, "down", False
        if node.again:
            node.again = False
            self.start(name)
        return True

    def power_fail(self, name: str) -> bool:
        """The machine loses power; ``start`` after ``power_on``."""
        node = self.nodes[name]
        if node.state == "off":
            return False
        self.loop.kill(node.life)
        self.fabric.power_off(node.host)
        node.machine.lose_power()
        node.server, node.state, node.stopping, node.again = None, "off", False, False
        return True

    def power_on(self, name: str) -> None:
        node = self.nodes[name]
        if node.state == "off":
            self.fabric.power_on(node.host)
            node.state = "down"
            self.changes.note(name, "power_on")

    def pause(self, name: str) -> bool:
        node = self.nodes[name]
        if node.state != "up":
            return False
        self.loop.pause(node.life)
        node.state = "paused"
        return True

    def resume(self, name: str) -> bool:
        node = self.nodes[name]
        if node.state != "paused":
            return False
        node.state = "up"
        self.loop.resume(node.life)
        self.changes.note(name, "resumed")
        return True

    def stop(self, name: str) -> asyncio.Task[None] | None:
        """SIGTERM: an orderly stop, which ends some time later. None when nothing runs."""
        node = self.nodes[name]
        if not node.running or node.server is None:
            return None
        node.stopping = True
        self.changes.note(name, "process_stops")
        return self.loop.spawn(node.life, self._stop(node, node.server), name="stop")

    async def _stop(self, node: Node, server: Server) -> None:
        await server.stop()
        self.changes.note(node.name, "process_ended")
        self.kill(node.name)

    def revive(self) -> None:
        """Undo everything: heal links and disks, resume the paused, start the dead."""
        ill = [node.name for node in self.nodes.values() if node.machine.faults.any]
        self.changes.note(
            "",
            "healed",
            links="broken" if self.fabric.broken else "well",
            broken_disks=" ".join(ill) or "none",
        )
        self.fabric.heal_all()
        for node in self.nodes.values():
            node.machine.faults.full = False
            node.machine.faults.slow_s = 0.0
            node.machine.faults.sync_errors = 0
            node.machine.faults.write_errors = 0
            node.machine.faults.read_errors = 0
            node.machine.faults.lying = False
            node.machine.faults.no_descriptors = False
            if node.kind == "client":
                continue
            self.resume(node.name)
            self.power_on(node.name)
            self.start(node.name)

    # Links

    def cut(self, one: str, other: str, direction: str = "both") -> None:
        source, target = self.nodes[one].host, self.nodes[other].host
        if direction in ("both", "out"):
            self.fabric.cut(source, target)
        if direction in ("both", "in"):
            self.fabric.cut(target, source)

    def isolate(self, name: str, direction: str = "both") -> None:
        """Cut a node off from all others, clients included."""
        for other in self.nodes:
            if other != name:
                self.cut(name, other, direction)

    # Clients

    def client(self, name: str) -> tuple[Node, SimEnv]:
        """A machine for a client; run its code by ``inside``."""
        number = len(self.of("client")) + 1
        node = self._add(name, "client", f"127.0.3.{number}")
        node.life = self.loop.new_life(name)
        node.state = "up"
        node.env = self._env(node)
        return node, node.env

    def inside(self, node: Node, work: Coroutine[Any, Any, T], *, name: str = "work") -> asyncio.Task[T]:
        """Run ``work`` as part of a node's process."""
        return self.loop.spawn(node.life, work, name=name)

    # Looking

    def status(self, name: str) -> dict[str, Any] | None:
        """What a serving node says of itself, or None when it cannot be asked."""
        node = self.nodes[name]
        return node.server.status() if node.running and node.server is not None else None

    def brokers(self, kind: str = "broker") -> dict[str, dict[str, Any]]:
        """The part of its status that tells where it stands, of every broker that can be asked."""
        return {
            node.name: standing(cast(Broker, node.server))
            for node in self.of(kind)
            if node.running and node.server is not None
        }

    def master(self) -> str | None:
        """The broker that acts as master in the newest epoch."""
        return master_of(self.brokers())

    def leader(self) -> str | None:
        """The NameServer whose Controller leads."""
        leading = []
        for node in self.of("namesrv"):
            if node.running and node.server is not None:
                raft = cast(_NameServerAndController, node.server).controller.raft
                if raft.is_leader:
                    leading.append((raft.term, node.name))
        return max(leading)[1] if leading else None

    def failed_controllers(self) -> list[Node]:
        """Those whose Controller takes no part any more: its disk refused."""
        return [
            node
            for node in self.of("namesrv")
            if node.running
            and node.server is not None
            and cast(_NameServerAndController, node.server).controller.raft.failed
        ]

    def unclean_elections(self) -> int:
        """How often the group's master was taken from outside of its rules, as far as a Controller knows."""
        counts = [0]
        for node in self.of("namesrv"):
            controller = (self.status(node.name) or {}).get("controller") or {}
            counts.append((controller.get("groups") or {}).get(GROUP, {}).get("uncleanElections", 0))
        return max(counts)

    def members(self) -> list[str]:
        """Names of the brokers in the SyncStateSet, as the acting master has it."""
        return members_of(self.brokers())

    def observe(self) -> Mapping[str, dict[str, Any]]:
        """Note what every broker says of itself, and return it for the first group."""
        self._note_standing(self.beside, self.brokers(NEIGHBOUR))
        statuses = self.brokers()
        self._note_standing(self.history, statuses)
        return statuses

    def _note_standing(self, history: History, statuses: Mapping[str, dict[str, Any]]) -> None:
        now = self.clock()
        for name, status in statuses.items():
            self.changes.has_id(name, status["brokerId"])
            history.add(
                Observed(
                    now,
                    name,
                    self.nodes[name].starts,
                    status["role"],
                    status["epoch"],
                    readable(status["confirmOffset"], status["dispatchedOffset"]),
                    status["maxOffset"],
                )
            )

    def well(self, statuses: Mapping[str, dict[str, Any]]) -> bool:
        """Whether nothing is broken, and all brokers are members again."""
        return (
            all(node.state == "up" and not node.machine.faults.any for node in self.nodes.values())
            and not self.fabric.broken
            and self._incomplete(statuses) is None
            and self.leader() is not None
        )

    def serving(self, statuses: Mapping[str, dict[str, Any]]) -> tuple[str, int] | None:
        """The master and its epoch, when it lacks nothing: no more is broken than that others were killed, or
        in a neighbour's group."""
        master = master_of(statuses)
        nodes = [node for node in self.nodes.values() if node.kind != NEIGHBOUR]
        able = (
            master is not None
            and all(node.state in ("up", "down") and not node.stopping for node in nodes)
            and not any(node.machine.faults.any for node in nodes)
            and sum(node.running for node in self.of("namesrv")) * 2 > len(self.of("namesrv"))
            and not self.fabric.broken
            and self.leader() is not None
        )
        return (master, int(statuses[master]["epoch"])) if able and master is not None else None

    @property
    def silent(self) -> bool:
        """Whether somebody waits for one that says nothing, or late: that ends by a timeout."""
        return self.fabric.broken or any(node.state in ("paused", "off") for node in self.nodes.values())

    def registered(self) -> set[int]:
        """Ids of the brokers that the Controllers' leader knows; none without a leader."""
        leader = self.leader()
        status = (self.status(leader) if leader is not None else None) or {}
        groups = (status.get("controller") or {}).get("groups") or {}
        return {int(broker_id) for broker_id in groups.get(GROUP, {}).get("brokers", ())}

    def starts_known(self, node: Node) -> int:
        """The last start of a broker's disk that a living Controller knows of; 0: none."""
        found = [0]
        for other in self.of("namesrv"):
            if other.running and other.server is not None:
                groups = cast(_NameServerAndController, other.server).controller._table.groups
                replicas = groups[GROUP].replicas.values() if GROUP in groups else ()
                found += [one.starts for one in replicas if one.address.startswith(f"{node.host}:")]
        return max(found)

    def shape(self, statuses: Mapping[str, dict[str, Any]]) -> object:
        """Who lives and in which role; equal while nothing but logs changes."""
        return (
            [node.state for node in self.nodes.values()],
            [(name, s["role"], s["epoch"], s["syncStateSet"]) for name, s in statuses.items()],
            self.leader(),
        )

    def complete(self, kind: str = "broker") -> str | None:
        """None when all brokers are members; else what is missing."""
        return self._incomplete(self.brokers(kind), kind)

    def _incomplete(self, statuses: Mapping[str, dict[str, Any]], kind: str = "broker") -> str | None:
        missing = [node.name for node in self.of(kind) if node.name not in statuses]
        if missing:
            return f"{', '.join(missing)} not serving"
        if master_of(statuses) is None:
            return "no master"
        members = members_of(statuses)
        outside = [name for name in statuses if name not in members]
        if outside:
            return f"{', '.join(outside)} not in the SyncStateSet"
        return None

    def converged(self) -> str | None:
        """None when all brokers are members and have confirmed and dispatched all; else what is missing."""
        statuses = self.brokers()
        missing = self._incomplete(statuses)
        if missing is not None:
            return missing
        ends = {
            name: (s["maxOffset"], s["confirmOffset"], s["dispatchedOffset"]) for name, s in statuses.items()
        }
        if len({offset for offsets in ends.values() for offset in offsets}) > 1:
            return f"offsets (end, confirmed, dispatched) are {ends}"
        return None

    def damaged(self) -> str | None:
        """None when no log has bytes that cannot be read; else the brokers whose log has."""
        found = [
            node.name
            for node in (*self.of("broker"), *self.of("learner"))
            if node.running and cast(Broker, node.server).store.damage.ranges
        ]
        return " ".join(found) or None

    async def until(self, what: Callable[[], str | None], timeout_s: float) -> str | None:
        """Wait until ``what`` returns None; its last reason when that took longer than ``timeout_s``."""
        until = self.loop.time() + timeout_s
        while True:
            reason = what()
            if reason is None or self.loop.time() >= until:
                return reason
            await asyncio.sleep(0.05)

    def chance(self, name: str) -> random.Random:
        """A random source of its own for one purpose: one more draw elsewhere changes nothing here."""
        return random.Random(f"{name}:{self.seed}")

    def close(self) -> None:
        self.loop.close()


def _hand_out_secret(env: SimEnv, path: str) -> None:
    """What an operator did before the first start: the same file on all brokers, and synced."""
    if path and not env.disk.exists(path):
        file = env.disk.open(path, create=True)
        file.pwrite(HA_SECRET, 0)
        file.sync()
        env.disk.sync_dir("/")
