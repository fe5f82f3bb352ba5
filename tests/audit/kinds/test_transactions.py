"""The promise of halves: one stands for its message while its transaction is open, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.findings import Finding
from audit.pages.report import lines
from audit.reading.records.transactions import COMMITTED, OP_TOPIC, ROLLED_BACK, UNTOLD, ended
from audit.run import Report
from broker.requests.transactions import _WORDS
from broker.tables.topics import OP_HALF_TOPIC
from model.message import TRANSACTION_COMMIT, TRANSACTION_ENDED_AS, TRANSACTION_ROLLBACK
from tests.audit.plants import run_local
from tests.audit.stores import record
from tests.audit.transactions import Transaction


def _of_ledger(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.kind.startswith("acked_")]


@pytest.mark.parametrize("moved", [False, True])
def test_one_that_was_committed_and_is_gone_is_lost_though_its_half_is_there(
    moved: bool, tmp_path: Path
) -> None:
    log = Transaction(tmp_path, "committed", moved=moved)
    log.lose(0, 1, 2)
    report = run_local(log.stores, log.ledger)
    assert [(f.kind, f.severity, f.replica, f.uniq_key) for f in _of_ledger(report)] == [
        ("acked_missing", "error", "*", "half")
    ]
    assert (report.lost, report.none_lost) == (1, False)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("says", ["committed", ""])
def test_one_that_was_committed_is_there(says: str, moved: bool, tmp_path: Path) -> None:
    log = Transaction(tmp_path, says, moved=moved)
    report = run_local(log.stores, log.ledger)
    assert (report.verdict, report.findings, report.lost, report.none_lost) == ("clean", [], 0, True)


@pytest.mark.parametrize("says", ["committed", ""])
def test_a_copy_elsewhere_is_a_copy(says: str, tmp_path: Path) -> None:
    log = Transaction(tmp_path, says)
    log.lose(1)
    report = run_local(log.stores, log.ledger)
    assert {(f.kind, f.replica) for f in report.findings if f.severity != "info"} == {
        ("unreadable_region", "r1")
    }
    assert [(f.kind, f.replica, f.copies) for f in _of_ledger(report)] == [("acked_missing", "r1", 2)]
    assert (report.lost, report.none_lost) == (0, True)


@pytest.mark.parametrize("says", ["committed", ""])
def test_where_a_log_ends_before_no_half_waits_that_ended_in_another(says: str, tmp_path: Path) -> None:
    log = Transaction(tmp_path, says)
    log.lose(0, 1)
    log.end_before_it_was_sent(2)
    report = run_local(log.stores, log.ledger)
    assert not report.none_lost
    assert report.lost == (1 if says else 0)
    assert [(f.kind, f.copies) for f in _of_ledger(report)] == [
        ("acked_missing" if says else "acked_unknown", 0)
    ]


def test_of_one_that_ended_nobody_says_how_neither_loss_nor_its_absence_is_told(tmp_path: Path) -> None:
    """RocketMQ's op records: of a message that was committed and is gone, and of one that was rolled back."""
    gone, undone = tmp_path / "gone", tmp_path / "undone"
    log = Transaction(gone, "")
    log.lose(0, 1, 2)
    for stores, ledger in ((log.stores, log.ledger), _ended(undone, "")):
        report = run_local(stores, ledger)
        (found,) = _of_ledger(report)
        assert (found.kind, found.severity, found.replica, found.copies) == ("acked_unknown", "warn", "*", 0)
        assert found.found.endswith("ended: committed, or rolled back")
        assert (report.lost, report.none_lost) == (0, False)
        assert not any("No acknowledged message" in line for line in lines(report))


def _ended(root: Path, says: str | None) -> tuple[list[Path], Path]:
    log = Transaction(root, says, sent=False)
    return log.stores, log.ledger


@pytest.mark.parametrize("says", ["rolled back", None])
def test_one_that_is_open_or_was_rolled_back_was_not_lost(says: str | None, tmp_path: Path) -> None:
    report = run_local(*_ended(tmp_path, says))
    assert (report.verdict, report.lost, report.none_lost) == ("clean", 0, True)


def test_what_ended_is_read_of_the_records_that_brokers_write() -> None:
    told = {TRANSACTION_COMMIT: COMMITTED, TRANSACTION_ROLLBACK: ROLLED_BACK}
    assert OP_TOPIC == OP_HALF_TOPIC
    for decision, word in _WORDS.items():
        own = f"TAGS\x01d\x02{TRANSACTION_ENDED_AS}\x01{word}\x02".encode()
        assert ended(record(0, 0, b"7,", properties=own)) == ([7], told[decision])
    # RocketMQ's: of several at once, and of one, as its releases before 5.0 wrote it.
    for body, places in ((b"3,14,15,", [3, 14, 15]), (b"92", [92]), (b"", []), (b"x,-1,\xff,6", [6])):
        assert ended(record(0, 0, body, properties=b"TAGS\x01d\x02", v2=True)) == (places, UNTOLD)
