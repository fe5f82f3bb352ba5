"""The promise of ``copies``: so many replicas hold the right bytes; none is counted that is wrong there."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.moved import at, expired, running
from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, cut, expire, look, patch, record, write_checkpoint


def _copies(report: Report, kind: str, replica: str) -> list[int]:
    return [f.copies for f in report.findings if (f.kind, f.replica) == (kind, replica)]


@pytest.mark.parametrize(
    ("damaged", "copies"), [([], 2), ([(0, 60)], 1), ([(0, 60), (2, 61)], 1), ([(0, 60), (2, 60)], 0)]
)
def test_a_log_that_goes_on_is_no_copy_where_it_is_damaged(
    damaged: list[tuple[int, int]], copies: int, tmp_path: Path
) -> None:
    stores, writer, _ = make(tmp_path)
    cut(stores[1], at(writer, 50))
    for store, n in damaged:
        patch(stores[store], at(writer, n) + 88, bytes([33 + store]))
    report = run_local(stores, None)
    assert _copies(report, "short_tail", "r1") == [copies]
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert told
    assert not any("look in a backup" in why for why in told)


@pytest.mark.parametrize(("later", "copies"), [([0], 1), ([0, 2], 0)])
def test_a_log_that_begins_behind_an_end_is_no_copy_of_what_others_have_there(
    later: list[int], copies: int, tmp_path: Path
) -> None:
    """What none of them has any more, the log itself may have had."""
    stores, writer, ledger = make(tmp_path)
    running(stores)
    cut(stores[1], at(writer, 10))
    expired(*(stores[n] for n in later))
    report = run_local(stores, ledger)
    assert _copies(report, "short_tail", "r1") == [copies]
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert any("keep this one" in why or "has to lead" in why for why in told)


def test_an_altered_copy_is_none_of_a_damaged_record(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    place = at(writer, 10)
    patch(stores[1], place + 88, b"?")
    patch(stores[2], place, record(place, 5, b"x-10" * 5, key="m10", stamp=1010))
    assert _copies(run_local(stores, ledger), "crc_mismatch", "r1") == [1]


def test_the_blank_at_a_segments_end_needs_no_copy(tmp_path: Path) -> None:
    """The log ends before it, and the others begin behind it. It has no room for a record."""
    stores, writer, _ = make(tmp_path)
    running(stores)
    end = int.from_bytes(look(stores[0], at(writer, 32), 4)) + at(writer, 32)
    assert (at(writer, 33), SEGMENT - end) == (SEGMENT, 31)
    cut(stores[0], end)
    write_checkpoint(stores[0], end)
    for store in stores[1:]:
        expire(store, SEGMENT)
    report = run_local(stores, None)
    (row,) = (f for f in report.findings if f.kind == "short_tail")
    assert (row.replica, row.phys_offset, row.found, row.copies) == ("r0", SEGMENT, f"end {end}", 2)
    assert "r1 has to lead" in steps(report.findings, report.replicas)[0].why
