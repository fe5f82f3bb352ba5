"""The real rocketmq-proxy in cluster mode before either system, and the gRPC clients that go through it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from admin.local.layout import free_base_port
from chaos.worlds import rocketmq
from tests.interop.conftest import go_built, mqadmin_all

HERE: Final = Path(__file__).parent
DRIVERS: Final = HERE / "grpc"
PYTHON_CLIENT: Final = "5.1.2"
JAVA_CLIENT: Final = "5.2.0"
NODE_CLIENT: Final = "1.0.8"
STARTS: Final = 4
"""A proxy gives up when its first look at a topic takes 3 s, as on a busy machine it does."""

BROKER: Final = {"recallMessageEnable": "true", "transactionTimeOut": 2000, "transactionCheckInterval": 1000}
REAL_BROKER: Final = {**BROKER, "timerWheelEnable": "true", "transactionOpBatchInterval": 200}
JAVA_OPENS: Final = tuple(
    f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")
)
PROXY: Final = {
    "rocketMQClusterName": "DefaultCluster",
    "proxyMode": "cluster",
    # So that a test need not wait: messages may come again, and producers are told of, within a second.
    "minInvisibleTimeMillsForRecv": 1000,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 500,
    "transactionHeartbeatPeriodSecond": 1,
}
TYPES: Final = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "trans": "TRANSACTION"}


def _run(*words: str, timeout_s: float = 600) -> None:
    """Skips with the last words of what could not be installed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        pytest.skip(f"{words[0]} could not install it: {(done.stdout + done.stderr)[-500:]}")


def _jars(pom: str, home: Path, version: str) -> Path:
    """The jars that a file of Maven's names, from Maven Central; skips with the reason."""
    if not (home / "complete").exists():
        if shutil.which("mvn") is None:
            pytest.skip(f"needs Maven on PATH to fetch {home.name} once")
        goal = (rocketmq.COPY_JARS, f"-DoutputDirectory={home / 'lib'}")
        _run("mvn", "-q", "-B", "-f", str(HERE / "java" / pom), *goal)
        (home / "complete").write_text(version)
    return home / "lib"


def proxy_jars() -> Path:
    home = rocketmq.home().with_name(f"rocketmq-proxy-{rocketmq.VERSION}")
    return _jars("proxy_pom.xml", home, rocketmq.VERSION)


def python_driver() -> list[str]:
    """The official Python client in a virtual environment of its own."""
    home = rocketmq.home().with_name(f"rocketmq-python-client-{PYTHON_CLIENT}")
    if not (home / "complete").exists():
        _run(sys.executable, "-m", "venv", str(home))
        _run(str(home / "bin/pip"), "install", "-q", f"rocketmq-python-client=={PYTHON_CLIENT}")
        (home / "complete").write_text(PYTHON_CLIENT)
    return [str(home / "bin/python"), str(DRIVERS / "driver.py")]


def java_driver() -> list[str]:
    home = rocketmq.home().with_name(f"rocketmq-client-java-{JAVA_CLIENT}")
    path = f"{_jars('grpc_pom.xml', home, JAVA_CLIENT)}/*"
    source = DRIVERS / "Driver.java"
    classes = home / hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    if not classes.exists():
        new = classes.with_suffix(f".{os.getpid()}")
        _run(*rocketmq.JAVAC, "-cp", path, "-d", str(new), str(source))
        new.rename(classes)
    options = ("-Xmx256m", *rocketmq.PLAIN.split())
    return ["java", *options, "-cp", f"{path}{os.pathsep}{classes}", "Driver"]


def go_driver() -> list[str]:
    """The official Go client; it speaks TLS unless told."""
    return ["env", "rocketmq.client.enableSsl=false", str(go_built(DRIVERS / "go", "grpc-go-driver"))]


def node_driver() -> list[str]:
    home = rocketmq.home().with_name(f"rocketmq-client-nodejs-{NODE_CLIENT}")
    if not (home / "complete").exists():
        if shutil.which("node") is None or shutil.which("npm") is None:
            pytest.skip("needs Node and npm on PATH")
        home.mkdir(parents=True, exist_ok=True)
        wanted = f"rocketmq-client-nodejs@{NODE_CLIENT}"
        _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), wanted)
        (home / "complete").write_text(NODE_CLIENT)
    return ["env", f"NODE_PATH={home / 'node_modules'}", "node", str(DRIVERS / "driver.cjs")]


def prepare(namesrv: str, scratch: Path, *prefixes: str) -> None:
    """The topics, of each type one, and the groups that the drivers with these prefixes use."""
    cluster = "-c DefaultCluster"
    said = mqadmin_all(
        namesrv,
        scratch,
        f"updateTopic {cluster} -t DefaultHeartBeatSyncerTopic -r 1 -w 1",
        *(
            f"updateTopic {cluster} -t {prefix}{kind} -r 2 -w 2 -a +message.type={type_}"
            for prefix in prefixes
            for kind, type_ in TYPES.items()
        ),
        *(
            f"updateSubGroup {cluster} -g {prefix}{group} -o {order}"
            for prefix in prefixes
            for group, order in (("simple", "false"), ("push", "false"), ("order", "true"))
        ),
    )
    assert all("success" in one for one in said), said


@contextmanager
def proxy_before(namesrv: str, directory: Path) -> Iterator[str]:
    """A proxy before the system at ``namesrv``; yields its endpoint."""
    jars = proxy_jars()
    port = free_base_port(4)
    directory.mkdir(parents=True, exist_ok=True)
    conf = directory / "proxy.json"
    own = {"namesrvAddr": namesrv, "grpcServerPort": port, "remotingListenPort": port + 1}
    conf.write_text(json.dumps({**PROXY, **own, "localServeAddr": "127.0.0.1"}))
    line = ["java", "-Xmx512m", *JAVA_OPENS, *rocketmq.PLAIN.split(), rocketmq.NO_TLS]
    line += [f"-Duser.home={directory}", "-cp", f"{jars}/*", "org.apache.rocketmq.proxy.ProxyStartup"]
    environment = {**os.environ, "RMQ_PROXY_HOME": str(directory), "ROCKETMQ_HOME": str(directory)}
    for _ in range(STARTS):
        with (directory / "out").open("wb") as out:
            process = subprocess.Popen([*line, "-pc", str(conf)], stdout=out, stderr=out, env=environment)
        try:
            if _started(process, directory / "out"):
                yield f"127.0.0.1:{port}"
                return
        finally:
            process.kill()
            process.wait(10)
    raise TimeoutError(f"the proxy did not start: {(directory / 'out').read_text()[-2000:]}")


def _started(process: subprocess.Popen[bytes], out: Path, timeout_s: float = 120) -> bool:
    """Is it up, or has it given up? Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if "startup successfully" in out.read_text(errors="replace"):
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    raise TimeoutError(f"the proxy is not up after {timeout_s:.0f} s")


def seen(driver: list[str], endpoint: str, prefix: str, scratch: Path) -> set[str]:
    """The lines a driver said, without ids."""
    scratch.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(scratch)}
    done = subprocess.run(
        [*driver, endpoint, prefix], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("DRIVER ")]
    return {
        re.sub(r"(__transactionId__:)\w+|DELAYED_AS:timer:\d+", r"\1", line).replace(
            "properties=-", "properties="
        )
        for line in lines
    }
