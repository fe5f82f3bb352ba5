"""The promise of ``keelmq backup``: what was kept comes back byte for byte; only what is new is copied."""

from __future__ import annotations

import errno
import json
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from admin.backup import saving
from admin.backup.manifest import CannotBackUp, Manifest, Part, decode, encode, ms_of, name_of, why_wrong
from admin.backup.target import DirectoryTarget
from admin.commands.backup import backup
from admin.exits import DONE, FAILED, INTERRUPTED, UNFINISHED, USAGE, WARNINGS, run
from audit.commands import audit
from runtime.os_env import OsDisk
from store.offline.inspect import inspect
from tests.admin.stores import OFFSETS, filled, records
from tests.audit.stores import write_epochs
from tests.store.support import SEGMENT


def created(store: Path, target: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run(backup, ["create", str(store), str(target), "--json", *more]) == DONE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_store_comes_back_and_the_audit_finds_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, target, new = tmp_path / "store", tmp_path / "kept", tmp_path / "new"
    filled(store, [150])
    first = created(store, target, capsys)
    assert first["begin"] == 0
    assert first["end"] > 2 * SEGMENT, "some segments and a part of one"
    assert run(backup, ["verify", str(target)]) == DONE
    assert run(backup, ["restore", str(target), str(new)]) == DONE
    assert "makes queues, index and checkpoint at its first start" in capsys.readouterr().err
    assert inspect(OsDisk(), str(new))["checkpoint"]["writtenBy"] is None
    assert (new / "config" / "consumerOffset.json").read_text() == OFFSETS
    assert not list(new.glob("brokerIdentity*"))
    assert not (new / "epochFileCheckpoint").exists()
    before = records(store)
    assert len(before) == 150
    assert records(new) == before
    stores = [f"old={store}", f"new={new}"]
    assert run(audit, [*stores, "--out", str(tmp_path / "report")]) == DONE, capsys.readouterr()


def test_a_store_with_epochs_compares_as_the_handbook_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/operations.md, "Restore a group"."""
    store, target, new, old = (tmp_path / name for name in ("store", "kept", "new", "old"))
    filled(store, [20])
    write_epochs(store, [(7, 0)])
    created(store, target, capsys)
    assert run(backup, ["restore", str(target), str(new)]) == DONE
    out = tmp_path / "report"

    def findings() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]

    for epoch in (0, 1):
        if epoch:
            write_epochs(new, [(epoch, 0)])
        assert run(audit, [f"old={store}", f"new={new}", "--out", str(out)]) == FAILED
        assert [row["kind"] for row in findings() if row["severity"] == "error"] == ["epoch_mismatch"]
    (new / "epochFileCheckpoint").unlink()
    old.mkdir()
    for name in ("commitlog", "config"):
        (old / name).symlink_to(Path("..") / "store" / name)
    assert run(audit, [f"old={old}", f"new={new}", "--out", str(out)]) == WARNINGS, capsys.readouterr()
    assert {row["kind"] for row in findings()} == {"cq_missing"}


def test_others_read_neither_a_backup_nor_what_is_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds passwords (auth.json) and messages."""
    store, target, new = tmp_path / "store", tmp_path / "kept", tmp_path / "new"
    filled(store, [3])
    before = os.umask(0o022)
    try:
        created(store, target, capsys)
        assert run(backup, ["restore", str(target), str(new)]) == DONE
    finally:
        os.umask(before)
    for top in (target, new):
        for path in (top, *top.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_a_second_backup_copies_what_is_new_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [150])
    first = created(store, target, capsys)
    assert first["newBytes"] == first["end"] + len(OFFSETS)
    assert created(store, target, capsys)["newBytes"] == 0
    whole = first["end"] // SEGMENT * SEGMENT
    filled(store, [20])
    third = created(store, target, capsys)
    assert third["newBytes"] == third["end"] - whole, "the segments that were filled are not copied again"
    assert run(backup, ["restore", str(target), str(tmp_path / "then"), "--name", first["name"]]) == DONE
    assert len(records(tmp_path / "then")) == 150
    assert len(records(store)) == 170


def test_a_broker_writes_on_meanwhile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    seen = list[int]()

    def keep() -> None:
        seen.append(created(store, target, capsys)["end"])

    filled(store, [60, 60], keep)
    assert seen == sorted(set(seen))
    assert run(backup, ["restore", str(target), str(tmp_path / "new")]) == DONE
    assert len(records(tmp_path / "new")) == 120


def test_old_backups_go_with_what_only_they_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [20])
    for count in (1, 1, 1):
        created(store, target, capsys, "--keep", "2")
        filled(store, [count])
    assert run(backup, ["list", str(target), "--json"]) == DONE
    kept = json.loads(capsys.readouterr().out)
    assert len(kept) == 2
    opened_target = DirectoryTarget(target)
    named = {part.sha256 for row in kept for part in opened_target.manifest(row["name"]).parts}
    assert {path.name for path in (target / "objects").iterdir()} == named


def test_what_rotted_is_found_and_makes_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, target, new = tmp_path / "store", tmp_path / "kept", tmp_path / "new"
    filled(store, [30])
    created(store, target, capsys)
    largest = max((target / "objects").iterdir(), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.write(b"?")
    assert run(backup, ["verify", str(target)]) == UNFINISHED
    assert run(backup, ["restore", str(target), str(new)]) == UNFINISHED
    assert "damaged" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "store"]


def rotten(target: Path) -> Path:
    """The largest object, with another first byte."""
    found = max((target / "objects").iterdir(), key=lambda path: path.stat().st_size)
    with found.open("r+b") as file:
        file.write(b"?")
    return found


def test_what_verify_found_damaged_is_written_anew_by_the_next_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [150])
    first = created(store, target, capsys)
    size = rotten(target).stat().st_size
    assert size == SEGMENT, "one that is filled, and not read again"
    assert created(store, target, capsys)["newBytes"] == 0, "nobody has seen it yet"
    assert run(backup, ["verify", str(target)]) == UNFINISHED
    assert "the next keelmq backup create writes anew" in capsys.readouterr().err
    assert created(store, target, capsys)["newBytes"] == size
    for more in ([], ["--name", first["name"]]):
        assert run(backup, ["verify", str(target), *more]) == DONE
    assert run(backup, ["restore", str(target), str(tmp_path / "new")]) == DONE
    assert not list((target / "objects").glob("*.damaged"))


def test_what_the_store_no_longer_has_stays_noted_as_long_as_a_backup_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, other, target = tmp_path / "store", tmp_path / "other", tmp_path / "kept"
    filled(store, [3])
    created(store, target, capsys)
    wrong = rotten(target)
    assert run(backup, ["verify", str(target)]) == UNFINISHED
    filled(other, [5])
    created(other, target, capsys, "--keep", "2")
    assert wrong.with_name(f"{wrong.name}.damaged").exists()
    created(other, target, capsys, "--keep", "2")
    assert not list((target / "objects").glob(f"{wrong.name}*"))


def test_what_the_disk_cannot_read_is_damage_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [150])
    created(store, target, capsys)
    wrong = rotten(target)
    broken = min((target / "objects").iterdir(), key=lambda path: path.stat().st_size)
    real = DirectoryTarget._open

    def failing(self: DirectoryTarget, sha256: str) -> AbstractContextManager[BinaryIO]:
        if sha256 == broken.name:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, sha256)

    monkeypatch.setattr(DirectoryTarget, "_open", failing)
    assert run(backup, ["verify", str(target)]) == UNFINISHED
    said = capsys.readouterr().err
    assert "this backup is not whole, and 1 more" in said
    for path in (wrong, broken):
        assert path.with_name(f"{path.name}.damaged").exists()


def test_what_cannot_be_noted_or_removed_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    created(store, target, capsys)
    monkeypatch.setattr(DirectoryTarget, "_remove", refuse)
    assert run(backup, ["create", str(store), str(target), "--keep", "1"]) == DONE, "it is made all the same"
    assert "what is older was not removed: [Errno 13]" in capsys.readouterr().err
    assert len(DirectoryTarget(target).names()) == 2
    rotten(target)
    monkeypatch.setattr(DirectoryTarget, "_mark", refuse)
    assert run(backup, ["verify", str(target)]) == UNFINISHED
    error = capsys.readouterr().err
    assert "is damaged" in error
    assert "cannot be noted there: [Errno 13]" in error


def test_a_part_that_is_read_again_is_mended_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    created(store, target, capsys)
    rotten(target)
    os.utime(store / "commitlog" / ("0" * 20))
    created(store, target, capsys)
    assert run(backup, ["verify", str(target)]) == DONE


def test_the_last_backup_made_is_the_newest_and_stays_also_where_the_clock_was_ahead(tmp_path: Path) -> None:
    store, target = tmp_path / "store", DirectoryTarget(tmp_path / "kept")
    filled(store, [3])
    day_ms, now_ms = 86_400_000, 1_764_370_000_000
    for made_ms in (now_ms + day_ms, now_ms + 2 * day_ms, now_ms, now_ms, now_ms):
        name, made, _ = saving.save(store, target, made_ms, 3)
        assert target.names()[-1] == name == target.chosen(None)
        assert target.manifest(name) == made
        assert made.made_ms == made_ms
    assert [target.manifest(name).made_ms for name in target.names()] == [now_ms] * 3
    name, _, _ = saving.save(store, target, now_ms + 3 * day_ms, 3)
    assert name == name_of(now_ms + 3 * day_ms), "the clock has come by"


@pytest.mark.parametrize("name", ["20261123T224500.123Z", "20000229T235959.000Z"])
def test_a_name_is_a_time(name: str) -> None:
    assert name_of(ms_of(name) or 0) == name


@pytest.mark.parametrize("name", ["20261323T224500.123Z", "2026", "\u0662" * 8 + "T224500.123Z", "x"])
def test_what_is_no_time_names_no_backup(name: str) -> None:
    assert ms_of(name) is None


@pytest.mark.parametrize("at", [0, -1])
def test_a_manifest_that_cannot_be_read_keeps_no_backup_from_being_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    """``at``: the oldest, the newest. What it may name stays until it is too old itself."""
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    for _ in range(2):
        created(store, target, capsys)
        filled(store, [1])
    manifests = target / "manifests"
    wrong = sorted(manifests.glob("*.json"))[at]
    wrong.write_text("{")
    before = {path.name for path in (target / "objects").iterdir()}
    assert run(backup, ["create", str(store), str(target), "--keep", "3"]) == DONE
    assert f"keelmq: {wrong} is no manifest" in capsys.readouterr().err
    assert before <= {path.name for path in (target / "objects").iterdir()}
    assert run(backup, ["list", str(target), "--json"]) == WARNINGS
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 2
    assert f"keelmq: {wrong} is no manifest" in said.err
    for _ in range(2):
        assert run(backup, ["create", str(store), str(target), "--keep", "2"]) == DONE
    assert capsys.readouterr().err == ""
    assert not wrong.exists()
    kept = DirectoryTarget(target)
    named = {part.sha256 for name in kept.names() for part in kept.manifest(name).parts}
    assert {path.name for path in (target / "objects").iterdir()} == named


@pytest.mark.parametrize("odd", ["topics.json~", ".topics.json.swp", "topics (old).json", "\x1b[2J"])
def test_what_lies_with_the_tables_and_is_none_is_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: str
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    (store / "config" / odd).touch()
    assert run(backup, ["create", str(store), str(target), "--keep", "1"]) == DONE
    said = capsys.readouterr().err
    assert "has no table's name: it is left out" in said
    assert "\x1b" not in said
    assert run(backup, ["restore", str(target), str(tmp_path / "new")]) == DONE
    assert [path.name for path in (tmp_path / "new" / "config").iterdir()] == ["consumerOffset.json"]


@pytest.mark.parametrize("lies_there", [False, True])
def test_a_store_whose_tables_cannot_be_read_makes_no_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lies_there: bool
) -> None:
    """A file in its place stands for a folder that this user may not read: root may read all."""
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    (store / "config").rename(tmp_path / "elsewhere")
    if lies_there:
        (store / "config").touch()
    assert run(backup, ["create", str(store), str(target)]) == UNFINISHED
    assert f"the tables in {store / 'config'} cannot be read: " in capsys.readouterr().err
    assert not DirectoryTarget(target).names()


def test_a_store_that_lacks_a_segment_makes_no_backup_and_removes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [150])
    name = created(store, target, capsys)["name"]
    (store / "commitlog" / f"{SEGMENT:020}").unlink()
    assert run(backup, ["create", str(store), str(target), "--keep", "1"]) == UNFINISHED
    assert "behind the segment at 0 one is missing" in capsys.readouterr().err
    assert DirectoryTarget(target).names() == [name]
    assert run(backup, ["verify", str(target)]) == DONE


def test_backups_that_cannot_be_read_are_not_among_those_to_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    names = [created(store, target, capsys)["name"] for _ in range(3)]
    for name in names[1:]:
        (target / "manifests" / f"{name}.json").write_text("{")
    names.append(created(store, target, capsys, "--keep", "2")["name"])
    assert DirectoryTarget(target).names() == names
    last = created(store, target, capsys, "--keep", "2")["name"]
    assert DirectoryTarget(target).names() == [names[-1], last], "the bad ones are too old themselves"


def test_a_store_is_not_restored_where_its_user_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target, empty = tmp_path / "store", tmp_path / "kept", tmp_path / "empty"
    filled(store, [3])
    created(store, target, capsys)
    empty.mkdir()
    monkeypatch.chdir(empty)
    for where in (".", "", "../empty", str(empty)):
        assert run(backup, ["restore", str(target), where]) == UNFINISHED
        assert "go elsewhere first" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(empty)
    assert run(backup, ["restore", str(target), "link"]) == DONE
    assert records(empty) == records(store)


def test_two_restores_into_one_directory_do_not_mix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removed what the other had written so far, and said that all of it was there."""
    store, target, new = tmp_path / "store", tmp_path / "kept", tmp_path / "new"
    filled(store, [3])
    created(store, target, capsys)
    codes, real = list[int](), os.sync

    def sync() -> None:
        monkeypatch.setattr(os, "sync", real)
        codes.append(run(backup, ["restore", str(target), str(new)]))

    monkeypatch.setattr(os, "sync", sync)
    assert run(backup, ["restore", str(target), str(new)]) == DONE
    assert codes == [UNFINISHED]
    assert f"another restore into {new} is under way" in capsys.readouterr().err
    assert records(new) == records(store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "new", "store"]


def test_what_a_killed_restore_left_holds_up_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, target, new = tmp_path / "store", tmp_path / "kept", tmp_path / "new"
    filled(store, [3])
    created(store, target, capsys)
    (tmp_path / "new.restoring" / "config").mkdir(parents=True)
    (tmp_path / "new.restoring" / "config" / "old.json").touch()
    (tmp_path / "new.restoring.lock").touch()
    assert run(backup, ["restore", str(target), str(new)]) == DONE
    assert not (new / "config" / "old.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "new", "store"]


@pytest.mark.parametrize("command", ["restore", "verify"])
def test_what_is_read_is_not_removed_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    first = created(store, target, capsys)["name"]
    real, problems = DirectoryTarget.manifest, list[str]()

    def manifest(self: DirectoryTarget, name: str) -> Manifest:
        if name == first and not problems:
            other = DirectoryTarget(target)
            problems.append("")
            saving.save(store, other, 1, 1)
            problems.extend(other.problems)
        return real(self, name)

    monkeypatch.setattr(DirectoryTarget, "manifest", manifest)
    places = [str(target), str(tmp_path / "new")][: 2 if command == "restore" else 1]
    assert run(backup, [command, *places, "--name", first]) == DONE
    assert problems[1:] == ["what is older was not removed: a backup is being read here"]
    assert len(DirectoryTarget(target).names()) == 2
    capsys.readouterr()
    created(store, target, capsys, "--keep", "1")
    assert len(DirectoryTarget(target).names()) == 1


def test_what_killed_ones_left_goes_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full of it."""
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    created(store, target, capsys)
    left = [target / "objects" / ".draft-99999", target / "manifests" / ".draft-99999"]
    for path in left:
        path.touch()

    def full(*_: Any) -> None:
        assert not any(path.exists() for path in left)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DirectoryTarget, "put", full)
    assert run(backup, ["create", str(store), str(target)]) == UNFINISHED
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize("times", [1, 3])
def test_one_that_is_told_to_end_removes_what_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """``times``: in the first object, in the manifest."""
    store, target = tmp_path / "store", tmp_path / "kept"
    filled(store, [3])
    real, calls, heard = os.fsync, list[int](), list[int]()

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == times:
            os.kill(os.getpid(), signal.SIGTERM)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        assert run(backup, ["create", str(store), str(target)]) == INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == []
    assert not list(target.rglob(".draft-*"))
    assert DirectoryTarget(target).names() == []


def test_a_bit_of_a_manifest_that_flipped_is_found() -> None:
    made = Manifest(1, "/s", 10, {0: Part("0" * 64, 5, 7)}, {"config/topics.json": Part("1" * 64, 1)})
    data = encode(made)
    assert decode(data, "x.json") == made
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = decode(bytes(flipped), "x.json")
        except CannotBackUp:
            continue
        assert found == made, (at, bytes(flipped))


def test_a_manifest_without_a_checksum_is_read() -> None:
    made = Manifest(1, "/s", 10, {0: Part("0" * 64, 5, 7)}, {})
    lines = [line for line in encode(made).splitlines() if b'"checksum"' not in line]
    lines[-2] = lines[-2].rstrip(b",")
    assert decode(b"\n".join(lines), "x.json") == made


def test_a_slave_that_cuts_its_log_meanwhile_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = tmp_path / "store", DirectoryTarget(tmp_path / "kept")
    filled(store, [5])
    segment = store / "commitlog" / ("0" * 20)
    real = saving._Keeping.segment

    def cut_behind(self: Any, path: Path, start: int, size: int) -> Part:
        part = real(self, path, start, size)
        data = path.read_bytes()
        path.write_bytes(data[: size // 2].ljust(len(data), b"\0"))
        return part

    monkeypatch.setattr(saving._Keeping, "segment", cut_behind)
    with pytest.raises(CannotBackUp, match="was cut while it was read"):
        saving.save(store, target, 1)
    assert target.names() == []
    assert segment.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["create", "{store}", "s3:/bucket/x"], USAGE, "neither a directory nor a URL"),
        (["create", "{store}", "{store}/kept"], USAGE, "lies in the store itself"),
        (["create", "{store}", "{store}/.."], UNFINISHED, "other things than backups"),
        (["create", "{empty}", "{kept}"], UNFINISHED, "holds no store"),
        (["list", "{empty}"], UNFINISHED, "holds no backups"),
        (["restore", "{kept}", "{store}"], UNFINISHED, "is not empty"),
        (["restore", "{kept}", "{empty}/a/b"], UNFINISHED, "no directory"),
        (["verify", "{kept}", "--name", "yesterday"], UNFINISHED, "has no backup yesterday"),
    ],
)
def test_wrong_uses_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    places = {name: tmp_path / name for name in ("store", "kept", "empty")}
    places["empty"].mkdir()
    filled(places["store"], [3])
    created(places["store"], places["kept"], capsys)
    assert run(backup, [argument.format(**places) for argument in arguments]) == code
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "wrong",
    [
        {"tables": {"../passwd": Part("0" * 64, 1)}},
        {"tables": {"config/../../x": Part("0" * 64, 1)}},
        {"tables": {"config/a": Part("../../etc", 1)}},
        {"segments": {0: Part("0" * 64, 5), 10: Part("0" * 64, 5)}},
        {"segments": {0: Part("0" * 64, 10), 20: Part("0" * 64, 5)}},
        {"segments": {3: Part("0" * 64, 5)}},
        {"segments": {0: Part("0" * 64, 11)}},
        {"segment_bytes": 0},
        {"version": 2},
    ],
)
def test_a_manifest_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    values: dict[str, Any] = {
        "made_ms": 1, "source": "/s", "segment_bytes": 10, "segments": {0: Part("0" * 64, 5)}, "tables": {}
    }  # fmt: skip
    assert why_wrong(Manifest(**values)) is None
    with pytest.raises(CannotBackUp):
        decode(encode(Manifest(**(values | wrong))), "x.json")


def test_two_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    store, target = tmp_path / "store", DirectoryTarget(tmp_path / "kept")
    filled(store, [3])
    target.make()
    with target.locked(), pytest.raises(CannotBackUp, match="under way"):
        saving.save(store, DirectoryTarget(target.directory), 1)
