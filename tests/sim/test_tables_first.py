"""The promise: a broker is a member of the SyncStateSet only when it has the tables. So it can be elected.

The port that tables are copied from is slow here; the HA port is not.
"""

from __future__ import annotations

import asyncio

import pytest

from broker.upkeep.table_sync import MetadataSync
from model.codes import Request, Response
from model.errors import Unknown
from model.ids import QueueOffset
from remoting import bodies
from tests.sim.asked import FLUSHES_SELDOM, TOPIC, Group, alone
from tests.sim.kept import MAJORITY
from tests.sim.world import SEND, simulated

pytestmark = pytest.mark.sim

COPY_LATE_S = 1.0
GROUP = bodies.dumps({"groupName": "G1", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 7})
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


@simulated(lambda: Group(1))
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
