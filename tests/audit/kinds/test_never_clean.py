"""The promise of the audit's verdict over broken stores that look sound at a glance: never CLEAN."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.kinds import causes
from model.errors import ConfigError
from tests.audit.plants import ledger_at, make, run_local
from tests.audit.stores import LogWriter, copies, look, patch, record

FIRST = f"{0:020d}"
SECOND = f"{4096:020d}"
THIRD = f"{8192:020d}"


def _first_segment_broken(writer: LogWriter, stores: list[Path]) -> None:
    """A place taken twice, and so a gap, in the first segment; its sizes stay."""
    row = writer.rows[10]
    at, place = int(str(row["phys_offset"])), int(str(row["queue_offset"]))
    for store in stores:
        patch(store, at, record(at, place - 1, b"m-10" * 5, key="m10", queue_id=0, stamp=1010))


@pytest.mark.parametrize("with_ledger", [False, True])
def test_queues_are_checked_where_only_the_others_hold_the_log(with_ledger: bool, tmp_path: Path) -> None:
    """The longest log has expired the segment in which the others are broken."""
    stores, writer, _ = make(tmp_path)
    _first_segment_broken(writer, stores)
    (stores[0] / "commitlog" / FIRST).unlink()
    report = run_local(stores, ledger_at(tmp_path, writer.rows[60:]) if with_ledger else None)
    assert report.reference in ("r1", "r2")
    raw = record(writer.end, 40, b"ahead", key="ahead", queue_id=0, stamp=3000)
    patch(stores[0], writer.end, raw)
    for store in stores:
        (store / "abort").touch()
    report = run_local(stores, ledger_at(tmp_path, writer.rows[60:]) if with_ledger else None)
    assert report.reference == "r0"
    assert {"queue_gap", "dup_queue_offset"} & {f.kind for f in report.findings if f.severity == "error"}
    assert report.verdict == "diverged"


def test_a_message_stored_twice_is_found_where_only_the_others_hold_its_first_copy(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    (stores[0] / "commitlog" / FIRST).unlink()
    again = record(writer.end, 40, b"m-10" * 5, key="m10", queue_id=0, stamp=3000)
    for store in stores:
        patch(store, writer.end, again)
    ahead = writer.end + len(again)
    patch(stores[0], ahead, record(ahead, 41, b"ahead", key="ahead", queue_id=0, stamp=3001))
    report = run_local(stores, None)
    assert report.reference == "r0"
    assert ("dup_message", "m10") in {(f.kind, f.uniq_key) for f in report.findings}


def test_a_log_the_others_go_on_for_is_in_order(tmp_path: Path) -> None:
    """The same, unbroken: retention is no fault."""
    stores, writer, ledger = make(tmp_path)
    (stores[0] / "commitlog" / FIRST).unlink()
    (stores[1] / "commitlog" / FIRST).unlink()
    patch(stores[0], writer.end, record(writer.end, 40, b"ahead", key="ahead", queue_id=0, stamp=3000))
    for store in stores:
        (store / "abort").touch()
    report = run_local(stores, ledger)
    assert (report.reference, report.verdict) == ("r0", "clean")


@pytest.mark.parametrize("how", ["wiped", "without its last segment"])
def test_a_running_replica_that_lost_its_log_is_no_lag(how: str, tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
        (store / "checkpoint").unlink()
    for segment in sorted((stores[2] / "commitlog").iterdir())[0 if how == "wiped" else 1 :]:
        segment.unlink()
    report = run_local(stores, None)
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("short_tail", "warn", "r2")]
    assert report.verdict == "warnings"


def test_an_empty_ledger_is_a_mistake(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no message"):
        run_local(stores, tmp_path / "empty.jsonl")


def test_a_ledger_most_of_which_no_log_reaches_back_to_is_a_warning(tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    for store in stores:
        for segment in (FIRST, SECOND):
            (store / "commitlog" / segment).unlink()
    report = run_local(stores, ledger)
    assert report.expired > 40
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("acked_missing", "warn", "*")]
    assert report.findings[0].records == report.expired


@pytest.mark.parametrize("clean", [False, True])
def test_a_store_without_its_queues_is_named(clean: bool, tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    shutil.rmtree(stores[1] / "consumequeue")
    if not clean:
        (stores[1] / "abort").touch()
    report = run_local(stores, ledger)
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("cq_missing", "warn", "r1")]


def test_an_empty_store_needs_no_queues(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "origin")
    shutil.rmtree(writer.root / "consumequeue")
    assert [f.kind for f in run_local(copies(writer.root, 2), None).findings] == ["short_tail"]


@pytest.mark.parametrize("zeroed", [(70, 73), (65, 66)])
def test_a_hole_in_the_last_segment_is_no_end_though_the_clock_went_back_behind_it(
    zeroed: tuple[int, int], tmp_path: Path
) -> None:
    """A failover to a slower clock; the others hold what stands behind the hole at the same places."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(60, stamp=9000)
    before = len(writer.rows)
    writer.fill(20, mark="n", stamp=1000)
    writer.confirm(before)
    stores = copies(writer.root)
    for store in stores:
        (store / "abort").touch()
        (store / "checkpoint").unlink()
    begin, end = (int(str(writer.rows[at]["phys_offset"])) for at in zeroed)
    patch(stores[2], begin, bytes(end - begin))
    for n in range(zeroed[0] - 1, zeroed[0]):  # the record before the hole has a later time than those behind
        at = int(str(writer.rows[n]["phys_offset"]))
        for store in stores:
            patch(store, at + 56, (9999).to_bytes(8, "big"))
    report = run_local(stores, None)
    assert [(f.kind, f.severity, f.replica) for f in report.findings if not f.caused_by] == [
        ("unreadable_region", "error", "r2")
    ]


@pytest.mark.parametrize(("torn", "severity"), [(False, "warn"), (True, "info")])
def test_a_flipped_last_record_is_not_one_that_is_still_being_written(
    torn: bool, severity: str, tmp_path: Path
) -> None:
    stores, writer, _ = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
        (store / "checkpoint").unlink()
    at = int(str(writer.rows[-1]["phys_offset"]))
    if torn:
        patch(stores[2], at + 92, bytes(writer.end - at - 92))
    else:
        patch(stores[2], at + 92, b"?")
    report = run_local(stores, None)
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("short_tail", severity, "r2")]


def test_a_message_older_than_the_leading_log_is_lost_when_another_log_reaches_further_back(
    tmp_path: Path,
) -> None:
    """What retention took from the reference it did not take from the others, and they lack it."""
    stores, writer, _ = make(tmp_path)
    row = writer.rows[35]
    at, place = int(str(row["phys_offset"])), int(str(row["queue_offset"]))
    assert 4096 < at < 8192
    for store in stores:  # another message of the same size stands there
        patch(store, at, record(at, place, b"x-35" * 5, key="x35", queue_id=35 % 2, stamp=1035))
        (store / "abort").touch()
        (store / "commitlog" / FIRST).unlink()
    (stores[0] / "commitlog" / SECOND).unlink()
    patch(stores[0], writer.end, record(writer.end, 40, b"ahead", key="ahead", queue_id=0, stamp=3000))
    acked = [{**one, "phys_offset": None} for one in writer.rows]
    report = run_local(stores, ledger_at(tmp_path, acked))
    assert report.reference == "r0"
    assert [f.uniq_key for f in report.findings if f.kind == "acked_missing" and f.copies == 0] == ["m35"]
    assert report.expired == sum(int(str(one["phys_offset"])) < 4096 for one in writer.rows)


@pytest.mark.parametrize("how", ["size", "zeros", "head of zeros"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_last_record_that_changed_is_no_write_under_way(how: str, alone: bool, tmp_path: Path) -> None:
    """``alone``: it is the only one of its segment."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    while alone and writer.end // 4096 == int(str(writer.rows[-1]["phys_offset"])) // 4096:
        writer.add(b"y" * 30)
        if writer.end % 4096 < 400 and writer.end > 4096:
            break
    stores = copies(writer.root)
    at = int(str(writer.rows[-1]["phys_offset"]))
    assert (at % 4096 == 0) == alone
    begin, raw = {
        "size": (at + 1, b"\x01"),
        "zeros": (at + 88, bytes(12)),
        "head of zeros": (at, bytes(12)),
    }[how]
    if how == "zeros":
        assert 0 not in look(stores[2], begin, 12)
    patch(stores[2], begin, raw)
    for store in stores:
        (store / "abort").touch()
    report = run_local(stores, None)
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("short_tail", "warn", "r2")]


def test_half_a_record_over_what_a_cut_log_left_is_a_write_under_way(tmp_path: Path) -> None:
    """RocketMQ cuts a log and leaves its bytes; replication then writes over them, and ends anywhere."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    begin = int(str(writer.rows[-2]["phys_offset"]))
    writer.confirm(0, epochs=[(1, 0), (2, int(str(writer.rows[10]["phys_offset"])))])
    stores = copies(writer.root)
    at, size = int(str(writer.rows[-1]["phys_offset"])), writer.end - int(str(writer.rows[-1]["phys_offset"]))
    for written in (0, 60):
        left = record(begin, 9, b"of another history" * 20, key="old", stamp=10)[at - begin :]
        patch(stores[2], at, look(stores[1], at, written) + left[written : size + 60])
        for store in stores:
            (store / "abort").touch()
        assert {(f.kind, f.severity) for f in run_local(stores, None).findings} == {("short_tail", "info")}


def test_a_damaged_record_where_the_others_end_does_not_hide_what_stands_behind_it(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    writer.confirm(0, epochs=[(1, 0), (2, int(str(writer.rows[10]["phys_offset"])))])
    stores = copies(writer.root)
    end, ahead = writer.end, writer.end
    for n in range(4):
        raw = record(ahead, 10 + n, b"ahead", key=f"a{n}", queue_id=0, stamp=3000 + n)
        patch(stores[0], ahead, raw)
        ahead += len(raw)
    for store in stores:
        (store / "abort").touch()
    patch(stores[0], end, b"\x7f")  # of its size
    found = {(f.kind, f.severity, f.phys_offset) for f in run_local(stores, None).findings}
    assert ("unreadable_region", "error", end) in found
    patch(stores[0], end, bytes(60))  # nothing tells that it was a record: perhaps what a cut log left
    found = {(f.kind, f.severity, f.phys_offset) for f in run_local(stores, None).findings}
    assert found == {("extra_tail", "warn", end)}


@pytest.mark.parametrize(("held", "severity"), [(0, "error"), (2, "info")])
def test_what_is_lost_follows_from_no_warning(held: int, severity: str) -> None:
    lacking = Finding("acked_missing", "error", "r0", phys_offset=150, until=160, copies=held, records=1)
    for kind, begin in (("short_tail", 100), ("divergent_suffix", 100), ("divergent_suffix", 155)):
        cause = Finding(kind, "warn", "r0", phys_offset=begin, until=200)
        (_, found) = causes.link([cause, lacking], ["r0", "r1", "r2"])
        expected = severity if (kind, begin) == ("divergent_suffix", 100) else "error"
        assert found.severity == expected
    suffix = Finding("divergent_suffix", "warn", "r0", phys_offset=100, until=200)
    for begin, expected in ((100, "info"), (50, "error")):
        wrong = Finding("epoch_mismatch", "error", "r0", phys_offset=begin, until=200)
        assert causes.link([suffix, wrong], ["r0"])[1].severity == expected


@pytest.mark.parametrize("how", ["hard links", "links"])
def test_segments_that_are_one_file_are_no_copies(how: str, tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    for store in stores[1:]:
        for segment in sorted((store / "commitlog").iterdir()):
            segment.unlink()
            original = stores[0] / "commitlog" / segment.name
            segment.hardlink_to(original) if how == "hard links" else segment.symlink_to(original)
    report = run_local(stores, None)
    told = [(f.kind, f.severity, f.replica, f.segment, f.found) for f in report.findings]
    words = "3 that are also those of r0"
    assert told == [("same_file", "warn", f"r{n}", f"commitlog/{FIRST}", words) for n in (1, 2)]
    assert report.verdict == "warnings"


@pytest.mark.parametrize(("replicas", "ambiguous"), [(3, True), (5, False)])
def test_copies_that_are_one_file_have_one_vote(replicas: int, ambiguous: bool, tmp_path: Path) -> None:
    """The last three (of three replicas the last two) have an altered record in one file."""
    stores, writer, _ = make(tmp_path, replicas)
    one = stores[1:] if replicas == 3 else stores[2:]
    for store in one[1:]:
        for segment in sorted((store / "commitlog").iterdir()):
            segment.unlink()
            segment.hardlink_to(one[0] / "commitlog" / segment.name)
    at = int(str(writer.rows[40]["phys_offset"]))
    patch(one[0], at, record(at, 20, b"x-40" * 5, key="m40", queue_id=0, stamp=1040))
    report = run_local(stores, None)
    differ = [f for f in report.findings if f.kind == "bytes_differ"]
    assert {f.ambiguous for f in differ} == {ambiguous}
    assert {f.copies for f in differ} == {1 if replicas == 3 else 2}
    if not ambiguous:
        assert {f.replica for f in differ} == {store.name for store in one}
    assert {f.copies for f in report.findings if f.kind == "same_file"} == {0}


@pytest.mark.parametrize("what", ["a copy", "zeros", "noise"])
@pytest.mark.parametrize("base", [4097, 4100, 9000])
def test_a_file_between_segments_is_a_finding_of_its_own_store(base: int, what: str, tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    copy = (stores[1] / "commitlog" / SECOND).read_bytes()
    raw = {"a copy": copy, "zeros": bytes(4096), "noise": random.Random(1).randbytes(4096)}[what]
    (stores[1] / "commitlog" / f"{base:020d}").write_bytes(raw)
    report = run_local(stores, ledger)
    told = [(f.kind, f.severity, f.replica, f.segment) for f in report.findings]
    assert told == [("file_corrupt", "warn", "r1", f"commitlog/{base:020d}")]
