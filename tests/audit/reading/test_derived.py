"""The promise of what RocketMQ makes of a log beside queues and index: it names what the log has, or this is
said."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.run import Report
from audit.tables import Engine
from tests.audit.derived_files import (
    BATCH_FILE,
    BATCHES,
    ENTRY_BYTES,
    EXTENSION_FILE,
    TIMER_FILE,
    UNIT_BYTES,
    WHEEL,
    add_batches,
    add_timers,
    extend,
)
from tests.audit.plants import run_local, run_with
from tests.audit.stores import LogWriter, copies, look, write_checkpoint, write_epochs

UNIT_OF_EXTENSION = 24
SLOT_OF_100_S = 100 % 60 * 32
FIELDS = {
    "a batch's offset": (BATCH_FILE, ENTRY_BYTES + 6, "cq_missing"),
    "its size": (BATCH_FILE, ENTRY_BYTES + 11, "cq_wrong"),
    "its tag": (BATCH_FILE, ENTRY_BYTES + 15, "cq_wrong"),
    "its time": (BATCH_FILE, ENTRY_BYTES + 27, "cq_wrong"),
    "its place": (BATCH_FILE, ENTRY_BYTES + 35, "cq_wrong"),
    "its places": (BATCH_FILE, ENTRY_BYTES + 37, "cq_wrong"),
    "a unit's size": (EXTENSION_FILE, 3 * UNIT_OF_EXTENSION + 1, "cq_wrong"),
    "a unit's tag": (EXTENSION_FILE, 3 * UNIT_OF_EXTENSION + 9, "cq_wrong"),
    "a unit's time": (EXTENSION_FILE, 3 * UNIT_OF_EXTENSION + 17, "cq_wrong"),
    "a unit's filter": (EXTENSION_FILE, 3 * UNIT_OF_EXTENSION + 19, "cq_wrong"),
    "a timer's size": (TIMER_FILE, UNIT_BYTES + 3, "timer_wrong"),
    "a timer's chain": (TIMER_FILE, UNIT_BYTES + 11, "timer_wrong"),
    "a timer's kind": (TIMER_FILE, UNIT_BYTES + 13, "timer_wrong"),
    "when a timer is due": (TIMER_FILE, UNIT_BYTES + 25, "timer_wrong"),
    "a timer's record": (TIMER_FILE, UNIT_BYTES + 34, "timer_wrong"),
    "a timer's record's size": (TIMER_FILE, UNIT_BYTES + 39, "timer_wrong"),
    "a slot's time": (WHEEL, SLOT_OF_100_S + 7, "timer_wrong"),
    "a slot's first": (WHEEL, SLOT_OF_100_S + 15, "timer_wrong"),
    "a slot's last": (WHEEL, SLOT_OF_100_S + 22, "timer_wrong"),
}
UNUSED = {"negative": b"\x80" + bytes(6) + b"\x64", "zero": bytes(8), "RocketMQ's -1": b"\xff" * 8}


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    log = LogWriter(tmp_path / "origin")
    for n in range(6):
        log.add(b"m" * 20, key=f"m{n}", stamp=1000 + n, tags=f"tag{n % 2}")
    log.write_queues()
    extend(log.root)
    end = add_timers([log.root], add_batches([log.root], log.end))
    log.confirm(end, [(1, 0)])
    return copies(log.root)


def change(store: Path, file: str, at: int, by: int = 1) -> None:
    raw = bytearray((store / file).read_bytes())
    raw[at] ^= by
    (store / file).write_bytes(raw)


def told(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.severity != "info"]


def test_what_follows_from_the_log_is_no_finding(stores: list[Path]) -> None:
    assert run_local(stores, None).findings == []


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_is_compared_with_the_log(field: str, stores: list[Path]) -> None:
    file, at, kind = FIELDS[field]
    change(stores[1], file, at)
    report = run_local(stores, None)
    assert kind in {f.kind for f in told(report)}
    files = {(f.replica, f.severity, f.segment) for f in told(report)}
    # What the unit says of its time, the slot that names it contradicts.
    assert files - {("r1", "warn", WHEEL)} == {("r1", "warn", file)} - {("r1", "warn", WHEEL)}


@pytest.mark.parametrize("time", UNUSED.values(), ids=UNUSED)
def test_a_slot_that_units_have_and_that_is_not_used_is_told(time: bytes, stores: list[Path]) -> None:
    raw = bytearray((stores[1] / WHEEL).read_bytes())
    assert raw[SLOT_OF_100_S : SLOT_OF_100_S + 8] == (100).to_bytes(8)
    raw[SLOT_OF_100_S : SLOT_OF_100_S + 8] = time
    (stores[1] / WHEEL).write_bytes(raw)
    (found,) = told(run_local(stores, None))
    assert (found.kind, found.replica, found.segment) == ("timer_wrong", "r1", WHEEL)
    assert found.found == "slot 40 is not used"


@pytest.mark.parametrize("gone", [WHEEL, "timerlog"])
def test_a_wheel_without_its_log_or_a_log_without_its_wheel_is_told(gone: str, stores: list[Path]) -> None:
    if gone == WHEEL:
        (stores[1] / WHEEL).unlink()
    else:
        shutil.rmtree(stores[1] / gone)
    (found,) = told(run_local(stores, None))
    assert (found.kind, found.replica, found.segment) == ("timer_wrong", "r1", gone)


def test_wheels_of_other_names_are_lawful(stores: list[Path]) -> None:
    for store in stores:
        (store / WHEEL).rename(store / f"{WHEEL}.312")
    assert told(run_local(stores, None)) == []


@pytest.mark.parametrize("n", range(BATCHES))
def test_an_entry_of_a_batch_that_is_zeros_is_missed(n: int, stores: list[Path]) -> None:
    raw = bytearray((stores[2] / BATCH_FILE).read_bytes())
    raw[n * ENTRY_BYTES : (n + 1) * ENTRY_BYTES] = bytes(ENTRY_BYTES)
    (stores[2] / BATCH_FILE).write_bytes(raw)
    (found,) = told(run_local(stores, None))
    assert (found.kind, found.replica, found.topic, found.queue_offset) == ("cq_missing", "r2", "B", 3 * n)


def test_a_batch_that_the_log_does_not_have_has_no_entry(stores: list[Path]) -> None:
    raw = bytearray((stores[2] / BATCH_FILE).read_bytes())
    raw[BATCHES * ENTRY_BYTES : (BATCHES + 1) * ENTRY_BYTES] = raw[:ENTRY_BYTES]
    raw[BATCHES * ENTRY_BYTES + 7] ^= 1
    (stores[2] / BATCH_FILE).write_bytes(raw)
    assert [f.kind for f in told(run_local(stores, None))] == ["cq_dangling"]
    for store in stores:
        write_epochs(store, [(1, 0), (2, int.from_bytes(look(store, 0, 4)))])
    assert told(run_local(stores, None)) == [], "RocketMQ leaves what was cut off behind the queue's end"


def test_an_extension_that_is_gone_is_missed(stores: list[Path]) -> None:
    (stores[0] / EXTENSION_FILE).unlink()
    assert {(f.kind, f.replica) for f in told(run_local(stores, None))} == {("cq_missing", "r0")}


def test_what_a_killed_broker_was_writing_is_no_finding(stores: list[Path]) -> None:
    """The last unit is half written, and the slots are of before; what was flushed counts."""
    (stores[1] / "abort").touch()
    raw = bytearray((stores[1] / TIMER_FILE).read_bytes())
    raw[UNIT_BYTES * 5 + 13] = 9
    (stores[1] / TIMER_FILE).write_bytes(raw)
    change(stores[1], WHEEL, SLOT_OF_100_S + 15)
    check = stores[1] / "config" / "timercheck"
    check.parent.mkdir(exist_ok=True)
    check.write_bytes((1).to_bytes(8) + (UNIT_BYTES * 5).to_bytes(8) + bytes(4096 - 16))
    assert told(run_local(stores, None)) == []
    check.write_bytes((1).to_bytes(8) + (UNIT_BYTES * 6).to_bytes(8) + bytes(4096 - 16))
    assert {f.kind for f in told(run_local(stores, None))} == {"timer_wrong"}


def test_records_that_retention_removed_are_not_asked_for(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "origin")
    end = add_timers([log.root], add_batches([log.root], log.add(b"first") + 200))
    assert end < 4096
    while log.end <= 4096:
        log.add(b"z" * 100, topic="Z")
    log.confirm(epochs=[(1, 0)])
    (log.root / "commitlog" / f"{0:020d}").unlink()
    assert {f.kind for f in told(run_local([log.root], None))} <= {"queue_gap"}


@pytest.mark.spark
def test_both_engines_say_the_same_of_what_is_made_of_a_log(engine: Engine, stores: list[Path]) -> None:
    for n, (file, at, _) in enumerate(FIELDS.values()):
        if n % 4 == 0:
            change(stores[n % 3], file, at)
    local = run_local(stores, None)
    assert local.findings == run_with(engine, stores, None).findings
    assert len(told(local)) > 3


@pytest.mark.parametrize("field", ["its size", "its tag", "its time", "its place", "its places"])
def test_a_wrong_entry_of_the_last_batch_is_told_in_a_log_of_several_epochs(
    field: str, stores: list[Path]
) -> None:
    """Also where nothing tells that the queue has to reach the log's end, as with a record behind it."""
    store = stores[1]
    raw = (store / BATCH_FILE).read_bytes()
    at, size = struct.unpack_from(">qi", raw, (BATCHES - 1) * ENTRY_BYTES)
    write_epochs(store, [(1, 0), (2, int.from_bytes(look(store, 0, 4)))])
    write_checkpoint(store, at + size)  # and what waits behind it was not confirmed
    assert told(run_local([store], None)) == []
    change(store, BATCH_FILE, (BATCHES - 2) * ENTRY_BYTES + FIELDS[field][1])
    assert [(f.kind, f.segment) for f in told(run_local([store], None))] == [("cq_wrong", BATCH_FILE)]
    write_checkpoint(store, at + size - 1)  # RocketMQ enters what is confirmed: it may be another batch's
    assert told(run_local([store], None)) == []


def test_an_entry_that_a_cut_left_behind_the_batchs_own_is_lawful(stores: list[Path]) -> None:
    for store in stores:
        write_epochs(store, [(1, 0), (2, int.from_bytes(look(store, 0, 4)))])
        raw = bytearray((store / BATCH_FILE).read_bytes())
        last = slice((BATCHES - 1) * ENTRY_BYTES, BATCHES * ENTRY_BYTES)
        raw[BATCHES * ENTRY_BYTES : (BATCHES + 1) * ENTRY_BYTES] = raw[last]
        raw[BATCHES * ENTRY_BYTES + 27] ^= 1  # the time of a batch that stood there before
        (store / BATCH_FILE).write_bytes(raw)
    assert told(run_local(stores, None)) == []
