"""What does a local cluster consist of, and what stands in its state file?

    DIR/cluster.json    this layout, with the pid each server had when it was started
    DIR/conf/NAME.conf  what each server was started with, and what it changed since
    DIR/log/NAME.log    what each server printed
    DIR/store/NAME      a broker's store          DIR/raft/NAME   a Controller's journal
    DIR/raft.secret     what the Controllers prove to each other that they belong together (mode 0600)

Ports from ``base_port`` on: NameServer i has 10 (requests, Controller, Raft, HTTP), broker j has 10 behind
all NameServers (fast requests, 2 above it requests, HA, HTTP).
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from model.errors import ConfigError
from model.settings import parse_file

STATE_FILE: Final = "cluster.json"
DRILL_FILE: Final = "chaos.json"
"""What a drill that works on this cluster has to undo: it stands here as long as there is something."""
VERSION: Final = 1
CLUSTER: Final = "DefaultCluster"
HOST: Final = "127.0.0.1"
PORTS_EACH: Final = 10
BASE_PORT_MIN: Final = 20_000
BASE_PORT_MAX: Final = 32_000
"""Below the range most systems give to outgoing connections, which could take a port of ours meanwhile."""

CLAIM_S: Final = 30.0
"""Servers listen within so long, and their ports are seen to be taken."""
BROKER_DEFAULTS: Final = {
    # A local cluster comes and goes: small files, so that three stores fit anywhere and start at once.
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 30_000),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}


PLACES: Final = frozenset(
    {
        *("bindAddress", "brokerIP1", "listenPort", "haListenPort", "adminPort", "brokerClusterName"),
        *("brokerName", "storePathRootDir", "controllerStorePath", "controllerDLegerPeers"),
        *("controllerDLegerSelfId", "raftPeers"),
    }
)
"""Keys that say where and who a server is: the state file does, for all who look for it."""


class NoCluster(ConfigError):
    """A directory holds no cluster of ``keelmq cluster up``."""


@dataclass(slots=True)
class Node:
    """One server. ``index`` counts within its role and group; ``base_port`` is the first of its ports.

    ``host``: where it listens; ``admin_host``: where its status does. ``own``: keys of its configuration
    alone. ``written``: what its file held when it was started; ``kept``: what was changed in there since, by
    the server (``updateBrokerConfig``) or a person. ``wrap``: a command that is put before its own, and execs
    it (``nsenter``, ``env``). ``code``: a folder with another release, whose server it is; "": this one.
    """

    name: str
    role: str
    index: int
    base_port: int
    group: str = ""
    pid: int | None = None
    host: str = HOST
    admin_host: str = HOST
    own: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    wrap: list[str] = field(default_factory=list)
    code: str = ""
    seat: str = ""
    """Where the Controller is that has this one's id now (``keelmq controller replace``); "": here."""
    seat_raft: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.base_port + (2 if self.role == 'broker' else 0)}"

    @property
    def controller_address(self) -> str:
        return self.seat or f"{self.host}:{self.base_port + 1}"

    @property
    def raft_address(self) -> str:
        return self.seat_raft or f"{self.host}:{self.base_port + 2}"

    @property
    def ha_port(self) -> int:
        return self.base_port + 3

    @property
    def admin_port(self) -> int:
        return self.base_port + (4 if self.role == "broker" else 3)

    @property
    def controller_id(self) -> str:
        return f"n{self.index}"

    def ports(self) -> list[int]:
        return list(range(self.base_port, self.base_port + 5))


@dataclass(slots=True)
class Layout:
    """A local cluster: its servers, and the ``--set`` values they are started with, by role."""

    nodes: list[Node]
    base_port: int
    controllers: int
    groups: int
    brokers: int
    settings: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def make(
        cls, *, controllers: int = 3, groups: int = 1, brokers: int = 3, base_port: int | None = None
    ) -> Self:
        """``brokers``: per group. Without ``base_port`` a range is chosen in which every port is free."""
        span = (controllers + groups * brokers) * PORTS_EACH
        base = free_base_port(span) if base_port is None else base_port
        nodes = [Node(f"namesrv-{i}", "namesrv", i, base + i * PORTS_EACH) for i in range(controllers)]
        at = base + controllers * PORTS_EACH
        for group in map(group_name, range(groups)):
            for index in range(brokers):
                nodes.append(Node(f"{group}-{index}", "broker", index, at, group))
                at += PORTS_EACH
        return cls(nodes, base, controllers, groups, brokers)

    @property
    def namesrvs(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "namesrv"]

    @property
    def broker_nodes(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "broker"]

    @property
    def group_names(self) -> list[str]:
        return list(dict.fromkeys(node.group for node in self.broker_nodes))

    def node(self, name: str) -> Node:
        """Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def give_seat(self, controller_id: str, address: str, raft_address: str) -> None:
        """Another machine has this id of the Controllers from now on. Raises KeyError."""
        for node in self.namesrvs:
            if node.controller_id == controller_id:
                node.seat = node.seat_raft = ""
                if (address, raft_address) != (node.controller_address, node.raft_address):
                    node.seat, node.seat_raft = address, raft_address
                return
        raise KeyError(controller_id)

    def add_settings(self, texts: Sequence[str]) -> None:
        """Take ``broker.KEY=V`` and ``namesrv.KEY=V``. Raises ConfigError for anything else."""
        for text in texts:
            name, separator, value = text.partition("=")
            role, dot, key = name.strip().partition(".")
            if not (separator and dot and key) or role not in ("broker", "namesrv"):
                raise ConfigError(f"--set {text!r}: expected broker.KEY=VALUE or namesrv.KEY=VALUE")
            self.settings.setdefault(role, {})[key] = value.strip()
            for node in self.nodes:
                if node.role == role:
                    node.kept.pop(key, None)

    def conf(self, node: Node, directory: Path) -> dict[str, str]:
        """RocketMQ keys and texts ``node`` is started with. Raises ConfigError."""
        if self.groups > 1 and self.settings.get("broker", {}).get("groupAddress"):
            raise ConfigError("groupAddress is one group's own: with several groups give each its own file")
        own = self._broker(node, directory) if node.role == "broker" else self._namesrv(node, directory)
        if node.admin_host != HOST:
            own["adminAddress"] = node.admin_host
        return {**own, **self.settings.get(node.role, {}), **node.kept, **node.own}

    def _namesrv(self, node: Node, directory: Path) -> dict[str, str]:
        servers = self.namesrvs
        alone = {
            "bindAddress": node.host,
            "listenPort": str(node.base_port),
            "adminPort": str(node.admin_port),
        }
        if node.seat:
            return alone  # its Controller is elsewhere: two would have one id
        return {
            **alone,
            "enableControllerInNamesrv": "true",
            "controllerDLegerPeers": ";".join(f"{n.controller_id}-{n.controller_address}" for n in servers),
            "controllerDLegerSelfId": node.controller_id,
            "raftPeers": ";".join(f"{n.controller_id}-{n.raft_address}" for n in servers),
            "raftSecretFile": str(directory / "raft.secret"),
            "controllerStorePath": str(directory / "raft" / node.name),
        }

    def _broker(self, node: Node, directory: Path) -> dict[str, str]:
        return {
            "bindAddress": node.host,
            "brokerIP1": node.host,
            "listenPort": str(node.base_port + 2),
            "haListenPort": str(node.ha_port),
            "adminPort": str(node.admin_port),
            "brokerClusterName": CLUSTER,
            "brokerName": node.group,
            "namesrvAddr": ";".join(n.address for n in self.namesrvs),
            "enableControllerMode": "true",
            "controllerAddr": ";".join(n.controller_address for n in self.namesrvs),
            "totalReplicas": str(self.brokers),
            "storePathRootDir": str(directory / "store" / node.name),
            **BROKER_DEFAULTS,
        }

    def to_json(self) -> dict[str, Any]:
        found = {"version": VERSION, "cluster": CLUSTER, **asdict(self)}
        for node in found["nodes"]:
            for name in ("seat", "seat_raft"):
                if not node[name]:
                    del node[name]  # an older release reads this file, too
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Raises ConfigError."""
        try:
            if data["version"] != VERSION:
                raise ConfigError(f"cluster file has version {data['version']}, expected {VERSION}")
            nodes = [Node(**node) for node in data["nodes"]]
            counts = {name: int(data[name]) for name in ("base_port", "controllers", "groups", "brokers")}
            settings = {str(role): dict(values) for role, values in data["settings"].items()}
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ConfigError(f"not a cluster file: {error!r}") from None
        return cls(nodes, settings=settings, **counts)


def changed_in(path: Path, written: dict[str, str]) -> dict[str, str]:
    """What stands in the file of a server otherwise than it was ``written`` for its start; of one that was
    never started, nothing. Raises ConfigError."""
    if not written:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return {k: v for k, v in parse_file(str(path), text).items() if written.get(k) != v}


def group_name(index: int) -> str:
    """broker-a, broker-b, ... broker-z, broker-27, ..."""
    return f"broker-{chr(ord('a') + index)}" if index < 26 else f"broker-{index + 1}"


def load(directory: Path) -> Layout:
    """Raises NoCluster, or another ConfigError for a file that is none of ours."""
    text = read(directory)
    if text is None:
        raise NoCluster(f"{directory} holds no cluster: start one with keelmq cluster up --dir {directory}")
    return parse(text, directory)


def no_drill(directory: Path) -> None:
    """Raises ConfigError where a drill has something to undo: who heals after it ends the servers there."""
    if (directory / DRILL_FILE).exists():
        raise ConfigError(
            f"{directory}: a drill works there, or was killed: keelmq drill heal {directory} first, "
            "or use another --dir"
        )


def read(directory: Path) -> str | None:
    """The text of the state file; None: there is none. Raises ConfigError."""
    path = directory / STATE_FILE
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str, directory: Path) -> Layout:
    """What ``read`` found. Raises ConfigError."""
    path = directory / STATE_FILE
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a cluster file")
    return Layout.from_json(data)


def save(layout: Layout, directory: Path) -> str:
    """Write the state file; returns its text."""
    text = json.dumps(layout.to_json(), indent=2) + "\n"
    replace(directory / STATE_FILE, text)
    return text


def replace(path: Path, text: str) -> None:
    """At once: a reader sees the former text or the new one. Its owner alone may read it: keys of servers,
    secrets among them, stand in the state file, too."""
    # A name of its own: with a common one two commands would write into one file, or take away the other's.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def make_secret(path: Path) -> None:
    """Create the Controllers' shared secret unless it is there; only its owner may read it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")


def free_base_port(span: int) -> int:
    """A port from which on ``span`` ports are free now, and given to nobody else for ``CLAIM_S`` as long as
    this process lives. Raises ConfigError after many tries."""
    chance = random.Random()
    for _ in range(200):
        base = chance.randrange(BASE_PORT_MIN, BASE_PORT_MAX - span, PORTS_EACH)
        if all(is_free(port) for port in range(base, base + span)) and _claim(base, span):
            return base
    raise ConfigError(f"found no {span} free ports in a row: give --base-port")


_claims: Final[list[tuple[float, socket.socket]]] = []
"""When each claim ends, by ``time.monotonic``, and what holds it."""


def _claim(base: int, span: int) -> bool:
    """Two clusters that are made in the same moment would both find the ports free. So the last port of
    each ``PORTS_EACH``, which no server listens at, is bound: only one can, and it ends with its process."""
    now_s = time.monotonic()
    while _claims and _claims[0][0] < now_s:
        _claims.pop(0)[1].close()
    mine: list[socket.socket] = []
    try:
        for first in range(base, base + span, PORTS_EACH):
            mine.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            mine[-1].bind((HOST, first + PORTS_EACH - 1))
    except OSError:
        for claim in mine:
            claim.close()
        return False
    _claims.extend((now_s + CLAIM_S, claim) for claim in mine)
    return True


def is_free(port: int) -> bool:
    """Whether nobody listens there. What a connection that ended holds is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
