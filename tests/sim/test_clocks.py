"""The promise of messages that wait: what a master delivered whose clock was far ahead comes once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from model.codes import Request, Response
from tests.broker.helpers import log_records
from tests.sim.kept import Kept
from tests.sim.world import SEND, simulated

pytestmark = pytest.mark.sim

TOPIC = "Waits"
HOUR_MS = 3_600_000
WAIT_S = 71
AHEAD_MS = 70_000
KEYS = {"messageDelayLevel": f"{WAIT_S}s", "timerPrecisionMs": "100"}
WAITS = {"delay": "DELAY\x011\x02", "timer": f"TIMER_DELAY_SEC\x01{WAIT_S}\x02"}


class Skewed(Kept):
    """Brokers whose clocks are set."""

    def set_ahead(self, name: str, by_ms: int) -> None:
        node = self.cluster.nodes[name]
        node.skew_ms += by_ms
        if node.running:
            self.broker(name).env.skew_ms = node.skew_ms  # type: ignore[attr-defined]

    async def send(self, body: bytes, properties: str = "") -> None:
        text = f"UNIQ_KEY\x01{body.decode()}\x02{properties}"
        answer = await self.ask(Request.SEND_MESSAGE, {**SEND, "topic": TOPIC, "properties": text}, body)
        assert answer.code == Response.SUCCESS, answer.remark


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
