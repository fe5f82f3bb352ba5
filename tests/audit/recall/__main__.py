"""python -m tests.audit.recall [--seeds 20] [--engine local|both] [--json FILE] [--page FILE]

``local``: each damage alone in a group. ``both``: many kinds in each group, and each engine looks at it.
Exit code 1: damage was not named, something else was, or the engines did not agree. ``--json``: what was
done; a campaign that was stopped, by ``--minutes`` too, goes on from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, process_time

from audit.engines.local import LocalEngine
from audit.tables import Engine
from bench.provenance import commit
from tests.audit.plants import run_with
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import MESSAGES
from tests.audit.recall.judge import alarms, misses
from tests.audit.recall.page import Row, by_hand, page
from tests.audit.recall.together import BUNDLES, LAWFUL, Bundle, planted


def one(name: str, bundle: Bundle, replicas: int, seed: int, engines: list[Engine], at: str | None) -> Row:
    """Damage a group, or do what is no damage, and audit it with each engine."""
    begun = monotonic(), process_time()
    with tempfile.TemporaryDirectory() as folder:
        group, done = planted(Path(folder), bundle, replicas, seed)
        reports = [run_with(engine, group.stores, group.ledger) for engine in engines]
    wrong: list[str] = []
    for engine, report in zip(engines, reports, strict=True):
        found = misses(report, done) if done else alarms(report)
        wrong += [f"{engine.name}: {text}" for text in found]
    if any(report.findings != reports[0].findings for report in reports):
        wrong.append("the engines do not agree")
    return {
        "name": name,
        "replicas": replicas,
        "seed": seed,
        "engines": [engine.name for engine in engines],
        "done": [name for name, _ in bundle.ones],
        "findings": len(reports[0].findings),
        "wrong": wrong,
        "commit": at,
        "seconds": round(monotonic() - begun[0], 2),
        "cpu": round(process_time() - begun[1], 2),
    }


def groups(engine: str) -> Iterator[tuple[str, Bundle]]:
    if engine == "local":
        for name in [*DAMAGES, *BENIGN]:
            yield name, Bundle(((name, "~"),), messages=MESSAGES)
    else:
        yield from (BUNDLES | LAWFUL).items()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.recall", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--replicas", default="3,5")
    parser.add_argument("--engine", choices=["local", "both"], default="local")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no group later than this")
    parser.add_argument("--master", default="local[2]", help="of Spark")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows: list[Row] = []
    if given.json and given.json.exists():
        rows = [json.loads(line) for line in given.json.read_text().splitlines()]
    done = {(row["name"], row["replicas"], row["seed"], len(row["engines"])) for row in rows}
    engines: list[Engine] = [LocalEngine()]
    if given.engine == "both":
        from audit.engines.on_spark.session import SMALL
        from audit.engines.spark import SparkEngine

        engines.append(SparkEngine(given.master, {**SMALL, "spark.sql.shuffle.partitions": "1"}))
    until, at = monotonic() + given.minutes * 60, commit()
    for seed in range(given.seeds):
        for replicas in map(int, given.replicas.split(",")):
            for name, bundle in groups(given.engine):
                if (name, replicas, seed, len(engines)) in done or monotonic() > until:
                    continue
                rows.append(one(name, bundle, replicas, seed, engines, at))
                if rows[-1]["wrong"]:
                    print(json.dumps(rows[-1]), flush=True)
                if given.json:
                    with given.json.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    for engine in engines:
        engine.close()
    if given.page:
        notes = by_hand(given.page.read_text()) if given.page.exists() else ""
        given.page.write_text(page(rows, notes))
    wrong = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows)} groups, {wrong} not right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
