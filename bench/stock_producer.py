"""What a Java producer that nobody tuned notices when its master goes away, with and without a group address.

    python bench/stock_producer.py [--repeat 3] [--scenario kill-master ...] [--side keelmq ...] [--json OUT]

An unmodified RocketMQ producer (``StockProducer.java``, default settings) sends ``--rate`` messages a second
from one thread while the master of a group of three is killed, told to stop, or handed over. Sides: keelmq,
keelmq with ``groupAddress``, and the real RocketMQ. Each drill has a producer of its own, which is
``--before`` seconds old when the fault comes: its next look at the route is 30 s after its start, so without
a group address the outage says how long that took, not how long the servers did.

``outage_ms`` is the longest time between two acknowledgements around the fault, ``failed`` counts sends whose
caller got an exception after the client's own retries, ``lost`` acknowledged messages that cannot be read
back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.cluster import ClusterNotReady, LocalCluster  # noqa: E402
from admin.local.layout import HOST, free_base_port  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.drills.measure import longest_gap, percentile  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402
from chaos.worlds.live import CannotDrill, LiveWorld, World  # noqa: E402
from chaos.worlds.rocketmq_live import RocketMQWorld  # noqa: E402
from client.admin import AdminClient  # noqa: E402
from client.consuming.pull import PullConsumer  # noqa: E402
from model.errors import MqError  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

SCENARIOS: Final = ("kill-master", "stop-master", "handover")
SIDES: Final = ("keelmq", "keelmq_group_address", "rocketmq")
TOPIC: Final = "StockProducer"
QUEUES: Final = 4
RECOVER_S: Final = 60.0  # twice the client's route poll
START_S: Final = 60.0
FULL_S: Final = 120.0
QUIET_ACKS: Final = 20


@dataclass(frozen=True, slots=True)
class Send:
    """One send of the Java producer; times are wall clock milliseconds. ``what``: where it is, or why not."""

    ok: bool
    begun_ms: int
    ended_ms: int
    what: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Send:
        """Raises ValueError for a line that is not one of ``StockProducer``."""
        outcome, begun, ended, *what = line.split()
        if outcome not in ("ok", "failed"):
            raise ValueError(f"not a send: {line!r}")
        return cls(outcome == "ok", int(begun), int(ended), tuple(what))


class JavaProducer:
    """The process of one ``StockProducer``; ``sends`` grows while it runs."""

    def __init__(self, namesrv: list[str], rate: int, scratch: Path) -> None:
        self.sends: list[Send] = []
        self._command = rocketmq.java(
            "StockProducer",
            ";".join(namesrv),
            TOPIC,
            str(rate),
            classes=rocketmq.compile_java(Path(__file__).with_name("StockProducer.java")),
            user_home=scratch,
            heap_mb=256,
        )
        self._scratch = scratch

    async def __aenter__(self) -> JavaProducer:
        self._errors = (self._scratch / "errors").open("ab")
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=self._errors
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(30):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader
        self._errors.close()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith((b"ok ", b"failed ")):  # the client logs to standard output, too
                self.sends.append(Send.parse(line.decode()))

    @property
    def acks(self) -> list[Send]:
        return [send for send in self.sends if send.ok]

    async def until_acked(self, since_ms: int, count: int, timeout_s: float) -> bool:
        """Whether ``count`` sends in a row that began after ``since_ms`` are acknowledged in time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline:
            last = self.sends[-count:]
            if len(last) == count and all(send.ok and send.begun_ms >= since_ms for send in last):
                return True
            if self._process.returncode is not None:
                return False
            await asyncio.sleep(0.05)
        return False


@asynccontextmanager
async def side_of(name: str, env: OsEnv, directory: Path) -> AsyncIterator[World]:
    """A full cluster of one side, ended when done."""
    if name == "rocketmq":
        theirs = RocketMQWorld(env, directory)
        try:
            await theirs.start(lambda text: None)
            yield theirs
        finally:
            await theirs.stop()
        return
    settings = [f"broker.groupAddress={HOST}:{free_base_port(10)}"] if name.endswith("address") else []
    cluster = LocalCluster.create(directory, settings=settings)
    try:
        await cluster.up()
        yield LiveWorld(env, cluster)
    finally:
        cluster.down()


async def drill(env: OsEnv, world: World, scenario: str, rate: int, before_s: float) -> dict[str, Any]:
    """One fault under a producer of its own. Raises CannotDrill, ClusterNotReady, OSError."""
    await world.wait_full(FULL_S)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-java-") as scratch:
        async with JavaProducer(world.namesrv, rate, Path(scratch)) as producer:
            if not await producer.until_acked(0, 1, START_S):
                raise CannotDrill(f"the producer got nothing through: {producer.sends[-1:]}")
            await asyncio.sleep(before_s)
            victim = await world.choose(scenario, random.Random(1))
            fault_ms = env.now_ms()
            await world.inflict(scenario, victim)
            recovered = await producer.until_acked(fault_ms + 1, QUIET_ACKS, RECOVER_S)
            until_ms = env.now_ms()
        await world.mend(scenario, victim)
        await world.wait_full(FULL_S)
        sends, acks = producer.sends, producer.acks
    read = await read_back(env, world)
    return {
        "outage_ms": round(longest_gap([ack.ended_ms for ack in acks], fault_ms, until_ms)),
        "recovered": recovered,
        "acked": len(acks),
        "failed": len(refused := [send.what[0] for send in sends if not send.ok]),
        "first_failure": refused[0][:300] if refused else None,
        "lost": sum(
            (int(queue), int(offset), key) not in read for key, queue, offset, _ in (a.what for a in acks)
        ),
    }


async def read_back(env: OsEnv, world: World) -> set[tuple[int, int, str]]:
    """(queue, offset, key) of every message of the topic."""
    found = set()
    async with PullConsumer(env, "bench_reader", ";".join(world.namesrv)) as consumer:
        for queue in await consumer.queues(TOPIC):
            for message in await consumer.read_all(queue):
                found.add((queue.queue_id, message.queue_offset, message.body.decode()))
    return found


async def measure(name: str, scenario: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of one side and scenario; a side that cannot do it says why."""
    env = OsEnv(seed=1)
    drills: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as directory:
            async with side_of(name, env, Path(directory)) as world:
                async with AdminClient(env, world.namesrv) as admin:
                    await admin.create_topic(TOPIC, QUEUES, brokers=[world.group])
                for _ in range(arguments.repeat):
                    drills.append(await drill(env, world, scenario, arguments.rate, arguments.before))
    except (CannotDrill, ClusterNotReady, MqError, OSError, RuntimeError) as error:
        return {"error": str(error)[-500:], "drills": drills}
    outages = sorted(float(one["outage_ms"]) for one in drills)
    return {
        "outage_p50_ms": percentile(outages, 50),
        "outage_max_ms": outages[-1],
        "acked": sum(one["acked"] for one in drills),
        "failed": [one["failed"] for one in drills],
        "lost": sum(one["lost"] for one in drills),
        "recovered": all(one["recovered"] for one in drills),
        "drills": drills,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| fault | side | drills | outage p50 / max, ms | failed sends a drill | acked | lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for side in SIDES:
            got = row.get(side)
            if got is None:
                continue
            if "error" in got:
                lines.append(f"| {row['work']} | {side} | {len(got['drills'])} | {got['error']} | | | |")
                continue
            failed = got["failed"]
            outage = f"{got['outage_p50_ms']:.0f} / {got['outage_max_ms']:.0f}"
            counts = f"{min(failed)} to {max(failed)} | {got['acked']} | {got['lost']}"
            lines.append(f"| {row['work']} | {side} | {len(failed)} | {outage} | {counts} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rate", type=int, default=50, help="sends per second")
    parser.add_argument("--before", type=float, default=3.0, help="seconds from the first ack to the fault")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--side", action="append", choices=SIDES)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    missing = rocketmq.unavailable()
    if missing:
        print(f"cannot run the Java client here: {missing}", file=sys.stderr)
        return 3
    rocketmq.fetch()
    rows = []
    for scenario in arguments.scenario or SCENARIOS:
        row: dict[str, Any] = {"work": scenario}
        for side in arguments.side or SIDES:
            row[side] = asyncio.run(measure(side, scenario, arguments))
            print(json.dumps({"work": scenario, "side": side, **row[side]}), file=sys.stderr, flush=True)
        rows.append(row)
    print(markdown(rows))
    if arguments.json:
        where = {**machine(), "client": rocketmq.VERSION}
        report = {"name": "stock_producer", "rows": rows, "machine": where}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    sides = [side for row in rows for side in row.values() if isinstance(side, dict)]
    return 0 if all("error" not in side and side["recovered"] and not side["lost"] for side in sides) else 3


if __name__ == "__main__":
    sys.exit(main())
