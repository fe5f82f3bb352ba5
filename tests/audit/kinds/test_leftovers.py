"""The promise of what stands behind unreadable bytes: messages that the ledger speaks of are the log's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from audit.run import Report
from tests.audit.plants import ledger_at, run_local
from tests.audit.recall.group import Group
from tests.audit.stores import LogWriter, copies, patch, record, write_checkpoint

CUT = 85
"""The message that is unreadable on the last replica, and behind which the others have nothing."""


def _left(group: Group, raw: bytes, *, running: bool) -> None:
    at = group.offset(CUT)
    for store in group.stores:
        write_checkpoint(store, group.offset(80))
        if running:
            (store / "abort").touch()
    for store in group.stores[:2]:
        patch(store, at, bytes(4096 - at % 4096))
    patch(group.stores[2], at, raw)


def _gone(report: Report) -> set[str]:
    return {f.uniq_key for f in report.findings if f.kind == "acked_missing" and not f.copies}


@pytest.mark.parametrize("how", ["zeros", "noise", "head"])
@pytest.mark.parametrize("running", [True, False])
def test_messages_behind_unreadable_bytes_that_were_acknowledged_are_not_lost(
    running: bool, how: str, tmp_path: Path
) -> None:
    group = Group(tmp_path, 3, 1)
    size = 40 if how == "head" else group.size(CUT)
    _left(group, bytes(size) if how == "zeros" else random.Random(1).randbytes(size), running=running)
    report = run_local(group.stores, group.ledger)
    assert _gone(report) == {f"m{CUT:03d}"}
    assert report.lost == 1
    assert {f.replica for f in report.findings if f.kind == "short_tail" and f.severity == "error"} == {
        "r0",
        "r1",
    }
    assert {f.replica for f in report.findings if f.kind == "unreadable_region"} == {"r2"}


def test_messages_that_nobody_acknowledged_are_left_over(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, 1)
    _left(group, random.Random(1).randbytes(group.size(CUT)), running=True)
    group.rows = group.rows[:CUT]
    group.write_ledger()
    report = run_local(group.stores, group.ledger)
    assert {(f.kind, f.replica) for f in report.findings if f.severity != "info"} == {("extra_tail", "r2")}
    assert report.lost == 0


def test_a_message_that_was_cut_and_sent_again_is_left_over_behind_the_end(tmp_path: Path) -> None:
    """It stands in the same place of its queue in both histories; the ledger speaks of the later one."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    begun = writer.end
    again = writer.add(b"again", key="again", stamp=2000)
    writer.add(b"other", key="other", queue_id=1, stamp=2000)
    writer.confirm(writer.end, epochs=[(1, 0), (2, begun)])
    stores = copies(writer.root)
    old = record(writer.end + 40, 10, b"again", key="again", stamp=2000)
    patch(stores[2], writer.end, random.Random(1).randbytes(40) + old)
    for store in stores:
        (store / "abort").touch()
    told = [row for row in writer.rows if row["phys_offset"] != again]
    told += [{**row, "phys_offset": -1} for row in writer.rows if row["phys_offset"] == again]
    report = run_local(stores, ledger_at(tmp_path, told))
    assert {(f.kind, f.replica) for f in report.findings if f.severity != "info"} == {("extra_tail", "r2")}


def test_an_acknowledged_message_of_an_earlier_time_behind_a_hole_is_the_log(tmp_path: Path) -> None:
    """A clock went back: without the ledger a record that is older than the one before is a left-over."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20, stamp=9000)
    hole = writer.add(b"hole", key="hole", stamp=9100)
    begin = writer.end
    writer.add(b"early", key="early", stamp=10)
    writer.confirm(hole, epochs=[(1, 0)])
    (store,) = copies(writer.root, 1)
    (store / "abort").touch()
    patch(store, hole, bytes(begin - hole))
    report = run_local([store], ledger_at(tmp_path, writer.rows))
    assert _gone(report) == {"hole"}
