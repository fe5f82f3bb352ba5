"""The promise about a stretch that one copy lacks: what the others have alike in it is right, whatever they
differ in beside it."""

from __future__ import annotations

from pathlib import Path

from audit.findings import Finding
from audit.results.steps.repair import steps
from tests.audit.plants import make_queued, run_local
from tests.audit.results.advised import do, reads
from tests.audit.stores import first_records, look, patch


def _differing(findings: list[Finding]) -> list[tuple[str, int, int, bool, int]]:
    found = [f for f in findings if f.kind == "bytes_differ"]
    return sorted((f.replica, f.phys_offset, f.until, f.ambiguous, f.records) for f in found)


def _flag(store: Path, begin: int) -> None:
    """Which nothing covers."""
    patch(store, begin + 19, b"\x01")


def test_whole_records_beside_an_open_one_are_taken(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    spans = first_records(stores[0], 24)
    (begin, end), until = spans[20], spans[23][1]
    was = look(stores[0], end, until - end)
    patch(stores[0], begin, bytes(until - begin))
    _flag(stores[2], begin)
    report = run_local(stores, None)
    [(_, *row)] = _differing(report.findings)
    assert row == [begin, end, True, 1]
    told = steps(report.findings, report.replicas)
    assert [(a, b) for step in told for _, a, b in reads(step)] == [(end, until)]
    assert all(do(step) == "" for step in told)
    assert look(stores[0], end, until - end) == was
    assert not any(look(stores[0], begin, end - begin))


def test_each_of_several_is_judged_alone(tmp_path: Path) -> None:
    """In the first two of four sound copies stand against two; of the other one of them differs."""
    stores, _ = make_queued(tmp_path, 5)
    spans = first_records(stores[0], 24)
    patch(stores[0], spans[20][0], bytes(spans[23][1] - spans[20][0]))
    for store in stores[3:]:
        _flag(store, spans[20][0])
    _flag(stores[2], spans[22][0])
    report = run_local(stores, None)
    found = _differing(report.findings)
    assert {row[1:] for row in found if row[3]} == {(*spans[20], True, 1)}
    assert [row for row in found if not row[3]] == [("r2", *spans[22], False, 1)]


def test_open_records_side_by_side_are_one_stretch(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    spans = first_records(stores[0], 24)
    begin, until = spans[20][0], spans[23][1]
    patch(stores[0], begin, bytes(until - begin))
    _flag(stores[2], spans[21][0])
    _flag(stores[2], spans[22][0])
    report = run_local(stores, None)
    [(_, *row)] = _differing(report.findings)
    assert row == [spans[21][0], spans[22][1], True, 2]
