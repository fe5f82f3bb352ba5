"""The promise of ``copies``: so many replicas hold the right bytes; none is counted that is wrong there."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.results.repair import steps
from audit.run import Report
from tests.audit.plants import make, run_local
from tests.audit.stores import LogWriter, cut, patch, record


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _copies(report: Report, kind: str, replica: str) -> list[int]:
    return [f.copies for f in report.findings if (f.kind, f.replica) == (kind, replica)]


@pytest.mark.parametrize(
    ("damaged", "copies"), [([], 2), ([(0, 60)], 1), ([(0, 60), (2, 61)], 1), ([(0, 60), (2, 60)], 0)]
)
def test_a_log_that_goes_on_is_no_copy_where_it_is_damaged(
    damaged: list[tuple[int, int]], copies: int, tmp_path: Path
) -> None:
    stores, writer, _ = make(tmp_path)
    cut(stores[1], _at(writer, 50))
    for store, n in damaged:
        patch(stores[store], _at(writer, n) + 88, bytes([33 + store]))
    report = run_local(stores, None)
    assert _copies(report, "short_tail", "r1") == [copies]
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert told
    assert not any("look in a backup" in why for why in told)


def test_logs_that_begin_behind_an_end_hold_nothing_of_what_it_lacks(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
    cut(stores[1], _at(writer, 10))
    for store in (stores[0], stores[2]):
        (store / "commitlog" / f"{0:020d}").unlink()
    assert _copies(run_local(stores, ledger), "short_tail", "r1") == [0]


def test_an_altered_copy_is_none_of_a_damaged_record(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    at = _at(writer, 10)
    patch(stores[1], at + 88, b"?")
    patch(stores[2], at, record(at, 5, b"x-10" * 5, key="m10", stamp=1010))
    assert _copies(run_local(stores, ledger), "crc_mismatch", "r1") == [1]
