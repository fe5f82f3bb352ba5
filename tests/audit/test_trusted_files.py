"""The promise of incremental audits: what is trusted of a replica was read on that replica."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.engines.local import LocalEngine
from audit.engines.relate import LocalLog
from audit.reading.derived.index_files import IndexTask, key_hash
from tests.audit.plants import make_queued, run_local
from tests.audit.stores import SEGMENT, LogWriter, copies, enter, queue_file

SLOTS = 50
"""Of the index files made here."""


def queued(root: Path, count: int = 80) -> LogWriter:
    writer = LogWriter(root / "origin")
    for n in range(count):
        writer.add(f"m-{n}".encode() * 5, key=f"m{n}", queue_id=n % 2, stamp=1000 + n)
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    return writer


def indexed(root: Path, count: int) -> list[Path]:
    """Stores with index files of 30 records each."""
    writer = queued(root)
    (writer.root / "index").mkdir()
    for number, begin in enumerate(range(0, 80, 30)):
        rows = [(n, writer.rows[n]) for n in range(begin, min(begin + 30, 80))]
        slots, entries = [0] * SLOTS, [struct.pack(">iqii", 0, 0, 0, 0)]
        for at, (n, row) in enumerate(rows, 1):
            code = key_hash("T", str(row["uniq_key"]))
            entries.append(
                struct.pack(">iqii", code, row["phys_offset"], (n - rows[0][0]) // 1000, slots[code % SLOTS])
            )
            slots[code % SLOTS] = at
        ends = [1000 + rows[0][0], 1000 + rows[-1][0], rows[0][1]["phys_offset"], rows[-1][1]["phys_offset"]]
        used = sum(1 for slot in slots if slot)
        head = struct.pack(">qqqqii", *ends, used, len(entries))
        body = struct.pack(f">{SLOTS}i", *slots) + b"".join(entries)
        size = 40 + 4 * SLOTS + 20 * 31
        (writer.root / "index" / f"{20260101000000000 + number}").write_bytes(
            (head + body).ljust(size, b"\0")
        )
    return copies(writer.root, count)


def _zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _another_record(file: Path) -> None:
    raw = file.read_bytes()
    file.write_bytes(b"\0\0\0\0\0\0\0\x05" + raw[8:])


def _gone(file: Path) -> None:
    file.unlink()


def _queue_gone(file: Path) -> None:
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("harm", [_zeros, _another_record, _gone, _queue_gone])
@pytest.mark.parametrize("begin", [0, 20, 30])
def test_a_queue_file_that_changed_is_read_again(
    harm: Callable[[Path], None], begin: int, tmp_path: Path
) -> None:
    stores, _ = make_queued(tmp_path)
    state = tmp_path / "trusted.parquet"
    assert run_local(stores, None, state).verdict == "clean"
    harm(queue_file(stores[2], "T", 0, begin))
    full = run_local(stores, None)
    assert full.verdict == "warnings"
    for _ in range(2):
        assert run_local(stores, None, state).findings == full.findings


@pytest.mark.parametrize("away", [False, True])
def test_of_a_replica_that_comes_later_the_queues_are_read(away: bool, tmp_path: Path) -> None:
    """One that was not there, or could not be read, when the others' segments were found clean."""
    stores, _ = make_queued(tmp_path)
    state = tmp_path / "trusted.parquet"
    if away:
        run_local(stores, None, state)  # it was read once, before
        stores[2].rename(tmp_path / "away")
    for _ in range(2):
        first = run_local(stores if away else stores[:2], None, state)
    assert first.trust.border == 2 * SEGMENT
    if away:
        (tmp_path / "away").rename(stores[2])
    for begin in (0, 10):
        _zeros(queue_file(stores[2], "T", 0, begin))
    full = run_local(stores, None)
    for _ in range(2):
        assert run_local(stores, None, state).findings == full.findings != []


@pytest.mark.parametrize("lacked", ["the begin", "the end"])
def test_what_a_replica_did_not_hold_when_its_queues_were_read_is_read_when_it_does(
    lacked: str, tmp_path: Path
) -> None:
    """Another replica's segment of the same bytes was found clean, with that one's queues."""
    stores, _ = make_queued(tmp_path)
    state, away = tmp_path / "trusted.parquet", tmp_path / "away"
    file = stores[2] / "commitlog" / f"{0 if lacked == 'the begin' else SEGMENT:020d}"
    others = [later for later in file.parent.iterdir() if lacked == "the end" and later.name >= file.name]
    away.mkdir()
    for one in others or [file]:
        one.rename(away / one.name)
    for begin in (0, 10, 20, 30):
        _zeros(queue_file(stores[2], "T", 0, begin))
    for _ in range(2):
        run_local(stores, None, state)
    for one in list(away.iterdir()):
        one.rename(file.parent / one.name)
    full = run_local(stores, None)
    for _ in range(2):
        assert run_local(stores, None, state).findings == full.findings != []


def test_a_state_that_does_not_tell_of_queue_files_is_not_trusted(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    state = tmp_path / "trusted.parquet"
    borders = [run_local(stores, None, state).trust.border for _ in range(2)]
    (tmp_path / "trusted" / "files.parquet").unlink()
    borders += [run_local(stores, None, state).trust.border for _ in range(2)]
    assert borders == [0, 2 * SEGMENT] * 2


def test_queues_that_go_on_keep_the_trust_in_what_they_had(tmp_path: Path) -> None:
    """Each file's time changes; one is new; the oldest are gone with the segment that they named."""
    writer = queued(tmp_path)
    stores = copies(writer.root)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    for n in range(12):
        writer.add(b"more", key=f"more{n}", queue_id=n % 3, stamp=5000)
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    for store in stores:
        shutil.copytree(writer.root, store, dirs_exist_ok=True)
        (store / "commitlog" / f"{0:020d}").unlink()
        for queue_id in (0, 1):
            queue_file(store, "T", queue_id, 0).unlink()
    for file in (stores[1] / "consumequeue").rglob("0*"):
        os.utime(file, (4e9, 4e9))
    report = run_local(stores, None, state)
    assert (report.verdict, report.trust.border) == ("clean", 2 * SEGMENT)
    assert report.scan_bytes == writer.end - 2 * SEGMENT


def test_a_new_entry_that_names_what_is_trusted_is_looked_at(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    state = tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    enter(stores[1], "T", 7, 0, struct.pack(">qiq", 4096 + 5, 129, 0))
    full = run_local(stores, None)
    assert {f.kind for f in full.findings} == {"cq_dangling"}
    assert run_local(stores, None, state).findings == full.findings


def test_a_segment_whose_records_wait_for_their_queues_is_not_trusted_yet(tmp_path: Path) -> None:
    """A running broker enters records behind their append; whether it did has to be seen."""
    writer = queued(tmp_path)
    (writer.root / "abort").touch()
    stores = copies(writer.root, 1)
    state = tmp_path / "trusted.parquet"
    late = [row for row in writer.rows if int(str(row["phys_offset"])) >= writer.end - SEGMENT]
    assert SEGMENT < int(str(late[0]["phys_offset"])) < 2 * SEGMENT
    for row in late:
        enter(stores[0], "T", int(str(row["queue_id"])), int(str(row["queue_offset"])), bytes(20))
    assert run_local(stores, None, state).verdict == "clean"
    assert run_local(stores, None, state).trust.border == SEGMENT
    for n in range(60):
        writer.add(b"more" * 20, key=f"more{n}", queue_id=3, stamp=5000)
    writer.confirm(epochs=[(1, 0)])
    for folder in ("commitlog", "checkpoint"):
        source = writer.root / folder
        if source.is_dir():
            shutil.copytree(source, stores[0] / folder, dirs_exist_ok=True)
        else:
            shutil.copy(source, stores[0] / folder)
    full = run_local(stores, None)
    assert "cq_missing" in {f.kind for f in full.findings}
    assert run_local(stores, None, state).findings == full.findings


def test_an_index_file_is_read_again_only_where_it_was_not_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores of RocketMQ, whose first index file has records of trusted segments only."""
    stores, state = indexed(tmp_path, 3), tmp_path / "trusted.parquet"
    asked: list[int] = []
    ask = LocalEngine.index

    def counting(engine: LocalEngine, tasks: list[IndexTask]) -> object:
        asked.append(len(tasks))
        return ask(engine, tasks)

    monkeypatch.setattr(LocalEngine, "index", counting)
    for _ in range(2):
        report = run_local(stores[:2], None, state)
    assert report.trust.border >= 2 * SEGMENT
    assert asked[1] < asked[0]
    file = sorted((stores[2] / "index").iterdir())[0]
    raw = bytearray(file.read_bytes())
    raw[40 + 4 * SLOTS + 20 + 3] ^= 1  # the hash of the first entry
    for spoilt in (file, sorted((stores[1] / "index").iterdir())[0]):
        spoilt.write_bytes(raw)
        report, full = run_local(stores, None, state), run_local(stores, None)
        assert "index_wrong" in {f.kind for f in full.findings}
        assert report.findings == full.findings


def test_keys_of_many_segments_are_asked_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster each question looks through all that was read."""
    writer = queued(tmp_path, 400)
    stores = copies(writer.root, 1)
    asked: list[str] = []

    def counting(name: str) -> Callable[..., object]:
        ask = getattr(LocalLog, name)

        def counted(*told: object) -> object:
            asked.append(name)
            return ask(*told)

        return counted

    for name in ("keyed", "last_places"):
        monkeypatch.setattr(LocalLog, name, counting(name))
    report = run_local(stores, None, tmp_path / "a.parquet")
    assert asked == ["last_places", "keyed"]
    monkeypatch.setattr("audit.earlier.carried.KEYED_ROWS_MAX", 1)
    run_local(stores, None, tmp_path / "b.parquet")
    full = report.replicas[0].end // SEGMENT
    assert asked[2:] == ["last_places", *["keyed"] * full]
    kept = [{file.name for file in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2 * full + 2


def test_copies_of_what_is_trusted_are_counted_without_their_places_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stands in what is trusted and twice behind it is told once for each place."""
    monkeypatch.setattr("audit.rows.bounded.LISTED_MAX", 2)
    writer = queued(tmp_path)
    stores, state = copies(writer.root, 1), tmp_path / "trusted.parquet"
    run_local(stores, None, state)
    for n in (*range(8), *range(4)):
        writer.add(b"again", key=f"m{n}", queue_id=n % 2, stamp=5000)
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    shutil.copytree(writer.root, stores[0], dirs_exist_ok=True)
    report, full = run_local(stores, None, state), run_local(stores, None)
    assert report.trust.border == 2 * SEGMENT
    assert report.findings == full.findings
    assert sum(f.records for f in full.findings if f.kind == "dup_message") == 12
