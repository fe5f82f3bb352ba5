"""The promise of a handover: the transfer target has everything, no send fails for good, and it is over in a
moment.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from admin.handover import CannotHandOver
from broker.service import Broker
from chaos.history import Happened
from client.admin import AdminClient
from model.errors import Unknown
from tests.sim.traffic import handed_over, under_load
from tests.sim.world import ALONE, World, simulated

pytestmark = pytest.mark.sim


def ended(world: World) -> list[Happened]:
    return [e for e in world.cluster.history.happened() if e.name == "promoted"]


@pytest.mark.parametrize("broker", [{}, ALONE])
def test_a_handover_under_load_fails_no_send_and_waits_for_no_lease(broker: dict[str, str]) -> None:
    world = World(11, broker)

    async def act(world: World) -> None:
        old = world.cluster.master()
        done = await handed_over(world)
        assert done.took_ms < 1000
        # The answer comes with the election; the notice is on its way.
        assert await world.cluster.until(lambda: "same" if world.cluster.master() == old else None, 1) is None

    assert under_load(world, act) == {"ok"}
    assert len(ended(world)) == 2


@pytest.mark.parametrize(
    ("broker", "seed"),
    [
        ({}, 12),
        (ALONE, 16),
        pytest.param({}, 16, marks=pytest.mark.more),
        pytest.param(ALONE, 12, marks=pytest.mark.more),
    ],
)
def test_a_master_told_to_stop_hands_over_first(broker: dict[str, str], seed: int) -> None:
    world = World(seed, broker)

    async def act(world: World) -> None:
        cluster = world.cluster
        old = cluster.master()
        assert old is not None
        begun_ms = cluster.clock()
        assert cluster.stop(old) is not None
        assert await cluster.until(lambda: None if cluster.master() not in (None, old) else "old", 3) is None
        assert world.times("master_lost") == [], "elected before its connection ended"
        assert world.times("master_elected")[-1] - begun_ms < 1000, "no lease was waited for"
        assert await cluster.until(lambda: None if cluster.nodes[old].state == "down" else "up", 5) is None
        cluster.start(old)

    # It answers all that it took before it closes its sockets, so nothing is unknown; at this rate something
    # is under way at any moment.
    assert under_load(world, act, per_second=100.0) == {"ok"}


def test_a_target_that_cannot_catch_up_is_not_elected_and_the_master_serves_on() -> None:
    world = World(13)

    async def act(world: World) -> None:
        cluster = world.cluster
        old = cluster.master()
        assert old is not None
        broker = cast(Broker, cluster.nodes[old].server)
        transfer_target = next(i for i in broker.ha.members if i != broker.role_state.broker_id)
        name = next(n for n, s in cluster.brokers().items() if s["brokerId"] == transfer_target)
        cluster.cut(old, name)
        with pytest.raises(CannotHandOver, match="does not have the whole log"):
            await handed_over(world, transfer_target)
        assert cluster.master() == old
        assert await cluster.until(lambda: "held" if broker.role_state.handing_over else None, 0.1) is None
        cluster.fabric.heal_all()

    assert under_load(world, act) == {"ok"}
    assert len(ended(world)) == 1


@simulated(lambda: World(14))
async def test_only_a_member_of_the_set_inherits(world: World) -> None:
    master = world.cluster.brokers()[world.cluster.master() or ""]["brokerId"]
    with pytest.raises(CannotHandOver, match="already"):
        await handed_over(world, master)
    with pytest.raises(CannotHandOver, match="not in the SyncStateSet"):
        await handed_over(world, 9)


@simulated(lambda: World(17))
async def test_the_target_is_the_one_an_election_would_prefer(world: World) -> None:
    cluster = world.cluster
    numbers = {n: s["brokerId"] for n, s in cluster.brokers().items()}
    slaves = sorted((number, name) for name, number in numbers.items() if name != cluster.master())
    last, name = slaves[-1]
    cast(Broker, cluster.nodes[name].server).config.election_priority = 1
    await asyncio.sleep(1)  # a heartbeat tells
    assert (await handed_over(world)).master == last


@simulated(lambda: World(18))
async def test_a_target_that_was_elected_meanwhile_is_a_success(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, env = world.cluster.client("another")
    elect, elected = AdminClient.elect, asyncio.Event()

    async def meanwhile(self: AdminClient, *asked: Any) -> tuple[int, int]:
        if not elected.is_set():
            elected.set()
            async with AdminClient(env, world.cluster.namesrv_addresses) as another:
                await elect(another, *asked)
        return await elect(self, *asked)

    monkeypatch.setattr(AdminClient, "elect", meanwhile)
    done = await handed_over(world, 2)
    assert (done.master, done.epoch) == (2, 2)


@simulated(lambda: World(15))
async def test_an_election_of_unknown_outcome_is_not_told_as_a_no(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.cluster.leader()
    assert leader is not None
    controller = cast(Any, world.cluster.nodes[leader].server).controller

    async def lost(command: object) -> None:
        raise Unknown("leadership was lost before the command was committed")

    monkeypatch.setattr(controller.raft, "propose", lost)
    with pytest.raises(Unknown, match="is not known"):
        await handed_over(world)
