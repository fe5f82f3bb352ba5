"""The promise of leases: a master that may have a successor acknowledges nothing alone, and resumes later."""

from __future__ import annotations

import asyncio

import pytest

from broker.role.lease import Lease
from chaos.sim.cluster import CONTROLLER_PORT
from model.codes import Request, Response
from remoting.codec import Command
from remoting.service import RemotingClient
from tests.sim.kept import MAJORITY, TWO
from tests.sim.world import ALONE, World, simulated

pytestmark = pytest.mark.sim
LEASE_MS = 1200  # 0.8 of the brokers' heartbeat timeout


def cut_off_and_healed(seed: int) -> World:
    world = World(seed, ALONE)

    async def main() -> None:
        cluster = world.cluster
        old = cluster.master()
        assert old is not None
        world.send_to(old)
        await asyncio.sleep(1)
        world.cut_off(old)
        await asyncio.sleep(6)
        cluster.fabric.heal_all()
        assert await cluster.until(cluster.converged, 20.0) is None

    world.run(main)
    return world


@pytest.mark.parametrize("seed", range(3))
def test_a_master_cut_off_with_its_clients_says_ok_to_nobody_after_its_successor_was_elected(
    seed: int,
) -> None:
    world = cut_off_and_healed(seed)
    elected_ms = world.times("master_elected")[-1]
    assert Response.SUCCESS in world.codes(0)
    assert Response.SUCCESS not in world.codes(elected_ms)
    assert Response.SERVICE_NOT_AVAILABLE in world.codes(elected_ms), "refused at once, not left to time out"
    assert world.times("lease_ended")[0] <= elected_ms


def test_without_the_lease_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "holds", lambda self: True)
    world = cut_off_and_healed(0)
    assert Response.SUCCESS in world.codes(world.times("master_elected")[-1])


@simulated(lambda: World(3, ALONE))
async def test_a_master_that_was_frozen_past_its_lease_does_not_say_ok_to_what_waited_in_its_socket(
    world: World,
) -> None:
    cluster = world.cluster
    old = cluster.master()
    assert old is not None
    world.send_to(old)
    await asyncio.sleep(1)
    answered = len(world.answers)
    for _ in range(1000):  # the next request begins after the pause, 20 ms later
        if len(world.answers) > answered:
            break
        await asyncio.sleep(0.001)
    cluster.pause(old)
    paused_ms = cluster.clock()
    await asyncio.sleep(0.01)
    world.send_to(old)  # whatever the first sender was doing when the master froze
    await asyncio.sleep(5)
    elected_ms = world.times("master_elected")[-1]
    assert elected_ms > paused_ms
    cluster.resume(old)
    await asyncio.sleep(2)
    late = [code for begun_ms, code in world.answers if paused_ms < begun_ms < elected_ms]
    assert late, "a request waited in its socket while it was frozen"
    assert Response.SUCCESS not in world.codes(paused_ms)


@pytest.mark.parametrize(("broker", "waits"), [({}, False), (ALONE, True)])
@simulated(lambda broker: World(5, broker))
async def test_the_successor_of_a_dead_master_waits_only_where_a_living_one_could_confirm_alone(
    world: World, broker: dict[str, str], waits: bool
) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    killed_ms = cluster.clock()
    cluster.kill(master)
    await asyncio.sleep(4)
    elected_ms = world.times("master_elected")[-1]
    assert elected_ms > killed_ms
    assert (elected_ms - killed_ms > LEASE_MS / 2) is waits
    assert elected_ms - killed_ms < LEASE_MS * 1.1


@simulated(lambda: World(6))
async def test_a_master_whose_members_answer_serves_on_while_every_controller_is_dead(world: World) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    for node in cluster.of("namesrv"):
        cluster.kill(node.name)
    await asyncio.sleep(8)
    assert world.codes(0) == {Response.SUCCESS}
    assert world.times("lease_ended")


@pytest.mark.parametrize("mode", [MAJORITY, TWO, ALONE, {"brokerRole": "ASYNC_MASTER"}])
@simulated(lambda mode: World(6, mode))
async def test_in_other_modes_each_send_is_refused_while_every_controller_is_dead(
    world: World, mode: dict[str, str]
) -> None:
    """Though all members are there: fewer than all answer for the others, so they prove nothing."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    await asyncio.sleep(0.5)
    assert world.codes(0) == {Response.SUCCESS}
    for node in cluster.of("namesrv"):
        cluster.kill(node.name)
    killed_ms = cluster.clock()
    await asyncio.sleep(5)  # a send that was under way when the lease ended has its own 3 s
    assert world.codes(killed_ms + LEASE_MS) == {Response.SERVICE_NOT_AVAILABLE}
    assert Response.SUCCESS not in world.codes(world.times("lease_ended")[-1])
    for node in cluster.of("namesrv"):
        cluster.start(node.name)
    await asyncio.sleep(6)
    begun_ms = cluster.clock()
    await asyncio.sleep(0.5)
    assert world.codes(begun_ms) == {Response.SUCCESS}, "it resumes by itself"


@simulated(lambda: World(7))
async def test_a_lone_master_without_controllers_stops_and_resumes_by_itself(world: World) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    for node in cluster.of("broker"):
        if node.name != master:
            cluster.kill(node.name)
    assert await cluster.until(lambda: None if len(cluster.members()) == 1 else "not alone", 10) is None
    world.send_to(master)
    await asyncio.sleep(0.5)
    assert world.codes(0) == {Response.SUCCESS}
    killed_ms = cluster.clock()
    for node in cluster.of("namesrv"):
        cluster.kill(node.name)
    await asyncio.sleep(4)
    assert world.codes(killed_ms + LEASE_MS) == {Response.SERVICE_NOT_AVAILABLE}
    for node in cluster.of("namesrv"):
        cluster.start(node.name)
    await asyncio.sleep(6)
    begun_ms = cluster.clock()
    await asyncio.sleep(0.5)
    assert world.codes(begun_ms) == {Response.SUCCESS}
    assert len(world.times("lease_renewed")) >= 1


async def cut_off_with_a_member(world: World) -> tuple[str, str, str]:
    """Master, member and outsider: the third broker is no member when the two are cut off from it and from
    the Controllers."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    member, outsider = sorted(node.name for node in cluster.of("broker") if node.name != master)
    world.send_to(master)
    await asyncio.sleep(0.5)
    cluster.pause(outsider)
    await asyncio.sleep(3.5)
    for one in (master, member):
        for node in cluster.of("namesrv"):
            cluster.cut(one, node.name)
            cluster.fabric.reset(cluster.nodes[one].host, node.host)
        cluster.cut(one, outsider)
    cluster.resume(outsider)
    return master, member, outsider


async def tell(world: World, command: Command) -> list[int]:
    """What an operator asks each Controller; the codes of their answers."""
    _, env = world.cluster.client("operator")
    client = RemotingClient(env, "operator")
    addresses = [f"{node.host}:{CONTROLLER_PORT}" for node in world.cluster.of("namesrv")]
    return [(await client.call(address, command, 3)).code for address in addresses]


async def set_unclean(world: World) -> None:
    command = Command(Request.UPDATE_CONTROLLER_CONFIG, {}, b"enableElectUncleanMaster=true")
    assert set(await tell(world, command)) == {Response.SUCCESS}


def broker_id(world: World, broker: str) -> int:
    status = world.cluster.status(broker)
    assert status is not None
    return int(status["brokerId"])


async def forget(world: World, gone_id: int) -> None:
    ext = {
        "clusterName": "",
        "brokerName": "broker-a",
        "brokerControllerIdsToClean": str(gone_id),
        "isCleanLivingBroker": "true",
    }
    assert Response.SUCCESS in await tell(world, Command(Request.CLEAN_BROKER_DATA, ext))


@pytest.mark.parametrize("unclean", [True, False])
@simulated(lambda unclean: World(2, controller={"enableElectUncleanMaster": "true"} if unclean else {}))
async def test_a_master_and_a_member_that_are_cut_off_together_stop_before_an_outsider_is_elected(
    world: World, unclean: bool
) -> None:
    await cut_off_with_a_member(world)
    cut_ms = world.cluster.clock()
    await asyncio.sleep(8)
    elected = [at_ms for at_ms in world.times("master_elected") if at_ms > cut_ms]
    assert bool(elected) is unclean
    if unclean:
        assert Response.SUCCESS not in world.codes(elected[0]), "its lease is over by then"
    else:
        assert Response.SUCCESS in world.codes(cut_ms + 5000), "both members are there, nobody else may lead"


@simulated(lambda: World(2))
async def test_a_master_cut_off_before_the_key_was_set_has_no_second_one_beside_it(world: World) -> None:
    """It goes on by its member's word, and cannot hear that this is not enough any more."""
    await cut_off_with_a_member(world)
    await set_unclean(world)
    set_ms = world.cluster.clock()
    await asyncio.sleep(8)
    assert Response.SUCCESS in world.codes(set_ms + 5000)
    assert [at_ms for at_ms in world.times("master_elected") if at_ms > set_ms] == []


@simulated(lambda: World(2))
async def test_a_master_that_heard_of_the_key_stops_when_its_lease_ends(world: World) -> None:
    await set_unclean(world)
    await asyncio.sleep(1)
    await cut_off_with_a_member(world)
    cut_ms = world.cluster.clock()
    await asyncio.sleep(8)
    elected = [at_ms for at_ms in world.times("master_elected") if at_ms > cut_ms]
    assert len(elected) == 1
    assert Response.SUCCESS not in world.codes(elected[0])


@simulated(lambda: World(2))
async def test_an_operator_who_removes_a_master_that_died_before_the_key_was_set_has_an_outsider_elected(
    world: World,
) -> None:
    master, member, outsider = await cut_off_with_a_member(world)
    gone_id = broker_id(world, master)
    for one in (master, member):
        world.cluster.kill(one)
    world.cluster.fabric.heal_all()
    await set_unclean(world)
    set_ms = world.cluster.clock()
    await asyncio.sleep(5)
    assert [at_ms for at_ms in world.times("master_elected") if at_ms > set_ms] == []
    await forget(world, gone_id)
    assert (
        await world.cluster.until(lambda: None if world.cluster.master() == outsider else "none", 5) is None
    )
