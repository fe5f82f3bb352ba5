"""The promise of change files: what they say counts, and their damage is told; a torn last line is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from audit.reading.derived.queue_files import look
from audit.reading.small.beside import look_beside
from audit.reading.small.last_writer import CONSUMER_OFFSETS
from broker.tables import change_file
from model.errors import DiskError
from model.ids import PhysicalOffset
from store.files.checkpoint import FILE_BYTES, Checkpoint
from store.files.sealed import seal
from tests.audit.plants import run_local
from tests.audit.stores import LogWriter

FILE = f"{CONSUMER_OFFSETS}.changes"
TABLE = {"offsetTable": {"T@g": {"0": 1}, "T@gone": {"0": 1}}}


def changes(*offsets: int, first: int = 4) -> bytes:
    lines = [{"offsetTable": {"T@g": {0: offset}}, "part": True} for offset in offsets]
    return b"".join(change_file.encode(first + at, line) for at, line in enumerate(lines))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    log = LogWriter(tmp_path / "store")
    log.fill(8)
    log.write_queues()
    marked = Checkpoint(1, 1, 1, confirm_offset=PhysicalOffset(log.end)).encode()
    (log.root / "checkpoint").write_bytes(marked.ljust(FILE_BYTES, b"\0"))
    write(log.root, CONSUMER_OFFSETS, TABLE, 3)
    return log.root


def write(store: Path, file: str, table: dict[str, Any], number: int | None) -> None:
    """Both copies of a table that has the changes up to a number."""
    told = table if number is None else {**table, change_file.UP_TO: number}
    for copy in (file, f"{file}.bak"):
        (store / copy).parent.mkdir(exist_ok=True)
        (store / copy).write_bytes(seal(json.dumps(told).encode()))


def told(store: Path) -> list[tuple[str, str, str]]:
    return [(f.kind, f.severity, f.segment) for f in run_local([store], None).findings]


def offset(store: Path) -> int:
    return look_beside(str(store)).offsets["T", "g", 0]


def test_offsets_are_those_of_the_table_and_its_changes(store: Path) -> None:
    dropped = change_file.encode(5, {"offsetTable": {"T@gone": {}}, "part": True})
    (store / FILE).write_bytes(changes(7, first=3) + changes(2) + dropped)
    assert look_beside(str(store)).offsets == {("T", "g", 0): 2}, "the table has change 3 already"
    assert told(store) == []


def test_an_offset_beyond_the_log_is_found_in_a_change(store: Path) -> None:
    (store / FILE).write_bytes(changes(2, 4711))
    assert told(store) == [("consumer_offset_beyond", "warn", CONSUMER_OFFSETS)]


def test_topics_are_those_of_the_table_and_its_changes(store: Path) -> None:
    topics = {"topicConfigTable": {"T": {"readQueueNums": 2}, "U": {"readQueueNums": 1}}}
    write(store, "config/topics.json", topics, 1)
    change = {"topicConfigTable": {"V": {"writeQueueNums": 3}}, "part": ["U", "V"]}
    (store / "config" / "topics.json.changes").write_bytes(change_file.encode(2, change))
    folder = look(str(store))
    assert folder is not None
    assert folder.queues_of == {"T": 2, "V": 3}


def test_a_last_line_that_a_crash_cut_short_is_no_damage(store: Path) -> None:
    line = len(changes(3))
    for cut in range(1, line):
        (store / FILE).write_bytes(changes(2, 3)[:-cut])
        found = look_beside(str(store))
        assert (found.problems, found.offsets["T", "g", 0]) == ({}, 2), cut
    assert told(store) == []


def test_a_last_line_of_which_a_block_never_came_is_no_damage(store: Path) -> None:
    long = change_file.encode(5, {"offsetTable": {"T@" + "h" * 2000: {0: 3}}, "part": True})
    raw = changes(2) + long
    (store / FILE).write_bytes(raw[:512] + bytes(512) + raw[1024:])
    assert told(store) == []
    assert offset(store) == 2
    (store / FILE).write_bytes(raw[:520] + bytes(500) + raw[1020:])
    assert told(store) == [("file_corrupt", "warn", FILE)]


def test_a_flipped_bit_anywhere_is_damage(store: Path) -> None:
    for at in range(len(changes(2, 3))):
        raw = bytearray(changes(2, 3))
        raw[at] ^= 1 << at % 7
        (store / FILE).write_bytes(raw)
        assert look_beside(str(store)).problems.keys() == {FILE}, at
    assert told(store) == [("file_corrupt", "warn", FILE)]


def test_the_last_lines_end_changed_is_damage(store: Path) -> None:
    (store / FILE).write_bytes(changes(2, 3)[:-1] + b"\x0b")
    assert told(store) == [("file_corrupt", "warn", FILE)]


@pytest.mark.parametrize(
    "raw", [changes(2) + changes(3), changes(2) + changes(3, first=6), changes(2, first=6), changes(2, 3)[9:]]
)
def test_a_line_twice_or_gone_is_damage(store: Path, raw: bytes) -> None:
    (store / FILE).write_bytes(raw)
    assert told(store) == [("file_corrupt", "warn", FILE)]


def test_a_number_that_only_the_table_counts_is_no_line_that_is_gone(store: Path) -> None:
    (store / FILE).write_bytes(changes(2, first=2) + changes(3))
    assert told(store) == []
    assert offset(store) == 3


def test_changes_of_a_table_that_knows_none_count_for_nothing(store: Path) -> None:
    """RocketMQ wrote the table since: keelmq's next start removes them."""
    (store / FILE).write_bytes(changes(4711)[5:])
    for copy in (CONSUMER_OFFSETS, f"{CONSUMER_OFFSETS}.bak"):
        (store / copy).write_text(json.dumps(TABLE))
    assert told(store) == []
    assert offset(store) == 1


def test_the_table_is_its_second_copy_when_the_first_was_changed(store: Path) -> None:
    (store / FILE).write_bytes(changes(2))
    raw = (store / CONSUMER_OFFSETS).read_bytes()
    (store / CONSUMER_OFFSETS).write_bytes(raw.replace(b'Changes": 3', b'Changes": 9'))
    assert offset(store) == 2
    assert told(store) == [("file_corrupt", "warn", CONSUMER_OFFSETS)]


@pytest.mark.parametrize("clean", [True, False])
def test_changes_without_a_table_are_told(store: Path, clean: bool) -> None:
    if not clean:
        (store / "abort").touch()
    (store / FILE).write_bytes(changes(2))
    for copy in (CONSUMER_OFFSETS, f"{CONSUMER_OFFSETS}.bak"):
        (store / copy).unlink()
    assert told(store) == [("file_missing", "warn", CONSUMER_OFFSETS)]


@pytest.mark.parametrize("raw", [changes(2, 3), changes(2, 3)[:-9], changes(2, first=3) + changes(3)])
def test_what_a_broker_reads_of_sound_changes_is_what_the_audit_reads(store: Path, raw: bytes) -> None:
    (store / FILE).write_bytes(raw)
    read, _, _ = change_file.read(raw, 3)
    assert offset(store) == int(read[-1]["offsetTable"]["T@g"]["0"])


def test_what_a_broker_refuses_is_damage_here(store: Path) -> None:
    raw = changes(2, 3, 4).replace(b'"T@g"', b'"U@h"', 1)
    with pytest.raises(DiskError):
        change_file.read(raw, 3)
    (store / FILE).write_bytes(raw)
    assert told(store) == [("file_corrupt", "warn", FILE)]
