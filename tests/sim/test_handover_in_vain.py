"""The promise of a handover that comes to nothing: no send is refused, and the master serves on at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from admin.handover import CannotHandOver
from broker.service import Broker
from broker.state.pending_acks import FLUSH_SLAVE_TIMEOUT
from model.errors import MqError
from tests.sim.traffic import handed_over
from tests.sim.world import ALONE, World, simulated

pytestmark = pytest.mark.sim


def after_the_drain(world: World, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``act`` happen when the master has stepped down, before the election."""
    leader = world.cluster.leader()
    assert leader is not None
    brokers = cast(Any, world.cluster.nodes[leader].server).controller._brokers
    step_down = brokers.step_down

    async def made(*arguments: Any) -> bool:
        done: bool = await step_down(*arguments)
        assert done
        act()
        await asyncio.sleep(0)
        return done

    monkeypatch.setattr(brokers, "step_down", made)


def of_id(world: World, broker_id: int) -> str:
    return next(n for n, s in world.cluster.brokers().items() if s["brokerId"] == broker_id)


def slowest_ms(world: World) -> float:
    """From one send to the next: they follow each other."""
    begun = [begun_ms for begun_ms, _ in world.answers]
    return max(b - a for a, b in itertools.pairwise(begun))


@pytest.mark.parametrize("broker", [{}, ALONE])
@pytest.mark.parametrize("who", ["target", "leader"])
@simulated(lambda broker: World(21, broker))
async def test_a_handover_that_fails_after_the_drain_refuses_no_send_and_holds_none_for_long(
    world: World, broker: dict[str, str], who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with three quick tries would be through with them at the first refusals."""
    cluster = world.cluster
    old = cluster.master()
    assert old is not None
    server = cast(Broker, cluster.nodes[old].server)
    transfer_target = max(i for i in server.ha.members if i != server.role_state.broker_id)
    dies = of_id(world, transfer_target) if who == "target" else cluster.leader()
    assert dies is not None
    world.send_to(old)
    await asyncio.sleep(0.5)
    after_the_drain(world, lambda: cluster.kill(dies), monkeypatch)
    with pytest.raises((MqError, OSError)):
        await handed_over(world, transfer_target)
    await asyncio.sleep(3)
    assert cluster.master() == old
    assert world.codes(0) == {0}
    assert slowest_ms(world) < (300 if who == "target" else 1500)


@simulated(lambda: World(22, ALONE))
async def test_sends_wait_for_a_target_that_does_not_catch_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = world.cluster
    old = cluster.master()
    assert old is not None
    server = cast(Broker, cluster.nodes[old].server)
    transfer_target = max(i for i in server.ha.members if i != server.role_state.broker_id)
    world.send_to(old)
    await asyncio.sleep(0.2)
    cluster.cut(old, of_id(world, transfer_target))
    await asyncio.sleep(0.2)  # until the master has what the transfer target lacks
    with pytest.raises(CannotHandOver, match="does not have the whole log"):
        await handed_over(world, transfer_target)
    await asyncio.sleep(1)
    assert world.codes(0) == {0}


@pytest.mark.parametrize("broker", [{}, {"allAckInSyncStateSet": "false", "inSyncReplicas": "2"}])
@simulated(lambda broker: World(31, broker))
async def test_a_master_told_to_stop_that_has_only_slow_slaves_ends_soon_and_cuts_no_send_off(
    world: World, broker: dict[str, str]
) -> None:
    cluster = world.cluster
    old = cluster.master()
    assert old is not None
    world.send_to(old)
    await asyncio.sleep(0.5)
    for node in cluster.of("broker"):
        if node.name != old:
            cluster.fabric.slow(node.host, cluster.nodes[old].host, 4.0)
    await asyncio.sleep(0.05)
    begun_ms = cluster.clock()
    cluster.stop(old)
    down = await cluster.until(lambda: None if cluster.nodes[old].state == "down" else "up", 10)
    assert down is None
    under_way = [code for asked_ms, code in world.answers if asked_ms <= begun_ms]
    assert under_way[-1] == FLUSH_SLAVE_TIMEOUT, "it is stored, but not on a slave"
    assert set(under_way[:-1]) == {0}
