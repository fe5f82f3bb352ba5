"""The promise about epoch files: two that hold the same bytes tell the same epoch of them, whatever others
hold; lawful starts and ends are no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.findings import Finding
from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, LogWriter, kept, write_epochs

Epochs = list[tuple[int, int]]


def _group(
    root: Path, *, clean: bool, count: int = 3, last: int = 70
) -> tuple[list[Path], Epochs, LogWriter]:
    """Epochs 1, 3 and 5. The last one begins with message ``last``, in the third segment if it is 70, in the
    second if it is 40."""
    stores, writer, _ = make(root, count)
    epochs = [(1, 0), (3, _at(writer, 20)), (5, _at(writer, last))]
    assert epochs[1][1] < SEGMENT < epochs[2][1]
    assert (epochs[2][1] > 2 * SEGMENT) == (last == 70)
    for store in stores:
        write_epochs(store, epochs)
        if not clean:
            (store / "abort").touch()
    return stores, epochs, writer


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _expire(store: Path, start: int) -> None:
    for base in range(0, start, SEGMENT):
        (store / "commitlog" / f"{base:020d}").unlink()


def _behind(store: Path, end: int) -> None:
    """Its last segments did not come yet."""
    for file in (store / "commitlog").iterdir():
        if int(file.name) >= end:
            file.unlink()


def _rows(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.kind == "epoch_mismatch" and f.severity != "info"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lacks", [True, False])
def test_what_one_log_expired_hides_no_epoch_of_the_others(lacks: bool, clean: bool, tmp_path: Path) -> None:
    """The expired log's file tells which of the two is rather wrong; it proves nothing."""
    stores, epochs, writer = _group(tmp_path, clean=clean, last=40)
    begin = _at(writer, 25)
    write_epochs(stores[1], [epochs[0], *([] if lacks else [(3, begin)]), epochs[2]])
    _expire(stores[0], 2 * SEGMENT)
    report = run_local(stores, None)
    [row] = _rows(report)
    until = epochs[2][1] if lacks else begin
    assert (row.replica, row.phys_offset, row.until) == ("r1", epochs[1][1], until)
    assert (row.expected, row.found, row.ambiguous, row.copies) == ("3", "1", True, 1)
    assert report.verdict == "diverged"
    assert not any(step.command for step in steps(report.findings, report.replicas))


@pytest.mark.parametrize("clean", [True, False])
def test_what_one_log_does_not_reach_hides_no_epoch_of_the_others(clean: bool, tmp_path: Path) -> None:
    stores, epochs, _ = _group(tmp_path, clean=clean, count=4)
    write_epochs(stores[1], epochs[:2])
    _behind(stores[0], SEGMENT)
    write_epochs(stores[0], epochs[:2])
    [row] = _rows(run_local(stores, None))
    assert (row.replica, row.phys_offset, row.copies) == ("r1", epochs[2][1], 2)


def test_a_file_that_its_own_log_contradicts_blames_no_other(tmp_path: Path) -> None:
    """Two hold the place, and tell two epochs of it: one of them begins inside a record."""
    stores, epochs, writer = _group(tmp_path, clean=True)
    write_epochs(stores[1], [epochs[0], (3, _at(writer, 15) + 7), epochs[2]])
    _expire(stores[0], SEGMENT)
    [row] = _rows(run_local(stores, None))
    assert (row.replica, row.ambiguous) == ("r1", False)


def test_a_vote_farther_on_tells_more_than_a_tie(tmp_path: Path) -> None:
    stores, epochs, writer = _group(tmp_path, clean=True)
    write_epochs(stores[1], [epochs[0], (3, _at(writer, 10))])
    _expire(stores[0], SEGMENT)
    [row] = _rows(run_local(stores, None))
    assert (row.replica, row.phys_offset, row.ambiguous, row.copies) == ("r1", epochs[2][1], False, 2)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("expired", [(0,), (0, 1), (2,)])
@pytest.mark.parametrize("kept", [True, False])
def test_an_expired_start_is_no_other_epoch(
    kept: bool, expired: tuple[int, ...], clean: bool, tmp_path: Path
) -> None:
    """A broker may forget the epochs of what it deleted."""
    stores, epochs, _ = _group(tmp_path, clean=clean)
    for at in expired:
        _expire(stores[at], 2 * SEGMENT)
        if not kept:
            write_epochs(stores[at], epochs[1:])
    report = run_local(stores, None)
    assert (report.verdict, report.findings) == ("clean", [])


@pytest.mark.parametrize("expired", [0, SEGMENT, 2 * SEGMENT])
def test_a_late_joiner_tells_an_epoch_from_its_own_start(expired: int, tmp_path: Path) -> None:
    stores, epochs, _ = _group(tmp_path, clean=False)
    _expire(stores[1], SEGMENT)
    write_epochs(stores[1], [(3, SEGMENT), epochs[2]])
    _expire(stores[0], expired)
    report = run_local(stores, None)
    assert (report.verdict, report.findings) == ("clean", [])


def test_a_slave_behind_in_a_running_group_tells_no_other_epoch(tmp_path: Path) -> None:
    stores, epochs, _ = _group(tmp_path, clean=False)
    _behind(stores[1], 2 * SEGMENT)
    write_epochs(stores[1], epochs[:2])
    assert _rows(run_local(stores, None)) == []


@pytest.mark.parametrize("elected", [True, False])
@pytest.mark.parametrize("masters", [1, 2, 3])
def test_what_a_later_history_holds_is_right_also_where_most_of_it_expired(
    masters: int, elected: bool, tmp_path: Path
) -> None:
    """The old masters are down since the failover. One log of the group's still holds what they have."""
    old, new = LogWriter(tmp_path / "old"), LogWriter(tmp_path / "new")
    for log, mark, count, stamp in ((old, "o", 3, 5000), (new, "n", 60, 9000)):
        log.fill(20)
        begin = log.end
        log.fill(count, mark=mark, stamp=stamp)
    assert old.end < SEGMENT
    epochs = [(1, 0), (2, begin)]
    stores = [kept(old, tmp_path / f"r{n}", epochs[:1], begin) for n in range(masters)]
    whole, expired = (kept(new, tmp_path / name, epochs, new.end) for name in ("whole", "expired"))
    _expire(expired, SEGMENT)
    if elected:
        write_epochs(expired, [*epochs, (3, new.end)])
    report = run_local([*stores, whole, expired], None)
    assert _rows(report) == []
    told = {f.replica for f in report.findings if f.kind == "epoch_mismatch"}
    assert told == {store.name for store in stores}, "what follows from their suffixes"
