"""The promise about offsets that small files name: a record's border, and none behind the log's end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.reading.records.record import MAGIC_BLANK
from audit.results.steps.repair import steps
from model.ids import PhysicalOffset
from store.files.checkpoint import FILE_BYTES, Checkpoint
from tests.audit.plants import ledger_at, make, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, look, patch, write_epochs


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _noted(store: Path, *, settled: int, indexed: int = 0, confirmed: int = 0) -> None:
    """The sealed checkpoint that keelmq leaves, and its second copy of the epochs."""
    (store / "epochFileCheckpoint.bak").write_bytes((store / "epochFileCheckpoint").read_bytes())
    found = Checkpoint(1, 1, 1, confirm_offset=PhysicalOffset(confirmed or settled))
    found.settled_offset, found.indexed_offset = PhysicalOffset(settled), PhysicalOffset(indexed)
    (store / "checkpoint").write_bytes(found.encode().ljust(FILE_BYTES, b"\0"))


def _told(findings: list[Finding]) -> list[tuple[str, str, str, int, int]]:
    return [(f.kind, f.severity, f.replica, f.phys_offset, f.until) for f in findings]


@pytest.mark.parametrize("more", [1, 50])
def test_an_epoch_that_begins_inside_a_record_on_every_replica_is_named(more: int, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    begin = _at(writer, 20)
    for store in stores:
        write_epochs(store, [(1, 0), (3, begin + more)])
    report = run_local(stores, None)
    expected = [("epoch_mismatch", "error", f"r{n}", begin, begin + more + 1) for n in range(3)]
    assert (_told(report.findings), report.verdict) == (expected, "diverged")
    assert not any("empty store" in step.why for step in steps(report.findings, report.replicas))


def test_an_epoch_that_begins_behind_the_log_s_end_is_named(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    for store in stores:
        write_epochs(store, [(1, 0), (3, writer.end + 100_000)])
    told = _told(run_local(stores, None).findings)
    assert told == [("epoch_mismatch", "error", f"r{n}", writer.end, writer.end + 100_000) for n in range(3)]


@pytest.mark.parametrize("how", ["at the end", "at a segment's end", "at a blank", "before the log"])
def test_an_epoch_may_begin_where_no_record_does_yet(how: str, tmp_path: Path) -> None:
    """One without a write begins at the log's end; one that retention took begins before it."""
    stores, writer, _ = make(tmp_path)
    last = max(at for at in (_at(writer, n) for n in range(80)) if at < SEGMENT)
    blank = last + int.from_bytes(look(writer.root, last, 4))
    start = {"at the end": writer.end, "at a segment's end": SEGMENT, "at a blank": blank}.get(how, 50)
    for store in stores:
        write_epochs(store, [(1, 0), (3, start)])
        if how == "before the log":
            (store / "commitlog" / f"{0:020d}").unlink()
    assert run_local(stores, None).findings == []


def test_the_epochs_of_a_log_that_may_move_are_not_asked_for(tmp_path: Path) -> None:
    """A broker runs: an epoch is written down before its first record, and the log's end was noted before."""
    stores, writer, _ = make(tmp_path)
    for store in stores:
        write_epochs(store, [(1, 0), (3, _at(writer, 20)), (4, writer.end + 500)])
        (store / "abort").touch()
    assert run_local(stores, None).findings == []


def test_records_behind_a_segment_s_end_that_was_put_over_them_are_missed(tmp_path: Path) -> None:
    """On all replicas: the end that was settled stands inside of filler."""
    stores, writer, _ = make(tmp_path)
    begin = _at(writer, 77)
    left = SEGMENT - begin % SEGMENT
    for store in stores:
        _noted(store, settled=writer.end, confirmed=begin)
        patch(store, begin, struct.pack(">iI", left, MAGIC_BLANK).ljust(left, b"\0"))
    told = _told(run_local(stores, None).findings)
    assert told == [("short_tail", "error", f"r{n}", begin, writer.end) for n in range(3)]


@pytest.mark.parametrize("which", ["settled", "indexed"])
def test_what_was_noted_behind_the_log_s_end_is_missed(which: str, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    for store in stores:
        offsets = {"settled": writer.end, "indexed": 0, which: writer.end + 500}
        _noted(store, confirmed=writer.end, **offsets)
    told = [f for f in _told(run_local(stores, None).findings) if f[0] != "index_missing"]
    assert told == [("short_tail", "warn", f"r{n}", writer.end, writer.end + 500) for n in range(3)]


def test_a_note_inside_a_record_is_not_as_it_was_written(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    for store in stores:
        _noted(store, settled=_at(writer, 40) + 7, confirmed=writer.end)
    found = run_local(stores, None).findings
    told = [(f.kind, f.severity, f.replica, f.segment, f.phys_offset) for f in found]
    assert told == [("file_corrupt", "warn", f"r{n}", "checkpoint", -1) for n in range(3)]


@pytest.mark.parametrize("how", ["sound", "confirmed inside a record", "running", "RocketMQ ran"])
def test_lawful_notes_are_no_finding(how: str, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    for store in stores:
        confirmed = _at(writer, 70) + 7 if how == "confirmed inside a record" else writer.end
        _noted(
            store,
            settled=writer.end + (900 if how in ("running", "RocketMQ ran") else 0),
            confirmed=confirmed,
        )
        if how == "running":
            (store / "abort").touch()
        if how == "RocketMQ ran":
            (store / "config").mkdir()
            (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
    assert run_local(stores, None).findings == []


@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("short", [1, 2])
def test_an_epoch_behind_an_end_that_another_log_reaches_says_that_the_log_is_short(
    short: int, ledger: bool, tmp_path: Path
) -> None:
    """All files tell the same; nothing was written in the last epoch yet."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(80)
    writer.confirm(epochs=[(1, 0), (3, int(str(writer.rows[20]["phys_offset"]))), (4, writer.end)])
    stores = copies(writer.root, 3)
    for store in stores[3 - short :]:
        (store / "commitlog" / f"{2 * SEGMENT:020d}").unlink()
    report = run_local(stores, ledger_at(tmp_path, writer.rows) if ledger else None)
    told = [(f.kind, f.severity, f.replica) for f in report.findings if f.severity != "info"]
    assert sorted(told) == [("short_tail", "error", f"r{n}") for n in range(3 - short, 3)]
