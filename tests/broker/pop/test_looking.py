"""The promise of peek, notification and polling info: they say what is there, and take nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from broker.requests.consumers.pop.held import HeldPops
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.pop import QUEUES_AT_ONCE
from model.codes import Request, Response
from runtime.turns import Late
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


@pytest.mark.parametrize("what", [Request.POP_MESSAGE, Request.NOTIFICATION, Request.PEEK_MESSAGE])
async def test_a_look_into_very_many_queues_is_taken_in_steps_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Request
) -> None:
    """A topic may have 65,535 queues. A message comes, between two steps, to a queue that was looked into.
    Locks, and questions who is in a group, do not wait for such a look's end."""
    queues = 3 * QUEUES_AT_ONCE
    async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as sender:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", queues))
        for number in range(queues):
            await client.send("T", queue_id=number)
        await broker.store.caught_up()
        while popped(await pop(client, "T"), "T"):
            pass
        known, looked, breaths = PopLog.known, list[int](), list[int]()
        own, others = broker.processors.pops.turns, broker.context.turns

        def looks(log: PopLog, name: str, group: str, queue_id: int) -> int | None:
            if name == "T":
                looked.append(queue_id)
            return known(log, name, group, queue_id)

        async def breathe(turn: Late) -> None:
            breaths.append(len(looked))
            if len(breaths) == 1:
                await turn.pause()
            elif len(breaths) == 2:
                taken.extend((own.is_taken, others.is_taken))
                await sender.send("T", b"late", queue_id=looked[0])
                await broker.store.caught_up()

        taken: list[bool] = []
        monkeypatch.setattr(PopLog, "known", looks)
        monkeypatch.setattr(Late, "breathe", breathe)
        monkeypatch.setattr(HeldPops, "overdue", lambda pops, now_ms: None)  # its last try would find it
        match what:
            case Request.POP_MESSAGE:
                (found,) = popped(await pop(client, "T", poll_ms=15_000), "T")
                assert found.body == b"late"
            case Request.NOTIFICATION:
                assert await notified(client, 15_000)
            case _:
                assert (await client.call(what, where(maxMsgNums="32"))).code == Response.PULL_NOT_FOUND
        assert taken == [True, False]
        assert breaths[0] <= QUEUES_AT_ONCE
        assert all(b - a <= QUEUES_AT_ONCE for a, b in pairwise(breaths))
        assert len(breaths) >= 3
