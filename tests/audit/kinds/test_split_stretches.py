"""The promise about stretches of which copies hold a part: each part has its own row and copies, and files
that tell one epoch part no logs."""

from __future__ import annotations

from pathlib import Path

from audit.results.steps.repair import steps
from tests.audit.parted import sealed
from tests.audit.plants import run_local
from tests.audit.results.advised import do
from tests.audit.stores import SEGMENT, LogWriter, cut, kept, look, patch

Row = tuple[str, str, int, int, int]


def _log(root: Path, mark: str, kept_of_all: int, own: int) -> LogWriter:
    log = LogWriter(root / mark)
    log.fill(kept_of_all)
    log.fill(own, mark=mark, stamp=5000 if mark == "old" else 9000)
    return log


def _at(log: LogWriter, n: int) -> int:
    return int(str(log.rows[n]["phys_offset"]))


def _rows(stores: list[Path], kind: str, replica: str) -> list[Row]:
    """Without what it follows from."""
    report = run_local(stores, None)
    found = (f for f in report.findings if (f.kind, f.replica) == (kind, replica))
    return sorted((f.kind, f.severity, f.phys_offset, f.until, f.copies) for f in found)


def test_damage_over_the_place_where_epochs_part_is_two_stretches(tmp_path: Path) -> None:
    old, new = _log(tmp_path, "old", 30, 15), _log(tmp_path, "new", 30, 30)
    begin, at = _at(old, 30), _at(old, 20)
    assert at < begin < SEGMENT
    stores = [kept(new, tmp_path / name, [(1, 0), (2, begin)], new.end) for name in "ab"]
    stores.append(kept(old, tmp_path / "c", [(1, 0)], begin))
    for store in stores:
        sealed(store)
    patch(stores[2], at, bytes(SEGMENT - at))
    assert _rows(stores, "unreadable_region", "c") == [
        ("unreadable_region", "error", at, begin, 2),
        ("unreadable_region", "info", begin, SEGMENT, 0),
    ]
    report = run_local(stores, None)
    for step in steps(report.findings, report.replicas):
        assert do(step) == ""
    assert look(stores[2], at, begin - at) == look(new.root, at, begin - at)
    assert _rows(stores, "unreadable_region", "c") == [("unreadable_region", "info", begin, SEGMENT, 0)]


def test_damage_behind_the_end_of_a_log_that_lags_is_another_stretch(tmp_path: Path) -> None:
    log = _log(tmp_path, "old", 60, 0)
    at, end, until = _at(log, 10), _at(log, 15), _at(log, 20)
    stores = [kept(log, tmp_path / "a", [(1, 0)], end), kept(log, tmp_path / "b", [(1, 0)], end, end)]
    patch(stores[0], at, bytes(until - at))
    assert _rows(stores, "unreadable_region", "a") == [
        ("unreadable_region", "error", at, end, 1),
        ("unreadable_region", "error", end, until, 0),
    ]


def test_a_lost_end_parts_no_histories(tmp_path: Path) -> None:
    """The epoch file tells of an epoch that begins behind the end."""
    log = _log(tmp_path, "old", 60, 0)
    begin = _at(log, 50)
    stores = [kept(log, tmp_path / name, [(1, 0), (2, begin)], log.end) for name in "abc"]
    end = _at(log, 45)
    cut(stores[0], end)
    assert _rows(stores, "short_tail", "a") == [("short_tail", "error", end, log.end, 2)]
    for store in stores:
        sealed(store)
    path = stores[0] / "commitlog" / f"{SEGMENT:020d}"
    path.unlink()
    path.mkdir()
    assert _rows(stores, "file_unreadable", "a") == [("file_unreadable", "error", SEGMENT, 2 * SEGMENT, 2)]


def test_where_a_later_epoch_lost_its_first_records_it_cuts_all_the_same(tmp_path: Path) -> None:
    """No log has any record of it: the old master does not lead."""
    log = _log(tmp_path, "old", 20, 0)
    begin, end = _at(log, 15), _at(log, 14)
    stores = [kept(log, tmp_path / "a", [(1, 0)], begin)]
    stores += [kept(log, tmp_path / name, [(1, 0), (2, begin)], begin, begin) for name in "bc"]
    cut(stores[1], end)
    cut(stores[2], end)
    report = run_local(stores, None)
    assert not any("a has to lead" in step.why for step in steps(report.findings, report.replicas))
