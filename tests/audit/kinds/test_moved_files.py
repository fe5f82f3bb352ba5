"""The promise about files under a later segment's name: only records that name their own place say how far a
log reaches, so nobody else is named for such a file."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from audit.findings import INFO
from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.plants import make, make_queued, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, patch

BEHIND = 5 * SEGMENT


def _file(store: Path, base: int) -> Path:
    return store / "commitlog" / f"{base:020d}"


def _moved(store: Path) -> None:
    _file(store, SEGMENT).rename(_file(store, BEHIND))


def _copied(store: Path) -> None:
    shutil.copy(_file(store, SEGMENT), _file(store, BEHIND))


def _in_part(store: Path) -> None:
    _file(store, BEHIND).write_bytes(_file(store, SEGMENT).read_bytes()[:1000] + bytes(SEGMENT - 1000))


def _two_files(store: Path) -> None:
    _copied(store)
    shutil.copy(_file(store, 0), _file(store, BEHIND + SEGMENT))


HARMS = {"moved": _moved, "copied": _copied, "copied in part": _in_part, "two files": _two_files}


def _told(report: Report) -> set[tuple[str, str]]:
    return {(f.kind, f.replica) for f in report.findings if f.severity != INFO}


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("harmed", [(1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("how", HARMS)
def test_a_file_behind_the_end_names_its_own_store_only(
    how: str, harmed: tuple[int, ...], ledger: bool, running: bool, tmp_path: Path
) -> None:
    stores, path = make_queued(tmp_path)
    for at, store in enumerate(stores):
        if running:
            (store / "abort").touch()
        if at in harmed:
            HARMS[how](store)
    report = run_local(stores, path if ledger else None)
    missing = {("missing_segment", f"r{at}") for at in harmed if how == "moved"}
    told = _told(report)
    if how == "moved" and len(harmed) == 3:  # nobody holds it: it counts as lost, not as expired
        assert report.expired == 0
        assert (report.lost or 0) == (len(_lines(path, SEGMENT)) if ledger else 0)
        told = {row for row in told if row[0] in ("missing_segment", "file_corrupt", "short_tail")}
    else:
        assert report.lost in (0, None)
    assert told == {("file_corrupt", f"r{at}") for at in harmed} | missing
    asides = [step for step in steps(report.findings, report.replicas) if "out of commitlog" in step.why]
    assert [step.replica for step in asides] == [f"r{at}" for at in harmed]
    assert not any("look in a backup" in s.why for s in steps(report.findings, report.replicas)) or (
        how == "moved" and len(harmed) == 3
    )


def _lines(ledger: Path, base: int) -> list[str]:
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [row["uniq_key"] for row in rows if base <= row["phys_offset"] < base + SEGMENT]


@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_over_the_last_file_it_is_damage_as_far_as_the_others_reach(
    running: bool, ledger: bool, tmp_path: Path
) -> None:
    stores, writer, path = make(tmp_path)
    for store in stores:
        if running:
            (store / "abort").touch()
    last = writer.end // SEGMENT * SEGMENT
    shutil.copy(_file(stores[1], SEGMENT), _file(stores[1], last))
    report = run_local(stores, path if ledger else None)
    told = _told(report)
    assert ("phys_offset_mismatch", "r1") in told
    assert {replica for kind, replica in told if not kind.startswith(("cq_", "index_"))} == {"r1"}
    assert not {"dup_queue_offset", "queue_order", "extra_tail"} & {kind for kind, _ in told}
    assert max(r.end for r in report.replicas) == writer.end
    assert report.lost in (0, None)


def _alone(root: Path, count: int) -> tuple[LogWriter, Path]:
    writer = LogWriter(root / "origin")
    writer.fill(count)
    writer.confirm(epochs=[(1, 0)])
    return writer, copies(writer.root, 1)[0]


def test_a_store_alone_ended_in_a_file_that_is_not_full(tmp_path: Path) -> None:
    writer, store = _alone(tmp_path, 80)
    assert writer.end % SEGMENT < SEGMENT - 200
    _copied(store)
    report = run_local([store], None)
    assert _told(report) >= {("file_corrupt", "r0")}
    assert not {"phys_offset_mismatch", "unreadable_region", "dup_queue_offset"} & {
        f.kind for f in report.findings
    }
    [r] = report.replicas
    assert r.end == writer.end


def test_a_store_alone_whose_last_file_was_written_over_is_damaged(tmp_path: Path) -> None:
    writer, store = _alone(tmp_path, 80)
    shutil.copy(_file(store, 0), _file(store, writer.end // SEGMENT * SEGMENT))
    report = run_local([store], None)
    assert ("phys_offset_mismatch", "r0") in _told(report)
    assert "file_corrupt" not in {f.kind for f in report.findings}


def _first_alone(root: Path) -> list[Path]:
    """Only r0 has the last file yet, with one record; all were stopped (a live one may be writing it)."""
    writer = LogWriter(root / "origin")
    while writer.end < 2 * SEGMENT:
        writer.add(b"m" * 40)
    begin = 2 * SEGMENT
    stores = copies(writer.root, 3)
    for store in stores[1:]:
        cut(store, begin)
    return stores


def test_one_record_whose_place_was_changed_is_damage(tmp_path: Path) -> None:
    stores = _first_alone(tmp_path)
    patch(stores[0], 2 * SEGMENT + 28, struct.pack(">q", SEGMENT))
    told = _told(run_local(stores, None))
    assert ("phys_offset_mismatch", "r0") in told
    assert "file_corrupt" not in {kind for kind, _ in told}


def test_one_record_that_stands_where_it_says_is_copied(tmp_path: Path) -> None:
    stores = _first_alone(tmp_path)
    raw = _file(stores[1], SEGMENT).read_bytes()
    size = struct.unpack_from(">i", raw)[0]
    _file(stores[0], 2 * SEGMENT).write_bytes(raw[:size] + bytes(SEGMENT - size))
    told = _told(run_local(stores, None))
    assert {row for row in told if row[0][:3] != "cq_"} == {("file_corrupt", "r0")}


def test_misplaced_records_in_a_row_take_no_place_of_a_queue(tmp_path: Path) -> None:
    """They begin a run of their queue, which goes on with sound ones."""
    stores, writer, ledger = make(tmp_path)
    places = [int(str(row["phys_offset"])) for row in writer.rows]
    begin = min(at for at in places if at >= SEGMENT)
    for n, at in enumerate(at for at in places if begin <= at < begin + 900):
        patch(stores[1], at + 28, struct.pack(">q", at + 7 + n))
    kinds = {f.kind for f in run_local(stores, ledger).findings if f.severity != INFO}
    assert "phys_offset_mismatch" in kinds
    assert not {"dup_queue_offset", "queue_order"} & kinds
