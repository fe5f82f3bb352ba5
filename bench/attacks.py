"""What does a well-behaved producer feel while a hostile client does its worst? One row an attack.

    python bench/attacks.py [--seconds 20] [--only NAME,NAME] [--topics 0] [--json OUT]

Three brokers, three Controllers, defaults. Beside each attack of ``bench/attackers.py`` (another process) a
producer sends a small message every 10 ms. Measured: its latency with all retries, beside the attack and
alone right before and after; elections; the largest memory of a broker; slow turns of its loop. ``--topics``:
so many topics are made before. Prints Markdown; exit code 2 when a send failed, p99 was over its bound, a
master was elected or a replica left the set.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.cluster import LocalCluster  # noqa: E402
from bench.attackers import ATTACKS, BEGAN, VICTIM  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.drills.measure import percentile  # noqa: E402
from client.message import Message  # noqa: E402
from client.sending.options import SendOptions  # noqa: E402
from client.sending.producer import Producer  # noqa: E402
from model.codes import Request  # noqa: E402
from model.errors import MqError  # noqa: E402
from remoting.bodies import dumps  # noqa: E402
from remoting.codec import Command  # noqa: E402
from remoting.service import RemotingClient  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

PACE_S: Final = 0.01
ALONE_S: Final = 1.5
QUIET_MS: Final = 25.0
"""A producer alone with a p99 below this is on a quiet machine."""
BOUND_MS: Final = 250.0
TOPIC: Final = "Normal"


@dataclass(slots=True)
class Sends:
    """What one stretch of normal sends was like."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def p(self, percent: int) -> float:
        return round(percentile(sorted(self.latencies_ms), percent) or 0.0, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One attack."""

    name: str
    sends: int
    failed: list[str]
    alone_p99_ms: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    epochs: tuple[int, int]
    set_after: list[int]
    rss_mb: tuple[float, float]
    slow_turns: dict[str, int]
    slow_worst_ms: float
    seen: dict[str, int]
    damaged: list[str]

    @property
    def bound_ms(self) -> float:
        """250 ms on a quiet machine; on a busy one ten times what the producer feels alone."""
        return BOUND_MS if self.alone_p99_ms <= QUIET_MS else max(BOUND_MS, 10 * self.alone_p99_ms)

    def broken(self, *, timed: bool = True) -> list[str]:
        """Which promises do not hold; ``timed``: that of the p99 as well, which a busy machine breaks."""
        found = []
        if self.failed:
            found.append(f"{len(self.failed)} of {self.sends} sends failed: {self.failed[0]}")
        if self.epochs[0] != self.epochs[1]:
            found.append(f"elections: epoch {self.epochs[0]} -> {self.epochs[1]}")
        if timed and self.p99_ms > self.bound_ms:
            found.append(f"p99 {self.p99_ms} ms, the bound is {self.bound_ms} ms")
        if self.damaged:
            found.append(f"damaged: {self.damaged}")
        if self.set_after != [1, 2, 3]:
            found.append(f"in sync afterwards: {self.set_after}")
        return found


class Range:
    """A cluster under attack. Use as ``async with Range(cluster)``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.env = OsEnv(seed=1)
        namesrv = ";".join(node.address for node in cluster.layout.namesrvs)
        self.producer = Producer(self.env, "normal", namesrv, SendOptions(timeout_s=30.0))

    async def __aenter__(self) -> Range:
        await self.producer.start()
        for topic in (TOPIC, VICTIM):
            await self.producer.send(Message(topic=topic, body=b"first"), timeout_s=20.0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.producer.stop()

    async def masters(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The master's /status and that of all brokers by name."""
        views = await self.cluster.views()
        found = {n.name: views[n.name] or {} for n in self.cluster.layout.broker_nodes}
        return next((view for view in found.values() if view.get("role") == "master"), {}), found

    async def send_for(self, seconds: float) -> Sends:
        """A send every ``PACE_S``, whatever becomes of those before."""
        loop, sends = asyncio.get_running_loop(), Sends()

        async def one() -> None:
            began = loop.time()
            try:
                await self.producer.send(Message(topic=TOPIC, body=b"x" * 100))
            except MqError as error:
                sends.failed.append(repr(error))
            sends.latencies_ms.append((loop.time() - began) * 1000)

        until, due, tasks = loop.time() + seconds, loop.time(), []
        while (now := loop.time()) < until:
            if now >= due:
                tasks.append(asyncio.create_task(one()))
                due = max(due + PACE_S, now)
            await asyncio.sleep(max(due - loop.time(), 0))
        await asyncio.gather(*tasks)
        return sends

    async def settled(self) -> dict[str, Any]:
        """Wait until the set is full; the status then. After half a minute, as it is."""
        for _ in range(60):
            status = await self.cluster.status()
            if not status["missing"]:
                break
            await asyncio.sleep(0.5)
        group: dict[str, Any] = status["groups"][0]
        return group

    async def attack(self, name: str, seconds: float, alone_s: float = ALONE_S) -> Row:
        """Send alone, beside the attack, and alone again."""
        await self.settled()
        alone = await self.send_for(alone_s)
        master, before = await self.masters()
        for _ in range(60):
            if master and all(before.values()):
                break
            await asyncio.sleep(0.5)  # on a busy machine one may not answer in time
            master, before = await self.masters()
        others = [view["address"] for view in before.values() if view is not master]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "bench" / "attackers.py")),
            *(name, ",".join([master["address"], *others]), str(seconds)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode().strip() == BEGAN, "the attacker did not begin"
        beside = await self.send_for(seconds)
        rss_mb = max(_rss_mb(n.pid) for n in self.cluster.layout.broker_nodes)
        out, _ = await process.communicate()
        assert process.returncode == 0, f"the attacker failed: {process.returncode}"
        after = await self.settled()
        alone.latencies_ms += (await self.send_for(alone_s)).latencies_ms
        slow = _slow((await self.masters())[1], before)
        epoch = after["epoch"] or 0
        return Row(
            name,
            len(beside.latencies_ms),
            beside.failed,
            alone.p(99),
            beside.p(50),
            beside.p(99),
            beside.p(100),
            (int(master["epoch"]), int(epoch)),
            after["syncStateSet"],
            (_rss_mb(master["pid"]), rss_mb),
            slow[0],
            slow[1],
            json.loads(out),
            [n for n, view in (await self.masters())[1].items() if view.get("damaged")],
        )


def _slow(after: dict[str, Any], before: dict[str, Any]) -> tuple[dict[str, int], float]:
    """What held a broker's loop since, how often, and the worst of the last few."""
    found: dict[str, int] = {}
    worst = 0.0
    for name, view in after.items():
        now, then = _turns(view), _turns(before.get(name) or {})
        for what, count in (now.get("byWhat") or {}).items():
            new = count - (then.get("byWhat") or {}).get(what, 0)
            if new > 0:
                found[what] = found.get(what, 0) + new
        old = then.get("last") or []
        worst = max([worst, *(turn["ms"] for turn in now.get("last") or [] if turn not in old)])
    return found, worst


def _turns(view: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (view.get("ports") or {}).get("slowTurns") or {}
    return found


def _rss_mb(pid: int | None) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return next((round(int(line.split()[1]) / 1024, 1) for line in text.splitlines() if "VmRSS" in line), 0.0)


async def fill(cluster: LocalCluster, topics: int) -> None:
    """Make so many topics at the master, 1,000 a request."""
    status = await cluster.status()
    client = RemotingClient(OsEnv(seed=2), "fill")
    try:
        for at in range(0, topics, 1000):
            table = [
                {"topicName": f"T{n:05}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
                for n in range(at, min(at + 1000, topics))
            ]
            command = Command(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, dumps({"topicConfigList": table}))
            answer = await client.call(status["groups"][0]["master"], command, 30.0)
            assert answer.code == 0, (answer.code, answer.remark)
    finally:
        await client.close()


async def run(names: Sequence[str], seconds: float, topics: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="keelmq-attacks-") as where:
        cluster = LocalCluster.create(Path(where))
        try:
            await cluster.up()
            if topics:
                await fill(cluster, topics)
            async with Range(cluster) as place:
                rows = []
                for name in names:
                    before = _logged(cluster)
                    rows.append(await place.attack(name, seconds))
                    print(markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
                    if rows[-1].broken():
                        print("\n".join(_told(cluster, before)), file=sys.stderr, flush=True)
                return rows
        finally:
            cluster.down()


def _logged(cluster: LocalCluster) -> dict[Path, int]:
    """How long the servers' logs are."""
    return {path: path.stat().st_size for path in sorted((cluster.directory / "log").glob("*.log"))}


def _told(cluster: LocalCluster, before: dict[Path, int]) -> list[str]:
    """What servers said since of events and of what held their loops: a row is gone when one asks why."""
    return [
        f"{path.stem}: {line}"
        for path in _logged(cluster)
        for line in path.read_bytes()[before.get(path, 0) :].decode("utf-8", "replace").splitlines()
        if any(word in line for word in ("event ", "held the event loop", "late to what was due"))
    ]


def markdown(rows: Sequence[Row]) -> str:
    lines = [
        "| attack | sends | failed | p99 alone, ms | p50 | p99 | worst | elections | RSS, MB |"
        " slow turns, worst ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        slow = ", ".join(f"{what} {count}" for what, count in row.slow_turns.items())
        lines.append(
            f"| {row.name} | {row.sends} | {len(row.failed)} | {row.alone_p99_ms} | {row.p50_ms}"
            f" | {row.p99_ms} | {row.worst_ms} | {row.epochs[1] - row.epochs[0]} | {row.rss_mb[1]:.0f}"
            f" | {slow + f', {row.slow_worst_ms:.0f}' if slow else ''} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument("--topics", type=int, default=0)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    rows = asyncio.run(run(told.only.split(","), told.seconds, told.topics))
    print(markdown(rows))
    if told.json:
        result = {"machine": machine(), "seconds": told.seconds, "topics": told.topics}
        told.json.write_text(
            json.dumps({**result, "rows": [asdict(row) for row in rows]}, indent=1) + "\n", encoding="utf-8"
        )
    broken = [f"{row.name}: {text}" for row in rows for text in row.broken()]
    print("\n".join(broken), file=sys.stderr)
    return 2 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
