"""The promise on the real broker's own files: clean where it kept its word, and exact where it did not."""

from __future__ import annotations

from pathlib import Path

from tests.audit.plants import run_local
from tests.audit.stores import ledger_of, trio, unpack


def test_replicas_that_rejoined_are_equal(tmp_path: Path) -> None:
    """Other left-overs behind the ends, and an epoch begun on one replica only, are no difference."""
    report = run_local(trio("ha-allack-91", "after", tmp_path), ledger_of("ha-allack-91"))
    assert (report.verdict, report.findings, report.records) == ("clean", [], 424)


def test_every_acknowledged_message_the_real_broker_lost_is_named(tmp_path: Path) -> None:
    """inSyncReplicas=1: the master had acknowledged 114 messages that its successor never got."""
    report = run_local(trio("ha-81", "after", tmp_path), ledger_of("ha-81"))
    assert report.verdict == "diverged"
    worse = [f for f in report.findings if f.severity != "info"]
    assert {(f.kind, f.replica, f.copies) for f in worse} == {("acked_missing", "*", 0)}
    assert len({f.uniq_key for f in worse}) == 114
    # What the cut master's queues still say of its messages stands behind their ends.
    left = [f for f in report.findings if f.severity == "info"]
    assert {(f.kind, f.replica) for f in left} == {("cq_dangling", "b1")}


def test_before_the_successor_writes_the_same_messages_are_on_one_copy(tmp_path: Path) -> None:
    report = run_local(trio("ha-81", "before", tmp_path), ledger_of("ha-81"))
    tails = [f for f in report.findings if f.kind == "short_tail"]
    assert [(f.replica, f.records, f.copies) for f in tails] == [("b0", 114, 1), ("b2", 114, 1)]


def test_lag_that_nobody_was_promised_is_no_divergence(tmp_path: Path) -> None:
    report = run_local(trio("ha-81", "before", tmp_path), None)
    assert report.verdict == "clean"
    assert {f.severity for f in report.findings} == {"info"}


def test_one_store_alone_with_every_kind_of_body(tmp_path: Path) -> None:
    """Compressed bodies (three codecs) match what their senders were told."""
    report = run_local([unpack("plain-11", tmp_path)], ledger_of("plain-11"))
    assert (report.verdict, report.records) == ("clean", 360)


def test_a_flipped_bit_is_placed_exactly(tmp_path: Path) -> None:
    report = run_local([unpack("flip-61", tmp_path) / "before"], None)
    (finding,) = report.findings
    assert (finding.kind, finding.phys_offset, finding.until) == ("crc_mismatch", 190656, 190656 + 269)
    assert finding.segment == "00000000000000131072"
