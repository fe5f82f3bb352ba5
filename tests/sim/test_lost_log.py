"""The promise to a group when one broker comes back without its log, but with its identity."""

import asyncio
from typing import Any

import pytest

from broker.membership import reboot
from chaos.drills.simulated.run import run_plan
from chaos.faults import Kill, PutBack, Restart, Snapshot, Step, ordered
from chaos.scenarios import Plan
from chaos.sim.cluster import SimCluster
from chaos.sim.story import Story
from model.codes import Request
from tests.sim.asked import TOPIC
from tests.sim.kept import ALL, MAJORITY, Kept
from tests.sim.operated import lose_the_log
from tests.sim.world import World, simulated


def status(cluster: SimCluster, node: str) -> dict[str, Any]:
    found = cluster.status(node)
    assert found is not None
    return found


def group_of(cluster: SimCluster) -> dict[str, Any]:
    leader = cluster.leader()
    assert leader is not None
    found: dict[str, Any] = status(cluster, leader)["controller"]["groups"]["broker-a"]
    return found


@pytest.mark.sim
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("mode", [{}, MAJORITY], ids=["all", "majority"])
@simulated(lambda mode: World(1, mode))
async def test_a_broker_without_its_log_waits_for_one_that_has_it(
    world: World, how: str, mode: dict[str, str]
) -> None:
    cluster = world.cluster

    brokers = [node.name for node in cluster.of("broker")]
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    await asyncio.sleep(1.5)
    assert world.codes(0) >= {0}
    end = status(cluster, master)["confirmOffset"]
    assert end > 0
    for name in brokers:
        cluster.stop(name) if how == "stop" else cluster.kill(name)
    await asyncio.sleep(6)
    empty = next(name for name in brokers if name != master)
    lose_the_log(cluster, empty)
    cluster.start(empty)
    await asyncio.sleep(4)
    assert status(cluster, empty)["role"] == "fenced"
    for name in brokers:
        cluster.start(name)
    assert await cluster.until(cluster.converged, 20.0) is None
    assert {status(cluster, name)["minOffset"] for name in brokers} == {0}
    assert min(status(cluster, name)["maxOffset"] for name in brokers) >= end
    assert group_of(cluster)["uncleanElections"] == 0


@pytest.mark.sim
@simulated(lambda: World(2))
async def test_a_group_that_is_really_new_starts_also_when_it_was_restarted_before_its_first_message(
    world: World,
) -> None:
    cluster = world.cluster

    brokers = [node.name for node in cluster.of("broker")]
    for name in brokers:
        cluster.kill(name)
    await asyncio.sleep(3)
    for name in brokers:
        cluster.start(name)
    assert await cluster.until(cluster.converged, 20.0) is None


@pytest.mark.sim
@simulated(lambda: World(3, MAJORITY))
async def test_an_empty_broker_is_not_half_of_a_majority(world: World) -> None:
    """One slave misses what master and the other one acknowledge; the master dies and loses its log."""
    cluster = world.cluster

    brokers = [node.name for node in cluster.of("broker")]
    master = cluster.master()
    assert master is not None
    late, other = sorted(name for name in brokers if name != master)
    world.send_to(master)
    await asyncio.sleep(1)
    cluster.cut(late, master)
    cluster.fabric.reset(cluster.nodes[late].host, cluster.nodes[master].host)
    await asyncio.sleep(6)
    end = status(cluster, master)["confirmOffset"]
    cluster.kill(master)
    cluster.kill(other)
    lose_the_log(cluster, master)
    cluster.fabric.heal_all()
    cluster.start(master)
    await asyncio.sleep(6)
    assert group_of(cluster)["master"] is None
    cluster.start(other)
    assert await cluster.until(cluster.converged, 20.0) is None
    assert min(status(cluster, name)["maxOffset"] for name in brokers) >= end


@pytest.mark.sim
@simulated(lambda: World(7))
async def test_a_start_that_fails_leaves_the_evidence_of_a_power_loss(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine lost power, and its disk has no room to note that its broker is suspect: it does not start.
    Its stop is an orderly one, and the next start finds it suspect all the same."""
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    world.send_to(master)
    await asyncio.sleep(1.0)
    slave = next(node.name for node in cluster.of("broker") if node.name != master)
    cluster.power_fail(slave)
    cluster.power_on(slave)

    def no_room(disk: object, path: str, content: bytes) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(reboot, "write_file", no_room)
        cluster.start(slave)
        assert await cluster.until(lambda: None if cluster.errors else "it starts", 5.0) is None
    assert "bootId.json cannot be written" in cluster.errors.pop()
    suspects: list[str | None] = []
    decide = reboot.suspicion

    def decided(noted: reboot.Noted | None, found: reboot.Found, boot_id: str) -> str | None:
        suspects.append(decide(noted, found, boot_id))
        return suspects[-1]

    monkeypatch.setattr(reboot, "suspicion", decided)
    cluster.start(slave)
    assert await cluster.until(cluster.converged, 20.0) is None
    assert suspects == ["the machine was reset since the log was written, and not all of it was synced"]


class Snapshots(Kept):
    """Disks that are put back as they were."""

    def take(self, name: str) -> dict[str, bytes]:
        machine = self.cluster.nodes[name].machine
        return {path: machine.content(path) for path in machine.paths("")}

    def put_back(self, name: str, files: dict[str, bytes]) -> None:
        machine = self.cluster.nodes[name].machine
        machine.wipe()
        for path, content in files.items():
            machine.makedirs(path.rpartition("/")[0])
            file = machine.create(path)
            file.write(content, 0)
            file.sync()
        machine.sync_tree("")


@pytest.mark.sim
@pytest.mark.parametrize("mode", [ALL, MAJORITY], ids=["all", "majority"])
@simulated(lambda mode: Snapshots(1, mode))
async def test_a_disk_put_back_to_an_older_state_of_itself_waits_for_those_that_have_more(
    world: Snapshots, mode: dict[str, str]
) -> None:
    """The snapshot is of an orderly stop: all on it agrees. The Controllers know of a later start."""
    cluster = world.cluster
    master = cluster.master()
    old, other = sorted(node.name for node in cluster.of("broker") if node.name != master)
    assert master is not None
    world.send_on(every_s=0.05)
    await asyncio.sleep(1)
    stopped = cluster.stop(old)
    assert stopped is not None
    await asyncio.wait([stopped], timeout=10)
    snapshot = world.take(old)
    world.start(old)
    await world.serves(old)
    assert await cluster.until(cluster.converged, 20) is None
    cluster.kill(other)  # what is acknowledged from now on is at two
    await asyncio.sleep(3)
    world.quiet = True
    await asyncio.sleep(0.5)
    cluster.kill(old)
    cluster.kill(master)
    world.put_back(old, snapshot)
    await asyncio.sleep(3)
    world.start(old)
    if mode:
        world.start(other)
    await asyncio.sleep(4)
    assert cluster.master() is None
    for name in (other, master):
        if not cluster.nodes[name].running:
            world.start(name)
    await world.settled()


def refuses(disk: object, path: str, content: bytes) -> None:
    raise OSError(5, "EIO")


@pytest.mark.sim
@pytest.mark.parametrize("what", ["reaches no Controller first", "was not noted before", "is not noted now"])
@simulated(lambda what: Snapshots(1, ALL))
async def test_a_disk_put_back_is_known_by_the_start_that_it_does_not_know(
    world: Snapshots, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its own count of starts may be past the one that the Controllers know, or it could not write it."""
    cluster = world.cluster
    master = cluster.master()
    old, other = sorted(node.name for node in cluster.of("broker") if node.name != master)
    assert master is not None
    world.send_on(every_s=0.05)
    await asyncio.sleep(1)
    stopped = cluster.stop(old)
    assert stopped is not None
    await asyncio.wait([stopped], timeout=10)
    snapshot = world.take(old)
    with monkeypatch.context() as refusing:
        if what == "was not noted before":
            refusing.setattr(reboot, "write_file", refuses)
        world.start(old)
        await world.serves(old)
        await asyncio.sleep(1)
    assert await cluster.until(cluster.converged, 20) is None
    cluster.kill(other)  # what is acknowledged from now on is at two
    await asyncio.sleep(3)
    world.quiet = True
    await asyncio.sleep(0.5)
    cluster.kill(old)
    cluster.kill(master)
    world.put_back(old, snapshot)
    await asyncio.sleep(3)
    if what == "reaches no Controller first":
        for node in cluster.of("namesrv"):
            cluster.cut(old, node.name)
        world.start(old)
        await asyncio.sleep(2)
        cluster.kill(old)
        cluster.fabric.heal_all()
    with monkeypatch.context() as refusing:
        if what == "is not noted now":
            refusing.setattr(reboot, "write_file", refuses)
        world.start(old)
        await asyncio.sleep(2)
    await asyncio.sleep(2)
    assert cluster.master() is None, "it waits for those that have more"
    for name in (other, master):
        world.start(name)
    await world.settled()


@pytest.mark.sim
@simulated(lambda: Snapshots(1, ALL))
async def test_after_a_power_failure_of_all_a_disk_that_was_put_back_does_not_lead_by_its_id(
    world: Snapshots,
) -> None:
    """All logs are equal. It lacks a topic that was answered since."""
    cluster = world.cluster
    ids = {name: status["brokerId"] for name, status in cluster.brokers().items()}
    old = min(ids, key=ids.__getitem__)
    cluster.kill(old)  # it is a slave from now on
    await asyncio.sleep(3)
    world.start(old)
    assert await cluster.until(cluster.converged, 20) is None
    stopped = cluster.stop(old)
    assert stopped is not None
    await asyncio.wait([stopped], timeout=10)
    snapshot = world.take(old)
    world.start(old)
    assert await cluster.until(cluster.converged, 20) is None
    await asyncio.sleep(1)
    assert (await world.ask(Request.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
    await asyncio.sleep(2)
    for name in ids:
        cluster.power_fail(name)
    for name in ids:
        cluster.power_on(name)
    world.put_back(old, snapshot)
    await asyncio.sleep(3)
    for name in ids:
        world.start(name)
    assert await cluster.until(cluster.converged, 30) is None
    assert cluster.master() != old
    assert all("T1" in world.broker(name).topics.table for name in ids)


@pytest.mark.sim
@pytest.mark.parametrize("started_since", [True, False])
def test_a_disk_put_back_without_a_start_since_excuses_what_it_loses_and_one_with_it_does_not(
    started_since: bool,
) -> None:
    """Of the former nobody can know: P14 says never to put such a one back. It is a member, and leads."""
    again = [Step(700, Kill("b1")), Step(800, Restart("b1"))]
    steps = [
        Step(500, Snapshot("b1")),
        *(again if started_since else []),
        *(Step(3000, Kill(name)) for name in ("b1", "b2", "b3")),
        Step(3010, PutBack("b1")),
        Step(3100, Restart("b1")),
        *(Step(7000, Restart(name)) for name in ("b2", "b3")),
    ]
    plan = Plan(ordered(steps), load_ms=8000, broker={"allAckInSyncStateSet": "true"}, swarm=True)
    kept: list[Story] = []
    result = run_plan("swarm", 1, plan, None, kept.append)
    assert result.violations == []
    assert kept[0].losses.lied is not started_since
    led_alone = [event.node for event in kept[0].history.happened() if event.name == "promoted"][1:2]
    assert (led_alone == ["b1"]) is not started_since
    if started_since:
        assert kept[0].evidence.forgiven.gone == frozenset(), "the others have all of it"
