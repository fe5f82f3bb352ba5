"""The promise of peek, notification and polling info: they say what is there, and take nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from model.codes import Request, Response
from tests.broker.helpers import Client, client_of, eventually, records, running, topic
from tests.broker.pop.support import pop, popped


def where(**more: str) -> dict[str, str]:
    return {"consumerGroup": "pg", "topic": "T", "queueId": "-1", **more}


async def notified(client: Client, poll_ms: int) -> bool:
    ext = where(pollTime=str(poll_ms), bornTime="0")
    answer = await client.call(Request.NOTIFICATION, ext, timeout_s=20)
    assert answer.code == 0, answer.remark
    assert answer.ext["pollingFull"] == "false"
    return answer.ext["hasMsg"] == "true"


async def test_a_peek_takes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        empty = await client.call(Request.PEEK_MESSAGE, where(maxMsgNums="32"))
        assert (empty.code, empty.remark) == (Response.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        for at in range(3):
            await client.send("T", b"%d" % at, queue_id=at % 2)
        for _ in range(2):
            answer = await client.call(Request.PEEK_MESSAGE, where(maxMsgNums="32"))
            assert sorted(record.body for record in records(answer.body)) == [b"0", b"1", b"2"]
            assert answer.ext["restNum"] == "3"
        assert len(popped(await pop(client, "T"), "T")) == 3
        after = await client.call(Request.PEEK_MESSAGE, where(maxMsgNums="32"))
        assert after.code == Response.PULL_NOT_FOUND


async def test_a_notification_waits_for_messages(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        assert not await notified(client, 0)
        assert not await notified(client, 200)
        waiting = asyncio.create_task(notified(client, 10_000))
        await eventually(lambda: broker.processors.pops.notifications.held == 1, "it waits")
        await client.send("T", b"x")
        assert await waiting
        assert await notified(client, 10_000), "it is still there"
        await pop(client, "T")
        assert not await notified(client, 0)


async def test_it_can_be_asked_how_many_pops_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        waiting = [asyncio.create_task(pop(client, "T", poll_ms=10_000)) for _ in range(2)]
        await eventually(lambda: broker.processors.pops.polling.held == 2, "both wait")
        assert (await client.call(Request.POLLING_INFO, where())).ext == {"pollingNum": "2"}
        assert (await client.call(Request.POLLING_INFO, where(queueId="1"))).ext == {"pollingNum": "0"}
        for task in waiting:
            task.cancel()


async def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for code in (Request.PEEK_MESSAGE, Request.NOTIFICATION, Request.POLLING_INFO):
            ext = where(maxMsgNums="1", pollTime="0", bornTime="0")
            assert (await client.call(code, {**ext, "topic": "None"})).code == Response.TOPIC_NOT_EXIST
            assert (await client.call(code, {**ext, "queueId": "1"})).code == Response.INVALID_PARAMETER
            wrong = await client.call(code, {**ext, "consumerGroup": "no good"})
            assert wrong.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST
