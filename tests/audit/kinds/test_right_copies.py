"""The promise of copies: no replica counts as one that holds another history, or another fault; and more than
one that lags is named, also if most do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.pages.report import lines
from audit.pages.sentence import of
from tests.audit.plants import ledger_at, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, kept, look, patch, record, write_epochs


def _log(root: Path, mark: str, size: int = 20, own: int = 0, stamp: int = 5000) -> LogWriter:
    log = LogWriter(root / mark)
    log.fill(size)
    log.fill(own, mark=mark, stamp=stamp)
    return log


def _at(log: LogWriter, n: int) -> int:
    return int(str(log.rows[n]["phys_offset"]))


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("first", ["body", "key", "place"])
def test_who_has_another_fault_holds_no_right_copy(first: str, count: int, tmp_path: Path) -> None:
    """One has the message altered, all others lack it: it is lost, once."""
    log = _log(tmp_path, "origin")
    log.confirm(epochs=[(1, 0)])
    stores, at = copies(log.root, count), _at(log, 7)
    size = int.from_bytes(look(log.root, at, 4))
    raw = {
        "body": (at + 89, b"\xff"),
        "place": (at + 27, b"\x09"),
        "key": (at, record(at, 3, b"m-7" * 5, key="q7", queue_id=1, stamp=1007)),
    }[first]
    patch(stores[0], *raw)
    for store in stores[1:]:
        patch(store, at, bytes(size))
    report = run_local(stores, ledger_at(tmp_path, log.rows))
    told = [f for f in report.findings if f.kind.startswith("acked_")]
    assert {f.copies for f in told} == {0}
    assert (report.lost, report.none_lost) == (1, False)
    assert sum(f.records for f in told if f.kind == "acked_missing") == 1
    assert not any("No acknowledged message" in line for line in lines(report))


def test_one_that_has_it_right_is_a_copy(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin")
    log.confirm(epochs=[(1, 0)])
    stores, at = copies(log.root), _at(log, 7)
    patch(stores[0], at + 89, b"\xff")
    patch(stores[1], at, bytes(int.from_bytes(look(log.root, at, 4))))
    report = run_local(stores, ledger_at(tmp_path, log.rows))
    told = {(f.kind, f.replica, f.copies) for f in report.findings if f.kind.startswith("acked_")}
    assert told == {("acked_mismatch", "r0", 1), ("acked_missing", "r1", 1)}
    assert (report.lost, report.none_lost) == (0, True)


@pytest.mark.parametrize(
    "lacking", [(20, 20), (20, 21), (200, 20, 20, 20), (200, 20, 20), (200, 199, 20, 20)]
)
@pytest.mark.parametrize("confirmed", [0, 20])
def test_whole_segments_that_most_replicas_lack_are_no_lag(
    lacking: tuple[int, ...], confirmed: int, tmp_path: Path
) -> None:
    log = _log(tmp_path, "origin", 201)
    ends = [200, *lacking]
    stores = [
        kept(log, tmp_path / f"r{n}", [(1, 0)], _at(log, confirmed), _at(log, end))
        for n, end in enumerate(ends)
    ]
    report = run_local(stores, None)
    told = {(f.kind, f.replica, f.phys_offset) for f in report.findings if f.severity == "warn"}
    assert told == {("short_tail", f"r{n}", _at(log, end)) for n, end in enumerate(ends) if end < 100}
    assert report.verdict == "warnings"


def test_a_log_without_anything_in_common_with_most_is_no_lead(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 40)
    stores = [kept(log, tmp_path / f"r{n}", [(1, 0)], 0) for n in range(3)]
    (stores[0] / "commitlog" / f"{0:020d}").unlink()
    for store in stores[1:]:
        cut(store, SEGMENT)
    assert run_local(stores, None).verdict == "warnings"


def test_a_log_that_is_a_few_records_ahead_of_most_leads(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 201)
    stores = [
        kept(log, tmp_path / f"r{n}", [(1, 0)], 0, _at(log, end)) for n, end in enumerate((200, 190, 190))
    ]
    report = run_local(stores, None)
    assert {(f.kind, f.severity, f.replica) for f in report.findings} == {("extra_tail", "info", "r0")}
    assert report.verdict == "clean"


@pytest.mark.parametrize("hurt", ["place", "segment"])
def test_where_epochs_part_and_nothing_equal_is_left_nobody_has_a_copy(hurt: str, tmp_path: Path) -> None:
    """The later epoch's only record that the others' logs reach was damaged, or its segment is gone."""
    size = 10 if hurt == "place" else 40
    new, old = _log(tmp_path, "new", size, 40 if size == 40 else 3, 9000), _log(tmp_path, "old", size, 40)
    begin = _at(new, size)
    end = _at(old, size + 1) if hurt == "place" else 2 * SEGMENT
    stores = [kept(new, tmp_path / "a", [(1, 0), (2, begin)], new.end)]
    stores += [kept(old, tmp_path / name, [(1, 0)], begin, end) for name in "bc"]
    if hurt == "place":
        patch(stores[0], begin + 28, b"\x11")
    else:
        (stores[0] / "commitlog" / f"{SEGMENT:020d}").unlink()
    [row] = [
        f
        for f in run_local(stores, None).findings
        if f.replica == "a" and f.kind.startswith(("phys", "miss"))
    ]
    assert row.copies == 0


def test_what_is_equal_behind_proves_copies_of_one_history(tmp_path: Path) -> None:
    """Two epoch files lack the last entry; the record behind the damaged one is the same."""
    log = _log(tmp_path, "origin")
    stores = [kept(log, tmp_path / name, [(1, 0), (2, _at(log, 10))], log.end) for name in "abc"]
    for store in stores[1:]:
        write_epochs(store, [(1, 0)])
    patch(stores[0], _at(log, 10) + 28, b"\x11")
    [row] = [f for f in run_local(stores, None).findings if f.kind == "phys_offset_mismatch"]
    assert (row.replica, row.copies) == ("a", 2)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("later", [[], [(3, 12)]])
def test_an_epoch_that_one_alone_knows_of_is_open(
    later: list[tuple[int, int]], count: int, tmp_path: Path
) -> None:
    """Also one in the middle: a file loses entries."""
    log = _log(tmp_path, "origin")
    less = [(1, 0), *((epoch, _at(log, n)) for epoch, n in later)]
    stores = [kept(log, tmp_path / f"r{n}", less, log.end) for n in range(count)]
    write_epochs(stores[0], sorted([*less, (2, _at(log, 10))]))
    rows = [f for f in run_local(stores, None).findings if f.kind == "epoch_mismatch"]
    assert rows
    assert all(f.ambiguous for f in rows if f.replica == "r0" or count == 2)


def test_a_file_that_most_contradict_is_wrong(tmp_path: Path) -> None:
    """It tells another epoch, and not theirs besides."""
    log = _log(tmp_path, "origin")
    stores = [kept(log, tmp_path / f"r{n}", [(1, 0), (3, _at(log, 10))], log.end) for n in range(3)]
    write_epochs(stores[0], [(1, 0), (2, _at(log, 10))])
    rows = [f for f in run_local(stores, None).findings if f.kind == "epoch_mismatch"]
    assert [(f.replica, f.ambiguous) for f in rows] == [("r0", False)]
    shutil.rmtree(stores[2])
    rows = [f for f in run_local(stores[:2], None).findings if f.kind == "epoch_mismatch"]
    assert [f.ambiguous for f in rows] == [True]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_whose_copies_are_all_damaged_is_lost(count: int, tmp_path: Path) -> None:
    """A copy that fails its CRC cannot be read; a broker gives its consumers nothing of it."""
    log = _log(tmp_path, "origin")
    log.confirm(epochs=[(1, 0)])
    stores = copies(log.root, count)
    for n, store in enumerate(stores):
        patch(store, _at(log, 7) + 88 + n, b"\xff")
    report = run_local(stores, ledger_at(tmp_path, log.rows))
    assert {(f.kind, f.copies) for f in report.findings if f.uniq_key == "m7"} == {
        ("crc_mismatch", 0),
        ("acked_missing", 0),
    }
    assert (report.verdict, report.lost, report.none_lost) == ("diverged", 1, False)
    assert sum(w.records for w in report.windows if w.lost) == 1
    assert of(report.verdict, report.windows).startswith("1 acknowledged message is lost, ")


def test_one_is_lost_of_which_one_copy_is_damaged_and_the_other_altered(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin")
    log.confirm(epochs=[(1, 0)])
    stores, at = copies(log.root, 2), _at(log, 7)
    patch(stores[0], at + 89, b"\xff")
    patch(stores[1], at, record(at, 3, b"M-7" * 5, key="m7", queue_id=1, stamp=1007))
    report = run_local(stores, ledger_at(tmp_path, log.rows))
    told = {(f.kind, f.replica, f.ambiguous) for f in report.findings if f.kind.startswith("acked_")}
    assert told == {("acked_missing", "*", True), ("acked_mismatch", "r1", False)}
    assert (report.lost, report.none_lost) == (1, False)
