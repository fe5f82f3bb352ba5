"""The promise of a handover that comes to nothing: no send is refused, and the master serves on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from admin.handover import CannotHandOver
from broker.service import Broker
from model.errors import MqError
from tests.sim.test_handover import handed_over
from tests.sim.world import ALONE, World

pytestmark = pytest.mark.sim


def after_the_drain(world: World, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``act`` happen when the master has made way, before the election."""
    leader = world.cluster.leader()
    assert leader is not None
    brokers = cast(Any, world.cluster.nodes[leader].server).controller._brokers
    make_way = brokers.make_way

    async def made(*arguments: Any) -> bool:
        done: bool = await make_way(*arguments)
        assert done
        act()
        await asyncio.sleep(0)
        return done

    monkeypatch.setattr(brokers, "make_way", made)


def of_id(world: World, broker_id: int) -> str:
    return next(n for n, s in world.cluster.brokers().items() if s["brokerId"] == broker_id)


def slowest_ms(world: World) -> float:
    """From one send to the next: they follow each other."""
    begun = [begun_ms for begun_ms, _ in world.answers]
    return max(b - a for a, b in zip(begun, begun[1:], strict=False))


@pytest.mark.parametrize("broker", [{}, ALONE])
@pytest.mark.parametrize("who", ["heir", "leader"])
def test_a_handover_that_fails_after_the_drain_refuses_no_send_and_holds_none_for_long(
    broker: dict[str, str], who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with three quick tries would be through with them at the first refusals."""
    world = World(21, broker)

    async def main() -> None:
        cluster = world.cluster
        old = cluster.master()
        assert old is not None
        server = cast(Broker, cluster.nodes[old].server)
        heir = max(i for i in server.ha.members if i != server.standing.broker_id)
        dies = of_id(world, heir) if who == "heir" else cluster.leader()
        assert dies is not None
        world.send_to(old)
        await asyncio.sleep(0.5)
        after_the_drain(world, lambda: cluster.kill(dies), monkeypatch)
        with pytest.raises((MqError, OSError)):
            await handed_over(world, heir)
        await asyncio.sleep(3)
        assert cluster.master() == old
        assert world.codes(0) == {0}
        assert slowest_ms(world) < (300 if who == "heir" else 1500)

    world.run(main)


def test_sends_wait_for_a_heir_that_does_not_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(22, ALONE)

    async def main() -> None:
        cluster = world.cluster
        old = cluster.master()
        assert old is not None
        server = cast(Broker, cluster.nodes[old].server)
        heir = max(i for i in server.ha.members if i != server.standing.broker_id)
        world.send_to(old)
        await asyncio.sleep(0.2)
        cluster.cut(old, of_id(world, heir))
        with pytest.raises(CannotHandOver, match="does not have the whole log"):
            await handed_over(world, heir)
        await asyncio.sleep(1)
        assert world.codes(0) == {0}

    world.run(main)
