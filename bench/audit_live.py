"""Does an audit beside a running group say anything false of failovers, and how soon does it tell damage?

    python bench/audit_live.py [--target keelmq|rocketmq] [--failovers 10] [--flips 3] [--json OUT]

``keelmq audit --continuous`` runs beside three brokers under load, whose master is killed again and again.
Nothing that it said may be left when all are back: its exit code is 0, and no error of it was another than
how the log of a dead replica ended. (A kill costs RocketMQ entries of its index. Where the audit says so the
brokers are asked by that key: it is true if that one finds nothing and another does, or, where all were
killed since, has the message and does not find it.) Then all is audited
with the ledger of what was acknowledged. Then, under load again, one byte is flipped in the segment that each
replica writes: it has to be told, alone, and the seconds from the moment when the log goes on in the next
segment are taken. Exit code 1: something false was said, or a flipped byte was not told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.host.serve import loop_factory  # noqa: E402
from admin.local.cluster import LocalCluster  # noqa: E402
from admin.tls import client_env  # noqa: E402
from audit.continuous import ENDS, HISTORY  # noqa: E402
from audit.findings import ERROR, EXIT_CODES  # noqa: E402
from audit.reading.records.record import MAGIC_BLANK  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.drills import ledger  # noqa: E402
from chaos.drills.campaign import CampaignPlan, campaign_line, run_campaign  # noqa: E402
from chaos.drills.load import DrillLoad, DrillPlan, make_topic  # noqa: E402
from chaos.drills.measure import Drill  # noqa: E402
from chaos.worlds.live import LiveWorld, World  # noqa: E402
from chaos.worlds.rocketmq_live import RocketMQWorld  # noqa: E402
from client.admin import AdminClient  # noqa: E402
from client.consuming.pull import parse_records  # noqa: E402
from client.message import Queue  # noqa: E402
from model.codes import Request, Response  # noqa: E402
from model.errors import Refused  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402

Stores = dict[str, Path]
Addresses = dict[str, str]

FAULT: Final = "kill-master"
TIMES_S: Final = {"keelmq": (30.0, 60.0), "rocketmq": (75.0, 240.0)}
"""Until a queue is served again, and until all replicas are in the SyncStateSet again."""
IN_BODY: Final = 95
"""Behind a record's start: its body begins at 88."""
RECORDS_MIN: Final = 20
"""A segment that has fewer has only just begun."""
TOLD_S: Final = 120.0
POLL_S: Final = 0.05


class Watched:
    """The continuous audit, a process of its own, and what it said when."""

    def __init__(self, stores: Stores, out: Path, every_s: float) -> None:
        named = [f"{name}={path}" for name, path in stores.items()]
        self._arguments = [*named, "--continuous", "--every", str(every_s), "--out", str(out)]
        self.out = out
        self.lines: list[tuple[float, str]] = []

    async def start(self) -> None:
        self._process = await _keelmq("audit", *self._arguments, stdout=asyncio.subprocess.PIPE)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append((time.monotonic(), line.decode().rstrip()))

    def told_at(self, name: str, offset: int) -> float | None:
        """When it first named damage of this place; None: not yet."""
        for at, line in self.lines:
            if line.startswith(f"+ {ERROR} ") and f" {name} " in line and f"[{offset}," in line:
                return at
        return None

    async def end(self) -> int:
        """Its exit code: the verdict of all that it found and that counts."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await self._reading
        return await self._process.wait()

    def history(self) -> list[dict[str, Any]]:
        path = self.out / HISTORY
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def _keelmq(*arguments: str, stdout: int) -> asyncio.subprocess.Process:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", *arguments, env=environ, stdout=stdout
    )


@asynccontextmanager
async def running(
    target: str, env: OsEnv, folder: Path, segment: int
) -> AsyncIterator[tuple[World, Stores, Addresses]]:
    """Three brokers and three Controllers of small segments, and where the brokers' stores and ports are."""
    settings = [f"broker.mappedFileSizeCommitLog={segment}"]
    if target == "rocketmq":
        theirs = RocketMQWorld(env, folder, settings=settings)
        try:
            await theirs.start(print)
            stores = {node.name: folder / node.name / "store" for node in theirs.brokers}
            yield theirs, stores, theirs.broker_addresses
        finally:
            await theirs.stop()
        return
    cluster = LocalCluster.create(folder, settings=settings)
    try:
        await cluster.up()
        brokers = cluster.layout.broker_nodes
        stores = {node.name: cluster.store_path(node) for node in brokers}
        yield LiveWorld(env, cluster), stores, {node.name: node.address for node in brokers}
    finally:
        cluster.down()


def records_of(segment: Path) -> list[int]:
    """Where records begin in a segment, from its start."""
    found, at = [], 0
    data = segment.read_bytes()
    while at + 8 <= len(data):
        size, magic = int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])
        if size <= 0 or magic == MAGIC_BLANK:
            break
        found.append(at)
        at += size
    return found


async def flipped(store: Path) -> int:
    """Flip a byte of a body in the middle of what the newest segment holds; the offset of its record."""
    while True:
        for path in sorted((store / "commitlog").glob("[0-9]" * 20), reverse=True):
            begins = records_of(path)
            if len(begins) >= RECORDS_MIN and not sealed(store, path):
                at = begins[len(begins) // 2]
                with path.open("r+b") as file:
                    file.seek(at + IN_BODY)
                    (byte,) = file.read(1)
                    file.seek(at + IN_BODY)
                    file.write(bytes([byte ^ 1]))
                return int(path.name) + at
        await asyncio.sleep(POLL_S)


def sealed(store: Path, segment: Path) -> bool:
    """Whether the log goes on in the next one."""
    following = store / "commitlog" / f"{int(segment.name) + segment.stat().st_size:020d}"
    if not following.exists():
        return False
    with following.open("rb") as file:
        return any(file.read(8))


async def flip(name: str, store: Path, role: str, watched: Watched) -> dict[str, Any]:
    """One byte of one replica, and how long after its segment was sealed it was told."""
    offset = await flipped(store)
    base = max(p for p in (store / "commitlog").glob("[0-9]" * 20) if int(p.name) <= offset)
    until, sealed_at = time.monotonic() + TOLD_S, None
    while time.monotonic() < until and (sealed_at is None or watched.told_at(name, offset) is None):
        if sealed_at is None and sealed(store, base):
            sealed_at = time.monotonic()
        await asyncio.sleep(POLL_S)
    told_at = watched.told_at(name, offset)
    seconds = round(told_at - sealed_at, 2) if told_at is not None and sealed_at is not None else None
    return {"replica": name, "role": role, "offset": offset, "told_s": seconds}


async def failovers(
    options: argparse.Namespace, env: OsEnv, world: World, stores: Stores, out: Path
) -> dict[str, Any]:
    """Kills under load with the audit beside them, and an audit with the ledger behind them."""
    watched = Watched(stores, out, options.every)
    await watched.start()
    plan = CampaignPlan(drill=_plan(options), repeat=options.failovers)

    def shown(number: int, drill: Drill) -> None:
        print(campaign_line(number, plan, drill), flush=True)

    try:
        campaign, history = await run_campaign(
            env, world, plan, env_of=partial(_env, options.seed), done=shown
        )
    finally:
        code = await watched.end()
    told = campaign.to_json(plan.drill, options.target)
    ledger.write(history, out / "acked.jsonl")
    named = [f"{name}={path}" for name, path in stores.items()]
    more = ["--ledger", str(out / "acked.jsonl"), "--out", str(out / "ledger"), "--json"]
    process = await _keelmq("audit", *named, *more, stdout=asyncio.subprocess.PIPE)
    summary = json.loads((await process.communicate())[0])
    return {
        "drills": len(campaign.drills),
        "seconds": told["seconds"],
        "rto_p50_ms": told["rto_p50_ms"],
        **{name: told[f"{name}_total"] for name in ("acked", "failed", "unknown", "lost", "phantom")},
        "unfinished": told["unfinished"],
        "segments": max(len(list((path / "commitlog").iterdir())) for path in stores.values()),
        "exit_code": code,
        "said": watched.history(),
        "with_ledger": {"verdict": summary["verdict"], "records": summary["records"]},
    }


async def asked(
    env: OsEnv, world: World, addresses: Addresses, said: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What the brokers find by the key of a record that the audit says is in no IndexFile: how often the
    replica does, and how often the others do, or whether it has the message: there was something to find."""
    rows = []
    async with AdminClient(env, world.namesrv) as admin:
        for row in said:
            if row["kind"] != "index_missing" or row["gone"]:
                continue
            found = {name: await by_key(admin, at, row) for name, at in addresses.items()}
            here = found.pop(row["replica"])
            has = await by_place(admin, addresses[row["replica"]], row)
            told = {"id": row["id"], "key": row["uniq_key"], "finds": here, "others_find": found}
            rows.append(told | {"has_message": has})
            print(json.dumps(rows[-1]), flush=True)
    return rows


async def by_key(admin: AdminClient, address: str, row: dict[str, Any]) -> int:
    """How many messages one broker finds by the key of ``row``."""
    header = {"topic": row["topic"], "key": row["uniq_key"], "maxNum": "32"}
    header |= {"beginTimestamp": "0", "endTimestamp": str(2**62), "_UNIQUE_KEY_QUERY": "true"}
    try:
        answer = await admin.session.call(address, Request.QUERY_MESSAGE, header)
    except Refused as error:
        if error.code == Response.QUERY_NOT_FOUND:
            return 0
        raise
    return len(parse_records(answer.body, ""))


async def by_place(admin: AdminClient, address: str, row: dict[str, Any]) -> bool:
    """Does one broker read the message of ``row`` where its log has it?"""
    try:
        answer = await admin.session.call(
            address, Request.VIEW_MESSAGE_BY_ID, {"offset": str(row["phys_offset"])}
        )
    except Refused:
        return False
    return str(row["uniq_key"]).encode() in answer.body


async def flips(
    options: argparse.Namespace, env: OsEnv, world: World, stores: Stores, out: Path
) -> dict[str, Any]:
    """Load, and a byte of one replica after the other."""
    watched = Watched(stores, out, options.every)
    topic = f"flips_{options.seed}"
    await make_topic(env, world, topic, 4)
    queues = [Queue(topic, world.group, queue_id) for queue_id in range(4)]
    chance = random.Random(options.seed)
    load = DrillLoad(partial(_env, options.seed + 1), world, _plan(options), queues, 1, chance)
    master = (await world.choose(FAULT, chance)).name
    rows = []
    await load.start()
    await watched.start()
    try:
        for name in (list(stores) * options.flips)[: options.flips]:
            role = "master" if name == master else "slave"
            rows.append(await flip(name, stores[name], role, watched))
            print(json.dumps(rows[-1]), flush=True)
        await load.stop(30.0)
    finally:
        await load.close()
        code = await watched.end()
    return {"rows": rows, "exit_code": code, "said": watched.history()}


def false_of(found: dict[str, Any]) -> list[str]:
    """What was said and is not true, or is true and was not said."""
    before, after = found["failovers"], found["flips"]
    true = {row["id"] for row in before["asked"] if not row["finds"] and _is_there(row)}
    verdict = "warnings" if true else "clean"
    wrong = []
    if before["exit_code"] != EXIT_CODES[verdict]:
        wrong.append(f"the exit code behind the failovers is {before['exit_code']}")
    if before["unfinished"]:
        wrong.append(f"the failovers did not end: {before['unfinished']}")
    if before["with_ledger"]["verdict"] != verdict:
        wrong.append(f"with the ledger: {before['with_ledger']['verdict']}")
    stays = [row for row in before["said"] if not row["gone"] or _is_damage(row)]
    wrong += [_said(row) for row in stays if row["id"] not in true]
    places = {(row["replica"], row["offset"]) for row in after["rows"]}
    told = [row for row in after["said"] if _is_damage(row)]
    wrong += [_said(row) for row in told if (row["replica"], row["phys_offset"]) not in places]
    wrong += [f"{row['replica']}: not told" for row in after["rows"] if row["told_s"] is None]
    return wrong


def _is_there(asked_: dict[str, Any]) -> bool:
    return any(asked_["others_find"].values()) or asked_["has_message"]


def _is_damage(row: dict[str, Any]) -> bool:
    return row["severity"] == ERROR and row["kind"] not in ENDS


def _said(row: dict[str, Any]) -> str:
    return f"{row['severity']} {row['kind']} {row['replica']} at {row['phys_offset']}, gone {row['gone']}"


def _plan(options: argparse.Namespace) -> DrillPlan:
    recover_s, full_s = TIMES_S[options.target]
    return DrillPlan(
        scenario=FAULT,
        rate=options.rate,
        in_flight=4,
        size_bytes=1024,
        seed=options.seed,
        after_s=options.after,
        recover_s=recover_s,
        full_s=full_s,
    )


def _env(seed: int, index: int) -> OsEnv:
    """Each client's own chance, else two of them would invent the same names."""
    return client_env(seed=seed * 1_000 + index)


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine(), "target": options.target, "every_s": options.every}
    found |= {"rate": options.rate, "segment_kib": options.segment_kib}
    env = client_env(seed=options.seed)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as folder:
        out = Path(folder)
        async with running(options.target, env, out / "cluster", options.segment_kib << 10) as (
            world,
            stores,
            addresses,
        ):
            before = found["failovers"] = await failovers(options, env, world, stores, out / "failovers")
            before["asked"] = await asked(env, world, addresses, before["said"])
            found["flips"] = await flips(options, env, world, stores, out / "flips")
    found["load_at_end"] = round(os.getloadavg()[0], 1)
    found["false"] = false_of(found)
    return found


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=list(TIMES_S), default="keelmq")
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--flips", type=int, default=3)
    parser.add_argument("--rate", type=float, default=400.0, help="messages/s of 1 KiB")
    parser.add_argument("--segment-kib", type=int, default=2048)
    parser.add_argument("--every", type=float, default=2.0, help="of the audit: seconds between two looks")
    parser.add_argument("--after", type=float, default=3.0, help="seconds of load behind each failover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(measured(options))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("target", "false")}))
    return 1 if found["false"] else 0


if __name__ == "__main__":
    sys.exit(main())
