"""The promise of the audit over all kinds of damage: each is named where it is, and nothing else is.

``python -m tests.audit.recall`` has more seeds, five replicas and both engines: docs/results/audit-recall.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.plants import run_local
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import Group
from tests.audit.recall.judge import alarms, do, misses
from tests.audit.recall.together import BUNDLES, LAWFUL, planted


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    group = Group(tmp_path, 3, seed=1000)
    done = do(group, name, DAMAGES[name])
    report = run_local(group.stores, group.ledger)
    assert misses(report, [done]) == [], report.findings


@pytest.mark.parametrize("name", BENIGN)
def test_what_differs_lawfully_is_no_finding(name: str, tmp_path: Path) -> None:
    group = Group(tmp_path, 3, seed=1000)
    BENIGN[name](group)
    report = run_local(group.stores, group.ledger)
    assert alarms(report) == []
    assert report.verdict == "clean"


@pytest.mark.parametrize("name", BUNDLES)
def test_no_damage_hides_another(name: str, tmp_path: Path) -> None:
    group, done = planted(tmp_path, BUNDLES[name], 3, seed=1000)
    report = run_local(group.stores, group.ledger)
    assert misses(report, done) == [], report.findings


def test_each_damage_and_lawful_difference_is_in_one_bundle() -> None:
    assert sorted(name for bundle in BUNDLES.values() for name, _ in bundle.ones) == sorted(DAMAGES)
    assert sorted(name for bundle in LAWFUL.values() for name, _ in bundle.ones) == sorted(BENIGN)
