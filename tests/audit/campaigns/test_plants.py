"""The promise of the audit: each planted fault is named once, by kind and replica, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.findings import EXIT_CODES
from tests.audit.plants import PLANTS, Plant, make, run_local


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.name)
def test_a_planted_fault_is_named_once(plant: Plant, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    plant.do(stores, writer)
    report = run_local(stores, ledger)
    roots = {(f.kind, f.severity, f.replica) for f in report.findings if not f.caused_by}
    assert roots == plant.expected, report.findings
    known = {f.id for f in report.findings}
    assert all(f.severity == "info" and f.caused_by in known for f in report.findings if f.caused_by)
    worst = {severity for _, severity, _ in plant.expected}
    expected = "diverged" if "error" in worst else "warnings" if "warn" in worst else "clean"
    assert report.verdict == expected
    assert EXIT_CODES[report.verdict] == {"clean": 0, "warnings": 1, "diverged": 2}[expected]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.name)
def test_a_fault_gives_few_rows(plant: Plant, tmp_path: Path) -> None:
    """One cause is not a thousand consequences."""
    stores, writer, ledger = make(tmp_path)
    plant.do(stores, writer)
    report = run_local(stores, ledger)
    assert len(report.findings) <= 3 * max(1, len(plant.expected)) or plant.name == "swapped"
