"""Damage groups at places of chance, audit them, and say what was not named, or should not have been.

``--engine local``: each damage alone in a group. ``both``: many kinds in each group, and each engine looks at
it. Exit code 1: damage was not named, something else was, or the engines did not agree.

In parts: --json FILE notes each group as it is done, and the same call goes on behind the last one. --groups,
--minutes, --first, --seeds, --replicas and --only say which part; parts of one campaign may have files of
their own, which are put behind each other.

    python -m tests.audit.recall --engine both --json both.jsonl --groups 40
    python -m tests.audit.recall --engine both --json all.jsonl --groups 0 --page PAGE
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Final

from audit.engines.local import LocalEngine
from audit.tables import Engine
from bench.provenance import commit
from tests.audit.plants import run_with
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import MESSAGES
from tests.audit.recall.judge import alarms, misses
from tests.audit.recall.page import Row, by_hand, page
from tests.audit.recall.spent import cpu_s
from tests.audit.recall.together import BUNDLES, LAWFUL, Bundle, planted

SPARK: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.shuffle.compress": "false",
    "spark.rdd.compress": "false",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
}
"""Over what is set for small stores: one task a shuffle, nothing compressed, nothing remembered."""


def one(name: str, bundle: Bundle, replicas: int, seed: int, engines: list[Engine], at: str | None) -> Row:
    """Damage a group, or do what is no damage, and audit it with each engine."""
    begun = monotonic(), cpu_s()
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
        "cpu": round(cpu_s() - begun[1], 2),
    }


def groups(engine: str, only: Sequence[str]) -> Iterator[tuple[str, Bundle]]:
    """``only``: those whose names, or the names of what is done in them, have one of these words."""
    if engine == "local":
        every = [(name, Bundle(((name, "~"),), messages=MESSAGES)) for name in [*DAMAGES, *BENIGN]]
    else:
        every = [*(BUNDLES | LAWFUL).items()]
    for name, bundle in every:
        words = " ".join([name, *(one for one, _ in bundle.ones)])
        if not only or any(word in words for word in only):
            yield name, bundle


def spark(master: str, conf: Sequence[str]) -> Engine:
    """One session for all groups; set for some hundred records."""
    from audit.engines.spark import SparkEngine

    made = SparkEngine(master, {**SPARK, **dict(pair.split("=", 1) for pair in conf)})
    made.warm_up()
    return made


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.audit.recall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from the first on")
    parser.add_argument("--replicas", default="3,5")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="groups and kinds of that name")
    parser.add_argument("--engine", choices=["local", "both"], default="local")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no group later than this")
    parser.add_argument("--groups", type=int, default=None, help="begin no more than so many")
    parser.add_argument("--master", default="local[1]", help="of Spark, which has one session for all")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark; repeated")
    parser.add_argument(
        "--json", type=Path, help="what was done; a campaign that was stopped goes on from it"
    )
    parser.add_argument("--page", type=Path)
    return parser.parse_args(given)


def left(given: argparse.Namespace, rows: Sequence[Row]) -> Iterator[tuple[str, Bundle, int, int]]:
    """The groups that are to be looked at, and were not."""
    engines = 1 if given.engine == "local" else 2
    done = {(row["name"], row["replicas"], row["seed"], len(row["engines"])) for row in rows}
    for seed in range(given.first, given.first + given.seeds):
        for replicas in map(int, given.replicas.split(",")):
            for name, bundle in groups(given.engine, given.only):
                if (name, replicas, seed, engines) not in done:
                    yield name, bundle, replicas, seed


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    rows: list[Row] = []
    if given.json and given.json.exists():
        rows = [json.loads(line) for line in given.json.read_text().splitlines()]
    begun_s, at, before = monotonic(), commit(), len(rows)
    todo = list(islice(left(given, rows), given.groups))
    engines: list[Engine] = [LocalEngine()]
    if given.engine == "both" and todo:
        engines.append(spark(given.master, given.conf))
    start_s = cpu_s()
    for name, bundle, replicas, seed in todo:
        if monotonic() > begun_s + given.minutes * 60:
            break
        rows.append(one(name, bundle, replicas, seed, engines, at))
        if rows[-1]["wrong"]:
            print(json.dumps(rows[-1]), flush=True)
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    groups_s = cpu_s() - start_s
    for engine in engines:
        engine.close()
    if given.page:
        notes = by_hand(given.page.read_text()) if given.page.exists() else ""
        given.page.write_text(page(rows, notes))
    wrong = sum(bool(row["wrong"]) for row in rows)
    now = len(rows) - before
    print(f"{now} groups now, {start_s:.0f} CPU s to begin and {groups_s / max(1, now):.1f} each")
    print(f"{len(rows)} groups, {wrong} not right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
