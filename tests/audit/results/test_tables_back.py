"""The promise of the step for a table that was changed by hand, or went: its command takes the other copy, if
that one is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from audit.run import Report
from store.files.sealed import seal
from tests.audit.plants import make_queued, run_local
from tests.audit.results.advised import do

TOPICS = '{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"readQueueNums":2,"writeQueueNums":2}}}'


def _group(root: Path, *, sealed: bool) -> list[Path]:
    stores, _ = make_queued(root)
    text = seal(TOPICS.encode()) if sealed else TOPICS.encode()
    for store in stores:
        (store / "config").mkdir(exist_ok=True)
        for name in ("topics.json", "topics.json.bak"):
            (store / "config" / name).write_bytes(text)
    return stores


def _changed(table: Path, *, sealed: bool) -> None:
    """As an editor does, which knows no CRC; of a table without one only what is no JSON is noticed."""
    text = table.read_text().replace('readQueueNums":2', 'readQueueNums":8')
    table.write_text(text if sealed else text[:-1])


def _of_tables(report: Report) -> list[str]:
    kinds = {f.kind for f in report.findings}
    assert kinds <= {"file_corrupt", "file_missing"}, kinds
    told = steps(report.findings, report.replicas)
    assert all(not step.command or "the other of its two copies" in step.why for step in told)
    assert not any(do(step) for step in told)
    return [step.command for step in told]


@pytest.mark.parametrize(
    ("how", "hurt"),
    [
        ("sealed", "topics.json"),
        ("sealed", "topics.json.bak"),
        ("plain", "topics.json"),
        ("plain", "topics.json.bak"),
        ("gone", "topics.json"),
    ],
)
def test_a_table_comes_back_from_its_other_copy(how: str, hurt: str, tmp_path: Path) -> None:
    stores = _group(tmp_path, sealed=how == "sealed")
    table = stores[1] / "config" / hurt
    before = table.read_bytes()
    if how == "gone":
        table.unlink()
    else:
        _changed(table, sealed=how == "sealed")
    report = run_local(stores, None)
    (command,) = _of_tables(report)
    assert (command[:6], command.endswith(f" {table}")) == ("cp -p ", True)
    assert table.read_bytes() == before
    assert run_local(stores, None).verdict == "clean"


def test_no_copy_is_taken_that_is_wrong_itself(tmp_path: Path) -> None:
    stores = _group(tmp_path, sealed=True)
    for name in ("topics.json", "topics.json.bak"):
        _changed(stores[1] / "config" / name, sealed=True)
    assert _of_tables(run_local(stores, None)) == [""]
