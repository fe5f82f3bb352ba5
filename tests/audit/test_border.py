"""The promise of incremental audits: what a border divides is judged as if all of it had been read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from audit.run import Report
from tests.audit.border import BORDER, PLACES, append, made
from tests.audit.plants import run_local
from tests.audit.stores import look, patch


def told(report: Report) -> set[tuple[str, str, int]]:
    return {(f.kind, f.severity, f.phys_offset) for f in report.findings}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("place", "key", "kind"),
    [
        (PLACES, "new", ""),
        (PLACES - 1, "new", "dup_queue_offset"),
        (1, "new", "dup_queue_offset"),
        (PLACES + 1, "new", "queue_gap"),
        (PLACES, "q1", "dup_message"),
        (PLACES, "m3", "dup_message"),
    ],
)
def test_places_and_keys_are_judged_across_the_border(
    place: int, key: str, kind: str, count: int, tmp_path: Path
) -> None:
    stores, writer = made(tmp_path, count)
    state = tmp_path / "trusted.parquet"
    assert run_local(stores, None, state).verdict == "clean"
    at = append(stores, writer, place, key)
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert report.scan_bytes == writer.end - BORDER
    assert {row[0] for row in told(report)} == ({kind} if kind else set())
    assert told(report) == told(full)
    if kind != "queue_gap":
        assert {row[2] for row in told(report)} <= {at}
    # A place before the last one was not read: where it stands is not known then.
    if place != 1:
        assert report.findings == full.findings


def test_a_queue_that_only_begins_behind_the_border_begins_at_0(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    append(stores, writer, 2, "new", queue_id=9)
    report = run_local(stores, None, state)
    assert [(f.kind, f.queue_id, f.queue_offset, f.records) for f in report.findings] == [
        ("queue_gap", 9, 0, 2)
    ]


def test_what_is_carried_outlives_audits_that_read_nothing_of_it(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    for _ in range(3):
        assert run_local(stores, None, state).verdict == "clean"
    append(stores, writer, PLACES + 3, "q2")
    assert {row[0] for row in told(run_local(stores, None, state))} == {"queue_gap", "dup_message"}


def test_a_fault_behind_the_border_is_reported_again_by_the_next_audit(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    append(stores, writer, PLACES + 1, "new")
    for n in range(40):  # the segment with the gap becomes full
        append(stores, writer, 40 + n, f"w{n}", queue_id=0) if writer.end < BORDER + 3800 else None
    first, second = (run_local(stores, None, state) for _ in range(2))
    assert first.verdict == second.verdict == "diverged"
    assert told(first) == told(second)


def test_another_replica_that_leads_is_judged_by_what_was_carried(tmp_path: Path) -> None:
    """Equal segments are one, whichever replica's were read."""
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    assert run_local(stores, None, state).reference == "r0"
    for store in stores:
        (store / "abort").touch()
    append(stores[2:], writer, PLACES + 1, "q1")
    report = run_local(stores, None, state)
    assert (report.reference, report.scan_bytes) == ("r2", writer.end - BORDER)
    assert {"queue_gap", "dup_message"} <= {row[0] for row in told(report)}


def test_segments_that_only_another_replica_holds_still_are_carried(tmp_path: Path) -> None:
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    (stores[0] / "commitlog" / f"{0:020d}").unlink()
    for store in stores:
        (store / "abort").touch()
    append(stores[:1], writer, 40, "ahead", queue_id=0)
    assert run_local(stores, None, state).reference == "r0"
    append(stores[:1], writer, PLACES + 1, "q1")
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert {"queue_gap", "dup_message"} <= {row[0] for row in told(full)}
    assert report.findings == full.findings
    assert report.scan_bytes == writer.end - BORDER


def test_offsets_of_consumers_are_compared_with_the_ends_that_were_carried(tmp_path: Path) -> None:
    stores, _ = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    for store in stores:
        (store / "config").mkdir()
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{7:9}}}')
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert {f.kind for f in full.findings} == {"consumer_offset_beyond"}
    assert report.findings == full.findings


@pytest.mark.parametrize("every", [False, True])
def test_a_segment_that_changed_after_it_was_trusted_is_read_and_named(every: bool, tmp_path: Path) -> None:
    """A changed property on all replicas breaks nothing that a reader could see."""
    stores, writer = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    at = int(str(writer.rows[3]["phys_offset"]))
    for store in stores if every else stores[1:2]:
        patch(store, at + 60, bytes([look(store, at + 60, 1)[0] ^ 1]))  # of the store time
    os.utime(stores[2] / "commitlog" / f"{4096:020d}", ns=(1, 1))
    report = run_local(stores, None, state)
    assert report.trust.border == 0
    first, second = f"{0:020d}", f"{4096:020d}"
    named = [f"r{n}/{first}" for n in ((0, 1, 2) if every else (1,))]
    assert report.trust.changed == {**dict.fromkeys(named, "other bytes"), f"r2/{second}": "the same bytes"}
    assert report.verdict == ("clean" if every else "diverged")
    # From then on the segments are trusted again, if nothing is wrong with them.
    again = run_local(stores, None, state).trust
    assert (again.border, again.changed) == (BORDER if every else 0, {})


def test_the_report_says_what_was_trusted(tmp_path: Path) -> None:
    stores, _ = made(tmp_path)
    state = tmp_path / "trusted.parquet"
    first = run_local(stores, None, state)
    assert first.to_json()["trust"]["border"] == 0
    second = run_local(stores, None, state).to_json()
    assert second["trusted"] == [f"r0/{0:020d}", f"r0/{4096:020d}"]
    trust = second["trust"]
    assert (trust["border"], trust["queues"]) == (BORDER, 3)
    assert trust["digests"] == [f"r{n}/{base:020d}" for n in range(3) for base in (0, 4096)]
    assert trust["keys"] > 50
    assert trust["since"]
