"""The promise of the vote: what ledger or queues confirm is not outnumbered, nor is it to be overwritten."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from audit.reading.record import MAGIC_BLANK
from audit.results.repair import steps
from audit.run import Report
from tests.audit.plants import ledger_at, make, make_queued, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, look, patch, record, unpack


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
    file = f"commitlog/{_at(writer, 10) // SEGMENT * SEGMENT:020d}"
    mended = [(store.name, f"cp {stores[right]}/{file} {store}/{file}") for store in altered]
    assert _commands(report) == mended
    for _, command in mended:
        subprocess.run(command, shell=True, check=True)
    assert run_local(stores, ledger).findings == []


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


def _blank(stores: list[Path], begin: int) -> None:
    left = SEGMENT - begin % SEGMENT
    for store in stores:
        patch(store, begin, struct.pack(">iI", left, MAGIC_BLANK).ljust(left, b"\0"))


@pytest.mark.parametrize("queued", [True, False])
def test_queues_outweigh_two_segments_that_end_early(queued: bool, tmp_path: Path) -> None:
    """Records that two replicas lack are those that places skip there, and that their own queues name."""
    stores, _ = make_queued(tmp_path)
    size = int.from_bytes(look(stores[0], 0, 4))
    last = max(at for at in range(SEGMENT) if look(stores[0], at + 28, 8) == at.to_bytes(8))
    begin = last - 2 * size
    while look(stores[0], begin + 28, 8) != begin.to_bytes(8):
        begin += 1
    _blank(stores[1:], begin)
    if not queued:
        for store in stores:
            shutil.rmtree(store / "consumequeue")
            (store / "consumequeue").mkdir()
    report = run_local(stores, None)
    assert _differ(report) == [(f"r{n}", "error", 1, "what places of queues contradict") for n in (1, 2)]


def test_queue_entries_outweigh_two_copies_of_another_record(tmp_path: Path) -> None:
    """Of a queue of its own, so that no place is skipped or taken twice."""
    writer = LogWriter(tmp_path / "origin")
    for n in range(40):
        writer.add(f"m-{n}".encode() * 5, key=f"m{n}", topic="U" if n == 20 else "T", stamp=1000 + n)
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    stores = [tmp_path / f"r{n}" for n in range(3)]
    for store in stores:
        shutil.copytree(writer.root, store)
    at = _at(writer, 20)
    for store in stores[1:]:
        patch(store, at, record(at, 0, b"m-20" * 5, key="m20", topic="V", stamp=1020))
    report = run_local(stores, None)
    assert _differ(report) == [(f"r{n}", "error", 1, "what queue entries contradict") for n in (1, 2)]


def test_acknowledged_messages_outweigh_two_logs_that_end_otherwise(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    _blank(stores[1:], _at(writer, 77))
    report = run_local(stores, ledger_at(tmp_path, writer.rows))
    assert {f.replica for f in report.findings if f.kind == "divergent_suffix"} == {"r1", "r2"}


def test_the_index_outweighs_two_copies_with_another_key(tmp_path: Path) -> None:
    """A key is under no CRC, and no queue knows it."""
    stores = copies(unpack("plain-11", tmp_path))
    segment = sorted((stores[0] / "commitlog").iterdir())[0].name
    at = (stores[0] / "commitlog" / segment).read_bytes().index(b"UNIQ_KEY\x01") + len("UNIQ_KEY\x01") + 5
    for store in stores[1:]:
        with (store / "commitlog" / segment).open("r+b") as file:
            file.seek(at)
            file.write(b"#")
    assert _differ(run_local(stores, None)) == [
        (f"r{n}", "error", 1, "what the index contradicts") for n in (1, 2)
    ]


def test_damage_of_a_neighbour_is_no_evidence(tmp_path: Path) -> None:
    """The next record of the queue is damaged on two replicas: no places are skipped by that."""
    stores, writer, _ = make(tmp_path)
    at = _at(writer, 40)
    patch(stores[2], at + 41, bytes([look(stores[2], at + 41, 1)[0] ^ 4]))  # when it was born
    for store in stores[:2]:
        patch(store, _at(writer, 42) + 90, b"?")
    assert _differ(run_local(stores, None)) == [("r2", "error", 2, "")]
