"""python -m tests.audit.recall [--seeds 20] [--replicas 3,5] [--spark-seeds 0] [--json FILE] [--page FILE]

Exit code 1: damage was not named, something else was, or the engines did not agree. ``--json``: what was
done; a campaign that was stopped goes on from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from audit.engines.local import LocalEngine
from audit.findings import INFO
from audit.run import Report
from audit.tables import Engine
from bench.provenance import commit
from tests.audit.plants import run_with
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import Group
from tests.audit.recall.judge import misses

Row = dict[str, Any]


def one(name: str, replicas: int, seed: int, engines: list[Engine]) -> Row:
    """Do one damage, or what is none, and audit the group with each engine."""
    with tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder), replicas, seed)
        (DAMAGES[name].do if name in DAMAGES else BENIGN[name])(group)
        reports = [run_with(engine, group.stores, group.ledger) for engine in engines]
    wrong: list[str] = []
    for engine, report in zip(engines, reports, strict=True):
        found = misses(report, group, DAMAGES[name]) if name in DAMAGES else alarms(report)
        wrong += [f"{engine.name}: {text}" for text in found]
    if any(report.findings != reports[0].findings for report in reports):
        wrong.append("the engines do not agree")
    used = [engine.name for engine in engines]
    return {"name": name, "replicas": replicas, "seed": seed, "engines": used, "wrong": wrong}


def alarms(report: Report) -> list[str]:
    """What is said of a group in which nothing is wrong."""
    return [f"{f.kind}@{f.replica}" for f in report.findings if f.severity != INFO]


def page(rows: list[Row], at: str | None) -> str:
    """The results as a page."""
    runs = Counter((row["name"], row["replicas"], engine) for row in rows for engine in row["engines"])
    wrong = Counter((row["name"], row["replicas"]) for row in rows if row["wrong"])
    sizes = sorted({row["replicas"] for row in rows})
    both = sum(len(row["engines"]) > 1 for row in rows)
    damaged = sum(row["name"] in DAMAGES for row in rows)
    missed = sum(bool(row["wrong"]) for row in rows)
    out = [
        "# Audit: kinds of damage",
        "",
        f"`python -m tests.audit.recall` up to {at}: {len(DAMAGES)} kinds of damage and {len(BENIGN)} lawful",
        f"differences at random places of a stopped group: {len(rows)} groups, {damaged} of them damaged.",
        "A run is right if the damage is named by kind and replica and all else in the report follows from",
        f"it, or nothing is named where nothing is wrong. **Not right: {missed}.** Of {both} groups both",
        "engines were asked; their findings have to be equal, row by row.",
        "`make test` has one seed of three replicas.",
        "",
        "| damage | " + " | ".join(f"{n} replicas: local, Spark, not right" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for name in [*DAMAGES, *BENIGN]:
        cells = [f"{runs[name, n, 'local']}, {runs[name, n, 'spark']}, {wrong[name, n]}" for n in sizes]
        title = name if name in DAMAGES else f"(lawful) {name}"
        out.append(f"| {title} | " + " | ".join(cells) + " |")
    listed = [row for row in rows if row["wrong"]]
    if listed:
        out += ["", "| not right | replicas | seed | said |", "|---|---|---|---|"]
        out += [f"| {r['name']} | {r['replicas']} | {r['seed']} | {'; '.join(r['wrong'])} |" for r in listed]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.recall", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--replicas", default="3,5")
    parser.add_argument("--spark-seeds", type=int, default=0, help="of the seeds, those both engines look at")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows: list[Row] = []
    if given.json and given.json.exists():
        rows = [json.loads(line) for line in given.json.read_text().splitlines()]
    done = {(row["name"], row["replicas"], row["seed"], len(row["engines"])) for row in rows}
    local: Engine = LocalEngine()
    spark: list[Engine] = []
    if given.spark_seeds:
        from audit.engines.spark import SparkEngine

        spark = [SparkEngine("local[2]")]
    for seed in range(given.seeds):
        engines = [local, *(spark if seed < given.spark_seeds else [])]
        for replicas in map(int, given.replicas.split(",")):
            for name in [*DAMAGES, *BENIGN]:
                if (name, replicas, seed, len(engines)) in done:
                    continue
                rows.append(one(name, replicas, seed, engines))
                if rows[-1]["wrong"]:
                    print(json.dumps(rows[-1]), flush=True)
                if given.json:
                    with given.json.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    for engine in (local, *spark):
        engine.close()
    if given.page:
        given.page.write_text(page(rows, commit()))
    wrong = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows)} groups, {wrong} not right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
