"""The promise to users who were bitten by the original's Controller: docs/pain-points.md, rows B16 to B31."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from broker.service import Broker
from chaos.sim.cluster import GROUP
from chaos.sim.faults import Nemesis
from controller.elections.coordinator import ElectionCoordinator
from controller.elections.election import ElectionDecider
from controller.elections.liveness import Liveness
from controller.elections.signals import NotCommitted
from controller.groups.commands import (
    ElectMaster,
)
from model.codes import Response
from model.errors import Unknown
from tests.sim.world import World, simulated

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", range(4))
@simulated(World)
async def test_b26_a_master_that_only_lost_its_connections_to_the_controllers_stays_master(
    world: World, seed: int
) -> None:
    """The close says that it died; its slaves say that it lives, and it is back in a moment."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    await asyncio.sleep(1)
    host = cluster.nodes[master].host
    for node in cluster.of("namesrv"):
        assert cluster.fabric.reset(host, node.host) > 0
    await asyncio.sleep(3)
    assert cluster.master() == master
    assert len(world.times("master_elected")) == 1
    assert world.codes(0) == {Response.SUCCESS}


@pytest.mark.parametrize("direction", ["out", "in", "both"])
@simulated(lambda: World(21))
async def test_b26_a_master_the_controllers_leader_cannot_hear_is_replaced_once(
    world: World, direction: str
) -> None:
    """Also where only the leader's words are lost: no connection to it can be made without them."""
    cluster = world.cluster
    leader, master = cluster.leader(), cluster.master()
    assert leader is not None
    assert master is not None
    cluster.cut(master, leader, direction)
    await asyncio.sleep(15)
    transfer_target = cluster.master()
    assert transfer_target not in (None, master)
    assert len(world.times("master_elected")) == 2
    cluster.fabric.heal_all()
    assert await cluster.until(cluster.converged, 20) is None
    await asyncio.sleep(5)
    assert (cluster.master(), cluster.leader()) == (transfer_target, leader)
    assert len(world.times("master_elected")) == 2


@simulated(lambda: World(22))
async def test_b18_an_election_that_fails_is_tried_again_until_there_is_a_master(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0

    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    propose = ElectionCoordinator._propose

    async def fail(self: ElectionCoordinator, command: ElectMaster) -> None:
        nonlocal failed
        if failed < 7:
            failed += 1
            self._feed(NotCommitted(command.group, Unknown("the log could not be appended to")))
        else:
            await propose(self, command)

    monkeypatch.setattr(ElectionCoordinator, "_propose", fail)
    cluster.kill(master)
    reason = await cluster.until(lambda: None if cluster.master() not in (None, master) else "none", 30)
    assert reason is None
    assert failed == 7, "more than the tries of one election"


@pytest.mark.parametrize("seed", [23, 24])
@simulated(World)
async def test_b17_a_slave_the_new_controller_leader_has_not_heard_since_it_leads_may_be_elected(
    world: World, seed: int
) -> None:
    """Every Controller hears every broker all the time, so a change of leader forgets nobody."""
    cluster = world.cluster
    leader, master = cluster.leader(), cluster.master()
    assert leader is not None
    assert master is not None
    slaves = [node.name for node in cluster.of("broker") if node.name != master]
    # Whoever leads next, from now on no word of a slave gets there: it has what it heard before.
    for node in cluster.of("namesrv"):
        if node.name != leader:
            for slave in slaves:
                cluster.cut(slave, node.name, "out")
    cluster.kill(leader)
    assert await cluster.until(lambda: None if cluster.leader() not in (None, leader) else "none", 5) is None
    cluster.kill(master)
    killed_ms = cluster.clock()
    await asyncio.sleep(1)
    elected = [at_ms for at_ms in world.times("master_elected") if at_ms > killed_ms]
    assert len(elected) == 1, "before the slaves could be heard again"
    cluster.fabric.heal_all()
    assert await cluster.until(lambda: None if cluster.master() in slaves else "none", 5) is None
    assert [at_ms for at_ms in world.times("master_elected") if at_ms > killed_ms] == elected


@pytest.mark.parametrize("seed", range(2))
@simulated(World)
async def test_b16_the_late_end_of_an_old_connection_evicts_nobody(world: World, seed: int) -> None:
    """The end of the old connections is held back on the way until the broker has long had new ones."""
    cluster = world.cluster
    master, leader = cluster.master(), cluster.leader()
    assert master is not None
    assert leader is not None
    server = cast(Any, cluster.nodes[leader].server)
    broker, controller = cast(Broker, cluster.nodes[master].server), server.controller
    assert broker.role.broker_id is not None
    live: Liveness = controller._live

    def session() -> int:
        beat = live.newest(GROUP, broker.role.broker_id or 0)
        assert beat is not None
        return beat.session

    ended: list[int] = []
    close = live.closed

    def closed(session: int) -> list[tuple[str, int]]:
        ended.append(session)
        return close(session)

    live.closed = closed  # type: ignore[method-assign]
    old = session()
    host = cluster.nodes[master].host
    for node in cluster.of("namesrv"):
        cluster.cut(master, node.name, "out")
    for address in cluster.controller_addresses:
        broker.client.drop(address)
    await asyncio.sleep(0.05)
    for node in cluster.of("namesrv"):
        cluster.fabric.heal(host, node.host, late_s=2.0)
    await asyncio.sleep(1.5)
    assert (session() != old, ended) == (True, []), "a new session, while the old one has not ended"
    await asyncio.sleep(4)
    assert ended == [old]
    assert cluster.master() == master
    assert world.times("master_lost") == []
    assert len(world.times("master_elected")) == 1


@simulated(lambda: World(24))
async def test_b31_a_broker_without_controllers_serves_its_status_says_why_and_joins_when_they_come(
    world: World,
) -> None:
    cluster = world.cluster
    nemesis = Nemesis(cluster, [])
    victim = nemesis.resolve("slave")
    assert victim is not None
    for name in [*(node.name for node in cluster.of("namesrv")), victim]:
        cluster.kill(name)
    cluster.start(victim)
    await asyncio.sleep(5)
    server = cluster.nodes[victim].server
    assert server is not None
    assert server.status()["role"] == "fenced"
    assert "none of the Controllers" in (server.health() or "")
    for node in cluster.of("namesrv"):
        cluster.start(node.name)
    assert await cluster.until(cluster.converged, 20) is None
    assert server.health() is None


@simulated(lambda: World(24))
async def test_b19_a_silent_master_is_replaced_and_a_living_one_never(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    await asyncio.sleep(60)
    assert (cluster.master(), len(world.times("master_elected"))) == (master, 1)
    check = ElectionDecider._elect_if_needed

    def fail_once(self: ElectionDecider, name: str) -> None:
        nonlocal checks
        checks += self.mandate.is_raft_leader
        if checks == 1 and self.mandate.is_raft_leader:
            raise ValueError("a mistake in one round")
        check(self, name)

    monkeypatch.setattr(ElectionDecider, "_elect_if_needed", fail_once)
    await asyncio.sleep(3)
    cluster.pause(master)  # its connections stay open
    assert await cluster.until(lambda: None if cluster.master() not in (None, master) else "none", 10) is None
    cluster.resume(master)
    assert await cluster.until(cluster.converged, 20) is None
    assert len(world.times("master_elected")) == 2
    assert checks > 2
