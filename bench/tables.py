"""What do 20,000 topics and 20,000 groups cost, beside 20?

    python bench/tables.py [--sizes 20,20000] [--changes 40] [--kills 3] [--json OUT]

A group of three brokers with three NameServers, defaults. For each size: topics and groups are made, 1,000 a
request, and one message is sent to each topic, so that each has a queue on disk. Then changes are made one by
one, a slave is stopped and started, and the master is killed while a producer sends every 5 ms. CPU times of
the processes tell more than wall times, which follow how busy the machine is. Prints Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.cluster import LocalCluster  # noqa: E402
from admin.local.layout import Node  # noqa: E402
from bench.provenance import machine  # noqa: E402
from client.message import Message  # noqa: E402
from client.sending.options import SendOptions  # noqa: E402
from client.sending.producer import Producer  # noqa: E402
from model.codes import Request  # noqa: E402
from model.errors import MqError  # noqa: E402
from remoting.bodies import dumps  # noqa: E402
from remoting.codec import Command  # noqa: E402
from remoting.service import RemotingClient  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
A_REQUEST: Final = 1000
A_ROUND: Final = 100
CALL_S: Final = 60.0


def cpu_s(pid: int | None) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def rss_mb(pid: int | None) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


Entry = Callable[[int], dict[str, Any]]


class Site:
    """One cluster with so many topics and groups."""

    def __init__(self, cluster: LocalCluster, size: int) -> None:
        self.cluster = cluster
        self.size = size
        self.found: dict[str, Any] = {"size": size}
        self._client = RemotingClient(OsEnv(seed=3), "tables")
        self._made = 0

    async def close(self) -> None:
        await self._client.close()

    async def master(self) -> Node:
        """Once the group is whole."""
        await self.cluster.wait_ready(timeout_s=120)
        views = await self.cluster.views()
        return next(n for n in self.cluster.layout.broker_nodes if (views[n.name] or {})["role"] == "master")

    async def ask(self, node: Node, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        answer = await self._client.call(node.address, Command(int(code), ext or {}, body), CALL_S)
        assert answer.code == 0, (code, answer.code, answer.remark)

    def pids(self, master: Node) -> dict[str, list[int | None]]:
        layout = self.cluster.layout
        return {
            "master": [master.pid],
            "slave": [node.pid for node in layout.broker_nodes if node is not master],
            "nameserver": [node.pid for node in layout.namesrvs],
        }

    async def cost(
        self, name: str, count: int, work: Callable[[int], Awaitable[None]], settle_s: float = 0.5
    ) -> None:
        """CPU ms of one of ``count`` repetitions, at each kind of process, less what it takes at rest."""
        master = await self.master()
        pids = self.pids(master)

        def now() -> dict[str, float]:
            return {kind: sum(map(cpu_s, of)) / len(of) for kind, of in pids.items()}

        rest, began_s = now(), time.monotonic()
        await asyncio.sleep(2.0)
        before = now()
        rest_s = {kind: (before[kind] - rest[kind]) / (time.monotonic() - began_s) for kind in pids}
        began_s = time.monotonic()
        for n in range(count):
            await work(n)
        took_s = time.monotonic() - began_s
        await asyncio.sleep(settle_s)
        after, all_s = now(), time.monotonic() - began_s
        self.found[name] = {
            "wallMs": round(took_s / count * 1000, 2),
            **{
                f"{kind}CpuMs": round((after[kind] - before[kind] - rest_s[kind] * all_s) / count * 1000, 2)
                for kind in pids
            },
        }
        self.found["restCpuPercent"] = {kind: round(rest_s[kind] * 100, 1) for kind in pids}

    async def make(self) -> None:
        """All topics and groups, a message in each topic."""
        master = await self.master()

        async def lists(
            kind: str, code: Request, member: str, entry: Callable[[int], dict[str, Any]]
        ) -> None:
            cpu, began_s = cpu_s(master.pid), time.monotonic()
            for at in range(0, self.size, A_REQUEST):
                entries = [entry(n) for n in range(at, min(at + A_REQUEST, self.size))]
                await self.ask(master, code, {}, dumps({member: entries}))
            took_s = time.monotonic() - began_s
            self.tell(f"{kind} made in {took_s:.1f} s")
            self.found[f"{kind}PerS"] = round(self.size / took_s)
            self.found[f"{kind}CpuUs"] = round((cpu_s(master.pid) - cpu) / self.size * 1e6)

        await lists("topics", Request.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", topic)
        await lists("groups", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", group)
        async with Producer(OsEnv(seed=4), "pg", self._namesrv(), SendOptions(timeout_s=60.0)) as producer:
            for at in range(0, self.size, A_ROUND):
                names = [f"T{n:05}" for n in range(at, min(at + A_ROUND, self.size))]
                await asyncio.gather(*(producer.send(Message(topic=name, body=b"x")) for name in names))
        master = await self.master()
        self.found["masterRssMb"] = rss_mb(master.pid)
        self.tell("masterRssMb")

    async def changes(self, count: int) -> None:
        master = await self.master()

        async def put_topic(n: int, queues: int = 5) -> None:
            ext = {"topic": f"T{n % self.size:05}", "perm": "6", "topicSysFlag": "0", "order": "false"}
            ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "defaultTopic": "TBW102"}
            await self.ask(master, Request.UPDATE_AND_CREATE_TOPIC, ext | {"topicFilterType": "SINGLE_TAG"})

        async def new_topic(n: int) -> None:
            ext = {"topic": f"New{n}", "perm": "6", "readQueueNums": "4", "writeQueueNums": "4"}
            await self.ask(master, Request.UPDATE_AND_CREATE_TOPIC, ext)

        async def delete_topic(n: int) -> None:
            await self.ask(master, Request.DELETE_TOPIC_IN_BROKER, {"topic": f"New{n}"})

        async def put_group(n: int) -> None:
            body = dumps(group(n % self.size) | {"retryMaxTimes": 3})
            await self.ask(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

        async def commit(n: int) -> None:
            ext = {"consumerGroup": f"G{n % self.size:05}", "topic": f"T{n % self.size:05}", "queueId": "0"}
            await self.ask(master, Request.UPDATE_CONSUMER_OFFSET, ext | {"commitOffset": "1"})

        for name, work in {
            "newTopic": new_topic,
            "changeTopic": put_topic,
            "changeGroup": put_group,
            "deleteTopic": delete_topic,
            "commit": commit,
        }.items():
            await self.cost(name, count, work)
            self.tell(name)

    def tell(self, what: str) -> None:
        print(f"{self.size}: {what} {self.found.get(what, '')}", file=sys.stderr, flush=True)

    async def start(self) -> None:
        """Stop a slave and start it: until it says that it serves, and until it is in sync."""
        master = await self.master()
        node = next(node for node in self.cluster.layout.broker_nodes if node is not master)
        log = self.cluster.log_path(node)
        self.cluster.send_signal(node, signal.SIGTERM)
        await ended(self.cluster, node)
        size = log.stat().st_size
        began_s = time.monotonic()
        self.cluster.start(node)
        await until(lambda: b"ready broker" in log.read_bytes()[size:])
        ready_s = time.monotonic() - began_s
        cpu = cpu_s(node.pid)
        await self.cluster.wait_ready(timeout_s=120)
        whole_s = time.monotonic() - began_s
        self.found["start"] = {
            "readyS": round(ready_s, 2),
            "readyCpuS": round(cpu, 2),
            "inSyncS": round(whole_s, 2),
            "inSyncCpuS": round(cpu_s(node.pid), 2),
        }

    async def failovers(self, kills: int) -> None:
        """Kill the master while a producer sends: the longest time between two acknowledgements."""
        gaps = []
        for _ in range(kills):
            master = await self.master()
            options = SendOptions(timeout_s=60.0)
            async with Producer(OsEnv(seed=4), "pg", self._namesrv(), options) as producer:
                sending = asyncio.create_task(acknowledgements(producer, 5.0))
                await asyncio.sleep(1.5)
                killed_s = time.monotonic()
                self.cluster.send_signal(master, signal.SIGKILL)
                times = [*await sending, time.monotonic()]
                gaps.append(round(max(b - a for a, b in pairwise(times) if b >= killed_s) * 1000))
            self.tell(f"failovers {gaps}")
            await ended(self.cluster, master)
            self.cluster.start(master)
        self.found["failoverMs"] = sorted(gaps)

    def _namesrv(self) -> str:
        return ";".join(node.address for node in self.cluster.layout.namesrvs)


async def acknowledgements(producer: Producer, seconds: float) -> list[float]:
    """When each send of so long was acknowledged, by the monotonic clock."""
    found = [time.monotonic()]
    until_s = found[0] + seconds
    while time.monotonic() < until_s:
        with contextlib.suppress(MqError):
            await producer.send(Message(topic="T00001", body=b"x"))
            found.append(time.monotonic())
        await asyncio.sleep(0.005)
    return found


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.005)


async def ended(cluster: LocalCluster, node: Node) -> None:
    await until(lambda: not cluster.is_running(node))


def topic(n: int) -> dict[str, Any]:
    return {"topicName": f"T{n:05}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


def group(n: int) -> dict[str, Any]:
    return {"groupName": f"G{n:05}", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}


async def measure(size: int, changes: int, kills: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="keelmq-tables-") as where:
        cluster = LocalCluster.create(Path(where))
        site = Site(cluster, size)
        try:
            await cluster.up()
            await site.make()
            await site.changes(changes)
            await site.start()
            await site.failovers(kills)
        except BaseException:
            for node in cluster.layout.broker_nodes:
                lines = cluster.log_path(node).read_text(encoding="utf-8").splitlines()
                print(f"--- {node.name}", *lines[-15:], sep="\n", file=sys.stderr)
            raise
        finally:
            await site.close()
            cluster.down()
        return site.found


def markdown(results: list[dict[str, Any]]) -> str:
    def flat(found: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for name, value in found.items():
            for part, number in value.items() if isinstance(value, dict) else [("", value)]:
                out[f"{name} {part}".strip()] = number
        return out

    rows = [flat(result) for result in results]
    lines = ["| |" + "".join(f" {row['size']} |" for row in rows), "|---|" + "---|" * len(rows)]
    lines += [
        f"| {name} |" + "".join(f" {row.get(name, '')} |" for row in rows)
        for name in rows[-1]
        if name != "size"
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="20,20000")
    parser.add_argument("--changes", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    results = []
    for size in map(int, told.sizes.split(",")):
        results.append(asyncio.run(measure(size, told.changes, told.kills)))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(markdown(results))
    if told.json:
        text = json.dumps({"machine": machine(), "results": results}, indent=1)
        told.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
