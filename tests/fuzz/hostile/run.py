"""A broker group of real processes, a hostile client from a seed, a calm one beside it, and a verdict.

    python -m tests.fuzz.hostile --seconds 3600 --seed 1 --dir DIR --json OUT.json

Three brokers, three NameServers with their Controllers, hardened as docs/security.md says; its tables are
bounded low, so that a run of minutes reaches each bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from admin.local.cluster import LocalCluster
from admin.local.layout import HOST, Node
from bench.provenance import machine
from runtime.os_env import OsDisk, OsEnv
from store.offline.verify import verify
from tests import ROOT
from tests.fuzz.hostile.attacker import places_to_json
from tests.fuzz.hostile.moves import Places
from tests.fuzz.hostile.neighbour import Neighbour, Phase
from tests.fuzz.hostile.watch import Logs, Look, Watch, growth

P99_MS: Final = 250.0
RATIO_MAX: Final = 5.0
"""On a busy machine: the p99 beside the hostile client to the p99 alone."""
GROWN_SHARE: Final = 0.1
GROWN_MIB: Final = 8.0
SETTLE_S: Final = 20.0
CALM_RATE: Final = 20
BOUNDS: Final = {
    "autoCreateTopicMax": "400",
    "autoCreateGroupMax": "400",
    "maxQueueLocks": "5000",
    "maxHeldPulls": "2000",
    "maxHeldPullsPerConnection": "200",
    "maxHeldPullBytes": str(8 << 20),
    "maxClientBytes": str(16 << 20),
    "maxBegunFrameBytes": str(16 << 20),
    "maxUnreadBytes": str(16 << 20),
    "maxUnreadBytesPerConnection": str(8 << 20),
    "serverChannelMaxIdleTimeSeconds": "20",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seconds: float
    seed: int = 1
    pace: float = 12.0  # moves a second
    alone_s: float = 10.0


def hardened(directory: Path) -> list[str]:
    """Settings of a cluster whose peers and slaves prove themselves."""
    directory.mkdir(parents=True, exist_ok=True)
    peers, ha = directory / "peers.json", directory / "ha.secret"
    for path, content in ((peers, json.dumps({"accessKey": "peers", "secretKey": "k" * 32})), (ha, "s" * 32)):
        path.write_text(content)
        path.chmod(0o600)
    broker = {"peerCredentialsFile": str(peers), "haSecretFile": str(ha), **BOUNDS}
    return [
        f"namesrv.peerCredentialsFile={peers}",
        *(f"broker.{name}={value}" for name, value in broker.items()),
    ]


def places_of(cluster: LocalCluster, master: Node) -> Places:
    layout = cluster.layout
    brokers = [master, *(node for node in layout.broker_nodes if node is not master)]
    return Places(
        [node.address for node in brokers],
        [f"{HOST}:{node.base_port}" for node in brokers],
        [node.address for node in layout.namesrvs],
        [node.controller_address for node in layout.namesrvs],
        [f"{HOST}:{node.ha_port}" for node in brokers],
        [node.raft_address for node in layout.namesrvs],
    )


class Attack:
    """The attacker's process."""

    def __init__(self, directory: Path, places: Places, options: Options) -> None:
        self._out = directory / "attack.json"
        found = directory / "places.json"
        found.write_text(places_to_json(places))
        arguments = [str(found), str(options.seed), str(options.pace), str(self._out)]
        self._log = (directory / "attacker.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.hostile.attacker", *arguments],
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def ended(self) -> int | None:
        return self._process.poll()

    async def stop(self) -> dict[str, Any]:
        """What it did. Raises AssertionError when it had ended before."""
        assert self.ended is None, f"the attacker ended by itself with {self.ended}"
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, 30)
        self._log.close()
        found = json.loads(self._out.read_text())
        assert isinstance(found, dict)
        return found

    def kill(self) -> None:
        if self.ended is None:
            self._process.kill()
            self._process.wait()


@contextlib.asynccontextmanager
async def clustered(directory: Path) -> AsyncIterator[LocalCluster]:
    settings = hardened(directory)
    cluster = LocalCluster.create(directory, settings=settings)
    try:
        await cluster.up()
        yield cluster
    finally:
        cluster.down()


async def run(directory: Path, options: Options) -> dict[str, Any]:
    """The result, JSON-ready; ``ok`` and ``checks`` say which promise did not hold."""
    async with clustered(directory) as cluster:
        watch = Watch(cluster)
        first = await watch.look()
        logs = Logs(cluster.directory)
        master = _master(cluster, first)
        namesrvs = [node.address for node in cluster.layout.namesrvs]
        async with Neighbour(OsEnv(seed=options.seed), namesrvs) as neighbour:
            alone, beside, done = await _phases(cluster, watch, neighbour, options, master)
            last = await _settled(watch, first)
            lost = await neighbour.lost()
        bad, warnings = logs.bad(), logs.warnings()  # before the orderly end says its own
        stores = [cluster.store_path(node) for node in cluster.layout.broker_nodes]
    verdicts = {path.name: verify(OsDisk(), str(path)) for path in stores}
    result: dict[str, Any] = {
        "options": {"seconds": options.seconds, "seed": options.seed, "movesPerSecond": options.pace},
        "machine": machine(),
        "load": {
            "median": round(median(look.load for look in watch.looks), 1),
            "highest": round(max(look.load for look in watch.looks), 1),
        },
        "neighbour": {
            "phases": [alone.to_json(), beside.to_json()],
            "acked": sum(map(len, neighbour.acked.values())),
            "lost": lost[:20],
        },
        "attack": done,
        "epochs": sorted({look.epoch for look in watch.looks if look.epoch is not None}),
        "elections": _elections(watch.looks),
        "leaders": sorted({look.leader for look in watch.looks if look.leader is not None}),
        "memoryMiB": growth(watch.looks),
        "cpuShare": _cpu(watch.looks),
        "after": _after(cluster, last),
        "badLines": bad[:50],
        "warnings": warnings,
        "stores": {n: {k: v[k] for k in ("ok", "records", "damage")} for n, v in verdicts.items()},
    }
    result["checks"] = _checks(result, first, last, long=options.seconds >= 600)
    result["ok"] = all(check["ok"] for check in result["checks"])
    return result


async def _phases(
    cluster: LocalCluster, watch: Watch, neighbour: Neighbour, options: Options, master: Node
) -> tuple[Phase, Phase, dict[str, Any]]:
    """The calm client alone, then beside the hostile one; and what that one did."""
    begun = [asyncio.create_task(neighbour.run()), asyncio.create_task(watch.run())]
    try:
        alone = await _phase(neighbour, Phase("alone"), options.alone_s, begun)
        attack = Attack(cluster.directory, places_of(cluster, master), options)
        try:
            beside = Phase("beside the hostile client")
            await _phase(neighbour, beside, options.seconds, begun, attack)
            return alone, beside, await attack.stop()
        finally:
            attack.kill()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


def _master(cluster: LocalCluster, look: Look) -> Node:
    for node in cluster.layout.broker_nodes:
        if (look.views[node.name] or {}).get("role") == "master":
            return node
    raise AssertionError("no master")


async def _phase(
    neighbour: Neighbour,
    phase: Phase,
    seconds: float,
    tasks: list[asyncio.Task[None]],
    attack: Attack | None = None,
) -> Phase:
    neighbour.phase = phase
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        done, _ = await asyncio.wait(tasks, timeout=min(1.0, left))
        for task in done:
            task.result()
            raise AssertionError("a client that runs on ended")
        assert attack is None or attack.ended is None, f"the attacker ended with {attack and attack.ended}"
    neighbour.phase = Phase("between")
    return phase


async def _settled(watch: Watch, first: Look) -> Look:
    """The first look at which nothing of the attacker is left, or the last one tried."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SETTLE_S
    while True:
        look = await watch.look()
        if _left(look, first) is None or loop.time() > until:
            return look
        await asyncio.sleep(1.0)


def _left(look: Look, first: Look) -> str | None:
    """What the attacker left open, or None."""
    for name, view in look.views.items():
        before = first.views[name] or {}
        for member, room in (("connections", 15), ("heldPulls", 5), ("parked", 5)):
            now, then = (view or {}).get(member), before.get(member)
            if isinstance(now, int) and isinstance(then, int) and now > then + room:
                return f"{name} has {now} {member}, {then} before"
    return None


def _elections(looks: list[Look]) -> list[dict[str, Any]]:
    """When another epoch was first seen, seconds from the first look, and what the load was then."""
    found: list[dict[str, Any]] = []
    seen = looks[0].epoch
    for look in looks:
        if look.epoch is not None and look.epoch != seen:
            seen = look.epoch
            at_s = round(look.at_s - looks[0].at_s, 1)
            found.append({"epoch": seen, "atS": at_s, "load": look.load, "master": look.master})
    return found


def _cpu(looks: list[Look]) -> dict[str, float]:
    """Cores by server, over the whole run."""
    took = looks[-1].at_s - looks[0].at_s
    return {
        name: round((looks[-1].cpu_s.get(name, 0.0) - before) / took, 3)
        for name, before in looks[0].cpu_s.items()
    }


def _after(cluster: LocalCluster, look: Look) -> dict[str, Any]:
    members = ("role", "epoch", "connections", "heldPulls", "parked", "ports", "damaged", "eventTotals")
    return {
        node.name: {key: (look.views[node.name] or {}).get(key) for key in members}
        for node in cluster.layout.broker_nodes
    }


def _checks(result: dict[str, Any], first: Look, last: Look, *, long: bool) -> list[dict[str, Any]]:
    alone, beside = result["neighbour"]["phases"]
    p99, p99_alone = beside["sendMs"]["p99"], alone["sendMs"]["p99"]
    busy = result["load"]["median"] >= result["machine"]["cores"]
    grown = {
        name: kinds["anon"]["grown"]
        for name, kinds in result["memoryMiB"].items()
        if long and kinds["anon"]["grown"] > max(GROWN_MIB, GROWN_SHARE * kinds["anon"]["afterWarmUp"])
    }
    found = [
        ("no election", result["epochs"] == [first.epoch], result["epochs"]),
        ("all replicas in sync at the end", last.sync_state_set == first.sync_state_set, last.sync_state_set),
        (
            "every server lives",
            set(last.memory) == set(first.memory) and all(last.views.values()),
            sorted(name for name, view in last.views.items() if view is None),
        ),
        ("acknowledged messages are readable", not result["neighbour"]["lost"], result["neighbour"]["lost"]),
        ("the neighbour's calls succeed", not beside["failed"], beside["failedFirst"]),
        (
            f"p99 of sends at most {P99_MS:.0f} ms, or {RATIO_MAX:.0f} times that alone on a busy machine",
            p99 <= P99_MS or (busy and p99 <= RATIO_MAX * p99_alone),
            {"p99Ms": p99, "aloneMs": p99_alone, "ratio": round(p99 / p99_alone, 1), "busy": busy},
        ),
        (
            "anonymous memory is flat after the warm-up",
            not grown,
            grown if long else "judged in long runs only",
        ),
        ("nothing of the attacker is left", _left(last, first) is None, _left(last, first)),
        ("no error, no traceback in a log", not result["badLines"], result["badLines"][:5]),
        (
            "stores verify",
            all(store["ok"] for store in result["stores"].values()),
            {name: store["damage"] for name, store in result["stores"].items() if not store["ok"]},
        ),
    ]
    return [{"check": name, "ok": bool(ok), "seen": seen} for name, ok, seen in found]
