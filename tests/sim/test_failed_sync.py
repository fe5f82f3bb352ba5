"""The promise of SYNC_FLUSH to a group: a sync that failed, a restart in the same boot and a power failure
later lose nothing that was acknowledged."""

from __future__ import annotations

import random

import pytest

from chaos.drills.simulated.run import run_plan
from chaos.faults import Heal, Isolate, Kill, PowerFail, Restart, Step, SyncError, ordered
from chaos.scenarios.draws import ground
from chaos.scenarios.majorities import MAJORITY
from chaos.scenarios.plan import Plan
from chaos.sim import disk
from chaos.workload import Load

pytestmark = pytest.mark.sim

BROKERS = ("b1", "b2", "b3")


def _each_has_one_failed_sync(rng: random.Random) -> Plan:
    """Each is restarted by its supervisor and goes on; later all lose power."""
    at = rng.randint(800, 1500)
    parts = []
    for name in BROKERS:
        bad = at + rng.randint(0, 10)
        parts.append([Step(bad, SyncError(name)), Step(bad + 600, Kill(name))])
        parts.append([Step(bad + 700 + rng.randint(0, 200), Restart(name))])
        parts.append([Step(at + 4500, PowerFail(name)), Step(at + 5000 + rng.randint(0, 300), Restart(name))])
    return _plan(rng, ordered(*parts))


def _one_has_a_failed_sync(rng: random.Random) -> Plan:
    at = rng.randint(800, 1500)
    target = rng.choice(("master", "slave"))
    bad = [
        Step(at, SyncError(target), "bad"),
        Step(at + 600, Kill("=bad")),
        Step(at + 800, Restart("=bad")),
    ]
    off = [Step(at + 4500, PowerFail(name)) for name in BROKERS]
    back = [Step(at + 5000 + 100 * number, Restart(name)) for number, name in enumerate(BROKERS)]
    return _plan(rng, ordered(bad, off, back))


def _what_two_had_is_dropped_at_one(rng: random.Random) -> Plan:
    """It comes back with the third, which was cut off; the other one that has it is away until later."""
    at = rng.randint(800, 1500)
    bad = [Step(at, Isolate("slave"), "far"), Step(at + 1500, SyncError("master"), "bad")]
    dead = [Step(at + 2100, Kill(name)) for name in BROKERS]
    back = [Step(at + 2300, Heal()), Step(at + 2400, Restart("=bad")), Step(at + 2400, Restart("=far"))]
    late = [Step(at + 7000, Restart(name)) for name in BROKERS]
    plan = _plan(rng, ordered(bad, dead, back, late))
    plan.broker = MAJORITY
    return plan


@pytest.mark.parametrize("seed", [4, pytest.param(5, marks=pytest.mark.more)])  # lost messages once
def test_what_was_acknowledged_before_a_failed_sync_outlives_a_restart_in_the_same_boot(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(disk, "DROPS", 1.0)
    plan = _what_two_had_is_dropped_at_one(random.Random(seed))
    result = run_plan("dropped", seed, plan, None, None)
    assert result.violations == []
    assert result.coverage["fault.sync_error"] == 1


def _plan(rng: random.Random, steps: list[Step]) -> Plan:
    plan = Plan(steps, load=Load(body_bytes=(2000, 6000)), load_ms=9000, **ground(rng))
    plan.offload_ms = (20.0, 60.0)
    plan.broker = {"flushDiskType": "SYNC_FLUSH"}
    plan.errors_expected = True
    return plan


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.more)])
@pytest.mark.parametrize(
    ("name", "draw"),
    [("fsyncgate_all", _each_has_one_failed_sync), ("fsyncgate_one", _one_has_a_failed_sync)],
    ids=["all", "one"],
)
def test_what_a_group_acknowledged_after_a_failed_sync_survives_a_power_failure_of_all(
    name: str, draw: object, seed: int
) -> None:
    assert callable(draw)
    result = run_plan(name, seed, draw(random.Random(f"{name}:{seed}")), None, None)
    assert result.violations == []
    assert result.coverage["fault.sync_error"] >= 1
    assert result.coverage["fault.power_fail"] == 3
