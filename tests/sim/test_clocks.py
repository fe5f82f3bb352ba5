"""The promises of messages that wait, of timers and of halves, where clocks of brokers are set."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from client.message import Message, Received
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.sending.transactions import Decision
from store.files.record import records_in
from tests.broker.helpers import log_records
from tests.sim.skewed import TOPIC, Skewed
from tests.sim.world import simulated

pytestmark = pytest.mark.sim

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WAIT_S = 71
AHEAD_MS = 71_000
"""All that waits ``WAIT_S`` is due at once: a turn that delivers only the first of them is soon told of."""
KEYS = {"messageDelayLevel": f"{WAIT_S}s", "timerPrecisionMs": "100"}
WAITS = {"delay": "DELAY\x011\x02", "timer": f"TIMER_DELAY_SEC\x01{WAIT_S}\x02"}


async def kill_unnoted(world: Skewed, first: str, count: int) -> str:
    """Kill the master in the moment when it delivered so many; returns its successor."""
    store = world.broker(first).store
    for _ in range(30_000):
        if store.max_queue_offset(TOPIC, 0) >= count:
            break
        await asyncio.sleep(0.0005)
    assert store.max_queue_offset(TOPIC, 0) == count
    world.cluster.kill(first)
    found = await world.cluster.until(
        lambda: None if world.cluster.master() not in (None, first) else "no", 10
    )
    assert found is None
    successor = world.cluster.master()
    assert successor is not None
    return successor


def came(world: Skewed, master: str, queue_id: int = 0) -> Counter[bytes]:
    """How often each message came."""
    store, found, at = world.broker(master).store, Counter[bytes](), 0
    while at < store.max_queue_offset(TOPIC, queue_id):
        got = store.get(TOPIC, queue_id, at, 1 << 20, 1 << 30)
        found.update(bytes(record.body) for chunk in got.chunks for record in records_in(chunk))
        at = got.next_offset
    return found


HALVES = {"transactionTimeOut": "500", "transactionCheckInterval": "500", "transactionCheckMax": "1000"}


@pytest.mark.parametrize("dies", [False, True])
@simulated(lambda dies: Skewed(1, {**KEYS, **HALVES}))
async def test_a_half_of_a_clock_that_was_ahead_holds_back_none_behind_it(world: Skewed, dies: bool) -> None:
    cluster = world.cluster
    master = cluster.master()
    assert master is not None
    node, env = cluster.client("tx")
    asked = Counter[bytes]()

    async def check(message: Received) -> Decision:
        asked[message.body] += 1
        return Decision.COMMIT if asked[message.body] == 3 else Decision.UNKNOWN

    async def work(_: object) -> Decision:
        return Decision.UNKNOWN

    async def go() -> None:
        options = SendOptions(timeout_s=3.0)
        producer = Producer(env, "GID_tx", cluster.namesrv_addresses, options=options, check=check)
        await producer.start()
        await producer.send(Message(topic=TOPIC, body=b"first"))
        await asyncio.sleep(0.5)
        world.set_ahead(master, HOUR_MS)
        await producer.send_in_transaction(Message(topic=TOPIC, body=b"ahead"), work)
        world.set_ahead(master, -HOUR_MS)
        await producer.send_in_transaction(Message(topic=TOPIC, body=b"right"), work)
        if dies:
            cluster.kill(master)
        await asyncio.sleep(60)

    await cluster.inside(node, go())
    assert asked == {b"ahead": 3, b"right": 3}
    leader = cluster.master()
    assert leader is not None
    found = Counter[bytes]()
    for queue_id in range(8):
        found += came(world, leader, queue_id)
    assert found == Counter([b"first", b"ahead", b"right"])


@pytest.mark.parametrize("kind", ["delay", "timer"])
@simulated(lambda kind: Skewed(1, KEYS))
async def test_what_a_master_with_a_clock_far_ahead_delivered_unnoted_comes_once(
    world: Skewed, kind: str
) -> None:
    cluster = world.cluster
    first = cluster.master()
    assert first is not None
    others = [node.name for node in cluster.of("broker") if node.name != first]
    sent = [b"w%d" % number for number in range(6)]
    for body in sent:
        await world.send(body, WAITS[kind])
    world.set_ahead(first, AHEAD_MS)
    store = world.broker(first).store
    for _ in range(30_000):
        if store.max_queue_offset(TOPIC, 0) >= len(sent):
            break
        await asyncio.sleep(0.0005)
    assert store.max_queue_offset(TOPIC, 0) == len(sent)
    for name in others:
        tables = world.broker(name).tables
        assert (tables.delays.table.get(1, 0), tables.timed.note.first) == (0, 0), "nobody was told"
    cluster.kill(first)
    assert await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10) is None
    await world.send(b"plain")  # by a clock that was right all the time
    await asyncio.sleep(1)
    for name in others:
        world.set_ahead(name, WAIT_S * 1000)
    await asyncio.sleep(1.5)
    world.set_ahead(first, WAIT_S * 1000 - AHEAD_MS)
    cluster.start(first)
    assert await cluster.until(cluster.converged, 30.0) is None
    await asyncio.sleep(1)
    master = cluster.master()
    assert master is not None
    records = [record for record in log_records(world.broker(master)) if record.topic == TOPIC]
    assert Counter(bytes(record.body) for record in records) == Counter([*sent, b"plain"])


@simulated(lambda: Skewed(1, KEYS))
async def test_after_a_clock_was_ahead_no_timer_message_comes_before_its_time(world: Skewed) -> None:
    master = world.cluster.master()
    assert master is not None
    world.set_ahead(master, HOUR_MS)
    await world.send(b"first", "TIMER_DELAY_MS\x01300\x02")
    await asyncio.sleep(2)
    world.set_ahead(master, -HOUR_MS)
    now_ms = world.broker(master).env.now_ms()
    await world.send(b"soon", "TIMER_DELAY_MS\x01300\x02")
    await world.send(b"late", "TIMER_DELAY_MS\x015000\x02")
    await asyncio.sleep(8)
    records = [record for record in log_records(world.broker(master)) if record.topic == TOPIC]
    came = {bytes(record.body): record.store_timestamp_ms - now_ms for record in records}
    assert came[b"soon"] < 2000
    assert came[b"late"] >= 5000


@pytest.mark.parametrize("by_ms", [DAY_MS, 90_000])
@simulated(lambda by_ms: Skewed(1, KEYS))
async def test_a_successors_own_clock_that_goes_back_and_ahead_brings_nothing_twice(
    world: Skewed, by_ms: int
) -> None:
    first = world.cluster.master()
    assert first is not None
    waiting = [b"w%d" % number for number in range(6)]
    for body in waiting:
        await world.send(body, "TIMER_DELAY_SEC\x017\x02")
    world.set_ahead(first, 7000)
    successor = await kill_unnoted(world, first, len(waiting))
    await world.send(b"right")
    world.set_ahead(successor, -by_ms)
    for number in range(40):
        await world.send(b"back%d" % number)
    world.set_ahead(successor, by_ms)
    await asyncio.sleep(12)
    counts = came(world, successor)
    assert {body: counts[body] for body in waiting} == dict.fromkeys(waiting, 1)
    assert counts.total() == len(waiting) + 41


@pytest.mark.parametrize("right_again", [False, True])
@simulated(lambda right_again: Skewed(1, {**KEYS, "messageDelayLevel": "7s"}))
async def test_what_a_master_delivered_unnoted_when_its_clock_had_gone_back_comes_once(
    world: Skewed, right_again: bool
) -> None:
    first = world.cluster.master()
    assert first is not None
    waiting = [b"w%d" % number for number in range(6)]
    for body in waiting:
        await world.send(body, "DELAY\x011\x02")
    world.broker(first).processors.delay._remember = lambda level, offset: None  # type: ignore[method-assign]
    world.set_ahead(first, -DAY_MS)  # what is a day ahead of the clock is delivered at once
    await asyncio.sleep(0.2)
    others = [b"o%d" % number for number in range(30 if right_again else 0)]
    if right_again:
        world.set_ahead(first, DAY_MS)
    for body in others:
        await world.send(body)
    successor = await kill_unnoted(world, first, len(waiting) + len(others))
    await asyncio.sleep(12)
    assert came(world, successor) == Counter([*waiting, *others])
