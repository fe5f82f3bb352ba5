"""The promise of copies that are found by their key, and not where the ledger says: they show at most that a
message is not lost."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.plants import (
    delayed_across_retention,
    ledger_at,
    make,
    misplaced_across_retention,
    run_local,
)
from tests.audit.stores import SEGMENT, LogWriter, body_crc, look, patch, record

EVERY = (0, 1, 2)
BODY_AT = 88
PLACED = pytest.mark.parametrize("placed", [True, False])


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _ledger(ledger: Path, *, placed: bool) -> Path:
    """The same; unless ``placed``, without ``phys_offset``."""
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    told = [{name: value for name, value in row.items() if placed or name != "phys_offset"} for row in rows]
    return ledger_at(ledger.parent, told)


def _expire(stores: list[Path], until: int) -> None:
    for store in stores:
        (store / "abort").touch()
        for base in range(0, until, SEGMENT):
            (store / "commitlog" / f"{base:020d}").unlink()


def _raw(store: Path, at: int) -> bytes:
    return look(store, at, struct.unpack(">i", look(store, at, 4))[0])


def _errors(report: Report) -> set[tuple[str, str]]:
    return {(f.kind, f.replica) for f in report.findings if f.severity == "error"}


def _delivered(store: Path) -> int:
    """Where the delayed message stands in its topic."""
    data = (store / "commitlog" / f"{SEGMENT:020d}").read_bytes()
    key, at = data.index(b"UNIQ_KEY\x01late\x02"), 0
    while at + struct.unpack_from(">i", data, at)[0] <= key:
        at += int(struct.unpack_from(">i", data, at)[0])
    return SEGMENT + at


@PLACED
def test_a_damaged_body_is_no_late_delivery(placed: bool, tmp_path: Path) -> None:
    stores, ledger = delayed_across_retention(tmp_path, EVERY)
    at = _delivered(stores[0])
    for store in stores:
        patch(store, at + BODY_AT, b"?")
    report = run_local(stores, _ledger(ledger, placed=placed))
    (lost,) = (f for f in report.findings if f.kind == "acked_missing" and f.topic)
    assert (lost.uniq_key, lost.replica, lost.copies) == ("late", "*", 0)
    assert (report.lost, report.none_lost) == (1, False)


@PLACED
def test_another_body_is_no_late_delivery(placed: bool, tmp_path: Path) -> None:
    stores, ledger = delayed_across_retention(tmp_path, EVERY)
    at = _delivered(stores[0])
    for store in stores:
        patch(store, at + BODY_AT, b"LATE")
        patch(store, at + 8, struct.pack(">I", body_crc(b"LATE")))
    report = run_local(stores, _ledger(ledger, placed=placed))
    assert _errors(report) == {("acked_mismatch", "*")}
    assert not report.none_lost


@PLACED
@pytest.mark.parametrize("removed", [EVERY, (0,), (1, 2)])
def test_a_late_delivery_has_no_place_in_the_order(
    removed: tuple[int, ...], placed: bool, tmp_path: Path
) -> None:
    stores, ledger = delayed_across_retention(tmp_path, removed)
    report = run_local(stores, _ledger(ledger, placed=placed))
    assert _errors(report) == set()
    assert report.lost == 0


@pytest.mark.parametrize("what", ["topic", "queue"])
def test_what_stands_at_its_place_of_another_queue_is_not_too_old(what: str, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    _expire([stores[0], stores[2]], 2 * SEGMENT)
    _expire([stores[1]], SEGMENT)
    at = _at(writer, 33)
    if what == "topic":
        patch(stores[1], at + _raw(stores[1], at).index(b"\x01T") + 1, b"U")
    else:
        patch(stores[1], at + 12, struct.pack(">i", 5))
    report = run_local(stores, _ledger(ledger_at(tmp_path, writer.rows[33:]), placed=False))
    assert _errors(report) == {("acked_mismatch", "*")}
    assert (report.expired, report.none_lost) == (0, False)


@pytest.mark.parametrize("topic", ["%RETRY%group", "%DLQ%group"])
def test_what_a_consumer_sent_back_is_too_old_with_its_message(topic: str, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "origin")
    while writer.end < SEGMENT:
        writer.add(b"z" * 50, key=f"z{writer.end}")
    writer.add(b"z" * 50, key="z0", topic=topic)
    while writer.end < SEGMENT + 500:
        writer.add(b"z" * 50, key=f"z{writer.end}")
    rows = [row for row in writer.rows if row["topic"] == "T"]
    writer.confirm(epochs=[(1, 0)])
    _expire([writer.root], SEGMENT)
    report = run_local([writer.root], _ledger(ledger_at(tmp_path, rows), placed=False))
    assert _errors(report) == set()
    assert report.lost == 0


@PLACED
def test_a_misplaced_copy_convicts_no_sound_log(placed: bool, tmp_path: Path) -> None:
    stores, writer, ledger = misplaced_across_retention(tmp_path)
    report = run_local(stores, _ledger(ledger, placed=placed))
    wrong = {("phys_offset_mismatch", "r2")}
    assert _errors(report) == wrong | {("acked_missing", "*")}
    there = [f.copies for f in report.findings if f.kind == "phys_offset_mismatch"]
    assert there == [0, 2]
    (lost,) = (f for f in report.findings if f.kind == "acked_missing" and f.replica == "*")
    assert (lost.uniq_key, lost.phys_offset) == ("m20", _at(writer, 20) if placed else -1)


@PLACED
def test_a_copy_over_another_message_puts_no_order_in_doubt(placed: bool, tmp_path: Path) -> None:
    stores, _, ledger = misplaced_across_retention(tmp_path, back=False)
    report = run_local(stores, _ledger(ledger, placed=placed))
    assert _errors(report) == {("phys_offset_mismatch", "r2"), ("acked_missing", "*")}
    assert report.lost == 1


@PLACED
def test_a_message_that_retention_took_outvotes_nobody_where_its_copy_stands(
    placed: bool, tmp_path: Path
) -> None:
    """Over another one, that no line has."""
    stores, writer, _ = make(tmp_path)
    at, copy = _at(writer, 40), bytearray(_raw(stores[0], _at(writer, 20)))
    right = _raw(stores[1], at)
    assert len(copy) == len(right)
    _expire(stores, SEGMENT)
    copy[28:36] = struct.pack(">q", at)
    patch(stores[0], at, bytes(copy))
    rows = [row for row in writer.rows if row["uniq_key"] != "m40"]
    report = run_local(stores, _ledger(ledger_at(tmp_path, rows), placed=placed))
    assert {(f.replica, f.ambiguous) for f in report.findings if f.kind == "bytes_differ"} == {("r0", False)}
    assert not any(f.replica in ("r1", "r2") for f in report.findings)
    assert {step.replica for step in steps(report.findings, report.replicas) if step.command} <= {"r0"}


def test_a_line_without_a_place_still_tells_the_first_record_of_its_queue(tmp_path: Path) -> None:
    """It is altered on most: where the others of its queue stand, it may have stood there."""
    stores, writer, ledger = make(tmp_path)
    _expire(stores, SEGMENT)
    at = _at(writer, 33)
    for store in stores[1:]:
        patch(store, at, record(at, 90, b"x-33" * 5, key="x33", queue_id=1, stamp=1033))
    report = run_local(stores, _ledger(ledger, placed=False))
    wrong = {f.replica for f in report.findings if f.kind == "bytes_differ" and not f.ambiguous}
    assert wrong == {"r1", "r2"}
