"""The promise of checkpoints and later epochs: one that is not as it was written, or is gone, takes no
promise back; and a master that wrote nothing yet is the group's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.results.repair import steps
from audit.run import Report
from tests.audit.parted import sealed
from tests.audit.plants import run_local
from tests.audit.stores import SEGMENT, LogWriter, kept, patch, write_checkpoint

Told = set[tuple[str, str, str, int]]


def _sound(checkpoint: Path) -> None:
    """As it was written."""


def _changed(checkpoint: Path) -> None:
    raw = bytearray(checkpoint.read_bytes())
    raw[35] ^= 4
    checkpoint.write_bytes(raw)


def _closed(checkpoint: Path) -> None:
    checkpoint.unlink()
    checkpoint.mkdir()


def _zeros(checkpoint: Path) -> None:
    """Neither mark nor times nor offset: no broker of a log with records leaves it so."""
    checkpoint.write_bytes(bytes(4096))


def _sector(checkpoint: Path) -> None:
    raw = checkpoint.read_bytes()
    checkpoint.write_bytes(bytes(512) + raw[512:])


WAYS = [_sound, _changed, _closed, Path.unlink, _zeros, _sector]
"""A sound one confirmed all."""


def _told(report: Report) -> Told:
    beside = ("file_corrupt", "file_unreadable", "file_missing")
    return {
        (f.kind, f.severity, f.replica, f.phys_offset)
        for f in report.findings
        if f.severity != "info" and not (f.kind in beside and f.phys_offset < 0)
    }


def _log(root: Path, mark: str, size: int, **more: int) -> LogWriter:
    """20 records that all have, and ``more`` of its own."""
    log = LogWriter(root / mark)
    log.fill(size)
    for own, count in more.items():
        log.fill(count, mark=own, stamp=9000 if own == "new" else 5000)
    return log


def _at(log: LogWriter, n: int) -> int:
    return int(str(log.rows[n]["phys_offset"]))


def _group(log: LogWriter, end: int, later: list[tuple[int, int]]) -> list[Path]:
    """One replica has all of the log; two have it up to ``end``, and epochs of their own."""
    root = log.root.parent
    stores = [kept(log, root / "a", [(1, 0)], log.end)]
    stores += [kept(log, root / name, [(1, 0), *later], end, end) for name in "bc"]
    for store in stores:
        sealed(store)
    return stores


@pytest.mark.parametrize("harm", WAYS)
def test_what_an_election_cuts_may_have_been_promised(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    end = _at(log, 15)
    stores = _group(log, end, [(4, end)])
    harm(stores[0] / "checkpoint")
    assert _told(run_local(stores, None)) == {("short_tail", "warn", name, end) for name in "bc"}


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_the_end_of_a_stopped_log(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    end = _at(log, 15)
    stores = _group(log, end, [])[:2]
    for store in stores:
        (store / "abort").unlink()
    harm(stores[0] / "checkpoint")
    assert _told(run_local(stores, None)) == {("short_tail", "warn", "b", end)}


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_what_a_file_holds_that_cannot_be_read(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 60)
    stores = _group(log, _at(log, 50), [])
    assert SEGMENT < _at(log, 50) < log.end < 2 * SEGMENT
    _closed(stores[0] / "commitlog" / f"{SEGMENT:020d}")
    harm(stores[0] / "checkpoint")
    report = run_local(stores, None)
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "a"]
    assert any(why.startswith("Keep this store") for why in told)
    assert not any("empty store" in why for why in told)


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_what_stands_behind_unreadable_bytes(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    end, epochs = _at(log, 15), [(1, 0), (2, _at(log, 5))]
    stores = [kept(log, tmp_path / name, epochs, log.end if name == "a" else end) for name in "abc"]
    for store in stores[1:]:
        shutil.rmtree(store)
        kept(log, store, epochs, end, end)
    for store in stores:
        sealed(store)
    patch(stores[0], end, bytes(60))
    harm(stores[0] / "checkpoint")
    assert ("unreadable_region", "error", "a", end) in _told(run_local(stores, None))


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_a_suffix(harm: Callable[[Path], None], tmp_path: Path) -> None:
    old, new = _log(tmp_path, "old", 10, old=4), _log(tmp_path, "new", 10, new=6)
    begin = _at(old, 10)
    stores = [kept(old, tmp_path / "a", [(1, 0)], old.end)]
    stores += [kept(new, tmp_path / name, [(1, 0), (2, begin)], new.end) for name in "bc"]
    for store in stores:
        sealed(store)
    harm(stores[0] / "checkpoint")
    assert _told(run_local(stores, None)) == {("divergent_suffix", "error", "a", begin)}


@pytest.mark.parametrize("harm", [_changed, _zeros, _sector])
def test_a_checkpoint_that_is_not_as_it_was_written_is_named(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    log = _log(tmp_path, "origin", 20)
    stores = _group(log, log.end, [])
    harm(stores[0] / "checkpoint")
    found = [(f.kind, f.replica) for f in run_local(stores, None).findings if f.segment == "checkpoint"]
    assert found == [("file_corrupt", "a")]


def test_rocketmqs_among_keelmqs_needs_no_mark(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    stores = _group(log, log.end, [])
    write_checkpoint(stores[0], log.end)
    assert _told(run_local(stores, None)) == set()


def test_a_checkpoint_of_rocketmqs_that_is_gone_said_nothing(tmp_path: Path) -> None:
    """As a store that was never confirmed: an election explains the other end."""
    old, new = _log(tmp_path, "old", 10, old=4), _log(tmp_path, "new", 10, new=6)
    begin = _at(old, 10)
    stores = [kept(old, tmp_path / "a", [(1, 0)], begin)]
    stores += [kept(new, tmp_path / name, [(1, 0), (2, begin)], new.end) for name in "bc"]
    (stores[0] / "checkpoint").unlink()
    assert _told(run_local(stores, None)) == {("divergent_suffix", "warn", "a", begin)}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("wrote", [0, 1])
def test_the_master_of_the_last_epoch_is_right_before_its_first_record(
    wrote: int, count: int, tmp_path: Path
) -> None:
    """It never had the epoch before, of which another log has records where it has its own."""
    log = _log(tmp_path, "old", 10, old=4)
    own = _log(tmp_path, "new", 10, own=2, new=wrote)
    begin, end = _at(log, 10), own.end if not wrote else _at(own, 12)
    stores = [kept(log, tmp_path / "a", [(1, 0), (3, begin)], begin)]
    stores += [kept(own, tmp_path / name, [(1, 0), (4, end)], end) for name in "bc"[: count - 1]]
    report = run_local(stores, None)
    assert _told(report) == {("divergent_suffix", "warn", "a", begin)}
    assert report.reference == "b"
