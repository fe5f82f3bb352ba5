"""The promises of broker.requests.reply: the client that asked gets the reply, the one that replies learns
whether it did, and the reply is kept in any case."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.requests import reply
from broker.service import Broker
from model.codes import Request, Response
from model.message import PROPERTIES_BYTES_MAX, decode_properties
from remoting import guard as guards
from remoting.codec import ROCKETMQ, Command, encode
from remoting.headers import SendHeader
from remoting.service import Connection
from runtime import turns
from store.files.record import Record
from tests.broker.helpers import Client, client_of, eventually, heartbeat, log_records, pair, running

TOPIC = "DefaultCluster_REPLY_TOPIC"


class Asking:
    """The client that asked: keeps what it is pushed, and answers ``code``, or nothing (None)."""

    def __init__(self, code: int | None = Response.SUCCESS) -> None:
        self.code = code
        self.pushed: list[Command] = []

    async def handle(self, connection: Connection, request: Command) -> Command | None:
        self.pushed.append(request)
        if self.code is None:
            await asyncio.sleep(60)
        return request.reply(self.code or 0, remark="no" if self.code else None)


async def beat(client: Client, client_id: str = "asks", producer: str = "askers") -> None:
    answer = await client.call(Request.HEART_BEAT, body=heartbeat(client_id, "", producer=producer))
    assert answer.code == Response.SUCCESS


def command(
    body: bytes = b"pong",
    *,
    to: str | None = "asks",
    topic: str = TOPIC,
    queue_id: int = 0,
    code: Request = Request.SEND_REPLY_MESSAGE_V2,
    properties: str = "",
) -> Command:
    text = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02TTL\x013000\x02UNIQ_KEY\x01A1\x02" + properties
    if to is not None:
        text += f"REPLY_TO_CLIENT\x01{to}\x02"
    header = SendHeader("repliers", topic, queue_id, 1_700_000_000_000, sys_flag=0, flag=7, properties=text)
    return Command(int(code), header.to_ext(full_names=code == Request.SEND_REPLY_MESSAGE), body)


async def call(client: Client, request: Command) -> Command:
    return await client.remoting.call(client.address, request, 10.0)


def kept(broker: Broker, topic: str = TOPIC) -> list[Record]:
    return [record for record in log_records(broker) if record.topic == topic]


def nothing_behind(broker: Broker) -> None:
    broker.context.clients.check_invariants()
    assert broker.processors.replies.pushing == 0
    assert not [c for c in broker.context.clients.producers.get("askers", {}) if len(c._calls)]


@pytest.mark.parametrize("code", [Request.SEND_REPLY_MESSAGE, Request.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_pushed_to_the_client_that_asked_and_kept(tmp_path: Path, code: Request) -> None:
    asking = Asking()
    async with (
        running(tmp_path) as broker,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(asks)
        answer = await call(client, command(code=code))
        assert (answer.code, answer.remark) == (Response.SUCCESS, None)
        assert answer.ext["queueId"] == "0"
        assert answer.ext["queueOffset"] == "0"
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        [pushed] = asking.pushed
        assert (pushed.code, pushed.body) == (Request.PUSH_REPLY_MESSAGE_TO_CLIENT, b"pong")
        properties = decode_properties(pushed.ext["properties"])
        assert properties["CORRELATION_ID"] == "c1"
        assert int(properties["PUSH_REPLY_TIME"]) > 1_700_000_000_000
        assert set(pushed.ext) == {
            *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
            *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode"),
            *("bornHost", "storeHost", "storeTimestamp"),
        }
        assert pushed.ext["bornHost"].startswith("127.0.0.1:")
        assert pushed.ext["storeHost"] == broker.config.address
        [record] = kept(broker)
        assert (record.body, record.flag, record.queue_offset) == (b"pong", 7, 0)
        stored = decode_properties(record.properties)
        assert stored["MSG_REGION"] == properties["MSG_REGION"] == "DefaultRegion"
        assert not {"PUSH_REPLY_TIME", "CLUSTER"} & stored.keys()
        assert answer.ext["msgId"].endswith(f"{record.physical_offset:016X}")
        nothing_behind(broker)


async def test_a_client_that_is_not_there_is_told_and_the_reply_is_kept_all_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        answer = await call(client, command())
        assert answer.code == Response.SYSTEM_ERROR
        assert answer.remark == "push reply message fail, channel of <asks> not found."
        assert answer.ext["queueOffset"] == "0"
        answer = await call(client, command(to=None))
        assert answer.code == Response.SYSTEM_ERROR
        assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
        assert len(kept(broker)) == 2
        nothing_behind(broker)


async def test_a_client_that_left_or_refuses_or_is_silent_did_not_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "PUSH_S", 0.2)
    async with running(tmp_path) as broker, client_of(broker) as client:
        for asking in (Asking(code=Response.SYSTEM_ERROR), Asking(code=None)):
            async with client_of(broker, asking.handle) as asks:
                await beat(asks)
                answer = await call(client, command())
                assert (answer.code, answer.remark) == (
                    Response.SYSTEM_ERROR,
                    "push reply message to asksfail.",
                )
                assert len(asking.pushed) == 1
                nothing_behind(broker)
            await eventually(lambda: not broker.context.clients.producers, "it is forgotten")
        answer = await call(client, command())
        assert answer.remark == "push reply message fail, channel of <asks> not found."
        assert len(kept(broker)) == 3


async def test_replies_on_their_way_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "PUSHES_MAX", 2)
    monkeypatch.setattr(reply, "PUSH_S", 0.5)
    asking = Asking(code=None)
    async with (
        running(tmp_path) as broker,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(asks)
        answers = await asyncio.gather(*(call(client, command()) for _ in range(5)))
        assert {answer.code for answer in answers} == {Response.SYSTEM_ERROR}
        assert len(asking.pushed) == 2
        nothing_behind(broker)


async def test_replies_on_their_way_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond, a reply is kept and not pushed; its header counts like its body."""
    monkeypatch.setattr(reply, "PUSHED_BYTES_MAX", 100_000)
    monkeypatch.setattr(reply, "PUSH_S", 0.5)
    asking = Asking(code=None)
    async with (
        running(tmp_path) as broker,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(asks)
        long = command(b"x" * 10_000, properties=f"p\x01{'x' * 20_000}\x02")
        answers = await asyncio.gather(*(call(client, long) for _ in range(6)))
        assert {answer.remark for answer in answers} == {"push reply message to asksfail."}
        assert len(asking.pushed) == 2
        assert len(kept(broker)) == 6
        nothing_behind(broker)


async def test_who_replies_to_a_client_that_is_silent_is_read_on_and_others_get_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 MiB of replies to it the one that replies was not read for 10 s, whatever else it had to say."""
    monkeypatch.setattr(reply, "READ_ON_S", 0.05)
    monkeypatch.setattr(reply, "PUSHED_BYTES_TO_ONE", 100_000)
    monkeypatch.setattr(guards, "ASKED_BYTES_MAX", 50_000)
    monkeypatch.setattr(guards, "ASKED_BYTES_LEAST", 1)
    silent, asking = Asking(code=None), Asking()
    async with (
        running(tmp_path) as broker,
        client_of(broker, silent.handle) as left,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(left, "silent")
        await beat(asks)
        body = b"x" * 40_000
        waits = [asyncio.create_task(call(client, command(body, to="silent"))) for _ in range(2)]
        await eventually(lambda: len(silent.pushed) == 2, "both are pushed")
        beyond = await call(client, command(body, to="silent"))
        assert (beyond.code, beyond.remark) == (Response.SYSTEM_ERROR, "push reply message to silentfail.")
        assert (await call(client, command(body))).code == Response.SUCCESS
        assert not any(answer.done() for answer in waits)
        await left.remoting.close()
        assert {answer.remark for answer in await asyncio.gather(*waits)} == {
            "push reply message to silentfail."
        }
        assert len(kept(broker)) == 4
        assert not broker.processors.replies._underway_to
        nothing_behind(broker)


async def test_replies_that_a_client_leaves_behind_are_stored_a_share_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All their pushes fail at once. 4 MB of each were stored in the same turn of the loop."""
    monkeypatch.setattr(turns, "SHARE_BYTES", 100_000)
    asking = Asking(code=None)
    async with (
        running(tmp_path) as broker,
        client_of(broker) as client,
        client_of(broker, asking.handle) as asks,
    ):
        await beat(asks)
        calls = [asyncio.create_task(call(client, command(b"x" * 60_000))) for _ in range(12)]
        await eventually(lambda: len(asking.pushed) == 12, "all are pushed")
        [connection] = broker.context.clients.producers["askers"]
        end = broker.store.log.end
        connection.close()
        steps = []
        while broker.processors.replies.pushing:
            await asyncio.sleep(0)
            steps.append(broker.store.log.end - end)
            end = broker.store.log.end
        assert {answer.remark for answer in await asyncio.gather(*calls)} == {
            "push reply message to asksfail."
        }
        assert len(kept(broker)) == 12
        assert max(steps) < 5 * 60_000, "two a turn, of two turns"
        nothing_behind(broker)


async def test_without_storeReplyMessageEnable_nothing_is_kept(tmp_path: Path) -> None:
    asking = Asking()
    async with (
        running(tmp_path, storeReplyMessageEnable="false") as broker,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(asks)
        answer = await call(client, command())
        assert answer.code == Response.SUCCESS
        assert (answer.ext["msgId"], answer.ext["queueOffset"]) == ("0", "0")
        assert kept(broker) == []


async def test_of_two_connections_of_one_id_the_newest_that_is_open_gets_it(tmp_path: Path) -> None:
    first, second = Asking(), Asking()
    async with (
        running(tmp_path) as broker,
        client_of(broker, first.handle) as old,
        client_of(broker) as client,
    ):
        await beat(old)
        async with client_of(broker, second.handle) as new:
            await beat(new)
            await beat(old)
            assert (await call(client, command())).code == Response.SUCCESS
            assert (len(first.pushed), len(second.pushed)) == (0, 1)
        await eventually(lambda: len(broker.context.clients.producers["askers"]) == 1, "the new one left")
        assert (await call(client, command())).code == Response.SUCCESS
        assert len(first.pushed) == 1
        nothing_behind(broker)


async def test_a_producer_that_leaves_a_group_or_changes_its_id_is_found_by_what_is_left(
    tmp_path: Path,
) -> None:
    asking = Asking()
    async with running(tmp_path) as broker, client_of(broker, asking.handle) as asks:
        clients = broker.context.clients
        await beat(asks, producer="one")
        await beat(asks, producer="two")
        for group in ("one", "two"):
            assert clients.producer_connection("asks") is not None
            await asks.call(Request.UNREGISTER_CLIENT, {"clientID": "asks", "producerGroup": group})
            clients.check_invariants()
        assert clients.producer_connection("asks") is None
        await beat(asks, "other")
        await beat(asks, "another")
        clients.check_invariants()
        assert clients.producer_connection("other") is None
        assert clients.producer_connection("another") is not None


async def test_what_a_send_is_refused_a_reply_is_refused_before_it_is_pushed(tmp_path: Path) -> None:
    asking = Asking()
    async with (
        running(tmp_path, maxMessageSize="1000") as broker,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(asks)
        refused = [
            (command(b"x" * 1001), Response.MESSAGE_ILLEGAL),
            (command(properties=f"p\x01{'x' * PROPERTIES_BYTES_MAX}\x02"), Response.MESSAGE_ILLEGAL),
            (command(topic="SCHEDULE_TOPIC_XXXX"), Response.NO_PERMISSION),
            (command(topic="RMQ_SYS_TRANS_HALF_TOPIC"), Response.NO_PERMISSION),
            (command(topic="no topic"), Response.INVALID_PARAMETER),
            (command(queue_id=1), Response.INVALID_PARAMETER),
        ]
        for request, code in refused:
            assert (await call(client, request)).code == code, request.ext
        assert asking.pushed == []
        end = broker.store.log.end
        assert (await call(client, command(queue_id=-1))).code == Response.SUCCESS
        assert broker.store.log.end > end


async def test_properties_of_brokers_do_not_get_into_what_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await call(client, command(properties="REAL_TOPIC\x01x\x02INNER_BASE\x013\x02"))
        [record] = kept(broker)
        assert not {"REAL_TOPIC", "INNER_BASE"} & decode_properties(record.properties).keys()


async def test_a_slave_sends_a_reply_to_the_master_and_the_master_waits_for_its_copies(
    tmp_path: Path,
) -> None:
    asking = Asking()
    async with pair(tmp_path) as (one, two):
        async with client_of(two, asking.handle) as asks, client_of(two) as client:
            await beat(asks)
            answer = await call(client, command())
            assert answer.code == Response.SYSTEM_BUSY
            assert asking.pushed == []
        async with client_of(one, asking.handle) as asks, client_of(one) as client:
            await beat(asks)
            assert (await call(client, command())).code == Response.SUCCESS
            assert len(kept(two)) == 1


async def test_replies_between_fast_sends_are_replies(tmp_path: Path) -> None:
    """Both header dialects in one read with sends: the fast path leaves them to their own way."""
    asking = Asking()
    async with (
        running(tmp_path) as broker,
        client_of(broker, asking.handle) as asks,
        client_of(broker) as client,
    ):
        await beat(asks)
        connection = await client.connection()
        header = SendHeader("p", "TBW102", 0, 1, properties="UNIQ_KEY\x01A\x02").to_ext()
        frames = []
        for number in range(3):
            frames.append(
                encode(Command(int(Request.SEND_MESSAGE_V2), header, b"x", opaque=1000 + 2 * number))
            )
            found = command(body=b"r%d" % number)
            found.opaque = 1001 + 2 * number
            found.serialize = ROCKETMQ if number % 2 else 0
            frames.append(encode(found))
        connection.write(b"".join(frames))
        await eventually(lambda: len(asking.pushed) == 3, "all are pushed")
        assert [pushed.body for pushed in asking.pushed] == [b"r0", b"r1", b"r2"]
        await eventually(lambda: len(log_records(broker)) == 6, "all is stored")
