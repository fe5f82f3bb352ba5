"""The promise of the bounds: what clients that pop can make a broker hold is bounded, and the others go
on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.requests.consumers.pop.codec import BatchAck, encode_batch_acks
from model.codes import Request, Response
from tests.broker.helpers import client_of, eventually, running, topic
from tests.broker.pop.support import ack, pop, popped


async def test_only_so_many_pops_wait(tmp_path: Path) -> None:
    async with running(tmp_path, popPollingSize=2) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        waiting = [asyncio.create_task(pop(client, "T", poll_ms=10_000)) for _ in range(2)]
        await eventually(lambda: broker.status()["heldPops"] == 2, "they wait")
        full = await pop(client, "T", poll_ms=10_000)
        assert (full.code, full.remark) == (Response.POLLING_FULL, "NO_MESSAGE_IN_QUEUE")
        other = asyncio.create_task(pop(client, "T", poll_ms=10_000, queue_id=1))
        await eventually(lambda: broker.status()["heldPops"] == 3, "for another queue there is room")
        for task in (*waiting, other):
            task.cancel()


async def test_a_pop_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        answer = await pop(client, "T", poll_ms=300)
        assert (answer.code, answer.ext["restNum"]) == (Response.POLLING_TIMEOUT, "0")
        assert broker.status()["heldPops"] == 0
        broker.processors.pops.polling.pops.check_invariants()


async def test_nothing_is_popped_while_too_much_is_not_acknowledged(tmp_path: Path) -> None:
    keys = {"popCkMaxBufferSize": 2, "reviveInterval": 50}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(3):
            await client.send("T", b"%d" % at)
        found = [popped(await pop(client, "T", count_max=1), "T")[0] for _ in range(2)]
        await eventually(lambda: broker.status()["openCheckpoints"] == 2, "both are open")
        assert (await pop(client, "T")).code == Response.POLLING_TIMEOUT
        for one in found:
            await ack(client, one)
        await eventually(lambda: broker.status()["openCheckpoints"] == 0, "none is open")
        assert [one.body for one in popped(await pop(client, "T"), "T")] == [b"2"]


async def test_a_batch_of_acks_names_only_so_much(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        one = BatchAck("pg", "T", "0", 0, 0, 0, 1, 1, [0])
        for acks in ([one] * 1025, [BatchAck("pg", "T", "0", 0, 0, 0, 1, 1, list(range(33)))]):
            answer = await client.call(Request.BATCH_ACK_MESSAGE, {}, encode_batch_acks("b", acks))
            assert answer.code == Response.SYSTEM_ERROR, answer.remark
        wrong = BatchAck("pg", "T", "7", 0, 0, 0, 1, 1, [0])
        answer = await client.call(Request.BATCH_ACK_MESSAGE, {}, encode_batch_acks("b", [wrong]))
        assert answer.code == Response.SYSTEM_ERROR
        assert "retry '7' is not 0, 1 or 2" in (answer.remark or "")


async def test_a_group_whose_retry_topic_cannot_be_named_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        name = "T" * 120
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name, 1))
        await client.send(name, b"x")
        answer = await pop(client, name, group="g" * 200)
        assert answer.code == Response.INVALID_PARAMETER, answer.remark
