"""The promise about names in ``commitlog``: what a file of a wrong name holds, or one of a name that leads to
nothing, no retention took; nobody is told to empty that store."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.reading.aside import find_own_ends, settle
from audit.reading.layout import load
from audit.reading.storage import LocalStorage, StoreSpec
from audit.reading.strays import belongs
from audit.results.steps.repair import steps
from audit.run import Report
from tests.audit.meanwhile import Meanwhile
from tests.audit.plants import make, make_queued, run_local, run_with
from tests.audit.sources import compressed
from tests.audit.stores import SEGMENT, LogWriter, expire, patch, write_epochs


def _first(store: Path) -> Path:
    return store / "commitlog" / f"{0:020d}"


def _renamed(store: Path) -> None:
    _first(store).rename(store / "commitlog" / f"{100:020d}")


def _cut_head(store: Path) -> None:
    """Its first records are zeros: any record tells."""
    raw = _first(store).read_bytes()
    _first(store).write_bytes(bytes(600) + raw[600:])
    _renamed(store)


def _behind(store: Path, head: int, byte: bytes) -> None:
    """Under the name of a segment behind the log's end, its first bytes torn."""
    raw = _first(store).read_bytes()
    _first(store).unlink()
    (store / "commitlog" / f"{9 * SEGMENT:020d}").write_bytes(byte * head + raw[head:])


def _over(store: Path, base: int) -> None:
    _first(store).rename(store / "commitlog" / f"{base:020d}")


def _unmounted(store: Path) -> None:
    _first(store).unlink()
    _first(store).symlink_to(store / "not" / "there")


def _as_old(store: Path) -> None:
    _first(store).rename(store / "commitlog" / f"{0:020d}.old")


def _in_a_folder(store: Path) -> None:
    (store / "commitlog" / "kept").mkdir()
    _first(store).rename(store / "commitlog" / "kept" / f"{0:020d}")


def _compressed(store: Path) -> None:
    raw = _first(store).read_bytes()
    (store / "commitlog" / f"{0:020d}.bak.gz").write_bytes(compressed(raw, "gz"))
    _first(store).unlink()


def _compressed_beside_a_file(store: Path, suffix: str) -> None:
    """That has the name without the suffix: the next one, which was made ahead."""
    raw = _first(store).read_bytes()
    ahead = store / "commitlog" / f"{9 * SEGMENT:020d}"
    ahead.write_bytes(bytes(SEGMENT))
    ahead.with_name(f"{ahead.name}.{suffix}").write_bytes(compressed(raw, suffix))
    _first(store).unlink()


def _called_compressed(store: Path) -> None:
    _first(store).rename(store / "commitlog" / f"{0:020d}.old.zst")


def _cut_short(store: Path) -> None:
    raw = compressed(_first(store).read_bytes() + random.Random(1).randbytes(1 << 16), "gz")
    (store / "commitlog" / f"{0:020d}.old.gz").write_bytes(raw[: len(raw) // 2])
    _first(store).unlink()


HARMS: dict[str, Callable[[Path], None]] = {
    "renamed": _renamed,
    "renamed, with a torn head": _cut_head,
    "behind the end": partial(_behind, head=0, byte=b""),
    "behind the end, with a torn head": partial(_behind, head=8, byte=b"\xff"),
    "behind the end, without a size": partial(_behind, head=4, byte=b"\0"),
    "a link to nothing": _unmounted,
}
BESIDE: dict[str, Callable[[Path], None]] = {
    "as .old": _as_old,
    "in a folder": _in_a_folder,
    "compressed": _compressed,
    "compressed, beside a file": partial(_compressed_beside_a_file, suffix="gz"),
    "compressed otherwise, beside a file": partial(_compressed_beside_a_file, suffix="zst"),
    "compressed, and cut": _cut_short,
    "called compressed": _called_compressed,
}


def _group(
    root: Path, harmed: tuple[int, ...], harm: Callable[[Path], None]
) -> tuple[list[Path], LogWriter, Path]:
    """A running group; all that are not harmed deleted their first segment."""
    stores, writer, ledger = make(root)
    for at, store in enumerate(stores):
        (store / "abort").touch()
        harm(store) if at in harmed else _first(store).unlink()
    return stores, writer, ledger


def _of(report: Report, kind: str) -> list[Finding]:
    return [f for f in report.findings if f.kind == kind]


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("harmed", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("how", HARMS)
def test_what_a_name_still_stands_for_was_not_taken_by_retention(
    how: str, harmed: tuple[int, ...], placed: bool, tmp_path: Path
) -> None:
    stores, writer, ledger = _group(tmp_path, harmed, HARMS[how])
    if not placed:
        ledger.write_text(ledger.read_text().replace('"phys_offset"', '"place"'))
    report = run_local(stores, ledger)
    first = sum(int(str(row["phys_offset"])) < SEGMENT for row in writer.rows)
    assert (report.lost, report.expired, report.none_lost) == (first, 0, False)
    kind = "file_unreadable" if how == "a link to nothing" else "file_corrupt"
    assert {f.replica for f in _of(report, kind)} == {f"r{at}" for at in harmed}
    assert report.verdict == "diverged"


@pytest.mark.parametrize("harmed", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("how", BESIDE)
def test_of_a_name_that_is_no_segments_nobody_knows_whether_it_was_renamed_or_copied(
    how: str, harmed: tuple[int, ...], tmp_path: Path
) -> None:
    """A copy that somebody made says nothing of retention: nothing is lost by it, and it is never clean."""
    stores, writer, ledger = _group(tmp_path, harmed, BESIDE[how])
    report = run_local(stores, ledger)
    first = sum(int(str(row["phys_offset"])) < SEGMENT for row in writer.rows)
    assert (report.verdict, report.lost, report.expired, report.none_lost) == ("warnings", 0, first, False)
    assert [(f.kind, f.replica) for f in report.findings] == [("file_corrupt", f"r{at}") for at in harmed]


def test_the_step_of_what_is_lost_leads_to_the_file_that_holds_it(tmp_path: Path) -> None:
    """That file's stands above it, and both before what is worse and holds nothing."""
    stores, writer, ledger = _group(tmp_path, (1,), _renamed)
    patch(stores[2], int(str(writer.rows[60]["phys_offset"])) + 88, b"#")
    report = run_local(stores, ledger)
    told = [(step.replica, step.why) for step in steps(report.findings, report.replicas)]
    assert [replica for replica, _ in told] == ["r1", "*", "r2"]
    assert "put it back under that name" in told[0][1]
    assert "that one's step comes first" in told[1][1]


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("harmed", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("base", [SEGMENT, 2 * SEGMENT, 9 * SEGMENT])
def test_what_was_moved_over_another_segment_was_not_taken_by_retention(
    base: int, harmed: tuple[int, ...], placed: bool, tmp_path: Path
) -> None:
    """Nor does a step write over the only copy of it."""
    stores, writer, ledger = _group(tmp_path, harmed, partial(_over, base=base))
    if not placed:
        ledger.write_text(ledger.read_text().replace('"phys_offset"', '"place"'))
    report = run_local(stores, ledger)
    gone = {0, base} if len(harmed) == 3 else {0}
    lines = sum(int(str(row["phys_offset"])) // SEGMENT * SEGMENT in gone for row in writer.rows)
    assert (report.verdict, report.expired) == ("diverged", 0)
    assert (report.lost, report.none_lost) == (lines, False)
    assert {f.replica for f in _of(report, "file_corrupt")} == {f"r{at}" for at in harmed}
    assert [step.command for step in steps(report.findings, report.replicas) if step.command] == []


@pytest.mark.parametrize("ledger", [True, False])
@pytest.mark.parametrize("how", HARMS | BESIDE)
def test_no_step_empties_a_store_with_such_a_name(how: str, ledger: bool, tmp_path: Path) -> None:
    stores, writer, path = _group(tmp_path, (1,), (HARMS | BESIDE)[how])
    write_epochs(stores[1], [(1, 0), (2, int(str(writer.rows[40]["phys_offset"])))])
    report = run_local(stores, path if ledger else None)
    assert [f.replica for f in _of(report, "epoch_mismatch")] == ["r1"]
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert any("Keep this store" in why for why in told)
    assert not any("empty store" in why for why in told)


@pytest.mark.parametrize("raw", [b"", bytes(SEGMENT), b"no record" * 400])
def test_a_stray_name_without_a_record_holds_no_message(raw: bytes, tmp_path: Path) -> None:
    """Nor does a copy of a segment that is there. What retention took is too old, whatever lies beside."""
    stores, writer, ledger = _group(tmp_path, (), _renamed)
    (stores[1] / "commitlog" / f"{100:020d}").write_bytes(raw)
    second = (stores[1] / "commitlog" / f"{SEGMENT:020d}").read_bytes()
    (stores[1] / "commitlog" / f"{101:020d}").write_bytes(second)
    report = run_local(stores, ledger)
    first = sum(int(str(row["phys_offset"])) < SEGMENT for row in writer.rows)
    assert (report.lost, report.expired, report.none_lost) == (0, first, True)


def test_another_name_without_a_record_that_the_log_lacks_is_no_finding(tmp_path: Path) -> None:
    """Nor is a file looked at further than a segment is long."""
    stores, writer, ledger = _group(tmp_path, (), _renamed)
    log = stores[1] / "commitlog"
    first = (writer.root / "commitlog" / f"{0:020d}").read_bytes()
    (log / "notes.txt").write_bytes(b"no record" * 400)
    (log / "empty").mkdir()
    (log / "gone.bak").symlink_to(log / "nowhere")
    (log / f"{SEGMENT:020d}.bak").write_bytes((log / f"{SEGMENT:020d}").read_bytes())
    (log / "long.bak").write_bytes(bytes(SEGMENT) + first)
    report = run_local(stores, ledger)
    lines = sum(int(str(row["phys_offset"])) < SEGMENT for row in writer.rows)
    assert (report.findings, report.lost, report.expired) == ([], 0, lines)


@pytest.mark.parametrize("emptied", [True, False])
def test_a_shortened_copy_beside_a_log_is_found_by_the_others_size(emptied: bool, tmp_path: Path) -> None:
    """Also where the log has no segment that would tell how long one is."""
    stores, _ = make_queued(tmp_path)
    second = (stores[1] / "commitlog" / f"{SEGMENT:020d}").read_bytes()
    for store in stores:
        (store / "abort").touch()
        expire(store, 2 * SEGMENT)
    if emptied:
        (stores[1] / "commitlog" / f"{2 * SEGMENT:020d}").unlink()
    (stores[1] / "commitlog" / f"{SEGMENT:020d}.bak").write_bytes(second[:3000])
    report = run_local(stores, None)
    assert [(f.replica, f.segment, f.found) for f in _of(report, "file_corrupt")] == [
        ("r1", f"commitlog/{SEGMENT:020d}.bak", f"records of {SEGMENT:020d}")
    ]


def test_a_file_that_is_longer_than_any_segment_is_looked_at_as_far_as_one_is_long(tmp_path: Path) -> None:
    """As one into which somebody put several segments."""
    stores, _, ledger = _group(tmp_path, (1,), _as_old)
    old = stores[1] / "commitlog" / f"{0:020d}.old"
    os.truncate(old, 3 << 30)
    report = run_local(stores, ledger)
    assert [(f.replica, f.segment, f.found) for f in _of(report, "file_corrupt")] == [
        ("r1", f"commitlog/{0:020d}.old", f"records of {0:020d}")
    ]


def _many_names(log: Path) -> None:
    for n in range(1000):
        (log / f"{n:04d}.txt").touch()


def _much_to_read(log: Path) -> None:
    (log / "0000.txt").write_bytes(b"no record" * 400)


def _much_under_strange_numbers(log: Path) -> None:
    (log / f"{101:020d}").write_bytes(b"no record" * 400)


@pytest.mark.parametrize("much", [_many_names, _much_to_read, _much_under_strange_numbers])
def test_what_nobody_looked_at_is_never_clean(
    much: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is such a store emptied: what is in those files may be the only copy. Their step comes first."""
    if much is not _many_names:
        monkeypatch.setattr("audit.reading.strays.OTHERS_BYTES_MAX", 1000)
    stores, _, ledger = _group(tmp_path, (), _renamed)
    log = stores[1] / "commitlog"
    name = f"{103:020d}" if much is _much_under_strange_numbers else "zz.bak"
    much(log)
    before = run_local(stores, ledger)
    assert "files_unseen" not in {f.kind for f in before.findings}
    (log / name).write_bytes((tmp_path / "origin" / "commitlog" / f"{0:020d}").read_bytes())
    write_epochs(stores[1], [(1, 0), (2, 5000)])
    report = run_local(stores, ledger)
    assert [(f.severity, f.replica, f.segment) for f in _of(report, "files_unseen")] == [
        ("warn", "r1", "commitlog")
    ]
    assert (report.lost, report.none_lost) == (0, False)
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "r1"]
    assert told[0] == "Move what is no segment out of commitlog, keep it, and audit again."
    assert any("Keep this store" in why for why in told)


def test_of_a_sound_segment_a_records_head_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [store], _, _ = make(tmp_path, 1)
    replica = load(StoreSpec("r0", str(store)))
    find_own_ends([replica])
    read, asked = LocalStorage.read, list[int]()

    def counted(self: LocalStorage, path: str, offset: int, size: int) -> bytes:
        asked.append(size)
        return read(self, path, offset, size)

    monkeypatch.setattr("audit.reading.aside.find_own_ends", lambda replicas: None)
    monkeypatch.setattr(LocalStorage, "read", counted)
    settle([replica])
    assert asked == [36] * len(replica.segments)


def test_what_a_window_cuts_is_found_and_each_byte_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.reading.records.search.WINDOW_BYTES", 512)
    _, writer, _ = make(tmp_path)
    raw = _first(writer.root).read_bytes()
    first = int.from_bytes(raw[:4])
    (writer.root / "some").write_bytes(bytes(450) + raw[450 : 512 + first])
    asked = []

    class Storage(LocalStorage):
        def read(self, path: str, offset: int, size: int) -> bytes:
            asked.append((offset, size))
            return super().read(path, offset, size)

    assert belongs(Storage(str(writer.root)), "some", SEGMENT) == (0, SEGMENT)
    assert asked == [(0, 512), (512, 512)]


@pytest.mark.parametrize("step", ["digests", "scan", "scanned"])
def test_a_disk_that_goes_while_it_is_read_is_no_retention(step: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        (store / "abort").touch()
    disk = tmp_path / "disk"
    disk.mkdir()
    _first(stores[1]).rename(disk / "0")
    _first(stores[1]).symlink_to(disk / "0")
    for at in (0, 2):
        _first(stores[at]).unlink()
    away = Meanwhile(step, lambda: disk.exists() and disk.rename(tmp_path / "away"))
    report = run_with(away, stores, ledger)
    assert report.expired == 0
    if step != "scanned":  # what was read before is judged
        assert [(f.replica, f.phys_offset) for f in _of(report, "file_unreadable")] == [("r1", 0)]
