"""The promise of a pop over a change of the master: nothing is lost, and what was acknowledged does not
come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.service import Broker
from model.codes import Request
from model.ids import BrokerId, Epoch
from tests.broker.helpers import client_of, elected, eventually, pair, running, topic
from tests.broker.pop.support import ack, pop, pop_until, popped

KEYS = {"reviveInterval": "50", "allAckInSyncStateSet": "true"}


async def hand_over(one: Broker, two: Broker) -> None:
    """The second one leads epoch 2; the first one follows it."""
    await one.fence()
    await two.lead(elected(2, 2, {2}, 3))
    await one.follow(BrokerId(1), Epoch(2), two.config.address, two.config.ha_address)


async def test_a_successor_brings_back_what_was_popped_before_and_not_acknowledged(tmp_path: Path) -> None:
    async with pair(tmp_path, **KEYS) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(4):
            await client.send("T", b"%d" % at)
        found = popped(await pop(client, "T", count_max=2, invisible_ms=1000), "T")
        assert [item.body for item in found] == [b"0", b"1"]
        assert (await ack(client, found[0])).code == 0
        await eventually(lambda: two.offsets.get("pg", "T", 0) == 2, "the offset was copied")
        await hand_over(one, two)
        async with client_of(two) as other:
            again = await pop_until(other, "T", 3, invisible_ms=60_000)
            assert sorted(item.body for item in again) == [b"1", b"2", b"3"]
            for item in again:
                assert (await ack(other, item)).code == 0


async def test_an_offset_does_not_outrun_its_checkpoint(tmp_path: Path) -> None:
    """What a slave copies must not say that messages were popped whose checkpoint it may not get."""
    async with pair(tmp_path, **KEYS) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        await eventually(lambda: one.store.max_queue_offset("T", 0) == 1, "it is confirmed")
        await two.ha.become_fenced()  # nothing is confirmed any more
        waiting = asyncio.create_task(pop(client, "T"))
        await eventually(lambda: len(one.pending_acks) == 1, "the checkpoint is on its way")
        assert len(one.processors.pops.log.positions) == 1
        assert one.offsets.get("pg", "T", 0) in (None, 0)
        assert (await pop(client, "T", poll_ms=200)).code == 210, "and nobody else is given the message"
        waiting.cancel()


async def test_what_came_back_comes_once_whatever_is_open_before_it(tmp_path: Path) -> None:
    """The revive group's offset stays before a pop with a long time; what stands behind is done all the
    same."""
    async with pair(tmp_path, reviveQueueNum="1", **KEYS) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(4):
            await client.send("T", b"%d" % at)
        assert (await pop(client, "T", count_max=1, invisible_ms=3_600_000)).code == 0
        assert (await pop(client, "T", count_max=2, invisible_ms=500)).code == 0
        await eventually(lambda: one.processors.pops.revive.revived == 2, "both came back")
        for item in await pop_until(client, "T", 3):
            assert (await ack(client, item)).code == 0
        await hand_over(one, two)
        async with client_of(two) as other:
            assert (await pop(other, "T", poll_ms=2500)).code == 210
        assert two.processors.pops.revive.revived == 0


async def test_what_was_popped_last_is_in_hand_though_no_offset_came(tmp_path: Path) -> None:
    """Of several pops of two queues, each with its checkpoint in another revive queue."""
    async with pair(tmp_path, reviveQueueNum="4", **KEYS) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        for at in range(6):
            await client.send("T", b"%d" % at)
            await client.send("T", b"other", queue_id=1)
        for _ in range(5):
            assert (await pop(client, "T", count_max=1, queue_id=0)).code == 0
            assert (await pop(client, "T", count_max=2, queue_id=1)).code in (0, 210)
        for queue_id, offset in ((0, 5), (1, 6)):
            await eventually(lambda: two.offsets.get("pg", "T", queue_id) == offset, "it was copied")  # noqa: B023
        await one.fence()
        two.offsets.commit("pg", "T", 0, 0)
        two.offsets.commit("pg", "T", 1, 0)
        two.offsets.pops_to = 0
        await two.lead(elected(2, 2, {2}, 3))
        await one.follow(BrokerId(1), Epoch(2), two.config.address, two.config.ha_address)
        async with client_of(two) as other:
            assert [item.body for item in await pop_until(other, "T", 1)] == [b"5"]
            assert (await pop(other, "T")).code == 210


async def test_the_first_pop_of_a_group_is_in_hand_though_no_offset_came(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        assert (await pop(client, "T")).code == 0
        await broker.store.caught_up()
    for file in (tmp_path / "config").glob("consumerOffset.json*"):
        file.unlink()
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await pop(client, "T", poll_ms=1000)).code == 210
        assert broker.offsets.get("pg", "T", 0) == 1


async def test_a_reset_to_where_a_group_was_before_the_pop_under_way_counts(tmp_path: Path) -> None:
    async with pair(tmp_path, **KEYS) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        await eventually(lambda: one.store.max_queue_offset("T", 0) == 1, "it is confirmed")
        await two.ha.become_fenced()  # nothing is confirmed any more
        waiting = asyncio.create_task(pop(client, "T"))
        await eventually(lambda: len(one.pending_acks) == 1, "the checkpoint is on its way")
        log = one.processors.pops.log
        assert (one.offsets.get("pg", "T", 0), log.known("T", "pg", 0)) == (0, 1)
        one.offsets.reset("pg", "T", 0, 0)
        assert log.known("T", "pg", 0) == 0
        waiting.cancel()


async def test_an_offset_that_is_set_while_a_successor_reads_what_was_popped_stays(tmp_path: Path) -> None:
    """Its table does not hold the last pops, and an operator is quicker than the reader."""
    async with pair(tmp_path, **KEYS) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(4):
            await client.send("T", b"%d" % at)
        assert len(await pop_until(client, "T", 4)) == 4
        await eventually(lambda: two.offsets.get("pg", "T", 0) == 4, "the offset was copied")
        await one.fence()
        two.offsets.commit("pg", "T", 0, 0)
        two.offsets.pops_to = 0
        two.role_state.on_change.append(lambda: two.offsets.reset("pg", "T", 0, 2))
        await two.lead(elected(2, 2, {2}, 3))
        await one.follow(BrokerId(1), Epoch(2), two.config.address, two.config.ha_address)
        await eventually(lambda: two.processors.pops.log.ready, "it read them")
        assert two.offsets.get("pg", "T", 0) == 2
