"""A second group beside the first one keeps its promises, and what breaks them there is found."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.service import Broker
from chaos.bugs import planted
from chaos.drills.simulated.run import Result, run_plan
from chaos.faults import Fault, FlipBit, Isolate, Kill, Partition, PowerFail, Restart, SlowDisk, Step
from chaos.history import Happened, History, Observed
from chaos.scenarios import Plan, find, swarm
from chaos.scenarios.last_draws import EPOCHS, EPOCHS_FLIPS_MAX
from chaos.sim import cluster as cluster_of_the_world
from chaos.sim.cluster import NEIGHBOUR_GROUP, SimCluster, WorldConfig
from chaos.sim.faults import Nemesis
from chaos.sim.loop import START_S
from chaos.sim.losses import Losses
from chaos.sim.neighbour import epochs_gone_back
from chaos.sim.standing import standing as standing_of

ALL = {"allAckInSyncStateSet": "true", "flushDiskType": "SYNC_FLUSH"}
ASYNC = {"allAckInSyncStateSet": "false", "brokerRole": "ASYNC_MASTER", "flushDiskType": "ASYNC_FLUSH"}
IN_TURN = [
    Step(400, Kill("c1"), "one"),
    Step(3000, Restart("=one")),
    Step(5000, Kill("c2"), "two"),
    Step(7500, Restart("=two")),
]


def run(steps: list[Step], load_ms: int, bug: str | None = None, *, tolerates: int | None = None) -> Result:
    broker = ALL if tolerates is None else ASYNC
    plan = Plan(steps, load_ms=load_ms, broker=broker, tolerates=tolerates, neighbour=True, swarm=True)
    with planted(bug):
        return run_plan("swarm", 1, plan, bug, None)


@pytest.mark.sim
def test_a_group_whose_brokers_die_in_turn_keeps_what_it_answered() -> None:
    result = run(IN_TURN, 9000)
    assert result.violations == []
    assert result.coverage["neighbour.ok"] > 20
    assert result.coverage["neighbour.slave>master"] > 0
    assert "role.slave>master" not in result.coverage, "nothing befell the first group"


@pytest.mark.sim
def test_two_that_lead_in_one_epoch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while its slave takes itself for a master; no other check looks at this group."""
    standing = standing_of

    def both_lead(broker: Broker) -> dict[str, Any]:
        said = standing(broker)
        own = broker.context.config.broker_name == NEIGHBOUR_GROUP
        now_ms = broker.context.env.monotonic_ms() - START_S * 1000
        return {**said, "role": "master"} if own and 5000 < now_ms < 5300 else said

    monkeypatch.setattr(cluster_of_the_world, "standing", both_lead)
    result = run([], 5000)
    assert {violation.checker for violation in result.violations} == {"neighbour"}
    assert "are masters of epoch 1" in result.violations[0].text


@pytest.mark.sim
def test_what_it_answered_and_lost_is_found_and_not_excused_by_the_first_group() -> None:
    """Its brokers lose power, and did not sync; a death excuses losses of the first group at that time."""
    struck = (Kill("b1"), PowerFail("c1"), PowerFail("c2"))
    steps = [
        *(Step(1500, fault, fault.target) for fault in struck),
        *(Step(2000, Restart(f"={fault.target}")) for fault in struck),
    ]
    result = run(steps, 3000, "skip_sync", tolerates=1)
    assert {violation.checker for violation in result.violations} == {"neighbour"}
    assert any("lost: beside-" in violation.text for violation in result.violations), result.violations


@pytest.mark.sim
def test_a_group_that_is_not_whole_in_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = SimCluster.complete

    def without_one(self: SimCluster, kind: str = "broker") -> str | None:
        told = kind == "neighbour" and self.clock() > 3000
        return "c2 not serving" if told else complete(self, kind)

    monkeypatch.setattr(SimCluster, "complete", without_one)
    result = run([], 3000)
    assert [v.text for v in result.violations] == ["not whole 20000 ms after all was healed: c2 not serving"]


def test_an_epoch_that_goes_back_is_found() -> None:
    def seen(node: str, epoch: int, role: str = "master", life: int = 1) -> Observed:
        return Observed(1.0, node, life, role, epoch, 0, 0)

    assert list(epochs_gone_back([seen("c1", 2), seen("c2", 3), seen("c1", 2), seen("c2", 3)])) == []
    assert len(list(epochs_gone_back([seen("c1", 2), seen("c1", 1, "slave"), seen("c1", 3)]))) == 1
    assert len(list(epochs_gone_back([seen("c2", 3), seen("c1", 2)]))) == 1
    assert (
        list(epochs_gone_back([seen("c1", 2), seen("c1", 1, "slave", life=2), seen("c1", 2, life=2)])) == []
    )


@pytest.fixture
def cluster() -> SimCluster:
    return SimCluster(1, WorldConfig(neighbour=True), History())


@pytest.mark.parametrize(
    ("target", "shape", "cut_off"),
    [
        ("c1", "peers", {"c2"}),
        ("c1", "slaves", {"c2"}),
        ("c1", "servers", {"n0", "n1", "n2", "b1", "b2", "b3", "c2"}),
        ("b1", "peers", {"b2", "b3"}),
        ("b1", "slaves", {"b2", "b3"}),
        ("b1", "servers", {"n0", "n1", "n2", "b2", "b3", "c1", "c2"}),
        ("n0", "slaves", {"b1", "b2", "b3", "c1", "c2"}),
        ("n0", "peers", {"n1", "n2"}),
    ],
)
def test_a_partition_knows_both_groups(
    cluster: SimCluster, target: str, shape: str, cut_off: set[str]
) -> None:
    cuts: set[str] = set()
    cluster.cut = lambda one, other, direction="both": cuts.add(other)  # type: ignore[method-assign]
    Nemesis(cluster, []).act(Step(0, Partition(target, shape)))
    assert cuts == cut_off
    cluster.close()


@pytest.mark.parametrize(
    ("fault", "excuses"),
    [
        (PowerFail("c1"), False),
        (Kill("c1"), False),
        (Isolate("c1"), False),
        (SlowDisk("c1", 5.0), False),
        (Partition("c1", "servers"), False),
        (Partition("c1", "halves"), True),
        (PowerFail("b1"), True),
    ],
)
def test_what_befalls_the_neighbour_alone_excuses_nothing(
    cluster: SimCluster, fault: Fault, excuses: bool
) -> None:
    losses = Losses(cluster, tolerates=1, synced=False, unclean=lambda: False)
    losses.struck(fault, fault.target)
    losses.happened(Happened(1.0, "b2", "promoted", {"epoch": 2}))
    assert losses.bytes_may_be_missing == excuses
    cluster.close()


def plan_of(seed: int) -> Plan:
    return find("swarm").plan(random.Random(f"swarm:{seed}"))


def test_a_neighbour_is_drawn_in_some_seeds_and_changes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "FILLS_SHARE", 0.0)  # about when one of all steps is due, so drawn behind it
    monkeypatch.setattr(swarm, "draw_later", lambda plan, rest: None)  # so is this
    plans = {seed: plan_of(seed) for seed in range(400)}
    monkeypatch.setattr(swarm, "NEIGHBOUR_SHARE", 0.0)
    alone = {seed: plan_of(seed) for seed in plans}
    drawn = [seed for seed, plan in plans.items() if plan.neighbour]
    assert 0.10 < len(drawn) / len(plans) < 0.20
    struck: set[str] = set()
    for seed, plan in plans.items():
        if not plan.neighbour:
            assert plan.to_json() == alone[seed].to_json()
            continue
        former = [step.to_json() for step in alone[seed].steps]
        added = [step for step in plan.steps if step.to_json() not in former]
        assert [step.to_json() for step in plan.steps if step not in added] == former
        bound = {step.bind for step in added}
        assert {step.fault.target for step in added} <= {"", "c1", "c2", *(f"={name}" for name in bound)}
        struck |= {step.fault.name for step in added if step.fault.target in ("c1", "c2")}
        assert plan.controller == {}
    names = {"kill", "power_fail", "stop", "pause", "isolate", "partition", "cut", "slow_disk"}
    assert struck == {*names, "slow_network", "reset_links"}


def test_a_swarm_draws_other_rules_for_it_and_epochs_that_rot() -> None:
    plans = [find("swarm").drawn(seed) for seed in range(400)]
    beside = [plan for plan in plans if plan.neighbour]
    assert 0.3 < sum(bool(plan.neighbour_broker) for plan in beside) / len(beside) < 0.7
    assert not any(plan.neighbour_broker for plan in plans if not plan.neighbour)
    rots = [
        [step.fault for step in plan.steps].count(FlipBit(name, EPOCHS))
        for plan in plans
        for name in _flipped(plan)
    ]
    assert 20 < len(rots) < 60
    assert max(rots) == EPOCHS_FLIPS_MAX


def _flipped(plan: Plan) -> set[str]:
    return {step.fault.target for step in plan.steps if getattr(step.fault, "prefix", "") == EPOCHS}


def test_its_rule_is_what_its_brokers_are_configured_with() -> None:
    config = WorldConfig(
        neighbour=True, neighbour_broker={"majorityAck": "true", "allAckInSyncStateSet": "false"}
    )
    cluster = SimCluster(1, config, History())
    try:
        for name in ("b1", "c1"):
            cluster.start(name)
            env = cluster.nodes[name].env
            assert env is not None
            server = cluster._build(cluster.nodes[name], env)
            assert isinstance(server, Broker)
            assert server.context.config.majority_ack == (name == "c1")
    finally:
        cluster.close()
