"""The promise about what the log's own file lacks and another file of ``commitlog`` has: the step of what is
lost leads there, and no step empties that store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.reading.storage import LocalStorage
from audit.results.steps.repair import steps
from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, patch

FIRST, SECOND = f"{0:020d}", f"{SEGMENT:020d}"


def _emptied(file: Path) -> None:
    os.truncate(file, 0)


def _zeroed(file: Path) -> None:
    file.write_bytes(bytes(SEGMENT))


def _half(file: Path) -> None:
    os.truncate(file, SEGMENT // 2)


def _half_and_zeros(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: SEGMENT // 2].ljust(SEGMENT, b"\0"))


def _unreadable(file: Path) -> None:
    file.unlink()
    file.symlink_to("/nowhere/at/all")


def _rotten(file: Path) -> None:
    patch(file.parent.parent, 100, b"???")  # of the first body


def _aside(file: Path, raw: bytes) -> None:
    (file.parent / f"{file.name}.bak").write_bytes(raw)


def _behind(file: Path, raw: bytes) -> None:
    (file.parent / f"{9 * SEGMENT:020d}").write_bytes(raw)


def _appended(file: Path, raw: bytes) -> None:
    second = file.with_name(SECOND)
    second.write_bytes(second.read_bytes() + raw)


@pytest.mark.parametrize("more", ["second unreadable", "nothing more"])
@pytest.mark.parametrize("to", [_aside, _behind, _appended])
@pytest.mark.parametrize("harm", [_emptied, _zeroed, _half, _half_and_zeros, _unreadable, _rotten])
def test_a_copy_beside_a_file_that_lacks_it_is_told_and_kept(
    harm: Callable[[Path], None], to: Callable[[Path, bytes], None], more: str, tmp_path: Path
) -> None:
    stores, _, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
    for store in stores[1:]:
        (store / "commitlog" / FIRST).unlink()
    file = stores[0] / "commitlog" / FIRST
    raw = file.read_bytes()
    to(file, raw)
    harm(file)
    if more == "second unreadable" and to is not _appended:
        _unreadable(file.with_name(SECOND))
    report = run_local(stores, ledger)
    assert ("r0", "warn") in {(f.replica, f.severity) for f in report.findings if f.kind == "file_corrupt"}
    assert report.lost > 0
    told = steps(report.findings, report.replicas)
    assert not any("No store that was audited" in step.why or "empty store" in step.why for step in told)
    assert [step.command for step in told if step.replica == "r0" and step.command] == []
    order = [step.why for step in told]
    bearer = next(
        at for at, why in enumerate(order) if "commitlog, and keep it" in why or "keep it: what" in why
    )
    assert all(bearer < at for at, why in enumerate(order) if why.startswith("A file in commitlog holds"))


@pytest.mark.parametrize("own", [True, False])
def test_a_segment_appended_to_the_one_before_is_told_where_the_log_lacks_it(
    own: bool, tmp_path: Path
) -> None:
    stores, _, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
    first, second = (stores[0] / "commitlog" / name for name in (FIRST, SECOND))
    first.write_bytes(first.read_bytes() + second.read_bytes())
    if not own:
        second.unlink()
        for store in stores[1:]:
            for name in (FIRST, SECOND):
                (store / "commitlog" / name).unlink()
    report = run_local(stores, ledger)
    told = [f.segment for f in report.findings if f.kind == "file_corrupt"]
    assert told == ([] if own else [f"commitlog/{FIRST}"])
    assert bool(report.lost) is not own
    assert not any("No store that was" in step.why for step in steps(report.findings, report.replicas))


def test_a_copy_of_a_sound_segment_is_no_finding(tmp_path: Path) -> None:
    """Nor one of the last, that was made when the log was shorter."""
    stores, writer, ledger = make(tmp_path)
    for name in (FIRST, SECOND):
        file = stores[0] / "commitlog" / name
        _aside(file, file.read_bytes())
    last = stores[0] / "commitlog" / f"{writer.end // SEGMENT * SEGMENT:020d}"
    _aside(last, last.read_bytes()[:1000].ljust(SEGMENT, b"\0"))
    report = run_local(stores, ledger)
    assert (report.findings, report.verdict) == ([], "clean")


@pytest.mark.parametrize("name", [f"{FIRST}.bak", "older"])
def test_a_file_beside_the_log_that_cannot_be_read_may_hold_anything(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
        if store is not stores[0]:
            (store / "commitlog" / FIRST).unlink()
    (stores[0] / "commitlog" / FIRST).rename(stores[0] / "commitlog" / name)
    read = LocalStorage.read

    def fails(storage: LocalStorage, path: str, offset: int, size: int) -> bytes:
        if path.endswith(name):
            raise OSError(5, "Input/output error")
        return read(storage, path, offset, size)

    monkeypatch.setattr(LocalStorage, "read", fails)
    report = run_local(stores, ledger)
    assert [(f.kind, f.replica) for f in report.findings] == [("files_unseen", "r0")]
    assert not report.none_lost


@pytest.mark.parametrize("second", [True, False])
def test_a_file_with_more_behind_its_segment_is_not_moved_out_for_its_own_damage(
    second: bool, tmp_path: Path
) -> None:
    """What it holds itself may be the last copy, too."""
    stores, _, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
    first, next_ = (stores[0] / "commitlog" / name for name in (FIRST, SECOND))
    first.write_bytes(first.read_bytes() + next_.read_bytes())
    next_.unlink()
    patch(stores[0], 3000, bytes(300))
    for store in stores[1:]:
        (store / "commitlog" / FIRST).unlink()
        if second:
            (store / "commitlog" / SECOND).unlink()
    report = run_local(stores, ledger)
    assert report.lost
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r0"]
    assert not any("move this file out" in why for why in told)
    assert any("Then cut it to a segment's size" in why for why in told)
