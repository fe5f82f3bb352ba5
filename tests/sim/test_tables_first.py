"""The promise: a broker is a member of the SyncStateSet only when it has the tables. So it can be elected.

The port that tables are copied from is slow here; the HA port is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from broker.service import Broker
from broker.upkeep.table_sync import MetadataSync
from chaos.sim.cluster import BROKER_PORT
from model.codes import Request, Response
from model.errors import Unknown
from model.ids import QueueOffset
from remoting import bodies
from remoting.codec import Command
from remoting.service import RemotingClient
from tests.sim.kept import MAJORITY
from tests.sim.world import SEND, World, simulated

pytestmark = pytest.mark.sim

COPY_LATE_S = 1.0
GROUP = bodies.dumps({"groupName": "G1", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 7})
TOPIC = {
    "topic": "T1",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "defaultTopic": "TBW102",
}
FLUSHES_SELDOM = {"flushIntervalCommitLog": "60000"}
COMMIT = {"consumerGroup": "readers", "topic": "TBW102", "queueId": "0"}


@pytest.fixture
def late_copies(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """While this is set, each question for tables leaves ``COPY_LATE_S`` late."""
    late = asyncio.Event()
    copy_changes = MetadataSync._copy_changes

    async def slow(self: MetadataSync, master: str) -> None:
        if late.is_set():
            await asyncio.sleep(COPY_LATE_S)
        await copy_changes(self, master)

    monkeypatch.setattr(MetadataSync, "_copy_changes", slow)
    return late


class Group(World):
    """A world whose master is asked by an operator."""

    async def begin(self) -> None:
        self.node, env = self.cluster.client("operator")
        self.client = RemotingClient(env, "operator")
        master = self.cluster.master()
        assert master is not None
        self.master = master
        self.others = sorted(node.name for node in self.cluster.of("broker") if node.name != master)

    def broker(self, name: str) -> Broker:
        return cast(Broker, self.cluster.nodes[name].server)

    async def ask(self, code: Request, ext: dict[str, str], body: bytes = b"", timeout_s: float = 5.0) -> int:
        address = f"{self.cluster.nodes[self.master].host}:{BROKER_PORT}"
        call = self.client.call(address, Command(code, ext, body), timeout_s)
        return (await self.cluster.inside(self.node, call)).code

    def end(self, name: str) -> int:
        return self.broker(name).store.log.end

    def ends(self) -> dict[str, int]:
        """Of the slaves that are connected, and said how far they are."""
        slaves = self.broker(self.master).ha.slaves()
        return {str(slave["id"]): slave["ackOffset"] for slave in slaves if slave["ackOffset"] is not None}

    async def members_are(self, *names: str, within_s: float = 10.0) -> None:
        def missing() -> str | None:
            members = self.cluster.members()
            return None if set(members) == set(names) else f"members {members}"

        assert await self.cluster.until(missing, within_s) is None

    async def reached(self, what: Callable[[], bool]) -> None:
        """Look every half millisecond: ``cluster.until`` would miss the moment."""
        for _ in range(20_000):
            if what():
                return
            await asyncio.sleep(0.0005)
        raise AssertionError("not within 10 s")


@pytest.mark.parametrize("seed", range(3))
@simulated(lambda seed: Group(seed))
async def test_a_group_answered_ok_is_known_to_whoever_joins_and_is_elected(
    world: Group, seed: int, late_copies: asyncio.Event
) -> None:
    cluster = world.cluster
    await world.begin()
    late, other = world.others
    cluster.kill(late)
    cluster.kill(other)
    await world.members_are(world.master)
    assert await world.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP) == Response.SUCCESS
    late_copies.set()
    cluster.start(late)
    await world.reached(lambda: set(cluster.members()) == {world.master, late})
    cluster.kill(world.master)
    assert await cluster.until(lambda: None if cluster.master() == late else "no master", 10) is None
    assert "G1" in world.broker(late).groups.table


@pytest.mark.parametrize("restarted", [False, True])
@simulated(lambda restarted: Group(7, FLUSHES_SELDOM))
async def test_an_outsider_that_leads_as_every_member_lost_its_end_takes_the_tables_first(
    world: Group, restarted: bool
) -> None:
    """The master alone is the set, and answers. Then it loses power, and with it records that both slaves
    have: one of these leads, without what was answered."""
    cluster = world.cluster
    await world.begin()
    was = world.master
    await alone(world)
    assert await world.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP) == Response.SUCCESS
    assert await world.ask(Request.UPDATE_AND_CREATE_TOPIC, TOPIC) == Response.SUCCESS
    cluster.power_fail(was)
    await asyncio.sleep(2)
    cluster.power_on(was)
    for node in cluster.of("broker"):
        cluster.start(node.name)
    assert await cluster.until(cluster.converged, 25) is None
    now = cluster.master()
    assert now in world.others, "the one whose log reaches further leads"
    if restarted:
        # It asks nobody twice: what it took is its own by now.
        cluster.kill(was)
        cluster.kill(now)
        cluster.start(now)
        assert await cluster.until(lambda: None if cluster.master() else "no master", 25) is None
    for node in cluster.of("broker"):
        if node.server is not None:
            assert "G1" in world.broker(node.name).groups.table
            assert "T1" in world.broker(node.name).topics.table


async def alone(world: Group) -> None:
    """All have the log of the master, and it has not all of it on its disk; then it alone is the set."""
    world.send_to(world.master)
    log = world.broker(world.master).store.log
    await world.reached(
        lambda: log.end - log.flushed > 600 and all(world.end(name) == log.end for name in world.others)
    )
    for name in world.others:
        world.cluster.kill(name)
    await world.members_are(world.master)


@simulated(lambda: Group(4))
async def test_what_a_broker_had_before_it_was_killed_says_nothing_of_what_it_has_now(
    world: Group, late_copies: asyncio.Event
) -> None:
    """Its last receipt was true: the offset was in its memory, and its file is written each 5 s."""
    cluster = world.cluster
    await world.begin()
    late, _ = world.others
    store = world.broker(world.master).store
    store.next_offset = lambda topic, queue_id: QueueOffset(300)  # type: ignore[method-assign]
    world.broker(world.master).groups.find("readers")
    assert await world.ask(Request.UPDATE_CONSUMER_OFFSET, {**COMMIT, "commitOffset": "7"}) == 0
    await asyncio.sleep(0.3)
    assert world.broker(late).offsets.get("readers", "TBW102", 0) == 7
    cluster.kill(late)
    await world.members_are(*(node.name for node in cluster.of("broker") if node.name != late))
    late_copies.set()
    cluster.start(late)
    await world.reached(lambda: late in cluster.members())
    assert world.broker(late).offsets.get("readers", "TBW102", 0) == 7


@simulated(lambda: Group(6))
async def test_joining_waits_no_longer_than_the_tables_take(world: Group) -> None:
    cluster = world.cluster
    await world.begin()
    late, other = world.others
    cluster.kill(late)
    await world.members_are(world.master, other)
    cluster.start(late)
    await world.reached(lambda: cluster.status(late) is not None)
    began_ms = cluster.clock()
    await world.reached(lambda: late in cluster.members())
    assert cluster.clock() - began_ms < 500


def test_in_majority_mode_an_outsider_with_a_longer_log_and_without_the_group_does_not_lead(
    late_copies: asyncio.Event,
) -> None:
    world = Group(3, MAJORITY)

    async def main() -> None:
        cluster = world.cluster
        await world.begin()
        late, other = world.others
        cluster.kill(late)
        await world.members_are(world.master, other)
        assert await world.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP) == Response.SUCCESS
        late_copies.set()
        cluster.start(late)
        linked = f"{world.master} has no link of {late}"
        assert await cluster.until(lambda: None if len(world.ends()) == 2 else linked, 10) is None
        cluster.cut(world.master, other, "out")
        with pytest.raises(Unknown):
            await world.ask(Request.SEND_MESSAGE, dict(SEND), b"x", timeout_s=0.3)
        await world.reached(lambda: world.end(late) > world.end(other))
        assert "G1" not in world.broker(late).groups.table
        assert set(cluster.members()) == {world.master, other}
        cluster.kill(world.master)
        cluster.fabric.heal_all()
        assert await cluster.until(lambda: None if cluster.master() == other else "no master", 10) is None
        assert "G1" in world.broker(other).groups.table

    world.run(main)


@simulated(lambda: Group(0))
async def test_after_a_power_failure_of_the_only_member_an_outsider_with_an_equal_log_does_not_lead(
    world: Group,
) -> None:
    """The outsider's id is smaller, and the topic is on the member's disk alone."""
    cluster = world.cluster
    first = cluster.master()
    assert first is not None
    cluster.kill(first)
    assert await cluster.until(lambda: None if cluster.master() not in (None, first) else "none", 10) is None
    cluster.start(first)
    assert await cluster.until(cluster.converged, 20) is None
    await world.begin()
    assert min(world.others) < world.master
    for other in world.others:
        cluster.kill(other)
    await world.members_are(world.master)
    assert await world.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP) == Response.SUCCESS
    assert await world.ask(Request.UPDATE_AND_CREATE_TOPIC, TOPIC) == Response.SUCCESS
    cluster.power_fail(world.master)
    cluster.power_on(world.master)
    for node in cluster.of("broker"):
        cluster.start(node.name)
    assert await cluster.until(cluster.converged, 25) is None
    assert cluster.master() == world.master
    for node in cluster.of("broker"):
        assert "G1" in world.broker(node.name).groups.table
        assert "T1" in world.broker(node.name).topics.table
