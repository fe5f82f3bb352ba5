"""No question about tables or progress, however it is put, holds the event loop (docs/security.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.requests.operators import passing_on
from broker.service import Broker
from model.codes import Request, Response
from model.errors import Refused
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting import bodies
from remoting.codec import Command, encode
from remoting.service import Connection
from tests.broker.helpers import client_of, eventually, heartbeat, running
from tests.broker.turn_meter import metered, tried_again
from tests.fakes.broker.store import FakeConnection

BIG = "BenchmarkTest"  # 1024 queues, at every broker from its first start


async def ask(broker: Broker, code: int, ext: dict[str, str], peer: object = None) -> Command | None:
    """Straight to the handler: what the wire adds is not measured here."""
    connection = FakeConnection() if peer is None else peer
    assert isinstance(connection, Connection | FakeConnection)
    return await broker.processors.handlers[int(code)](connection, Command(int(code), ext))  # type: ignore[arg-type]


@tried_again
async def test_a_topic_named_5000_times_is_answered_once_and_in_slices(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        once = await ask(broker, Request.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": BIG})
        async with metered() as meter:
            often = await ask(
                broker, Request.GET_CONSUME_STATS, {"consumerGroup": "g", "topicList": ";".join([BIG] * 5000)}
            )
        assert once is not None
        assert often is not None
        assert often.body == once.body
        assert len(bodies.believed_object(often.body)["offsetTable"]) == 1024
        meter.check()


@tried_again
async def test_200_questions_at_once_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        async with metered() as meter:
            ext = {"consumerGroup": "g", "topic": BIG}
            answers = await asyncio.gather(
                *(ask(broker, Request.GET_CONSUME_STATS, ext) for _ in range(100)),
                *(ask(broker, Request.GET_TOPIC_STATS_INFO, {"topic": BIG}) for _ in range(50)),
                *(
                    ask(broker, Request.QUERY_CONSUME_TIME_SPAN, {"topic": BIG, "group": "g"})
                    for _ in range(50)
                ),
            )
        assert all(answer is not None and answer.code == 0 for answer in answers)
        meter.check()


async def test_work_ends_with_the_connection_that_asked_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        connection = await client.connection()
        ext = {"consumerGroup": "g", "topic": BIG}
        asked = [
            asyncio.create_task(connection.call(Command(int(Request.GET_CONSUME_STATS), ext)))
            for _ in range(50)
        ]
        await eventually(lambda: broker.context.turns.waiting >= 40, "they wait for their turns")
        looked_at = 0
        progress = broker.processors.admin._progress

        def counted(group: str, name: str, queue_id: int) -> dict[str, int]:
            nonlocal looked_at
            looked_at += 1
            return progress(group, name, queue_id)

        broker.processors.admin._progress = counted  # type: ignore[method-assign]
        connection.abort()
        await asyncio.gather(*asked, return_exceptions=True)
        await eventually(lambda: not broker.context.turns.waiting, "none of them waits any more")
        assert looked_at <= 3 * 1024, "those behind the one at work, and what came before the end was heard"


async def test_more_queues_than_one_answer_may_have_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, maxQueuesInStats="1023") as broker, client_of(broker) as client:
        answer = await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": BIG})
        assert (answer.code, "maxQueuesInStats" in (answer.remark or "")) == (1, True)


@tried_again
async def test_the_progress_of_a_group_in_20_000_queues_is_written_in_slices(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topics = [TopicConfig(f"T{number}", 1000, 1000) for number in range(20)]
        broker.context.topics.put(*topics)
        for topic in topics:
            broker.context.offsets.commit("g", topic.name, 0, 0)
        broker.context.groups.put(SubscriptionGroupConfig("g"))
        async with metered() as meter:
            answer = await ask(broker, Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        assert answer is not None
        assert answer.code == 0, answer.remark
        (found,) = (g["g"] for g in bodies.believed_object(answer.body)["consumeStatsList"] if "g" in g)
        assert sum(len(one["offsetTable"]) for one in found) == 20_000
        meter.check()


async def test_what_others_hand_to_a_client_that_does_not_read_ends_nobody(tmp_path: Path) -> None:
    """GET_CONSUMER_RUNNING_INFO goes to the client it names, with all that is in it."""
    async with running(tmp_path, maxUnreadBytesPerConnection=8 << 20) as broker:
        _reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=1 << 12)
        writer.write(encode(Command(int(Request.HEART_BEAT), {}, heartbeat("victim", "g", "T"), 1)))
        await eventually(lambda: broker.context.clients.find_consumer("g", "victim") is not None, "it beats")
        ext = {"consumerGroup": "g", "clientId": "victim", "more": "x" * 900_000}
        request = Command(int(Request.GET_CONSUMER_RUNNING_INFO), ext)
        calls = [asyncio.create_task(ask_named(broker, request)) for _ in range(20)]
        done, _ = await asyncio.wait(calls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        refused = [await call for call in done]
        assert "does not read" in str(refused[0])
        assert broker.status()["ports"]["refused"]["maxUnreadBytesPerConnection"] == 0
        assert broker.context.clients.find_consumer("g", "victim") is not None, "and it stays"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        writer.transport.abort()


async def test_questions_to_members_are_bounded_and_keep_no_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """307 to a client that reads and does not answer: 100 with 4 MB each took 400 MB."""
    monkeypatch.setattr(passing_on, "ASKED_BYTES_MAX", 100_000)
    asked: list[Command] = []

    async def silent(connection: Connection, request: Command) -> Command | None:
        if request.code == Request.GET_CONSUMER_RUNNING_INFO:
            asked.append(request)
            await asyncio.sleep(60)
        return None

    async with running(tmp_path) as broker, client_of(broker, silent) as member:
        await member.call(Request.HEART_BEAT, body=heartbeat("silent", "g", "T"))
        ext = {"consumerGroup": "g", "clientId": "silent"}
        code = int(Request.GET_CONSUMER_RUNNING_INFO)
        requests = [Command(code, {**ext, "more": "x" * 30_000}, bytes(100_000)) for _ in range(4)]
        calls = [asyncio.create_task(ask_named(broker, request)) for request in requests]
        done, waiting = await asyncio.wait(calls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert {call.result() for call in done} == {"2 questions to members wait for an answer, try again"}
        await eventually(lambda: len(asked) == 2, "those for which there is room")
        assert len(waiting) == 2
        assert {len(request.body) for request in (*asked, *requests)} == {0}
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_what_a_member_says_is_passed_on_unless_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing_on, "ANSWER_BYTES_MAX", 1000)
    said = [bytes(1000), bytes(1001)]

    async def talking(connection: Connection, request: Command) -> Command | None:
        return request.reply(body=said.pop(0)) if request.code == Request.GET_CONSUMER_RUNNING_INFO else None

    async with running(tmp_path) as broker, client_of(broker, talking) as member, client_of(broker) as asker:
        await member.call(Request.HEART_BEAT, body=heartbeat("talking", "g", "T"))
        ext = {"consumerGroup": "g", "clientId": "talking"}
        assert (await asker.call(Request.GET_CONSUMER_RUNNING_INFO, ext)).body == bytes(1000)
        answer = await asker.call(Request.GET_CONSUMER_RUNNING_INFO, ext)
        assert (answer.code, answer.body) == (Response.SYSTEM_ERROR, b"")
        assert "said 1001 bytes" in (answer.remark or "")


async def ask_named(broker: Broker, request: Command) -> str:
    try:
        answer = await broker.processors.handlers[request.code](FakeConnection(), request)  # type: ignore[arg-type]
    except Refused as refused:
        return refused.remark
    return "" if answer is None else str(answer.remark)


@tried_again
async def test_a_key_of_2_mb_is_not_looked_up(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", properties="KEYS\x01k\x02")
        await broker.store.caught_up()
        times = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        async with metered() as meter:
            for name, key in (("T", "k" * (2 << 20)), ("T" * (2 << 20), "k")):
                with pytest.raises(Refused) as refused:
                    await ask(broker, Request.QUERY_MESSAGE, {"topic": name, "key": key, **times})
                assert refused.value.code == Response.QUERY_NOT_FOUND
        meter.check()
        assert (await client.call(Request.QUERY_MESSAGE, {"topic": "T", "key": "k", **times})).code == 0
