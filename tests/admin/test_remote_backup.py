"""The promise of ``keelmq backup`` to a URL: the same as to a directory, over fsspec; what broke off on the
way is sent again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from admin.backup import remote
from admin.backup.manifest import CannotBackUp
from admin.backup.remote import LOCK_MS, RemoteTarget, target_of
from admin.backup.saving import save
from admin.commands.backup import backup
from admin.exits import DONE, UNFINISHED, run
from audit.commands import audit
from tests.admin.stores import filled, records
from tests.store.support import SEGMENT
from tests.waiting import until

URL = "memory://backups/broker-a"
NEEDS = "needs keelmq[backup]"


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty before and after."""
    fsspec = pytest.importorskip("fsspec", reason=NEEDS)
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


def created(store: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run(backup, ["create", str(store), URL, "--json", *more]) == DONE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def target_at(now_ms: int) -> RemoteTarget:
    found = target_of(URL, lambda size: None, lambda: now_ms)
    assert isinstance(found, RemoteTarget)
    return found


def test_a_store_comes_back_from_an_object_store_and_the_audit_finds_no_difference(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, new = tmp_path / "store", tmp_path / "new"
    filled(store, [150])
    first = created(store, capsys)
    assert first["end"] > 2 * SEGMENT, "some segments and a part of one"
    assert run(backup, ["restore", URL, str(new)]) == DONE
    assert records(new) == records(store)
    stores = [f"old={store}", f"new={new}"]
    assert run(audit, [*stores, "--out", str(tmp_path / "report")]) == DONE, capsys.readouterr()
    capsys.readouterr()
    assert created(store, capsys)["newBytes"] == 0
    whole = first["end"] // SEGMENT * SEGMENT
    filled(store, [20])
    third = created(store, capsys)
    assert third["newBytes"] == third["end"] - whole, "sealed segments are not sent again"
    assert run(backup, ["verify", URL]) == DONE
    assert run(backup, ["list", URL, "--json"]) == DONE
    shown = capsys.readouterr().out
    assert len(json.loads(shown[shown.index("[") :])) == 3
    assert run(backup, ["restore", URL, str(tmp_path / "third")]) == DONE
    assert records(tmp_path / "third") == records(store)


def test_old_backups_go_with_what_only_they_named(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    filled(store, [20])
    for _ in range(3):
        created(store, capsys, "--keep", "2")
        filled(store, [1])
    target = target_at(1)
    assert len(target.names()) == 2
    named = {part.sha256 for name in target.names() for part in target.manifest(name).parts}
    found = {str(path).rpartition("/")[2] for path in memory.ls("/backups/broker-a/objects", detail=False)}
    assert found == named


def test_what_broke_off_on_the_way_is_told_and_sent_again(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, new = tmp_path / "store", tmp_path / "new"
    filled(store, [150])
    real, sent = RemoteTarget._send, list[str]()

    def cut(self: RemoteTarget, file: Any, size: int, path: str) -> str:
        sent.append(path)
        if len(sent) < 3:
            return real(self, file, size, path)
        memory.pipe_file(path, file.read(size // 2))
        raise CannotBackUp("the link broke")

    monkeypatch.setattr(RemoteTarget, "_send", cut)
    assert run(backup, ["create", str(store), URL]) == UNFINISHED
    assert capsys.readouterr().err == "keelmq: the link broke\n"
    assert target_at(1).names() == []
    monkeypatch.setattr(RemoteTarget, "_send", real)
    assert created(store, capsys)["newBytes"] > 0
    assert run(backup, ["restore", URL, str(new)]) == DONE


def test_what_a_driver_raises_is_one_line(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("403 Forbidden\nand a page of XML")

    filled(tmp_path / "store", [3])
    monkeypatch.setattr(type(memory), "pipe_file", refuse)
    assert run(backup, ["create", str(tmp_path / "store"), URL]) == UNFINISHED
    error = capsys.readouterr().err
    assert error.startswith("keelmq: memory://")
    assert error.endswith("backups/broker-a: 403 Forbidden\n")


def test_what_rotted_is_found_and_makes_no_store(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "store", [30])
    created(tmp_path / "store", capsys)
    paths = memory.ls("/backups/broker-a/objects", detail=False)
    largest = max(paths, key=memory.size)
    memory.pipe_file(largest, b"?" + memory.cat_file(largest)[1:])
    assert run(backup, ["verify", URL]) == UNFINISHED
    assert run(backup, ["restore", URL, str(tmp_path / "new")]) == UNFINISHED
    assert "damaged" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_second_backup_waits_for_one_that_goes_on_and_not_for_one_that_broke_off(
    memory: Any, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    filled(store, [3])
    first = target_at(0 + LOCK_MS)
    first._lock.own = "another:1"
    first.make()
    with first.locked():
        with pytest.raises(CannotBackUp, match="under way, by another:1"):
            save(store, target_at(2 * LOCK_MS - 1), 1)
        save(store, target_at(2 * LOCK_MS), 1)
    assert len(target_at(1).names()) == 1


def test_a_lock_of_a_clock_that_is_ahead_holds_no_longer_than_another(memory: Any, tmp_path: Path) -> None:
    """It did for as long as the clock was ahead."""
    store = tmp_path / "store"
    filled(store, [3])
    for ahead_ms in (LOCK_MS - 1, LOCK_MS, 1000 * LOCK_MS):
        word = json.dumps({"by": "another:1", "atMs": 5 + ahead_ms}).encode()
        memory.pipe_file("/backups/broker-a/lock", word)
        if ahead_ms < LOCK_MS:
            with pytest.raises(CannotBackUp, match="under way, by another:1"):
                save(store, target_at(5), 5)
        else:
            save(store, target_at(5), 5)


def test_what_is_read_is_not_removed_meanwhile(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, now_ms = tmp_path / "store", time.time_ns() // 1_000_000
    filled(store, [3])
    first = created(store, capsys)["name"]
    real, problems = RemoteTarget.copy, list[str]()

    def copy(self: RemoteTarget, *more: Any) -> None:
        if not problems:
            other = target_at(now_ms)
            save(store, other, now_ms, 1)
            problems.extend(other.problems)
        real(self, *more)

    monkeypatch.setattr(RemoteTarget, "copy", copy)
    assert run(backup, ["verify", URL, "--name", first]) == DONE
    assert problems == ["what is older was not removed: a backup is being read here"]
    memory.pipe_file("/backups/broker-a/manifests/.reading-killed-1", b'{"by": "killed:1", "atMs": 5}')
    save(store, target_at(now_ms), now_ms, 1)
    assert len(target_at(1).names()) == 1
    assert len(memory.ls("/backups/broker-a/manifests")) == 1


async def test_the_lock_is_told_on_whatever_takes_long(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading what is there already sends nothing, and may take hours."""
    monkeypatch.setattr(remote, "TOLD_S", 0.001)
    now_ms = [1]
    first = target_of(URL, lambda size: None, lambda: now_ms[0])
    assert isinstance(first, RemoteTarget)
    connect, made = first._connect, list[Any]()

    def again() -> Any:
        made.append(connect())
        return made[-1]

    monkeypatch.setattr(first, "_connect", again)
    first.make()
    with first.locked():
        for _ in range(2):
            now_ms[0] += LOCK_MS
            wanted = now_ms[0]
            await until(lambda: json.loads(memory.cat_file("/backups/broker-a/lock"))["atMs"] == wanted)  # noqa: B023
    assert not memory.exists("/backups/broker-a/lock")
    assert len(made) == 1, "over a connection of its own: that of some drivers does one thing at a time"
    assert made[0] is not first._files


def test_who_lost_the_lock_adds_no_backup_and_leaves_the_others_lock(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    filled(store, [3])
    word = json.dumps({"by": "another:1", "atMs": 5}).encode()
    real = RemoteTarget.put

    def put(self: RemoteTarget, file: Any, size: int) -> tuple[str, bool]:
        memory.pipe_file("/backups/broker-a/lock", word)
        return real(self, file, size)

    monkeypatch.setattr(RemoteTarget, "put", put)
    with pytest.raises(CannotBackUp, match="began meanwhile"):
        save(store, target_at(1), 1)
    assert target_at(1).names() == []
    assert memory.cat_file("/backups/broker-a/lock") == word


def test_what_verify_found_damaged_is_sent_anew(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "store", [150])
    created(tmp_path / "store", capsys)
    largest = max(memory.ls("/backups/broker-a/objects", detail=False), key=memory.size)
    memory.pipe_file(largest, b"?" + memory.cat_file(largest)[1:])
    assert created(tmp_path / "store", capsys)["newBytes"] == 0
    assert run(backup, ["verify", URL]) == UNFINISHED
    assert created(tmp_path / "store", capsys)["newBytes"] == SEGMENT
    assert run(backup, ["verify", URL]) == DONE


def test_a_place_with_other_things_is_left_alone(memory: Any, tmp_path: Path) -> None:
    filled(tmp_path / "store", [3])
    memory.pipe_file("/backups/broker-a/photos/1.jpg", b"x")
    with pytest.raises(CannotBackUp, match="other things than backups: photos"):
        save(tmp_path / "store", target_at(1), 1)


def test_a_url_without_fsspec_or_its_driver_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(CannotBackUp, match=r"pip install 'keelmq\[backup\]'"):
        target_of("s3://bucket/x", lambda size: None, lambda: 1)
    monkeypatch.undo()
    pytest.importorskip("fsspec", reason=NEEDS)
    with pytest.raises(CannotBackUp, match=r"^nothing://: .*nothing"):
        target_of("nothing://bucket/x", lambda size: None, lambda: 1)


def test_a_file_url_is_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "store", [3])
    url = f"file://{tmp_path}/kept"
    assert run(backup, ["create", str(tmp_path / "store"), url]) == DONE
    assert run(backup, ["verify", str(tmp_path / "kept")]) == DONE
