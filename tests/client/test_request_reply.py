"""The promises of request and reply: the reply comes back to the request it is for, and a request without one
ends with an error that says what is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.requests.reply import ReplyProcessor
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Message, Received, SendFailed, SendUnknown
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.sending.request_reply import NoReply, reply_to, ttl_s
from model.codes import Request, Response
from model.message import encode_properties
from remoting.codec import Command
from remoting.service import Connection
from runtime.env import Env
from tests.client.servers import Pair, received, run
from tests.fakes.client import cluster, stop
from tests.fakes.client import run as run_fake
from tests.waiting import until

Answer = Callable[[Producer, Received], Awaitable[object]]


async def upper(producer: Producer, request: Received) -> None:
    await producer.reply(request, request.body.upper())


@asynccontextmanager
async def replier(servers: Pair, answer: Answer = upper) -> AsyncIterator[Producer]:
    """A consumer of TBW102 that answers what it gets."""
    async with Producer(servers.env, "repliers", servers.namesrv) as producer:

        async def listener(messages: list[Received]) -> bool:
            for message in messages:
                await answer(producer, message)
            return True

        consumer = PushConsumer(
            servers.env,
            "repliers",
            servers.namesrv,
            listener,
            subscriptions={"TBW102": "*"},
            options=ConsumeOptions(from_first=True, concurrency=20),
        )
        async with consumer:
            yield producer


def asks(body: bytes) -> Message:
    return Message(topic="TBW102", body=body)


def replies(servers: Pair) -> ReplyProcessor:
    return servers.broker.processors.replies


def test_each_request_gets_its_own_reply(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with replier(servers), Producer(servers.env, "askers", servers.namesrv) as producer:
            first = await producer.request(Message(topic="TBW102", body=b"ping", tags="t"), timeout_s=15)
            assert first.body == b"PING"
            assert first.topic == "DefaultCluster_REPLY_TOPIC"
            assert first.properties["ARRIVE_TIME"]
            bodies = [b"b%d" % n for n in range(40)]
            found = await asyncio.gather(*(producer.request(asks(body), timeout_s=15) for body in bodies))
            assert [reply.body for reply in found] == [body.upper() for body in bodies]
            assert producer._requests.waiting == []
        assert replies(servers).pushing == 0
        assert not servers.broker.context.clients.producers
        servers.broker.context.clients.check_invariants()

    run(tmp_path, work)


def test_a_long_reply_comes_whole_where_both_compress(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        options = SendOptions(compress_over_bytes=100)
        async with Producer(servers.env, "r", servers.namesrv, options) as small:

            async def answer(producer: Producer, request: Received) -> None:
                await small.reply(request, request.body * 3)

            async with (
                replier(servers, answer),
                Producer(servers.env, "a", servers.namesrv, options) as producer,
            ):
                reply = await producer.request(asks(b"x" * 5000), timeout_s=15)
                assert (reply.body, reply.body_unread) == (b"x" * 15000, None)

    run(tmp_path, work)


def test_a_request_nobody_replies_to_ends_and_says_where_it_lies(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with Producer(servers.env, "askers", servers.namesrv) as producer:
            with pytest.raises(
                NoReply, match=r"no reply to a request to TBW102 within 0\.\d s; it is stored at"
            ) as none:
                await producer.request(asks(b"ping"), timeout_s=0.6)
            assert none.value.sent is not None
            assert none.value.sent.queue.topic == "TBW102"
            assert producer._requests.waiting == []

    run(tmp_path, work)


def test_a_reply_to_a_client_that_left_is_said_to_be_unknown_when_its_time_is_over(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        got: list[Received] = []

        async def keep(producer: Producer, request: Received) -> None:
            got.append(request)

        async with replier(servers, keep) as answering:
            async with Producer(servers.env, "askers", servers.namesrv) as producer:
                with pytest.raises(NoReply):
                    await producer.request(asks(b"ping"), timeout_s=1.0)
            await until(lambda: bool(got))
            with pytest.raises(SendUnknown, match="not found"):
                await answering.reply(got[0], b"late")

    run(tmp_path, work)


def test_a_requester_whose_connection_broke_is_known_again_before_the_reply(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async def slowly(producer: Producer, request: Received) -> None:
            for connection in list(servers.broker.context.clients.producers["askers"]):
                connection.abort()
            await producer.reply(request, b"late")

        async with replier(servers, slowly), Producer(servers.env, "askers", servers.namesrv) as producer:
            assert (await producer.request(asks(b"ping"), timeout_s=15)).body == b"late"

    run(tmp_path, work)


def test_a_stop_ends_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.sending.producer.DRAIN_S", 0.1)

    async def work(servers: Pair) -> None:
        producer = Producer(servers.env, "askers", servers.namesrv)
        await producer.start()
        asking = asyncio.create_task(producer.request(asks(b"ping"), timeout_s=30))
        await until(lambda: bool(producer._requests.waiting))
        await producer.stop()
        with pytest.raises(NoReply, match="the producer was stopped"):
            await asking

    run(tmp_path, work)


def test_requests_that_wait_are_bounded_and_a_cancelled_one_leaves_nothing(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        options = SendOptions(requests_max=1)
        async with Producer(servers.env, "askers", servers.namesrv, options) as producer:
            asking = asyncio.create_task(producer.request(asks(b"ping"), timeout_s=30))
            await until(lambda: bool(producer._requests.waiting))
            with pytest.raises(SendFailed, match="1 requests wait") as refused:
                await producer.request(asks(b"ping"))
            assert refused.value.code == Response.SYSTEM_BUSY
            asking.cancel()
            await asyncio.wait((asking,))
            assert producer._requests.waiting == []

    run(tmp_path, work)


def test_what_cannot_be_stored_or_sent_ends_at_once(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with Producer(servers.env, "askers", servers.namesrv) as producer:
            with pytest.raises(ValueError, match="at least one byte"):
                await producer.request(asks(b""))
            with pytest.raises(SendFailed):
                await producer.request(Message(topic="SELF_TEST_TOPIC", body=b"x"), timeout_s=15)

    run(tmp_path, work)


def test_the_reply_counts_even_where_the_answer_to_the_request_is_lost() -> None:
    """And a push for no request, or a broken one, does no harm."""
    pushed: list[int] = []

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        link: list[Connection] = []
        number: list[str] = []

        async def before(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                properties = dict(p.split("\x01") for p in command.ext["i"].split("\x02") if p)
                number.append(properties["CORRELATION_ID"])
                assert properties["REPLY_TO_CLIENT"] == producer.session.client_id
                assert int(properties["TTL"]) <= 9000
                await asyncio.sleep(60)
            return None

        broker.before = before
        async with Producer(env, "askers", nameserver.address) as producer:
            asking = asyncio.create_task(producer.request(Message(topic="T", body=b"ping"), timeout_s=9))
            await until(lambda: bool(number))
            link = [c for c in broker.server.connections if not c.closed]
            header = {"topic": "R", "sysFlag": "0", "flag": "1", "bornTimestamp": "1", "storeTimestamp": "2"}
            for text, code in (("other", 0), (number[0], 0), (number[0], 0)):
                ext = {**header, "properties": encode_properties({"CORRELATION_ID": text})}
                push = Command(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, b"pong")
                answers = [await c.call(push) for c in link]
                assert {answer.code for answer in answers} == {code}
                pushed.append(len(answers))
            assert (await asking).body == b"pong"
        await stop(nameserver, broker)

    run_fake(work)
    assert len(pushed) == 3


def test_a_reply_needs_what_the_request_says() -> None:
    found = received({"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "c", "CLUSTER": "C", "TTL": "1500", "x": "y"})
    message = reply_to(found, b"pong")
    assert (message.topic, message.body) == ("C_REPLY_TOPIC", b"pong")
    asked = {"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "c", "TTL": "1500"}
    assert message.properties == {**asked, "MSG_TYPE": "reply"}
    assert ttl_s(found, 10.0) == 1.5
    assert ttl_s(found, 1.0) == 1.0
    for text in ("", "-1", "x", "1.5", "9" * 5000):
        assert ttl_s(received({"TTL": text}), 10.0) == 10.0
    with pytest.raises(ValueError, match="lacks CLUSTER, CORRELATION_ID"):
        reply_to(received({"REPLY_TO_CLIENT": "c"}), b"pong")
