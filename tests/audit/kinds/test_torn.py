"""The promise of torn records: lengths and body CRC are right, and the properties were never written."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from runtime.os_env import OsDisk
from store.offline.repair import repair
from store.offline.verify import verify
from tests.audit.plants import make, run_local
from tests.audit.stores import look, patch


@pytest.mark.parametrize("size", [8, 12])
@pytest.mark.parametrize("replicas", [3, 5])
def test_the_copies_that_end_in_zeros_are_blamed_also_where_they_are_most(
    size: int, replicas: int, tmp_path: Path
) -> None:
    stores, ledger = torn(tmp_path, replicas, 20, size)
    report = run_local(stores, ledger)
    blamed = {f.replica for f in report.findings if f.kind == "unreadable_region"}
    assert blamed == {store.name for store in stores[1:]}
    assert not [f for f in report.findings if f.replica == stores[0].name]
    told = steps(report.findings, report.replicas)
    assert [step.command for step in told] == [
        f"keelmq store repair {store} --from {stores[0]}" for store in stores[1:]
    ]
    for store in stores[1:]:
        damage = [row["kind"] for row in verify(OsDisk(), str(store))["damage"]]
        assert "unreadable_region" in damage, "so the repair sees what the audit does"
        repair(OsDisk(), str(store), [str(stores[0])])
    left = {f.kind for f in run_local(stores, ledger).findings}
    assert left <= {"index_missing"}, "of the first, which has none: the repairs made the others'"


@pytest.mark.parametrize("size", [8, 12])
def test_a_log_ends_before_a_record_that_ends_in_zeros(size: int, tmp_path: Path) -> None:
    stores, ledger = torn(tmp_path, 3, 79, size)
    found = run_local(stores, ledger).findings
    assert {(f.kind, f.replica) for f in found} == {("short_tail", "r1"), ("short_tail", "r2")}


def torn(root: Path, replicas: int, at: int, size: int) -> tuple[list[Path], Path]:
    """A group; of all copies but the first a record ends in so many zeros."""
    stores, writer, ledger = make(root, replicas)
    begin = int(str(writer.rows[at]["phys_offset"]))
    end = begin + int.from_bytes(look(stores[0], begin, 4))
    for store in stores[1:]:
        patch(store, end - size, bytes(size))
    return stores, ledger
