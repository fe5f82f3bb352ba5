"""The promise of audit.reading.layout: a log ends where the real broker finds its end, on its own files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from audit.reading import live
from audit.reading.layout import load
from audit.reading.log_ends import find_ends
from audit.reading.small.epoch_lines import parse_epochs
from audit.reading.storage import LocalStorage, StoreSpec, open_storage, parse_stores
from model.errors import ConfigError
from tests.audit.plants import run_local
from tests.audit.stores import (
    LogWriter,
    copies,
    found,
    patch,
    record,
    trio,
    unpack,
    write_epochs,
)


def test_a_store_that_one_may_not_read_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system is asked: root may read everything."""
    spec = StoreSpec("a", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no commitlog"):
        load(spec)

    def locked(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", locked)
    with pytest.raises(PermissionError):
        load(spec)


def test_the_ends_of_the_real_brokers_logs(tmp_path: Path) -> None:
    assert [r.end for r in found(*trio("ha-81", "after", tmp_path))] == [153177] * 3
    assert [r.end for r in found(*trio("ha-allack-91", "after", tmp_path))] == [199202] * 3


def test_a_killed_slave_ends_at_its_last_whole_record(tmp_path: Path) -> None:
    """Replication cuts records anywhere: half a record is no damage."""
    b0, b1, b2 = found(*trio("ha-81", "before", tmp_path))
    assert (b0.end, b0.torn) == (152395, (152395, 152937))
    assert (b1.end, b1.torn) == (222848, None)
    assert not b2.clean


def test_left_overs_of_a_truncated_log_are_not_its_log(tmp_path: Path) -> None:
    """b1 of the trio had 222848 bytes before it was cut back; its old records still stand there."""
    (b1,) = found(trio("ha-81", "after", tmp_path)[1])
    assert b1.end == 153177


def test_what_recovery_cut_off_stays_cut_off(tmp_path: Path) -> None:
    (before,) = found(unpack("flip-61", tmp_path) / "before")
    (after,) = found(tmp_path / "flip-61" / "after")
    assert (before.end, after.end) == (233799, 190656)


def test_old_records_behind_the_end_do_not_prolong_it(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(10, stamp=5000)
    patch(writer.root, writer.end + 40, record(writer.end + 40, 3, b"older", stamp=100))
    (replica,) = found(writer.root)
    assert replica.end == writer.end


def test_an_epoch_that_begins_while_stores_are_looked_at_is_known_by_its_first_byte(tmp_path: Path) -> None:
    """Else an audit during a failover would call sound epoch files contradicting ones."""
    writer = LogWriter(tmp_path / "s")
    writer.fill(3)
    writer.confirm(epochs=[(1, 0)])
    (store,) = copies(writer.root, 1)
    replica = load(StoreSpec("r0", str(store)))
    begin = writer.end
    write_epochs(store, [(1, 0), (2, begin)])
    patch(store, begin, record(begin, 2, b"written meanwhile", stamp=5000))
    find_ends([replica])
    assert replica.end > begin
    assert (replica.epoch_at(begin - 1), replica.epoch_at(begin)) == (1, 2)


def test_a_hole_in_the_middle_does_not_end_the_log(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(20)
    patch(writer.root, int(str(writer.rows[9]["phys_offset"])), bytes(40))
    (replica,) = found(writer.root)
    assert replica.end == writer.end
    assert replica.skipped == [(writer.rows[9]["phys_offset"], writer.rows[10]["phys_offset"])]


def test_empty_files_made_ahead_do_not_count(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(3)
    (writer.root / "commitlog" / f"{4096:020d}").write_bytes(bytes(4096))
    (replica,) = found(writer.root)
    assert (replica.start, replica.end) == (0, writer.end)


def test_a_log_that_begins_later_and_one_without_records(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "late", start=8192)
    writer.fill(2)
    (tmp_path / "none" / "commitlog").mkdir(parents=True)
    late, none = found(writer.root, tmp_path / "none")
    assert (late.start, late.end) == (8192, writer.end)
    assert none.empty


def test_a_missing_file_is_a_hole_only_between_others(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(80)
    first, middle = copies(writer.root, 2)
    (first / "commitlog" / f"{0:020d}").unlink()
    (middle / "commitlog" / f"{4096:020d}").unlink()
    a, b = found(first, middle)
    assert (a.holes, b.holes) == ([], [(4096, 8192)])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1\n0\n1-0\n", ""),
        ("1\n17\n1-0\n", "CRC"),
        ("2\n0\n1-0\n", "count"),
        ("2\n0\n2-0\n1-5\n", "ascend"),
        ("2\n0\n1-5\n2-5\n", "ascend"),
        ("x", "not an epoch file"),
        ("1\n0\nfoo\n", "not an epoch file"),
    ],
)
def test_epoch_files_that_cannot_be_right_say_why(text: str, problem: str) -> None:
    said = parse_epochs(text.encode())[1]
    assert problem in said
    assert bool(said) == bool(problem)


def test_a_directory_without_a_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(StoreSpec("x", str(tmp_path)))


def test_stores_are_named_by_the_last_part_that_tells_them_apart(tmp_path: Path) -> None:
    specs = parse_stores(["/a/before/b0", "/a/after/b0", "x=/data/b1", "u=s3://bucket/b0"])
    assert [s.name for s in specs] == ["before/b0", "after/b0", "x", "u"]
    with pytest.raises(ConfigError, match="twice"):
        parse_stores(["/a/b", "/a/b"])
    with pytest.raises(ConfigError):
        open_storage("nosuch://x/y")


def test_a_name_that_was_given_is_kept(tmp_path: Path) -> None:
    assert [s.name for s in parse_stores(["b0=/x/one", "/y/b0"])] == ["b0", "y/b0"]
    with pytest.raises(ConfigError, match="two stores are named a"):
        parse_stores(["a=/x", "a=/y"])
    listed = tmp_path / "group.json"
    listed.write_text('{"replicas": [{"name": "a", "store": "/x"}]}')
    with pytest.raises(ConfigError, match="two stores are named a"):
        parse_stores([f"@{listed}", "a=/y"])


def test_a_url_reads_like_a_directory(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(30)
    writer.confirm(epochs=[(1, 0)])
    by_url = load(StoreSpec("u", f"file://{writer.root}"))
    by_path = load(StoreSpec("u", str(writer.root)))
    assert (by_url.segments, by_url.epochs, by_url.confirmed) == (
        by_path.segments,
        by_path.epochs,
        by_path.confirmed,
    )


def test_a_damaged_size_is_no_end_of_a_live_log(tmp_path: Path) -> None:
    """It reaches behind all that may be read, but records begin before."""
    writer = LogWriter(tmp_path / "s")
    writer.fill(12)
    writer.confirm(epochs=[(1, 0)])
    (writer.root / "abort").touch()
    patch(writer.root, int(str(writer.rows[8]["phys_offset"])) + 2, b"\x0d")
    assert live.look(StoreSpec("s", str(writer.root)))[1].offset == writer.end


@pytest.mark.parametrize("file", ["checkpoint", "epochFileCheckpoint"])
def test_a_live_log_of_which_nothing_tells_what_was_confirmed_is_not_read(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path / "s")
    writer.fill(3)
    writer.confirm(epochs=[(1, 0)])
    read = LocalStorage.read

    def broken(files: LocalStorage, name: str, offset: int, size: int) -> bytes:
        if name == file:
            raise OSError(5, "Input/output error", name)
        return read(files, name, offset, size)

    monkeypatch.setattr(LocalStorage, "read", broken)
    with pytest.raises(OSError, match="Input/output error"):
        live.look(StoreSpec("s", str(writer.root)))


def test_stores_whose_segments_have_different_sizes_are_said_to(tmp_path: Path) -> None:
    stores = []
    for name, segment in (("a", 4096), ("b", 8192)):
        writer = LogWriter(tmp_path / name, segment=segment)
        writer.fill(200)
        writer.confirm(epochs=[(1, 0)])
        stores.append(writer.root)
    rows = [f for f in run_local(stores, None).findings if f.kind == "missing_segment"]
    assert {f.found for f in rows} == {"segment sizes differ: 8192 bytes here, 4096 elsewhere"}
