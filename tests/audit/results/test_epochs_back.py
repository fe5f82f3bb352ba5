"""The promise of the page's steps: a store comes back whose epoch file tells nothing and which lacks a
segment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from tests.audit.plants import make, run_local
from tests.audit.results.advised import do
from tests.audit.stores import SEGMENT, look, patch, write_epochs

GARBAGE = "xx\n"


def _segment(store: Path, n: int) -> Path:
    return store / "commitlog" / f"{n * SEGMENT:020d}"


@pytest.mark.parametrize("count", [2, 3, 5])
def test_its_copy_and_the_segment_are_put_back(count: int, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path, count)
    epochs = stores[1] / "epochFileCheckpoint"
    right = epochs.read_bytes()
    shutil.copy(epochs, stores[1] / "epochFileCheckpoint.bak")
    epochs.write_text(GARBAGE)
    _segment(stores[1], 1).unlink()
    report = run_local(stores, ledger)
    told = steps(report.findings, report.replicas)
    assert {step.command[:3] for step in told} == {"cp "}
    assert not any(do(step) for step in told)
    assert (epochs.read_bytes(), look(stores[1], SEGMENT, SEGMENT)) == (
        right,
        look(writer.root, SEGMENT, SEGMENT),
    )
    assert run_local(stores, ledger).verdict == "clean"


@pytest.mark.parametrize("bak", ["gone", "garbage", "older"])
def test_where_its_copy_is_not_right_the_segment_is_put_back(bak: str, tmp_path: Path) -> None:
    """What is alike behind the segment proves that both logs are one."""
    stores, writer, ledger = make(tmp_path)
    copy = stores[1] / "epochFileCheckpoint.bak"
    if bak == "older":
        write_epochs(stores[1], [(1, 0)])
        shutil.copy(stores[1] / "epochFileCheckpoint", copy)
    elif bak == "garbage":
        copy.write_text(GARBAGE)
    (stores[1] / "epochFileCheckpoint").write_text(GARBAGE)
    _segment(stores[1], 1).unlink()
    report = run_local(stores, ledger)
    told = [step for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert told[0].command.startswith("cp --no-clobber")
    assert not any(do(step) for step in told)
    assert look(stores[1], SEGMENT, SEGMENT) == look(writer.root, SEGMENT, SEGMENT)
    assert "Start its broker while a master is there: it copies the master's epoch file." in [
        s.why for s in told
    ]


def test_where_nothing_is_alike_behind_it_begins_anew(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    (stores[1] / "epochFileCheckpoint").write_text(GARBAGE)
    _segment(stores[1], 1).unlink()
    patch(stores[1], 2 * SEGMENT, bytes(look(writer.root, 2 * SEGMENT, SEGMENT).rindex(b"UNIQ_KEY") - 200))
    report = run_local(stores, ledger)
    told = [step for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert told
    assert not any("mend the others first" in step.why for step in told)
