"""The promise of a report: each row is told once, with one severity, in files of one audit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from audit.commands import audit as audit_command
from audit.engines.local import LocalEngine
from audit.reading.storage import parse_stores
from audit.rows.parts import Spool
from audit.run import Report, audit
from tests.audit.plants import make
from tests.audit.stores import LogWriter, copies, look, patch


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.rows.bounded.LISTED_MAX", 2)


def _audited(stores: list[Path], ledger: Path | None, unlisted: Path) -> Report:
    specs = parse_stores([str(store) for store in stores])
    return audit(specs, LocalEngine(), ledger_path=str(ledger) if ledger else None, unlisted=unlisted)


def _flip(store: Path, at: int) -> None:
    patch(store, at + 88, bytes([look(store, at + 88, 1)[0] ^ 4]))


def test_counted_rows_between_counted_causes_follow_from_none(tmp_path: Path) -> None:
    """Both rows reach from the first they count to the last, so one may contain the other."""
    writer = LogWriter(tmp_path / "o")
    writer.fill(80)
    writer.confirm(epochs=[(1, 0)])
    events = []
    for at, row in enumerate(writer.rows):
        if 10 <= at < 70 and at % 5:
            continue  # nobody sent those
        told = {"key": row["uniq_key"], "queue": ["T", "b", row["queue_id"]], "body_crc": row["body_crc"]}
        place = {"queue_offset": row["queue_offset"], "physical_offset": row["phys_offset"]}
        events.append({"type": "invoke", **told, "at_ms": at})
        events.append({"type": "ok", **told, **place, "at_ms": at + 0.5})
    history = tmp_path / "h.jsonl"
    history.write_text("".join(json.dumps(event) + "\n" for event in events))
    for damaged in (1, 3, 6, 40, 78):
        _flip(writer.root, int(str(writer.rows[damaged]["phys_offset"])))
    report = _audited([writer.root], history, tmp_path / "u.parquet")
    phantoms = [f for f in report.findings if f.kind == "phantom"]
    assert {(f.severity, f.caused_by) for f in phantoms} == {("error", "")}
    rows = pq.read_table(tmp_path / "u.parquet").to_pylist()
    counted = Counter((row["kind"], row["severity"], row["caused_by"] or "") for row in rows)
    of_report: Counter[tuple[str, str, str]] = Counter()
    for f in report.findings:
        if f.counted:
            of_report[f.kind, f.severity, f.caused_by] += f.records
    assert counted == of_report
    assert sum(f.records for f in phantoms) == 48


def test_of_two_unions_each_further_copy_is_told_once(tmp_path: Path) -> None:
    """The first segments are gone on one store, the second ones on another."""
    writer = LogWriter(tmp_path / "o")
    writer.fill(130)
    again = (5, 6, 70, 71, 72, 73, 100, 101, 102)
    for n in (*again, *again[:4]):
        writer.add(f"m-{n}".encode() * 5, key=f"m{n}", queue_id=n % 2)
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root, 3)
    for at, base in ((0, 0), (0, 4096), (1, 0), (2, 4096)):
        (stores[at] / "commitlog" / f"{base:020d}").unlink()
    last = int(str(writer.rows[-1]["phys_offset"]))
    for store in stores[1:]:
        patch(store, last, bytes(writer.end - last))
    report = _audited(stores, None, tmp_path / "u.parquet")
    assert sum(f.records for f in report.findings if f.kind == "dup_message") == 13
    rows = pq.read_table(tmp_path / "u.parquet").to_pylist()
    places = [row["phys_offset"] for row in rows if row["kind"] == "dup_message"]
    assert len(places) == len(set(places)) == 11


def test_the_files_of_a_report_are_of_one_audit(tmp_path: Path) -> None:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(audit_command, list(arguments), standalone_mode=False)

    stores, writer, _ = make(tmp_path)
    for damaged in range(1, 12, 2):
        _flip(stores[0], int(str(writer.rows[damaged]["phys_offset"])))
    out = tmp_path / "out"
    assert call(*map(str, stores), "--out", str(out)).return_value == 2
    assert pq.read_table(out / "unlisted.parquet").num_rows == 4
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    (tmp_path / "empty.jsonl").write_text("")
    ledger = ("--ledger", str(tmp_path / "empty.jsonl"))
    assert call(*map(str, stores), *ledger, "--out", str(out)).return_value != 0
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    for store in stores:
        store.rename(f"{store}.away")
    assert call(*map(str, stores), "--out", str(out)).return_value == 3
    assert (out / "findings.jsonl").read_text() == ""
    assert {file.name for file in out.iterdir()} == before.keys() - {"unlisted.parquet"}


def test_a_spool_is_whole_whoever_stopped_or_reads_beside() -> None:
    spool = Spool[int](most=3)
    for n in range(10):
        spool.append(n)
    beside = iter(spool)
    assert next(beside) == 0
    assert list(spool) == list(range(10))
    spool.append(10)
    assert list(beside) == list(range(1, 10))
    assert list(spool) == list(range(11))
