"""The promise of a broker's own small notes: they are as they were written, or this is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from audit.reading.small import beside
from broker.membership.reboot import Noted
from broker.tables import change_file
from model.ids import Epoch, PhysicalOffset
from store.files.damage import DamagedRange, encode_ranges
from store.files.epoch_file import EpochEntry, encode
from tests.audit.plants import run_local
from tests.audit.stores import LogWriter, copies

CLASSIC = encode([EpochEntry(Epoch(1), PhysicalOffset(100))])
RANGES = encode_ranges(
    [
        DamagedRange(100, 300, "crc_mismatch", 17),
        DamagedRange(400, 500, "bytes_differ"),
        DamagedRange(600, 700, "bytes_differ", bytes_crc=1 << 31),
    ]
)
NOTES = {
    "epochFileCheckpoint.classic": CLASSIC,
    "epochFileCheckpoint.classic.bak": CLASSIC,
    "damagedRanges": RANGES,
    "logWasLonger": b"100",
}
CHANGED = {
    "epochFileCheckpoint.classic": CLASSIC.replace(b"1-100", b"1-101"),
    "epochFileCheckpoint.classic.bak": CLASSIC.replace(b"1-100", b"1_100"),
    "damagedRanges": RANGES.replace(b"300", b"310"),
    "logWasLonger": b"1o0",
}


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    log = LogWriter(tmp_path / "origin")
    log.fill(12)
    log.write_queues()
    log.confirm(epochs=[(1, 0)])
    return copies(log.root)


def told(stores: list[Path]) -> list[tuple[str, str, str]]:
    return [(f.kind, f.severity, f.segment) for f in run_local(stores, None).findings]


def test_sound_notes_are_no_finding(stores: list[Path]) -> None:
    for name, raw in NOTES.items():
        (stores[1] / name).write_bytes(raw)
    (stores[1] / "reserve").write_bytes(b"nobody reads it")
    (stores[1] / "lock").write_bytes(b"lock")
    assert told(stores) == []


@pytest.mark.parametrize("name", NOTES)
def test_a_note_that_was_changed_is_named(name: str, stores: list[Path]) -> None:
    (stores[1] / name).write_bytes(CHANGED[name])
    assert told(stores) == [("file_corrupt", "warn", name)]


def test_two_entries_of_what_has_one_are_not_as_written(stores: list[Path]) -> None:
    entries = [EpochEntry(Epoch(n), PhysicalOffset(100 * n)) for n in (1, 2)]
    (stores[1] / "epochFileCheckpoint.classic").write_bytes(encode(entries))
    assert told(stores) == [("file_corrupt", "warn", "epochFileCheckpoint.classic")]


@pytest.mark.parametrize(("more", "found"), [(0, []), (1, ["short_tail"])])
def test_a_log_that_was_longer_by_its_own_note_lost_its_end(
    more: int, found: list[str], stores: list[Path]
) -> None:
    """All replicas end at one place, and no checkpoint says that any log went on."""
    end = run_local(stores, None).replicas[1].end
    (stores[1] / "logWasLonger").write_text(str(end + more))
    report = run_local(stores, None)
    assert [f.kind for f in report.findings] == found
    assert all((f.replica, f.phys_offset, f.until) == ("r1", end, end + more) for f in report.findings)


def test_what_a_broker_notes_of_its_boot_is_expected_member_by_member() -> None:
    assert {field.encode_name for field in msgspec.structs.fields(Noted)} == set(beside._BOOT)


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ('{"dataVersion":{"counter":0},"groupTopicMap":{},"offsetTable":{},"popsUpTo":0}', []),
        ('{"dataVersion":{"counter":0},"offsetTable":{"T@g":{"0":3}}}', ["config/consumerOffset.json"]),
    ],
)
def test_an_empty_table_and_none_are_the_same(table: str, found: list[str], stores: list[Path]) -> None:
    """A group that never had a consumer: its slaves wrote a table, its master none."""
    for store in stores[:2]:
        (store / "config").mkdir()
        (store / "config" / "consumerOffset.json").write_text(table)
    assert told(stores) == [("file_missing", "warn", file) for file in found]


def test_a_table_whose_rows_are_in_its_changes_is_not_empty(stores: list[Path]) -> None:
    for store in stores[:2]:
        (store / "config").mkdir()
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{},"keelmqChanges":0}')
        change = change_file.encode(1, {"offsetTable": {"T@g": {0: 3}}, "part": True})
        (store / "config" / "consumerOffset.json.changes").write_bytes(change)
    assert [row for row in told(stores) if row[0] == "file_missing"] == [
        ("file_missing", "warn", "config/consumerOffset.json")
    ]
