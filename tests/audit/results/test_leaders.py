"""The promise of the page's steps: who is to lead while a store begins anew can start, and is right in all
that it holds itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.results.steps.repair import Step, steps
from tests.audit.plants import make, make_queued, run_local
from tests.audit.stores import SEGMENT, LogWriter, patch


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _segment(store: Path, n: int) -> Path:
    return store / "commitlog" / f"{n * SEGMENT:020d}"


def _steps(stores: list[Path], ledger: Path | None) -> list[Step]:
    report = run_local(stores, ledger)
    return steps(report.findings, report.replicas)


def _anew(told: list[Step]) -> list[tuple[str, str]]:
    found = [step for step in told if "with an empty store while" in step.why]
    return [(step.replica, step.why.partition(" while ")[2].partition(" ")[0]) for step in found]


def test_no_one_leads_of_whom_a_queue_file_cannot_be_read(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store, queue in ((stores[0], 0), (stores[1], 1)):
        _folder(store / "consumequeue" / "T" / str(queue) / f"{0:020d}")
    told = _steps(stores, ledger)
    assert _anew(told) == [("r0", "r2")]
    assert [step.why[:15] for step in told if step.replica == "r1"] == ["Keep this store"]


def _hole(store: Path, writer: LogWriter) -> None:
    _segment(store, 1).unlink()


def _not_a_file(store: Path, writer: LogWriter) -> None:
    _folder(_segment(store, 1))


def _lost(store: Path, writer: LogWriter) -> None:
    patch(store, int(str(writer.rows[40]["phys_offset"])) + 88, b"?")


@pytest.mark.parametrize("hurt", [_hole, _not_a_file, _lost])
@pytest.mark.parametrize("ledgered", [True, False])
def test_no_one_leads_who_is_wrong_where_the_emptied_one_has_nothing(
    hurt: Callable[[Path, LogWriter], None], ledgered: bool, tmp_path: Path
) -> None:
    """r2 and r1 begin behind what r0 alone has, which is wrong there."""
    stores, writer, ledger = make(tmp_path)
    for store in stores[1:]:
        (store / "abort").touch()
        for n in (0, 1):
            _segment(store, n).unlink()
    _folder(_segment(stores[2], 2))
    hurt(stores[0], writer)
    told = _steps(stores, ledger if ledgered else None)
    assert ("r2", "r1") in _anew(told)


def test_which_one_is_to_be_mended_first_is_told(tmp_path: Path) -> None:
    """r0 begins behind a segment that r1 lacks, and r1 is right in all that r0 has."""
    stores, _, _ = make(tmp_path)
    for store in (stores[0], stores[2]):
        (store / "abort").touch()
    _segment(stores[0], 0).unlink()
    _segment(stores[0], 1).unlink()
    _folder(_segment(stores[0], 2))
    _segment(stores[1], 1).unlink()
    told = _steps(stores[:2], None)
    assert _anew(told) == []
    [why] = [step.why for step in told if step.replica == "r0"]
    assert why.startswith("Keep this store: r1 is right in all that it holds, but cannot lead as it is.")


def test_of_two_that_cannot_start_each_is_told_how(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path, 2)
    for store, queue in zip(stores, (0, 1), strict=True):
        _folder(store / "consumequeue" / "T" / str(queue) / f"{0:020d}")
    told = _steps(stores, ledger)
    assert _anew(told) == []
    for name in ("r0", "r1"):
        assert any("move the file away" in step.why for step in told if step.replica == name)


def test_who_is_wrong_in_what_no_one_has_leads_if_there_is_no_other(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path, 2)
    (stores[1] / "abort").touch()
    for n in (0, 1):
        _segment(stores[1], n).unlink()
    _folder(_segment(stores[1], 2))
    _lost(stores[0], writer)
    assert ("r1", "r0") in _anew(_steps(stores, None))


def test_an_unreadable_segment_that_another_has_is_moved_out_where_none_may_lead(tmp_path: Path) -> None:
    """The store alone has what is before, so it is not to be emptied."""
    stores, _, ledger = make(tmp_path, 2)
    (stores[1] / "abort").touch()
    _segment(stores[1], 0).unlink()
    path = _segment(stores[0], 1)
    path.unlink()
    path.symlink_to("/nowhere/at/all")
    told = _steps(stores, ledger)
    assert _anew(told) == []
    [why] = [step.why for step in told if step.replica == "r0"]
    assert "but r1 is in this file" in why
    path.unlink()
    [step] = [step for step in _steps(stores, ledger) if step.replica == "r0"]
    assert step.command.startswith("cp --no-clobber")
