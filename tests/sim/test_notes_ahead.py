"""The promise about notes that reach the disk before the log does: none hides a message that comes later."""

from __future__ import annotations

import asyncio
import re
from unittest.mock import patch

import pytest

from broker.timers.codec import decode_check
from broker.timers.core import Note
from chaos.sim.cluster import BROKER_PORT, GROUP
from client.consuming.pull import PullConsumer
from client.message import Queue
from model.codes import Request
from model.message import SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.codec import Command
from remoting.service import RemotingClient
from store.message_store import MessageStore
from tests.sim.kept import Kept
from tests.sim.world import SEND, simulated

TOPIC = "Reborn"
LATE_FLUSH = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "500"}


async def _not_first(store: MessageStore, offset: int) -> None:
    """As of a former release: a note went to the disk ahead of the log."""


class Forgetful(Kept):
    """A group whose brokers all lose power before the log is on their disks."""

    def __init__(self, keys: dict[str, str] | None = None) -> None:
        super().__init__(1, {**LATE_FLUSH, **(keys or {})})

    async def send(self, count: int, who: str, properties: str = "") -> list[bytes]:
        master = self.cluster.master()
        assert master is not None
        node, env = self.cluster.client(who)
        address = f"{self.cluster.nodes[master].host}:{BROKER_PORT}"
        bodies = [b"%s%04d" % (who.encode(), number) for number in range(count)]

        async def send() -> None:
            client = RemotingClient(env, who)
            for body in bodies:
                ext = {**SEND, "topic": TOPIC, "properties": properties}
                command = Command(Request.SEND_MESSAGE, ext, body)
                answer = await client.call(address, command, 5.0)
                assert answer.code == 0, answer.remark
            await client.close()

        await self.cluster.inside(node, send())
        return bodies

    async def lose_what_is_not_synced(self) -> None:
        names = [node.name for node in self.cluster.of("broker")]
        for name in names:
            self.cluster.power_fail(name)
        for name in names:
            self.cluster.power_on(name)
            self.start(name)
        assert await self.cluster.until(self.cluster.converged, 40.0) is None

    async def read(self, begin: int = 0) -> list[bytes]:
        node, env = self.cluster.client(f"reader{len(self.cluster.of('client'))}")

        async def read() -> list[bytes]:
            async with PullConsumer(env, "g", self.cluster.namesrv_addresses, poll_ms=500) as consumer:
                found = await consumer.read_all(Queue(TOPIC, GROUP, 0))
                return [bytes(message.body) for message in found if message.queue_offset >= begin]

        return await self.cluster.inside(node, read())

    def end(self) -> int:
        master = self.cluster.master()
        assert master is not None
        return self.broker(master).store.next_offset(TOPIC, 0)


@pytest.mark.sim
@simulated(Forgetful)
@patch.object(MessageStore, "synced", _not_first)
async def test_a_deleted_topic_hides_nothing_of_the_one_that_has_its_name(world: Forgetful) -> None:
    await world.send(3, "synced")
    await asyncio.sleep(2)
    await world.send(40, "lost")
    ended = world.end()
    assert (await world.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
    await world.lose_what_is_not_synced()
    assert world.end() < ended
    sent = await world.send(20, "after")
    assert await world.cluster.until(world.cluster.converged, 40.0) is None
    assert await world.read() == sent


@pytest.mark.sim
@simulated(Forgetful)
@patch.object(MessageStore, "synced", _not_first)
async def test_what_an_operator_set_beyond_the_end_is_cut_to_it(world: Forgetful) -> None:
    await world.send(3, "synced")
    await asyncio.sleep(2)
    made = await world.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    assert made.code == 0, made.remark
    await world.send(40, "lost")
    ended = world.end()
    to = {"topic": TOPIC, "group": "g", "timestamp": "-1", "isForce": "true", "queueId": "0"}
    reset = await world.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, {**to, "offset": str(ended)})
    assert reset.code == 0, reset.remark
    await world.lose_what_is_not_synced()
    left = world.end()
    assert left < ended
    master = world.cluster.master()
    assert master is not None
    offsets = world.broker(master).context.offsets
    assert (offsets.get("g", TOPIC, 0), offsets.resets.get((TOPIC, "g"), 0)) == (left, left)
    offsets.check_invariants()


@pytest.mark.sim
@simulated(Forgetful)
async def test_notes_of_delivery_beyond_the_end_are_cut_to_it(world: Forgetful) -> None:
    master = world.cluster.master()
    assert master is not None
    tables = world.broker(master).tables
    tables.delays.set(1, 100)
    tables.timed.set(Note(1, 100, 90))
    await asyncio.sleep(1)
    await world.lose_what_is_not_synced()
    master = world.cluster.master()
    assert master is not None
    store, tables = world.broker(master).store, world.broker(master).tables
    assert tables.delays.table.get(1, 0) == store.next_offset(SCHEDULE_TOPIC, 0) == 0
    note = tables.timed.note
    assert max(note.queue_offset, note.first) == store.next_offset(TIMER_TOPIC, 0) == 0


WAITS = {"delay": "DELAY\x011\x02", "timer": "TIMER_DELAY_MS\x011000\x02"}
SELDOM = {
    "flushIntervalCommitLog": "60000",
    "flushIntervalConsumeQueue": "60000",
    "messageDelayLevel": "1s",
    "timerPrecisionMs": "100",
}


def noted(world: Forgetful, kind: str) -> list[int]:
    """By broker, up to where messages are delivered, as its disk says."""
    found = []
    for node in world.cluster.of("broker"):
        path = "/store/config/" + ("delayOffset.json" if kind == "delay" else "timercheck")
        data = node.machine.content(path) if node.machine.find(path) else b""
        if kind == "delay":
            at = re.search(rb"\b1:(\d+)", data)
            found.append(int(at[1]) if at else 0)
        else:
            check = decode_check(data)
            found.append(check.note.first if check else 0)
    return found


@pytest.mark.sim
@pytest.mark.parametrize("kind", ["delay", "timer"])
@simulated(lambda kind: Forgetful(SELDOM))
async def test_what_waited_and_is_on_the_disks_comes_though_its_copies_were_lost_or_noted(
    world: Forgetful, kind: str
) -> None:
    """The notes were on all disks before the copies that they speak of, and nobody delivered again."""
    cluster = world.cluster
    sent = await world.send(6, "waits", WAITS[kind])
    stores = [world.broker(node.name).store for node in cluster.of("broker")]
    for store in stores:
        store.sync_to(store.log.end)
    assert (
        await cluster.until(
            lambda: None if noted(world, kind) == [6, 6, 6] else f"noted {noted(world, kind)}", 10.0
        )
        is None
    )
    await world.lose_what_is_not_synced()
    await asyncio.sleep(3)
    assert await world.read() == sent
