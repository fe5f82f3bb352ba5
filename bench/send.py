"""What a send costs the broker: CPU per message and messages per second, both header dialects.

    python bench/send.py [--peer rocketmq] [--python] [--before DIR] [--tls] [--brokers 1 3] [--only TEXT]
                         [--json OUT]

One load program (``bench/load.py``) drives each side in turn, row by row, on this machine: single broker,
ASYNC_FLUSH, 1 GiB segments; with ``3`` a group of three brokers that waits for all of them, with the small
files of a local cluster on both sides, whose CPU is summed up. ``--peer rocketmq`` measures the real RocketMQ
beside, ``--python`` keelmq without its compiled path, ``--before`` another checkout of keelmq (both one
broker). CPU is what the operating system accounts to the broker processes (user + system). Each row is the
median of ``--repeat`` runs of ``--seconds`` at each of ``--starts`` starts of the brokers, the sides in turn;
``spread`` is the lowest and the highest. The JVM gets ``--warm-up`` seconds of load first, a part of each
kind of work, keelmq a tenth; each run begins with free memory (``bench/page_cache.py``). While a side is
measured, the JVMs of another one are stopped: three that have nothing to do take half a core here. A keelmq
that has nothing to do takes a hundredth, and goes on, as its Controller would end a master that is stopped.
``path``: which path of sends the broker said it has; ``fast``: the share of keelmq's messages that took its
fast path, by its own counter; ``refused``: the share of sends that were answered with an error, at the worst
(flow control), CPU counts for those stored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.certs import CertDirectory  # noqa: E402
from admin.local.cluster import LocalCluster  # noqa: E402
from bench import load  # noqa: E402
from bench.load import Work  # noqa: E402
from bench.page_cache import at_hand, forget  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402
from chaos.worlds.rocketmq_live import RocketMQWorld  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

_SCHED_CLOCK: Final = 2  # the kernel's CPUCLOCK_SCHED, of a clock that belongs to a process
TOPIC = "Bench"
QUEUES = 4
SETTLE_S: Final = 0.5
"""Before a run: processes that were stopped do what they missed."""
WORKS = (
    *(Work(body, in_flight) for body in (1024, 128) for in_flight in (1, 16, 64)),
    Work(in_flight=64, burst=False),
    Work(in_flight=1, connections=64),
    Work(in_flight=4, batch=16),
    Work(in_flight=1, dialect="binary"),
    Work(in_flight=64, dialect="binary"),
    Work(in_flight=64, dialect="binary", burst=False),
    Work(in_flight=1, connections=64, dialect="binary"),
    Work(in_flight=4, batch=16, dialect="binary"),
)
GROUP_WORKS = (
    Work(in_flight=1),
    Work(in_flight=64),
    Work(in_flight=1, connections=64),
    Work(in_flight=64, dialect="binary"),
)
WARMING = (Work(), Work(dialect="binary"), Work(in_flight=4, batch=16), Work(in_flight=1, connections=64))
"""Before anything is measured: each kind of what follows."""


def cpu_s_of(pid: int) -> float:
    """User and system time of a process since its start, seconds. On Linux by its own clock: the ticks of
    ``/proc`` have 10 ms each, of which a run of a second may have ten."""
    if sys.platform != "linux":
        return sum(psutil.Process(pid).cpu_times()[:2])
    return time.clock_gettime(~pid << 3 | _SCHED_CLOCK)


class Side:
    """The brokers of one side, and how to measure them. ``status``: where its master tells what it did;
    ``stopped``: processes that stand still while another side is measured."""

    def __init__(
        self,
        name: str,
        address: str,
        pids: list[int],
        status: str | None = None,
        tls: ssl.SSLContext | None = None,
        stopped: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._stopped = stopped
        self._tls = tls
        self.address = address
        self.pids = pids
        self._status = status

    def cpu_s(self) -> float:
        return sum(map(cpu_s_of, self.pids))

    @contextmanager
    def still(self) -> Iterator[None]:
        try:
            for pid in self._stopped:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in self._stopped:
                os.kill(pid, signal.SIGCONT)

    def _stored(self) -> tuple[int, int, str] | None:
        """Messages stored, those that took the fast path, and which one it is; None where nothing tells."""
        if self._status is None:
            return None
        with urllib.request.urlopen(self._status, timeout=5) as answer:
            view = json.load(answer)
        if "putFastTotal" not in view:
            return None
        return view["putTotal"], view["putFastTotal"], view.get("sendPath", "")

    def load(self, work: Work, seconds: float) -> dict[str, Any]:
        before, cpu_s = self._stored(), self.cpu_s()
        outcome = load.run(self.address, TOPIC, QUEUES, work, seconds, self._tls)
        if not outcome.ok:
            raise RuntimeError(f"{self.name} refused all sends: {outcome.first_failure}")
        cpu_s = self.cpu_s() - cpu_s
        after = self._stored()
        messages = outcome.ok * work.batch
        found: dict[str, Any] = {
            "cpu_us": cpu_s * 1e6 / messages,
            "per_s": messages / outcome.seconds,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "refused": outcome.failed / outcome.sent,
        }
        if before is not None and after is not None:
            found["fast"] = (after[1] - before[1]) / max(after[0] - before[0], 1)
            found["path"] = after[2]
        return found


def create_topic(address: str, topic: str = TOPIC) -> None:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    header, _ = rocketmq.call(address, 17, ext)
    if header["code"] != 0:
        raise RuntimeError(f"{address} did not create the topic: {header}")


@contextmanager
def keelmq_broker(
    directory: Path,
    port: int,
    root: Path = ROOT,
    name: str = "keelmq",
    *,
    tls: bool = False,
    compiled: bool = True,
    more: Mapping[str, object] | None = None,
) -> Iterator[Side]:
    """A broker of the checkout at ``root``; ``compiled``: where it was built; ``more``: settings besides."""
    settings: dict[str, object] = {
        "listenPort": port,
        "adminPort": port + 5,
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "storePathRootDir": directory / "store",
        "flushDiskType": "ASYNC_FLUSH",
    }
    certs = certificates(directory / "certs") if tls else {}
    context = ssl.create_default_context(cafile=certs["tls.server.trustCertPath"]) if tls else None
    settings |= certs | dict(more or {})
    command = [sys.executable, "-m", "cli.main", "broker"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    directory.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"PYTHONPATH": str(root)} | ({} if compiled else {"KEELMQ_COMPILED": "off"})
    with (directory / "err").open("w") as errors:
        process = subprocess.Popen(
            command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"{name} did not start: {(directory / 'err').read_text()[-2000:]}")
        status = f"http://127.0.0.1:{port + 5}/status"
        yield Side(name, f"127.0.0.1:{port}", [process.pid], status, context)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def certificates(directory: Path) -> dict[str, str]:
    """Keys of a broker that takes TLS as well."""
    made = CertDirectory(directory)
    made.make_authority("bench", 2)
    made.issue("broker", 2, ("127.0.0.1",), server=True)
    return {
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(directory / "broker.pem"),
        "tls.server.keyPath": str(directory / "broker.key"),
        "tls.server.trustCertPath": str(directory / "ca.pem"),
    }


@contextmanager
def rocketmq_broker(directory: Path, port: int) -> Iterator[Side]:
    namesrv = rocketmq.namesrv_node(directory / "ns", port - 50)
    broker = rocketmq.broker_node(directory / "b", port, f"127.0.0.1:{port - 50}")
    address = f"127.0.0.1:{port - 50}"
    namesrv.start()
    try:
        rocketmq.wait_until("the real NameServer", lambda: rocketmq.call(address, 106)[0]["code"] == 0, 60)
        broker.start()
        rocketmq.wait_until("the real broker", lambda: "0" in rocketmq.routed_brokers(address), 90)
        pids = [node.process.pid for node in (broker, namesrv) if node.process is not None]
        yield Side("rocketmq", f"127.0.0.1:{port}", pids[:1], stopped=pids)
    finally:
        broker.stop()
        namesrv.stop()


@asynccontextmanager
async def keelmq_group(directory: Path, *, tls: bool = False) -> AsyncIterator[Side]:
    """Three brokers that all acknowledge, and three Controllers; ``tls``: on every link, HA's too."""
    settings: list[str] = []
    context = None
    if tls:
        keys = certificates(directory / "certs")
        keys |= {"tls.enable": "true", "tls.client.trustCertPath": keys["tls.server.trustCertPath"]}
        settings = [f"{role}.{key}={value}" for role in ("broker", "namesrv") for key, value in keys.items()]
        context = ssl.create_default_context(cafile=keys["tls.client.trustCertPath"])
    cluster = LocalCluster.create(directory, settings=settings)
    try:
        group = (await cluster.up())["groups"][0]
        master = next(one for one in group["brokers"] if one["role"] == "master")
        pids = [one["pid"] for one in group["brokers"]]
        yield Side("tls" if tls else "keelmq", master["address"], pids, master["status"], context)
    finally:
        cluster.down()


@asynccontextmanager
async def rocketmq_group(directory: Path) -> AsyncIterator[Side]:
    world = RocketMQWorld(OsEnv(), directory)
    try:
        await world.start(lambda text: None)
        address = rocketmq.routed_brokers(world.namesrv[0], world.group)["0"]
        pids = [node.process.pid for node in world.brokers if node.process is not None]
        yield Side("rocketmq", address, pids, stopped=world.pids)
    finally:
        await world.stop()


Runs = dict[str, list[dict[str, Any]]]
"""Side -> what each run of one work found."""


def measure(sides: list[Side], works: list[Work], given: argparse.Namespace, stores: Path) -> list[Runs]:
    """The runs of each of ``works``, on brokers that were just started; their files are below ``stores``."""
    for side in sides:
        create_topic(side.address)
        # The JIT needs load to compile what it will measure; Python has nothing to warm but its caches.
        share = 1.0 if side.name == "rocketmq" else 0.1
        for work in WARMING:
            side.load(work, max(given.warm_up * share / len(WARMING), 0.5))
    found: list[Runs] = []
    for work in works:
        forget(stores)
        runs: Runs = {side.name: [] for side in sides}
        for turn in range(given.repeat):
            for side in sides if turn % 2 == 0 else reversed(sides):
                with ExitStack() as stack:
                    for other in sides:
                        if other is not side:
                            stack.enter_context(other.still())
                    time.sleep(SETTLE_S)
                    runs[side.name].append(side.load(work, given.seconds))
        found.append(runs)
        print(".", end="", flush=True, file=sys.stderr)
    return found


def rows_of(works: list[Work], starts: list[list[Runs]], what: str) -> list[dict[str, Any]]:
    """One row a work. A ratio is the median of those of each start: between two starts of the same program
    the cost of a message differs by some percent, whatever runs beside it."""
    rows = []
    for work, of_starts in zip(works, zip(*starts, strict=True), strict=True):
        row: dict[str, Any] = {"work": f"{what}: {work}", **asdict(work)}
        for name in of_starts[0]:
            row[name] = summary([run for runs in of_starts for run in runs[name]])
        for other in row.keys() & {"rocketmq", "before"}:
            ratios = [cpu_us_of(runs["keelmq"]) / cpu_us_of(runs[other]) for runs in of_starts]
            row[f"ratio_to_{other}"] = round(statistics.median(ratios), 3)
        if {"python", "rocketmq"} <= row.keys():
            ratios = [cpu_us_of(runs["python"]) / cpu_us_of(runs["rocketmq"]) for runs in of_starts]
            row["ratio_of_python"] = round(statistics.median(ratios), 3)
        if "tls" in row:
            ratios = [cpu_us_of(runs["tls"]) / cpu_us_of(runs["keelmq"]) for runs in of_starts]
            row["ratio_of_tls"] = round(statistics.median(ratios), 3)
        rows.append(row)
        print(line_of(row), flush=True)
    return rows


def cpu_us_of(runs: list[dict[str, Any]]) -> float:
    cpu_us: float = statistics.median(run["cpu_us"] for run in runs)
    return cpu_us


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and how far the runs lie apart."""
    found: dict[str, Any] = {
        name: round(statistics.median(run[name] for run in runs), 2)
        for name in ("cpu_us", "per_s", "p50_us", "p99_us")
    }
    found["refused"] = round(max(run["refused"] for run in runs), 4)
    found["spread"] = [round(pick(run["cpu_us"] for run in runs), 2) for pick in (min, max)]
    if all("fast" in run for run in runs):
        found["fast"] = round(min(run["fast"] for run in runs), 4)
        found["path"] = runs[0]["path"]
    return found


def line_of(row: dict[str, Any]) -> str:
    text = f"{row['work']:>46}"
    for name in ("keelmq", "python", "before", "tls", "rocketmq"):
        if name in row:
            side = row[name]
            low, high = side["spread"]
            text += (
                f" | {name}: {side['cpu_us']:6.2f} us CPU ({low:.2f} to {high:.2f}), {side['per_s']:7.0f}/s"
            )
        if "fast" in row.get(name, {}):
            text += f", fast {100 * row[name]['fast']:.0f} %"
        if row.get(name, {}).get("refused"):
            text += f", refused {100 * row[name]['refused']:.1f} %"
        if f"ratio_to_{name}" in row:
            text += f", ratio {row[f'ratio_to_{name}']:.2f}"
        if name == "rocketmq" and "ratio_of_python" in row:
            text += f", of Python's path {row['ratio_of_python']:.2f}"
        if name == "tls" and name in row:
            text += f", {row['ratio_of_tls']:.2f} times keelmq without"
    return text


async def bench(given: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    rows = []
    if 1 in given.brokers:
        works = [work for work in WORKS if given.only in str(work)]
        starts = []
        for _ in range(given.starts):
            async with AsyncExitStack() as stack:
                at = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
                sides = [stack.enter_context(keelmq_broker(at / "keelmq", given.base_port))]
                if given.python:
                    python = keelmq_broker(
                        at / "python", given.base_port + 400, name="python", compiled=False
                    )
                    sides.append(stack.enter_context(python))
                if given.before is not None:
                    before = keelmq_broker(at / "before", given.base_port + 100, given.before, "before")
                    sides.append(stack.enter_context(before))
                if given.tls:
                    tls = keelmq_broker(at / "tls", given.base_port + 300, name="tls", tls=True)
                    sides.append(stack.enter_context(tls))
                if given.peer == "rocketmq":
                    sides.append(stack.enter_context(rocketmq_broker(at / "r", given.base_port + 200)))
                starts.append(measure(sides, works, given, at))
        rows += rows_of(works, starts, "1 broker")
    if 3 in given.brokers:
        works = [work for work in GROUP_WORKS if given.only in str(work)]
        async with AsyncExitStack() as stack:
            sides = [await stack.enter_async_context(keelmq_group(scratch / "group"))]
            if given.tls:
                secured = keelmq_group(scratch / "tls-group", tls=True)
                sides.append(await stack.enter_async_context(secured))
            if given.peer == "rocketmq":
                sides.append(await stack.enter_async_context(rocketmq_group(scratch / "r-group")))
            rows += rows_of(works, [measure(sides, works, given, scratch)], "3 brokers")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="none")
    parser.add_argument("--python", action="store_true", help="keelmq without its compiled path beside")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout of keelmq to measure beside")
    parser.add_argument("--tls", action="store_true", help="the same over TLS beside")
    parser.add_argument("--brokers", type=int, nargs="+", choices=[1, 3], default=[1, 3])
    parser.add_argument("--only", default="", metavar="TEXT", help="works whose name holds it")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each work at each start")
    parser.add_argument("--starts", type=int, default=1, help="how often the single brokers are started")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run")
    parser.add_argument(
        "--warm-up", type=float, default=40.0, help="seconds of load before the JVM is measured"
    )
    parser.add_argument("--base-port", type=int, default=27400)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    missing = rocketmq.unavailable() if given.peer == "rocketmq" else None
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
        given.peer = "none"
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch, at_hand():
        rows = asyncio.run(bench(given, Path(scratch)))
    if given.json:
        peer = rocketmq.described() if given.peer == "rocketmq" else None
        report = {"name": "send", "rows": rows, "machine": machine(), "peer": peer}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
