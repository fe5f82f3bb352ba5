"""The promise of a topic whose deletion was answered OK: messages that waited do not bring it back."""

from __future__ import annotations

import asyncio

import pytest

from model.codes import Request, Response
from tests.sim.kept import ALL, MAJORITY, Kept
from tests.sim.world import SEND, simulated

pytestmark = pytest.mark.sim

TOPIC = "Gone"
KEYS = {"messageDelayLevel": "1s", "timerPrecisionMs": "100"}
WAITS = {"delay": "DELAY\x011\x02", "timer": "TIMER_DELAY_MS\x011000\x02"}


async def is_there(world: Kept) -> bool:
    return (await world.ask(Request.GET_TOPIC_CONFIG, {"topic": TOPIC})).code == Response.SUCCESS


async def sent(world: Kept, count: int, properties: str = "") -> None:
    for number in range(count):
        ext = {**SEND, "topic": TOPIC, "properties": f"UNIQ_KEY\x01u{number}\x02{properties}"}
        answer = await world.ask(Request.SEND_MESSAGE, ext, b"w%03d" % number)
        assert answer.code == Response.SUCCESS, answer.remark


@pytest.mark.parametrize("kind", ["delay", "timer"])
@pytest.mark.parametrize("mode", [ALL, MAJORITY])
@simulated(lambda kind, mode: Kept(1, {**KEYS, **mode}))
async def test_a_deleted_topic_stays_deleted_when_messages_that_waited_for_it_come_unnoted(
    world: Kept, kind: str, mode: dict[str, str]
) -> None:
    """The slaves have copies of which the master that dies has not heard that they are everywhere."""
    cluster = world.cluster
    first = cluster.master()
    assert first is not None
    await sent(world, 20, WAITS[kind])
    assert (await world.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == Response.SUCCESS
    assert not await is_there(world)
    store = world.broker(first).store
    slaves = [world.broker(node.name) for node in cluster.of("broker") if node.name != first]
    for _ in range(40_000):
        if store.next_offset(TOPIC, 0) and all(slave.store.log.end >= store.log.end for slave in slaves):
            break
        await asyncio.sleep(0.0001)
    assert store.next_offset(TOPIC, 0) > store.max_queue_offset(TOPIC, 0) == 0
    cluster.kill(first)
    assert await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
    await asyncio.sleep(1.5)
    assert not await is_there(world)
    cluster.start(first)
    assert await cluster.until(cluster.converged, 30.0) is None
    await asyncio.sleep(1)
    assert not await is_there(world)
    # What is sent from now on is another topic's, and begins behind all of that.
    await sent(world, 3)
    master = cluster.master()
    assert master is not None
    broker = world.broker(master)
    assert broker.store.next_offset(TOPIC, 0) == 23
    assert broker.context.topics.first_offset(TOPIC, 0) == 20


@simulated(lambda: Kept(1, KEYS))
async def test_a_deleted_topic_that_a_first_send_made_again_is_there_at_a_successor_that_was_not_told(
    world: Kept,
) -> None:
    """Also where a message that had waited for the one before comes to its queue."""
    cluster = world.cluster
    first = cluster.master()
    assert first is not None
    await sent(world, 2, WAITS["delay"])
    assert (await world.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == Response.SUCCESS
    await asyncio.sleep(1.5)
    await sent(world, 3)
    for node in cluster.of("broker"):  # as if it had not been handed on yet
        if node.name != first:
            del world.broker(node.name).context.topics.table[TOPIC]
            world.broker(node.name).context.topics.text.clear()
    cluster.kill(first)
    assert await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
    await asyncio.sleep(0.5)
    assert await is_there(world)
    master = cluster.master()
    assert master is not None
    assert world.broker(master).context.topics.first_offset(TOPIC, 0) == 2
