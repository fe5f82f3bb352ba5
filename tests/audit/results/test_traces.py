"""The promise about queues and index of a log that is too short: no repair is advised that fails, or takes
the only trace of what is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from audit.findings import WARN, Finding
from audit.kinds.causes import link
from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.plants import make_queued, run_local
from tests.audit.stores import SEGMENT, cut, queue_file


def _told(report: Report, kind: str) -> list[Finding]:
    return [f for f in report.findings if f.kind == kind and f.phys_offset >= 0]


def _wrong_entry(store: Path) -> None:
    file = queue_file(store, "T", 0, 0)
    raw = bytearray(file.read_bytes())
    raw[7] ^= 1
    file.write_bytes(raw)


def _commands(report: Report) -> list[str]:
    return [step.command for step in steps(report.findings, report.replicas)]


def test_what_names_records_behind_the_end_is_left_to_a_rejoin(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    cut(stores[1], 2 * SEGMENT)
    report = run_local(stores, ledger)
    [short] = _told(report, "short_tail")
    behind = Finding("cq_dangling", WARN, "r1", "queue", phys_offset=short.phys_offset, until=short.until)
    for found in (behind, replace(behind, kind="index_wrong")):
        assert link([short, found], ["r0", "r1", "r2"])[1].caused_by == short.id
    report.findings.append(behind)  # as of a running log, where a lag explains nothing
    told = steps(report.findings, report.replicas)
    assert not any(step.command.startswith("keelmq store repair") for step in told)
    assert any("no repair makes that" in step.why for step in told)
    for mended in (replace(behind, phys_offset=0, until=100), replace(behind, kind="index_wrong")):
        report.findings[-1] = mended
        assert any(command.startswith("keelmq store repair") for command in _commands(report))


def test_no_repair_while_no_log_goes_on_where_one_has_to(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    for store in stores:
        cut(store, 2 * SEGMENT)  # below what their checkpoints confirmed
        _wrong_entry(store)
    report = run_local(stores, None)
    assert {f.copies for f in _told(report, "short_tail")} == {0}
    assert _told(report, "cq_wrong")
    assert not any(_commands(report))
    assert any("only trace" in step.why for step in steps(report.findings, report.replicas))


def test_a_repair_where_another_log_goes_on(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    cut(stores[1], 2 * SEGMENT)
    _wrong_entry(stores[2])
    assert any(command.startswith("keelmq store repair") for command in _commands(run_local(stores, None)))
