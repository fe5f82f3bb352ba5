"""The promise of docs/operations.md: what it says to do about lost disks ends in a whole group."""

from __future__ import annotations

import asyncio

import pytest

from chaos.sim.cluster import BROKER_PORT, GROUP
from model.codes import Request, Response
from remoting.codec import Command
from remoting.service import RemotingClient
from tests.sim.operated import EPOCHS, IDENTITY, Operated, lose_the_log
from tests.sim.world import SEND, simulated

pytestmark = pytest.mark.sim


@simulated(lambda: Operated(3))
async def test_a_broker_that_lost_its_disk_joins_empty_with_a_new_id_and_the_old_one_is_forgotten(
    world: Operated,
) -> None:
    await world.send(20)
    master = world.cluster.master()
    victim = next(name for name in sorted(world.cluster.brokers()) if name != master)
    former = world.cluster.brokers()[victim]["brokerId"]
    world.cluster.kill(victim)
    world.lose_disk(victim)
    world.cluster.start(victim)
    await world.whole(20)
    assert world.cluster.brokers()[victim]["brokerId"] > 3
    await world.forget(str(former))
    leader = world.cluster.leader()
    assert leader is not None
    status = world.cluster.status(leader)
    assert status is not None
    assert str(former) not in status["controller"]["groups"][GROUP]["brokers"]


@pytest.mark.parametrize("snapshot", [False, True])
@simulated(lambda: Operated(4))
async def test_a_backup_of_one_replica_becomes_the_whole_group_again(world: Operated, snapshot: bool) -> None:
    """``snapshot``: of the file system under a running broker, which is what a loss of power leaves."""
    cluster = world.cluster
    await world.send(20)
    await world.change_master()
    backup = next(name for name in sorted(cluster.brokers()) if name != cluster.master())
    epoch = cluster.brokers()[backup]["epoch"]
    if snapshot:
        await asyncio.sleep(2.0)  # longer than flushIntervalCommitLog
        cluster.power_fail(backup)
        cluster.power_on(backup)
    else:
        stopped = cluster.stop(backup)
        assert stopped is not None
        await stopped
    for name in list(cluster.brokers()):
        cluster.kill(name)
        world.lose_disk(name)
    await world.forget()
    world.remove(backup, IDENTITY)
    cluster.start(backup)
    await world.leads(backup)
    assert cluster.brokers()[backup]["epoch"] > epoch
    for node in cluster.of("broker"):
        cluster.start(node.name)
    await world.whole(20)


@pytest.mark.parametrize("emptied", [False, True])
@simulated(lambda: Operated(5))
async def test_a_group_goes_on_under_controllers_that_lost_everything(world: Operated, emptied: bool) -> None:
    cluster = world.cluster
    await world.send(20)
    await world.change_master()
    await world.send(10)
    first, *others = sorted(cluster.brokers())
    world.kill_all("broker")
    world.kill_all("namesrv")
    for node in cluster.of("namesrv"):
        world.lose_disk(node.name)
        cluster.start(node.name)
    cuts = len(world.times("truncated"))
    world.remove(first, IDENTITY + EPOCHS)
    cluster.start(first)
    await world.leads(first)
    for name in others:
        if emptied:
            world.lose_disk(name)
        else:
            world.remove(name, IDENTITY + EPOCHS)
        cluster.start(name)
    await world.whole(30)
    assert emptied or not world.times("reseeding") + world.times("truncated")[cuts:]


@simulated(lambda: Operated(6))
async def test_controllers_that_lost_everything_make_no_replica_master_that_may_lack_messages(
    world: Operated,
) -> None:
    """The first that asks would lead, whatever its log: here one that was down while others were
    acknowledged. The others would cut theirs to its, or one take another's id for good."""
    cluster = world.cluster
    await world.send(20)
    behind = next(name for name in sorted(cluster.brokers()) if name != cluster.master())
    cluster.kill(behind)
    assert await cluster.until(lambda: None if len(cluster.members()) == 2 else "still a member", 10) is None
    master = cluster.master()
    assert master is not None
    address = f"{cluster.nodes[master].host}:{BROKER_PORT}"

    async def send(client: RemotingClient) -> None:
        for _ in range(10):
            answer = await client.call(address, Command(Request.SEND_MESSAGE, dict(SEND), b"x"), 3.0)
            assert answer.code == Response.SUCCESS, answer.remark

    await world.asked(send)
    ids = {name: status["brokerId"] for name, status in cluster.brokers().items()}
    world.kill_all("broker")
    world.kill_all("namesrv")
    for node in cluster.of("namesrv"):
        world.lose_disk(node.name)
        cluster.start(node.name)
    for name in (behind, *sorted(ids)):
        cluster.start(name)
        await asyncio.sleep(3.0)
    assert cluster.master() is None
    for name in cluster.brokers():
        status = cluster.status(name)
        assert status is not None
        assert "docs/operations.md" in (status["life"]["reason"] or "")
        assert ids.get(name) in (None, status["life"]["brokerId"])


@simulated(lambda: Operated(1))
async def test_controllers_that_lost_everything_take_no_broker_for_a_new_one_whose_log_is_gone(
    world: Operated,
) -> None:
    """It has the identity of a broker, and is the first to ask; the others have everything."""
    cluster = world.cluster
    await world.send(20)
    ids = {name: status["brokerId"] for name, status in cluster.brokers().items()}
    await asyncio.sleep(10)  # each has noted that its log has bytes
    world.kill_all("broker")
    world.kill_all("namesrv")
    for node in cluster.of("namesrv"):
        world.lose_disk(node.name)
        cluster.start(node.name)
    first = min(ids, key=ids.__getitem__)
    lose_the_log(cluster, first)
    cluster.start(first)
    await asyncio.sleep(5)
    for name in ids:
        if name != first:
            cluster.start(name)
    await asyncio.sleep(5)
    assert cluster.master() is None
    status = cluster.status(first)
    assert status is not None
    assert "never gave id" in status["life"]["reason"]


@pytest.mark.parametrize("suspect", [False, True])
@simulated(lambda suspect: Operated(1))
async def test_where_the_only_member_is_gone_for_good_and_forgotten_the_others_go_on(
    world: Operated, suspect: bool
) -> None:
    """What it answered alone is given up; what both others have is not."""
    cluster = world.cluster
    await world.send(20)
    master = cluster.master()
    assert master is not None
    lost = cluster.brokers()[master]["brokerId"]
    others = sorted(name for name in cluster.brokers() if name != master)
    for name in others:
        cluster.kill(name)
    await asyncio.sleep(4)
    assert cluster.members() == [master]
    if suspect:
        cluster.power_fail(master)
        cluster.power_on(master)
        await asyncio.sleep(3)
        cluster.start(master)
        await asyncio.sleep(3)
    cluster.kill(master)
    await asyncio.sleep(3)
    await world.forget(str(lost))
    for name in others:
        cluster.start(name)
    assert await cluster.until(lambda: None if cluster.master() in others else "nobody leads", 20.0) is None
    world.lose_disk(master)
    cluster.start(master)
    await world.whole(20)
