"""The promise of broken queues: what is collected of them grows with their breaks up to a limit, not with
their records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.earlier.carried import NOTHING
from audit.engines.local import LocalEngine
from audit.engines.pieces import packed
from audit.engines.relate import LocalLog, collect
from audit.engines.told import Told
from audit.kinds.made import queues
from audit.queues import explain
from audit.reading.layout import Replica
from audit.reading.storage import parse_stores
from audit.rows.parts import Folder, Spool
from audit.rows.places import Places
from audit.run import audit
from audit.tables import LOG, RECORD, ScannedLog, Task, View
from tests.audit.counted import check_counted, check_damage, lost_and_repeated, much_damaged
from tests.audit.plants import make, run_local
from tests.audit.stores import look, patch

VIEW = View(0, 0, ())
LIMIT = 50


def log_of(places: Any) -> pa.Table:
    """LOG rows of one queue whose records stand at ``places``, in log order."""
    n = len(places)
    columns = {
        "row": np.full(n, RECORD),
        "replica": np.zeros(n, np.int64),
        "offset": np.arange(n) * 100,
        "until": np.arange(n) * 100 + 100,
        "queue_id": np.zeros(n, np.int64),
        "queue_offset": places,
        "sys_flag": np.zeros(n, np.int64),
        "advance": np.ones(n, np.int64),
    }
    texts = {"topic": pa.repeat("T", n), "uniq_key": pa.repeat("K", n)}
    return pa.table(
        [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else texts.get(field.name, pa.nulls(n, field.type))
            for field in LOG
        ],
        schema=LOG,
    )


def with_a_gap(count: int) -> Any:
    places = np.arange(count)
    places[count // 2 :] += 3
    return places


def disorder(count: int) -> Any:
    """Each record at a place that does not follow the one before."""
    return np.arange(count)[::-1].copy()


def check(log: ScannedLog, count: int, *, broken: bool) -> None:
    table = log.broken_queues(VIEW, NOTHING.queues, LIMIT, whole=True)
    assert len(table) == (LIMIT + 1 if broken else 2)
    ((_, runs),) = queues.runs(table, [], lambda offset: False, lambda offset: Replica("r0", "")).items()
    faults = explain(runs, whole=True)
    if broken:
        assert runs.more == count - LIMIT
        assert (faults[-1].kind, faults[-1].records) == ("queue_order", count - LIMIT)
        assert len(faults) <= 2 * LIMIT
    else:
        assert [(f.kind, f.queue_offset, f.records) for f in faults] == [("queue_gap", count // 2, 3)]


@pytest.mark.parametrize("broken", [False, True])
def test_of_a_long_queue_the_breaks_are_collected(broken: bool) -> None:
    count = 1_000_000
    check(
        collect(log_of(disorder(count) if broken else with_a_gap(count)).to_batches()), count, broken=broken
    )


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("broken", [False, True])
def test_of_a_long_queue_spark_collects_the_breaks(broken: bool, engine: object) -> None:
    pytest.importorskip("pyspark")
    from audit.engines.spark import SparkEngine, SparkLog

    assert isinstance(engine, SparkEngine)
    count = 20_000
    rows = log_of(disorder(count) if broken else with_a_gap(count))
    cluster, third = engine._cluster, count // 3
    raws = [packed(rows.slice(at, third)) for at in range(0, count, third)]

    class Whole:
        """What pieces do not tell, in four tasks."""

        chunks, told, tasks = LOG.empty_table(), Told(None, LOG.empty_table), list[Task]()

        def whole(self) -> Any:
            return cluster.each(raws, 1 << 62)

        def close(self) -> None:
            pass

    check(SparkLog(cluster, Whole()), count, broken=broken)  # type: ignore[arg-type]


def test_the_report_counts_what_it_does_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty records of a queue, each at the place before the one before."""
    monkeypatch.setattr("audit.questions.RUNS_MAX", 4)
    stores, writer, _ = make(tmp_path)
    rows = [row for row in writer.rows if row["queue_id"] == 0]
    for store in stores:
        for n, row in enumerate(rows):
            at = int(str(row["phys_offset"]))
            assert look(store, at + 20, 8) == n.to_bytes(8, "big")
            patch(store, at + 20, (len(rows) - 1 - n).to_bytes(8, "big"))
    report = run_local(stores, None)
    listed = [f for f in report.findings if f.queue_offset >= 0]
    (rest,) = [f for f in report.findings if f.queue_offset < 0]
    assert (rest.kind, rest.severity, rest.records) == ("queue_order", "error", len(rows) - 4)
    assert rest.phys_offset > max(f.phys_offset for f in listed if f.kind == "queue_order")
    assert rest.until == int(str(rows[-1]["phys_offset"])) + 1
    assert report.verdict == "diverged"


def test_lost_and_repeated_messages_are_counted_beyond_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No log has any message of the ledger, and each message of the log stands twice."""
    monkeypatch.setattr("audit.rows.bounded.LISTED_MAX", 5)
    stores, ledger = lost_and_repeated(tmp_path)
    rest = tmp_path / "unlisted.parquet"
    report = audit(parse_stores([*map(str, stores)]), LocalEngine(), ledger_path=str(ledger), unlisted=rest)
    check_counted(report)
    rows = pq.read_table(rest).to_pylist()
    assert {row["kind"]: sum(r["kind"] == row["kind"] for r in rows) for row in rows} == {
        "acked_missing": 75,
        "dup_message": 35,
    }
    assert {row["uniq_key"] for row in rows if row["kind"] == "acked_missing"} >= {"lost79"}
    rest.write_bytes(b"of an audit before")
    audit(parse_stores([str(stores[0])]), LocalEngine(), ledger_path=None, unlisted=rest)
    assert pq.read_table(rest).num_rows == 35


def test_damage_is_counted_beyond_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each damaged record and each that differs was one of the driver's objects until its report."""
    stores, ledger = much_damaged(tmp_path)
    whole = run_local(stores, ledger)
    monkeypatch.setattr("audit.rows.bounded.LISTED_MAX", 5)
    rest = tmp_path / "unlisted.parquet"
    specs = parse_stores([*map(str, stores)])
    report = audit(specs, LocalEngine(), ledger_path=str(ledger), unlisted=rest)
    check_damage(report, whole, rest)


def test_what_a_place_overlaps_is_found_in_any_order_of_places(tmp_path: Path) -> None:
    folder = Folder()
    try:
        places = Places(folder)
        chance = random.Random(7)
        spans = [(begin, begin + chance.randrange(30)) for begin in chance.sample(range(9000), 300)]
        for begin, until in spans:
            places.add("kind", "r0", begin, until)
        for _ in range(2000):
            begin = chance.randrange(9100)
            end = begin + chance.randrange(20)
            expected = any(a < max(end, begin + 1) and begin < b for a, b in spans)
            assert places.overlap("kind", "r0", begin, end) == expected
        assert not places.overlap("kind", "r1", 0, 9000)
    finally:
        folder.close()


def test_what_is_spooled_comes_in_order_also_of_more_than_waits_in_memory() -> None:
    spool: Spool[int] = Spool(most=3)
    for n in range(11):
        spool.append(n)
    assert list(spool) == list(spool) == list(range(11))


def test_faults_of_acknowledged_messages_come_in_small_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check makes an object of each row; a part of the ledger has tens of thousands of lines."""
    monkeypatch.setattr("audit.engines.acknowledged._TABLE_LINES", 7)
    stores, ledger = lost_and_repeated(tmp_path)
    given, sizes = LocalLog.acked, []

    def acked(log: LocalLog, *asked: Any) -> Iterator[pa.Table]:
        for table in given(log, *asked):
            sizes.append(len(table))
            yield table

    monkeypatch.setattr(LocalLog, "acked", acked)
    run_local(stores, ledger)
    assert sum(sizes) == 80
    assert max(sizes) <= 7
