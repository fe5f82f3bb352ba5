"""The promise of an order pop: nobody is given a queue's messages while others of it are in hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.requests.consumers.pop.order import FORGOTTEN_MS, OrderTable
from model.codes import Request, Response
from model.pop import ORDER_REVIVE_QUEUE, order_key, parse_start_offsets
from tests.broker.helpers import client_of, eventually, running, topic
from tests.broker.pop.support import ack, change, pop, popped

KEY = ("T", "g", 0)


def table(*offsets: int, attempt_id: str = "") -> OrderTable:
    found = OrderTable()
    found.popped(KEY, attempt_id, 77, 3000, list(offsets), offsets[0], 1000)
    return found


def test_a_queue_is_blocked_until_all_is_acknowledged_or_its_time_is_over() -> None:
    orders = table(1, 2, 3)
    assert orders.blocks(KEY, "", 3999, 1)
    assert not orders.blocks(KEY, "", 4000, 1)
    assert orders.acked(KEY, 1, 77, 1) == 2
    assert orders.acked(KEY, 3, 77, 2) == 2, "2 is in between"
    assert orders.blocks(KEY, "", 3999, 2)
    assert orders.acked(KEY, 2, 77, 2) == 4
    assert not orders.blocks(KEY, "", 1001, 4)
    orders.check_invariants()


def test_the_same_attempt_is_given_the_same_again() -> None:
    orders = table(1, 2, attempt_id="a")
    assert not orders.blocks(KEY, "a", 1001, 1)
    assert orders.blocks(KEY, "b", 1001, 1)
    assert orders.popped(KEY, "a", 1001, 3000, [1, 2], 1, 1001) == ({}, 0), "and that is no second time"


def test_it_is_counted_how_often_a_message_was_given() -> None:
    orders = table(1, 2)
    assert orders.popped(KEY, "", 5000, 3000, [1, 2, 3], 1, 5000) == ({1: 1, 2: 1}, 0), "3 is new"
    assert orders.popped(KEY, "", 9000, 3000, [1, 2, 3], 1, 9000) == ({1: 2, 2: 2, 3: 1}, 1)


def test_an_ack_of_another_pop_moves_nothing() -> None:
    orders = table(1, 2)
    assert orders.acked(KEY, 1, 999, 1) is None
    with pytest.raises(ValueError, match="not in hand"):
        orders.acked(KEY, 7, 77, 1)


def test_a_successor_moves_over_no_message_it_was_not_told_of() -> None:
    orders = OrderTable()
    assert orders.acked(KEY, 5, 77, 3) is None, "3 and 4 may be in hand"
    assert orders.acked(KEY, 3, 77, 3) == 4


def test_one_message_can_be_kept_for_longer() -> None:
    orders = table(1, 2)
    orders.change(KEY, 1, 77, 9000)
    assert orders.acked(KEY, 2, 77, 1) == 1
    assert orders.blocks(KEY, "", 8999, 1)
    assert not orders.blocks(KEY, "", 9000, 1)


def test_an_offset_that_was_reset_frees_the_queue() -> None:
    orders = table(1, 2)
    assert not orders.blocks(KEY, "", 1001, 0)
    assert len(orders) == 0


def test_what_nobody_popped_for_a_day_is_forgotten() -> None:
    orders = table(1)
    orders.forget_old(1000 + FORGOTTEN_MS)
    assert len(orders) == 1
    orders.forget_old(1001 + FORGOTTEN_MS)
    assert len(orders) == 0


async def test_messages_of_a_queue_come_in_order_through_the_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(4):
            await client.send("T", b"%d" % at)
        how = {"order": True, "count_max": 2, "queue_id": 0}
        answer = await pop(client, "T", **how)
        assert answer.ext["reviveQid"] == str(ORDER_REVIVE_QUEUE)
        assert answer.ext["orderCountInfo"] == "0 0 0"
        first = popped(answer, "T")
        assert [one.body for one in first] == [b"0", b"1"]
        assert (await pop(client, "T", **how)).code == Response.POLLING_TIMEOUT
        waiting = asyncio.create_task(pop(client, "T", **how, poll_ms=10_000))
        await eventually(lambda: broker.processors.pops.polling.held == 1, "it waits")
        assert (await ack(client, first[0])).code == 0
        assert broker.offsets.get("pg", "T", 0) == 1
        assert not waiting.done()
        assert (await ack(client, first[1])).code == 0
        assert [one.body for one in popped(await waiting, "T")] == [b"2", b"3"]
        assert broker.store.max_queue_offset("rmq_sys_REVIVE_LOG_DefaultCluster", 0) == 0, "no checkpoints"


@pytest.mark.parametrize("changes", [False, True])
async def test_a_clock_that_is_set_keeps_no_queue_in_order_and_frees_none(
    tmp_path: Path, changes: bool
) -> None:
    hour_ms, how = 3_600_000, {"order": True, "queue_id": 0, "invisible_ms": 1500}
    async with running(tmp_path) as broker, client_of(broker) as client:
        real_ms, ahead_ms = broker.env.now_ms, hour_ms
        broker.env.now_ms = lambda: real_ms() + ahead_ms  # type: ignore[method-assign]
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"0")
        begun_ms = broker.env.monotonic_ms()
        (one,) = popped(await pop(client, "T", **how), "T")
        if changes:
            assert (await change(client, one, 1500)).code == 0
        for ahead_ms in (2 * hour_ms, 0):  # noqa: B007 - the clock reads it
            assert (await pop(client, "T", **how)).code == Response.POLLING_TIMEOUT
        again = await pop(client, "T", **how, poll_ms=10_000)
        assert [item.body for item in popped(again, "T")] == [b"0"]
        assert 1500 <= broker.env.monotonic_ms() - begun_ms < 10_000


async def test_what_is_not_acknowledged_in_time_is_given_again_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"0")
        (one,) = popped(await pop(client, "T", order=True, queue_id=0, invisible_ms=60_000), "T")
        answer = await change(client, one, 100)
        assert answer.code == 0
        assert answer.ext["popTime"] == str(one.info.pop_time_ms)
        again = await pop(client, "T", order=True, queue_id=0, poll_ms=10_000)
        assert [item.body for item in popped(again, "T")] == [b"0"]
        counts = parse_start_offsets(again.ext["orderCountInfo"])
        assert counts == {order_key("T", 0, 0): 1, "0@0": 1}
        late = await ack(client, one)
        assert late.code == 0
        assert broker.offsets.get("pg", "T", 0) == 0, "an ack of the former pop does not count"
