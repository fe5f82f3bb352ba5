"""A standalone Spark on this machine: a master and two workers, one without fast hashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from audit.engines.on_spark.java import find_java

SPARK = Path(pyspark.__file__).parent
_OPENED = (
    "java.nio",
    "sun.nio.ch",
    "java.lang",
    "java.lang.invoke",
    "java.util",
    "java.util.concurrent",
    "java.net",
)
_PATIENT = (
    "-Dspark.network.timeout=600s",
    "-Dspark.worker.timeout=600",
    "-Dspark.master.rest.enabled=false",  # its port would be a fixed one
)
_START_S = 300.0


@dataclass(frozen=True, slots=True)
class Cluster:
    master: str
    environ: dict[str, str]  # for spark-submit
    work: tuple[Path, Path]  # the workers' folders: what their executors said


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """Ports are the system's choice. Everything ends with it."""
    java = find_java()
    blind, bare = folder / "blind", folder / "bare"
    blind.mkdir()
    (blind / "xxhash.py").write_text("raise ImportError('this worker has no fast hashes')\n")
    bare.mkdir()  # or workers find this checkout, as its environment does
    (bare / "audit.py").write_text("raise ModuleNotFoundError(\"No module named 'audit'\")\n")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"JAVA_HOME": java.home, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder)}
    # Spark's scripts tell a worker, which these do not start; without it no executor begins.
    (scala,) = (SPARK / "jars").glob("scala-library-*.jar")
    environ["SPARK_SCALA_VERSION"] = ".".join(scala.stem.split("-")[-1].split(".")[:2])
    with ExitStack() as stack:
        stack.callback(java.close)

        def run(kind: str, log: Path, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
            opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
            quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx160m"]
            command = [
                java.java,
                *quick,
                *opened,
                *_PATIENT,
                "-cp",
                f"{SPARK}/jars/*",
                f"org.apache.spark.deploy.{kind}",
            ]
            with log.open("w") as out:
                process = subprocess.Popen(
                    [*command, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments],
                    env=environ | more,
                    cwd=folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            stack.callback(_end, process)
            return process

        log = folder / "master.log"
        leader = run("master.Master", log)
        master = _told(leader, log, r"Starting Spark master at (spark://\S+)")
        _told(leader, log, "(New state: ALIVE)")
        work = (folder / "worker-0", folder / "worker-1")
        workers = []
        for at, place in enumerate(work):
            more = {"PYTHONPATH": f"{blind}:{bare}" if at else str(bare)}
            of_worker = ("--cores", "1", "--memory", "600m", "--work-dir", str(place), master)
            workers.append(run("worker.Worker", folder / f"worker-{at}.log", *of_worker, **more))
        for at, process in enumerate(workers):
            _told(process, folder / f"worker-{at}.log", "(Successfully registered with master)")
        yield Cluster(master, environ, work)


def _told(process: subprocess.Popen[bytes], log: Path, what: str) -> str:
    """What a process says of itself; all of it when it does not come, or when the process ends."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(what, log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name}: {log.read_text()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
