"""The promise of the ledger's word: it confirms a message only where consumers get it, as it was sent."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from audit.run import Report
from model.message import COMPRESSED, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tests.audit.plants import ledger_at, run_local
from tests.audit.recall.group import PER_FILE, Group
from tests.audit.stores import LogWriter, copies, enter, patch

FLAG_AT = 36
"""Of a record: its sysFlag."""


def _flagged(group: Group, n: int, flag: int, replicas: int) -> None:
    for store in group.stores[:replicas]:
        patch(store, group.offset(n) + FLAG_AT, struct.pack(">i", flag))


def _roots(report: Report) -> set[tuple[str, str]]:
    return {(f.kind, f.replica) for f in report.findings if not f.caused_by and f.severity != "info"}


@pytest.mark.parametrize("flag", [TRANSACTION_ROLLBACK, TRANSACTION_PREPARED])
@pytest.mark.parametrize("numbers", [(40,), (88,), (84, 86, 88)])
def test_what_is_rolled_back_or_prepared_everywhere_is_lost(
    numbers: tuple[int, ...], flag: int, tmp_path: Path
) -> None:
    """Its queue entry is gone, too, as a rebuild leaves it."""
    group = Group(tmp_path, 3, 1)
    for n in numbers:
        _flagged(group, n, flag, 3)
        for store in group.stores:
            enter(store, "T", *group.place(n), bytes(20), PER_FILE)
    report = run_local(group.stores, group.ledger)
    assert report.lost == len(numbers)
    assert {f.uniq_key for f in report.findings if f.kind == "acked_missing"} == {
        f"m{n:03d}" for n in numbers
    }


@pytest.mark.parametrize("flag", [TRANSACTION_ROLLBACK, TRANSACTION_PREPARED, COMPRESSED])
@pytest.mark.parametrize(("wrong", "replicas"), [(1, 2), (1, 3), (2, 3)])
def test_the_copy_that_consumers_get_is_the_right_one(
    wrong: int, replicas: int, flag: int, tmp_path: Path
) -> None:
    group = Group(tmp_path, replicas, 1)
    _flagged(group, 40, flag, wrong)
    report = run_local(group.stores, group.ledger)
    assert _roots(report) == {("bytes_differ", f"r{at}") for at in range(wrong)}
    assert not any(f.ambiguous for f in report.findings)
    assert report.lost == 0


def test_a_body_that_is_said_to_be_compressed_and_is_not_is_another_one(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, 1)
    _flagged(group, 40, COMPRESSED, 3)
    (found,) = run_local(group.stores, group.ledger).findings
    assert (found.kind, found.replica, found.uniq_key) == ("acked_mismatch", "*", "m040")
    assert found.found.endswith("a body that cannot be decompressed")


@pytest.mark.parametrize("packed", [True, False])
def test_a_compressed_body_is_the_one_that_was_sent_only_if_it_is_said_to_be(
    packed: bool, tmp_path: Path
) -> None:
    """Without the flag consumers get its compressed bytes."""
    sent = b"a body " * 40
    writer = LogWriter(tmp_path / "origin")
    writer.fill(10)
    at = writer.add(zlib.compress(sent), key="packed")
    patch(writer.root, at + FLAG_AT, struct.pack(">i", COMPRESSED if packed else 0))
    writer.fill(10, mark="n")
    writer.confirm(epochs=[(1, 0)])
    told = [row | ({"body_crc": zlib.crc32(sent)} if row["phys_offset"] == at else {}) for row in writer.rows]
    report = run_local(copies(writer.root), ledger_at(tmp_path, told))
    assert [f.kind for f in report.findings] == ([] if packed else ["acked_mismatch"])


def test_a_message_that_waits_may_be_prepared(tmp_path: Path) -> None:
    """A sender is told where its message goes; meanwhile it stands in the topic of the undecided ones."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(10)
    at = writer.add(b"half", key="half", topic="RMQ_SYS_TRANS_HALF_TOPIC")
    patch(writer.root, at + FLAG_AT, struct.pack(">i", TRANSACTION_PREPARED))
    writer.confirm(epochs=[(1, 0)])
    told = [row | ({"topic": "T"} if row["phys_offset"] == at else {}) for row in writer.rows]
    report = run_local(copies(writer.root), ledger_at(tmp_path, told))
    assert (report.verdict, report.lost) == ("clean", 0)
