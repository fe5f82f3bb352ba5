"""A group of brokers of both kinds as processes: started, killed, asked, and its logs compared."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from admin.layout import free_base_port, make_secret
from chaos.worlds import rocketmq
from client.admin import AdminClient, SyncState
from client.message import Message, Queue, SendStatus
from client.producer import Producer
from client.pull import PullConsumer
from model.errors import MqError
from remoting.bodies import dumps, loads
from remoting.codes import Request
from runtime.os_env import OsEnv
from store.record import decode, measure
from tests.interop.conftest import ROOT

GROUP: Final = "broker-a"
TOPIC: Final = "MixedTopic"
QUEUES: Final = 4
READERS: Final = "mixed-readers"
START_S: Final = 150.0
"""A JVM on a machine that is busy with others takes a minute."""
HEAP_MB: Final = 512
SEGMENT_BYTES: Final = 1024 * 1024
STRAY_S: Final = 60.0
"""Longer than a real slave needs to find the new master, unless it has gone astray."""
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
    base_port: int = field(default_factory=partial(free_base_port, 150))
    servers: list[Server] = field(default_factory=list)
    brokers: list[Server] = field(default_factory=list)
    namesrvs: list[str] = field(default_factory=list)
    controllers: list[str] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    """Every load that was put on the group so far."""

    # --- what it consists of

    def add_keelmq_controllers(self, count: int) -> None:
        ports = [self.base_port + 10 * i for i in range(count)]
        make_secret(self._made("secret"))
        for i, port in enumerate(ports):
            name = f"namesrv-{i}"
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
        ports = [self.base_port + 10 * i for i in range(count)]
        for i, port in enumerate(ports):
            name = f"namesrv-{i}"
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
                where, port, ";".join(self.namesrvs), None, **common, **REAL_BROKER, **settings
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
            met = [line for line in said_by_real(self, broker) if " connect to master " in line]
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


# --- logs on disk

_RECORD_SIZE = struct.Struct(">i")


def read_log(store: Path) -> tuple[int, bytes]:
    """The first offset of a CommitLog and its bytes up to the last whole record."""
    files = sorted(path for path in (store / "commitlog").glob("*") if path.name.isdigit())
    if not files:
        return 0, b""
    begin = int(files[0].name)
    data = b"".join(path.read_bytes() for path in files)
    at = 0
    while at < len(data):
        if _RECORD_SIZE.unpack_from(data, at)[0] == 0:
            break
        step = measure(data, at, begin + at)
        if step == 0:
            break
        at += abs(step)
    return begin, data[:at]


def end_of(store: Path) -> int:
    begin, data = read_log(store)
    return begin + len(data)


def messages_of(store: Path, topic: str = TOPIC) -> dict[tuple[int, int], bytes]:
    """(queue, queue offset) -> body of every message of ``topic`` in the log."""
    begin, data = read_log(store)
    found: dict[tuple[int, int], bytes] = {}
    at = 0
    while at < len(data):
        step = measure(data, at, begin + at)
        if step > 0:
            record = decode(data, at)
            if record.topic == topic:
                place = (record.queue_id, record.queue_offset)
                assert place not in found, f"queue offset {place} was given twice"
                found[place] = bytes(record.body)
        at += abs(step)
    return found


def assert_same_logs(cluster: MixedCluster) -> int:
    """All logs are byte-identical; returns their length in bytes."""
    logs = {broker.name: read_log(cluster.store(broker)) for broker in cluster.brokers}
    (first, (begin, data)), *others = logs.items()
    for name, (other_begin, other) in others:
        assert other_begin == begin, f"{name} begins at {other_begin}, {first} at {begin}"
        if other != data:
            at = next((i for i, (a, b) in enumerate(zip(data, other, strict=False)) if a != b), -1)
            raise AssertionError(
                f"{name} ({len(other)} bytes) and {first} ({len(data)} bytes) differ from {begin + at}"
            )
    return len(data)


# --- clients


class Load:
    """Sends one message after the other from a thread, and remembers what was acknowledged, and when."""

    def __init__(self, cluster: MixedCluster, per_second: float = 100.0) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.doubled: list[tuple[int, int]] = []
        self.acked_at: list[float] = []
        self.failed: list[str] = []
        self._cluster = cluster
        self._pause_s = 1 / per_second
        self._stop = threading.Event()
        self._hold = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self._error: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is sent, and no send is on its way."""
        self._hold.set()
        try:
            assert self._held.wait(60), "a send is not over"
            yield
        finally:
            self._hold.clear()
            self._held.clear()

    def wait_for(self, count: int, timeout_s: float = 60.0) -> None:
        """Until ``count`` more messages are acknowledged."""
        wanted = len(self.acked) + count
        self._cluster.wait(
            f"{count} more acknowledged messages (failures: {self.failed[-3:]})",
            lambda: len(self.acked) >= wanted,
            timeout_s,
        )

    async def _run(self) -> None:
        try:
            async with Producer(OsEnv(), "mixed", self._cluster.namesrvs, poll_ms=500) as producer:
                number = 0
                while not self._stop.is_set():
                    if self._hold.is_set():
                        self._held.set()
                        await asyncio.sleep(self._pause_s)
                        continue
                    await self._one(producer, number)
                    number += 1
                    await asyncio.sleep(self._pause_s)
        except BaseException as error:
            self._error = error
            raise

    async def _one(self, producer: Producer, number: int) -> None:
        body = f"mixed {number} ".encode() * 20
        queue = Queue(TOPIC, GROUP, number % QUEUES)
        try:
            result = await producer.send(Message(topic=TOPIC, body=body), queue=queue)
        except MqError as error:
            self.failed.append(str(error))
            return
        if result.status is not SendStatus.SEND_OK:
            self.failed.append(str(result.status))
            return
        place = (result.queue.queue_id, result.queue_offset)
        if place in self.acked:
            self.doubled.append(place)
        self.acked[place] = body
        self.acked_at.append(time.monotonic())


def assert_nothing_acked_is_gone(cluster: MixedCluster, loads: Sequence[Load]) -> int:
    """Every acknowledged message lies in the logs at the place the producer was told; returns how many."""
    acked: dict[tuple[int, int], bytes] = {}
    for load in loads:
        assert not load.doubled, f"acknowledged twice with different messages: {load.doubled}"
        assert not acked.keys() & load.acked.keys()
        acked |= load.acked
    stored = messages_of(cluster.store(cluster.brokers[0]))
    gone = [place for place, body in acked.items() if stored.get(place) != body]
    assert not gone, f"{len(gone)} of {len(acked)} acknowledged messages are gone: {gone[:5]}"
    return len(acked)


def unserved(cluster: MixedCluster) -> list[tuple[int, int]]:
    """The places of acknowledged messages that a consumer does not get from the master, asked alone."""
    doubled = [place for load in cluster.loads for place in load.doubled]
    assert not doubled, f"acknowledged twice with different messages, one of which is gone: {doubled}"
    acked = {place: body for load in cluster.loads for place, body in load.acked.items()}

    async def read() -> dict[tuple[int, int], bytes]:
        async with PullConsumer(OsEnv(), READERS, cluster.namesrvs) as consumer:
            queues = await consumer.queues(TOPIC)
            found = [message for queue in queues for message in await consumer.read_all(queue)]
        return {(message.queue.queue_id, message.queue_offset): message.body for message in found}

    try:
        served = asyncio.run(read())
    except (OSError, MqError):
        return list(acked)
    return [place for place, body in acked.items() if served.get(place) != body]


# --- the story every set-up has to live through


def start_group(cluster: MixedCluster, leader: str, others: str, count: int, **settings: object) -> None:
    """The first broker to start leads the first epoch; ``settings`` are for the others."""
    first = cluster.add_broker(leader)
    cluster.start_brokers([first])
    slaves = [cluster.add_broker(others, **settings) for _ in range(count)]
    cluster.wait(f"{first.name} to lead", lambda: cluster.is_full(1))
    cluster.start_brokers(slaves)
    cluster.wait("a full SyncStateSet", cluster.is_full)


def kill_the_master(
    cluster: MixedCluster, leader: Server | None = None, heirs: Sequence[Server] | None = None
) -> tuple[Server, Server]:
    """Kill -9 the master (``leader``, when given) under load; another one serves. Returns (the killed one,
    its successor).

    The SyncStateSet is full before, and ``leader`` leads: a machine that stood still for seconds may have
    changed both.
    """
    with Load(cluster) as load:
        load.wait_for(100)
        cluster.wait("a full SyncStateSet", cluster.is_full)
        if leader is not None and cluster.master() is not leader:
            elect(cluster, leader)
        before = cluster.state()
        assert before is not None
        killed = cluster.at(before.master_address)
        killed.stop(signal.SIGKILL)
        cluster.wait("another master", lambda: cluster.master() not in (None, killed))
        load.wait_for(100, START_S)
    after = cluster.state()
    assert after is not None
    assert after.epoch > before.epoch
    successor = cluster.at(after.master_address)
    assert successor in (cluster.brokers if heirs is None else heirs)
    cluster.loads.append(load)
    return killed, successor


def rejoin(cluster: MixedCluster, killed: Server) -> None:
    """The killed broker comes back under load, and the SyncStateSet is full again."""
    with Load(cluster) as load:
        killed.start()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        load.wait_for(50)
    cluster.loads.append(load)


def assert_all_is_well(cluster: MixedCluster) -> None:
    """The SyncStateSet is full, the logs are the same bytes, and nothing acknowledged is gone."""
    cluster.wait("a full SyncStateSet", cluster.is_full)
    cluster.wait_level()
    assert assert_same_logs(cluster) > 0
    assert assert_nothing_acked_is_gone(cluster, cluster.loads) > 0
    for broker in cluster.brokers:
        unknown = [line for line in said_by_real(cluster, broker) if "not supported" in line]
        assert not unknown, f"{broker.name}: {unknown[:5]}"


def said_by_real(cluster: MixedCluster, broker: Server) -> list[str]:
    """The log lines of a real broker; none of one of ours."""
    logs = (cluster.directory / broker.name / "logs" / "rocketmqlogs").glob("*.log")
    return [line for path in sorted(logs) for line in path.read_text(errors="replace").splitlines()]


def put_load(cluster: MixedCluster, count: int) -> None:
    """Send until ``count`` messages are acknowledged."""
    with Load(cluster) as load:
        load.wait_for(count)
    cluster.loads.append(load)


def copy_tables(cluster: MixedCluster) -> None:
    """Give the master a topic, a group and a consumer offset, and wait until every broker has them."""
    state = cluster.state()
    assert state is not None
    assert state.master_address is not None
    master = state.master_address
    put_load(cluster, 40)
    offset = {"consumerGroup": READERS, "topic": TOPIC, "queueId": "1", "commitOffset": "5"}

    async def give(admin: AdminClient) -> bool:
        await admin.create_topic("MixedTables", 6)
        group = {"groupName": READERS, "consumeEnable": True, "retryQueueNums": 1}
        await admin.session.call(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(group))
        await admin.session.call(master, Request.UPDATE_CONSUMER_OFFSET, offset)
        return True

    assert cluster.asked(give)
    for broker in cluster.brokers:
        cluster.wait(f"the tables on {broker.name}", partial(has_tables, cluster, broker))


def has_tables(cluster: MixedCluster, broker: Server) -> bool:
    """Whether ``broker`` holds what ``copy_tables`` gave to the master."""
    address = cluster.address(broker)
    topics = loads(rocketmq.call(address, Request.GET_ALL_TOPIC_CONFIG)[1])["topicConfigTable"]
    groups = loads(rocketmq.call(address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)[1])
    offsets = loads(rocketmq.call(address, Request.GET_ALL_CONSUMER_OFFSET)[1])["offsetTable"]
    return (
        topics.get("MixedTables", {}).get("writeQueueNums") == 6
        and READERS in groups["subscriptionGroupTable"]
        and offsets.get(f"{TOPIC}@{READERS}", {}).get("1") == 5
    )


def hand_over(cluster: MixedCluster, heir: Server) -> None:
    """electMaster for ``heir`` under load, as an operator would ask for it; it serves afterwards.

    A real master that is deposed may answer OK to what no other broker has: a put that passed the check of
    the role before the change, and looks at the role again after it, waits for nobody (CommitLog's
    needHandleHA). Its producers pause, as docs/mixed-groups.md tells operators.
    """
    deposed = cluster.master()
    with Load(cluster) as load:
        load.wait_for(20)
        with nullcontext() if isinstance(deposed, KeelmqNode) else load.paused():
            elect(cluster, heir)
        load.wait_for(50, START_S)
    cluster.loads.append(load)


def elect(cluster: MixedCluster, heir: Server) -> None:
    """electMaster for ``heir``; returns when it leads and the SyncStateSet is full again."""
    broker_id = cluster.id_of(heir)

    def leads() -> bool:
        # Again when it was refused or its answer was lost: only a member of the SyncStateSet is elected.
        cluster.asked(lambda admin: admin.elect(cluster.controllers, "DefaultCluster", GROUP, broker_id))
        return cluster.master() is heir

    cluster.wait(f"{heir.name} to lead", leads)
    try:
        cluster.wait("a full SyncStateSet", cluster.is_full, STRAY_S)
    except TimeoutError:
        strays = cluster.strays()
        if not strays:
            raise
        # What docs/mixed-groups.md advises: a real slave may copy from the former real master for good.
        for broker in strays:
            broker.stop()
            broker.start()
        cluster.wait("a full SyncStateSet", cluster.is_full)
