"""The promise of the verdict: no clean one over a broken group, no alarm over a sound one."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from audit.ledgers.ledger import read_ledger
from audit.reading.storage import parse_stores
from model.errors import ConfigError
from tests.audit.plants import (
    PLANTS,
    delayed_across_retention,
    ledger_at,
    make,
    run_local,
    topic_created_again,
)
from tests.audit.stores import LogWriter, copies, enter, look, patch, record


def wipe(store: Path, *, zeroed: bool) -> None:
    """Lose every record, and what else tells of them; the files may stay."""
    for segment in (store / "commitlog").iterdir():
        if zeroed:
            segment.write_bytes(bytes(segment.stat().st_size))
        else:
            segment.unlink()


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_logs_without_a_record_lack_all_that_was_acknowledged(
    zeroed: bool, count: int, tmp_path: Path
) -> None:
    stores, writer, ledger = make(tmp_path)
    for store in stores:
        wipe(store, zeroed=zeroed)
        (store / "checkpoint").unlink()
    report = run_local(stores[:count], ledger)
    assert report.verdict == "diverged"
    assert {f.kind for f in report.findings} == {"acked_missing"}
    assert len(report.findings) == len(writer.rows)
    report = run_local(stores[:count], None)  # a group that begins, or one that lost all
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("short_tail", "warn", "*")]
    assert report.verdict == "warnings"


def test_a_log_without_a_record_that_was_confirmed_beyond_lost_its_end(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    for store in stores:
        wipe(store, zeroed=True)
    report = run_local(stores, None)
    assert [(f.kind, f.severity) for f in report.findings] == [("short_tail", "error")] * 3


def test_an_empty_log_of_a_later_epoch_hides_nothing_of_the_others(tmp_path: Path) -> None:
    """Its file begins where a later epoch does; the others are damaged and were never asked."""
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == "removed message").do(stores, writer)
    shutil.rmtree(stores[2] / "commitlog")
    (stores[2] / "commitlog").mkdir()
    (stores[2] / "commitlog" / f"{4096 * 4:020d}").write_bytes(bytes(4096))
    (stores[2] / "checkpoint").unlink()
    epochs = stores[2] / "epochFileCheckpoint"
    epochs.write_text("2\n0\n1-0\n5-16000\n")
    report = run_local(stores, ledger)
    assert report.reference in ("r0", "r1")
    assert "acked_missing" in {f.kind for f in report.findings if f.severity == "error"}


@pytest.mark.parametrize("way", ["again", "link", "url"])
def test_two_ways_to_one_store_are_not_two_replicas(way: str, tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    (tmp_path / "link").symlink_to(stores[0])
    other = {"again": f"b={stores[0]}", "link": str(tmp_path / "link"), "url": f"b=file://{stores[0]}"}[way]
    with pytest.raises(ConfigError, match="given twice"):
        parse_stores([f"a={stores[0]}", other])


@pytest.mark.parametrize("count", [1, 5])
def test_a_topic_created_again_is_in_order(count: int, tmp_path: Path) -> None:
    """RocketMQ begins its queues at 0 again, and their files with them."""
    report = run_local(*topic_created_again(tmp_path, count))
    assert (report.verdict, report.findings) == ("clean", [])


def test_a_topic_that_was_deleted_at_last_is_in_order_too(tmp_path: Path) -> None:
    stores, ledger = topic_created_again(tmp_path, 5, entered=False)
    (stores[1] / "config").mkdir()
    (stores[1] / "config" / "topics.json").write_text('{"topicConfigTable":{"X":{"readQueueNums":1}}}')
    report = run_local(stores, ledger)
    assert (report.verdict, report.findings) == ("clean", [])


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("queue_known", [False, True])
@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_queue_that_begins_again_without_its_topic_is_in_doubt(
    with_ledger: bool, queue_known: bool, count: int, tmp_path: Path
) -> None:
    """Its files know the first messages, or nothing does: then places were given twice."""
    stores, ledger = topic_created_again(tmp_path, count, entered=False)
    if queue_known:
        for store in stores:
            for place, row in enumerate(read_ledger(str(ledger)).table().to_pylist()[:10]):
                at = row["phys_offset"]
                size = int.from_bytes(look(store, at, 4))
                enter(store, "T", 0, place, struct.pack(">qiq", at, size, 0))
    report = run_local(stores, ledger if with_ledger else None)
    assert report.verdict == "warnings"
    found = [f for f in report.findings if f.kind == "dup_queue_offset"]
    assert [(f.severity, f.queue_offset, f.records) for f in found] == [("warn", 0, count)]


@pytest.mark.parametrize("removed", [(0, 1, 2), (0,), ()])
def test_a_delayed_message_is_there_though_retention_took_where_it_waited(
    removed: tuple[int, ...], tmp_path: Path
) -> None:
    stores, ledger = delayed_across_retention(tmp_path, removed)
    report = run_local(stores, ledger)
    # Where retention took it everywhere, most of this ledger is gone: no clean verdict says anything then.
    rest = ("warnings", {"extra_tail", "acked_missing"}) if len(removed) == 3 else ("clean", {"extra_tail"})
    assert (report.verdict, {f.kind for f in report.findings}) == rest
    gone = [r for r in read_ledger(str(ledger)).table().to_pylist() if r["phys_offset"] < 4096]
    assert report.expired == (len(gone) if len(removed) == 3 else 0)


def test_a_copy_that_is_consumed_again_stands_for_no_acknowledged_message(tmp_path: Path) -> None:
    """Only the group that sent it back would read it; all others lost the message."""
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == "removed message").do(stores, writer)
    for store in stores:
        raw = record(writer.end, 0, b"m-40" * 5, key="m40", topic="%RETRY%group", stamp=3000)
        patch(store, writer.end, raw)
    report = run_local(stores, ledger)
    assert ("acked_mismatch", "error", "m40") in {(f.kind, f.severity, f.uniq_key) for f in report.findings}
    assert report.verdict == "diverged"


def test_a_running_log_that_ends_before_the_others_begin_was_compared_with_nothing(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    for store in stores[:2]:
        (store / "checkpoint").unlink()
        (store / "abort").touch()
    for segment in (4096, 8192):
        (stores[0] / "commitlog" / f"{segment:020d}").unlink()
    (stores[1] / "commitlog" / f"{0:020d}").unlink()
    report = run_local(stores[:2], None)
    assert [(f.kind, f.severity, f.replica) for f in report.findings] == [("short_tail", "warn", "r0")]


@pytest.mark.parametrize("flipped", [False, True])
def test_records_longer_than_a_window_are_read(flipped: bool, tmp_path: Path) -> None:
    """A broker whose file says maxMessageSize=16777216."""
    segment = 64 << 20
    writer = LogWriter(tmp_path / "origin", segment=segment)
    for n in range(3):
        writer.add(b"x" * 9_500_000, key=f"k{n}")
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root, 2)
    at = int(str(writer.rows[1]["phys_offset"]))
    if flipped:
        patch(stores[1], at + 9_000_000, b"?", segment)
    report = run_local(stores, ledger_at(tmp_path, writer.rows))
    assert report.records == (4 if flipped else 3)
    roots = [(f.kind, f.replica, f.phys_offset) for f in report.findings if not f.caused_by]
    assert roots == ([("crc_mismatch", "r1", at)] if flipped else [])
