"""The promises to consumers and producers of docs/replication-modes.md (P1, P2, P5 to P7, P9, P10), across
the deaths of brokers and the loss of power."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from chaos.faults import ClockJump, Step
from chaos.sim.cluster import BROKER_PORT
from chaos.sim.faults import Nemesis
from model.codes import Request
from model.errors import MqError
from model.message import SCHEDULE_TOPIC, dlq_topic, parse_message_id, retry_topic
from remoting import bodies
from remoting.codec import Command
from remoting.headers import EndTransactionHeader, SendBackHeader
from remoting.service import Connection, RemotingClient
from store.files.record import Record, decode, records_in
from tests.broker.halves import COMMIT, HALF, ROLLBACK
from tests.broker.helpers import heartbeat
from tests.sim.kept import Kept, ok, sent
from tests.sim.world import simulated

pytestmark = pytest.mark.sim

SYNCED = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s 2s 3s"}
READERS = {"consumerGroup": "readers", "topic": "TBW102", "queueId": "0"}
RETRY, DEAD = retry_topic("readers"), dlq_topic("readers")
AT_ONCE_DEAD = -1
"""The delay level of a message sent back that is to come no more."""
FLUSH_S = 5.0
"""flushConsumerOffsetInterval"""


async def readers(world: Kept) -> None:
    """Make the group: a commit makes none."""
    await ok(world, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName": "readers"}')


async def transaction(world: Kept, body: bytes, decision: int) -> None:
    half = await sent(world, body, HALF)
    offset = parse_message_id(half.ext["msgId"])[1]
    end = EndTransactionHeader(
        "pg", int(half.ext["queueOffset"]), offset, decision, half.ext["transactionId"]
    )
    await ok(world, Request.END_TRANSACTION, end.to_ext())


async def sent_back(world: Kept, message: Command, delay_level: int) -> None:
    back = SendBackHeader(parse_message_id(message.ext["msgId"])[1], "readers", delay_level)
    await ok(world, Request.CONSUMER_SEND_MSG_BACK, back.to_ext())


def of_log(world: Kept, name: str, *topics: str) -> list[Record]:
    log = world.broker(name).store.log
    records = records_in(log.read(log.min_offset, log.end - log.min_offset))
    return [record for record in records if record.topic in topics]


def readable(world: Kept, master: str) -> list[Record]:
    """What consumers of this master can read."""
    return of_log(world, master, "TBW102", RETRY, DEAD)


def came(world: Kept) -> list[Record]:
    """What consumers of the master there is now, if any, can read."""
    master = world.cluster.master()
    return [] if master is None else readable(world, master)


def seen(world: Kept, master: str) -> Counter[tuple[str, bytes]]:
    return Counter((record.topic, bytes(record.body)) for record in readable(world, master))


@pytest.mark.parametrize("fault", ["kill the master", "kill all", "power of all"])
@simulated(lambda fault: Kept(5, SYNCED))
async def test_what_was_answered_ok_is_there_once_after_the_deaths(world: Kept, fault: str) -> None:
    """A send, a delayed one, transactions with each end and without one, messages sent back for a retry and
    for good, a topic and a group."""
    cluster = world.cluster
    plain, poison = await sent(world, b"plain"), await sent(world, b"poison")
    await sent(world, b"later", "DELAY\x012\x02")
    await readers(world)
    await ok(world, Request.UPDATE_CONSUMER_OFFSET, {**READERS, "commitOffset": "1"})
    await sent_back(world, plain, 1)
    await sent_back(world, poison, AT_ONCE_DEAD)
    await asyncio.sleep(0.3)  # an offset is at the slaves within 200 ms and a round trip
    await transaction(world, b"half", COMMIT)
    await transaction(world, b"rolled back", ROLLBACK)
    await sent(world, b"no end", HALF)
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
    own = (("TBW102", body) for body in (b"plain", b"poison", b"later", b"half"))
    assert seen(world, master) == Counter([*own, (RETRY, b"plain"), (DEAD, b"poison")]), "each once, no other"
    assert "G1" in world.broker(master).groups.table
    offset = world.broker(master).offsets.get("readers", "TBW102", 0)
    assert offset == 1 if fault == "kill the master" else offset in (None, 1)


class Producer:
    """Of transactions whose ends got lost: it says how each ended when a master asks."""

    def __init__(self, world: Kept, ends: dict[bytes, int]) -> None:
        self.asked: list[tuple[str, bytes]] = []
        """By which broker, about which half."""
        self._world = world
        self._ends = ends
        self._node, env = world.cluster.client("producer")
        self._client = RemotingClient(env, "producer", handler=self._answer)
        self._hosts = {node.host: node.name for node in world.cluster.of("broker")}
        world.cluster.inside(self._node, self._beat(), name="beat")

    async def _beat(self) -> None:
        """As producers do: to every broker, the slaves too."""
        beat = heartbeat("producer", "", producer="pg")
        while True:
            for host in self._hosts:
                try:
                    await self._client.call(
                        f"{host}:{BROKER_PORT}", Command(Request.HEART_BEAT, {}, beat), 1.0
                    )
                except (MqError, OSError):
                    self._client.drop(f"{host}:{BROKER_PORT}")
            await asyncio.sleep(0.5)

    async def _answer(self, connection: Connection, request: Command) -> None:
        if request.code != Request.CHECK_TRANSACTION_STATE:
            return
        body = bytes(decode(request.body).body)
        self.asked.append((self._hosts[connection.address.partition(":")[0]], body))
        if body in self._ends:
            places = int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"])
            ids = request.ext["msgId"], request.ext["transactionId"]
            end = EndTransactionHeader("pg", *places, self._ends[body], *ids, from_check=True)
            connection.oneway(Command(int(Request.END_TRANSACTION), end.to_ext()))


@simulated(lambda: Kept(8, {"transactionTimeOut": "3000", "transactionCheckInterval": "500"}))
async def test_a_successor_asks_the_producer_of_a_half_whose_end_did_not_come(world: Kept) -> None:
    cluster, first = world.cluster, world.cluster.master()
    assert first is not None
    producer = Producer(world, {b"commit": COMMIT, b"roll back": ROLLBACK})
    halves = (b"commit", b"roll back", b"nobody knows")
    for body in halves:
        await sent(world, body, HALF)
    cluster.kill(first)
    assert await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
    assert producer.asked == [], "the one that took the halves did not live to ask"
    await asyncio.sleep(9)
    master = cluster.master()
    assert master is not None
    asked = Counter(producer.asked)
    assert asked.keys() == {(master, body) for body in halves}
    assert (asked[master, b"commit"], asked[master, b"roll back"]) == (1, 1), "they have ended"
    assert asked[master, b"nobody knows"] > 1, "again, until it ends"
    assert seen(world, master) == Counter([("TBW102", b"commit")])


@pytest.mark.parametrize("ahead_ms", [1500, 3_600_000])
@simulated(lambda: Kept(9, SYNCED))
async def test_a_delayed_message_comes_by_the_clock_of_a_successor_that_is_ahead_and_once(
    world: Kept, ahead_ms: int
) -> None:
    """Never before its time by that clock; by so much sooner as that is ahead. And the master whose clock
    is right delivers it no second time when it leads again."""
    cluster, first = world.cluster, world.cluster.master()
    assert first is not None
    others = [node.name for node in cluster.of("broker") if node.name != first]
    nemesis = Nemesis(cluster, [])
    for name in others:
        nemesis.act(Step(0, ClockJump(name, ahead_ms)))
    begun_ms = cluster.clock()
    await sent(world, b"later", "DELAY\x013\x02")  # 3 s
    (stored,) = of_log(world, first, SCHEDULE_TOPIC)
    cluster.kill(first)
    assert await cluster.until(lambda: None if cluster.master() in others else "no", 10) is None
    assert await cluster.until(lambda: None if came(world) else "it does not come", 10) is None
    took_ms = cluster.clock() - begun_ms
    assert took_ms < 3000, "sooner: its clock is ahead"
    assert took_ms >= 3000 - ahead_ms
    (copy,) = came(world)
    assert copy.store_timestamp_ms >= stored.store_timestamp_ms + 3000, "not before its time by that clock"
    cluster.start(first)
    assert await cluster.until(cluster.converged, 30.0) is None
    for name in others:
        cluster.kill(name)
    assert await cluster.until(lambda: None if cluster.master() == first else "no", 20) is None
    await asyncio.sleep(4)
    assert len(came(world)) == 1


@pytest.mark.parametrize("fault", ["kill", "power"])
@simulated(lambda fault: Kept(6, SYNCED if fault == "power" else {}))
async def test_after_the_death_of_all_brokers_the_offsets_of_the_last_flush_interval_come_again(
    world: Kept, fault: str
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
        cluster.kill(node.name) if fault == "kill" else cluster.power_fail(node.name)
    for node in cluster.of("broker"):
        cluster.power_on(node.name)
        cluster.start(node.name)
    assert await cluster.until(cluster.converged, 30.0) is None
    master = cluster.master()
    assert master is not None
    offset = world.broker(master).offsets.get("readers", "TBW102", 0)
    earlier = max(number for at_ms, number in commits if at_ms <= killed_ms - (FLUSH_S + 0.5) * 1000)
    assert offset is not None
    assert earlier <= offset <= commits[-1][1], "repeated, never skipped"


@pytest.mark.parametrize("fault", ["power of the master", "power of all"])
@simulated(lambda fault: Kept(10, {"flushConsumerOffsetInterval": "60000"}))
async def test_an_offset_that_an_operator_reset_outlives_a_power_failure_right_after(
    world: Kept, fault: str
) -> None:
    cluster, first = world.cluster, world.cluster.master()
    assert first is not None
    await readers(world)
    for number in range(1, 9):
        await sent(world, b"x")
        await ok(world, Request.UPDATE_CONSUMER_OFFSET, {**READERS, "commitOffset": str(number)})
    await asyncio.sleep(1.5)  # the log is on the disks, and the commits are at the slaves
    to = {"group": "readers", "topic": "TBW102", "queueId": "0", "timestamp": "0", "isForce": "true"}
    await ok(world, Request.INVOKE_BROKER_TO_RESET_OFFSET, {**to, "offset": "3"})
    names = [node.name for node in cluster.of("broker")]
    for name in names if fault == "power of all" else [first]:
        cluster.power_fail(name)
    if fault == "power of the master":
        assert (
            await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
        )
    for name in names:
        cluster.power_on(name)
        cluster.start(name)
    assert await cluster.until(cluster.converged, 30.0) is None
    master = cluster.master()
    assert master is not None
    assert world.broker(master).offsets.get("readers", "TBW102", 0) == 3


@simulated(lambda: Kept(11, {"flushDiskType": "SYNC_FLUSH", "flushIntervalCommitLog": "60000"}))
async def test_with_sync_flush_a_master_that_is_alone_in_the_set_loses_nothing_with_the_power(
    world: Kept,
) -> None:
    cluster, master = world.cluster, world.cluster.master()
    assert master is not None
    slaves = [node.name for node in cluster.of("broker") if node.name != master]
    world.send_on()
    await asyncio.sleep(0.5)
    for name in slaves:
        cluster.kill(name)
    assert await cluster.until(lambda: None if len(cluster.members()) == 1 else "not alone", 10) is None
    before = len(world.acked)
    await asyncio.sleep(1)
    alone = set(world.acked[before:])
    cluster.power_fail(master)
    assert alone, "it answers alone"
    for name in (master, *slaves):
        cluster.power_on(name)
        cluster.start(name)
    await world.settled()
    assert alone <= world.stored(master)


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
