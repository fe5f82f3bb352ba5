"""The promise of a drill's end: all that it laid is undone, nothing of anybody else's, and its ledger stays
as long as something is left."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from admin.exits import UNFINISHED
from admin.local import layout as layouts
from admin.local.cluster import LocalCluster
from admin.local.layout import Layout
from chaos import faults
from chaos.drills.live import commands
from chaos.drills.live.commands import carried_out
from chaos.drills.live.scenario import DrillSpec
from chaos.faults import Step
from chaos.live import folder, leftovers, loop_disk, network
from chaos.live.ground import Ground, NotHealed, heal
from chaos.live.noted import DRILL, LEDGER, Noted, Process
from chaos.scenarios import Plan
from tests.chaos.left import OF_A_DEAD_DRILL, process
from tests.live.commands import Shell

SPEC = DrillSpec(scenario="x", seed=1, plan=Plan([Step(1, faults.Look("b1"))], load_ms=2))
NOTED = ("chaos.live.switch", "strace", "toxiproxy")


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """As a switch, a tracer and proxies look."""
    with ExitStack() as stack:
        yield [stack.enter_context(process(word)) for word in NOTED]


def note(directory: Path, children: list[subprocess.Popen[bytes]], began: Any) -> None:
    switch, tracer, proxies = ([child.pid, began(child.pid)] for child in children)
    told = OF_A_DEAD_DRILL | {"keep": False, "switch": switch, "tracers": [tracer], "proxies": proxies}
    (directory / LEDGER).write_text(json.dumps(told))


def test_who_has_the_pid_of_what_a_drill_noted_since_is_not_ended(
    children: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    note(tmp_path, children, lambda pid: cast(int, Process.of(pid).began) - 1)
    heal(tmp_path)
    assert [child.poll() for child in children] == [None] * 3
    note(tmp_path, children, lambda pid: Process.of(pid).began)
    heal(tmp_path)
    assert [child.wait(10) for child in children] == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL]


def test_of_a_ledger_of_an_earlier_release_only_orphans_end(
    children: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has pids without their start: what has a parent is another drill's, that runs."""
    old = OF_A_DEAD_DRILL | {"switch": children[0].pid, "tracers": [children[1].pid]}
    (tmp_path / LEDGER).write_text(json.dumps(old))
    said = "; ".join(heal(tmp_path))
    assert [f"left process {child.pid} alone" in said for child in children] == [True, True, False]
    assert [child.poll() for child in children] == [None] * 3
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    (tmp_path / LEDGER).write_text(json.dumps(old))
    heal(tmp_path)
    assert [child.wait(10) for child in children[:2]] == [-signal.SIGKILL, -signal.SIGTERM]


def test_a_ledger_gives_back_what_was_noted(tmp_path: Path) -> None:
    own = Process.of(os.getpid())
    Noted.of_this_process(switch=own, tracers=[own, Process(7)], cleared=True).write(tmp_path)
    found = Noted.read(tmp_path)
    assert found is not None
    assert (found.switch, found.tracers, found.proxies) == (own, [own, Process(7)], None)
    assert (found.cleared, found.campaign, found.works) == (True, None, True)


def test_no_two_drills_have_namespaces_of_one_name_and_an_earlier_ones_in_use_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = cast(Any, SimpleNamespace(pid=4_000_000))
    one, other = (network.Network(switch, 7).namespace("broker-a-0") for _ in range(2))
    assert one != other
    used, asked = {"keelmq-7-broker-a-0"}, list[list[str]]()

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[Any]:
        asked.append(command[2:])
        return subprocess.CompletedProcess(command, 0, b"17\n" if command[-1] in used else b"", "")

    monkeypatch.setattr(subprocess, "run", run)
    names = [one, "keelmq-7-broker-a-0", "keelmq-7-broker-a-1"]
    (tmp_path / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL | {"switch": 4_000_000, "namespaces": names}))
    done = heal(tmp_path)
    assert [words[1] for words in asked if words[0] == "del"] == [one, "keelmq-7-broker-a-1"]
    assert any("left namespace keelmq-7-broker-a-0 alone" in text for text in done)
    assert "removed 2 namespaces" in done


class Disk:
    def __init__(self, error: Exception | None = None) -> None:
        self._error, self.gone = error, False

    def __exit__(self, *_: object) -> None:
        if self._error is not None:
            raise self._error
        self.gone = True


class Net:
    """It takes a moment to stop."""

    def __init__(self) -> None:
        self.stopped, self.stops = False, asyncio.Event()
        self.switch, self.detours = Process(4_000_000, 1), None

    def namespaces(self) -> list[str]:
        return []

    async def stop(self) -> None:
        self.stops.set()
        await asyncio.sleep(0.05)
        self.stopped = True


def laid(directory: Path, *disks: Disk) -> tuple[Ground, Net]:
    found, net = Ground(LocalCluster(directory, Layout.make(base_port=20_000))), Net()
    found.note()
    found.network = cast(Any, net)
    found.disks = cast(Any, {f"broker-a-{number}": disk for number, disk in enumerate(disks)})
    return found, net


def is_cleared(directory: Path) -> bool:
    noted = Noted.read(directory)
    assert noted is not None
    return noted.cleared


@pytest.mark.parametrize("error", [None, OSError("busy"), RuntimeError("odd")])
async def test_what_cannot_be_taken_away_keeps_nothing_else_from_it_and_its_ledger_stays(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Disk(error), Disk()
    found, net = laid(tmp_path, first, second)
    sent: list[int] = []

    def kill(pid: int, number: int) -> None:
        sent.append(pid)
        raise ProcessLookupError  # it ended between the look and the signal

    monkeypatch.setattr(os, "kill", kill)
    found.tracers = {"broker-a-0": Process.of(os.getpid())}
    await found.clear()
    assert sent == [os.getpid()]
    assert (second.gone, net.stopped) == (True, True)
    assert is_cleared(tmp_path) is (error is None)
    assert found.left == ([] if error is None else [f"the disk of broker-a-0: {error}"])


async def test_a_signal_while_a_drill_takes_away_what_it_laid_does_not_cut_it(tmp_path: Path) -> None:
    found, net = laid(tmp_path, Disk())
    clearing = asyncio.get_running_loop().create_task(found.clear())
    await net.stops.wait()
    clearing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await clearing
    assert net.stopped
    assert is_cleared(tmp_path)


def test_heal_goes_on_where_one_thing_cannot_be_undone_and_can_be_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    place = tmp_path / f"{DRILL}a"
    place.mkdir()
    (place / layouts.STATE_FILE).write_text("{")  # whose servers are its?
    (place / LEDGER).write_text(json.dumps(OF_A_DEAD_DRILL | {"keep": False}))
    (image := place / "disks" / "broker-a-0.img").parent.mkdir()
    image.write_bytes(b"x")
    with pytest.raises(NotHealed, match=r"cluster\.json"):
        heal(place)
    assert (image.exists(), (place / LEDGER).exists()) == (False, True)
    Shell()("drill", "heal", code=UNFINISHED)
    layouts.save(Layout.make(base_port=20_000), place)
    assert "removed its directory" in Shell()("drill", "heal")
    assert not place.exists()


@pytest.fixture
def drilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folder of a run that does nothing but fill it."""
    places: list[Path] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def run(spec: DrillSpec, own: Path, console: Console, keep: bool) -> None:
        assert is_cleared(own), "its ledger is the first thing in it"
        for name in ("store", "log"):
            (own / name).mkdir()
        places.append(own)

    monkeypatch.setattr(commands, "_run", run)
    return places


def test_the_ledger_is_the_last_thing_out(drilled: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = list[bool](), shutil.rmtree

    def remove(path: Path, **_: Any) -> None:
        seen.append((path.parent / LEDGER).exists())
        real(path)

    monkeypatch.setattr(shutil, "rmtree", remove)
    carried_out(SPEC, Console())
    assert seen == [True, True]
    assert not drilled[0].exists()


def test_a_signal_while_the_folder_is_removed_is_heard_after(
    drilled: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.rmtree

    def remove(path: Path, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(path)

    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(KeyboardInterrupt):
        carried_out(SPEC, Console())
    assert not drilled[0].exists()


def test_a_folder_of_a_run_that_could_not_undo_all_stays_with_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def run(spec: DrillSpec, own: Path, console: Console, keep: bool) -> None:
        ground = laid(own, Disk(OSError("busy")))[0]
        await ground.clear()

    monkeypatch.setattr(commands, "_run", run)
    carried_out(SPEC, Console())
    place = next(tmp_path.glob(f"{DRILL}*"))
    assert (place / LEDGER).exists()
    assert f"keelmq drill heal {place}" in capsys.readouterr().err


def test_a_folder_whose_drill_was_killed_before_it_noted_anything_goes_but_not_one_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(commands, "_end_leftovers", lambda: None)
    old, new, used = (tmp_path / f"{DRILL}{name}" for name in ("old", "new", "used"))
    for place in (old, new, used):
        place.mkdir()
    (used / "log").mkdir()
    for place in (old, used):
        os.utime(place, (1, 1))
    Shell()("drill", "heal")
    assert [place.exists() for place in (old, new, used)] == [False, True, True]


def test_a_folder_of_which_something_stays_keeps_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / LEDGER).write_text("{}")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a mount that is busy
    with pytest.raises(OSError, match="store of"):
        folder.remove(tmp_path)
    assert (tmp_path / LEDGER).exists()


def test_a_loop_device_that_losetup_attached_before_it_failed_is_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def called(*command: str) -> str:
        if command[0] == "losetup":
            raise OSError("losetup: killed")
        return ""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        attached = ["losetup", "-d", "/dev/loop9"] not in ran
        said = "/dev/loop9: 0 (image)\n" if command[1] == "-j" and attached else ""
        return subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(loop_disk, "_run", called)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OSError, match="killed"), loop_disk.LoopDisk(tmp_path / "disk", tmp_path / "image"):
        pass
    assert ["losetup", "-d", "/dev/loop9"] in ran
    assert not (tmp_path / "image").exists()


def test_servers_that_could_not_be_ended_keep_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = laid(tmp_path)
    monkeypatch.setattr(found.cluster, "down", lambda: (_ for _ in ()).throw(OSError("no such folder")))
    found.take_down()
    asyncio.run(found.clear())
    assert not is_cleared(tmp_path)
    assert found.left == ["the servers: no such folder"]
