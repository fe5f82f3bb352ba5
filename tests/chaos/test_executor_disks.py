"""The promise of the live executor: what befalls a disk or a process befalls it, or is no strike."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos import faults
from chaos.faults import Step
from chaos.history import ENDED_FAULT
from chaos.live import ground as grounds
from chaos.live import means
from chaos.live.ground import Short, flip_bit
from chaos.scenarios import live_only
from chaos.scenarios.live_only import LostLog, MemoryLimit, ReadOnlyDisk, Toxic, tear
from tests.chaos.executor_world import World
from tests.waiting import until

OPENS = """
import os, sys
for line in sys.stdin:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
        print("opened", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def opener() -> Iterator[subprocess.Popen[str]]:
    """A process that opens a file for each line it is sent, and says what came of it."""
    command, pipe = [sys.executable, "-S", "-c", OPENS], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        yield process


def opened(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("open\n")
    return process.stdout.readline().strip()


async def test_a_process_has_no_descriptor_until_it_gets_them_back(
    tmp_path: Path, opener: subprocess.Popen[str]
) -> None:
    world = World(tmp_path)
    world.cluster.layout.broker_nodes[0].pid = opener.pid
    _, hard = resource.prlimit(opener.pid, resource.RLIMIT_NOFILE)
    limits = (hard // 2, hard)
    resource.prlimit(opener.pid, resource.RLIMIT_NOFILE, limits)
    assert opened(opener) == "opened"
    await world.do(faults.NoDescriptors("b1"), "hit")
    assert opened(opener) == str(errno.EMFILE)
    assert not await world.executor._mended()
    await world.do(faults.NoDescriptors("b1"))
    await world.do(faults.NoDescriptors("=hit", lacking=False))
    assert opened(opener) == "opened"
    assert resource.prlimit(opener.pid, resource.RLIMIT_NOFILE) == limits, "no more than it had"
    assert await world.executor._mended()
    await world.do(faults.NoDescriptors("b1"))
    await world.executor.stop()
    assert opened(opener) == "opened", "whatever is broken is mended at the end"
    opener.kill()
    opener.wait()
    world.ground.short["broker-a-0"] = Short(opener.pid, hard)
    await world.do(faults.NoDescriptors("b1", lacking=False))
    assert world.executor.outcome.missed["no_descriptors"] == 1, "it has ended"


async def test_a_server_whose_descriptors_could_not_be_taken_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.cluster.layout.broker_nodes[0].pid = os.getpid()

    def refused(pid: int) -> int:
        raise PermissionError("not yours")

    monkeypatch.setattr(grounds, "_first_free", refused)
    await world.do(faults.NoDescriptors("b1"))
    assert "not yours" in world.executor.outcome.refused[0]["reason"]
    assert await world.executor._mended()


STRACE = """#!/bin/sh
echo "strace: Process $3 attached" >&2
for _ in $CHANGED; do echo "fdatasync(3) = 0 $MARK" >&2; done
exec sleep 60
"""


@pytest.fixture
def strace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A strace that tells of as many changed calls as CHANGED has words."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "strace").write_text(STRACE)
    (tmp_path / "bin" / "strace").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CHANGED", "")
    monkeypatch.setenv("MARK", "(INJECTED)")
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    return monkeypatch


@pytest.mark.parametrize("mark", ["(INJECTED)", "(DELAYED)"])
@pytest.mark.parametrize("fault", [faults.LyingSync("b1"), faults.SlowDisk("b1"), faults.SyncError("b1", 2)])
async def test_what_strace_changed_in_no_call_is_no_strike(
    fault: faults.Fault, mark: str, tmp_path: Path, strace: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.cluster.layout.broker_nodes[0].pid = os.getpid()
    world.cluster.layout.broker_nodes[1].pid = os.getpid()
    await world.do(fault)
    strace.setenv("CHANGED", "one two")
    strace.setenv("MARK", mark)
    await world.do(replace(fault, target="b2"))
    await until(lambda: all(t.injected or t.fault for t in world.executor._tracers.values()))
    await asyncio.sleep(0.05)
    await world.executor.stop()
    outcome, name = world.executor.outcome, fault.name
    assert (outcome.done[name], outcome.missed[name], outcome.injected[name]) == (1, 1, 2)
    assert outcome.to_json()["injected"] == {name: 2}
    ended = [(e.node, e.fields["fault"]) for e in world.history.happened(ENDED_FAULT)]
    assert sorted(ended) == [("broker-a-0", name), ("broker-a-1", name)]
    assert not world.ground.tracers


async def test_a_second_tracer_ends_the_first_ones_fault(tmp_path: Path, strace: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.cluster.layout.broker_nodes[0].pid = os.getpid()
    strace.setenv("CHANGED", "one")
    for fault in (faults.SlowDisk("b1"), faults.LyingSync("b1")):
        await world.do(fault)
        await until(lambda: all(tracer.injected for tracer in world.executor._tracers.values()))
    assert [e.fields["fault"] for e in world.history.happened(ENDED_FAULT)] == ["slow_disk"]
    await world.do(faults.LyingSync("b1", lying=False))
    assert world.executor.outcome.done == {"slow_disk": 1, "lying_sync": 2}
    await world.executor.stop()


async def test_only_a_dead_broker_is_wiped(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = tmp_path / "store" / "broker-a-1" / "commitlog"
    store.mkdir(parents=True)
    (store / "0").write_bytes(b"x")
    await world.do(faults.Wipe("b2"))
    assert (world.executor.outcome.missed["wipe"], (store / "0").exists()) == (1, True)
    await world.do(faults.Kill("b2"))
    await world.do(faults.Wipe("b2"))
    assert list(store.parent.iterdir()) == []


async def test_only_a_dead_brokers_disk_is_put_back_as_it_was_at_its_last_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = tmp_path / "store" / "broker-a-1" / "commitlog"
    store.mkdir(parents=True)
    (store / "0").write_bytes(b"x")
    await world.do(faults.Kill("b2"))
    await world.do(faults.PutBack("b2"))
    assert world.executor.outcome.missed["put_back"] == 1, "there is no snapshot"
    for content in (b"older", b"as it was", b"newer"):
        (store / "0").write_bytes(content)
        if content != b"newer":
            await world.do(faults.Snapshot("b2"))
    (store / "1").write_bytes(b"came later")
    await world.do(faults.PutBack("b2"))
    assert [(path.name, path.read_bytes()) for path in store.iterdir()] == [("0", b"as it was")]


def test_a_flipped_bit_is_one_bit_of_what_was_written(tmp_path: Path) -> None:
    written = b"record" * 100
    (tmp_path / "empty").write_bytes(bytes(1000))
    (tmp_path / "log").write_bytes(written + bytes(5000))
    found = flip_bit(tmp_path, random.Random(3))
    assert found is not None
    path, at = found
    now = path.read_bytes()
    changed = [n for n, byte in enumerate(written) if byte != now[n]]
    assert (path.name, changed, now[600:]) == ("log", [at], bytes(5000))
    assert (written[at] ^ now[at]).bit_count() == 1
    assert flip_bit(tmp_path / "nothing", random.Random(3)) is None


async def test_a_process_gets_no_more_memory_until_it_is_given_back(
    tmp_path: Path, opener: subprocess.Popen[str]
) -> None:
    world = World(tmp_path)
    world.cluster.layout.broker_nodes[0].pid = opener.pid
    free = resource.prlimit(opener.pid, resource.RLIMIT_AS)
    await world.do(MemoryLimit("b1", 8))
    assert resource.prlimit(opener.pid, resource.RLIMIT_AS)[0] < 1 << 32
    await world.do(MemoryLimit("b1", lacking=False))
    assert resource.prlimit(opener.pid, resource.RLIMIT_AS) == free
    await world.do(MemoryLimit("b1", lacking=False))
    assert world.executor.outcome.missed == {"memory_limit": 1}
    await world.do(MemoryLimit("b1", 8))
    await world.executor.stop()
    assert resource.prlimit(opener.pid, resource.RLIMIT_AS) == free, "whatever is broken is mended at the end"


async def test_a_disk_that_takes_no_writes_is_mounted_anew_when_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    monkeypatch.setattr(live_only, "END_S", 0.05)
    world = World(tmp_path, stops_after=2)
    disk = world.ground.disks["broker-a-0"] = cast(Any, SimpleNamespace(writable=True, full=False))
    disk.abort = lambda: setattr(disk, "writable", False)
    disk.power_on = lambda: setattr(disk, "writable", True)
    disk.fill = lambda full: None
    for read_only in (False, True, True, False):
        await world.do(ReadOnlyDisk("b1", read_only=read_only))
    assert not disk.writable, "its process runs"
    assert not await world.executor._mended()
    outcome = world.executor.outcome
    assert ["did not end" in one["reason"] for one in outcome.refused] == [True]
    await world.do(faults.Kill("b1"))
    await world.do(ReadOnlyDisk("b1", read_only=False))
    assert disk.writable, "the end of its process was waited for"
    await world.executor.revive()
    assert world.cluster.started == ["broker-a-0"]
    await world.do(ReadOnlyDisk("b1"))
    await world.executor.revive()
    assert disk.writable
    assert (outcome.done["read_only_disk"], outcome.missed["read_only_disk"], outcome.errors) == (3, 2, [])
    await world.do(ReadOnlyDisk("b1"))
    monkeypatch.setattr(world.cluster, "send_signal", lambda node, number: True)
    await world.executor.stop()
    (error,) = outcome.errors
    assert "did not end" in error


async def test_a_disk_that_is_full_is_not_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    world = World(tmp_path)
    disk = world.ground.disks["broker-a-0"] = cast(Any, SimpleNamespace(full=False))
    disk.fill = lambda full: setattr(disk, "full", full)
    for full in (False, True, True, False):
        await world.do(faults.DiskFull("b1", full=full))
    outcome = world.executor.outcome
    assert (outcome.done["disk_full"], outcome.missed["disk_full"]) == (2, 2)


async def test_only_a_dead_brokers_log_is_lost_and_nothing_else_of_its_store(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = tmp_path / "store" / "broker-a-1"
    (store / "commitlog").mkdir(parents=True)
    for name in ("commitlog/0", "checkpoint"):
        (store / name).write_bytes(b"x")
    fault = LostLog("b2")
    assert Step.from_json({"at_ms": 1, **fault.to_json()}).fault == fault
    await world.do(fault)
    await world.do(faults.Kill("b2"))
    await world.do(fault)
    assert (world.executor.outcome.missed["lost_log"], world.executor.outcome.done["lost_log"]) == (1, 1)
    assert sorted(str(path.relative_to(store)) for path in store.rglob("*")) == ["checkpoint", "commitlog"]


async def test_a_toxic_needs_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    world, spoilt = World(tmp_path), list[Any]()

    async def spoil(*told: object) -> None:
        spoilt.append(told)

    fault = Step.from_json({"at_ms": 1, **Toxic("b1", "bandwidth", {"rate": 5}).to_json()}).fault
    await world.do(fault)
    assert [one["reason"] for one in world.executor.outcome.refused] == ["needs --links toxiproxy"]
    world.ground.network = cast(Any, SimpleNamespace(detours=SimpleNamespace(spoil=spoil)))
    await world.do(fault)
    assert spoilt == [("broker-a-0", "bandwidth", {"rate": 5})]


def test_a_torn_write_is_every_second_sector_of_what_another_replica_has(tmp_path: Path) -> None:
    stores = [tmp_path / name for name in ("a", "b")]
    whole = bytes(range(1, 256)) * 40
    for store, written in zip(stores, (700, 6000), strict=True):
        (store / "commitlog").mkdir(parents=True)
        (store / "commitlog" / "00").write_bytes(whole[:written].ljust(8192, b"\0"))
    assert not tear(stores[1], stores[:1]), "nobody has more"
    assert tear(stores[0], stores[1:])
    now = (stores[0] / "commitlog" / "00").read_bytes()
    assert now[:700] == whole[:700]
    kept = [at for at in range(2, 16) if now[at * 512 :][:512] == whole[at * 512 :][:512]]
    assert kept == [3, 5, 7, 9]
    assert not any(now[at * 512 :][:512].strip(b"\0") for at in range(2, 16) if at not in kept)
    assert not tear(tmp_path / "c", stores)
    for store, kept_bytes in zip(stores, (b"", whole[:6000]), strict=True):  # reserved, and in use
        (store / "commitlog" / "01").write_bytes(kept_bytes.ljust(8192, b"\0"))
    assert not tear(stores[0], stores[1:])
