"""The promise of the local engine: what is read a stretch at a time is what all at once would say."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.earlier.carried import NOTHING
from audit.engines import order
from audit.engines.local import LocalEngine
from audit.engines.order import out_of_order
from audit.engines.queue_runs import QueueRuns
from audit.findings import write
from audit.queues import Run, Runs, explain
from audit.rows.numbers import FIRST, LAST, differences, sums
from audit.rows.parts import Folder, Parts, hashes
from audit.tables import QUEUES, Task
from tests.audit.extremes import extreme
from tests.audit.plants import PLANTS, make, make_queued, run_local, run_with


def test_equal_texts_have_equal_hashes_wherever_they_stand() -> None:
    texts = [f"{n:x}" * (n % 7) for n in range(60_000)] + ["", "é", "\0", "\0\0"]
    column = pa.chunked_array([texts[:100], texts[100:]], pa.string())
    whole = hashes(column)
    assert len(np.unique(whole)) == len(set(texts))
    assert (hashes(column.combine_chunks().slice(777, 500)) == whole[777:1277]).all()
    assert len(hashes(pa.chunked_array([], pa.string()))) == 0
    same = pa.array([f"key {n:04d}" for n in range(100)])  # of one length
    mixed = pa.concat_arrays([same, pa.array(["another"])])
    assert (hashes(same.slice(7)) == hashes(mixed)[7:100]).all()


def test_parts_keep_every_row_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.rows.parts._WAITING_ROWS_MAX", 30)
    folder = Folder()
    parts = Parts(folder, pa.schema([("n", pa.int64())]), 3)
    for begin in range(0, 100, 10):
        numbers = np.arange(begin, begin + 10)
        parts.add(pa.table({"n": numbers}), numbers % 3)
    assert [parts.part(n)["n"].to_pylist() for n in range(3)] == [list(range(n, 100, 3)) for n in range(3)]
    path = folder.path
    folder.close()
    assert not path.exists()
    forgotten = Folder().path
    gc.collect()
    assert not forgotten.exists()


def _lines(seed: int) -> pa.Table:
    """Acknowledgements of two queues, some of whose places are in disorder, and their records."""
    chance = np.random.default_rng(seed)
    n = 60
    told = np.arange(n) + chance.integers(0, 6, n) * (chance.random(n) < 0.3)
    begun = np.arange(n) * 10.0 - chance.integers(0, 25, n)
    return pa.table(
        {
            "line": chance.permutation(n),
            "topic": ["T"] * n,
            "queue_id": pa.array(chance.integers(0, 2, n), pa.int32()),
            "queue_offset": told,
            "offset": np.arange(n) * 100,
            "begun_ms": np.maximum(begun, -1),
            "acked_ms": np.maximum(begun, -1) + 8.0,
        }
    )


def _one_by_one(table: pa.Table, begin: int) -> list[int]:
    """The rule as it is written, for each pair of lines. A queue began again at ``begin``."""
    wrong = set()
    rows = table.to_pylist()
    for row in rows:
        queue = [other for other in rows if other["queue_id"] == row["queue_id"]]
        life = [o for o in queue if (o["offset"] >= begin) == (row["offset"] >= begin) or o["queue_id"]]
        place = (row["queue_offset"], row["offset"])
        before = [o for o in life if (o["queue_offset"], o["offset"]) < place]
        if before and max(before, key=lambda o: (o["queue_offset"], o["offset"]))["offset"] > row["offset"]:
            wrong.add(row["line"])
        behind = [o["acked_ms"] for o in queue if o["offset"] > row["offset"] and o["begun_ms"] >= 0]
        if row["begun_ms"] >= 0 and behind and min(behind) < row["begun_ms"]:
            wrong.add(row["line"])
    return sorted(wrong)


@pytest.mark.parametrize("seed", range(8))
def test_orders_are_judged_the_same_in_stretches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LATE_MAX", 3)
    table = _lines(seed)
    expected = _one_by_one(table, 2500)
    assert expected
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(len(table))))
    for borders in ([-1], [-1, 700, 3000], [-1, *range(0, 6000, 500)]):
        folder = Folder()
        try:
            placed = (shuffled.slice(at, 7) for at in range(0, len(shuffled), 7))
            assert out_of_order(placed, borders, (("T", 0, 2500),), folder).tolist() == expected
        finally:
            folder.close()


@pytest.mark.parametrize("seed", range(4))
def test_runs_are_the_same_however_the_log_is_cut(seed: int) -> None:
    chance = np.random.default_rng(seed)
    n = 200
    queue = chance.integers(0, 3, n)
    place = np.zeros(n, np.int64)
    for q in range(3):
        own = queue == q
        place[own] = np.arange(own.sum()) + np.cumsum(chance.random(own.sum()) < 0.1 * q)
    rows = {
        "topic": ["T"] * n,
        "queue_id": queue,
        "offset": np.arange(n) * 10,
        "queue_offset": place,
        "advance": np.ones(n, np.int64),
        "uniq_key": [str(k) for k in range(n)],
    }
    table = pa.table({name: pa.array(rows[name]).cast(QUEUES.field(name).type) for name in QUEUES.names})
    found = []
    for step in (n, 50, 7, 1):
        runs = QueueRuns(NOTHING.queues, 4)
        for at in range(0, n, step):
            runs.take(table.slice(at, step))
        found.append(runs.broken(whole=True).to_pylist())
    assert found[0]
    assert {row["queue_id"] for row in found[0]} <= {1, 2}
    assert all(rows == found[0] for rows in found)


@pytest.mark.parametrize(
    "name", ["missing segment", "divergent suffix", "removed message", "same place twice"]
)
def test_small_stretches_give_the_same_findings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == name).do(stores, writer)
    whole = run_local(stores, ledger).findings
    _small(monkeypatch)
    assert run_local(stores, ledger).findings == whole


def test_entries_are_compared_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, ledger = make_queued(tmp_path)
    for n, path in enumerate(sorted((stores[1] / "consumequeue").rglob("0" * 18 + "*"))):
        raw = bytearray(path.read_bytes())
        raw[20 * n + 7] ^= 4 + n
        path.write_bytes(raw)
    whole = run_local(stores, ledger).findings
    assert {f.kind for f in whole} >= {"cq_wrong"}
    _small(monkeypatch)
    assert run_local(stores, ledger).findings == whole


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, chunks, parts and passes of a few rows."""
    monkeypatch.setattr("audit.tables.BATCH_ROWS", 7)
    monkeypatch.setattr("audit.engines.relate.CHUNK_ROWS", 11)
    monkeypatch.setattr("audit.engines.relate.HASHES_MAX", 30)
    monkeypatch.setattr("audit.engines.relate.COPIES_MAX", 1)
    monkeypatch.setattr("audit.engines.acknowledged._ROWS", 13)
    monkeypatch.setattr("audit.ledgers.ledger._PART_BYTES", 500)
    monkeypatch.setattr("audit.ledgers.ledger._BATCH_LINES", 9)


def test_a_queue_that_is_read_in_pieces_is_explained_as_one() -> None:
    """The last run goes on from chunk to chunk."""
    runs = QueueRuns(NOTHING.queues, 10)
    for begin in range(0, 40, 8):
        places = [n if n < 20 else n + 2 for n in range(begin, begin + 8)]
        rows = [
            {
                "topic": "T",
                "queue_id": 0,
                "offset": place * 100,
                "queue_offset": place,
                "advance": 1,
                "uniq_key": "",
            }
            for place in places
        ]
        runs.take(pa.Table.from_pylist(rows, schema=QUEUES))
    table = runs.broken(whole=True).to_pylist()
    listed = [Run(r["offset"], r["queue_offset"], r["end"], r["uniq_key"], r["last"]) for r in table]
    (gap,) = explain(Runs(listed), whole=True)
    assert (gap.kind, gap.queue_offset, gap.records) == ("queue_gap", 20, 2)


class _Mixed(LocalEngine):
    """The worker that has replica 1 has no fast hashes."""

    def digests(self, tasks: list[Task]) -> pa.Table:
        found = [super().digests([task for task in tasks if task.replica != 1])]
        with pytest.MonkeyPatch.context() as patch_of_worker:
            patch_of_worker.setattr("audit.reading.records.record.xxhash", None)
            found.append(super().digests([task for task in tasks if task.replica == 1]))
        return pa.concat_tables(found)


def test_workers_with_and_without_fast_hashes_agree(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    assert run_with(_Mixed(), stores, ledger).differing_bytes == 0
    next(p for p in PLANTS if p.name == "flipped bit").do(stores, writer)
    report = run_with(_Mixed(), stores, ledger)
    assert report.findings == run_local(stores, ledger).findings
    assert report.differing_bytes == 4096


def test_many_parts_are_made_in_two_steps_of_few_batches_and_hold_the_same_rows(tmp_path: Path) -> None:
    """Each time that rows are written each part has a batch: of many parts these are more than the rows."""
    folder, count, rows = Folder(), 1_000, 200_000
    parts = Parts(folder, pa.schema([("n", pa.int64())]), count)
    numbers = np.random.default_rng(7).integers(0, count - 1, rows)  # the last part stays empty
    for begin in range(0, rows, 7_000):
        some = np.arange(begin, min(begin + 7_000, rows))
        parts.add(pa.table({"n": some}), numbers[some])
    for number in (0, 1, 499, count - 2, count - 1):
        assert parts.part(number)["n"].to_pylist() == np.flatnonzero(numbers == number).tolist()
        assert parts.rows(number) == int((numbers == number).sum())
    assert sum(len([*parts.batches(number)]) for number in range(count)) == count - 1
    folder.close()


def test_numbers_at_the_ends_of_64_bits_are_told_and_written(tmp_path: Path) -> None:
    """A gap may have more places than its column can say."""
    report = run_local([extreme(tmp_path)], None)
    write(report.findings, tmp_path)
    rows = pq.read_table(tmp_path / "findings.parquet.new").to_pylist()
    assert len(rows) == len(report.findings)
    assert max(f.records for f in report.findings) == LAST
    gaps = {(f.queue_id, f.records) for f in report.findings if f.kind == "queue_gap" and f.queue_id < 2}
    assert gaps == {(1, 1), (1, LAST - 6)}
    assert [f.found for f in report.findings if (f.kind, f.queue_id) == ("queue_order", 0)] == [
        f"{LAST} to {LAST - 1}"
    ], "the last of a queue that skips more places than a log has bytes has a wrong one"


@pytest.mark.parametrize(
    ("a", "b"),
    [(LAST, 1), (LAST, 0), (FIRST, -1), (FIRST, 1), (-1, LAST), (FIRST, LAST), (0, FIRST)],
)
def test_sums_and_differences_stop_where_64_bits_end(a: int, b: int) -> None:
    rows = np.array([a]), np.array([b])
    assert sums(*rows).tolist() == [a + b if FIRST <= a + b <= LAST else LAST]
    assert differences(*rows).tolist() == [a - b if FIRST <= a - b <= LAST else FIRST]
