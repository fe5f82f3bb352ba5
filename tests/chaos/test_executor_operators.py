"""The promise of the live executor: an operator's change is done to its end, or told with the reason."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from admin.local.layout import Node
from chaos import faults
from chaos.faults import Step
from chaos.history import ENDED_FAULT, Happened
from chaos.live import executor as executors
from chaos.live import operator as operators
from chaos.scenarios.live_only import Join, Leave, Replace
from client.admin import SyncState
from model.errors import MqError
from tests.chaos.executor_world import World
from tests.waiting import until


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


def with_store(world: World) -> tuple[Node, Path]:
    """broker-a-1, and its store, which is not empty."""
    node = world.cluster.layout.node("broker-a-1")
    (store := world.cluster.store_path(node)).mkdir(parents=True)
    (store / "checkpoint").write_text("x")
    return node, store


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
    node, store = with_store(world)
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
    node, store = with_store(world)
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
    node, store = with_store(world)
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
