"""What the JVMs of these tests load at their start, read and checked once for all of them.

A client of RocketMQ takes a second of CPU before it does something, most of it for thousands of classes
from 137 jars. With an archive of these (class data sharing of the JVM) it takes 0.6 s. A JVM that the archive
does not fit (another JDK, other jars) starts without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from admin.local.layout import free_base_port
from chaos.worlds import rocketmq
from chaos.worlds.rocketmq import NO_TLS, PLAIN, SERIAL

JAVA = Path(__file__).parent / "java"


def quick(tls: str = NO_TLS) -> str:
    """Options of a JVM that lives for seconds, with the archive; whoever asks first makes it."""
    return f"{PLAIN} -XX:SharedArchiveFile={_archive()} -Xlog:cds=off -Xlog:class+path=off {tls}"


def _archive() -> Path:
    """The file; it is missing only when it could not be made: its log then says why."""
    java = Path(os.path.realpath(shutil.which("java") or "java"))
    marks = [(path, path.stat().st_mtime_ns) for path in (java, rocketmq.home() / "complete")]
    name = hashlib.sha256(repr(marks).encode()).hexdigest()[:12]
    directory = rocketmq.home() / "shared-classes"
    directory.mkdir(parents=True, exist_ok=True)
    archive, log = directory / f"{name}.jsa", directory / f"{name}.log"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            log.write_text(_dump(_classes(directory / "made"), archive))
    return archive


def _dump(classes: Path, archive: Path) -> str:
    new = archive.with_suffix(".new")
    options = ("-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={new}")
    command = ["java", *options, *SERIAL.split(), "-cp", f"{rocketmq.fetch()}/*"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        new.replace(archive)
    return done.stdout + done.stderr


def _classes(directory: Path) -> Path:
    """The list of what a NameServer, a broker, mqadmin and a client load."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    port = free_base_port(20)
    namesrv = f"127.0.0.1:{port}"
    servers = [
        rocketmq.namesrv_node(directory / "namesrv", port),
        rocketmq.broker_node(directory / "broker", port + 10, namesrv, **rocketmq.QUICK_BROKER),
    ]
    try:
        for server in servers:
            with _listing(directory / f"{server.name}.classes"):
                server.start()
            rocketmq.wait_until(server.name, lambda s=server: "boot success" in s.tail(), 120)  # type: ignore[misc]
        clients = (
            ("AdminDriver", *["updateTopic", "-c", "DefaultCluster", "-t", "Classes"]),
            ("ClientDriver", "sync", namesrv, "Classes", "10"),
            ("ClientDriver", "pull", namesrv, "Classes", "10"),
        )
        for number, (driver, *arguments) in enumerate(clients):
            with _listing(directory / f"{number}.classes"):
                _run(driver, directory, namesrv, arguments)
    finally:
        for server in servers:
            server.stop(signal.SIGKILL)
    lines = [line for path in sorted(directory.glob("*.classes")) for line in path.read_text().splitlines()]
    whole = directory / "all"
    whole.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines) if not line.startswith("#")))
    return whole


def _run(driver: str, directory: Path, namesrv: str, arguments: list[str]) -> None:
    classes = rocketmq.compile_java(JAVA / f"{driver}.java")
    command = rocketmq.java(driver, *arguments, classes=classes, user_home=directory)
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=environment)


@contextmanager
def _listing(path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        options = f"{PLAIN} {NO_TLS} -XX:DumpLoadedClassList={path}"
        patch.setenv(rocketmq.JAVA_OPTIONS, options)
        yield
