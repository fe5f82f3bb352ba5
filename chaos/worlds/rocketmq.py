"""How the real RocketMQ runs beside us: jars from Maven Central, one JVM per node, all on loopback.

It is the oracle of ``tests/interop`` and the other side of every comparison in ``bench`` and ``drill --target
rocketmq``. Needs Java 11+ and Maven once (to fetch); ``unavailable()`` says what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from remoting import bodies

VERSION: Final = "5.5.0"
_JAVA_OPENS: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
SERIAL: Final = "-XX:-UseG1GC -XX:+UseSerialGC"
"""A collector without threads of its own, for small heaps."""
PLAIN: Final = f"-XX:TieredStopAtLevel=1 {SERIAL}"
"""Where servers live for seconds or do little: the costly compiler does not pay off. Never where speed is
compared."""
JAVAC: Final = ("javac", *(f"-J{option}" for option in PLAIN.split()), "-nowarn", "-proc:none")
"""One file in half the CPU time."""
NO_TLS: Final = "-Dtls.server.mode=disabled"
"""A certificate for TLS that nobody speaks takes a server 3 s of CPU at every start."""
JAVA_OPTIONS: Final = "KEELMQ_ROCKETMQ_JAVA_OPTIONS"
# For a broker of that kind: no table of timers to look through at the start (1 s), and a thread that spins
# for this long before it sleeps for as long, at the end too, spins for half a second instead of ten.
QUICK_BROKER: Final[dict[str, Any]] = {"timerWheelEnable": "false", "transactionMetricFlushInterval": 500}
BROKER_HEAP_MB: Final = 1024
HASH_DIGITS: Final = 16
"""Of its source's SHA-256, in the name of a folder of classes."""
COPY_JARS: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def home() -> Path:
    """Where the jars are kept between runs: ``KEELMQ_ROCKETMQ_HOME`` or the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("KEELMQ_ROCKETMQ_HOME") or f"{cache}/keelmq/rocketmq-{VERSION}")


def unavailable() -> str | None:
    """What this machine lacks to run the real RocketMQ, or None."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        return "needs a JDK (java and javac on PATH)"
    if not _fetched() and shutil.which("mvn") is None:
        return "needs Maven on PATH to fetch RocketMQ once"
    return None


def _fetched() -> bool:
    return (home() / "complete").exists()


def fetch() -> Path:
    """Copy the jars into ``home()/lib`` unless they are there. Raises RuntimeError with Maven's words."""
    library = home() / "lib"
    if _fetched():
        return library
    library.mkdir(parents=True, exist_ok=True)
    pom = Path(__file__).with_name("rocketmq_pom.xml")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), COPY_JARS, f"-DoutputDirectory={library}"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"Maven could not fetch RocketMQ {VERSION}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    (home() / "complete").write_text(VERSION)
    return library


def compile_java(source: Path) -> Path:
    """Compile one Java file against the jars; returns the directory of its classes, which nobody writes to
    any more: each source has its own. Raises RuntimeError with javac's words."""
    text = source.read_bytes()
    target = home() / "classes" / f"{source.stem}-{hashlib.sha256(text).hexdigest()[:HASH_DIGITS]}"
    if target.is_dir():
        return target
    library = fetch()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as name:
        # What is compiled is what was hashed, whoever writes to the source meanwhile.
        own, draft = Path(name, source.name), Path(name, "classes")
        own.write_bytes(text)
        draft.mkdir()
        done = subprocess.run(
            [*JAVAC, "-cp", f"{library}/*", "-d", str(draft), str(own)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            raise RuntimeError(f"javac {source.name}: {done.stderr[-2000:]}")
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same
                raise
    return target


def java(
    main: str,
    *arguments: str,
    classes: Path | None = None,
    user_home: Path,
    heap_mb: int = 512,
    options: str = "",
) -> list[str]:
    """The command line of a JVM with the jars on its class path and its logs under ``user_home``.

    ``KEELMQ_ROCKETMQ_JAVA_OPTIONS`` in the environment adds options: tests have their own.
    """
    path = f"{fetch()}/*" + (f"{os.pathsep}{classes}" if classes else "")
    return [
        "java",
        f"-Xms{min(heap_mb, 128)}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseG1GC",
        "-XX:-UseLargePages",
        "-XX:MaxDirectMemorySize=512m",
        *_JAVA_OPENS,
        *shlex.split(options),
        *shlex.split(os.environ.get(JAVA_OPTIONS, "")),
        f"-Duser.home={user_home}",
        f"-Drocketmq.home.dir={user_home}",
        f"-Drocketmq.client.logRoot={user_home}/logs",
        "-cp",
        path,
        main,
        *arguments,
    ]


def described() -> dict[str, Any]:
    """Which RocketMQ, and how it runs: for results that compare with it."""
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60).stderr
    options = os.environ.get(JAVA_OPTIONS, "")
    return {
        "version": VERSION,
        "java": told.partition("\n")[0],
        "broker_heap_mb": BROKER_HEAP_MB,
        "options": options,
    }


def mqadmin(
    namesrv: str, *arguments: str, user_home: Path, timeout_s: float = 180
) -> subprocess.CompletedProcess[str]:
    """Run the real mqadmin against ``namesrv`` and return what it printed."""
    command = java(
        "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, user_home=user_home, heap_mb=256
    )
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)


def call(
    address: str, code: int, ext: Mapping[str, object] | None = None, timeout_s: float = 3.0
) -> tuple[dict[str, Any], bytes]:
    """One blocking request with a JSON header -> (header, body). Raises OSError."""
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "language": "JAVA",
            "opaque": 1,
            "version": 479,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": {name: str(value) for name, value in (ext or {}).items()},
        }
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as link:
        link.settimeout(timeout_s)
        link.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        with link.makefile("rb") as stream:
            head = stream.read(8)
            if len(head) < 8:
                raise ConnectionError(f"{address} closed without an answer")
            total, header_bytes = struct.unpack(">II", head)
            rest = stream.read(total - 4)
    header_bytes &= 0xFFFFFF
    return json.loads(rest[:header_bytes]), rest[header_bytes:]


class ServerProcess:
    """A server in its own directory, with its output in the file ``out`` there: how it is ended and read."""

    directory: Path
    process: subprocess.Popen[bytes] | None

    def send_signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> None:
        if self.process is None:
            return
        self.send_signal(signal.SIGCONT)
        self.send_signal(number)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None

    def tail(self) -> str:
        out = self.directory / "out"
        return out.read_text(errors="replace")[-3000:] if out.exists() else ""


@dataclass
class Node(ServerProcess):
    """One JVM: its configuration, output and process."""

    name: str
    main: str
    directory: Path
    config: dict[str, object]
    heap_mb: int = 512
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        conf = self.directory / "node.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self.config.items()))
        command = java(self.main, "-c", str(conf), user_home=self.directory, heap_mb=self.heap_mb)
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def wait_until(what: str, holds: Callable[[], bool], timeout_s: float) -> None:
    """Poll ``holds`` until it is true; raises TimeoutError naming ``what``. Connection errors count as no."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except (OSError, ValueError, KeyError):
            pass  # not listening yet: that is what is being waited for
        time.sleep(0.1)
    raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")


def namesrv_node(directory: Path, port: int, **config: object) -> Node:
    """A real NameServer (and, with ``enableControllerInNamesrv``, a Controller)."""
    own = {
        "listenPort": port,
        "bindAddress": "127.0.0.1",
        "rocketmqHome": directory,
        "kvConfigPath": f"{directory}/kv.json",
        "configStorePath": f"{directory}/namesrv.properties",
    }
    return Node("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", directory, {**own, **config})


def broker_node(
    directory: Path, port: int, namesrv: str, store: Path | None = None, **config: object
) -> Node:
    """A real broker on ``port`` (HA one above, fast listener two below)."""
    root = store or directory / "store"
    own = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": namesrv,
        "storePathRootDir": root,
        "storePathCommitLog": f"{root}/commitlog",
        "flushDiskType": "ASYNC_FLUSH",
        "autoCreateTopicEnable": "true",
        "rocketmqHome": directory,
    }
    return Node(
        "broker",
        "org.apache.rocketmq.broker.BrokerStartup",
        directory,
        {**own, **config},
        heap_mb=BROKER_HEAP_MB,
    )


def routed_brokers(namesrv: str, group: str = "broker-a") -> dict[str, str]:
    """broker id -> address of ``group`` as a NameServer has it; empty when unknown. Raises OSError."""
    _, body = call(namesrv, 106)
    table = bodies.loads(body, bodies.BELIEVED)["brokerAddrTable"] if body else {}
    return {str(k): v for k, v in table.get(group, {}).get("brokerAddrs", {}).items()}
