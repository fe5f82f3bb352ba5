"""The promise of the vote: what the ledger confirms is not outnumbered, nor is it to be overwritten."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from audit.kinds.logs import witnesses
from audit.reading.records.record import MAGIC_BLANK
from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.moved import moved, told
from tests.audit.plants import ledger_at, make, make_queued, run_local, topic_created_again
from tests.audit.stores import SEGMENT, LogWriter, copies, look, patch, record


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _altered(stores: list[Path], writer: LogWriter) -> None:
    """The body of one record and its CRC, alike on most replicas."""
    for store in stores:
        patch(store, _at(writer, 10), record(_at(writer, 10), 5, b"x-10" * 5, key="m10", stamp=1010))


def _differ(report: Report) -> list[tuple[str, str, int, str]]:
    return [(f.replica, f.severity, f.copies, f.found) for f in report.findings if f.kind == "bytes_differ"]


def _commands(report: Report) -> list[tuple[str, str]]:
    return [(step.replica, step.command) for step in steps(report.findings, report.replicas) if step.command]


@pytest.mark.parametrize("right", [0, 1, 2])
def test_a_ledger_outweighs_two_copies_that_are_altered_alike(right: int, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    altered = [store for n, store in enumerate(stores) if n != right]
    _altered(altered, writer)
    report = run_local(stores, ledger)
    words = "what the ledger contradicts"
    assert _differ(report) == [(store.name, "error", 1, words) for store in altered]
    commands = _commands(report)
    assert [name for name, _ in commands] == [store.name for store in altered]
    assert all(f"dd if={stores[right]}/" in command for _, command in commands), "a repair counts copies"


def test_a_ledger_outweighs_two_copies_of_a_message_that_waits(tmp_path: Path) -> None:
    """Its sender was told its topic and queue, not those in which it waits for its time."""
    topic = "SCHEDULE_TOPIC_XXXX"
    writer = LogWriter(tmp_path / "origin")
    writer.fill(10)
    at = writer.add(b"late", key="late", topic=topic, queue_id=2)
    writer.fill(10, mark="n")
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root)
    for store in stores[1:]:
        patch(store, at, record(at, 0, b"LATE", key="late", topic=topic, queue_id=2))
    rows = [row | ({"topic": "T", "queue_id": 1} if row["phys_offset"] == at else {}) for row in writer.rows]
    report = run_local(stores, ledger_at(tmp_path, rows))
    assert {replica for replica, *_ in _differ(report)} == {"r1", "r2"}
    assert "r0" not in {replica for replica, _ in _commands(report)}


def test_without_a_ledger_most_copies_of_a_body_are_right(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    _altered(stores[1:], writer)
    assert _differ(run_local(stores, None)) == [("r0", "error", 2, "")]


def test_no_copy_that_the_ledger_confirms_is_overwritten(tmp_path: Path) -> None:
    """Most copies are right in one record, and the same replica alone is right in another."""
    stores, writer, ledger = make(tmp_path)
    _altered(stores[1:], writer)
    at = _at(writer, 40)
    patch(stores[0], at, record(at, 20, b"x-40" * 5, key="m40", stamp=1040))
    commands = _commands(run_local(stores, ledger))
    assert not any(f" repair {stores[0]}" in command for _, command in commands)


def test_no_copy_is_given_up_while_no_other_is_right_everywhere(tmp_path: Path) -> None:
    """r1 is wrong in one record, as r2 is, and alone is right in another."""
    stores, writer, ledger = make(tmp_path)
    _altered(stores[1:], writer)
    for store in (stores[0], stores[2]):
        patch(store, _at(writer, 30) + 90, b"?")
    at = _at(writer, 60) + 41
    patch(stores[0], at, bytes([look(stores[0], at, 1)[0] ^ 4]))
    report = run_local(stores, ledger)
    whys = [step.why for step in steps(report.findings, report.replicas)]
    assert whys
    assert not any("empty store" in why for why in whys)


def _blank(stores: list[Path], begin: int) -> None:
    left = SEGMENT - begin % SEGMENT
    for store in stores:
        patch(store, begin, struct.pack(">iI", left, MAGIC_BLANK).ljust(left, b"\0"))


def test_acknowledged_messages_outweigh_two_logs_that_end_otherwise(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    _blank(stores[1:], _at(writer, 77))
    report = run_local(stores, ledger_at(tmp_path, writer.rows))
    assert {f.replica for f in report.findings if f.kind == "divergent_suffix"} == {"r1", "r2"}


def test_damage_of_a_neighbour_is_no_evidence(tmp_path: Path) -> None:
    """The next record of the queue is damaged on two replicas: no places are skipped by that."""
    stores, writer, _ = make(tmp_path)
    at = _at(writer, 40)
    patch(stores[2], at + 41, bytes([look(stores[2], at + 41, 1)[0] ^ 4]))  # when it was born
    for store in stores[:2]:
        patch(store, _at(writer, 42) + 90, b"?")
    assert _differ(run_local(stores, None)) == [("r2", "error", 2, "")]


@pytest.mark.parametrize("with_ledger", [False, True])
def test_records_in_a_row_that_one_copy_alone_has_otherwise_convict_no_other(
    with_ledger: bool, tmp_path: Path
) -> None:
    """Their topic is under no CRC, and the places of their queue seem to be skipped on the sound copies."""
    stores, writer, ledger = make(tmp_path)
    for n in (40, 41, 42, 43):
        raw = look(stores[0], _at(writer, n), 400)
        at = raw.index(b"\x01T") + 1
        patch(stores[0], _at(writer, n) + at, b"V")
    report = run_local(stores, ledger if with_ledger else None)
    assert {replica for replica, *_ in _differ(report)} == {"r0"}


@pytest.mark.parametrize("byte", [0x40, 0x08, 0x80])
@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_place_that_no_queue_can_have_is_damage_and_ends_no_audit(
    byte: int, with_ledger: bool, tmp_path: Path
) -> None:
    stores, ledger = make_queued(tmp_path)
    patch(stores[0], 20, bytes([look(stores[0], 20, 1)[0] ^ byte]))
    report = run_local(stores, ledger if with_ledger else None)
    assert {replica for replica, *_ in _differ(report)} == {"r0"}


def test_a_topic_that_was_made_again_and_a_flipped_bit_convict_the_damaged_copy(tmp_path: Path) -> None:
    stores, ledger = topic_created_again(tmp_path, 20)
    raw = (stores[0] / "commitlog" / f"{0:020d}").read_bytes()
    at = raw.index(b"\x01T", raw.index(b"n-0")) + 1
    patch(stores[0], at, bytes([raw[at] ^ 1]))
    for ledgers in (None, ledger):
        report = run_local(stores, ledgers)
        assert {replica for replica, *_ in _differ(report)} == {"r0"}
        assert {name for name, _ in _commands(report)} == {"r0"}, "nothing of the sound ones is overwritten"


def _with_system_record(root: Path, replicas: int) -> tuple[list[Path], LogWriter, int]:
    """One of a topic that no ledger lists stands between messages that are as long."""
    writer = LogWriter(root / "origin")
    writer.fill(30)
    at = writer.add(b"m-13" * 5, key="m99", topic="S", stamp=1050)
    writer.fill(30, mark="n")
    writer.confirm(epochs=[(1, 0)])
    return copies(writer.root, replicas), writer, at


@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("of", [14, 45])
def test_an_acknowledged_message_copied_over_another_record_convicts_its_copy(
    places: bool, of: int, tmp_path: Path
) -> None:
    """All replicas have the message: that one has it twice says nothing against the others."""
    stores, writer, at = _with_system_record(tmp_path, 3)
    moved(stores[0], _at(writer, of), at)
    report = run_local(stores, told(tmp_path, writer, places=places))
    assert _differ(report) == [("r0", "error", 2, "")]
    assert {replica for replica, command in _commands(report) if " repair " not in command} == set()


@pytest.mark.parametrize("places", [True, False])
def test_of_two_copies_no_ledger_convicts_the_one_without_a_message_that_both_have(
    places: bool, tmp_path: Path
) -> None:
    stores, writer, at = _with_system_record(tmp_path, 2)
    moved(stores[0], _at(writer, 14), at)
    report = run_local(stores, told(tmp_path, writer, places=places))
    assert [f.ambiguous for f in report.findings if f.kind == "bytes_differ"] == [True]
    assert not any("dd if=" in command for _, command in _commands(report))


@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("wrong", [0, 1])
def test_of_two_copies_the_one_that_lacks_an_acknowledged_message_is_wrong(
    places: bool, wrong: int, tmp_path: Path
) -> None:
    stores, writer, _ = make(tmp_path, 2)
    moved(stores[wrong], _at(writer, 30), _at(writer, 20))
    report = run_local(stores, told(tmp_path, writer, places=places))
    assert [row[0] for row in _differ(report)] == [f"r{wrong}"]
    assert not any(f.ambiguous for f in report.findings)


def test_a_message_delivered_elsewhere_than_its_sender_was_told_is_known_by_its_body(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path, 2)
    patch(stores[1], _at(writer, 10), record(_at(writer, 10), 5, b"x-10" * 5, key="m10", stamp=1010))
    rows = [
        row | ({"queue_offset": 3, "phys_offset": 9} if row["uniq_key"] == "m10" else {})
        for row in writer.rows
    ]
    assert [row[0] for row in _differ(run_local(stores, ledger_at(tmp_path, rows)))] == ["r1"]


def test_no_majority_decides_where_whole_logs_were_asked_often_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A ledger that does not say where its messages stand may speak for the fewer copies."""
    stores, writer, _ = make(tmp_path)
    _altered(stores[1:], writer)
    ledger = told(tmp_path, writer, places=False)
    assert {replica for replica, *_ in _differ(run_local(stores, ledger))} == {"r1", "r2"}
    monkeypatch.setattr(witnesses, "_ASKED_MAX", 0)
    report = run_local(stores, ledger)
    assert {f.ambiguous for f in report.findings if f.kind == "bytes_differ"} == {True}
    assert not any("dd if=" in command for _, command in _commands(report))
