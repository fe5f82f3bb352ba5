"""The promise of timer messages across the deaths of brokers: each comes once, and not before its time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from model.codes import Request, Response
from model.message import TIMER_DELIVER_MS, property_of
from model.recall import RecallHandle
from store.files.record import Record, records_in
from tests.sim.kept import Kept
from tests.sim.world import SEND, simulated

pytestmark = pytest.mark.sim

KEYS = {"flushDiskType": "SYNC_FLUSH", "timerPrecisionMs": "100", "recallMessageEnable": "true"}


def arrived(world: Kept, master: str) -> list[Record]:
    """What consumers of the new master can read."""
    log = world.broker(master).store.log
    records = records_in(log.read(log.min_offset, log.end - log.min_offset))
    return [record for record in records if record.topic == "TBW102"]


async def sent(world: Kept, body: bytes, after_ms: int) -> tuple[int, str]:
    """When it is to come, and its recall handle."""
    master = world.cluster.master()
    assert master is not None
    at_ms = world.broker(master).env.now_ms() + after_ms
    ext = {**SEND, "properties": f"UNIQ_KEY\x01{body.decode()}\x02{TIMER_DELIVER_MS}\x01{at_ms}\x02"}
    answer = await world.ask(Request.SEND_MESSAGE, ext, body)
    assert answer.code == Response.SUCCESS, answer.remark
    return at_ms, answer.ext["recallHandle"]


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.more), pytest.param(3, marks=pytest.mark.more)]
)
@pytest.mark.parametrize("fault", ["kill the master", "kill all", "power of all", "handover"])
@simulated(lambda seed, fault: Kept(400 + seed, KEYS))
async def test_timer_messages_come_once_and_not_before_their_time(world: Kept, seed: int, fault: str) -> None:
    cluster = world.cluster
    due: dict[bytes, int] = {}
    recalled: set[bytes] = set()
    for number in range(60):
        body = b"m%02d" % number
        due[body], handle = await sent(world, body, 500 + number * 97 % 6000)
        if number % 10 == 9:
            ext = {"topic": "TBW102", "recallHandle": handle, "producerGroup": "p"}
            answer = await world.ask(Request.RECALL_MESSAGE, ext, b"")
            left_ms = int(RecallHandle.decode(handle, 0).deliver_ms) - due[body]
            if answer.code == Response.SUCCESS:
                recalled.add(body)
            else:
                assert answer.code == Response.ILLEGAL_OPERATION, (answer.remark, left_ms)
        await asyncio.sleep(0.03)
    first = cluster.master()
    assert first is not None
    brokers = [node.name for node in cluster.of("broker")]
    if fault == "handover":
        cluster.stop(first)
        await asyncio.sleep(4)
        cluster.start(first)
    else:
        for name in [first] if fault == "kill the master" else brokers:
            cluster.power_fail(name) if fault == "power of all" else cluster.kill(name)
        if fault == "kill the master":
            found = await cluster.until(lambda: None if cluster.master() not in (None, first) else "no", 10)
            assert found is None
        for name in brokers:
            cluster.power_on(name)
            cluster.start(name)
    assert await cluster.until(cluster.converged, 30.0) is None
    await asyncio.sleep(9)
    master = cluster.master()
    assert master is not None
    broker = world.broker(master)
    broker.processors.timers.check_invariants()
    assert broker.processors.timers.wheel.count == 0
    records = arrived(world, master)
    assert Counter(bytes(r.body) for r in records) == Counter(set(due) - recalled)
    assert len(recalled) >= 4
    for record in records:
        assert record.store_timestamp_ms >= due[bytes(record.body)], "early"
        assert property_of(record.properties, TIMER_DELIVER_MS) == str(due[bytes(record.body)])


def came(world: Kept) -> list[bytes]:
    """What consumers read, in several segments too."""
    master = world.cluster.master()
    assert master is not None
    store, found, at = world.broker(master).store, list[bytes](), 0
    while at < store.max_queue_offset("TBW102", 0):
        got = store.get("TBW102", 0, at, 1 << 20, 1 << 30)
        found += [bytes(record.body) for chunk in got.chunks for record in records_in(chunk)]
        at = got.next_offset
    return found


async def recall(world: Kept, handle: str) -> bool:
    ext = {"topic": "TBW102", "recallHandle": handle, "producerGroup": "p"}
    return (await world.ask(Request.RECALL_MESSAGE, ext, b"")).code == Response.SUCCESS


def rolling(slots: int) -> dict[str, str]:
    return {**KEYS, "timerRollWindowSlot": str(slots)}


@pytest.mark.parametrize("slots", [2, 5])
@simulated(lambda slots: Kept(1, rolling(slots)))
async def test_a_recall_holds_where_the_message_and_the_recall_roll_just_before_it_is_due(
    world: Kept, slots: int
) -> None:
    recalled = set()
    for number in range(60):
        body = b"m%02d" % number
        _, handle = await sent(world, body, 650)
        await asyncio.sleep(0.013 * (number % 8))
        if await recall(world, handle):
            recalled.add(body)
        await asyncio.sleep(0.017)
    await asyncio.sleep(5)
    assert len(recalled) > 50
    assert not set(came(world)) & recalled
    assert len(set(came(world)) | recalled) == 60


@pytest.mark.parametrize("apart_s", [0.0, 0.3])
@simulated(lambda apart_s: Kept(1, rolling(20)))
async def test_a_recall_holds_though_all_were_down_until_it_was_due(world: Kept, apart_s: float) -> None:
    """They are down from before a roll of the recall, and of the message, too, where both roll together."""
    cluster = world.cluster
    handles = [(await sent(world, b"m%02d" % number, 3000))[1] for number in range(5)]
    await sent(world, b"stays", 3000)
    await asyncio.sleep(apart_s)
    for handle in handles:
        assert await recall(world, handle)
    await asyncio.sleep(1.9)
    names = [node.name for node in cluster.of("broker")]
    for name in names:
        cluster.kill(name)
    await asyncio.sleep(6)
    for name in names:
        world.start(name)
    assert await cluster.until(cluster.converged, 30.0) is None
    await asyncio.sleep(6)
    assert came(world) == [b"stays"]
