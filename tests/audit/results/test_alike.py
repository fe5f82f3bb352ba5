"""The promise of the page's steps: where a finding says that one copy is wrong, each other copy with the same
bytes is as wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.results.steps.repair import Step, steps
from tests.audit.plants import make_queued, run_local
from tests.audit.results.advised import reads
from tests.audit.stores import first_records, look, patch


def _no_entries(store: Path) -> None:
    """Nothing of its queues tells where a record was."""
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").mkdir()


def _taken(told: list[Step], begin: int, until: int) -> list[Step]:
    return [step for step in told for _, a, b in reads(step) if a < until and begin < b]


@pytest.mark.parametrize(("byte", "value"), [(15, 7), (27, 1), (27, 90)], ids=["queue", "taken", "ahead"])
def test_a_place_that_is_wrong_in_two_of_three_is_put_over_nobodys(
    tmp_path: Path, byte: int, value: int
) -> None:
    stores, _ = make_queued(tmp_path, 3)
    begin, until = first_records(stores[0], 25)[22]
    for store in stores:
        _no_entries(store)
    for store in stores[:2]:
        patch(store, begin + byte, bytes([value]))
    report = run_local(stores, None)
    named = {f.replica for f in report.findings if f.kind in ("queue_gap", "dup_queue_offset", "queue_order")}
    assert named == {"r0"}  # it was asked for all that have the same log
    told = steps(report.findings, report.replicas)
    assert not _taken(told, begin, until)
    assert any(step.replica == "r2" and "is open" in step.why for step in told)


def test_what_else_those_copies_have_is_taken(tmp_path: Path) -> None:
    """A gap reaches over records that all have alike."""
    stores, _ = make_queued(tmp_path, 3)
    spans = first_records(stores[0], 25)
    for store in stores:
        _no_entries(store)
    for store in stores[:2]:
        patch(store, spans[22][0] + 15, b"\x07")
    patch(stores[2], spans[10][0], bytes(spans[11][0] - spans[10][0]))
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert [(name, a, b) for step in told for name, a, b in reads(step)] == [("r1", *spans[10])]


def test_nor_is_a_copy_wrong_that_differs_in_something_else(tmp_path: Path) -> None:
    """A place is skipped in all copies; that one of them has another flag there says nothing of it."""
    stores, _ = make_queued(tmp_path, 3)
    begin, until = first_records(stores[0], 25)[22]
    for store in stores:
        _no_entries(store)
        patch(store, begin + 15, b"\x07")
    patch(stores[2], begin + 19, b"\x01")
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert [name for step in _taken(told, begin, until) for name, *_ in reads(step)] == ["r1"]
    assert look(stores[1], begin, until - begin) == look(stores[0], begin, until - begin)


def test_of_a_damaged_copy_it_is_said_that_the_others_are_open(tmp_path: Path) -> None:
    """Not that no copy is good: one of the two that differ is."""
    stores, _ = make_queued(tmp_path, 3)
    begin, _ = first_records(stores[0], 25)[22]
    patch(stores[1], begin + 90, b"\xff")
    patch(stores[2], begin + 19, b"\x01")
    report = run_local(stores, None)
    assert any(f.kind == "crc_mismatch" and f.replica == "r1" for f in report.findings)
    told = steps(report.findings, report.replicas)
    assert {("r1" if step.replica == "r1" else "", "is open" in step.why) for step in told} == {
        ("r1", True),
        ("", True),
    }
