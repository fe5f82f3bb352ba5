"""What the official Java benchmark gets out of a group, and what that costs the brokers.

    python bench/java_clients.py [--brokers 1 3] [--what producer consumer] [--side ...] [--json OUT]

RocketMQ's own ``benchmark.Producer`` and ``benchmark.Consumer`` (5.5.0, as they are but for ``--threads``
and messages of 1 KiB) are run against keelmq and the real RocketMQ, in turn, ``--repeat`` times: one broker
with ASYNC_FLUSH and a NameServer, or a group of three that waits for all. Each run has a client of its own,
which works for ``--settle`` seconds before ``--seconds`` of it are measured. Messages are counted by what the
brokers hold (max offsets), or by what the consumer committed; CPU is what the operating system accounts to
the broker processes. A consumer begins at the first of ``--messages`` messages, whose offsets were committed
before, and must not come near their end: where it does, ask for shorter times, or more messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.cluster import LocalCluster  # noqa: E402
from bench import load  # noqa: E402
from bench.load import Work  # noqa: E402
from bench.page_cache import at_hand  # noqa: E402
from bench.provenance import machine  # noqa: E402
from bench.send import QUEUES, cpu_s_of, create_topic, keelmq_broker  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402
from chaos.worlds.rocketmq_live import RocketMQWorld  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

TOPIC: Final = "BenchJava"
BENCHMARK: Final = "org.apache.rocketmq.example.benchmark"
START_S: Final = 60.0
FULL_S: Final = 120.0
HEAP_MB: Final = 512
MESSAGES: Final = {1: 4_000_000, 3: 2_000_000}
"""That a consumer finds, by brokers of a group: 1.3 KB each at each broker of both sides, so 10 and 15 GB
that are to stay in the page cache. It read 290,000 a second on a busy machine."""
LEFT_MIN: Final = 100_000
"""Messages a consumer must have left, or the window was not one of reading alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """One side: where clients find it, its master, and the processes that are measured."""

    name: str
    namesrv: str
    master: str
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        return sum(map(cpu_s_of, self.pids))

    def stored(self) -> int:
        """Messages of the topic, by the offsets its queues end at."""
        return sum(self._offset(30, queue) for queue in range(QUEUES))

    def committed(self, group: str) -> int:
        """Messages a consumer group has behind it."""
        return sum(self._offset(14, queue, consumerGroup=group) for queue in range(QUEUES))

    def begin_at_first(self, group: str) -> None:
        for queue in range(QUEUES):
            ext = {"consumerGroup": group, "topic": TOPIC, "queueId": queue, "commitOffset": 0}
            rocketmq.call(self.master, 15, ext)

    def _offset(self, code: int, queue: int, **more: str) -> int:
        header, _ = rocketmq.call(self.master, code, {"topic": TOPIC, "queueId": queue, **more})
        return int(header["extFields"]["offset"]) if header["code"] == 0 else 0


def benchmark_jar() -> Path:
    """The jar with the benchmark programs, fetched once. Raises RuntimeError with Maven's words."""
    target = rocketmq.home() / "benchmark"
    found = list(target.glob("rocketmq-example-*.jar"))
    if not found:
        pom = Path(__file__).with_name("benchmark_pom.xml")
        command = ["mvn", "-q", "-B", "-f", str(pom), rocketmq.COPY_JARS]
        command += [f"-DoutputDirectory={target}", "-DexcludeTransitive=true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        found = list(target.glob("rocketmq-example-*.jar"))
        if done.returncode != 0 or not found:
            raise RuntimeError(f"Maven could not fetch the benchmark:\n{done.stdout[-2000:]}")
    return found[0]


@contextmanager
def client(main: str, group: Group, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A benchmark program that runs; ended by SIGKILL: it has nothing to lose."""
    scratch = Path(tempfile.mkdtemp(prefix="keelmq-bench-java-"))
    command = rocketmq.java(
        f"{BENCHMARK}.{main}",
        "-n",
        group.namesrv,
        "-t",
        TOPIC,
        *arguments,
        classes=benchmark_jar(),
        user_home=scratch,
        heap_mb=HEAP_MB,
    )
    with (scratch / "out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"{main} ended: {(scratch / 'out').read_text(errors='replace')[-2000:]}")
    finally:
        process.kill()
        process.wait(10)
        shutil.rmtree(scratch, ignore_errors=True)


def window(group: Group, count: Any, settle_s: float, seconds: float) -> dict[str, float]:
    """Messages a second by ``count``, and their CPU, from ``settle_s`` after the first one on. ``first_s``:
    how long the first one took, the start of the client's JVM included."""
    begun, first = time.monotonic(), count()
    while count() == first:
        if time.monotonic() - begun > START_S:
            raise RuntimeError(f"{group.name}: the client did nothing for {START_S:.0f} s")
        time.sleep(0.1)
    first_s = time.monotonic() - begun
    time.sleep(settle_s)
    at, cpu_s, before = time.monotonic(), group.cpu_s(), count()
    time.sleep(seconds)
    took_s, cpu_s, messages = time.monotonic() - at, group.cpu_s() - cpu_s, count() - before
    if not messages:
        raise RuntimeError(f"{group.name}: the client came to its end")
    return {"per_s": messages / took_s, "cpu_us": cpu_s * 1e6 / messages, "first_s": first_s}


def produce(group: Group, given: argparse.Namespace) -> dict[str, float]:
    with client("Producer", group, "-w", str(given.threads), "-s", "1024"):
        return window(group, group.stored, given.settle, given.seconds)


def consume(group: Group, given: argparse.Namespace) -> dict[str, float]:
    name = f"bench_{time.time_ns()}"
    while group.stored() < (given.messages or MESSAGES[len(group.pids)]):
        if not load.run(group.master, TOPIC, QUEUES, Work(in_flight=64), 1.0).ok:
            raise RuntimeError(f"{group.name} refused all sends")
    group.begin_at_first(name)
    arguments = ("-g", name, "-p", "false", "-w", str(given.threads))
    with client("Consumer", group, *arguments):
        found = window(group, lambda: group.committed(name), given.settle, given.seconds)
        left = group.stored() - group.committed(name)
    # Near the end its queues run dry one by one, and pulls wait: that is another piece of work.
    if left < LEFT_MIN:
        raise RuntimeError(f"{group.name}: the consumer came near the end, {left} left: raise --messages")
    return found


@contextmanager
def keelmq_one(directory: Path, port: int) -> Iterator[Group]:
    """A broker and a NameServer, each a process of its own."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "cli.main", "namesrv", "--set", f"listenPort={port + 40}"]
    command += ["--set", f"adminPort={port + 41}"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with (directory / "ns.err").open("w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith(b"ready "):
            raise RuntimeError(f"no NameServer: {(directory / 'ns.err').read_text()[-2000:]}")
        namesrv = f"127.0.0.1:{port + 40}"
        with keelmq_broker(directory / "b", port, more={"namesrvAddr": namesrv}) as side:
            yield Group("keelmq", namesrv, side.address, tuple(side.pids))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextmanager
def rocketmq_one(directory: Path, port: int) -> Iterator[Group]:
    namesrv = f"127.0.0.1:{port + 40}"
    server = rocketmq.namesrv_node(directory / "ns", port + 40)
    broker = rocketmq.broker_node(directory / "b", port, namesrv)
    server.start()
    try:
        rocketmq.wait_until("the real NameServer", lambda: rocketmq.call(namesrv, 106)[0]["code"] == 0, 60)
        broker.start()
        rocketmq.wait_until("the real broker", lambda: "0" in rocketmq.routed_brokers(namesrv), 90)
        assert broker.process is not None
        yield Group("rocketmq", namesrv, f"127.0.0.1:{port}", (broker.process.pid,))
    finally:
        broker.stop()
        server.stop()


@asynccontextmanager
async def groups_of(count: int, names: list[str], port: int, scratch: Path) -> AsyncIterator[list[Group]]:
    """The sides, all running."""
    async with AsyncExitStack() as stack:
        found: list[Group] = []
        for at, name in enumerate(names):
            directory = scratch / f"{name}-{count}"
            if count == 1:
                start = keelmq_one if name == "keelmq" else rocketmq_one
                found.append(stack.enter_context(start(directory, port + 100 * at)))
            elif name == "keelmq":
                cluster = LocalCluster.create(directory)
                stack.callback(cluster.down)
                up = (await cluster.up())["groups"][0]
                master = next(one for one in up["brokers"] if one["role"] == "master")
                namesrv = ";".join(node.address for node in cluster.layout.namesrvs)
                pids = tuple(one["pid"] for one in up["brokers"])
                found.append(Group(name, namesrv, master["address"], pids))
            else:
                world = RocketMQWorld(OsEnv(), directory)
                stack.push_async_callback(world.stop)
                await world.start(lambda text: None)
                address = rocketmq.routed_brokers(world.namesrv[0], world.group)["0"]
                pids = tuple(node.process.pid for node in world.brokers if node.process is not None)
                found.append(Group(name, ";".join(world.namesrv), address, pids))
        yield found


async def measure(count: int, given: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    rows = []
    async with groups_of(count, given.side, given.base_port, scratch) as groups:
        for group in groups:
            create_topic(group.master, TOPIC)
            await asyncio.sleep(1)  # until NameServers know of it
            if group.name == "rocketmq":  # the JIT needs load to compile what will be measured
                load.run(group.master, TOPIC, QUEUES, Work(), given.warm_up)
        for what in given.what:
            run = produce if what == "producer" else consume
            runs: dict[str, list[dict[str, float]]] = {group.name: [] for group in groups}
            for turn in range(given.repeat):
                for group in groups if turn % 2 == 0 else groups[::-1]:
                    runs[group.name].append(await asyncio.to_thread(run, group, given))
            row: dict[str, Any] = {
                "work": f"{count} broker{'s' * (count > 1)}: {what}, {given.threads} threads"
            }
            row |= {name: summary(found) for name, found in runs.items()}
            rows.append(row)
            print(line_of(row), flush=True)
    return rows


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    found["spread_cpu_us"] = [round(pick(run["cpu_us"] for run in runs), 2) for pick in (min, max)]
    found["spread_per_s"] = [round(pick(run["per_s"] for run in runs)) for pick in (min, max)]
    return found


def line_of(row: dict[str, Any]) -> str:
    text = f"{row['work']:>36}"
    for name in ("keelmq", "rocketmq"):
        if name in row:
            side = row[name]
            low, high = side["spread_cpu_us"]
            text += (
                f" | {name}: {side['per_s']:7.0f}/s ({side['spread_per_s'][0]} to {side['spread_per_s'][1]})"
            )
            text += f", {side['cpu_us']:6.2f} us CPU ({low:.2f} to {high:.2f}), first {side['first_s']:.1f} s"
    if "keelmq" in row and "rocketmq" in row:
        text += f" | rate {row['keelmq']['per_s'] / row['rocketmq']['per_s']:.2f}"
        text += f", CPU {row['keelmq']['cpu_us'] / row['rocketmq']['cpu_us']:.2f}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", type=int, nargs="+", choices=[1, 3], default=[1, 3])
    parser.add_argument(
        "--what", nargs="+", choices=["producer", "consumer"], default=["producer", "consumer"]
    )
    parser.add_argument("--side", nargs="+", choices=["keelmq", "rocketmq"], default=["keelmq", "rocketmq"])
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument(
        "--messages", type=int, help=f"that a consumer finds, at least; by brokers of a group {MESSAGES}"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--settle", type=float, default=6.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of load for the JVM before all")
    parser.add_argument("--base-port", type=int, default=26400)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    missing = rocketmq.unavailable()
    if missing:
        print(f"cannot run the Java clients here: {missing}", file=sys.stderr)
        return 3
    benchmark_jar()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch, at_hand():
        for count in given.brokers:
            rows += asyncio.run(measure(count, given, Path(scratch)))
    if given.json:
        report = {"name": "java_clients", "rows": rows, "machine": machine(), "peer": rocketmq.described()}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
