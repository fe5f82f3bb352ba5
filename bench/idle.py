"""What does a cluster cost that has nothing to do? CPU per process, elections, memory, over an hour.

    python bench/idle.py [--seconds 3600] [--dir DIR] [--limit 2.0] [--json OUT]

Three NameServers with a Controller in each and three brokers, as ``keelmq cluster up`` makes them, are left
alone. Every minute a sample is taken and written: a run that is cut off still tells something. CPU is the
operating system's account of each process (user and system time from /proc); RSS growth counts from the first
sample after ``--settle`` seconds, when what is loaded on first use has been. Exit code 2: a process took more
than ``--limit`` percent of a core on average, or there was an election (a Raft term or an epoch of the group
changed), or a server ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.local.cluster import LocalCluster  # noqa: E402
from bench.provenance import machine  # noqa: E402

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
DONE, FAILED, UNFINISHED = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Use:
    """What one process has used so far: CPU seconds since its start, resident bytes now."""

    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes at one time. ``decided``: every Raft term and epoch of a group the servers know of."""

    at_s: float
    use: Mapping[str, Use]
    decided: Mapping[str, int]


def use_of(pid: int) -> Use:
    """Raises OSError when the process is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    # proc(5): utime and stime are fields 14 and 15; what follows the name begins with field 3.
    return Use((int(fields[11]) + int(fields[12])) / TICKS_PER_S, resident * PAGE_BYTES)


def decided(views: Mapping[str, Mapping[str, Any] | None]) -> dict[str, int]:
    """Raft terms by Controller, epochs by broker; a server that does not answer is left out."""
    found: dict[str, int] = {}
    for name, view in sorted(views.items()):
        controller = (view or {}).get("controller")
        if controller is not None:
            found[f"{name} term"] = int(controller["term"])
        elif view is not None:
            found[f"{name} epoch"] = int(view["epoch"])
    return found


def elections(samples: Sequence[Sample]) -> int:
    """How many terms and epochs passed: the largest growth any server saw."""
    first: dict[str, int] = {}
    most = 0
    for sample in samples:
        for name, value in sample.decided.items():
            most = max(most, value - first.setdefault(name, value))
    return most


def percent(earlier: Sample, later: Sample) -> dict[str, float]:
    """CPU of each process between two samples in percent of one core."""
    took_s = later.at_s - earlier.at_s
    return {
        name: round(100 * (use.cpu_s - earlier.use[name].cpu_s) / took_s, 2)
        for name, use in later.use.items()
        if name in earlier.use
    }


def report(samples: Sequence[Sample], limit: float, ended: str | None, wanted_s: float) -> dict[str, Any]:
    """The result as scripts read it."""
    first, last = samples[0], samples[-1]
    seconds = last.at_s - first.at_s
    cpu = percent(first, last) if seconds > 0 else {}
    counted = elections(samples)
    over = {name: value for name, value in cpu.items() if value > limit}
    return {
        "name": "idle",
        "seconds": round(seconds, 1),
        "complete": ended is None and seconds >= wanted_s * 0.99,
        "limit_percent": limit,
        "cpu_percent": cpu,
        "cpu_percent_max": max(cpu.values(), default=None),
        "rss_mb": {name: round(use.rss_bytes / 1e6, 1) for name, use in last.use.items()},
        "rss_growth_kb": {
            name: (use.rss_bytes - first.use[name].rss_bytes) // 1024
            for name, use in last.use.items()
            if name in first.use
        },
        "elections": counted,
        "ended": ended,
        "verdict": "missed" if over or counted or ended else "met",
        "minutes": [
            {
                "at_s": round(later.at_s, 1),
                "cpu_percent": percent(earlier, later),
                "rss_mb": {name: round(use.rss_bytes / 1e6, 1) for name, use in later.use.items()},
                "decided": dict(later.decided),
            }
            for earlier, later in pairwise(samples)
        ],
        "machine": machine(),
        "first": {name: asdict(use) for name, use in first.use.items()},
    }


def markdown(result: Mapping[str, Any]) -> str:
    lines = [
        f"Idle for {result['seconds']:.0f} s: {result['elections']} elections, "
        f"CPU at most {result['cpu_percent_max']} % of a core (limit {result['limit_percent']} %): "
        f"{result['verdict']}",
        "",
        "| process | CPU % of a core | RSS MB | RSS growth kB |",
        "|---|---|---|---|",
    ]
    for name, value in result["cpu_percent"].items():
        growth = result["rss_growth_kb"][name]
        lines.append(f"| {name} | {value:.2f} | {result['rss_mb'][name]:.1f} | {growth:+d} |")
    return "\n".join(lines)


async def watch(
    cluster: LocalCluster, seconds: float, settle_s: float, step_s: float, limit: float, out: Path | None
) -> dict[str, Any]:
    """Leave ``cluster`` alone for ``seconds`` and say what it did."""
    await cluster.up(tell=lambda text: print(text, file=sys.stderr))
    await asyncio.sleep(settle_s)
    samples: list[Sample] = []
    ended: str | None = None
    begun_s = time.monotonic()
    while True:
        gone = [node.name for node in cluster.layout.nodes if not cluster.is_running(node)]
        if gone:
            ended = f"{', '.join(gone)} ended"
        use = {
            node.name: use_of(node.pid) for node in cluster.layout.nodes if node.pid and node.name not in gone
        }
        at_s = time.monotonic() - begun_s
        samples.append(Sample(at_s, use, decided(await cluster.views())))
        result = report(samples, limit, ended, seconds)
        if out is not None:
            out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        if result["minutes"]:
            minute = result["minutes"][-1]
            print(json.dumps({"at_s": minute["at_s"], "cpu_percent": minute["cpu_percent"]}), flush=True)
        if ended is not None or at_s >= seconds:
            return result
        await asyncio.sleep(min(step_s, max(seconds - (time.monotonic() - begun_s), 0.01)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before the first sample")
    parser.add_argument("--step", type=float, default=60.0, help="seconds between two samples")
    parser.add_argument("--limit", type=float, default=2.0, help="percent of a core")
    parser.add_argument("--dir", type=Path, help="a cluster's directory [a temporary one]")
    parser.add_argument("--set", action="append", default=[], metavar="ROLE.KEY=V")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        print("needs /proc: run it on Linux", file=sys.stderr)
        return UNFINISHED
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="keelmq-idle-"))
    cluster = LocalCluster.create(directory, settings=arguments.set)
    try:
        result = asyncio.run(
            watch(
                cluster, arguments.seconds, arguments.settle, arguments.step, arguments.limit, arguments.json
            )
        )
    except KeyboardInterrupt:
        return UNFINISHED
    finally:
        cluster.down()
        if arguments.dir is None:
            shutil.rmtree(directory, ignore_errors=True)
    print(markdown(result))
    return FAILED if result["verdict"] == "missed" else DONE


if __name__ == "__main__":
    sys.exit(main())
