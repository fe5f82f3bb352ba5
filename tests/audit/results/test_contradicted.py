"""The promise of the page's steps: no command takes a record of which its own store's entries tell
otherwise."""

from __future__ import annotations

from pathlib import Path

from audit.results.steps.repair import steps
from tests.audit.plants import make_queued, run_local
from tests.audit.results.advised import reads
from tests.audit.stores import first_records, look, patch, queue_file


def _another_place(store: Path, at: int) -> None:
    """One flipped bit of its queue offset."""
    patch(store, at + 24, bytes([look(store, at + 24, 1)[0] ^ 0x10]))


def test_under_the_others_damage_it_is_left_out(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 2)
    spans = first_records(stores[0], 25)
    begin, until = spans[22]
    patch(stores[0], spans[20][0], bytes(spans[24][0] - spans[20][0]))
    _another_place(stores[1], begin)
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert not any(step.command.startswith("keelmq store repair") for step in told)
    taken = [(a, b) for step in told for name, a, b in reads(step) if name == "r1"]
    assert taken == [(spans[20][0], begin), (until, spans[24][0])]
    assert any("than the entry that was made of it" in step.why for step in told if step.replica == "r1")
    assert not any(step.command for step in told if step.replica == "r1")


def test_what_another_has_alike_is_right_and_its_queue_wrong(tmp_path: Path) -> None:
    """The entries of one store are made of it again, whatever they said."""
    stores, _ = make_queued(tmp_path, 3)
    spans = first_records(stores[0], 25)
    patch(stores[0], spans[20][0], bytes(spans[24][0] - spans[20][0]))
    path = stores[1] / "consumequeue" / "T" / "0" / f"{200:020d}"
    raw = bytearray(path.read_bytes())
    entry = 22 // 2 * 20 - 200
    raw[entry + 20 : entry + 40], raw[entry : entry + 20] = raw[entry : entry + 20], bytes(20)
    path.write_bytes(raw)
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert {step.replica for step in told if step.command.startswith("keelmq store repair")} == {"r0", "r1"}


def test_one_wrong_place_in_all_copies_is_one_error(tmp_path: Path) -> None:
    """Its entries follow from it, and no number is larger than the log has places."""
    stores, _ = make_queued(tmp_path, 3)
    [(begin, _)] = first_records(stores[0], 23)[22:]
    for store in stores:
        _another_place(store, begin)
    report = run_local(stores, None)
    errors = [f for f in report.findings if f.severity != "info"]
    assert [(f.kind, f.replica, f.phys_offset, f.until, f.records) for f in errors] == [
        ("queue_order", "*", begin, begin + 1, 1)
    ]
    assert all(f.records <= 80 for f in report.findings)


def test_a_majority_that_its_own_entries_contradict_is_taken_by_nobody(tmp_path: Path) -> None:
    """Two of three logs tell the place of another record, and the queues of all tell the right one."""
    stores, _ = make_queued(tmp_path, 3)
    begin, until = first_records(stores[0], 25)[22]
    for store in stores[:2]:
        patch(store, begin + 27, b"\x01")
    report = run_local(stores, None)
    for step in steps(report.findings, report.replicas):
        for name, a, b in reads(step):
            assert name == "r2" or b <= begin or until <= a, step


def _another_topic(store: Path, begin: int, until: int) -> None:
    raw = look(store, begin, until - begin)
    at = raw.rindex(b"\x01T") + 1
    patch(store, begin + at, b"U")


def test_nor_one_of_another_topic_that_has_no_queue(tmp_path: Path) -> None:
    """Two of three logs have the message in a topic without files: no finding says that an entry lacks."""
    stores, _ = make_queued(tmp_path, 3)
    begin, until = first_records(stores[0], 25)[22]
    for store in stores[:2]:
        _another_topic(store, begin, until)
    report = run_local(stores, None)
    assert any(f.kind == "cq_dangling" and f.phys_offset == begin for f in report.findings)
    told = steps(report.findings, report.replicas)
    assert not any(step.command for step in told)
    assert any("than the entry that was made of it" in step.why for step in told)


def test_what_else_a_contradicted_store_lacks_is_taken_without_a_repair(tmp_path: Path) -> None:
    """Its queues would be made of the record that they contradict."""
    stores, _ = make_queued(tmp_path, 3)
    spans = first_records(stores[0], 25)
    for store in stores:
        _another_topic(store, *spans[22])
    patch(stores[1], spans[10][0], bytes(spans[11][0] - spans[10][0]))
    report = run_local(stores, None)
    told = [step for step in steps(report.findings, report.replicas) if step.command]
    assert [step.replica for step in told] == ["r1"]
    assert told[0].command.startswith("dd ")
    assert "makes queues" not in told[0].why


def test_a_tag_that_all_copies_have_otherwise_than_their_entries_is_open(tmp_path: Path) -> None:
    """A repair would make the entries of the records; where one has both alike, it may."""
    stores, _ = make_queued(tmp_path, 3)
    begin, until = first_records(stores[0], 25)[22]
    raw = look(stores[0], begin, until - begin)
    at = begin + raw.rindex(b"TAGS\x01") + len(b"TAGS\x01")
    was = look(stores[0], at, 1)
    for store in stores:
        patch(store, at, b"z")
    report = run_local(stores, None)
    assert {(f.kind, f.replica) for f in report.findings} == {("cq_wrong", store.name) for store in stores}
    told = steps(report.findings, report.replicas)
    assert not any(step.command for step in told)
    assert {step.replica for step in told if "than the entry" in step.why} == {"r0", "r1", "r2"}
    for store in stores:
        patch(store, at, was)
    path = queue_file(stores[1], "T", 0, 11)
    entries = bytearray(path.read_bytes())
    entries[1 * 20 + 19] ^= 1
    path.write_bytes(entries)
    report = run_local(stores, None)
    [step] = steps(report.findings, report.replicas)
    assert (step.replica, step.command.startswith("keelmq store repair")) == ("r1", True)
