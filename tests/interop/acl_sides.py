"""One broker with ACL and its NameServer, of keelmq or of the real RocketMQ, and the official clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from admin.local.layout import free_base_port
from chaos.worlds import rocketmq
from tests.interop import shared_classes
from tests.interop.mixed import KeelmqNode, Server

T = TypeVar("T")
HERE: Final = Path(__file__).parent
OLD: Final = "4.9.7"
"""The last version with ACL 1.0 alone whose servers are in Maven Central."""
PROVIDERS: Final = {
    f"{kind}MetadataProvider": f"org.apache.rocketmq.auth.{kind}.provider.Local{kind.title()}MetadataProvider"
    for kind in ("authentication", "authorization")
}
ALICE: Final = "alice alice-secret"
ROOT_KEY: Final = ("rootroot", "root-secret")
INNER: Final = ("inner-servers", "inner-secret-of-servers")
ACL_2: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT_KEY[0], "password": ROOT_KEY[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]}),
    **PROVIDERS,
}


def old_library() -> Path:
    """The jars of 4.9; skips with the reason where they cannot be had."""
    reason = rocketmq.unavailable()
    if reason:
        pytest.skip(reason)
    home = rocketmq.home().parent / f"rocketmq-{OLD}"
    if not (home / "complete").exists():
        if shutil.which("mvn") is None:
            pytest.skip("needs Maven on PATH to fetch RocketMQ 4.9 once")
        home.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [
                *("mvn", "-q", "-B", "-f", str(HERE / "java" / "rocketmq49_pom.xml")),
                "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
                f"-DoutputDirectory={home / 'lib'}",
            ],
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode != 0:
            pytest.skip(f"Maven could not fetch RocketMQ {OLD}: {done.stdout[-500:]}")
        (home / "complete").write_text(OLD)
    return home / "lib"


def compiled(source: str, library: Path) -> Path:
    """The classes of a Java file of these tests, compiled against the jars in ``library``."""
    target = library.parent / "classes" / source
    stamp, text = target / ".source", (HERE / "java" / f"{source}.java").read_bytes()
    if not stamp.exists() or stamp.read_bytes() != text:
        target.mkdir(parents=True, exist_ok=True)
        path = str(HERE / "java" / f"{source}.java")
        command = [*rocketmq.JAVAC, "-cp", f"{library}/*", "-d", str(target), path]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        stamp.write_bytes(text)
    return target


def java(library: Path, main: str, *words: str, home: Path, heap_mb: int = 256) -> list[str]:
    """A JVM of ``library`` with its ROCKETMQ_HOME in ``home``."""
    classes = compiled(main, library) if (HERE / "java" / f"{main}.java").exists() else None
    # The archive holds classes of the other version's jars alone.
    options = shared_classes.quick() if library == rocketmq.fetch() else rocketmq.PLAIN
    return [
        *("java", f"-Xmx{heap_mb}m", "-XX:-UseLargePages", *options.split()),
        *(
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
        ),
        *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"),
        *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",),
        *("-Dtls.server.mode=disabled", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"),
        *(f"-Drocketmq.client.logRoot={home}/logs", "-Drocketmq.client.logUseSlf4j=false"),
        *("-cp", f"{library}/*" + (f":{classes}" if classes else ""), main, *words),
    ]


@dataclass
class Side:
    """A NameServer and one broker, of one kind."""

    kind: str
    directory: Path
    namesrv: str
    broker: str
    servers: list[Server]

    def home(self, key: tuple[str, str] | None) -> Path:
        """A ROCKETMQ_HOME whose tools sign with ``key``."""
        home = self.directory / f"home-{key[0] if key else 'none'}"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")  # 4.9 needs one
        if key is not None:
            (home / "conf" / "tools.yml").write_text(f"accessKey: {key[0]}\nsecretKey: {key[1]}\n")
        return home

    def mqadmin(self, library: Path, *commands: str, key: tuple[str, str] | None = ROOT_KEY) -> list[str]:
        """What mqadmin printed for each of ``commands``; BROKER stands for the broker's address."""
        words: list[str] = []
        for command in commands:
            words += [*(["--"] if words else []), *command.replace("BROKER", self.broker).split()]
        line = java(library, "AdminDriver", *words, home=self.home(key))
        done = subprocess.run(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            env={**os.environ, "NAMESRV_ADDR": self.namesrv},
        )
        said = ("\n" + done.stdout).split("\nADMIN ")[1:]
        assert len(said) == len(commands), done.stdout[-3000:]
        return [one.replace(self.broker, "BROKER") for one in said]

    def drive(self, library: Path, *commands: str, timeout_s: float = 240) -> list[dict[str, str]]:
        """What the client of ``library`` saw of each command (AclDriver)."""
        done = subprocess.run(
            self.driver(library, *commands), capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return self.seen(done.stdout)

    def driver(self, library: Path, *commands: str, options: Sequence[str] = ()) -> list[str]:
        """``options``: more of the JVM's."""
        words: list[str] = []
        for command in commands:
            words += [*(["--"] if words else []), *command.split()]
        line = java(library, "AclDriver", self.namesrv, *words, home=self.directory / "driver")
        return [line[0], *options, *line[1:]]

    def seen(self, output: str) -> list[dict[str, str]]:
        found = []
        for line in output.splitlines():
            words = line.split(" ")
            if words[0] == "DRIVER":
                facts = dict(word.partition("=")[::2] for word in words[2:])
                found.append({"verb": words[1], **{k: self._plain(v) for k, v in facts.items()}})
        return found

    def _plain(self, text: str) -> str:
        return urllib.parse.unquote_plus(text).replace(self.broker, "BROKER")


def _answers(address: str) -> bool:
    rocketmq.call(address, 106)
    return True


@contextmanager
def keelmq_side(directory: Path, **config: Any) -> Iterator[Side]:
    port = free_base_port(20)
    namesrv, broker = f"127.0.0.1:{port}", f"127.0.0.1:{port + 12}"
    servers: list[Server] = [
        KeelmqNode("namesrv", "namesrv", directory / "namesrv", {"listenPort": port}),
        KeelmqNode(
            "broker",
            "broker",
            directory / "broker",
            {
                "listenPort": port + 12,
                "brokerId": 0,
                "brokerRole": "ASYNC_MASTER",
                "namesrvAddr": namesrv,
                "storePathRootDir": directory / "broker" / "store",
                "mappedFileSizeCommitLog": 1 << 20,
                **config,
            },
        ),
    ]
    with _running(Side("keelmq", directory, namesrv, broker, servers)) as side:
        yield side


@contextmanager
def real_side(directory: Path, **config: Any) -> Iterator[Side]:
    """RocketMQ 5.5."""
    port = free_base_port(20)
    namesrv, broker = f"127.0.0.1:{port}", f"127.0.0.1:{port + 12}"
    own = {**rocketmq.QUICK_BROKER, **PATIENT, "mappedFileSizeCommitLog": 1 << 20, **config}
    servers: list[Server] = [
        rocketmq.namesrv_node(directory / "namesrv", port),
        rocketmq.broker_node(directory / "broker", port + 12, namesrv, **own),
    ]
    with _running(Side("real", directory, namesrv, broker, servers)) as side:
        yield side


PATIENT: Final = {"waitTimeMillsInSendQueue": 30_000}
"""By default a request that waited 200 ms is answered "busy", as most are on a busy machine."""


class OldNode(rocketmq.ServerProcess):
    """One JVM of RocketMQ 4.9; ``conf`` of its home may hold plain_acl.yml."""

    def __init__(
        self, name: str, main: str, directory: Path, library: Path, config: dict[str, object]
    ) -> None:
        self.name = name
        self.directory = directory
        self.process = None
        self._main = main
        self._library = library
        self.config = config

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        conf = self.directory / "node.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self.config.items()))
        command = java(self._library, self._main, "-c", str(conf), home=self.directory, heap_mb=1024)
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def old_side(directory: Path, library: Path, plain: str, **config: Any) -> Iterator[Side]:
    """RocketMQ 4.9 with ACL 1.0."""
    port = free_base_port(20)
    namesrv, broker = f"127.0.0.1:{port}", f"127.0.0.1:{port + 12}"
    home = directory / "broker"
    for path in (home / "conf", directory / "namesrv" / "conf"):
        path.mkdir(parents=True, exist_ok=True)
        for name in ("broker", "namesrv"):
            (path / f"logback_{name}.xml").write_text("<configuration/>")
    (home / "conf" / "plain_acl.yml").write_text(plain)
    own: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        **PATIENT,
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": port + 12,
        "namesrvAddr": namesrv,
        "storePathRootDir": home / "store",
        "storePathCommitLog": home / "store" / "commitlog",
        "mappedFileSizeCommitLog": 1 << 20,
        "rocketmqHome": home,
        "aclEnable": "true",
        **config,
    }
    names: dict[str, object] = {
        "listenPort": port,
        "rocketmqHome": directory / "namesrv",
        "kvConfigPath": directory / "namesrv" / "kv.json",
        "configStorePath": directory / "namesrv" / "namesrv.properties",
    }
    servers: list[Server] = [
        OldNode(
            "namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", directory / "namesrv", library, names
        ),
        OldNode("broker", "org.apache.rocketmq.broker.BrokerStartup", home, library, own),
    ]
    with _running(Side("old", directory, namesrv, broker, servers)) as side:
        yield side


@contextmanager
def _running(side: Side) -> Iterator[Side]:
    try:
        for server, address in zip(side.servers, (side.namesrv, side.broker), strict=True):
            server.start()
            try:
                rocketmq.wait_until(f"{server.name} to answer", lambda a=address: _answers(a), 120)  # type: ignore[misc]
            except TimeoutError:
                raise AssertionError(f"{server.name}: {server.tail()}") from None
        registered = lambda: bool(rocketmq.routed_brokers(side.namesrv))  # noqa: E731
        rocketmq.wait_until("the broker to be routed", registered, 60)
        yield side
    finally:
        for server in reversed(side.servers):
            server.stop(signal.SIGKILL)


def all_of(seen: Sequence[dict[str, str]], *keys: str) -> list[tuple[str, ...]]:
    return [tuple(fact.get(key, "") for key in keys) for fact in seen]
