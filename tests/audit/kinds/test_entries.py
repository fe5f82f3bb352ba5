"""The promise of audit.kinds.made.entries: queues agree with their log, or it is said where not."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from audit.findings import Finding
from audit.reading.storage import parse_stores
from audit.results.steps.repair import steps
from audit.run import audit
from audit.tables import Engine
from model.message import java_hash
from runtime.os_env import OsDisk
from store.offline.repair import repair
from store.offline.verify import verify
from tests.audit.parted import sealed
from tests.audit.plants import delayed, make_queued, run_local
from tests.audit.stores import (
    SEGMENT,
    LogWriter,
    copies,
    enter,
    look,
    patch,
    queue_file,
    record,
    unpack,
    write_epochs,
)

Damage = Callable[[Path], None]


def entry(store: Path, queue_id: int, place: int) -> tuple[int, int, int]:
    raw = queue_file(store, "T", queue_id, place).read_bytes()
    offset, size, tags = struct.unpack_from(">qiq", raw, place % 10 * 20)
    return offset, size, tags


def change(place: int, offset: int = 0, size: int = 0, tags: int = 0) -> Damage:
    def do(store: Path) -> None:
        was = entry(store, 1, place)
        raw = struct.pack(">qiq", was[0] + offset, was[1] + size, was[2] + tags)
        enter(store, "T", 1, place, raw)

    return do


def zeroed(store: Path) -> None:
    enter(store, "T", 1, 17, bytes(20))


def file_removed(store: Path) -> None:
    queue_file(store, "T", 1, 10).unlink()


def beyond(store: Path) -> None:
    """Entries of two records that the log does not reach."""
    for place in (40, 41):
        enter(store, "T", 1, place, struct.pack(">qiq", 1_000_000 + place * 200, 200, 0))


def queue_removed(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "T" / "1")


def end_removed(store: Path) -> None:
    for place in (37, 38, 39):
        enter(store, "T", 1, place, bytes(20))


def next_place(store: Path) -> None:
    """A whole, right entry of the queue's next record: the place before is read twice."""
    enter(store, "T", 1, 12, struct.pack(">qiq", *entry(store, 1, 13)))


BROKEN = {
    "offset": (change(12, offset=7), ("cq_wrong", 12, 1)),
    "offset of another record": (next_place, ("cq_wrong", 12, 1)),
    "offset below 0": (change(12, offset=-(1 << 40)), ("cq_wrong", 12, 1)),
    "size": (change(12, size=-1), ("cq_wrong", 12, 1)),
    "tag": (change(12, tags=1), ("cq_wrong", 12, 1)),
    "tag far below": (change(12, tags=-(1 << 62)), ("cq_wrong", 12, 1)),
    "first": (change(0, offset=1), ("cq_wrong", 0, 1)),
    "zeroed": (zeroed, ("cq_missing", 17, 1)),
    "a file removed": (file_removed, ("cq_missing", 10, 10)),
    "beyond the log": (beyond, ("cq_dangling", 40, 2)),
    "a queue removed": (queue_removed, ("cq_missing", 0, 40)),
    "its end removed": (end_removed, ("cq_missing", 37, 3)),
}


def rows(findings: list[Finding]) -> list[tuple[str, str, str, int, int, int]]:
    return [(f.kind, f.severity, f.replica, f.queue_id, f.queue_offset, f.records) for f in findings]


def of_queues(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.kind.startswith("cq_")]


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("broken", [0, 1])
def test_a_broken_queue_is_named_on_its_replica(name: str, broken: int, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    do, (kind, place, records) = BROKEN[name]
    do(stores[broken])
    for acked in (ledger, None):
        report = run_local(stores, acked)
        assert rows(report.findings) == [(kind, "warn", f"r{broken}", 1, place, records)]
        assert report.verdict == "warnings"


def test_what_a_row_says(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    offset, size, tags = entry(stores[2], 1, 12)
    change(12, tags=1)(stores[2])
    (f,) = run_local(stores, None).findings
    assert (f.phys_offset, f.until, f.uniq_key) == (offset, offset + size, "m25")
    assert f.expected == f"offset {offset} size {size} tag {tags}"
    assert f.found == f"offset {offset} size {size} tag {tags + 1}"
    assert tags == java_hash("tag1")


def test_sound_queues_are_clean(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    assert run_local(stores, ledger).findings == []
    assert run_local(stores[:1], ledger).findings == []


def test_a_running_brokers_queues_may_end_early_or_reach_behind_the_noted_end(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        (store / "abort").touch()
    end_removed(stores[1])
    beyond(stores[2])
    assert run_local(stores, ledger).findings == []


def border(store: Path, at: int) -> int:
    """Where the next record begins."""
    while look(store, at + 28, 8) != at.to_bytes(8):
        at += 1
    return at


def test_a_running_brokers_last_entries_are_right_where_there_are_any(tmp_path: Path) -> None:
    """Of a log that was cut something may be left there, of one that never was nothing."""
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        (store / "abort").touch()
    change(39, tags=1)(stores[1])
    assert rows(run_local(stores, ledger).findings) == [("cq_wrong", "warn", "r1", 1, 39, 1)]
    for store in stores:
        write_epochs(store, [(1, 0), (2, border(store, 100))])
    assert run_local(stores, ledger).findings == []


@pytest.mark.parametrize("name", ["a file removed", "zeroed", "tag", "a queue removed"])
def test_a_running_brokers_queues_are_judged_before_their_ends(name: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        (store / "abort").touch()
    do, (kind, place, records) = BROKEN[name]
    do(stores[1])
    report = run_local(stores, ledger)
    assert rows(report.findings) == [(kind, "warn", "r1", 1, place, records)]


def test_a_cut_logs_entries_may_be_left_over_at_the_ends_of_its_queues(tmp_path: Path) -> None:
    """RocketMQ cuts a former master's log and sets its queues' ends; the entries stay in the files."""
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        write_epochs(store, [(1, 0), (2, border(store, 8000))])
    beyond(stores[2])
    report = run_local(stores, ledger)
    assert rows(report.findings) == [("cq_dangling", "info", "r2", 1, 40, 2)]
    assert report.verdict == "clean"
    enter(stores[2], "T", 1, 12, bytes(20))
    assert run_local(stores, ledger).verdict == "warnings"


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("back", [1, 2, 5])
def test_an_entry_behind_its_queue_that_names_a_record_is_no_cuts_in_a_store_of_keelmq(
    back: int, gap: int, tmp_path: Path
) -> None:
    """keelmq takes the entries of what it cuts; in RocketMQ's files another record of their size may stand
    there now. What verify says of a store, an audit does not call clean."""
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        write_epochs(store, [(1, 0), (2, border(store, 8000))])
    enter(stores[1], "T", 1, 40 + gap, struct.pack(">qiq", *entry(stores[1], 1, 40 - back)))
    assert rows(run_local(stores, ledger).findings) == [("cq_dangling", "info", "r1", 1, 40 + gap, 1)]
    for store in stores:
        sealed(store, settled=entry(store, 1, 39)[0])
    report = run_local(stores, ledger)
    assert rows(report.findings) == [("cq_dangling", "warn", "r1", 1, 40 + gap, 1)]
    told = [row["kind"] for row in verify(OsDisk(), str(stores[1]))["damage"]]
    assert (report.verdict, told) == ("warnings", ["cq_wrong"])
    (step,) = steps(report.findings, report.replicas)
    assert step.command.startswith("keelmq store repair")
    assert not repair(OsDisk(), str(stores[1]), [str(stores[0]), str(stores[2])]).left
    assert run_local(stores, ledger).findings == []


def test_entries_of_what_retention_removed_are_no_fault(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    (stores[1] / "commitlog" / f"{0:020d}").unlink()
    queue_file(stores[1], "T", 1, 0).unlink()
    assert run_local(stores, ledger).findings == []


def test_what_was_not_confirmed_is_in_no_queue_yet(tmp_path: Path) -> None:
    """RocketMQ enters a record when it is confirmed, also when it stops."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(70)
    confirmed = writer.end
    writer.fill(10, mark="n")
    entered, writer.rows = writer.rows, writer.rows[:70]
    writer.write_queues()
    writer.rows = entered
    writer.confirm(confirmed, epochs=[(1, 0)])
    assert run_local(copies(writer.root, 2), None).findings == []


def _unknown(checkpoint: Path) -> None:
    raw = bytearray(checkpoint.read_bytes())
    raw[3] ^= 4
    checkpoint.write_bytes(raw)


@pytest.mark.parametrize("harm", [_unknown, Path.unlink])
@pytest.mark.parametrize("lost", [0, 3])
def test_where_nothing_says_what_was_confirmed_the_queues_do(
    lost: int, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """A running broker's log is more than a segment ahead of what it confirmed and entered. Entries that are
    gone before another queue's last one are missed."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    confirmed = writer.end
    writer.write_queues()
    writer.fill(60, mark="n")
    writer.confirm(confirmed, epochs=[(1, 0)])
    stores = copies(writer.root)
    for store in stores:
        sealed(store)
        (store / "abort").touch()
    assert run_local(stores, None).findings == []
    harm(stores[1] / "checkpoint")
    for place in range(10 - lost, 10):
        enter(stores[1], "T", 0, place, bytes(20))
    found = of_queues(run_local(stores, None).findings)
    assert rows(found) == ([("cq_missing", "warn", "r1", 0, 7, 3)] if lost else [])


@pytest.mark.parametrize("settled", [True, False])
def test_what_a_running_keelmq_confirmed_may_wait_for_its_entry(settled: bool, tmp_path: Path) -> None:
    """Its checkpoint tells up to where entries are on its disk; the log may go on for segments meanwhile."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20)
    entered = writer.end
    writer.write_queues()
    writer.fill(6, mark="c")
    confirmed = writer.end
    writer.fill(80, mark="n")
    writer.confirm(confirmed, epochs=[(1, 0)])
    assert writer.end > confirmed + SEGMENT
    stores = copies(writer.root)
    for store in stores:
        sealed(store, settled=entered)
        (store / "abort").touch()
    if not settled:  # an entry that was on the disk is gone
        enter(stores[1], "T", 0, 9, bytes(20))
    found = of_queues(run_local(stores, None).findings)
    assert rows(found) == ([] if settled else [("cq_missing", "warn", "r1", 0, 9, 1)])


def test_the_queues_of_a_topic_created_again_hold_only_its_new_messages(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "origin")
    writer.fill(20, queues=1)
    writer.forget()
    old = len(writer.rows)
    writer.fill(15, mark="n", queues=1, stamp=3000)
    writer.rows = writer.rows[old:]
    writer.write_queues()
    writer.confirm(epochs=[(1, 0)])
    assert run_local(copies(writer.root), None).findings == []


def test_of_two_records_of_one_place_either_may_be_entered(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    end = run_local(stores, None).replicas[0].end
    for at, store in enumerate(stores):
        raw = record(end, 5, b"new", key="new", queue_id=0, stamp=9000)
        patch(store, end, raw)
        if at == 1:
            enter(store, "T", 0, 5, struct.pack(">qiq", end, len(raw), 0))
    kinds = {f.kind for f in run_local(stores, None).findings}
    assert "dup_queue_offset" in kinds
    assert not any(kind.startswith("cq_") for kind in kinds)


def test_the_address_of_an_extension_is_no_tag(tmp_path: Path) -> None:
    """RocketMQ with ``enableConsumeQueueExt`` keeps the tag there; it has such addresses only then."""
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        change(12, tags=-(1 << 62))(store)
    (stores[0] / "consumequeue_ext").mkdir()
    report = run_local(stores, ledger)
    assert [(f.kind, f.replica) for f in report.findings] == [("cq_wrong", "r1"), ("cq_wrong", "r2")]


def test_a_delayed_messages_tag_is_when_it_is_due(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "origin")
    for n in range(3):
        writer.add(b"late", key=f"k{n}", topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
        writer.rows[-1]["tags_code"] = 1_700_000_000_000 + n
    writer.write_queues()
    writer.confirm(epochs=[(1, 0)])
    assert run_local(copies(writer.root), None).findings == []


@pytest.mark.parametrize(
    ("delays_ms", "odd"),
    [
        ([1000, 1000, 1000, 1007, 1000, 1000], [3]),
        ([1000, 1000, 1000, 5000, 5000], []),  # its broker has another delay from there on
        ([1000, 1000, 1000, 5000], []),
        ([1000, 5000, 5000, 5000], []),
        ([-1, 5000, 5000, 5000], [0]),
    ],
)
def test_a_delayed_message_that_is_due_otherwise_than_its_neighbours_is_wrong(
    delays_ms: list[int], odd: list[int], tmp_path: Path
) -> None:
    (found,) = copies(delayed(tmp_path / "origin", delays_ms), 1)
    report = run_local([found], None)
    assert [(f.kind, f.queue_offset) for f in report.findings] == [("cq_wrong", place) for place in odd]


def test_a_queue_that_topics_json_does_not_list_and_nobody_has_is_not_missed(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        shutil.rmtree(store / "consumequeue" / "T" / "1")
    assert run_local(stores, ledger).findings == []
    (stores[2] / "config").mkdir()
    (stores[2] / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": {"T": {"readQueueNums": 2, "writeQueueNums": 2}}})
    )
    assert rows(run_local(stores, ledger).findings) == [("cq_missing", "warn", "r2", 1, 0, 40)]


def test_a_damaged_record_explains_the_entry_that_names_it(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    offset, size, _ = entry(stores[1], 1, 12)
    patch(stores[1], offset, bytes(size))
    report = run_local(stores, None)
    assert {(f.kind, f.replica) for f in report.findings if not f.caused_by} == {("unreadable_region", "r1")}
    assert ("cq_dangling", "r1") in {(f.kind, f.replica) for f in report.findings if f.caused_by}


@pytest.mark.parametrize("name", ["plain-11", "delay-31", "tx-41", "batch-21", "retry-51"])
def test_the_real_brokers_queues_agree_with_its_log(name: str, tmp_path: Path) -> None:
    """And each changed entry of a queue is named."""
    store = unpack(name, tmp_path)
    assert of_queues(run_local([store], None).findings) == []
    path = max((store / "consumequeue").rglob("0" * 20), key=lambda path: (path.parent.name, str(path)))
    raw = bytearray(path.read_bytes())
    raw[9] ^= 1  # of the first entry's size
    path.write_bytes(raw)
    (found,) = of_queues(run_local([store], None).findings)
    assert (found.kind, found.topic, found.queue_id, found.queue_offset) == (
        "cq_wrong",
        path.parent.parent.name,
        int(path.parent.name),
        0,
    )


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_both_engines_name_the_same_entries(tmp_path: Path, engine: object) -> None:
    from audit.engines.spark import SparkEngine

    assert isinstance(engine, SparkEngine)
    stores, ledger = make_queued(tmp_path)
    for at, names in enumerate(
        (["offset", "zeroed"], ["its end removed", "a file removed"], ["size", "beyond the log"])
    ):
        for name in reversed(names):
            BROKEN[name][0](stores[at])
    shutil.rmtree(stores[0] / "consumequeue" / "T" / "0")
    spark = audit(parse_stores([str(s) for s in stores]), engine, ledger_path=str(ledger))
    local = run_local(stores, ledger)
    assert local.findings == spark.findings
    assert {(f.kind, f.replica) for f in local.findings} == {
        ("cq_wrong", "r0"),
        ("cq_missing", "r0"),
        ("cq_missing", "r1"),
        ("cq_wrong", "r2"),
        ("cq_dangling", "r2"),
    }


def test_an_entry_of_a_light_queue_stands_in_for_none_of_the_records_own(tmp_path: Path) -> None:
    """It names the record, too, and the queue's own entry could be missing."""
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        enter(store, "%LMQ%x", 0, 0, struct.pack(">qiq", *entry(store, 1, 17)))
    assert of_queues(run_local(stores, ledger).findings) == []
    zeroed(stores[1])
    (found,) = of_queues(run_local(stores, ledger).findings)
    assert (found.kind, found.queue_id, found.queue_offset) == ("cq_missing", 1, 17)


@pytest.mark.more  # The local engine looks at it in every run (the real broker's queues, above).
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_both_engines_name_the_same_entries_of_the_real_broker(tmp_path: Path, engine: Engine) -> None:
    store = unpack("tx-41", tmp_path)
    assert of_queues(audit(parse_stores([str(store)]), engine).findings) == []


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_both_engines_name_the_same_entries_where_there_are_none_and_spark_collects_runs(
    tmp_path: Path, engine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut where a wrong entry names a record, where a damaged record explains it, and every 17 places."""
    from audit.engines.spark import SparkEngine, SparkLog

    assert isinstance(engine, SparkEngine)
    stores, ledger = make_queued(tmp_path)
    wrong, (at, size, _) = entry(stores[1], 1, 12), entry(stores[1], 1, 20)
    for path in (stores[1] / "consumequeue").rglob("0*0"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    enter(stores[1], "T", 1, 12, struct.pack(">qiq", wrong[0], wrong[1] + 1, wrong[2]))
    patch(stores[1], at + size - 2, b"\xff")
    given, collected = SparkLog.entered, []

    def entered(log: SparkLog, *asked: Any) -> Any:
        told = given(log, *asked)
        collected.append(told.unentered)
        return told

    monkeypatch.setattr(SparkLog, "entered", entered)
    monkeypatch.setattr("audit.engines.on_spark.entries.STRETCH_PLACES", 17)
    report = audit(parse_stores([*map(str, stores)]), engine, ledger_path=str(ledger))
    assert report.findings == run_local(stores, ledger).findings
    assert any(f.kind == "cq_missing" and f.caused_by for f in report.findings)
    (rows,) = [table for table in collected if len(table)]
    assert (sum(rows["records"].to_pylist()), len(rows) < 16) == (80, True), rows.to_pylist()
