"""The promise of the small files: an index agrees with its log, a table is as written, or this is said."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.reading.small.beside import look_beside
from audit.reading.storage import parse_stores
from audit.run import audit
from model.config import StoreConfig
from model.ids import PhysicalOffset
from runtime.os_env import OsDisk
from store.files.checkpoint import FILE_BYTES, Checkpoint
from store.offline.repair import repair
from tests.audit.plants import make_queued, run_local
from tests.audit.stores import copies, unpack

SLOTS = 500
ENTRIES_AT = 40 + 4 * SLOTS
OF_INDEX = {
    "hash": (ENTRIES_AT + 20 * 5 + 2, "index_wrong"),
    "offset": (ENTRIES_AT + 20 * 5 + 11, "index_wrong"),
    "seconds": (ENTRIES_AT + 20 * 5 + 15, "index_wrong"),
    "entry before": (ENTRIES_AT + 20 * 5 + 19, "index_wrong"),
    "a slot": (40 + 4 * 77 + 3, "index_wrong"),
    "begin time": (7, "index_wrong"),
    "end time": (15, "index_wrong"),
    "begin offset": (23, "index_wrong"),
    "end offset": (31, "index_wrong"),
    "slots in use": (35, "index_wrong"),
    "entry count": (39, "index_wrong"),
}
REAL = ["plain-11", "delay-31", "tx-41", "batch-21", "retry-51"]


def index_of(store: Path, at: int = 0) -> Path:
    return sorted((store / "index").iterdir())[at]


def change(path: Path, at: int, by: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= by
    path.write_bytes(raw)


def rows(findings: list[Finding]) -> set[tuple[str, str, str, str]]:
    return {(f.kind, f.severity, f.replica, f.segment) for f in findings if f.severity != "info"}


@pytest.mark.parametrize("name", REAL)
def test_the_real_brokers_index_and_tables_are_as_they_should_be(name: str, tmp_path: Path) -> None:
    store = unpack(name, tmp_path)
    kinds = {f.kind for f in run_local([store], None).findings}
    assert not {kind for kind in kinds if kind.startswith(("index_", "file_", "consumer_"))}


@pytest.mark.parametrize("what", OF_INDEX)
def test_each_field_of_an_index_is_looked_at(what: str, tmp_path: Path) -> None:
    store = unpack("plain-11", tmp_path)
    at, kind = OF_INDEX[what]
    change(index_of(store), at)
    (found,) = {row for row in rows(run_local([store], None).findings) if row[0] == kind}
    assert found == (kind, "warn", "plain-11", f"index/{index_of(store).name}")


def test_bytes_behind_the_last_entry_are_nobodys(tmp_path: Path) -> None:
    store = unpack("plain-11", tmp_path)
    change(index_of(store), -1)
    assert run_local([store], None).findings == []


def test_an_index_that_is_gone_is_missed_by_what_it_named(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    shutil.rmtree(stores[1] / "index")
    report = run_local(stores, None)
    assert rows(report.findings) == {("index_missing", "warn", "r1", "index")}
    assert (report.findings[0].records, report.verdict) == (360, "warnings")


def test_no_index_anywhere_is_no_fault(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    for store in stores:
        shutil.rmtree(store / "index")
    assert run_local(stores, None).findings == []


def test_a_running_brokers_index_may_end_early(tmp_path: Path) -> None:
    """The last entry was not written yet, nor counted in the header."""
    stores = copies(unpack("plain-11", tmp_path), 2)
    (stores[0] / "abort").touch()
    raw = bytearray(index_of(stores[0]).read_bytes())
    last = int.from_bytes(raw[36:40]) - 1
    entry = ENTRIES_AT + 20 * last
    slot = int.from_bytes(raw[entry : entry + 4]) % SLOTS
    raw[40 + 4 * slot : 44 + 4 * slot] = raw[entry + 16 : entry + 20]
    used = int.from_bytes(raw[32:36]) - (not any(raw[entry + 16 : entry + 20]))
    before = ENTRIES_AT + 20 * (last - 1)
    raw[24:32] = raw[before + 4 : before + 12]
    raw[32:40] = used.to_bytes(4, "big") + last.to_bytes(4, "big")
    raw[entry : entry + 20] = bytes(20)
    index_of(stores[0]).write_bytes(raw)
    raw[8:16] = (int.from_bytes(raw[:8]) + 1000 * int.from_bytes(raw[before + 12 : before + 16])).to_bytes(
        8, "big"
    )
    index_of(stores[0]).write_bytes(raw)
    assert run_local(stores, None).findings == []
    (stores[0] / "abort").unlink()
    assert [(f.kind, f.records) for f in run_local(stores, None).findings] == [("index_missing", 1)]


def test_a_running_brokers_index_may_be_ahead_of_the_logs_end(tmp_path: Path) -> None:
    """What came after the end was noted has its entries by the time that the file is read."""
    store = unpack("plain-11", tmp_path)
    raw = index_of(store).read_bytes()
    count = int.from_bytes(raw[36:40]) - 1
    offsets = [int.from_bytes(raw[at + 4 : at + 12]) for at in range(ENTRIES_AT + 20, len(raw), 20)][:count]
    end = sorted(set(offsets))[-3]
    segment = max(file for file in (store / "commitlog").iterdir() if int(file.name) <= end)
    log = segment.read_bytes()
    segment.write_bytes(log[: end - int(segment.name)].ljust(len(log), b"\0"))

    def kinds() -> set[str]:
        return {f.kind for f in run_local([store], None).findings if f.kind.startswith("index_")}

    assert kinds() == {"index_wrong"}, "nothing came after the end of a broker that was stopped"
    (store / "abort").touch()
    assert kinds() == set()
    change(index_of(store), *OF_INDEX["offset"][:1])
    assert "index_wrong" in kinds(), "entries before it name what the log has"


def test_a_table_that_is_no_json_is_named(tmp_path: Path) -> None:
    store = unpack("plain-11", tmp_path)
    table = store / "config" / "topics.json"
    table.write_text(table.read_text()[:-3])
    assert rows(run_local([store], None).findings) == {
        ("file_corrupt", "warn", "plain-11", "config/topics.json")
    }


def test_offsets_beyond_every_log_are_named(tmp_path: Path) -> None:
    stores = copies(unpack("retry-51", tmp_path), 2)
    table = stores[1] / "config" / "consumerOffset.json"
    assert look_beside(str(stores[1])).offsets["Vretry51_0", "Vretry51__grp", 3] == 6
    text, count = re.subn(r"(?<=0:)\d+", "4711", table.read_text(), count=1)
    assert count == 1
    table.write_text(text)
    (found,) = run_local(stores, None).findings
    assert (found.kind, found.replica, found.queue_offset) == ("consumer_offset_beyond", "r1", 4711)


def test_what_only_one_of_a_group_lacks_is_missing(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    (stores[0] / "config" / "consumerOffset.json").unlink()
    (stores[1] / "checkpoint").unlink()
    for name in ("consumerFilter.json", "consumerFilter.json.bak"):
        # No consumer with an expression came to r0: that table is each broker's own.
        (stores[0] / "config" / name).unlink()
    assert rows(run_local(stores, None).findings) == {
        ("file_missing", "warn", "r0", "config/consumerOffset.json"),
        ("file_missing", "warn", "r1", "checkpoint"),
    }
    for store in stores:
        (store / "abort").touch()
    assert rows(run_local(stores, None).findings) == set()


def test_a_checkpoint_is_missing_as_long_as_any_other_has_one(tmp_path: Path) -> None:
    """It alone tells that a log's oldest segments were not taken by retention."""
    stores = copies(unpack("plain-11", tmp_path))
    for store in stores[:2]:
        (store / "checkpoint").unlink()
    assert rows(run_local(stores, None).findings) == {
        ("file_missing", "warn", name, "checkpoint") for name in ("r0", "r1")
    }


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_both_engines_say_the_same_of_an_index(tmp_path: Path, engine: object) -> None:
    from audit.engines.spark import SparkEngine

    stores = copies(unpack("plain-11", tmp_path))
    for at, what in enumerate(("hash", "a slot", "begin time")):
        change(index_of(stores[at]), OF_INDEX[what][0])
    shutil.rmtree(stores[2] / "index")
    table = stores[0] / "config" / "consumerOffset.json"
    table.write_text('{"offsetTable":{"Vplain11_0@g":{0:30,1:4711}}}')
    assert isinstance(engine, SparkEngine)
    spark = audit(parse_stores([str(s) for s in stores]), engine)
    local = run_local(stores, None)
    assert local.findings == spark.findings
    assert {(f.kind, f.replica) for f in local.findings} >= {
        ("index_wrong", "r0"),
        ("index_wrong", "r1"),
        ("index_missing", "r2"),
        ("consumer_offset_beyond", "r0"),
    }


@pytest.mark.parametrize("stopped", [True, False])
def test_an_index_that_is_gone_everywhere_is_missed_by_what_each_store_noted(
    stopped: bool, tmp_path: Path
) -> None:
    """No other store has to tell: the checkpoint of each says up to where its index was durable."""
    stores = copies(unpack("plain-11", tmp_path))
    (half,) = {r.start + (r.end - r.start) // 2 for r in run_local(stores, None).replicas}
    for store in stores:
        shutil.rmtree(store / "index")
        (confirmed,) = struct.unpack_from(">q", (store / "checkpoint").read_bytes(), 32)
        noted = Checkpoint(1, 1, 1, confirm_offset=confirmed, indexed_offset=PhysicalOffset(half))
        (store / "checkpoint").write_bytes(noted.encode().ljust(FILE_BYTES, b"\0"))
        if not stopped:
            (store / "abort").touch()
    found = [f for f in run_local(stores, None).findings if f.kind == "index_missing"]
    assert [(f.severity, f.replica) for f in found] == [("warn", f"r{n}") for n in range(3) if stopped]
    assert all(f.phys_offset < f.until <= half + 1000 and 100 < f.records < 360 for f in found)


def _noted(store: Path, indexed: int) -> None:
    """What a stop of keelmq leaves."""
    (confirmed,) = struct.unpack_from(">q", (store / "checkpoint").read_bytes(), 32)
    noted = Checkpoint(1, 1, 1, confirm_offset=confirmed, indexed_offset=PhysicalOffset(indexed))
    (store / "checkpoint").write_bytes(noted.encode().ljust(FILE_BYTES, b"\0"))


@pytest.mark.parametrize("left", [True, False], ids=["its files are left", "they are gone"])
@pytest.mark.parametrize("end", [True, False], ids=["kept", "turned off"])
def test_of_a_broker_that_noted_that_it_keeps_no_index_none_is_missed(
    end: bool, left: bool, tmp_path: Path
) -> None:
    """``messageIndexEnable=false`` notes 0; one that keeps an index notes how far it came."""
    stores = copies(unpack("plain-11", tmp_path))
    _noted(stores[1], run_local(stores, None).replicas[1].end if end else 0)
    if not left:
        shutil.rmtree(stores[1] / "index")
    found = {(f.kind, f.replica) for f in run_local(stores, None).findings if f.kind.startswith("index_")}
    assert found == ({("index_missing", "r1")} if end and not left else set())


def test_what_is_left_of_an_index_that_was_turned_off_is_still_looked_at(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    _noted(stores[1], 0)
    change(index_of(stores[1]), OF_INDEX["hash"][0])
    assert ("index_wrong", "r1") in {(f.kind, f.replica) for f in run_local(stores, None).findings}


def _new_file(store: Path) -> Path:
    """A file behind the others of which nothing is flushed."""
    last = index_of(store, -1)
    new = last.with_name(f"{int(last.name) + 1000:017d}")
    new.write_bytes(bytes(last.stat().st_size))
    return new


def test_a_running_brokers_new_index_file_holds_nothing_until_it_is_flushed(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    new = [_new_file(stores[0]), _new_file(stores[0])]
    for store in stores:
        (store / "abort").touch()
    assert rows(run_local(stores, None).findings) == set()
    change(new[-1], ENTRIES_AT + 25)
    assert ("index_wrong", "warn", "r0", f"index/{new[-1].name}") in rows(run_local(stores, None).findings)


def test_a_stopped_brokers_index_file_is_flushed(tmp_path: Path) -> None:
    stores = copies(unpack("plain-11", tmp_path))
    new = _new_file(stores[0])
    assert rows(run_local(stores, None).findings) == {("index_wrong", "warn", "r0", f"index/{new.name}")}


def test_what_was_durable_by_the_checkpoint_is_missed_of_a_running_broker_too(tmp_path: Path) -> None:
    """Its only file is zeros, although its checkpoint says that the index was written."""
    stores = copies(unpack("plain-11", tmp_path))
    (end,) = {r.end for r in run_local(stores, None).replicas}
    for store in stores:
        (store / "abort").touch()
    path = index_of(stores[0])
    path.write_bytes(bytes(path.stat().st_size))
    assert rows(run_local(stores, None).findings) == set()
    _noted(stores[0], end)
    assert rows(run_local(stores, None).findings) == {("index_missing", "warn", "r0", f"index/{path.name}")}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("clean", [True, False])
def test_index_files_may_be_named_in_another_order_than_they_were_made(
    clean: bool, count: int, tmp_path: Path
) -> None:
    """Names are local time, and of the hour that comes twice the later half is named like the first."""
    stores = _in_files(tmp_path, count)
    if not clean:
        (stores[0] / "abort").touch()
    made = sorted((stores[0] / "index").iterdir())
    for shift in range(1, len(made)):
        _renamed(made, shift)
        assert run_local(stores, None).findings == []
        _renamed(made, -shift)


def test_of_index_files_in_another_order_each_is_still_looked_at(tmp_path: Path) -> None:
    stores = _in_files(tmp_path, 1)
    made = sorted((stores[0] / "index").iterdir())
    _renamed(made, 2)
    for path in made[1:-1]:
        raw = path.read_bytes()
        path.unlink()
        found = rows(run_local(stores, None).findings)
        assert {kind for kind, *_ in found} == {"index_missing"}
        path.write_bytes(raw)
    change(made[1], 23)
    assert "index_wrong" in {kind for kind, *_ in rows(run_local(stores, None).findings)}


def _in_files(tmp_path: Path, count: int) -> list[Path]:
    stores, _ = make_queued(tmp_path, count)
    config = StoreConfig(index_slots=16, index_entries=20)
    for store in stores:
        assert repair(OsDisk(), str(store), [], config=config).indexed
        assert len(list((store / "index").iterdir())) >= 4
    return stores


def _renamed(made: list[Path], by: int) -> None:
    """Each file gets the name of one further on."""
    held = [path.read_bytes() for path in made]
    for number, raw in enumerate(held):
        made[(number + by) % len(made)].write_bytes(raw)
