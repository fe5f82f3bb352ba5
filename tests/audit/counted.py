"""Stores with more lost and repeated messages than a report lists."""

from __future__ import annotations

import json
from pathlib import Path

from audit.run import Report
from tests.audit.stores import LogWriter, copies


def lost_and_repeated(root: Path) -> tuple[list[Path], Path]:
    """Forty messages of one queue that stand twice, with a gap between; a ledger of 80 others."""
    writer = LogWriter(root / "origin")
    for n in range(80):
        if n == 40:
            writer.skip(3)
        writer.add(b"body", key=f"k{n % 40}")
    writer.confirm(epochs=[(1, 0)])
    rows = [{**row, "uniq_key": f"lost{n}", "phys_offset": None} for n, row in enumerate(writer.rows)]
    (root / "lost.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return copies(writer.root, 2), root / "lost.jsonl"


def check_counted(report: Report) -> None:
    """Of each kind the first five are rows, one more says how many there are."""
    for kind, replica, total in (("acked_missing", "*", 80), ("dup_message", "r0", 40)):
        found = [f for f in report.findings if f.kind == kind]
        listed = [f for f in found if f.uniq_key]
        (rest,) = [f for f in found if not f.uniq_key]
        assert {f.replica for f in found} == {replica}
        assert (len(listed), rest.records) == (5, total - 5)
        assert f"{total - 5} more" in rest.found
    assert {f.uniq_key for f in report.findings if f.kind == "acked_missing"} >= {"lost0", "lost4"}
    assert report.lost == 80
    assert [(f.queue_offset, f.records) for f in report.findings if f.kind == "queue_gap"] == [(40, 3)]
    assert report.verdict == "diverged"
