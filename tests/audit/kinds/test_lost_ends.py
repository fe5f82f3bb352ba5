"""The promise about logs that lost their end: what their checkpoints confirmed counts as far as another log
reaches, which has to lead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.parted import sealed
from tests.audit.plants import ledger_at, run_local
from tests.audit.stores import SEGMENT, LogWriter, cut, enter, expire, kept, write_checkpoint, write_epochs

Row = tuple[str, str, str, int, int, int]
OLDER, ZEROS = "older", "zeros"


def _at(log: LogWriter, n: int) -> int:
    return int(str(log.rows[n]["phys_offset"]))


def _log(root: Path) -> LogWriter:
    log = LogWriter(root / "origin")
    log.fill(40)
    return log


def _store(log: LogWriter, name: str, end: int, confirmed: int, *, clean: bool) -> Path:
    store = kept(log, log.root.parent / name, [(1, 0)], confirmed, end)
    sealed(store)
    if clean:
        (store / "abort").unlink()
    return store


def _rows(report: Report) -> set[Row]:
    return {
        (f.kind, f.severity, f.replica, f.phys_offset, f.until, f.copies)
        for f in report.findings
        if f.kind in ("short_tail", "extra_tail") and f.severity != "info"
    }


def _said(report: Report, replica: str) -> str:
    return " ".join(step.why for step in steps(report.findings, report.replicas) if step.replica == replica)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("other", [OLDER, ZEROS])
@pytest.mark.parametrize("third", [False, True])
def test_who_holds_the_rest_has_to_lead(third: bool, other: str, clean: bool, tmp_path: Path) -> None:
    log = _log(tmp_path)
    end, until = _at(log, 35), log.end
    stores = [
        _store(log, "a", until, until, clean=clean),
        _store(log, "b", until, _at(log, 34), clean=clean),
    ]
    if third:
        stores.append(_store(log, "c", end, _at(log, 34), clean=clean))
    cut(stores[0], end)
    if other == ZEROS:
        (stores[1] / "checkpoint").write_bytes(bytes(4096))
    report = run_local(stores, None)
    assert ("short_tail", "error", "a", end, until, 1) in _rows(report)
    assert "extra_tail" not in {f.kind for f in report.findings}
    assert "b has to lead" in _said(report, "a")
    assert "cut then" not in _said(report, "b")


def test_what_no_log_reaches_is_in_no_other_copy(tmp_path: Path) -> None:
    log = _log(tmp_path)
    end = _at(log, 35)
    stores = [_store(log, name, log.end, log.end, clean=True) for name in "ab"]
    for store in stores:
        cut(store, end)
    report = run_local(stores, None)
    assert _rows(report) == {("short_tail", "error", name, end, log.end, 0) for name in "ab"}
    assert "No replica goes on" in _said(report, "a")


def test_what_is_confirmed_behind_all_logs_is_told_besides(tmp_path: Path) -> None:
    log = _log(tmp_path)
    end, longest = _at(log, 33), _at(log, 37)
    stores = [_store(log, "a", log.end, log.end, clean=True), _store(log, "b", longest, end, clean=True)]
    cut(stores[0], end)
    report = run_local(stores, None)
    assert _rows(report) == {("short_tail", "error", "a", end, longest, 1)}
    (found,) = (f.found for f in report.findings if f.kind == "short_tail")
    assert found == f"end {end}, its own confirmOffset {log.end}"


def test_the_promise_of_a_log_that_an_election_left_is_none_of_the_groups(tmp_path: Path) -> None:
    log = _log(tmp_path)
    begin = _at(log, 35)
    stores = [kept(log, tmp_path / "a", [(1, 0)], log.end)]
    stores += [kept(log, tmp_path / name, [(1, 0), (2, begin)], begin, begin) for name in "bc"]
    write_checkpoint(stores[0], begin)
    assert _rows(run_local(stores, None)) == {("extra_tail", "warn", "a", begin, log.end, 1)}


def _zeros(checkpoint: Path) -> None:
    checkpoint.write_bytes(bytes(4096))


def _nothing(store: Path) -> None:
    """A new store's files."""
    write_epochs(store, [(1, 0)])
    (store / "consumequeue" / "T" / "0").mkdir(parents=True)
    (store / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(bytes(200))
    (store / "index").mkdir()


def _entry(store: Path) -> None:
    _nothing(store)
    enter(store, "T", 0, 0, b"\1" * 20)


def _index(store: Path) -> None:
    _nothing(store)
    (store / "index" / f"{0:017d}").write_bytes(b"\1" * 40)


def _epochs(store: Path) -> None:
    _nothing(store)
    write_epochs(store, [(1, 0), (2, 2000)])


@pytest.mark.parametrize("checkpoint", [Path.unlink, _zeros])
@pytest.mark.parametrize("keelmq", [True, False])
@pytest.mark.parametrize("told", [_nothing, _entry, _index, _epochs])
def test_a_log_that_lost_all_its_files_is_no_new_one(
    told: Callable[[Path], None], keelmq: bool, checkpoint: Callable[[Path], None], tmp_path: Path
) -> None:
    """It may have had what the others expired, if anything besides its log tells of records."""
    log = _log(tmp_path)
    log.fill(40, mark="more", stamp=2000)
    ledger = ledger_at(tmp_path, log.rows)
    stores = [kept(log, tmp_path / name, [(1, 0)], log.end) for name in "abc"]
    for store in stores if keelmq else ():
        sealed(store)
    for store in stores[1:]:
        expire(store, SEGMENT)
    for file in (stores[0] / "commitlog").iterdir():
        file.unlink()
    checkpoint(stores[0] / "checkpoint")
    told(stores[0])
    report = run_local(stores, ledger)
    counts = (report.lost, report.expired, report.none_lost)
    assert counts == ((0, 33, True) if told is _nothing else (33, 0, False))
    named = [f.replica for f in report.findings if f.segment == "checkpoint"]
    assert named == (["a"] if keelmq and told is not _nothing else [])
