"""The promises to consumers and producers of docs/replication-modes.md, across the deaths of brokers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from model.codes import Request, Response
from model.message import parse_message_id
from remoting import bodies
from remoting.codec import Command
from remoting.headers import EndTransactionHeader, SendBackHeader
from store.files.record import records_in
from tests.broker.halves import COMMIT, HALF
from tests.sim.kept import Kept
from tests.sim.world import SEND, simulated

pytestmark = pytest.mark.sim

SYNCED = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s 2s 3s"}
READERS = {"consumerGroup": "readers", "topic": "TBW102", "queueId": "0"}
RETRY = "%RETRY%readers"
FLUSH_S = 5.0
"""flushConsumerOffsetInterval"""


async def ok(world: Kept, code: Request, ext: dict[str, str], body: bytes = b"") -> Command:
    answer = await world.ask(code, ext, body)
    assert answer.code == Response.SUCCESS, answer.remark
    return answer


async def sent(world: Kept, body: bytes, properties: str = "") -> Command:
    return await ok(world, Request.SEND_MESSAGE, {**SEND, "properties": properties}, body)


async def readers(world: Kept) -> None:
    """Make the group: a commit makes none."""
    await ok(world, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName": "readers"}')


async def committed_transaction(world: Kept, body: bytes) -> None:
    half = await sent(world, body, HALF)
    offset = parse_message_id(half.ext["msgId"])[1]
    end = EndTransactionHeader("pg", int(half.ext["queueOffset"]), offset, COMMIT, half.ext["transactionId"])
    await ok(world, Request.END_TRANSACTION, end.to_ext())


def seen(world: Kept, master: str) -> Counter[tuple[str, bytes]]:
    """What consumers of the new master can read, how often."""
    log = world.broker(master).store.log
    records = records_in(log.read(log.min_offset, log.end - log.min_offset))
    return Counter((r.topic, bytes(r.body)) for r in records if r.topic in ("TBW102", RETRY))


@pytest.mark.parametrize("fault", ["kill the master", "kill all", "power of all"])
@simulated(lambda fault: Kept(5, SYNCED))
async def test_what_was_answered_ok_is_there_once_after_the_deaths(world: Kept, fault: str) -> None:
    """A send, a delayed one, a committed transaction, a message sent back, a topic and a group."""
    cluster = world.cluster
    plain = await sent(world, b"plain")
    await sent(world, b"later", "DELAY\x012\x02")
    await readers(world)
    await ok(world, Request.UPDATE_CONSUMER_OFFSET, {**READERS, "commitOffset": "1"})
    back = SendBackHeader(parse_message_id(plain.ext["msgId"])[1], "readers", 1)
    await ok(world, Request.CONSUMER_SEND_MSG_BACK, back.to_ext())
    await asyncio.sleep(0.3)  # an offset is at the slaves within 200 ms and a round trip
    await committed_transaction(world, b"half")
    group = bodies.dumps({"groupName": "G1", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 7})
    await ok(world, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    brokers = [node.name for node in cluster.of("broker")]
    first = cluster.master()
    assert first is not None
    if fault == "kill the master":
        cluster.kill(first)
        assert (
            await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
        )
    for name in brokers if fault != "kill the master" else ():
        cluster.power_fail(name) if fault == "power of all" else cluster.kill(name)
    for name in brokers:
        cluster.power_on(name)
        cluster.start(name)
    assert await cluster.until(cluster.converged, 30.0) is None
    await asyncio.sleep(6)
    master = cluster.master()
    assert master is not None
    found = seen(world, master)
    for topic, body in (("TBW102", b"plain"), ("TBW102", b"later"), ("TBW102", b"half"), (RETRY, b"plain")):
        assert found[topic, body] == 1, (topic, body, found)
    assert "G1" in world.broker(master).groups.table
    offset = world.broker(master).offsets.get("readers", "TBW102", 0)
    assert offset == 1 if fault == "kill the master" else offset in (None, 1)


@simulated(lambda: Kept(6, {}))
async def test_after_the_death_of_all_brokers_the_offsets_of_the_last_flush_interval_come_again(
    world: Kept,
) -> None:
    cluster = world.cluster
    commits: list[tuple[float, int]] = []
    await readers(world)
    for number in range(1, 161):
        await sent(world, b"x")
        await ok(world, Request.UPDATE_CONSUMER_OFFSET, {**READERS, "commitOffset": str(number)})
        commits.append((cluster.clock(), number))
        await asyncio.sleep(0.05)
    killed_ms = cluster.clock()
    for node in cluster.of("broker"):
        cluster.kill(node.name)
    for node in cluster.of("broker"):
        cluster.start(node.name)
    assert await cluster.until(cluster.converged, 30.0) is None
    master = cluster.master()
    assert master is not None
    offset = world.broker(master).offsets.get("readers", "TBW102", 0)
    earlier = max(number for at_ms, number in commits if at_ms <= killed_ms - (FLUSH_S + 0.5) * 1000)
    assert offset is not None
    assert earlier <= offset <= commits[-1][1], "repeated, never skipped"


@simulated(lambda: Kept(7, {}))
async def test_offsets_do_not_fall_back_further_with_each_death_in_a_crash_loop(world: Kept) -> None:
    """Each life ends before the offsets are flushed by the clock; the consumer lives and commits on."""
    cluster = world.cluster
    await readers(world)
    number = 0
    for _ in range(6):
        for _ in range(25):
            number += 1
            await sent(world, b"x")
            await ok(world, Request.UPDATE_CONSUMER_OFFSET, {**READERS, "commitOffset": str(number)})
            await asyncio.sleep(0.1)
        for node in cluster.of("broker"):
            cluster.kill(node.name)
        for node in cluster.of("broker"):
            cluster.start(node.name)
        assert await cluster.until(cluster.converged, 30.0) is None
    master = cluster.master()
    assert master is not None
    offset = world.broker(master).offsets.get("readers", "TBW102", 0)
    assert offset is not None
    assert number - 10 <= offset <= number, "one second's commits, not those of all lives"
