"""A group of brokers of both kinds as processes: started, killed and asked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from admin.local.layout import free_base_port, make_secret
from chaos.worlds import rocketmq
from client.admin import AdminClient, SyncState
from model.errors import MqError
from runtime.os_env import OsEnv
from tests import ROOT
from tests.interop.logs import end_of

if TYPE_CHECKING:
    from tests.interop.load import Load

GROUP: Final = "broker-a"
START_S: Final = 150.0
"""A JVM on a machine that is busy with others takes a minute."""
HEAP_MB: Final = 512
SEGMENT_BYTES: Final = 1024 * 1024
LEVEL_BYTES: Final = 64 * 1024
"""A log that lacks no more than this follows somebody."""

SAME_FILES: Final = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
BROKER: Final = {
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    **SAME_FILES,
}
REAL_BROKER: Final = {
    "brokerId": -1,
    "brokerRole": "SLAVE",
    # Looks every second instead of every five, so that a test need not wait; the HA link keeps its defaults.
    "brokerHeartbeatInterval": 500,
    "syncControllerMetadataPeriod": 2000,
    "checkSyncStateSetPeriod": 1000,
    "registerNameServerPeriod": 10000,
    # The time-out of a frozen broker; a killed one is noticed by its connection.
    "controllerHeartBeatTimeoutMills": 10000,
    **rocketmq.QUICK_BROKER,
}


class Server(Protocol):
    """A process, of either kind."""

    name: str
    config: dict[str, object]

    def start(self) -> None: ...
    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> None: ...
    def send_signal(self, number: int) -> None: ...
    def tail(self) -> str: ...


@dataclass
class KeelmqNode(rocketmq.ServerProcess):
    """One server of this checkout: its role on the command line and its settings."""

    name: str
    role: str
    directory: Path
    config: dict[str, object]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cli.main", self.role]
        for name, value in self.config.items():
            command += ["--set", f"{name}={value}"]
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )


_T = TypeVar("_T")


@dataclass
class MixedCluster:
    """NameServers with Controllers of one kind, and one group of brokers of any kinds."""

    directory: Path
    base_port: int = field(default_factory=partial(free_base_port, 200))
    servers: list[Server] = field(default_factory=list)
    brokers: list[Server] = field(default_factory=list)
    namesrvs: list[str] = field(default_factory=list)
    namesrvs_made: int = 0
    controllers: list[str] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    """Every load that was put on the group so far."""

    # --- what it consists of

    def _namesrv_ports(self, count: int) -> dict[str, int]:
        """Names and ports of the next ``count`` NameServers with Controllers."""
        first, self.namesrvs_made = self.namesrvs_made, self.namesrvs_made + count
        return {f"namesrv-{first + i}": self.base_port + 10 * (first + i) for i in range(count)}

    def add_keelmq_controllers(self, count: int) -> None:
        named = self._namesrv_ports(count)
        ports = list(named.values())
        make_secret(self._made("secret"))
        for i, (name, port) in enumerate(named.items()):
            config: dict[str, object] = {
                "listenPort": port,
                "enableControllerInNamesrv": "true",
                "controllerDLegerPeers": ";".join(f"n{j}-127.0.0.1:{p + 1}" for j, p in enumerate(ports)),
                "controllerDLegerSelfId": f"n{i}",
                "raftPeers": ";".join(f"n{j}-127.0.0.1:{p + 2}" for j, p in enumerate(ports)),
                "raftSecretFile": self._made("secret"),
                "controllerStorePath": self.directory / name / "raft",
            }
            self.servers.append(KeelmqNode(name, "namesrv", self.directory / name, config))
            self.namesrvs.append(f"127.0.0.1:{port}")
            self.controllers.append(f"127.0.0.1:{port + 1}")

    def add_real_controllers(self, count: int) -> None:
        named = self._namesrv_ports(count)
        ports = list(named.values())
        for i, (name, port) in enumerate(named.items()):
            node = rocketmq.namesrv_node(
                self.directory / name,
                port,
                enableControllerInNamesrv="true",
                controllerDLegerGroup="mixed",
                controllerDLegerPeers=";".join(f"n{j}-127.0.0.1:{p + 1}" for j, p in enumerate(ports)),
                controllerDLegerSelfId=f"n{i}",
                controllerStorePath=self.directory / name / "controller",
                mappedFileSize=SEGMENT_BYTES,
                scanNotActiveBrokerInterval=1000,
                scanInactiveMasterInterval=1000,
            )
            node.name, node.heap_mb = name, 256
            self.servers.append(node)
            self.namesrvs.append(f"127.0.0.1:{port}")
            self.controllers.append(f"127.0.0.1:{port + 1}")

    def add_broker(self, kind: str, **settings: object) -> Server:
        """``kind``: "real" or "keelmq". The ports follow from the number of brokers there are."""
        index = len(self.brokers)
        port = self.base_port + 102 + 10 * index
        where = self.directory / f"{kind}-{index}"
        common: dict[str, object] = {
            **BROKER,
            "controllerAddr": ";".join(self.controllers),
            "totalReplicas": 3,
        }
        node: Server
        if kind == "real":
            real = rocketmq.broker_node(
                where, port, ";".join(self.namesrvs), None, **{**common, **REAL_BROKER, **settings}
            )
            real.heap_mb = HEAP_MB
            node = real
        else:
            config: dict[str, object] = {
                **common,
                "brokerIP1": "127.0.0.1",
                "listenPort": port,
                "haListenPort": port + 1,
                "brokerName": GROUP,
                "namesrvAddr": ";".join(self.namesrvs),
                "storePathRootDir": where / "store",
                **settings,
            }
            node = KeelmqNode(where.name, "broker", where, config)
        node.name = where.name
        self.brokers.append(node)
        return node

    def _made(self, name: str) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory / name

    def store(self, broker: Server) -> Path:
        return self.directory / broker.name / "store"

    def stores(self) -> dict[str, Path]:
        return {broker.name: self.store(broker) for broker in self.brokers}

    def address(self, broker: Server) -> str:
        return f"127.0.0.1:{self.base_port + 102 + 10 * self.brokers.index(broker)}"

    def at(self, address: str | None) -> Server:
        return next(broker for broker in self.brokers if self.address(broker) == address)

    # --- life

    def start_controllers(self) -> None:
        for server in self.servers:
            server.start()
        self.wait(
            "a Controller that leads", lambda: self.asked(lambda a: a.controller_leader(self.controllers))
        )

    def start_brokers(self, brokers: Sequence[Server] | None = None) -> None:
        for broker in self.brokers if brokers is None else brokers:
            broker.start()

    def stop(self) -> None:
        for server in [*self.brokers, *self.servers]:
            server.send_signal(signal.SIGCONT)
            server.send_signal(signal.SIGTERM)
        for server in [*self.brokers, *self.servers]:
            server.stop(signal.SIGKILL)

    def wait(self, what: str, holds: Callable[[], object], timeout_s: float = START_S) -> float:
        """Seconds until ``holds``. Raises TimeoutError with what every process printed last."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > timeout_s:
                said = "\n".join(f"--- {s.name}\n{s.tail()}" for s in [*self.servers, *self.brokers])
                raise TimeoutError(f"waited {timeout_s:.0f} s for {what}; {self.describe()}\n{said}")
            time.sleep(0.2)
        return time.monotonic() - began

    # --- what it says of itself

    def asked(self, question: Callable[[AdminClient], asyncio.Future[_T] | object]) -> object | None:
        """The answer, or None while nobody answers."""

        async def ask() -> object:
            async with AdminClient(OsEnv(), self.namesrvs) as admin:
                return await question(admin)  # type: ignore[misc]

        try:
            return asyncio.run(ask())
        except (OSError, MqError):
            return None  # not there yet, or not any more: that is what is being waited for

    def state(self) -> SyncState | None:
        found = self.asked(lambda admin: admin.sync_state(self.controllers, [GROUP]))
        return found.get(GROUP) if isinstance(found, dict) else None

    def master(self) -> Server | None:
        state = self.state()
        return self.at(state.master_address) if state and state.master_address else None

    def id_of(self, broker: Server) -> int:
        state = self.state()
        assert state is not None
        everyone = {**state.in_sync, **state.not_in_sync}
        return next(i for i, address in everyone.items() if address == self.address(broker))

    def is_alive(self, broker_id: int) -> bool:
        """Whether the Controllers' leader takes the broker for alive."""
        state = self.state()
        return state is None or state.alive.get(broker_id, False)

    def is_full(self, count: int | None = None) -> bool:
        """Whether the SyncStateSet holds ``count`` brokers and every NameServer routes to the master."""
        state = self.state()
        if state is None or state.master_address is None:
            return False
        if len(state.in_sync) != (len(self.brokers) if count is None else count):
            return False
        try:
            return all(
                rocketmq.routed_brokers(server).get("0") == state.master_address for server in self.namesrvs
            )
        except OSError:
            return False

    def describe(self) -> str:
        routes = {}
        for server in self.namesrvs:
            try:
                routes[server] = rocketmq.routed_brokers(server)
            except OSError as error:
                routes[server] = {"error": str(error)}
        logs = {broker.name: end_of(self.store(broker)) for broker in self.brokers}
        state = self.state()
        text = f"state {state}, routes {routes}, logs {logs}"
        for address in state.not_in_sync.values() if state is not None else ():
            # Under load no two logs end at the same byte when they are looked at one after the other.
            name = self.at(address).name
            if max(logs.values()) - logs[name] <= LEVEL_BYTES:
                text += (
                    f"; {name} is level and not in the SyncStateSet: does it copy from a former master?"
                    " (docs/mixed-groups.md, the limits)"
                )
        return "\n".join([text, *self.masters_met()])

    def masters_met(self, count: int = 3) -> list[str]:
        """Which masters each real broker connected its HA link to last, as its store.log says."""
        found: list[str] = []
        for broker in self.brokers:
            path = self.directory / broker.name / "logs" / "rocketmqlogs" / "store.log"
            if path.exists():
                lines = path.read_text(errors="replace").splitlines()
                met = [line for line in lines if "connect to master" in line or "master ha address" in line]
                found += [f"{broker.name}: {line}" for line in met[-count:]]
        return found

    def said_by_real(self, broker: Server) -> list[str]:
        """The log lines of a real broker; none of one of ours."""
        logs = (self.directory / broker.name / "logs" / "rocketmqlogs").glob("*.log")
        return [line for path in sorted(logs) for line in path.read_text(errors="replace").splitlines()]

    def strays(self) -> list[Server]:
        """Real brokers outside of the SyncStateSet whose HA link goes to another broker than the master."""
        state = self.state()
        if state is None or state.master_address is None:
            return []
        host, _, port = state.master_address.rpartition(":")
        right = f"connect to master {host}:{int(port) + 1}"
        found = []
        for address in state.not_in_sync.values():
            broker = self.at(address)
            met = [line for line in self.said_by_real(broker) if " connect to master " in line]
            if met and right not in met[-1]:
                found.append(broker)
        return found

    def ends(self) -> list[int]:
        return [end_of(self.store(broker)) for broker in self.brokers]

    def wait_level(self) -> int:
        """Wait until every log ends at the same offset; returns it."""
        self.wait("logs of one length", lambda: len(set(self.ends())) == 1)
        return self.ends()[0]


@contextmanager
def running(cluster: MixedCluster) -> Iterator[MixedCluster]:
    """``cluster`` with its Controllers started; whatever runs is ended afterwards."""
    try:
        cluster.start_controllers()
        yield cluster
    finally:
        cluster.stop()
