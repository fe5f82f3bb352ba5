"""What the interop tests share: the real RocketMQ (or the reason to skip) and one keelmq cluster."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from chaos.worlds import rocketmq
from tests import ROOT
from tests.interop import shared_classes

T = TypeVar("T")

os.environ.setdefault("MAVEN_OPTS", rocketmq.PLAIN)  # it lives for seconds, too


def keelmq(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line of this checkout."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture(scope="session")
def real_rocketmq() -> Iterator[Path]:
    """The directory of the real jars; skips with the reason where they cannot be had."""
    reason = rocketmq.unavailable()
    if reason:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        library = rocketmq.fetch()
        patch.setenv(rocketmq.JAVA_OPTIONS, shared_classes.quick())
        yield library


@dataclass(frozen=True)
class Cluster:
    """A running keelmq cluster and a scratch directory for the JVMs that talk to it."""

    namesrv: str
    controllers: str
    scratch: Path

    def driver(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run ``ClientDriver``: the unmodified Java client."""
        classes = rocketmq.compile_java(Path(__file__).parent / "java" / "ClientDriver.java")
        command = rocketmq.java(
            "ClientDriver",
            arguments[0],
            self.namesrv,
            *arguments[1:],
            classes=classes,
            user_home=self.scratch,
        )
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)

    def mqadmin(self, *arguments: str) -> str:
        done = rocketmq.mqadmin(self.namesrv, *arguments, user_home=self.scratch)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def begin_mqadmin(namesrv: str, scratch: Path, *commands: str) -> subprocess.Popen[str]:
    """The mqadmin ``commands``, one after the other, in one JVM."""
    words: list[str] = []
    for command in commands:
        words += [*(["--"] if words else []), *command.split()]
    scratch.mkdir(parents=True, exist_ok=True)
    classes = rocketmq.compile_java(Path(__file__).parent / "java" / "AdminDriver.java")
    line = rocketmq.java("AdminDriver", *words, classes=classes, user_home=scratch, heap_mb=256)
    line.insert(
        1, f"-Djava.io.tmpdir={scratch}"
    )  # where some commands leave files, as others do where they run
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    return subprocess.Popen(
        line, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def end_mqadmin(begun: subprocess.Popen[str], count: int, timeout_s: float = 180) -> list[str]:
    """What each of its ``count`` commands printed."""
    try:
        output, _ = begun.communicate(timeout=timeout_s)
    finally:
        begun.kill()
    assert begun.returncode == 0, output[-3000:]
    said = ("\n" + output).split("\nADMIN ")[1:]
    assert len(said) == count, output[-3000:]
    return said


def mqadmin_all(namesrv: str, scratch: Path, *commands: str) -> list[str]:
    """What each of the mqadmin ``commands`` printed, run in one JVM."""
    return end_mqadmin(begin_mqadmin(namesrv, scratch, *commands), len(commands))


def beside(*works: Callable[[], T]) -> list[T]:
    """What each of ``works`` returned; all at once, as they mostly wait."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [begun.result() for begun in [pool.submit(work) for work in works]]


def facts(output: str, event: str) -> list[dict[str, str]]:
    """The ``DRIVER event key=value ...`` lines of one kind."""
    found = []
    for line in output.splitlines():
        words = line.split(" ")
        if words[:2] == ["DRIVER", event]:
            found.append(dict(word.partition("=")[::2] for word in words[2:]))
    return found


@pytest.fixture(scope="package")
def cluster(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three NameServers with Controllers and one group of three brokers, as processes.

    Six servers that nobody asks take a sixteenth of a core: they end with the tests of this folder."""
    directory = tmp_path_factory.mktemp("cluster")
    up = keelmq("cluster", "up", "--dir", str(directory))
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        status = json.loads(keelmq("cluster", "status", "--dir", str(directory), "--json").stdout)
        controllers = [controller["address"] for controller in status["controllers"]]
        yield Cluster(";".join(status["namesrv"]), ";".join(controllers), tmp_path_factory.mktemp("java"))
    finally:
        down = keelmq("cluster", "down", "--dir", str(directory))
        assert down.returncode == 0, down.stdout + down.stderr


@pytest.fixture(scope="session")
def go_driver() -> Path:
    """The Go client's driver, built once for this source; skips with the reason."""
    return go_built(Path(__file__).parent / "go", "go-driver")


def go_built(source: Path, name: str) -> Path:
    """The program in ``source``, kept as ``name`` for this text of it; skips with the reason."""
    if shutil.which("go") is None:
        pytest.skip("needs Go on PATH")
    text = b"".join(path.read_bytes() for path in sorted(source.iterdir()))
    driver = rocketmq.home().with_name(name) / hashlib.sha256(text).hexdigest()[:12]
    if driver.exists():
        return driver
    new = driver.with_suffix(f".{os.getpid()}")
    # As `make toxiproxy`: what both are made of is compiled once, and that quickly.
    command = ["go", "build", "-gcflags=all=-N -l", "-o", str(new), "."]
    quick = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(command, cwd=source, env=quick, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"Go could not build the client: {done.stderr[-500:]}")
    return new.rename(driver)
