"""The promise about segment files that are shorter than the others': what they lack, and the record that
their end cuts, is wrong on their replica only, which holds no copy of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from tests.audit.plants import make_queued, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, look, patch

Row = tuple[str, str, int, int, int]


def _starts(store: Path) -> list[int]:
    """Where the first segment's records begin, and the last ends."""
    at, found = 0, []
    while (size := int.from_bytes(look(store, at, 4))) and at + size < SEGMENT:
        found.append(at)
        at += size
    return [*found, at]


def _shorten(store: Path, size: int, base: int = 0) -> None:
    os.truncate(store / "commitlog" / f"{base:020d}", size)


def _rows(stores: list[Path]) -> set[Row]:
    return {
        (f.kind, f.replica, f.phys_offset, f.until, f.copies)
        for f in run_local(stores, None).findings
        if f.severity != "info"
    }


@pytest.mark.parametrize("kept", [0, 10, 88])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("whose", [0, 1])
def test_a_record_that_a_files_end_cuts_is_whole_elsewhere(
    whose: int, count: int, kept: int, tmp_path: Path
) -> None:
    stores, _ = make_queued(tmp_path, count)
    at = _starts(stores[0])[20]
    _shorten(stores[whose], at + kept)
    rows = _rows(stores)
    assert {replica for _, replica, *_ in rows} == {f"r{whose}"}
    assert {copies for *_, copies in rows} == {count - 1}
    assert min(begin for _, _, begin, _, _ in rows) == at
    assert max(until for _, _, _, until, _ in rows) == SEGMENT


def test_what_is_behind_a_files_end_is_no_copy(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 2)
    starts = _starts(stores[0])
    _shorten(stores[0], starts[5])
    patch(stores[1], starts[20], bytes(starts[21] - starts[20]))
    rows = _rows(stores)
    assert ("unreadable_region", "r1", starts[20], starts[21], 0) in rows
    assert ("unreadable_region", "r0", starts[5], SEGMENT, 0) in rows


def test_nor_is_a_segment_with_a_damaged_record(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    (stores[0] / "commitlog" / f"{SEGMENT:020d}").unlink()
    at = SEGMENT
    patch(stores[1], at, bytes(int.from_bytes(look(stores[1], at, 4))))
    assert ("missing_segment", "r0", SEGMENT, 2 * SEGMENT, 1) in _rows(stores)


@pytest.mark.parametrize("expired", [True, False])
def test_what_others_hold_of_a_hole_counts_for_itself(expired: bool, tmp_path: Path) -> None:
    """The others expired most of it, or end in it: what they have is put back from them."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(160)
    stores = copies(writer.root)
    assert writer.end > 4 * SEGMENT
    for store in stores:
        (store / "abort").touch()
    border = 3 * SEGMENT
    for base in range(SEGMENT, 4 * SEGMENT, SEGMENT):
        (stores[1] / "commitlog" / f"{base:020d}").unlink()
    for store in (stores[0], stores[2]):
        for base in range(0, border if expired else 0, SEGMENT):
            (store / "commitlog" / f"{base:020d}").unlink()
        if not expired:
            cut(store, next(int(str(r["phys_offset"])) for r in writer.rows[100:]))
    report = run_local(stores, None)
    rows = [(f.phys_offset, f.until, f.copies) for f in report.findings if f.kind == "missing_segment"]
    assert rows == [
        (SEGMENT, border, 0 if expired else 2),
        (border, 4 * SEGMENT, 2 if expired else 0),
    ]
    commands = [step.command for step in steps(report.findings, report.replicas)]
    assert sum(command.startswith("cp ") for command in commands) == 1


@pytest.mark.parametrize("size", [0, 1, 100, SEGMENT // 2, 2 * SEGMENT])
@pytest.mark.parametrize("count", [1, 12, 40])
def test_files_that_somebody_made_beside_the_log_do_not_tell_how_long_a_segment_is(
    count: int, size: int, tmp_path: Path
) -> None:
    """However many: the names of a log's files are as far apart as its segments are long."""
    stores, ledger = make_queued(tmp_path)
    for n in range(count):
        (stores[2] / "commitlog" / f"{SEGMENT * (10 + n):020d}").write_bytes(bytes(size))
    report = run_local(stores, ledger)
    assert {r.segment_bytes for r in report.replicas} == {SEGMENT}
    assert (report.lost, report.none_lost) == (0, True)
    assert {(f.kind, f.replica) for f in report.findings} <= {("unreadable_region", "r2")}


def test_files_of_nothing_tell_nothing_and_end_no_audit(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for file in (stores[2] / "commitlog").iterdir():
        os.truncate(file, 0)
    report = run_local(stores, ledger)
    assert (report.verdict, report.lost) == ("diverged", 0)
    assert {f.replica for f in report.findings if f.severity == "error"} == {"r2"}
    for store in stores[:2]:
        for file in (store / "commitlog").iterdir():
            os.truncate(file, 0)
    assert run_local(stores, ledger).lost == 80
