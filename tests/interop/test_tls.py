"""The promise to users of RocketMQ's TLS: the unmodified clients of 4.9 and 5.x and mqadmin are taken and
refused by keelmq as by the real broker, also while a master dies; and keelmq's client by the real one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from admin.local.cluster import LocalCluster
from chaos.worlds import rocketmq
from client.admin import AdminClient
from client.consuming.pull import PullConsumer
from client.message import Message, SendStatus
from client.sending.producer import Producer
from model.errors import MqError
from runtime.os_env import OsEnv
from runtime.tls.network import TlsNetwork
from runtime.tls.state import TlsState
from tests.interop import shared_classes
from tests.interop.conftest import begin_mqadmin, beside, end_mqadmin, facts
from tests.interop.real_tls import java_options, real_servers
from tests.live.commands import keelmq
from tests.tls.secured import Secured, secured_cluster, wait

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC = "Tls"
VERSIONS = ("5.5", "4.9")
COUNT = 2000
"""Messages of a client during a failover: enough that it still sends when the master dies."""
JAVA = Path(__file__).parent / "java"


class Side(Protocol):
    """Servers that enforce TLS and want certificates, keelmq's or RocketMQ's."""

    @property
    def namesrv(self) -> str: ...
    @property
    def certs(self) -> Path: ...
    def said(self) -> str:
        """What its servers logged."""


@dataclass
class Ours:
    cluster: Secured

    @property
    def certs(self) -> Path:
        return self.cluster.certs

    @property
    def namesrv(self) -> str:
        layout = LocalCluster.open(self.cluster.directory / "c").layout
        return ";".join(node.address for node in layout.namesrvs)

    def said(self) -> str:
        return self.cluster.logs()


@dataclass
class Real:
    directory: Path
    certs: Path
    namesrv: str

    def said(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.directory.rglob("*.log"))


@pytest.fixture(scope="module")
def client49(real_rocketmq: Path) -> Path:
    """The jars of the client of 4.9."""
    library = rocketmq.home().with_name("rocketmq-client-4.9.7")
    if not (library / "complete").exists():
        library.mkdir(parents=True, exist_ok=True)
        goal = ("mvn", "-q", "-B", "-f", str(JAVA / "client49_pom.xml"), rocketmq.COPY_JARS)
        done = subprocess.run(
            [*goal, f"-DoutputDirectory={library}"], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (library / "complete").touch()
    return library


@pytest.fixture(scope="module")
def ours(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    with secured_cluster(tmp_path_factory.mktemp("ours")) as cluster:
        side = Ours(cluster)
        create_topic(side)
        yield side


@pytest.fixture(scope="module")
def real(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    directory = tmp_path_factory.mktemp("real")
    certs = directory / "certs"
    for made in (("ca",), ("server", "node", "--host", "127.0.0.1"), ("client", "shop")):
        assert keelmq("certs", *made, "--dir", certs).returncode == 0
    file = directory / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\n"
        "tls.server.need.client.auth=require\n"
        "tls.server.authClient=true\n"
        f"tls.server.keyPath={certs}/node.key\n"
        f"tls.server.certPath={certs}/node.pem\n"
        f"tls.server.trustCertPath={certs}/ca.pem\n"
        "tls.client.authServer=true\n"
        f"tls.client.keyPath={certs}/node.key\n"
        f"tls.client.certPath={certs}/node.pem\n"
        f"tls.client.trustCertPath={certs}/ca.pem\n"
    )
    options = shared_classes.quick(f"-Dtls.server.mode=enforcing -Dtls.config.file={file}")
    with real_servers(directory, options) as namesrv:
        side = Real(directory, certs, namesrv)
        create_topic(side)
        yield side


def client_env(side: Side) -> OsEnv:
    """Of a keelmq client with its certificate."""
    values = {
        "tls.enable": "true",
        "tls.client.trustCertPath": f"{side.certs}/ca.pem",
        "tls.client.certPath": f"{side.certs}/shop.pem",
        "tls.client.keyPath": f"{side.certs}/shop.key",
    }
    return OsEnv(network=TlsNetwork(TlsState(values)))


def create_topic(side: Side) -> None:
    async def create() -> None:
        async with AdminClient(client_env(side), side.namesrv) as admin:
            for _ in range(60):
                try:
                    await admin.create_topic(TOPIC, 4)
                    if (await admin.route(TOPIC)).masters():
                        return
                except (MqError, OSError):
                    pass
                await asyncio.sleep(1)
            raise TimeoutError(f"no topic at {side.namesrv}")

    asyncio.run(create())


def properties(certs: Path, *, shows: bool = True, ca: Path | None = None) -> list[str]:
    """What a user of RocketMQ's client says on its command line."""
    found = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(ca or certs / "ca.pem"),
    }
    if shows:
        found |= {"tls.client.certPath": f"{certs}/shop.pem", "tls.client.keyPath": f"{certs}/shop.key"}
    return [f"-D{name}={value}" for name, value in found.items()]


def command(version: str, library: Path, scratch: Path, tls: list[str], *arguments: str) -> list[str]:
    classes = rocketmq.compile_java(JAVA / "TlsDriver.java")
    line = rocketmq.java("TlsDriver", *arguments, classes=classes, user_home=scratch, heap_mb=256)
    if version == "4.9":
        line[line.index("-cp") + 1] = f"{library}/*{os.pathsep}{classes}"
        line = [word for word in line if not word.startswith("-XX:SharedArchiveFile=")]
    return [line[0], *tls, *line[1:]]


def drive(
    version: str, library: Path, scratch: Path, tls: list[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    line = command(version, library, scratch, tls, *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=240)


ORACLE = pytest.param("real", marks=pytest.mark.oracle)


@pytest.fixture(params=["ours", ORACLE])
def side(request: pytest.FixtureRequest) -> Side:
    found: Side = request.getfixturevalue(request.param)
    return found


@pytest.mark.covers("TLS with a certificate of the client", client="Java 5.5.0, Java 4.9.7", sides="both")
@pytest.mark.parametrize("version", ["5.5", pytest.param("4.9", marks=pytest.mark.more)])
def test_a_client_with_a_certificate_sends_and_reads(
    side: Side, client49: Path, tmp_path: Path, version: str
) -> None:
    tls = properties(side.certs)
    sent = drive(version, client49, tmp_path, tls, "send", side.namesrv, TOPIC, "20", "30")
    assert sent.returncode == 0, sent.stdout[-3000:] + sent.stderr[-3000:]
    group = "tls_group_" + version.replace(".", "_")
    read = drive(version, client49, tmp_path, tls, "read", side.namesrv, TOPIC, "20", group)
    assert read.returncode == 0, read.stdout[-3000:] + read.stderr[-3000:]


REFUSED = (
    ("ours", "5.5", "plain"),
    ("ours", "5.5", "a stranger's client"),
    ("ours", "4.9", "no certificate"),
    pytest.param("ours", "5.5", "no certificate", marks=pytest.mark.more),
    pytest.param("ours", "5.5", "a stranger's authority", marks=pytest.mark.more),
    pytest.param("ours", "4.9", "plain", marks=pytest.mark.more),
    pytest.param("real", "5.5", "plain", marks=pytest.mark.oracle),
    pytest.param("real", "5.5", "a stranger's client", marks=pytest.mark.oracle),
)
"""A JVM each: of sixteen cases, all of which were seen, those that tell the most."""


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of another authority."""
    directory = tmp_path_factory.mktemp("strangers")
    for made in (("ca",), ("client", "shop")):
        assert keelmq("certs", *made, "--dir", directory).returncode == 0
    return directory


@pytest.mark.covers(
    "TLS: another authority, an expired certificate or none", client="Java 5.5.0, Java 4.9.7", sides="both"
)
@pytest.mark.parametrize(("side", "version", "who"), REFUSED, indirect=["side"])
def test_whoever_is_not_of_the_authority_sends_nothing(
    side: Side, client49: Path, strangers: Path, tmp_path: Path, version: str, who: str
) -> None:
    tls: list[str] = []
    if who == "no certificate":
        tls = properties(side.certs, shows=False)
    elif who == "a stranger's authority":
        tls = properties(side.certs, ca=strangers / "ca.pem")
    elif who == "a stranger's client":
        tls = properties(strangers, ca=side.certs / "ca.pem")
    done = drive(version, client49, tmp_path, tls, "send", side.namesrv, TOPIC, "1", "0")
    assert done.returncode == 2, done.stdout[-3000:] + done.stderr[-3000:]
    assert facts(done.stdout, "failed"), done.stdout
    assert not facts(done.stdout, "sent")


class Sending:
    """A client of one version that sends COUNT messages to ``topic``, each until it is acknowledged."""

    def __init__(self, side: Side, client49: Path, scratch: Path, version: str) -> None:
        self.version = version
        self.topic = "TlsFailover" + version.replace(".", "")
        tls = properties(side.certs)
        line = command(version, client49, scratch, tls, "send", side.namesrv, self.topic, str(COUNT), "60")
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._said: list[str] = []
        self._reading = threading.Thread(target=self._collect)
        self._reading.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        self._said.extend(self.process.stdout)

    def sent(self) -> list[str]:
        return [fact["key"] for fact in facts("".join(self._said), "sent")]

    def text(self) -> str:
        return "".join(self._said)

    def close(self) -> None:
        self.process.kill()
        self._reading.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.more
@pytest.mark.covers("TLS over a failover", client="Java 5.5.0, Java 4.9.7", sides="keelmq")
def test_clients_go_on_over_tls_when_the_master_dies(ours: Ours, client49: Path, tmp_path: Path) -> None:
    """Both versions at once: one master's death for both."""
    for version in VERSIONS:
        topic = "TlsFailover" + version.replace(".", "")
        assert ours.cluster.run("topic", "create", topic, "--queues", "4").returncode == 0
    former = ours.cluster.master()
    flows = [Sending(ours, client49, tmp_path / version, version) for version in VERSIONS]
    try:
        wait("the first sends", lambda: all(len(flow.sent()) > 100 for flow in flows), 60)
        local = LocalCluster.open(ours.cluster.directory / "c")
        node = next(node for node in local.layout.broker_nodes if node.address == former)
        assert node.pid is not None
        os.kill(node.pid, signal.SIGKILL)
        assert all(len(flow.sent()) < COUNT for flow in flows), "it died too late"
        for flow in flows:
            assert flow.process.wait(120) == 0, flow.text()[-3000:]
    finally:
        for flow in flows:
            flow.close()
    assert ours.cluster.run("cluster", "up").returncode == 0
    assert ours.cluster.master() != former
    for flow in flows:
        assert set(flow.sent()) == {f"tls-{number}" for number in range(COUNT)}, flow.version

    def read(flow: Sending) -> subprocess.CompletedProcess[str]:
        words = ("read", ours.namesrv, flow.topic, str(COUNT), flow.topic)
        return drive(flow.version, client49, tmp_path, properties(ours.certs), *words)

    for read_back in beside(*(partial(read, flow) for flow in flows)):
        assert read_back.returncode == 0, read_back.stdout[-2000:]


def mqadmin(side: Side, scratch: Path, options: list[str], *commands: str) -> subprocess.Popen[str]:
    """Begins these commands in one JVM."""
    with java_options(shared_classes.quick(" ".join(options))):
        return begin_mqadmin(side.namesrv, scratch, *commands)


@pytest.mark.covers("TLS: the tool", client="mqadmin 5.5.0", sides="both")
def test_mqadmin_works_over_tls_and_not_without(side: Side, tmp_path: Path) -> None:
    refused = mqadmin(side, tmp_path / "plain", [], "clusterList")
    made = "updateTopic -c DefaultCluster -t TlsAdmin"
    works = mqadmin(side, tmp_path / "tls", properties(side.certs), "clusterList", made)
    clusters, topic = end_mqadmin(works, 2)
    assert "broker-a" in clusters
    assert "success" in topic
    [said] = end_mqadmin(refused, 1)
    assert "broker-a" not in said
    assert "Exception" in said


@pytest.mark.covers("TLS: send and read", client="keelmq", sides="both")
def test_keelmqs_client_sends_and_reads(side: Side) -> None:
    async def work() -> None:
        env = client_env(side)
        async with Producer(env, "tls_keelmq", side.namesrv) as producer:
            found = [await producer.send(Message(topic=TOPIC, body=b"%d" % n)) for n in range(20)]
            assert {one.status for one in found} == {SendStatus.SEND_OK}
        async with PullConsumer(env, "tls_keelmq_read", side.namesrv) as consumer:
            seen = 0
            for queue in await consumer.queues(TOPIC):
                seen += await consumer.max_offset(queue)
            assert seen >= 20
        plain = OsEnv()
        async with AdminClient(plain, side.namesrv) as admin:
            with pytest.raises((MqError, OSError)):
                await admin.cluster_info()

    asyncio.run(work())


@pytest.mark.covers("TLS: what is refused is in the log", client="any", sides="both")
def test_what_is_refused_is_in_the_log(side: Side) -> None:
    said = side.said()
    if isinstance(side, Ours):
        assert "it begins without TLS, and tls.server.mode=enforcing here: dial with TLS" in said
        assert "it shows no certificate" in said
    else:
        assert "insecure connection while this server is running in SSL enforcing mode" in said
