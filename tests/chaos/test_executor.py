"""The promise of the live executor: a step of a plan hits who it names, or is counted with the reason."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos import faults
from chaos.checks.liveness import FULL
from chaos.faults import Step
from chaos.history import ENDED_FAULT, GOES_ON, LAUNCHED, Happened, History
from chaos.live import executor as executors
from chaos.live import ground as grounds
from chaos.live import means
from chaos.live import operator as operators
from chaos.live.executor import Executor
from chaos.live.ground import Ground, Short, flip_bit
from chaos.live.onlooker import Onlooker
from chaos.live.switch import Rule
from chaos.scenarios import live_only
from chaos.scenarios.live_only import Join, Leave, LostLog, MemoryLimit, ReadOnlyDisk, Replace, Toxic, tear
from client.admin import SyncState
from model.errors import MqError
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster
from tests.waiting import until


class World:
    """An executor on a cluster of names, on ground without anything."""

    def __init__(self, directory: Path, stops_after: int = 0) -> None:
        self.cluster = FakeCluster(directory, stops_after)
        self.history = History()
        self.ground = Ground(self.cluster)
        self.onlooker = Onlooker(OsEnv(seed=1), self.cluster, self.history, self.clock)
        self.onlooker.views = {
            "broker-a-0": {"role": "master", "epoch": 1},
            "broker-a-1": {"role": "master", "epoch": 2},
            "broker-a-2": {"role": "slave", "epoch": 2},
            "namesrv-0": {"controller": {"isLeader": True, "term": 4}},
            "namesrv-2": {"controller": {"isLeader": True, "term": 5}},
        }
        self.executor = Executor(
            OsEnv(seed=1),
            self.cluster,
            self.ground,
            self.onlooker,
            self.history,
            self.clock,
            random.Random(1),
        )

    @staticmethod
    def clock() -> float:
        return time.monotonic() * 1000

    async def do(self, fault: faults.Fault, bind: str = "") -> None:
        await self.executor.act(Step(0, fault, bind))

    @property
    def struck(self) -> list[tuple[str, str]]:
        return [(event.node, event.name) for event in self.history.happened() if event.name != LAUNCHED]


async def test_roles_and_names_of_the_simulated_world_are_those_of_this_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    for target in ("master", "slave", "leader", "b1", "n1"):
        await world.do(faults.Pause(target))
    names = [name for name, _ in world.cluster.sent]
    assert names == ["broker-a-1", "broker-a-2", "namesrv-2", "broker-a-0", "namesrv-1"]
    assert {number for _, number in world.cluster.sent} == {signal.SIGSTOP}


async def test_a_bound_name_is_the_node_that_was_hit_then(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.do(faults.Kill("master"), "old")
    world.onlooker.views["broker-a-2"] = {"role": "master", "epoch": 3}
    await world.do(faults.Restart("=old"))
    await until(lambda: world.cluster.started)
    assert world.cluster.started == ["broker-a-1"]
    assert world.struck == [("broker-a-1", "kill"), ("broker-a-1", "restart")]
    told = {e.name: e.fields for e in world.history.happened() if e.name in ("kill", "restart")}
    assert told == {"kill": {}, "restart": {GOES_ON: True}}, "and the history says so"
    await world.executor.stop()


async def test_a_restart_waits_for_the_end_of_an_orderly_stop(tmp_path: Path) -> None:
    world = World(tmp_path, stops_after=4)
    await world.do(faults.Stop("b1"))
    await world.do(faults.Restart("b1"))
    assert world.cluster.started == []
    async with asyncio.timeout(5):
        while not world.cluster.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await world.do(faults.Restart("b1"))
    assert world.executor.outcome.missed["restart"] == 1, "it runs, and nobody told it to end"
    await world.executor.stop()


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([], True),
        (["kill"], True),
        (["disk_full"], False),
        (["disk_full", FULL], True),
        (["odd"], False),
        (["memory_limit"], False),
        (["read_only_disk"], False),
        (["clock_drift", "toxic", "lost_log", "torn_write"], True),
    ],
)
async def test_a_server_that_ends_by_itself_is_told_unless_a_fault_makes_servers_end(
    before: list[str], told: bool, tmp_path: Path
) -> None:
    world = World(tmp_path)
    broker, other = world.cluster.layout.broker_nodes[:2]
    for name in before:
        world.history.add(Happened(1.0, "" if name == FULL else broker.name, name))
    for node in world.cluster.layout.nodes:
        node.pid = 4_000_000
    world.cluster.log_path(broker).parent.mkdir()
    world.cluster.log_path(broker).write_text("Segmentation fault\n")
    world.cluster.running[broker.name] = 0
    await world.do(faults.Kill(other.name))
    await world.executor.revive()
    assert world.cluster.started == [broker.name, other.name]
    assert [text.splitlines() for text in world.executor.outcome.errors] == [
        [f"{broker.name} ended by itself; the last of its log:", "Segmentation fault"]
    ] * told
    await world.executor.stop()


@pytest.mark.parametrize(("number", "told"), [(signal.SIGTERM, True), (signal.SIGKILL, False)])
async def test_an_orderly_stop_that_never_ends_is_told(
    number: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "GONE_S", 0.05)
    monkeypatch.setattr(executors, "POLL_S", 0.04)
    world = World(tmp_path)
    sent: list[int] = []

    def obeys_the_second(node: Any, number: int) -> bool:
        sent.append(number)
        world.cluster.running[node.name] = 10**9 if len(sent) == 1 else 0
        return True

    monkeypatch.setattr(world.cluster, "send_signal", obeys_the_second)
    await world.do(faults.Stop("b1") if number == signal.SIGTERM else faults.Kill("b1"))
    await world.do(faults.Restart("b1"))
    await until(lambda: world.cluster.started)
    assert len([1 for one in world.executor.outcome.errors if "did not end" in one]) == told
    assert sent == [number, signal.SIGKILL]
    await world.executor.stop()


async def test_a_machine_gets_its_power_back_when_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    world = World(tmp_path, stops_after=4)
    done: list[Any] = []

    async def darken(name: str, dark: bool) -> None:
        done.append(("dark", dark))

    async def heal() -> None:
        done.append("heal")

    (tmp_path / "boot").mkdir()
    world.ground.network = cast(Any, SimpleNamespace(darken=darken, heal=heal))
    disk = SimpleNamespace(
        power_off=lambda: done.append("off"), power_on=lambda: done.append("on"), fill=lambda full: None
    )
    world.ground.disks["broker-a-0"] = cast(Any, disk)
    await world.do(faults.PowerFail("b1"))
    await world.do(faults.PowerFail("b1"))
    await world.do(faults.Restart("b1"))
    async with asyncio.timeout(5):
        while not world.cluster.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert done == [("dark", True), "off", "on", ("dark", False)]
    assert world.executor.outcome.missed == {"power_fail": 1}
    await world.executor.stop()


async def test_a_machine_that_is_being_switched_on_is_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    world = World(tmp_path)
    begun: list[str] = []

    async def darken(name: str, dark: bool) -> None:
        begun.append("dark" if dark else f"lit, {len(world.cluster.started)} started")
        await asyncio.sleep(0.01)

    async def heal() -> None: ...

    (tmp_path / "boot").mkdir()
    world.ground.network = cast(Any, SimpleNamespace(darken=darken, heal=heal))
    world.ground.disks["broker-a-0"] = cast(
        Any, SimpleNamespace(power_off=lambda: None, power_on=lambda: None, fill=lambda full: None)
    )
    await world.do(faults.PowerFail("b1"))
    await world.do(faults.Restart("b1"))
    await asyncio.sleep(0)
    await world.executor.revive()
    assert begun == ["dark", "lit, 0 started"]
    assert world.cluster.started == ["broker-a-0"]
    await world.executor.stop()


async def test_a_target_that_nobody_is_counts_as_missed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.onlooker.views.clear()
    await world.do(faults.Kill("master"))
    await world.do(faults.Kill("=nobody"))
    assert world.executor.outcome.missed == {"kill": 2}
    assert not world.struck


async def test_one_by_one_the_next_fault_waits_for_a_whole_group_once_nothing_is_broken(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, stops_after=3)
    waited: list[list[tuple[str, str]]] = []

    async def whole() -> None:
        waited.append(list(world.struck))

    steps = [
        Step(1, faults.Pause("b1")),
        Step(2, faults.Kill("b2")),
        Step(3, faults.Resume("b1")),
        Step(4, faults.Restart("b2")),
        Step(5, faults.Kill("b3")),
        Step(6, faults.Look("b1")),
    ]
    await world.executor.run(steps, 1.0, whole)
    assert [[name for _, name in seen] for seen in waited] == [["pause", "kill", "resume", "restart"]]
    assert world.cluster.started == ["broker-a-1"], "it was started before anybody asked for the whole group"
    await world.executor.stop()


async def test_a_strike_is_carried_out_to_its_end_before_the_whole_group_is_waited_for(
    tmp_path: Path,
) -> None:
    """A broker whose sync failed serves no more until it is restarted: the group would not be whole."""
    world = World(tmp_path)
    waited: list[list[str]] = []

    async def whole() -> None:
        waited.append([name for _, name in world.struck])

    steps = [
        Step(1, faults.Look("b1"), "hit"),
        Step(2, faults.Kill("=hit")),
        Step(3, faults.Restart("=hit")),
        Step(4, faults.Look("b2"), "next"),
        Step(5, faults.Kill("=next")),
    ]
    await world.executor.run(steps, 1.0, whole)
    assert waited == [["look", "kill", "restart"]]
    await world.executor.stop()


@pytest.mark.parametrize("fault", [faults.Isolate("master"), faults.Heal(), faults.PowerFail("master")])
async def test_what_cannot_be_done_here_is_refused_with_the_reason(
    fault: faults.Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: "needs root"))
    world = World(tmp_path)
    await world.do(fault)
    (refused,) = world.executor.outcome.refused
    assert refused == {"at_ms": 0, "fault": fault.name, "reason": "needs root"}
    assert not world.struck
    assert not world.cluster.sent


async def test_links_are_cut_by_name_shape_and_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    world = World(tmp_path)
    cut: list[Any] = []

    async def cut_all(pairs: list[tuple[str, str]], direction: str) -> None:
        network.cut_last = [list(pair) for pair in pairs]
        cut.append((sorted(pairs), direction))

    async def heal() -> None:
        cut.append("healed")

    machines = {node.name: at for at, node in enumerate(world.cluster.layout.nodes)} | {"clients": 250}
    network = SimpleNamespace(machines=machines, cut_all=cut_all, heal=heal, cut_last=[])
    world.ground.network = cast(Any, network)
    await world.do(faults.Cut("master", "brokers", "out"))
    await world.do(faults.Partition("master", "clients"))
    await world.do(faults.Isolate("leader", "in"))
    await world.do(faults.Heal())
    assert cut[0] == ([("broker-a-1", "broker-a-0"), ("broker-a-1", "broker-a-2")], "out")
    assert cut[1] == ([("broker-a-1", "clients")], "both")
    assert cut[2] == ([("namesrv-2", name) for name in sorted(machines) if name != "namesrv-2"], "in")
    assert cut[3] == "healed"
    noted = [event.fields.get("pairs") for event in world.history.happened()]
    assert noted[1] == [["broker-a-1", "clients"]], "what a shape came to is in the history"
    assert noted[3] is None


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (faults.SlowNetwork("master", 7.0), Rule(delay_ms=7.0)),
        (faults.LosePackets("master", 0.5), Rule(loss=0.5)),
        (faults.DoublePackets("master", 0.5), Rule(duplicate=0.5)),
        (faults.ReorderPackets("master", 7.0), Rule(jitter_ms=7.0)),
        (faults.NarrowLinks("master", 2.0), Rule(bytes_per_s=2048.0)),
    ],
)
async def test_what_befalls_packets_is_a_rule_of_the_switch(
    fault: faults.Fault, rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "LACKS", dict.fromkeys(means.LACKS, lambda: None))
    world = World(tmp_path)
    found: list[tuple[str, Rule]] = []

    async def spoil(name: str, **values: float) -> None:
        found.append((name, Rule.from_json(values)))

    world.ground.network = cast(Any, SimpleNamespace(spoil=spoil))
    await world.do(fault)
    assert found == [("broker-a-1", rule)]
    assert world.struck == [("broker-a-1", fault.name)]


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


@pytest.mark.parametrize("why", [None, MqError("no successor")])
async def test_what_an_operator_was_refused_was_not_done(
    why: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*args: object, **more: object) -> None:
        if why is not None:
            raise why

    async def whole(**more: object) -> None:
        await asked()

    monkeypatch.setattr(operators, "hand_over", asked)
    world = World(tmp_path)
    monkeypatch.setattr(world.cluster, "wait_ready", whole)
    for fault in (faults.HandOver("master"), faults.RollingChange("master")):
        await world.do(fault)
        await world.executor._operator.wait()
    outcome = world.executor.outcome
    done = {} if why else {"hand_over": 1, "rolling_change": 1}
    assert outcome.to_json()["done"] == done
    assert [one["reason"] for one in outcome.refused] == ["no successor"] * (2 if why else 0)
    ended = [e.fields["fault"] for e in world.history.happened(ENDED_FAULT)]
    assert ended == ["hand_over", "rolling_change"]
    await world.executor.stop()


class Controllers:
    """What they know of one broker that leaves or is replaced, look by look; the last one for ever."""

    def __init__(self, address: str, *looks: tuple[dict[int, str], dict[int, bool]]) -> None:
        self.address, self.looks, self.forgot = address, list(looks), list[int]()
        self.refuses = 0

    def __call__(self, *_: object, **__: object) -> Controllers:
        return self

    async def __aenter__(self) -> Controllers:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def sync_state(self, controllers: object, groups: object) -> dict[str, SyncState]:
        members, alive = self.looks[0] if len(self.looks) == 1 else self.looks.pop(0)
        return {
            "broker-a": SyncState(
                *("broker-a", 2, "m", 2, 5), members, dict.fromkeys(alive, self.address), alive, {}, {}
            )
        }

    async def forget(self, controllers: object, cluster: str, group: str, ids: list[int]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise MqError("broker 1 lives")
        self.forgot += ids


async def test_a_broker_that_leaves_is_forgotten_once_it_is_dead_and_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    node = world.cluster.layout.node("broker-a-1")
    (store := world.cluster.store_path(node)).mkdir(parents=True)
    (store / "checkpoint").write_text("x")
    one, other = {1: node.address, 2: "m"}, {2: "m"}
    looks = [(one, {1: True}), (one, {1: False}), (other, {1: True}), (other, {1: False})]
    controllers = Controllers(node.address, *looks)
    controllers.refuses = 1
    monkeypatch.setattr(operators, "AdminClient", controllers)
    await world.do(Leave("master"), "hit")
    await world.do(Join("=hit"))
    assert controllers.forgot == [1]
    assert len(controllers.looks) == 1, "each was looked at"
    assert not any(store.iterdir())
    await until(lambda: world.cluster.started)
    assert world.struck[:2] == [("broker-a-1", "leave"), ("broker-a-1", "stop")]
    assert world.executor.outcome.to_json()["done"] == {"leave": 1, "join": 1}
    await world.do(Join("=hit"))
    assert world.executor.outcome.missed == {"join": 1}, "it runs"
    await world.executor.stop()


async def test_a_broker_that_is_replaced_is_forgotten_once_its_successor_is_a_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    node = world.cluster.layout.node("broker-a-1")
    (store := world.cluster.store_path(node)).mkdir(parents=True)
    (store / "checkpoint").write_text("x")
    dead = {1: False, 4: True}
    looks = [({1: node.address}, {1: True}), ({2: "m"}, dead), ({2: "m", 4: node.address}, dead)]
    controllers = Controllers(node.address, *looks)
    monkeypatch.setattr(operators, "AdminClient", controllers)
    await world.do(Replace("master"))
    await world.executor._operator.wait()
    assert (controllers.forgot, len(controllers.looks)) == ([1], 1)
    assert not any(store.iterdir())
    assert world.cluster.started == ["broker-a-1"]
    assert world.cluster.sent == [("broker-a-1", signal.SIGKILL)]
    await world.do(Replace("leader"))
    assert world.executor.outcome.missed == {"replace": 1}, "a NameServer is no broker"
    await world.executor.stop()


@pytest.mark.parametrize("fault", [Leave("master"), Replace("master")])
async def test_a_broker_that_cannot_be_forgotten_did_not_leave(
    fault: faults.Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    node = world.cluster.layout.node("broker-a-1")
    world.cluster.store_path(node).mkdir(parents=True)
    looks = ({1: node.address}, {1: True})
    monkeypatch.setattr(operators, "AdminClient", controllers := Controllers(node.address, looks))
    monkeypatch.setattr(operators, "WHOLE_S", 0.05)
    await world.do(fault)
    await world.executor._operator.wait()
    outcome = world.executor.outcome
    assert (controllers.forgot, outcome.to_json()["done"]) == ([], {})
    assert "member of the SyncStateSet" in outcome.refused[0]["reason"]
    assert [event.fields["emptied"] for event in ends(world)] == [fault.name == "replace"]
    await world.executor.stop()


async def test_a_plan_that_is_cancelled_leaves_no_step_half_done(tmp_path: Path) -> None:
    world, begun, go = World(tmp_path), asyncio.Event(), asyncio.Event()

    async def slow(node: Any, fault: faults.Fault) -> bool:
        begun.set()
        await go.wait()
        return True

    world.executor._acts[faults.Kill] = slow
    steps = [Step(0, faults.Kill("b1")), Step(0, faults.Kill("b2"))]
    running = asyncio.ensure_future(world.executor.run(steps, 1.0))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    assert world.struck == [("broker-a-0", "kill")]


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


@dataclass(frozen=True, slots=True)
class Odd(faults.OwnFault):
    name = "odd"

    async def live(self, cluster: Any, node: Any) -> bool:
        cluster.told.append(f"struck {node.name}")
        if len(cluster.told) > 1:
            raise KeyError("odd")
        return True

    async def mend(self, cluster: Any, node: Any) -> None:
        cluster.told.append(f"mended {node.name}")
        raise ZeroDivisionError


@dataclass(frozen=True, slots=True)
class Odder(Odd):
    name = "odder"
    needs = ("a moon",)


async def test_a_fault_of_another_package_is_mended_and_whatever_it_raises_ends_no_run(
    tmp_path: Path,
) -> None:
    assert faults.kind_of("odder") is Odder
    world = World(tmp_path)
    told = cast(Any, world.cluster).told = []
    await world.do(Odd("b1"))
    await world.do(Odd("b2"))
    await world.do(Odder("b3"))
    await world.executor.revive()
    assert told == ["struck broker-a-0", "struck broker-a-1", "mended broker-a-0"]
    raised, lacks = (one["reason"] for one in world.executor.outcome.refused)
    assert raised == "it raised KeyError('odd')"
    assert lacks.startswith("needs a moon, which is none of namespaces")
    (error,) = world.executor.outcome.errors
    assert "could not be mended" in error
    world.ground.own.append((world.cluster.layout.broker_nodes[0], LostLog("b1")))
    await world.executor.stop()
    ended = [e.fields for e in world.history.happened(ENDED_FAULT)]
    assert ended == [{"fault": "odd"}], "of a lost log nothing is mended"


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


async def test_a_broker_that_is_to_leave_and_never_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "GONE_S", 0.05)
    monkeypatch.setattr(executors, "POLL_S", 0.04)
    world = World(tmp_path)
    node = world.cluster.layout.broker_nodes[0]
    sent: list[int] = []

    def obeys_the_second(of: Any, number: int) -> bool:
        sent.append(number)
        world.cluster.running[of.name] = 10**9 if len(sent) == 1 else 0
        return True

    world.cluster.running[node.name] = 10**9
    monkeypatch.setattr(world.cluster, "send_signal", obeys_the_second)
    await world.executor._gone(node, signal.SIGTERM, Leave("b1"))
    assert sent == [signal.SIGTERM, signal.SIGKILL]
    (error,) = world.executor.outcome.errors
    assert "did not end" in error


async def test_a_process_that_no_signal_ends_is_refused_and_nobody_waits_for_it_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs keeps it."""
    monkeypatch.setattr(executors, "GONE_S", 0.02)
    monkeypatch.setattr(executors, "KILLED_S", 0.1)
    world = World(tmp_path, stops_after=10**9)
    address = world.cluster.layout.node("broker-a-1").address
    monkeypatch.setattr(operators, "AdminClient", Controllers(address, ({1: address}, {1: True})))
    await world.do(Replace("master"))
    await world.executor._operator.wait()
    await world.do(faults.Kill("b1"))
    await world.executor.revive()
    reasons = {one["fault"]: one["reason"] for one in world.executor.outcome.refused}
    assert reasons.keys() == {"replace", "restart"}
    assert all("of SIGKILL" in reason for reason in reasons.values())
    assert world.cluster.started == []
    assert [event.fields["emptied"] for event in ends(world)] == [False], "it was there to the end"
    await world.executor.stop()


def ends(world: World) -> list[Happened]:
    return [event for event in world.history.happened() if event.name == ENDED_FAULT]


async def test_whatever_ends_an_operator_is_told_with_the_steps_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that came to nothing is not done, of whatever kind the error is; nor one without an end."""
    world = World(tmp_path)

    async def fails(*_: object, **__: object) -> None:
        raise KeyError("no answer")

    monkeypatch.setattr(operators, "hand_over", fails)
    await world.executor.act(Step(70, faults.HandOver("master")))
    await world.executor._operator.wait()

    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(operators, "hand_over", never)
    monkeypatch.setattr(operators, "WORK_S", 0.02)
    await world.executor.act(Step(90, faults.HandOver("master")))
    await world.executor._operator.wait()
    outcome = world.executor.outcome
    assert outcome.to_json()["done"] == {}
    assert [one["at_ms"] for one in outcome.refused] == [70, 90]
    assert "KeyError" in outcome.refused[0]["reason"]
    assert "no end" in outcome.refused[1]["reason"]
    assert [e.fields.get("refused") for e in world.history.happened(ENDED_FAULT)] == [True, True]
    await world.executor.stop()


async def test_nobody_starts_a_broker_that_is_taken_out_until_its_disk_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    node = world.cluster.layout.node("broker-a-1")
    (store := world.cluster.store_path(node)).mkdir(parents=True)
    (store / "checkpoint").write_text("x")
    looks = [({1: node.address}, {1: True}), ({1: node.address}, {1: False})]
    monkeypatch.setattr(operators, "AdminClient", controllers := Controllers(node.address, *looks))
    await world.do(Leave("master"), "hit")
    await until(lambda: not world.cluster.running[node.name])
    await world.do(faults.Restart("=hit"))
    await asyncio.sleep(0.05)
    assert world.cluster.started == []
    controllers.looks.append(({2: "m"}, {2: True}))
    await world.executor._operator.wait()
    await until(lambda: world.cluster.started)
    assert not any(store.iterdir())
    assert world.executor.outcome.refused == []
    await world.executor.stop()


@pytest.mark.parametrize("fault", [Leave("master"), Replace("master")])
async def test_a_disk_that_could_not_be_emptied_is_no_broker_that_left(
    fault: faults.Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    node = world.cluster.layout.node("broker-a-1")
    looks = [({1: node.address}, {1: True}), ({2: "m"}, {2: True})]
    monkeypatch.setattr(operators, "AdminClient", Controllers(node.address, *looks))

    async def runs(*_: object) -> bool:
        return False

    monkeypatch.setattr(world.executor, "_wipe", runs)
    await world.do(fault)
    await world.executor._operator.wait()
    assert world.executor.outcome.to_json()["done"] == {}
    assert "disk is as it was" in world.executor.outcome.refused[0]["reason"]
    await world.executor.stop()


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


def test_every_fault_has_what_carries_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = SimpleNamespace(name="meteor")
    monkeypatch.setattr(executors, "FAULTS", {**faults.FAULTS, "meteor": new})
    with pytest.raises(AttributeError, match="meteor"):
        World(tmp_path)
