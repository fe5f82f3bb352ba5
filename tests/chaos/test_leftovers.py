"""The promise of ``drill heal``: servers that no drill looks after end, and nobody else does."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.exits import UNFINISHED, USAGE
from admin.local import layout as layouts
from admin.local.cluster import LocalCluster
from admin.local.layout import Layout
from chaos.drills.commands import Site
from chaos.drills.live import commands
from chaos.drills.live.commands import KEPT_AT, PREFIX, _findable, _places
from chaos.live import leftovers, loop_disk, network, noted
from chaos.live.ground import Ground, heal
from chaos.live.noted import LEDGER, Process, keeps
from model.errors import ConfigError
from runtime.os_env import OsEnv
from tests.chaos.left import OF_A_DEAD_DRILL, process
from tests.live.commands import Shell


def server(child: subprocess.Popen[bytes]) -> Process:
    found = Process.of(child.pid)
    assert found.runs
    return found


def test_a_forgotten_server_ends_and_one_that_only_names_its_directory_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if this process were the one that takes orphans in.
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    prefix, place = tmp_path / "keelmq-drill-", tmp_path / "keelmq-drill-x1"
    with (
        process("-c", f"{place}/conf/broker-a-0.conf") as ours,
        process(f"-Duser.home={place}/namesrv-0") as theirs,
        process(f"{place}/log/broker-a-0.log") as reader,
        process("-c", f"{tmp_path}/cluster/conf/broker-a-0.conf") as other,
    ):
        found = [server(ours), server(theirs)]
        assert leftovers.found(prefix) == dict.fromkeys(found, place)
        leftovers.end([*found, Process(other.pid, 1)])  # another one has its number since
        assert ours.wait(10) < 0
        assert theirs.wait(10) < 0
        assert (reader.poll(), other.poll()) == (None, None)
        assert leftovers.found(prefix) == {}


def test_a_server_whose_starter_lives_is_looked_after(tmp_path: Path) -> None:
    with process("-c", f"{tmp_path}/keelmq-drill-x1/conf/broker-a-0.conf"):
        assert leftovers.found(tmp_path / "keelmq-drill-") == {}


def test_servers_of_a_drill_that_is_the_first_of_all_processes_are_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container their parent is who takes orphans in, too. What is not whole is nobody's to end."""
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    place = tmp_path / "keelmq-drill-x1"
    place.mkdir()
    with process("-c", f"{place}/conf/broker-a-0.conf") as child:
        drill: dict[str, Any] = {
            "pid": os.getpid(),
            "began": noted.began(os.getpid()),
            "switch": None,
            "tracers": [],
        }
        prefix, gone = tmp_path / "keelmq-drill-", {**drill, "boot": "another run of the machine"}
        (place / LEDGER).write_text(json.dumps(drill))
        assert leftovers.found(prefix) == {}
        (place / LEDGER).write_text(json.dumps(gone))
        assert leftovers.found(prefix) == {server(child): place}
        (place / LEDGER).write_text(json.dumps({**drill, "pid": 4_000_000, "pid_namespace": 1}))
        assert leftovers.found(prefix) == {}, "a container's, whose pids are others"
        (place / LEDGER).write_text("{")
        assert leftovers.found(prefix) == {}
        (place / LEDGER).write_text(json.dumps(gone))
        monkeypatch.setattr(leftovers, "pid_namespace", lambda *of: len(of))
        assert leftovers.found(prefix) == {}, "the server is a container's"


def test_servers_where_no_drill_left_a_ledger_are_nobodys_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may run in a folder that a drill was told to keep, or in any other of such a name."""
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for module in (network, loop_disk):
        monkeypatch.setattr(module, "sweep", lambda *_: [])
    place = tmp_path / f"{PREFIX}a"
    place.mkdir()
    layouts.save(Layout.make(base_port=20_000), place)
    with process("-c", f"{place}/conf/broker-a-0.conf") as child:
        Shell()("drill", "heal")
        assert (child.poll(), place.exists()) == (None, True)
        shutil.rmtree(place)
        Shell()("drill", "heal")
        assert child.wait(10) < 0, "whoever made its folder has taken it away"


@pytest.mark.parametrize("keep", [False, True])
def test_servers_that_no_state_file_names_end_with_what_else_a_drill_left(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    place = tmp_path / f"{PREFIX}a"
    place.mkdir()
    (place / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL | {"keep": keep}))
    with process(f"-Duser.home={place}/namesrv-0") as child:
        said = Shell()("drill", "heal")
        assert child.wait(10) < 0
    assert "ended 1 servers" in said
    assert (place.exists(), (place / LEDGER).exists()) == (keep, False)


def test_the_java_client_of_a_dead_drill_ends_and_who_has_its_number_since_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "REAPERS", frozenset())  # it is found by what the drill noted
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    for earlier, ends in ((1, False), (0, True)):
        (place := tmp_path / f"{PREFIX}a").mkdir()
        with process("java") as child:
            client = [child.pid, (noted.began(child.pid) or 0) - earlier]
            (place / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL | {"keep": False, "client": client}))
            said = Shell()("drill", "heal")
            assert ("ended the Java client" in said) is ends
            assert (child.wait(10) if ends else child.poll()) == (-signal.SIGKILL if ends else None)
        assert not place.exists()


async def test_a_drill_without_a_plan_says_that_it_works_there_before_it_starts_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container it is the parent of all orphans: its own servers would be taken for forgotten ones."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[bool] = []

    async def up(cluster: LocalCluster, **_: Any) -> dict[str, Any]:
        seen.append(leftovers.is_looked_after(cluster.directory))
        with pytest.raises(RuntimeError, match="still runs"):
            heal(cluster.directory)
        return {}

    monkeypatch.setattr(LocalCluster, "up", up)
    async with Site("keelmq", None, ()).world(OsEnv(seed=1), lambda _: None):
        assert seen == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_drill_of_another_container_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pid is nobody's here: so is that of a drill that is gone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    theirs = OF_A_DEAD_DRILL | {"pid": 4_000_000, "pid_namespace": 1}
    (tmp_path / LEDGER).write_text(json.dumps(theirs))
    with pytest.raises(RuntimeError, match="another container"):
        heal(tmp_path)
    (note := tmp_path / f"{PREFIX}0{KEPT_AT}").write_text(f"4000000 1 1 0 {tmp_path}")
    assert _places() == {tmp_path: []}
    (disks := tmp_path / "disks").mkdir()
    trials = [disks / f"{loop_disk.TRIAL}4000000-{of}-x" for of in (1, noted.pid_namespace())]
    names = [tmp_path / f"{network.PROBE}4000000-{of}" for of in (1, noted.pid_namespace())]
    for path in (*trials, *names):
        path.mkdir()
    monkeypatch.setattr(network, "_deleted", lambda name: True)
    assert loop_disk.sweep(disks) == [str(trials[1])]
    assert network.sweep(tmp_path) == [names[1].name]
    (tmp_path / LEDGER).write_text(json.dumps(theirs | {"pid_namespace": noted.pid_namespace()}))
    heal(tmp_path)
    assert note.exists()


def test_servers_and_folders_of_another_user_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    prefix, place = tmp_path / "keelmq-drill-", tmp_path / "keelmq-drill-x1"
    with process("-c", f"{place}/conf/broker-a-0.conf") as child:
        assert leftovers.found(prefix) == {server(child): place}
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
        assert leftovers.found(prefix) == {}
        place.unlink()
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
        assert leftovers.found(prefix) == {}


def test_a_process_is_known_by_when_it_began_too() -> None:
    with process("one") as one:
        assert noted.began(one.pid) == noted.began(one.pid)
        assert noted.began(one.pid) != noted.began(os.getpid())
    assert noted.began(one.pid) is None


def test_a_drill_that_ended_and_that_nobody_asked_how_does_not_run(tmp_path: Path) -> None:
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    with process("one") as one:
        told = {"pid": one.pid, "began": noted.began(one.pid), "keep": True}
        nothing: dict[str, Any] = {"switch": None, "namespaces": [], "tracers": []}
        (tmp_path / LEDGER).write_text(json.dumps(told | nothing))
        place = tmp_path / f"{loop_disk.TRIAL}{one.pid}-x"
        place.mkdir()
        one.kill()
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert noted.began(one.pid) is None
        heal(tmp_path)
        assert loop_disk.sweep(tmp_path) == [str(place)]
    assert not (tmp_path / LEDGER).exists()


def test_trial_disks_of_processes_that_are_gone_are_taken_away(tmp_path: Path) -> None:
    with process("one") as one:
        pass
    gone, here = (tmp_path / f"{loop_disk.TRIAL}{pid}-x" for pid in (one.pid, os.getpid()))
    for place in (gone, here):
        (place / "disk").mkdir(parents=True)
    assert loop_disk.sweep(tmp_path) == [str(gone)]
    assert [gone.exists(), here.exists()] == [False, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
@pytest.mark.parametrize("whose", ["another user's", "links"])
def test_a_trial_disk_of_another_user_or_behind_a_link_is_not_unmounted(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make a folder of that name, and put links to mount points and images into it."""
    with process("one") as one:
        pass
    place, mount, image = tmp_path / f"{loop_disk.TRIAL}{one.pid}-x", tmp_path / "mount", tmp_path / "image"
    place.mkdir()
    mount.mkdir()
    image.write_bytes(b"")
    (place / "disk").symlink_to(mount)
    (place / "image").symlink_to(image)
    if whose != "links":
        os.chown(place, 12_345, 12_345)
    ran: list[Any] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(command))
    loop_disk.sweep(tmp_path)
    assert ran == []
    assert (place.exists(), mount.exists(), image.exists()) == (whose != "links", True, True)


def test_a_copy_of_a_disk_that_was_whole_when_its_drill_was_killed_is_brought_to_its_place(
    tmp_path: Path,
) -> None:
    """Its image is gone: it is the only one."""
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    (tmp_path / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL))
    store, raft = tmp_path / "store", tmp_path / "raft"
    for place in (store / "broker-a-0.kept", store / "broker-a-0", store / "broker-a-1.kept"):
        place.mkdir(parents=True)
    for place in (store / "broker-a-2.kept", store / "broker-a-2", raft / "namesrv-0.kept"):
        place.mkdir(parents=True)
    (store / "broker-a-0.kept" / "log").write_bytes(b"x")
    (store / "broker-a-2" / "other").write_bytes(b"x")
    (image := tmp_path / "disks" / "broker-a-1.img").parent.mkdir()
    image.write_bytes(b"x")
    told = "; ".join(heal(tmp_path))
    assert (store / "broker-a-0" / "log").read_bytes() == b"x"
    assert f"kept {store / 'broker-a-0'}" in told
    assert f"left {image}" in told, "its copy may not be whole"
    assert (store / "broker-a-1.kept").exists()
    assert f"left {store / 'broker-a-2.kept'}" in told, "something else is there"
    assert (raft / "namesrv-0").is_dir()


def test_a_ledger_of_another_run_of_the_machine_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pids and the numbers of networks have been given to others since."""
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    removed: list[Any] = []
    monkeypatch.setattr(network, "is_anothers", lambda name: False)

    def remove(names: list[str]) -> list[str]:
        removed.extend(names)
        return []

    monkeypatch.setattr(network, "remove", remove)
    monkeypatch.setattr(leftovers, "end_noted", lambda one, *_: removed.append(one.pid))
    left = {**OF_A_DEAD_DRILL, "switch": 7, "namespaces": ["keelmq-7-b"], "tracers": [8], "proxies": 9}
    own = noted.began(os.getpid())
    for boot, gone in (("before", []), (noted.boot(), [8, 9, 7, "keelmq-7-b"])):
        (tmp_path / LEDGER).write_text(json.dumps({**left, "boot": boot}))
        heal(tmp_path)
        assert removed == gone
    (tmp_path / LEDGER).write_text(json.dumps({**left, "boot": "before", "pid": os.getpid(), "began": own}))
    heal(tmp_path)  # who has its pid since is not that drill
    assert not (tmp_path / LEDGER).exists()


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_copied_of_one_disk_keeps_nothing_else_from_being_cleared(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, Layout.make(base_port=20_000))
    ground, stopped = Ground(cluster, keep=True), list[str]()

    async def stop() -> None:
        stopped.append("network")

    ground.network = cast(Any, SimpleNamespace(stop=stop))
    mount, image = tmp_path / "store" / "broker-a-0", tmp_path / "broker-a-0.img"
    mount.mkdir(parents=True)
    image.write_bytes(b"x")
    disk = loop_disk.LoopDisk(mount, image)
    monkeypatch.setattr(disk, "unplug", lambda: (mount / "log").unlink())
    (mount / "log").write_bytes(b"what lies on it")
    ground.disks["broker-a-0"] = disk
    if fails:
        monkeypatch.setattr(shutil, "copytree", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    asyncio.run(ground.clear())
    assert stopped == ["network"]
    assert image.exists() == fails == bool(ground.unkept)
    if fails:
        assert str(image) in ground.unkept[0]
    else:
        assert (mount / "log").read_bytes() == b"what lies on it"
    assert not (tmp_path / LEDGER).exists()


@pytest.mark.parametrize("copied", [True, False])
def test_a_kept_disk_that_is_still_mounted_keeps_its_ledger(
    copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, Layout.make(base_port=20_000))
    mount, image = tmp_path / "store" / "broker-a-0", tmp_path / "broker-a-0.img"
    mount.mkdir(parents=True)
    image.write_bytes(b"x")
    ground, disk = Ground(cluster, keep=True), loop_disk.LoopDisk(mount, image)
    ground.disks["broker-a-0"] = disk
    monkeypatch.setattr(disk, "unplug", lambda: (_ for _ in ()).throw(OSError(12, "no memory for umount")))
    if not copied:
        monkeypatch.setattr(shutil, "copytree", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    asyncio.run(ground.clear())
    assert ground.unkept == []
    assert ground.left == ["the disk of broker-a-0: [Errno 12] no memory for umount"]
    assert (image.exists(), (tmp_path / LEDGER).exists()) == (True, True)


def test_a_drill_with_another_ones_pid_is_over_and_what_it_keeps_stays(tmp_path: Path) -> None:
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    found: dict[str, Any] = {
        "pid": os.getpid(),
        "switch": None,
        "namespaces": [],
        "tracers": [],
        "keep": True,
    }
    image = tmp_path / "disks" / "broker-a-0.img"
    image.parent.mkdir()
    image.write_bytes(b"x")
    now = noted.began(os.getpid())
    assert now is not None
    (tmp_path / LEDGER).write_text(json.dumps(found | {"began": now}))
    with pytest.raises(RuntimeError, match="still runs"):
        heal(tmp_path)
    (tmp_path / LEDGER).write_text(json.dumps(found | {"began": now - 1}))
    assert keeps(tmp_path)
    assert any(str(image) in text for text in heal(tmp_path))
    assert image.exists(), "nobody copied what lies on it"
    assert not (tmp_path / LEDGER).exists()
    assert not keeps(tmp_path)


def test_no_cluster_begins_where_a_drill_has_something_to_undo(tmp_path: Path) -> None:
    """Who heals after it would end its servers."""
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    (tmp_path / LEDGER).write_text("{}")
    said = Shell()("cluster", "up", "--brokers", "2", "--dir", str(tmp_path), code=USAGE)
    assert "drill heal" in said


def test_a_disk_is_copied_before_its_image_goes_also_under_a_path_with_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my run"
    own.mkdir()
    layouts.save(Layout.make(base_port=20_000), own)
    (own / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL))
    images = [own / "disks" / f"{name}.img" for name in ("broker-a-0", "broker-a-1")]
    mount = own / "store" / "broker-a-0"
    for path in (*images, mount.with_name("broker-a-0.kept") / "cut short"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    mount.mkdir()
    table = tmp_path / "mounts"
    escaped = str(mount).replace(" ", r"\040")
    table.write_text(f"/dev/loop7 {escaped} ext4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\n")
    monkeypatch.setattr(loop_disk, "MOUNTS", table)

    def run(*command: str) -> str:
        file = mount / "what lies on it"
        file.write_bytes(b"y") if command[0] == "mount" else file.unlink()
        return ""

    monkeypatch.setattr(loop_disk, "_run", run)
    heal(own)
    assert [path.name for path in mount.iterdir()] == ["what lies on it"]
    assert [image.exists() for image in images] == [False, True]


def test_one_place_that_cannot_be_healed_and_odd_notes_keep_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken, other, last = (tmp_path / name for name in ("a", "b", "c"))
    notes = []
    for place in (broken, other, last):
        place.mkdir()
        layouts.save(Layout.make(base_port=20_000), place)
        (place / LEDGER).write_text("{" if place == broken else json.dumps(OF_A_DEAD_DRILL))
        notes.append(tmp_path / f"{PREFIX}{place.name}{KEPT_AT}")
        notes[-1].write_text(f"1 -1 {noted.pid_namespace()} 0 {place}")
    for number, text in enumerate(("", "one two three", "7")):
        (tmp_path / f"{PREFIX}0{number}{KEPT_AT}").write_text(text)
    os.mkfifo(tmp_path / f"{PREFIX}1{KEPT_AT}")
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)  # of other tests
    Shell()("drill", "heal", code=UNFINISHED)
    assert [note.exists() for note in notes] == [True, False, False]
    assert [(place / LEDGER).exists() for place in (broken, other, last)] == [True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[]", "null", '{"pid": 1}', '{"pid": 1, "tracers": 3, "switch": null}'),
        '{"pid": 1, "tracers": [], "switch": null, "began": "x"}',
        '{"pid": 1, "tracers": ["x"], "switch": null}',
        '{"pid": 1, "tracers": [], "switch": 5, "namespaces": ["eth0"]}',
    ],
)
def test_a_note_that_is_no_drills_says_so_and_nothing_is_taken_away(tmp_path: Path, text: str) -> None:
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    (tmp_path / LEDGER).write_text(text)
    assert keeps(tmp_path)
    with pytest.raises(ConfigError, match="is no drill's"):
        heal(tmp_path)


def test_a_ledger_without_namespaces_ends_no_sweep(tmp_path: Path) -> None:
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    (tmp_path / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL | {"namespaces": None, "switch": 4_000_000}))
    assert "removed 0 namespaces" in heal(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_kept_place_of_another_user_is_not_healed_and_one_that_is_not_there_now_stays_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a disk that is not mounted now."""
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    theirs, away = tmp_path / "theirs", tmp_path / "away"
    theirs.mkdir()
    layouts.save(Layout.make(base_port=20_000), theirs)
    (theirs / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL))
    os.chown(theirs, 12_345, 12_345)
    notes = [own / f"{PREFIX}{place.name}{KEPT_AT}" for place in (theirs, away)]
    for note, place in zip(notes, (theirs, away), strict=True):
        note.write_text(f"1 -1 {noted.pid_namespace()} 0 {place}")
    said = Shell()("drill", "heal")
    assert (theirs / LEDGER).exists()
    assert [note.exists() for note in notes] == [True, True]
    assert f"{theirs} is another user's" in said
    assert str(notes[1]) in said


def test_a_note_of_a_kept_folder_that_was_removed_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system is there, so it is not merely away."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    with _findable(tmp_path / "kept" / "a"):
        note = next(tmp_path.glob(f"*{KEPT_AT}"))
        text = note.read_text()
    note.write_text(text.replace(str(noted.began(os.getpid())), "-1", 1))
    said = Shell()("drill", "heal")
    assert "was removed" in said
    assert not note.exists()


def test_where_a_drill_keeps_its_folder_is_noted_behind_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid is no secret: whoever foretold the name of a file would have it written elsewhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (f"{PREFIX}{os.getpid()}.new", f"{PREFIX}{os.getpid()}{KEPT_AT}"):
        (tmp_path / name).symlink_to(tmp_path / f"{name} elsewhere")
    with _findable(tmp_path / "kept"):
        assert list(_places()) == [tmp_path / "kept"]
    assert not list(tmp_path.glob("* elsewhere"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_folder_of_another_user_is_not_healed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its note says would be done with the rights of who heals."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours, theirs = (tmp_path / f"{PREFIX}{name}" for name in ("ours", "theirs"))
    for place in (ours, theirs):
        place.mkdir()
    os.chown(theirs, 12_345, 12_345)
    (tmp_path / f"{PREFIX}link").symlink_to(theirs)
    assert list(_places()) == [ours]


def test_heal_looks_where_a_drill_keeps_its_folder_and_takes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, kept, evidence = tmp_path / "tmp", tmp_path / "kept", tmp_path / "tmp" / f"{PREFIX}evidence"
    for place in (kept, evidence):
        place.mkdir(parents=True)
        layouts.save(Layout.make(base_port=20_000), place)
        (place / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL))
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    with _findable(kept):
        note = next(own.glob(f"*{KEPT_AT}"))
        assert _places() == {evidence: [], kept: []}
        assert note.exists(), "its drill runs"
        note.write_text(f"{os.getpid()} -1 {noted.pid_namespace()} 0 {kept}")
        Shell()("drill", "heal")
    assert not note.exists()
    for place in (kept, evidence):
        assert not (place / LEDGER).exists()
        assert (place / layouts.STATE_FILE).exists()


def test_a_network_that_a_dead_drill_left_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keelmq-7-broker-a-0").touch()
    monkeypatch.setattr(network, "NETNS", tmp_path)
    made = network.Network(cast(Any, SimpleNamespace(pid=4_000_000)), 0)
    asked: list[int] = []

    async def ask(**command: Any) -> None:
        asked.append(made.number)

    monkeypatch.setattr(made, "_ask", ask)
    numbers = iter((7, 7, 8))
    asyncio.run(made._choose_number(cast(Any, SimpleNamespace(randrange=lambda *_: next(numbers)))))
    assert asked == [8]
