"""The promise of a pop: every message is given to its group until it is acknowledged, and then no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from model.codes import Request, Response
from model.message import PROPERTIES_BYTES_MAX
from model.pop import INT_MAX, REVIVE_GROUP
from remoting.pop_acks import BatchAck, encode_batch_acks
from tests.broker.halves import of_topic
from tests.broker.helpers import client_of, eventually, running, topic
from tests.broker.pop.support import ack, change, pop, pop_until, popped

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[str, str, str]]:
    """By topic, group and kind."""
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        found[row["topic"], row["group"], row["kind"]] += row["total"]
    return found


async def test_what_was_popped_is_not_given_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        for at in range(6):
            await client.send("T", b"%d" % at, queue_id=at % 2)
        first = await pop(client, "T", count_max=4)
        assert first.code == 0, first.remark
        found = popped(first, "T")
        assert len(found) == 4
        rest = await pop(client, "T")
        found += popped(rest, "T")
        assert sorted(one.body for one in found) == [b"%d" % at for at in range(6)]
        assert rest.ext["restNum"] == "0"
        empty = await pop(client, "T")
        assert (empty.code, empty.remark) == (Response.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        await eventually(lambda: broker.offsets.queues("pg", "T") == {0: 3, 1: 3}, "the offsets moved")


async def test_what_is_not_acknowledged_comes_back_and_what_is_does_not(tmp_path: Path) -> None:
    keys = {"reviveInterval": 50}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(3):
            await client.send("T", b"%d" % at, properties="TAGS\x01a\x02")
        found = popped(await pop(client, "T", invisible_ms=300), "T")
        assert [one.body for one in found] == [b"0", b"1", b"2"]
        assert (await ack(client, found[1])).code == 0
        again = await pop_until(client, "T", 2, invisible_ms=300)
        assert sorted(one.body for one in again) == [b"0", b"2"]
        assert {one.record.topic for one in again} == {"T"}, "under the topic it was sent to"
        assert {one.topic for one in again} == {"%RETRY%pg_T"}, "from the retry topic"
        assert {one.record.reconsume_times for one in again} == {1}
        assert all(f"1ST_POP_TIME\x01{found[0].info.pop_time_ms}\x02" in o.record.properties for o in again)
        assert all("ORIGIN_GROUP\x01pg\x02" in one.record.properties for one in again)
        for one in again:
            assert (await ack(client, one)).code == 0
        await asyncio.sleep(2)
        assert (await pop(client, "T")).code == Response.POLLING_TIMEOUT
        ends = {q: broker.store.max_queue_offset(REVIVE, q) - 1 for q in range(8)}
        done = {queue: end for queue, end in ends.items() if end >= 0}
        await eventually(lambda: broker.offsets.queues(REVIVE_GROUP, REVIVE) == done, "nothing is read again")
        told = broker.status()["pops"]
        put, read = (counted(told[name]) for name in ("put", "read"))
        assert put == read, "each record was read once"
        assert (put["T", "pg", "CK"], put["T", "pg", "ACK"]) == (1, 2), (
            "the broker acknowledges what came back"
        )
        assert put["%RETRY%pg_T", "pg", "ACK"] == 2
        assert told["revived"] == [{"topic": "T", "group": "pg", "total": 2}]
        assert [row["queueId"] for row in told["behind"]] == list(range(8))
        assert not any(row["messages"] or row["behindMs"] for row in told["behind"])
        assert told["offsets"] == 0


async def test_what_was_popped_of_a_deleted_topic_does_not_come_back_to_a_new_one_of_its_name(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, reviveInterval=50) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"old")
        assert [one.body for one in await pop_until(client, "T", 1, invisible_ms=300)] == [b"old"]
        await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"new")
        assert [one.body for one in await pop_until(client, "T", 1, invisible_ms=300)] == [b"new"]
        assert [one.body for one in await pop_until(client, "T", 1)] == [b"new"], "it alone comes back"
        assert [row["total"] for row in broker.status()["pops"]["revived"]] == [1]


async def test_a_message_with_the_longest_properties_comes_back_and_holds_no_other(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, reviveInterval=50) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"long", properties=f"LONG\x01{'x' * 32_400}\x02")
        short = len(of_topic(broker, "T")[0].properties)
        room = PROPERTIES_BYTES_MAX - short - 5
        answer = await client.send("T", b"longest", properties=f"LONG\x01{'x' * (32_400 + room)}\x02")
        assert answer.code == 0, answer.remark
        await client.send("T", b"other")
        assert len(popped(await pop(client, "T", invisible_ms=300), "T")) == 3
        again = await pop_until(client, "T", 3)
        assert sorted(one.body for one in again) == [b"long", b"longest", b"other"]
        assert {one.record.reconsume_times for one in again} == {1}


async def test_a_count_of_retries_at_its_end_keeps_no_other_message_from_coming_back(tmp_path: Path) -> None:
    async with running(tmp_path, reviveInterval=50) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for body, times in ((b"before", 0), (b"often", INT_MAX), (b"behind", 0)):
            assert (await client.send("T", body, reconsume_times=times)).code == 0
        assert len(popped(await pop(client, "T", invisible_ms=300), "T")) == 3
        again = await pop_until(client, "T", 3)
        assert {one.body: one.record.reconsume_times for one in again} == {
            b"before": 1,
            b"often": INT_MAX,
            b"behind": 1,
        }


@pytest.mark.parametrize("suspend", [False, True])
async def test_the_invisible_time_can_be_changed(tmp_path: Path, suspend: bool) -> None:
    """``suspend``, of RocketMQ 5.5: what is put off so is not tried once more when it comes back."""
    async with running(tmp_path, reviveInterval=50) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"late")
        (one,) = popped(await pop(client, "T", invisible_ms=60_000), "T")
        answer = await change(client, one, 200, suspend=suspend)
        assert answer.code == 0
        assert (answer.ext["invisibleTime"], answer.ext["reviveQid"]) == ("200", str(one.info.revive_queue))
        (again,) = await pop_until(client, "T", 1)
        assert (again.body, again.record.reconsume_times) == (b"late", 0 if suspend else 1)
        assert (await ack(client, again)).code == 0


async def test_many_are_acknowledged_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, reviveInterval=50) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(4):
            await client.send("T", b"%d" % at)
        found = popped(await pop(client, "T", invisible_ms=200), "T")
        info = found[0].info
        batch = BatchAck("pg", "T", "0", info.start, 0, info.revive_queue, info.pop_time_ms, 200, [0, 1, 3])
        answer = await client.call(Request.BATCH_ACK_MESSAGE, {}, encode_batch_acks("broker-t", [batch]))
        assert answer.code == 0, answer.remark
        (again,) = await pop_until(client, "T", 1)
        assert again.body == b"2"


async def test_a_pop_waits_for_a_message(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        waiting = asyncio.create_task(pop(client, "T", poll_ms=10_000))
        other = asyncio.create_task(pop(client, "T", poll_ms=10_000, queue_id=1))
        await eventually(lambda: broker.processors.pops.polling.held == 2, "both wait")
        broker.processors.pops.polling.pops.check_invariants()
        await client.send("T", b"now", queue_id=0)
        answer = await waiting
        assert [one.body for one in popped(answer, "T")] == [b"now"]
        assert not other.done(), "its queue is another one"
        await client.send("T", b"one", queue_id=1)
        assert [one.body for one in popped(await other, "T")] == [b"one"]
        broker.processors.pops.polling.pops.check_invariants()


async def test_each_message_wakes_one_of_many(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        waiting = [asyncio.create_task(pop(client, "T", poll_ms=10_000, count_max=1)) for _ in range(3)]
        await eventually(lambda: broker.processors.pops.polling.held == 3, "all wait")
        for at in range(3):
            await client.send("T", b"%d" % at)
        answers = await asyncio.gather(*waiting)
        assert sorted(popped(answer, "T")[0].body for answer in answers) == [b"0", b"1", b"2"]


async def test_a_pop_gets_what_its_tag_says_and_skips_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for tag in "abab":
            await client.send("T", tag.encode(), properties=f"TAGS\x01{tag}\x02")
        found = popped(await pop(client, "T", expression="b", expression_type="TAG"), "T")
        assert [(one.body, one.record.queue_offset) for one in found] == [(b"b", 1), (b"b", 3)]
        await eventually(lambda: broker.offsets.queues("pg", "T") == {0: 4}, "the offset moved")


async def test_a_reset_offset_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(3):
            await client.send("T", b"%d" % at)
        await pop(client, "T")
        await eventually(lambda: broker.offsets.queues("pg", "T") == {0: 3}, "the offset moved")
        broker.offsets.commit("pg", "T", 0, 1)
        assert [one.body for one in popped(await pop(client, "T"), "T")] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ({"count_max": 33}, 29, "the broker[127.0.0.1] pop message's num is greater than 32"),
        ({"count_max": 0}, 29, "less than 1"),
        ({"invisible_ms": 259_200_001}, 29, "maxInvisibleTimeMillis"),
        ({"invisible_ms": -1}, 29, "maxInvisibleTimeMillis"),
        ({"topic": "None"}, 17, "topic[None] not exist, apply first please!"),
        ({"queue_id": 1}, 29, "queueId[1] is illegal, topic:[T] topicConfig.readQueueNums:[1]"),
        ({"group": "no good"}, 26, "subscription group [no good] does not exist"),
        ({"expression": "||"}, 23, "parse the consumer's subscription failed"),
        ({"born_ms": 1, "poll_ms": 10}, 210, "the broker[127.0.0.1] pop message is timeout too much"),
    ],
)
async def test_what_cannot_be_popped_is_refused_as_the_original_does(
    tmp_path: Path, how: dict[str, object], code: int, text: str
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        answer = await pop(client, **{"topic": "T", **how})  # type: ignore[arg-type]
        assert answer.code == code, answer.remark
        assert text in (answer.remark or "")


async def test_clients_do_not_write_checkpoints(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        answer = await client.send(REVIVE, b"{}", properties="TAGS\x01ck\x02")
        assert (answer.code, answer.remark) == (16, f"Sending message to topic[{REVIVE}] is forbidden.")


async def test_an_ack_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        (one,) = popped(await pop(client, "T"), "T")
        ext = {"consumerGroup": "pg", "topic": "T", "queueId": "0", "offset": "0"}
        good = one.info.to_text()
        for change_of, code in (
            ({"topic": "None"}, Response.TOPIC_NOT_EXIST),
            ({"queueId": "1"}, Response.MESSAGE_ILLEGAL),
            ({"offset": "2"}, Response.NO_MESSAGE),
            ({"extraInfo": "1 2"}, Response.SYSTEM_ERROR),
            (
                {"extraInfo": good.replace(f" {one.info.revive_queue} 0 ", " 77 0 ")},
                Response.INVALID_PARAMETER,
            ),
        ):
            answer = await client.call(Request.ACK_MESSAGE, {**ext, "extraInfo": good, **change_of})
            assert answer.code == code, (change_of, answer.remark)
        empty = await client.call(Request.BATCH_ACK_MESSAGE, {}, b'{"brokerName":"b","acks":[]}')
        assert empty.code == Response.NO_MESSAGE
