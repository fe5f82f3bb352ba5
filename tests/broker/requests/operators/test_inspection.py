"""The promise of the requests that look into queues and counters, and of those that clean: mqadmin's commands
queryCq, brokerConsumeStats, consumerStatus, statsAll, cleanExpiredCQ, deleteExpiredCommitLog and what the
dashboard asks get what the original gives."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import date
from pathlib import Path

import pytest

from broker.requests.operators import inspection
from broker.requests.operators.admin import bytes_text
from broker.state.counters import SPANS, Counters, Span
from broker.state.pulled import Pulled
from broker.state.stats import Morning, Stats
from model.codes import Request
from model.message import message_id
from remoting import bodies
from remoting.bodies import queue_key
from remoting.codec import Command
from remoting.headers import PullHeader
from remoting.service import Connection
from tests.broker.helpers import client_of, heartbeat, log_records, running

COMMIT = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "2"}


async def test_entries_of_a_queue(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        asked = {"topic": "T", "queueId": "0", "index": "1", "count": "2"}
        body = bodies.loads((await client.call(Request.QUERY_CONSUME_QUEUE, asked)).body)
        second, third = log_records(broker)[1:3]
        assert [entry["physicOffset"] for entry in body["queueData"]] == [
            second.physical_offset,
            third.physical_offset,
        ]
        assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
        grouped = await client.call(Request.QUERY_CONSUME_QUEUE, {**asked, "consumerGroup": "nobody"})
        assert bodies.loads(grouped.body)["filterData"] == "nobody@T is not online!"
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "cg", "T"))
        grouped = await client.call(Request.QUERY_CONSUME_QUEUE, {**asked, "consumerGroup": "cg"})
        assert bodies.loads(grouped.body)["subscriptionData"]["topic"] == "T"
        assert bodies.loads(grouped.body)["filterData"] == "null", "a tag is no expression"
        beyond = await client.call(Request.QUERY_CONSUME_QUEUE, {**asked, "index": "5"})
        assert (beyond.code, beyond.body, beyond.remark) == (0, b"", "Index 5 of 0@T is not exist!")
        unknown = await client.call(Request.QUERY_CONSUME_QUEUE, {**asked, "topic": "U"})
        assert (unknown.code, unknown.remark) == (1, "0@U is not exist!")
        negative = await client.call(Request.QUERY_CONSUME_QUEUE, {**asked, "index": "-7", "count": "-1"})
        assert negative.code != 0


async def test_where_all_groups_are(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        broker.groups.find("cg")
        await client.call(Request.UPDATE_CONSUMER_OFFSET, COMMIT)
        stats = bodies.loads((await client.call(Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})).body)
        (of_group,) = [groups["cg"] for groups in stats["consumeStatsList"] if "cg" in groups]
        place = of_group[0]["offsetTable"][queue_key("T", "broker-t", 0)]
        assert (place["brokerOffset"], place["consumerOffset"], stats["totalDiff"]) == (5, 2, 3)
        ordered = bodies.loads(
            (await client.call(Request.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})).body
        )
        assert ordered["totalDiff"] == 0, "no topic of this group is ordered"
        broker.config.stats_queues_max = 0
        refused = await client.call(Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        assert refused.code == 1
        assert "maxQueuesInStats" in (refused.remark or "")


async def test_correction_offsets_delete_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        for group in ("cg", "cg2"):
            broker.groups.find(group)
        await client.call(Request.UPDATE_CONSUMER_OFFSET, COMMIT)
        await client.call(
            Request.UPDATE_CONSUMER_OFFSET, {**COMMIT, "consumerGroup": "cg2", "commitOffset": "4"}
        )

        async def corrected(**ext: str) -> object:
            answer = await client.call(Request.QUERY_CORRECTION_OFFSET, {"topic": "T", **ext})
            return bodies.loads(answer.body)["correctionOffsets"]

        assert await corrected() == {"0": 2}
        assert await corrected(filterGroups="cg,other") == {"0": 4}
        assert await corrected(filterGroups="cg", compareGroup="cg") == {"0": 2**63 - 1}
        assert broker.context.offsets.get("cg", "T", 0) == 2, "the original deletes what it filters"


async def test_consumers_say_where_they_are(tmp_path: Path) -> None:
    async def answering(connection: Connection, request: Command) -> Command:
        table = {queue_key("T", "broker-t", 0): 7}
        return request.reply(body=bodies.dumps_dialect({"messageQueueTable": table}))

    async with running(tmp_path) as broker, client_of(broker, answering) as client:
        none = await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "cg"})
        assert none.code == 1
        assert "No Any Consumer online" in (none.remark or "")
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "cg", "T"))
        asked = {"topic": "T", "group": "cg"}
        answer = await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        table = bodies.loads(answer.body)["consumerTable"]
        assert table == {"c1": {queue_key("T", "broker-t", 0): 7}}
        other = await client.call(
            Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**asked, "clientAddr": "another"}
        )
        assert bodies.loads(other.body)["consumerTable"] == {}


async def test_what_all_consumers_say_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = bodies.dumps_dialect({"messageQueueTable": {queue_key("T", "broker-t", 0): 7}})
    heard: list[str] = []

    async def answering(connection: Connection, request: Command) -> Command:
        if request.code == Request.GET_CONSUMER_STATUS_FROM_CLIENT:
            heard.append(request.ext["topic"])
        return request.reply(body=said)

    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running(tmp_path))
        for number in range(4):
            client = await stack.enter_async_context(client_of(broker, answering))
            await client.call(Request.HEART_BEAT, {}, heartbeat(f"c{number}", "cg", "T"))
        asked = {"topic": "T", "group": "cg"}
        for most, code in ((3, 1), (4, 0), (4, 0)):  # what was said once is counted no longer
            monkeypatch.setattr(inspection, "SAID_BYTES_MAX", most * len(said))
            assert (await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)).code == code
        monkeypatch.setattr(inspection, "STATUS_BYTES_MAX", len(said) - 1)
        answer = await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        assert bodies.loads(answer.body)["consumerTable"] == {}, "each says too much"
        heard.clear()
        long = await client.call(
            Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**asked, "topic": "t" * 100_000}
        )
        assert (long.code, heard) == (29, [])
        monkeypatch.setattr(inspection, "QUESTION_BYTES", 1 << 30)
        answer = await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        assert (bodies.loads(answer.body)["consumerTable"], heard) == ({}, []), "they do not read"
        monkeypatch.setattr(inspection, "QUESTIONS_MAX", 0)
        assert (await client.call(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)).code == 2


async def test_counters_of_minute_hour_and_day(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        sampling = broker.upkeep.sampling
        await sampling.sample()
        asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
        unknown = await client.call(Request.VIEW_BROKER_STATS_DATA, asked)
        assert (unknown.code, unknown.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")
        for _ in range(3):
            await client.send("T")
        await broker.store.caught_up()
        await client.pull("T", 0)
        await sampling.sample()
        found = bodies.loads((await client.call(Request.VIEW_BROKER_STATS_DATA, asked)).body)
        assert set(found) == {"statsDay", "statsHour", "statsMinute"}
        assert broker.context.stats.counters.spans("GROUP_GET_NUMS", "T@cg") is not None
        runtime = bodies.loads((await client.call(Request.GET_BROKER_RUNTIME_INFO)).body)["table"]
        assert int(runtime["earliestMessageTimeStamp"]) == log_records(broker)[0].store_timestamp_ms


async def test_what_was_handed_out_and_not_confirmed_is_on_its_way(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        await client.pull("T", 0, count=4)
        await client.call(Request.UPDATE_CONSUMER_OFFSET, COMMIT)

        async def inflight() -> int:
            asked = {"consumerGroup": "cg", "topic": "T"}
            table = bodies.loads((await client.call(Request.GET_CONSUME_STATS, asked)).body)["offsetTable"]
            found = table[queue_key("T", "broker-t", 0)]
            return int(found["pullOffset"] - found["consumerOffset"])

        assert await inflight() == 2
        await client.call(Request.UPDATE_CONSUMER_OFFSET, {**COMMIT, "commitOffset": "5"})
        assert await inflight() == 0, "no less than what is confirmed"
        back = {"topic": "T", "group": "cg", "timestamp": "0", "isForce": "true"}
        await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, back)
        assert await inflight() == 0


async def test_a_topic_shows_the_queues_that_are_only_read(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        narrow = {"topic": "N", "readQueueNums": "3", "writeQueueNums": "1", "perm": "6"}
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, narrow)
        stats = bodies.loads((await client.call(Request.GET_TOPIC_STATS_INFO, {"topic": "N"})).body)
        assert set(stats["offsetTable"]) == {queue_key("N", "broker-t", number) for number in range(3)}


def test_what_was_pulled_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.state.pulled.QUEUES_MAX", 2)
    pulled = Pulled()
    for number in (0, 1, 0, 2):
        pulled.note("g", "T", number, 7)
    assert [pulled.of("g", "T", number, 1) for number in range(3)] == [7, 1, 7]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (97_793_294_336, "91.1 GiB")]
)
def test_bytes_are_said_as_tools_read_them(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_a_span_is_from_its_first_sample_to_its_last() -> None:
    counters, now_ms = Counters(), 0.0
    counters.queue_end("T", 0, 100, now_ms)  # was there before we looked: not what we saw come
    counters.sample(now_ms)
    assert counters.spans("TOPIC_PUT_NUMS", "T") is None
    for turn in range(1, 10):
        now_ms = 10_000.0 * turn
        counters.queue_end("T", 0, 100 + 50 * turn, now_ms)
        counters.queue_end("T", 1, 10 * turn, now_ms)  # a new queue: all of it came now
        counters.sample(now_ms)
    found = counters.spans("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found[0] == Span(6 * 60, 6.0), "six periods of 10 s, 60 messages each"
    assert found[2] == Span(0, 0.0), "no second sample within the first hour"
    assert counters.tps("TOPIC_PUT_NUMS", "other") == 0.0
    counters.sample(now_ms + SPANS[2][0] * 60)
    assert counters.spans("TOPIC_PUT_NUMS", "T") is None, "silent for two days: forgotten"


def test_a_day_begins() -> None:
    stats = Stats()
    stats.put(5, 100)
    stats.on_day(date(2026, 1, 1))
    assert (stats.today, stats.yesterday) == (Morning(), Morning())
    stats.on_day(date(2026, 1, 2))
    assert stats.today == Morning(5, 0)
    stats.got(2)
    stats.on_day(date(2026, 1, 3))
    assert (stats.today, stats.yesterday) == (Morning(5, 2), Morning(5, 0))


async def test_who_may_not_read_is_kept_and_told(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "cg", "T"))
        own = PullHeader("cg", "T", 0, 0, 32, sub_version=1).to_ext()  # by what its heartbeat said
        asked = {"group": "cg", "topic": "T"}

        async def forbidden(**ext: str) -> object:
            answer = await client.call(Request.UPDATE_AND_GET_GROUP_FORBIDDEN, {**asked, **ext})
            return bodies.loads(answer.body)["readable"]

        assert await forbidden() is True
        assert await forbidden(readable="false") is False
        assert (await client.call(Request.PULL_MESSAGE, own)).code == 16
        assert broker.context.groups.to_json()["forbiddenTable"] == {"cg": {"T": 4}}
        assert await forbidden(readable="true") is True
        assert broker.context.groups.to_json()["forbiddenTable"] == {}
        assert (await client.call(Request.PULL_MESSAGE, own)).code == 0


async def test_cleaning_by_hand(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        for code in (
            Request.CLEAN_EXPIRED_CONSUMEQUEUE,
            Request.CLEAN_UNUSED_TOPIC,
            Request.DELETE_EXPIRED_COMMITLOG,
            Request.RESET_MASTER_FLUSH_OFFSET,
        ):
            assert (await client.call(code)).code == 0, code
        assert (await client.call(Request.NOTIFY_MIN_BROKER_ID_CHANGE, {"minBrokerId": "0"})).code == 0
        assert len(await client.pull_until("T", 0, 1)) == 1, "what is not expired stays"


async def test_only_a_half_that_was_given_up_is_asked_about_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        sent = await client.send("T")
        plain = await client.call(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": sent.ext["msgId"]})
        assert plain.code == 1
        assert "TRANS_CHECK_MAX_TIME_TOPIC" in (plain.remark or "")
        nonsense = await client.call(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": "zz"})
        assert nonsense.code == 1
        broker.context.topics.ensure("TRANS_CHECK_MAX_TIME_TOPIC", 1)
        given_up = await broker_put(broker, "TRANS_CHECK_MAX_TIME_TOPIC")
        again = await client.call(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": given_up})
        assert again.code == 0
        last = log_records(broker)[-1]
        assert (last.topic, last.body) == ("RMQ_SYS_TRANS_HALF_TOPIC", b"half")
        assert "TRANSACTION_CHECK_TIMES\x010" in last.properties


async def broker_put(broker: object, topic: str) -> str:
    """Store a message as the broker itself does; its id."""
    from broker.service import Broker
    from store.files.record import NewMessage

    assert isinstance(broker, Broker)
    host = broker.context.store_host
    message = NewMessage(topic, 0, 0, 0, 1_700_000_000_000, host, host, 0, 0, b"half", "REAL_TOPIC\x01T\x02")
    (put,) = broker.store.put(message)
    return message_id(host, put.physical_offset)
