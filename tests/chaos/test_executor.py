"""The promise of the live executor: a step of a plan hits who it names, or is counted with the reason."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos import faults
from chaos.checks.liveness import FULL
from chaos.faults import Step
from chaos.history import ENDED_FAULT, GOES_ON, Happened
from chaos.live import executor as executors
from chaos.live import means
from chaos.live.switch import Rule
from chaos.scenarios.live_only import LostLog
from tests.chaos.executor_world import World
from tests.waiting import until


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


def test_every_fault_has_what_carries_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = SimpleNamespace(name="meteor")
    monkeypatch.setattr(executors, "FAULTS", {**faults.FAULTS, "meteor": new})
    with pytest.raises(AttributeError, match="meteor"):
        World(tmp_path)
