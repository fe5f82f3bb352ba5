"""What official Java clients see of each kind of messages while master after master dies.

    python bench/kinds.py [--kills 20] [--json OUT] [--markdown OUT]

One group of three keelmq brokers with three Controllers, and one JVM with unmodified clients of RocketMQ
5.5.0 (``FailoverKinds.java``) that sends and consumes each kind all the time: transactions (of four one
rolled back, one left open), delay levels, timer messages, orderly, retries and dead letters, POP,
request and reply, SQL92, traces. The master is killed (SIGKILL) ``--kills`` times; the killed broker
comes back, and the next is killed when the SyncStateSet is full again and ``--calm`` seconds have
passed. So each kill is in the middle of every kind. It ends when all that was acknowledged has come, or
``--patience`` seconds after the last send.

``acked``: sends that the client was told are stored, and that its consumer must get; ``lost``: of these,
not got; ``again``: deliveries beyond the first; ``failed``: sends that ended with an exception (they may
come); ``wrong``: rolled back and delivered, out of order, not popped, another one's reply, or not what
the expression takes; ``early``: delivered more than a second before its time. Exit code 1 when a kind
lost one or did wrong; a trace may be lost by the client itself, which gives up what it cannot send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.cluster import LocalCluster  # noqa: E402
from admin.local.layout import HOST, free_base_port  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402
from chaos.worlds.live import CannotDrill, LiveWorld  # noqa: E402
from client.admin import AdminClient  # noqa: E402
from model.codes import Request  # noqa: E402
from remoting import bodies  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

KINDS: Final = (
    *("transaction", "delay", "timer", "orderly", "retry"),
    *("dead_letter", "pop", "request_reply", "sql", "trace"),
)
NO_TOPIC: Final = ("dead_letter",)
OF_THE_CLIENT: Final = ("trace",)
"""What the client itself may give up."""
SETTINGS: Final = (
    "broker.enablePropertyFilter=true",
    "broker.traceTopicEnable=true",
    "broker.transactionTimeOut=2000",
    "broker.transactionCheckInterval=2000",
    "broker.messageDelayLevel=1s 5s 10s",
)
FULL_S: Final = 60.0
Row = dict[str, int]


def row_of(line: str) -> tuple[str, Row]:
    """A line of ``FailoverKinds``: kind, then name=number. Raises ValueError."""
    word, kind, *counts = line.split()
    if word != "kind" or kind not in KINDS:
        raise ValueError(f"not a kind: {line!r}")
    return kind, {name: int(number) for name, number in (one.split("=") for one in counts)}


def faults(rows: dict[str, Row]) -> list[str]:
    """What must not be: kinds that are missing, sent nothing, lost one, or did wrong."""
    found = [f"{kind}: nothing was sent" for kind in KINDS if not rows.get(kind, {}).get("acked")]
    for kind, row in rows.items():
        for what in ("lost", "wrong", "early"):
            if row[what] and not (kind in OF_THE_CLIENT and what == "lost"):
                found.append(f"{kind}: {row[what]} {what}")
    return found


class Clients:
    """The JVM; its lines but for those of kinds go to ``log``."""

    def __init__(self, namesrv: list[str], directory: Path, given: argparse.Namespace) -> None:
        self._directory = directory
        self._command = rocketmq.java(
            "FailoverKinds",
            ";".join(namesrv),
            str(given.pace),
            str(int(given.patience * 1000)),
            classes=rocketmq.compile_java(Path(__file__).with_name("FailoverKinds.java")),
            user_home=directory,
            heap_mb=384,
        )

    async def start(self) -> None:
        """Raises CannotDrill."""
        pipe = asyncio.subprocess.PIPE
        self._errors = (self._directory / "errors").open("ab")
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=self._errors
        )
        if await self._until(b"begun", 90) is None:
            raise CannotDrill(
                f"the clients did not start: {(self._directory / 'errors').read_text()[-2000:]}"
            )

    async def end(self, patience_s: float) -> dict[str, Row]:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        lines = await self._until(b"done", patience_s + 60)
        return dict(row_of(line.decode()) for line in lines or () if line.startswith(b"kind "))

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._errors.close()

    async def _until(self, last: bytes, timeout_s: float) -> list[bytes] | None:
        """The lines up to ``last``; None when it did not come."""
        assert self._process.stdout is not None
        found: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                async for line in self._process.stdout:
                    if line.strip() == last:
                        return found
                    found.append(line)
        except TimeoutError:
            pass
        return None


async def prepare(env: OsEnv, world: LiveWorld) -> None:
    """A topic of each kind; the group that pops is told to."""
    async with AdminClient(env, world.namesrv) as admin:
        for kind in KINDS:
            if kind not in NO_TOPIC:
                await admin.create_topic(f"Kinds_{kind}", 4, brokers=[world.group])
        master = (await admin.cluster_info()).brokers[world.group][0]
        mode = {
            "topic": "Kinds_pop",
            "consumerGroup": "kinds_Kinds_pop",
            "mode": "POP",
            "popShareQueueNum": 0,
        }
        await admin.session.call(master, Request.SET_MESSAGE_REQUEST_MODE, {}, bodies.dumps(mode))


async def campaign(directory: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Raises CannotDrill."""
    env = OsEnv(seed=given.seed)
    chance = random.Random(given.seed)
    settings = list(SETTINGS)
    if given.group_address:
        settings.append(f"broker.groupAddress={HOST}:{free_base_port(10)}")
    cluster = LocalCluster.create(directory / "cluster", settings=settings)
    try:
        await cluster.up()
        world = LiveWorld(env, cluster)
        await world.wait_full(FULL_S)
        await prepare(env, world)
        (directory / "java").mkdir()
        clients = Clients(list(world.namesrv), directory / "java", given)
        await clients.start()
        try:
            begun = time.monotonic()
            kills = 0
            await asyncio.sleep(given.calm)
            while kills < given.kills and time.monotonic() < begun + given.limit:
                await world.wait_full(FULL_S)
                await asyncio.sleep(given.calm * chance.uniform(0.5, 1.5))
                victim = await world.choose("kill-master", chance)
                await world.inflict("kill-master", victim)
                kills += 1
                print(f"{time.monotonic() - begun:6.1f} s: kill {kills} of {given.kills}", file=sys.stderr)
                await asyncio.sleep(given.down)
                await world.mend("kill-master", victim)
            await world.wait_full(FULL_S)
            rows = await clients.end(given.patience)
        finally:
            await clients.stop()
    finally:
        cluster.down()
    told = {"groupAddress": given.group_address, "kills": kills}
    return {**told, "seconds": round(time.monotonic() - begun), "kinds": rows, "faults": faults(rows)}


def markdown(found: dict[str, Any]) -> str:
    names = ("acked", "lost", "again", "failed", "wrong", "early")
    lines = [f"| kind | kills | {' | '.join(names)} |", "|" + "---|" * (2 + len(names))]
    for kind, row in found["kinds"].items():
        lines.append(f"| {kind} | {found['kills']} | {' | '.join(str(row[name]) for name in names)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--limit", type=float, default=900.0, help="no kill after so many seconds")
    parser.add_argument(
        "--calm", type=float, default=4.0, help="seconds between a full set and a kill, about"
    )
    parser.add_argument("--down", type=float, default=3.0, help="seconds until the killed one comes back")
    parser.add_argument("--pace", type=int, default=100, help="ms between two sends of a kind")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--group-address", action="store_true", help="of the master, whichever it is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    missing = rocketmq.unavailable()
    if missing:
        print(f"cannot run the Java clients here: {missing}", file=sys.stderr)
        return 3
    rocketmq.fetch()
    with tempfile.TemporaryDirectory(prefix="keelmq-kinds-") as directory:
        found = asyncio.run(campaign(Path(directory), given))
    table = markdown(found)
    print(table)
    if given.markdown is not None:
        given.markdown.write_text(table + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps({"name": "kinds", **found, "machine": machine()}, indent=2) + "\n")
    for fault in found["faults"]:
        print(fault, file=sys.stderr)
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
