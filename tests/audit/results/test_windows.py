"""The promise of windows: what is told of a stretch contains it, and what is not known is not told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from audit.commands import audit
from audit.findings import Finding
from audit.pages import sentence
from audit.results.losses import Window, windows
from audit.results.times import lost_between, stored_between
from audit.run import Report
from tests import ROOT
from tests.audit.plants import PLANTS, ledger_at, make, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, found, patch

STAMP = 1_700_000_000_000
COUNT = 80


def written(root: Path, replicas: int = 3) -> tuple[list[Path], LogWriter, Path]:
    """Acknowledged messages of two queues, stored one a second."""
    writer = LogWriter(root / "origin")
    for n in range(COUNT):
        writer.add(b"order %d" % n * 4, key=f"m{n}", queue_id=n % 2, stamp=STAMP + 1000 * n)
    writer.confirm(epochs=[(1, 0)])
    return copies(writer.root, replicas), writer, ledger_at(root, writer.rows)


def at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def lost(report: Report) -> list[Window]:
    return [w for w in report.windows if w.lost]


def seconds(w: Window) -> tuple[int, int]:
    return (w.since_ms - STAMP) // 1000, (w.until_ms - STAMP) // 1000


@pytest.mark.parametrize("inside", [0, 60])
def test_what_is_lost_was_stored_in_the_time_that_is_told(inside: int, tmp_path: Path) -> None:
    """A hole on every replica, from the begin of a record on, or from inside one."""
    stores, writer, ledger = written(tmp_path)
    begin, end = at(writer, 10) + inside, at(writer, 17)
    for store in stores:
        patch(store, begin, bytes(end - begin))
    report = run_local(stores, ledger)
    told = lost(report)
    assert sum(w.records for w in told) == 7
    assert {w.queue_id for w in told} == {0, 1}
    for w in told:
        gone = [n for n in range(10, 17) if n % 2 == w.queue_id]
        since, until = seconds(w)
        assert 9 <= since <= gone[0]
        assert gone[-1] <= until <= 17
    for hole in [w for w in report.windows if w.kind == "unreadable_region"]:
        assert seconds(hole) == (9, 17)
    assert "since 2023-11-14 22:13:29.000 UTC" in sentence.of(report.verdict, report.windows)


def test_a_lost_segment_lies_between_its_neighbours(tmp_path: Path) -> None:
    stores, writer, ledger = written(tmp_path)
    for store in stores:
        (store / "commitlog" / f"{SEGMENT:020d}").unlink()
    gone = [n for n in range(COUNT) if SEGMENT <= at(writer, n) < 2 * SEGMENT]
    told = lost(run_local(stores, ledger))
    assert sum(w.records for w in told) == len(gone)
    assert {seconds(w) for w in told} == {(gone[0] - 1, gone[-1] + 1)}


def test_where_no_record_is_left_on_a_side_its_time_is_unknown(tmp_path: Path) -> None:
    stores, writer, ledger = written(tmp_path)
    for store in stores:
        patch(store, 0, bytes(at(writer, 5)))
        patch(store, at(writer, 75), bytes(-at(writer, 75) % SEGMENT))
    report = run_local(stores, ledger)
    told = [(w.since_ms, w.until_ms) for w in sorted(lost(report), key=lambda w: w.phys_offset)]
    assert told[0] == (-1, STAMP + 5000)
    assert told[-1] == (STAMP + 74_000, -1)
    assert "since" not in sentence.of(report.verdict, report.windows), "a later time would be wrong"
    assert lost(report)[0].to_json()["since_ms"] is None


def test_a_time_is_that_of_the_records_there_or_of_their_neighbours(tmp_path: Path) -> None:
    stores, writer, _ = written(tmp_path)
    replicas = found(*stores)
    size = at(writer, 8) - at(writer, 7)
    assert stored_between(replicas, at(writer, 7), at(writer, 9)) == (STAMP + 7000, STAMP + 8000)
    assert stored_between(replicas, at(writer, 7) + 1, at(writer, 8) + 1) == (STAMP + 7000, STAMP + 8000)
    assert lost_between(replicas, at(writer, 7), at(writer, 7) + size) == (STAMP + 6000, STAMP + 8000)
    assert lost_between(replicas, 0, 1 << 40) == (-1, -1)
    assert lost_between(replicas, 1 << 40, 1 << 41) == (STAMP + 1000 * (COUNT - 1), -1)
    assert stored_between([], 0, 5) == (-1, -1)


def test_a_replica_that_ends_early_is_no_neighbour(tmp_path: Path) -> None:
    stores, writer, _ = written(tmp_path, 2)
    patch(stores[0], at(writer, 70), bytes(-at(writer, 70) % SEGMENT))
    replicas = found(*stores)
    assert replicas[0].end < replicas[1].end
    assert lost_between(replicas, at(writer, 75), at(writer, 76)) == (STAMP + 74_000, STAMP + 76_000)


def test_the_last_of_many_is_told_only_if_it_is_known(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == "cut tail").do(stores, writer)
    [short] = [w for w in run_local(stores, ledger).windows if w.kind == "short_tail"]
    assert (short.records, short.first_key, short.last_key) == (5, "m75", "")
    assert short.to_json()["last_key"] is None
    rows = [
        Finding("crc_mismatch", "error", "r0", "", 1, 0, 9, "T", 0, 3, "a", records=2),
        Finding("cq_missing", "warn", "r0", "", 1, 0, 9, "T", 0, 3, "a", records=4),
        Finding("acked_missing", "error", "*", "", 1, 0, 9, "T", 0, 3, "a", records=1),
        Finding("acked_missing", "error", "*", "", 1, 9, 10, "T", 0, 4, "b", records=1),
    ]
    told = {
        w.kind: (w.first_key, w.last_key, w.first_queue_offset, w.last_queue_offset)
        for w in windows(rows, [])
    }
    assert told == {
        "crc_mismatch": ("a", "", 3, -1),
        "cq_missing": ("a", "", 3, 6),
        "acked_missing": ("a", "b", 3, 4),
    }


def test_the_first_row_of_a_ledger_need_not_be_its_times(tmp_path: Path) -> None:
    """Times of a ledger are of any clock: they are no times of a log."""
    stores, writer, _ = written(tmp_path)
    for store in stores:
        patch(store, at(writer, 10), bytes(at(writer, 17) - at(writer, 10)))
    ledger = tmp_path / "timed.jsonl"
    rows = [{**row, "begun_ms": 5 + n, "acked_ms": 6 + n} for n, row in enumerate(writer.rows)]
    ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {seconds(w) for w in lost(run_local(stores, ledger))} == {(9, 17)}


def test_lost_messages_are_counted_by_what_the_page_says(tmp_path: Path) -> None:
    """They follow from a hole, so no severity tells them."""
    stores, writer, ledger = written(tmp_path)
    for store in stores:
        patch(store, at(writer, 10), bytes(at(writer, 17) - at(writer, 10)))
    out = tmp_path / "out"
    arguments = [*map(str, stores), "--ledger", str(ledger), "--out", str(out)]
    assert CliRunner().invoke(audit, arguments, standalone_mode=False).return_value == 2
    rows = [r for r in pq.read_table(out / "findings.parquet").to_pylist() if r["kind"] == "acked_missing"]
    assert {row["severity"] for row in rows} == {"info"}
    asked = [row["records"] for row in rows if row["copies"] == 0 and row["topic"] is not None]
    query = "sum(records), 0) FROM findings WHERE kind = 'acked_missing' AND copies = 0 AND topic IS NOT NULL"
    assert query in (ROOT / "docs" / "audit.md").read_text()
    assert sum(asked) == json.loads((out / "summary.json").read_text())["ledger"]["lost"] == 7


def test_what_has_no_place_is_in_no_window_with_what_has_one() -> None:
    row = Finding(
        "acked_missing", "error", "*", topic="T", queue_id=0, epoch=-1, records=1, until=-1, phys_offset=-1
    )
    told = windows([row, replace(row, phys_offset=100, until=101)], [])
    assert [(w.phys_offset, w.until, w.records) for w in told] == [(-1, -1, 1), (100, 101, 1)]
