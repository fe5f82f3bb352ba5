"""The promise about oldest segments: retention is each replica's own, and what else took them is named."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.pages import sentence, textfile
from broker.timers.codec import encode_check
from broker.timers.core import Note
from model.ids import PhysicalOffset
from model.topic import DataVersion
from store.files.checkpoint import FILE_BYTES, Checkpoint
from tests.audit.parted import sealed
from tests.audit.plants import make, run_local
from tests.audit.stores import SEGMENT, LogWriter, cut, patch, write_checkpoint, write_epochs

FIRST, SECOND = f"commitlog/{0:020d}", f"commitlog/{SEGMENT:020d}"
OFFSETS = "config/consumerOffset.json"


def _noted(store: Path, start: int | None, *, settled: int = 0) -> None:
    """What a stop of keelmq leaves: a sealed checkpoint with the log's start."""
    (confirmed,) = struct.unpack_from(">q", (store / "checkpoint").read_bytes(), 32)
    found = Checkpoint(1, 1, 1, confirm_offset=confirmed, settled_offset=PhysicalOffset(settled))
    found.log_start = None if start is None else PhysicalOffset(start)
    (store / "checkpoint").write_bytes(found.encode().ljust(FILE_BYTES, b"\0"))


def _group(tmp_path: Path) -> list[Path]:
    stores, *_ = make(tmp_path)
    for store in stores:
        _noted(store, 0)
        shutil.copy(store / "epochFileCheckpoint", store / "epochFileCheckpoint.bak")
    return stores


def _told(findings: list[Finding]) -> list[tuple[str, str, str, int, int, int]]:
    return [(f.kind, f.severity, f.replica, f.phys_offset, f.until, f.copies) for f in findings]


@pytest.mark.parametrize(("gone", "until"), [((FIRST,), SEGMENT), ((FIRST, SECOND), 2 * SEGMENT)])
def test_oldest_segments_that_went_while_the_broker_stood_are_named(
    gone: tuple[str, ...], until: int, tmp_path: Path
) -> None:
    stores = _group(tmp_path)
    for file in gone:
        (stores[2] / file).unlink()
    report = run_local(stores, None)
    assert _told(report.findings) == [("missing_start", "warn", "r2", 0, until, 2)]
    assert report.verdict == "warnings"


def test_no_other_replica_is_needed_to_tell(tmp_path: Path) -> None:
    stores = _group(tmp_path)[:1]
    (stores[0] / FIRST).unlink()
    assert _told(run_local(stores, None).findings) == [("missing_start", "warn", "r0", 0, SEGMENT, 0)]


def _retention(store: Path) -> None:
    _noted(store, SEGMENT)


def _retention_could_not_remove_the_file(store: Path) -> None:
    _noted(store, 2 * SEGMENT)


def _runs_or_was_killed(store: Path) -> None:
    """It deletes, and notes that with the next checkpoint only."""
    (store / "abort").touch()


def _rocketmq_ran_since(store: Path) -> None:
    """Without a message: the checkpoint's first 40 bytes are the same again."""
    (store / "config").mkdir()
    (store / OFFSETS).write_text('{"offsetTable":{}}')


def _rocketmq_wrote_messages_since(store: Path) -> None:
    """Its part of each file; it leaves keelmq's as it is."""
    _rocketmq_ran_since(store)
    raw = (store / "checkpoint").read_bytes()
    (store / "checkpoint").write_bytes(struct.pack(">5q", 9, 9, 9, 0, 0) + raw[40:])
    ours = encode_check(Note(5000, 7, 0), DataVersion(0, 0, 0))
    (store / "config/timercheck").write_bytes((struct.pack(">q", 6000) + ours[8:]).ljust(4096, b"\0"))


def _an_older_keelmq_ran_since(store: Path) -> None:
    """It writes the first 88 bytes only, so the note is of the stop before."""
    note = (store / "checkpoint").read_bytes()[88:104]
    _noted(store, None, settled=SEGMENT)
    raw = (store / "checkpoint").read_bytes()
    (store / "checkpoint").write_bytes(raw[:88] + note + raw[104:])


def _no_note(store: Path) -> None:
    _noted(store, None)


@pytest.mark.parametrize(
    "how",
    [
        _retention,
        _retention_could_not_remove_the_file,
        _runs_or_was_killed,
        _rocketmq_ran_since,
        _rocketmq_wrote_messages_since,
        _an_older_keelmq_ran_since,
        _no_note,
    ],
)
def test_a_log_that_lawfully_begins_later_is_no_finding(how: Callable[[Path], None], tmp_path: Path) -> None:
    """A slave that joined late, or copied from the last file on, notes its log's start as after retention."""
    stores = _group(tmp_path)
    kept = run_local(stores, None).findings
    (stores[2] / FIRST).unlink()
    how(stores[2])
    assert (kept, run_local(stores, None).findings) == ([], [])


def test_a_store_with_nothing_yet_is_no_finding(tmp_path: Path) -> None:
    """It stopped before it had copied anything, and notes 0."""
    stores = _group(tmp_path)
    (tmp_path / "new" / "commitlog").mkdir(parents=True)
    _noted_empty(tmp_path / "new")
    findings = run_local([*stores, tmp_path / "new"], None).findings
    assert "missing_start" not in {f.kind for f in findings}


def _noted_empty(store: Path) -> None:
    (store / "checkpoint").write_bytes(bytes(FILE_BYTES))
    _noted(store, 0)


def test_an_oldest_segment_that_cannot_be_read_is_named_for_that_only(tmp_path: Path) -> None:
    """The log seems to begin behind it."""
    stores = _group(tmp_path)
    (stores[1] / FIRST).unlink()
    (stores[1] / FIRST).mkdir()  # reading it fails whatever one's rights
    roots = {(f.kind, f.replica) for f in run_local(stores, None).findings if f.severity != "info"}
    assert roots == {("file_unreadable", "r1")}


def _group_and_ledger(tmp_path: Path) -> tuple[list[Path], LogWriter, Path]:
    stores, writer, ledger = make(tmp_path)
    for store in stores:
        _noted(store, 0)
        shutil.copy(store / "epochFileCheckpoint", store / "epochFileCheckpoint.bak")
        for file in (FIRST, SECOND):
            (store / file).unlink()
    return stores, writer, ledger


@pytest.mark.parametrize("placed", [True, False], ids=["with places in the log", "without"])
def test_acknowledged_messages_in_what_was_taken_from_all_are_lost(placed: bool, tmp_path: Path) -> None:
    """Retention did not take them, so that they are not too old."""
    stores, writer, ledger = _group_and_ledger(tmp_path)
    gone = [row for row in writer.rows if int(str(row["phys_offset"])) < 2 * SEGMENT]
    if not placed:
        rows = ({name: value for name, value in row.items() if name != "phys_offset"} for row in writer.rows)
        ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run_local(stores, ledger)
    told = [f for f in report.findings if f.severity == "error"]
    assert {f.uniq_key for f in told} == {row["uniq_key"] for row in gone}
    assert {(f.kind, f.replica, f.copies) for f in told} == {("acked_missing", "*", 0)}
    assert (report.verdict, report.lost, report.expired) == ("diverged", len(gone), 0)
    assert sentence.of(report.verdict, report.windows).startswith(
        f"{len(gone)} acknowledged messages are lost"
    )
    textfile.write(tmp_path / "audit.prom", report)
    assert (
        f'keelmq_audit_lost_messages{{audit="audit"}} {len(gone)}.0' in (tmp_path / "audit.prom").read_text()
    )


def test_what_retention_took_before_is_too_old(tmp_path: Path) -> None:
    """Each log began with the second segment when its broker stopped, and the second was taken from all."""
    stores, writer, ledger = _group_and_ledger(tmp_path)
    for store in stores:
        _noted(store, SEGMENT)
    first = [row for row in writer.rows if int(str(row["phys_offset"])) < SEGMENT]
    second = [row for row in writer.rows if SEGMENT <= int(str(row["phys_offset"])) < 2 * SEGMENT]
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (len(second), len(first))


def test_what_one_replica_still_holds_is_not_lost(tmp_path: Path) -> None:
    stores, _, ledger = _group_and_ledger(tmp_path)
    for file in (FIRST, SECOND):
        shutil.copy(tmp_path / "origin" / file, stores[0] / file)
    report = run_local(stores, ledger)
    assert (report.verdict, report.lost, report.expired) == ("warnings", 0, 0)


def test_what_most_replicas_note_as_taken_by_retention_is_too_old(
    tmp_path: Path,
) -> None:
    """Two stopped after their retention, the third before its own; its oldest segment was removed by hand."""
    stores, writer, ledger = _group_and_ledger(tmp_path)
    for store in stores[:2]:
        _noted(store, 2 * SEGMENT)
    gone = [row for row in writer.rows if int(str(row["phys_offset"])) < 2 * SEGMENT]
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (0, len(gone))
    assert [f.replica for f in report.findings if f.kind == "missing_start"] == ["r2"]


@pytest.mark.parametrize("count", [2, 3])
def test_where_one_replica_began_late_says_nothing_of_what_was_taken_from_the_others(
    count: int, tmp_path: Path
) -> None:
    """It joined late, as with ``syncFromLastFile``. The others had all when they stopped."""
    stores, writer, ledger = _group_and_ledger(tmp_path)
    _noted(stores[count - 1], 2 * SEGMENT)
    gone = [row for row in writer.rows if int(str(row["phys_offset"])) < 2 * SEGMENT]
    report = run_local(stores[:count], ledger)
    assert (report.verdict, report.lost, report.expired) == ("diverged", len(gone), 0)


@pytest.mark.parametrize("placed", [True, False], ids=["with places in the log", "without"])
def test_what_lies_there_unreadable_retention_did_not_take(placed: bool, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path, 2)
    for store in stores:
        (store / "abort").touch()
    (stores[0] / FIRST).unlink()
    (stores[0] / FIRST).mkdir()
    (stores[1] / FIRST).unlink()
    if not placed:
        rows = ({name: value for name, value in row.items() if name != "phys_offset"} for row in writer.rows)
        ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    gone = [row for row in writer.rows if int(str(row["phys_offset"])) < SEGMENT]
    report = run_local(stores, ledger)
    assert (report.lost, report.expired, report.none_lost) == (len(gone), 0, False)


def test_what_is_older_than_an_unreadable_file_is_too_old(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path, 2)
    for store in stores:
        (store / "abort").touch()
        (store / FIRST).unlink()
    (stores[0] / SECOND).unlink()
    (stores[0] / SECOND).mkdir()
    (stores[1] / SECOND).unlink()
    first = [row for row in writer.rows if int(str(row["phys_offset"])) < SEGMENT]
    second = [row for row in writer.rows if SEGMENT <= int(str(row["phys_offset"])) < 2 * SEGMENT]
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (len(second), len(first))


def _behind(writer: LogWriter, stores: list[Path], n: int) -> tuple[int, list[dict[str, object]]]:
    """The first log was down since the message ``n``, the others expired their first segments since. What was
    acknowledged behind its end, and expired."""
    end = int(str(writer.rows[n]["phys_offset"]))
    cut(stores[0], end)
    for store in stores:
        (store / "abort").touch()
    write_checkpoint(stores[0], end)
    for store in stores[1:]:
        (store / FIRST).unlink()
    return end, [row for row in writer.rows if end <= int(str(row["phys_offset"])) < SEGMENT]


def test_by_a_log_that_ends_before_nothing_is_too_new_to_have_expired(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    _, between = _behind(writer, stores, 20)
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (0, len(between))


def test_but_where_it_reaches_nothing_expired(tmp_path: Path) -> None:
    """Its own record there is damaged: that was the last copy."""
    stores, writer, ledger = make(tmp_path)
    end, between = _behind(writer, stores, 20)
    at = int(str(writer.rows[10]["phys_offset"]))
    patch(stores[0], at, bytes(int(str(writer.rows[11]["phys_offset"])) - at))
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (1, len(between))
    assert end > at


def test_nor_where_it_lost_its_end(tmp_path: Path) -> None:
    """It confirmed more than it has: what it retained of that went with its end."""
    stores, writer, ledger = make(tmp_path)
    _, between = _behind(writer, stores, 20)
    write_checkpoint(stores[0], SEGMENT)
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (len(between), 0)


@pytest.mark.parametrize("segments", [1, 2])
def test_a_file_that_cannot_be_read_is_no_shorter_for_being_the_only_one(
    segments: int, tmp_path: Path
) -> None:
    stores, writer, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
    cut(stores[1], segments * SEGMENT)
    write_checkpoint(stores[1], SEGMENT - 96)
    for store in (stores[0], stores[2]):
        (store / FIRST).unlink()
    (stores[1] / FIRST).unlink()
    (stores[1] / FIRST).mkdir()
    gone = [row for row in writer.rows if int(str(row["phys_offset"])) < SEGMENT]
    report = run_local(stores, ledger)
    assert (report.lost, report.expired, report.none_lost) == (len(gone), 0, False)
    assert [(f.phys_offset, f.until) for f in report.findings if f.kind == "file_unreadable"] == [
        (0, SEGMENT)
    ]


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("emptied", [True, False])
def test_a_log_that_lost_all_lost_no_less_than_its_end(emptied: bool, noted: bool, tmp_path: Path) -> None:
    """Retention keeps the last file. Where the log began, its checkpoint may note."""
    stores, writer, ledger = make(tmp_path)
    for store in (stores[0], stores[2]):
        (store / "abort").touch()
        (store / FIRST).unlink()
        (store / SECOND).unlink()
    (stores[1] / "abort").touch()
    cut(stores[1], 2 * SEGMENT)
    write_checkpoint(stores[1], 2 * SEGMENT - 50)
    if noted:
        sealed(stores[1])
    (stores[1] / SECOND).unlink()
    if emptied:
        (stores[1] / FIRST).unlink()
    ends = [int(str(row["phys_offset"])) for row in writer.rows]
    first, second = sum(at < SEGMENT for at in ends), sum(SEGMENT <= at < 2 * SEGMENT for at in ends)
    report = run_local(stores, ledger)
    lost = second + (first if emptied and noted else 0)
    assert (report.lost, report.expired) == (lost, first if emptied and not noted else 0)


def test_a_new_log_lost_nothing(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    for store in stores:
        (store / "abort").touch()
    for store in stores[:2]:
        (store / FIRST).unlink()
    for file in (stores[2] / "commitlog").iterdir():
        file.unlink()
    (stores[2] / "checkpoint").unlink()
    write_epochs(stores[2], [(1, 0)])
    first = [row for row in writer.rows if int(str(row["phys_offset"])) < SEGMENT]
    report = run_local(stores, ledger)
    assert (report.lost, report.expired) == (0, len(first))
