"""The promise of Spark's engine: its findings are the local engine's, however rows are spread over tasks, and
in whatever order they come. Without Spark, whose start takes longer than each of these."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from audit.engines.local import LocalEngine
from audit.engines.on_spark.acknowledged import BODIES, Wanted, _scanned
from audit.engines.on_spark.digests import alike
from audit.engines.on_spark.spreading import in_parts, tables
from audit.engines.queue_runs import QueueRuns
from audit.ledgers.ledger import read_ledger
from audit.tables import DIGEST, QUEUES, RUNS, EngineError, Task
from tests.audit.border import PLACES, append, made
from tests.audit.counted import lost_and_repeated, much_damaged
from tests.audit.engines.here import Here
from tests.audit.plants import (
    PLANTS,
    delayed,
    delayed_across_retention,
    make,
    make_queued,
    run_local,
    run_with,
    topic_created_again,
)
from tests.audit.recall.together import BUNDLES, LAWFUL, planted
from tests.audit.stores import trio
from tests.audit.transactions import Transaction


@pytest.fixture(params=range(2))
def seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """By which all is cut into pieces of some records, ledgers into parts, and stretches of some places."""
    chance = random.Random(request.param)
    for name, small, large in (
        ("plan.CHUNK_BYTES_MIN", 700, 4096),
        ("ledgers.ledger._PART_BYTES", 300, 1000),
        ("engines.on_spark.spreading.SLICE_ROWS", 2, 8000),
        ("engines.on_spark.entries.STRETCH_ROWS", 3, 200_000),
        ("engines.on_spark.entries.STRETCH_PLACES", 7, 1_000_000),
        ("engines.on_spark.cluster.TABLES_AT_ONCE", 1, 8),
        ("engines.on_spark.records.TABLE_ROWS", 1, 8000),
        ("engines.on_spark.acknowledged.KEYS_MAX", 0, 1_000_000),
        ("engines.on_spark.acknowledged.LOTS", 1, 3),
        ("engines.pieces.ROWS_MAX", 0, 20_000),  # so that pieces tell less, and records are asked
        ("engines.on_spark.records.NEAR_BYTES_MIN", 0, 0),
        ("engines.on_spark.records.TWICE_MAX", 1, 10_000),
    ):
        monkeypatch.setattr(f"audit.{name}", chance.choice((small, large)))
    return int(request.param)


def check(seed: int, stores: list[Path], ledger: Path | None) -> None:
    engine = Here(seed)
    found = run_with(engine, stores, ledger).findings
    assert found == run_local(stores, ledger).findings
    assert engine.context.kept == 0, "what was kept is given back"


@pytest.mark.parametrize("name", [*BUNDLES, *LAWFUL])
def test_both_engines_find_the_same_of_each_kind_of_damage(name: str, seed: int, tmp_path: Path) -> None:
    group, _ = planted(tmp_path, (BUNDLES | LAWFUL)[name], 3, 1)
    check(seed, group.stores, group.ledger)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: str(plant.name))
def test_both_engines_find_the_same_of_small_logs(plant: Any, seed: int, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    plant.do(stores, writer)
    check(seed, stores, ledger)


def told_twice(root: Path) -> tuple[list[Path], Path]:
    """A ledger that lists each message twice, at places that others have."""
    stores, writer, ledger = make(root)
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    stands = {row["uniq_key"]: row["phys_offset"] for row in writer.rows}
    chance = random.Random(1)
    for line in lines:
        line["phys_offset"] = stands[line["uniq_key"]]
        line["queue_offset"] += chance.randrange(4)
    ledger.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *reversed(lines)]))
    return stores, ledger


LOGS: dict[str, Callable[[Path], tuple[list[Path], Path | None]]] = {
    "lost and repeated": lost_and_repeated,
    "much damaged": much_damaged,
    "told twice": told_twice,
    "queues": make_queued,
    "a topic created again": lambda root: (topic_created_again(root, 5)[0], None),
    "expired places": lambda root: (delayed_across_retention(root, (0,))[0], None),
    "delayed": lambda root: ([delayed(root / "a", [-1, 1000, 1000, 1007, 1000, 5000])], None),
    "the real broker's": lambda root: (trio("ha-81", "after", root), None),
}


@pytest.mark.parametrize("name", LOGS)
def test_both_engines_find_the_same_however_the_rows_are_spread(name: str, seed: int, tmp_path: Path) -> None:
    stores, ledger = LOGS[name](tmp_path)
    check(seed, stores, ledger)


@pytest.mark.parametrize("again", range(3))
def test_both_engines_find_the_same_of_transactions(again: int, seed: int, tmp_path: Path) -> None:
    """Of 40 that were committed; two logs lost what was sent, and one ends before; then the first lost it."""
    log = Transaction(tmp_path, "committed", moved=bool(again % 2), count=40)
    log.lose(1, 2)
    log.end_before_it_was_sent(3)
    check(seed + again, log.stores, log.ledger)
    log.lose(0)
    check(seed + again, log.stores, log.ledger)


def test_what_an_incremental_audit_trusts_is_the_same(tmp_path: Path) -> None:
    """Behind the border a place is left out, and a message stands once more."""
    found = []
    for name in ("local", "here"):
        engine = Here(4) if name == "here" else LocalEngine()
        stores, writer = made(tmp_path / name)
        state = tmp_path / f"{name}.json"
        first = run_with(engine, stores, None, state)
        append(stores, writer, PLACES + 2, "q1")
        found.append((first.findings, run_with(engine, stores, None, state).findings))
    assert found[0] == found[1]
    assert {finding.kind for finding in found[0][1]} == {"queue_gap", "dup_message"}


def test_of_a_short_ledger_no_other_records_leave_their_worker(tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(ledger.read_text().splitlines(keepends=True)[:3]))
    told = read_ledger(str(few))
    task = Task(0, str(stores[0]), f"commitlog/{0:020d}", 0, 4096, 4096, 0, 4096, (), True, plain=True)
    try:
        wanted = Wanted.of(told)
        rows = tables(BODIES, _scanned(wanted, task))
        assert sorted(pa.concat_tables(rows)["uniq_key"].to_pylist()) == sorted(
            told.table()["uniq_key"].to_pylist()
        )
        every = tables(BODIES, _scanned(replace(wanted, keys=wanted.keys[:0]), task))
        assert sum(map(len, every)) > 3
    finally:
        told.close()


def test_rows_that_spark_put_apart_are_no_part() -> None:
    """As if a union did not keep to what both were shuffled by."""
    context = Here(1).context
    one, other = (context.parallelize([(0, ("kind", b""))], 1).partitionBy(count, int) for count in (2, 3))
    with pytest.raises(EngineError, match="apart"):
        in_parts(lambda part, rows: iter(()), one, other)  # type: ignore[arg-type]


def test_ranges_that_touch_and_are_alike_are_one() -> None:
    rows = [
        {"replica": at, "start": n * 10, "end": n * 10 + 10, "digest": digest}
        for n, digests in enumerate((b"aab", b"ccd", b"eee", b"fff"))
        for at, digest in enumerate(bytes([one]) for one in digests)
    ]
    shuffled = random.Random(1).sample(rows, len(rows))
    found = alike(pa.Table.from_pylist(shuffled, schema=DIGEST)).to_pylist()
    assert [(row["start"], row["end"], row["replica"], row["digest"], row["ranges"]) for row in found] == [
        *((0, 20, at, digest, 2) for at, digest in enumerate((b"a", b"a", b"b"))),
        *((20, 40, at, b"e", 2) for at in range(3)),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_runs_put_together_are_those_of_all_records(seed: int) -> None:
    """Of which each part told the first and the last."""
    chance = random.Random(seed)
    count, most = 200, chance.choice((1, 3, 10))
    place = [0]
    for _ in range(count - 1):
        place.append(place[-1] + chance.choice((1, 1, 1, 1, 2, 0, -3)))
    columns = {
        "topic": pa.repeat("T", count),
        "queue_id": pa.array(np.zeros(count, np.int32)),
        "offset": pa.array(np.arange(count) * 10),
        "queue_offset": pa.array(np.array(place)),
        "advance": pa.array(np.ones(count, np.int32)),
        "uniq_key": pa.repeat("K", count),
    }
    records = pa.table(columns, schema=QUEUES)
    whole = QueueRuns(QUEUES.empty_table(), most)
    whole.take(records)
    parts = QueueRuns(QUEUES.empty_table(), most)
    cuts = sorted(chance.sample(range(1, count), 5))
    for begin, end in zip([0, *cuts], [*cuts, count], strict=True):
        own = QueueRuns(QUEUES.empty_table(), most + 1)
        own.take(records.slice(begin, end - begin))
        parts.take_runs(own.all().select(RUNS.names))
    assert parts.broken(whole=True).equals(whole.broken(whole=True))
