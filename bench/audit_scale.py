"""What would an audit by Spark shuffle, hold and cost at 100 million records, and at 10 billion?

    python bench/audit_scale.py [--segments 2,4,8] [--segment-mib 128] [--json OUT]

Audits three replicas of so many segments on this machine, with a ledger of all their messages, and reads
Spark's own event log: what each question shuffled, and what was kept. What a
record costs is the slope between the smallest and the largest; ``bend`` is how far the one between lies off
that line. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.audit import RECORD, REPLICAS, audited, make, write_ledger  # noqa: E402
from bench.provenance import machine  # noqa: E402

MIB: Final = 1 << 20
SCALES: Final = {"100 M": 100_000_000, "10 G": 10_000_000_000}
CORES: Final = 100
QUESTION: Final = "spark.job.description"
PREFIX: Final = "keelmq audit: "
ALL: Final = "all together"
PROCESSES: Final = {
    "the driver's JVM": "peak_of_java_mib",
    "the driver's Python": "peak_mib",
    "a worker": "peak_of_others_mib",
}


def questions(lines: Iterable[str]) -> dict[str, dict[str, int]]:
    """Of Spark's event log, by question: jobs, tasks, shuffled bytes. ``ALL`` has their sums, and ``cached``
    bytes."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    question_of: dict[int, str] = {}
    blocks: dict[str, int] = {}
    for line in lines:
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart":
                told = (event.get("Properties") or {}).get(QUESTION, "the start").removeprefix(PREFIX)
                found[told]["jobs"] += 1
                question_of.update(dict.fromkeys(event["Stage IDs"], told))
            case "SparkListenerTaskEnd" if event.get("Task Metrics"):
                metrics, own = event["Task Metrics"], found[question_of[event["Stage ID"]]]
                own["tasks"] += 1
                own["shuffled"] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            case "SparkListenerBlockUpdated":
                block = event["Block Updated Info"]
                if block["Block ID"].startswith("rdd_"):
                    size = block["Memory Size"] + block["Disk Size"]
                    blocks[block["Block ID"]] = max(size, blocks.get(block["Block ID"], 0))
    total = {name: sum(own[name] for own in found.values()) for name in ("jobs", "tasks", "shuffled")}
    return {name: dict(own) for name, own in found.items()} | {ALL: {**total, "cached": sum(blocks.values())}}


def measured(root: Path, segments: int, segment_mib: int) -> dict[str, Any]:
    stores = make(root / "stores", segments, segment_bytes=segment_mib * MIB)
    records = segments * ((segment_mib * MIB - 8) // len(RECORD))
    write_ledger(root / "ledger.jsonl", records)
    events = root / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.logBlockUpdates.enabled": "true",
    }
    options = ["--engine", "spark", "--ledger", str(root / "ledger.jsonl")]
    for name, value in conf.items():
        options += ["--conf", f"{name}={value}"]
    run = audited(stores, root / "out", *options)
    (path,) = [path for path in events.iterdir() if path.is_file()]
    with path.open() as file:
        return {"segments": segments, "records": records, "audit": run, "questions": questions(file)}


def slope(runs: list[dict[str, Any]], values: list[float]) -> tuple[float, float]:
    """What a record adds, and how far the values between lie off that line: a share of the last one."""
    first, last = runs[0]["records"], runs[-1]["records"]
    per_record = (values[-1] - values[0]) / (last - first)
    off = [
        abs(value - values[0] - per_record * (run["records"] - first))
        for run, value in zip(runs, values, strict=True)
    ]
    return per_record, max(off) / values[-1] if values[-1] else 0.0


def per_record(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What each question shuffles a record, and all of them cache and compute."""
    found: dict[str, dict[str, float]] = {}
    for name in runs[-1]["questions"]:
        own = [run["questions"].get(name, {}).get("shuffled", 0) for run in runs]
        each, bend = slope(runs, own)
        found[name] = {"shuffled_bytes": round(each, 2), "bend": round(bend, 3)}
    for name, values in {
        "cached_bytes": [run["questions"][ALL]["cached"] for run in runs],
        "cpu_us": [run["audit"]["cpu_s"] * 1e6 for run in runs],
    }.items():
        each, bend = slope(runs, values)
        found[ALL] |= {name: round(each, 2), f"{name}_bend": round(bend, 3)}
    return found


def table(result: dict[str, Any]) -> str:
    runs, each = result["runs"], result["per_record"]
    lines = ["| question | jobs, tasks | shuffled, bytes a record |", "|---|---|---|"]
    for name, own in runs[-1]["questions"].items():
        lines.append(f"| {name} | {own['jobs']}, {own['tasks']} | {each[name]['shuffled_bytes']} |")
    lines += ["", "| process | largest, MiB, at each size |", "|---|---|"]
    for name, key in PROCESSES.items():
        lines.append(f"| {name} | {' → '.join(str(run['audit'][key]) for run in runs)} |")
    lines += ["", "| records | shuffled, GiB | kept, GiB | hours on 100 cores |", "|---|---|---|---|"]
    for name, records in SCALES.items():
        shuffled = each[ALL]["shuffled_bytes"] * records / (1 << 30)
        cached = each[ALL]["cached_bytes"] * records / (1 << 30)
        hours = each[ALL]["cpu_us"] * records / 1e6 / CORES / 3600
        lines.append(f"| {name} | {shuffled:,.1f} | {cached:,.1f} | {hours:.2f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--segments", default="2,4,8")
    parser.add_argument("--segment-mib", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = sorted({int(text) for text in options.segments.split(",")})
    if len(sizes) < 2:
        parser.error("two sizes at least: what a record costs is what lies between them")
    result: dict[str, Any] = {"machine": machine(), "replicas": REPLICAS, "segment_mib": options.segment_mib}
    runs = []
    for segments in sizes:
        with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as folder:
            runs.append(measured(Path(folder), segments, options.segment_mib))
        print(json.dumps(runs[-1]["audit"]), file=sys.stderr, flush=True)
    result |= {"runs": runs, "per_record": per_record(runs)}
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    # The stores have no index files, of which the audit warns.
    return 2 if any(run["audit"]["verdict"] == "diverged" for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
