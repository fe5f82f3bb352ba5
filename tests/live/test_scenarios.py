"""The promise of drills by plan, on real processes: nothing is lost, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.local.layout import STATE_FILE
from chaos.drills.live.commands import PREFIX
from chaos.live import loop_disk
from chaos.live.loop_disk import LoopDisk
from chaos.live.network import CLIENTS, Network, unavailable
from chaos.live.noted import LEDGER
from tests import ROOT
from tests.live.commands import keelmq

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
needs_network = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
ECHO = (
    "import socket,sys;c,_=socket.create_server((sys.argv[1],5000)).accept()\nwhile d:=c.recv(9):c.sendall(d)"
)
TRIES_A_DISK = """
import sys
from chaos.live import loop_disk

def stands(disk):
    print("there", flush=True)
    sys.stdin.read()

setattr(loop_disk.LoopDisk, sys.argv[1], stands)
loop_disk.unavailable()
"""
SHORT = "isolated_master_confirms_nothing_its_successor_lacks"


def left_of(network: str = "keelmq-") -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(network)]


@needs_network
async def test_a_connection_goes_on_after_a_cut_one_way_and_ends_by_a_reset() -> None:
    network = await Network.lay(["server"], random.Random())
    echo = await asyncio.create_subprocess_exec(
        *(*network.enter("server"), sys.executable, "-c", ECHO, network.host("server")),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        reader, writer = await _connected(network.host("server"))
        await network.cut(CLIENTS, "server", "out")
        writer.write(b"cut")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(3), 0.3)
        await network.heal()
        assert await asyncio.wait_for(reader.read(3), 20) == b"cut"
        assert await network.reset("server") == 1
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(3)
    finally:
        await echo.wait()  # the reset ended it
        await network.stop()
    assert not left_of(network.namespace("server"))


@needs_network
async def test_a_namespace_is_noted_before_it_is_made() -> None:
    noted: list[str] = []

    def note(network: Network) -> None:
        noted.extend(network.namespaces())
        assert not left_of(network.namespace("one"))

    network = await Network.lay(["one"], random.Random(), note)
    made = left_of(network.namespace("one"))
    await network.stop()
    assert noted == [line.split()[0] for line in made] == [network.namespace("one")]


async def _connected(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(20):
        while True:
            try:
                return await asyncio.open_connection(host, 5000)
            except OSError:
                await asyncio.sleep(0.02)  # Python takes a moment to start


@pytest.mark.skipif(loop_disk.unavailable() is not None, reason=str(loop_disk.unavailable()))
def test_a_disk_has_power_again_also_while_a_starting_process_still_holds_its_mount(tmp_path: Path) -> None:
    with LoopDisk(tmp_path / "disk", tmp_path / "image", megabytes=16) as disk:
        (disk.mount / "kept").touch()
        subprocess.run(["sync", "-f", str(disk.mount)], check=True)
        holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo held; exec sleep 0.5"],
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        disk.power_off()
        disk.power_on()
        (disk.mount / "written").write_text("x")
        assert (disk.mount / "kept").exists()
        holder.communicate()


@pytest.mark.more
@needs_network
def test_a_partition_of_real_processes_loses_nothing_and_is_replayed(tmp_path: Path) -> None:
    out, again = tmp_path / "run.json", tmp_path / "again.json"
    done = keelmq("drill", "run", SHORT, "--seed", "3", "--extras", "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["faults"]["done"] == {"isolate": 1, "heal": 1}
    assert (result["lost_total"], result["violations"], result["refused_total"]) == (0, [], 0)
    assert sum(count for kind, count in result["extras"].items() if kind != "extra.failed") > 0
    done = keelmq("drill", "replay", out, "--json", again)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(again.read_text())["plan"] == result["plan"]


def started(place: Path) -> int:
    """How many servers a drill has begun."""
    try:
        return sum(bool(node["pid"]) for node in json.loads((place / STATE_FILE).read_text())["nodes"])
    except (OSError, ValueError):
        return 0


def mounted(place: Path) -> int:
    return Path("/proc/mounts").read_text().count(f" {place.resolve()}/")


POINTS: dict[str, tuple[Callable[[Path], bool], float]] = {
    "noted": (lambda place: True, 0.0),
    "a namespace": (lambda place: bool(json.loads((place / LEDGER).read_text())["namespaces"]), 0.0),
    "a disk": (lambda place: mounted(place) >= 1, 0.0),
    "all disks": (lambda place: mounted(place) >= 6, 0.0),
    "a server": (lambda place: started(place) >= 1, 0.0),
    "all servers": (lambda place: started(place) == 6, 0.0),
    "just after": (lambda place: started(place) == 6, 1.0),
    "under load": (lambda place: started(place) == 6, 4.0),
    "struck": (lambda place: started(place) == 6, 8.0),
    "mended": (lambda place: started(place) == 6, 14.0),
}
"""Where a drill is killed: how far it came, and seconds after that."""


@pytest.mark.more
@needs_network
@pytest.mark.parametrize("point", POINTS)
def test_after_a_drill_was_killed_heal_leaves_nothing(tmp_path: Path, point: str) -> None:
    reached, after_s = POINTS[point]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "drill", "run", "power_fails_on_one_machine"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
    ) as drill:
        deadline = time.monotonic() + 60
        while not (found := list(tmp_path.glob(f"{PREFIX}*/{LEDGER}"))) or not reached(found[0].parent):
            assert time.monotonic() < deadline, "the drill did not come so far"
            time.sleep(0.005)
        time.sleep(after_s)
        left = json.loads(found[0].read_text())
        drill.send_signal(signal.SIGKILL)
        drill.wait(10)
    healed = keelmq("drill", "heal", env=env)
    assert healed.returncode == 0, healed.stdout + healed.stderr
    listed = set(left_of())
    assert not [name for name in left["namespaces"] if any(name == line.split()[0] for line in listed)]
    mounts = Path("/proc/mounts").read_text()
    assert str(tmp_path) not in mounts
    assert list(tmp_path.iterdir()) == []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(tmp_path).encode() not in path.read_bytes()
        except OSError:
            continue


@pytest.mark.skipif(loop_disk.unavailable() is not None, reason=str(loop_disk.unavailable()))
@pytest.mark.parametrize("point", ["_mount", "power_off", "power_on"])
def test_after_a_command_was_killed_while_it_tried_a_disk_nothing_of_it_stays(
    tmp_path: Path, point: str
) -> None:
    command = [sys.executable, "-c", TRIES_A_DISK, point]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        child.kill()
    place = next(tmp_path.glob(f"{loop_disk.TRIAL}*"))
    assert str(place) in _devices()
    assert (str(place) in Path("/proc/mounts").read_text()) is (point != "_mount")
    assert loop_disk.sweep(tmp_path) == [str(place)]
    assert str(place) not in _devices() + Path("/proc/mounts").read_text()
    assert not place.exists()


def _devices() -> str:
    return subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout


@pytest.mark.more
@needs_network
def test_a_killed_drill_that_keeps_its_folder_elsewhere_is_found_and_its_stores_stay(tmp_path: Path) -> None:
    own, kept = tmp_path / "tmp", tmp_path / "kept"
    own.mkdir()
    env = {**os.environ, "TMPDIR": str(own)}
    command = ["drill", "run", "power_fails_on_one_machine", "--keep", str(kept)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *command], cwd=ROOT, stdout=quiet, stderr=quiet, env=env
    ) as drill:
        deadline = time.monotonic() + 60
        while len(list(kept.glob("store/*/commitlog/0*"))) < 3:
            assert time.monotonic() < deadline, "the drill did not come so far"
            time.sleep(0.01)
        assert list(own.glob(f"{PREFIX}*.at"))
        drill.send_signal(signal.SIGKILL)
        drill.wait(10)
    healed = keelmq("drill", "heal", env=env)
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert list(own.iterdir()) == []
    assert len(list(kept.glob("store/*/commitlog/0*"))) >= 3, "what lay on the disks is in their place"
    assert not list(kept.glob("disks/*.img"))
    assert not (kept / LEDGER).exists()
