"""The promise of the audit over all kinds of damage: each is named at its replica, and nothing else is.

``python -m tests.audit.recall`` has more seeds, five replicas and both engines: docs/results/audit-recall.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.findings import INFO
from tests.audit.plants import run_local
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import Group
from tests.audit.recall.judge import misses


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    group = Group(tmp_path, 3, seed=1000)
    DAMAGES[name].do(group)
    report = run_local(group.stores, group.ledger)
    assert misses(report, group, DAMAGES[name]) == [], report.findings


@pytest.mark.parametrize("name", BENIGN)
def test_what_differs_lawfully_is_no_finding(name: str, tmp_path: Path) -> None:
    group = Group(tmp_path, 3, seed=1000)
    BENIGN[name](group)
    report = run_local(group.stores, group.ledger)
    assert [f for f in report.findings if f.severity != INFO] == []
    assert report.verdict == "clean"
