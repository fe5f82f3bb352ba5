"""No send, lock, heartbeat or pull, however it is made, holds the loop, fills a table or plants a record that
a replica calls damaged (docs/security.md)."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from broker.service import Broker
from broker.state.locks import LOCK_LIVES_MS, SWEEP_MS, QueueLocks
from broker.tables.quota import Quota
from model.codes import Request
from model.message import decode_properties
from remoting import bodies
from remoting.codec import Command
from remoting.headers import SendHeader
from tests.broker.helpers import (
    Client,
    batch_body,
    client_of,
    config_for,
    eventually,
    heartbeat,
    log_records,
    running,
    topic,
)
from tests.broker.turn_meter import LIMIT_LOOPS, metered, tried_again

CRC = "__CRC32#\x010000000000\x02"
KEY = "UNIQ_KEY\x010123456789ABCDEF0123456789ABCDEF\x02"


async def send_batch(client: Client, messages: list[tuple[bytes, str, int]], name: str = "T") -> Command:
    header = SendHeader("pg", name, 0, 1, properties=KEY + "WAIT\x01true\x02", batch=True)
    return await client.call(Request.SEND_BATCH_MESSAGE, header.to_ext(), batch_body(messages))


def check_log(broker: Broker) -> None:
    """What a scrub and a recovery ask of each record."""
    log, data = broker.store.log, broker.store.log.read(0, 1 << 30)
    for record in log_records(broker):
        at = record.physical_offset
        assert log.whole(data, at, at) == record.size


IMITATIONS = [
    (b"", KEY + CRC),
    (b"", CRC),
    (b"", KEY + "__CRC32#\x01x\x02"),
    (b"", KEY + "P\x01__CRC32#\x010000000000\x02"),
    (b"", KEY + "__CRC33#\x010000000000\x02"),
    (b"", "_\x01__CRC32#\x010000000000\x02"),
    (b"__CRC32#\x01__", ""),
    (b"__CRC32#\x010000000", "a\x01b\x02"),
    *[(b"__CRC32#\x01" + b"0" * n, "") for n in range(12)],
]


@pytest.mark.parametrize(("body", "properties"), IMITATIONS)
async def test_no_message_of_a_batch_is_taken_for_damaged(
    tmp_path: Path, body: bytes, properties: str
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        answer = await send_batch(client, [(b"before", KEY, 0), (body, properties, 0), (b"after", KEY, 0)])
        assert answer.code == 0, answer.remark
        check_log(broker)
        assert [record.body for record in log_records(broker)][1:] == [b"before", body, b"after"]
        assert all("__CRC32#" not in decode_properties(r.properties) for r in log_records(broker))


@pytest.mark.parametrize(
    "extra",
    [
        CRC,
        "P\x01__CRC32#\x01v\x02",
        "REAL_TOPIC\x01X\x02REAL_QID\x017\x02DELAYED_AS\x01timer:1\x02",
        "INNER_BASE\x015\x02",
    ],
)
@pytest.mark.parametrize("kind", ["", "DELAY\x011\x02", "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"])
async def test_no_single_message_carries_what_only_brokers_write(
    tmp_path: Path, extra: str, kind: str
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        assert (await client.send("T", b"imitated", properties=extra + kind)).code == 0
        sent_back = {"group": "cg", "originMsgId": "", "offset": "0", "delayLevel": "-1"}
        for record in log_records(broker):
            await client.call(
                Request.CONSUMER_SEND_MSG_BACK, {**sent_back, "offset": str(record.physical_offset)}
            )
        check_log(broker)
        for record in log_records(broker):
            found = decode_properties(record.properties)
            assert found.keys().isdisjoint({"__CRC32#", "INNER_BASE"})
            assert found.get("DELAYED_AS") != "timer:1"
            assert found.get("REAL_TOPIC", "T") == "T"
            assert found.get("REAL_QID", "0") == "0"


async def test_a_single_message_with_inner_numbers_is_refused_as_the_original_does(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T", properties="INNER_NUM\x019\x02")).code == 13


@pytest.mark.parametrize("name", ["%LMQ%x", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"])
async def test_what_the_broker_writes_itself_no_client_writes(tmp_path: Path, name: str) -> None:
    light = {"enableLmq": "true", "enableMultiDispatch": "true"}
    async with running(tmp_path, **light) as broker, client_of(broker) as client:
        before = broker.store.log.end
        assert (await client.send(name)).code == 16
        assert (await send_batch(client, [(b"x", KEY, 0)], name)).code == 16
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name))).code == 29
        assert broker.store.log.end == before


@pytest.mark.parametrize("name", ["%RETRY%../../x", "%RETRY%", "%RETRY%" + "x" * 300])
async def test_no_retry_topic_comes_to_be_of_a_group_that_cannot(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send(name)).code == 26
        assert broker.topics.get(name) is None


@tried_again
async def test_a_batch_of_180000_empty_messages_is_refused_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        body = struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0) * 180_000
        header = SendHeader("pg", "T", 0, 1, properties=KEY, batch=True)
        async with metered() as meter:
            answer = await client.call(Request.SEND_BATCH_MESSAGE, header.to_ext(), body)
        assert (answer.code, "maxMessagesInBatch" in (answer.remark or "")) == (13, True)
        meter.check()


async def test_the_longest_batch_is_stored(tmp_path: Path) -> None:
    async with running(tmp_path, maxMessagesInBatch="50") as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        assert (await send_batch(client, [(b"x", KEY, 0)] * 51)).code == 13
        answer = await send_batch(client, [(b"x", KEY, 0)] * 50)
        assert (answer.code, len(answer.ext["msgId"].split(","))) == (0, 50)


# -- locks


def lock_body(group: str, count: int, client: str = "c") -> bytes:
    queues = [{"brokerName": "b", "topic": "T", "queueId": n} for n in range(count)]
    return bodies.dumps({"clientId": client, "consumerGroup": group, "mqSet": queues})


@tried_again
async def test_a_lock_of_250000_queues_is_refused_and_a_long_one_is_sliced(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        huge, long = lock_body("g", 250_000), lock_body("g", 4096)
        async with metered() as meter:
            assert (await client.call(Request.LOCK_BATCH_MQ, {}, huge)).code == 1
            answers = await asyncio.gather(*(client.call(Request.LOCK_BATCH_MQ, {}, long) for _ in range(9)))
        assert {answer.code for answer in answers} == {0}
        assert len(bodies.believed_object(answers[0].body)["lockOKMQSet"]) == 4096
        meter.check()
        broker.context.locks.check_invariants()


def test_a_full_table_of_locks_takes_no_more_until_some_are_over() -> None:
    locks = QueueLocks(3)
    queues = [("b", "T", n) for n in range(5)]
    assert locks.lock("g", "c", queues, 0) == queues[:3]
    locks.check_invariants()
    assert locks.lock("h", "c", queues, 1) == []
    assert locks.lock("g", "c", queues[:1], 2) == queues[:1], "who has a lock keeps it"
    locks.unlock("g", "c", queues[1:2])
    assert locks.lock("h", "c", queues, 3) == queues[:1]
    locks.check_invariants()
    late = LOCK_LIVES_MS + SWEEP_MS + 10
    assert locks.lock("h", "d", queues, late) == queues[:3]
    locks.check_invariants()
    assert not locks.group_has_locks("g", late)
    assert locks.group_has_locks("h", late)


# -- heartbeats, and what they and sends make


@tried_again
async def test_a_heartbeat_of_20000_groups_is_refused_and_makes_none(tmp_path: Path) -> None:
    data = bodies.loads(heartbeat("c", "", producer="p"))
    data["consumerDataSet"] = [
        {"groupName": f"g{n}", "subscriptionDataSet": [{"topic": "T"}]} for n in range(20_000)
    ]
    async with running(tmp_path) as broker, client_of(broker) as client:
        known = len(broker.groups.table)
        body = bodies.dumps(data)
        async with metered() as meter:
            assert (await client.call(Request.HEART_BEAT, {}, body)).code == 1
            data["consumerDataSet"] = data["consumerDataSet"][:1001]
            assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(data))).code == 1
        assert (len(broker.groups.table), broker.context.clients.consumers) == (known, {})
        meter.check()


@tried_again
async def test_a_heartbeat_of_many_groups_makes_a_few_of_them(tmp_path: Path) -> None:
    data = bodies.loads(heartbeat("c", "", producer="p"))
    data["consumerDataSet"] = [
        {"groupName": f"g{n}", "subscriptionDataSet": [{"topic": "T"}]} for n in range(900)
    ]
    async with running(tmp_path) as broker, client_of(broker) as client:
        known = len(broker.groups.table)
        async with metered() as meter:
            assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(data))).code == 0
        assert 100 <= len(broker.groups.table) - known < 300, "two seconds' worth, and what came since"
        meter.check()


@tried_again
async def test_a_burst_of_1000_new_topics_is_taken_a_hundred_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        async with metered() as meter:
            answers = await asyncio.gather(*(client.send(f"New{n}") for n in range(1000)))
        codes = [answer.code for answer in answers]
        assert set(codes) == {0, 2}, "2: the producer tries again"
        assert 100 <= codes.count(0) < 300
        meter.check(4 * LIMIT_LOOPS)  # the client's 1,000 sends are among it


async def test_a_full_table_of_topics_takes_no_more_from_sends_and_any_from_operators(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateTopicMax="20") as broker, client_of(broker) as client:
        codes = [(await client.send(f"New{n}")).code for n in range(20)]
        assert (codes[0], codes[-1], len(broker.topics.table)) == (0, 17, 20)
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Asked"))).code == 0


async def test_a_full_table_of_groups_takes_no_more(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateGroupMax="10") as broker, client_of(broker) as client:
        await client.send("T")
        codes = [(await client.pull("T", 9, group=f"g{n}")).code for n in range(10)]
        assert (codes[0] in (20, 21), codes[-1], len(broker.groups.table)) == (True, 26, 10)


def test_a_quota_fills_up_again_with_time_and_never_beyond_its_burst() -> None:
    now = [0.0]
    quota = Quota(10, 1000, lambda: now[0])
    assert sum(quota.take(0) for _ in range(100)) == 20
    now[0] += 500
    assert sum(quota.take(0) for _ in range(100)) == 5
    now[0] -= 10_000
    assert not quota.take(0), "a clock set back earns nothing"
    now[0] += 3_600_000
    assert sum(quota.take(0) for _ in range(100)) == 20
    assert not quota.take(1000)


# -- held pulls


async def test_a_held_pull_keeps_neither_its_header_nor_waits_longer_than_it_may(tmp_path: Path) -> None:
    async with running(tmp_path, maxSuspendTimeoutMillis="300") as broker, client_of(broker) as client:
        await client.send("T")
        pulls = broker.processors.pulls
        asked = asyncio.create_task(client.pull("T", 1, suspend_ms=600_000, tags="a || b" + " " * 20_000))
        await eventually(lambda: pulls.held, "it is held")
        (queue,) = pulls._held.queues()
        (held,) = pulls._held.of(queue)
        assert (held.request.ext, held.header.subscription) == ({}, "")
        assert held.subscription.codes == {97, 98}
        async with asyncio.timeout(5):
            assert (await asked).code == 19
        assert (pulls.held, pulls._held.by_connection) == (0, {})


async def test_a_subscription_of_8_mib_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        answer = await client.pull("T", 1, suspend_ms=600_000, tags="x" * 40_000)
        assert (answer.code, broker.processors.pulls.held) == (23, 0)


async def test_a_connection_holds_only_so_many_pulls(tmp_path: Path) -> None:
    keys = {"maxHeldPullsPerConnection": "3", "maxHeldPulls": "5"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as one, client_of(broker) as two:
        await one.send("T")
        asked = [asyncio.create_task(one.pull("T", 1, suspend_ms=60_000)) for _ in range(4)]
        done, _ = await asyncio.wait(asked, return_when="FIRST_COMPLETED")
        assert [task.result().code for task in done] == [19]
        asked += [asyncio.create_task(two.pull("T", 1, suspend_ms=60_000)) for _ in range(3)]
        await eventually(lambda: sum(task.done() for task in asked) == 2, "the third of two is answered")
        assert broker.processors.pulls.held == 5
        await one.send("T")
        assert sorted(answer.code for answer in await asyncio.gather(*asked)) == [0] * 5 + [19] * 2
        assert (broker.processors.pulls.held, broker.processors.pulls._held.by_connection) == (0, {})


def test_the_bounds_stand_in_the_configuration() -> None:
    config = config_for(Path("/nowhere"), maxMessagesInBatch="7")
    assert config.batch_messages_max == 7


async def test_a_field_that_is_too_long_is_refused_before_it_is_taken_apart(tmp_path: Path) -> None:
    many = "A\x01B\x02" * 20_000  # taken apart, it is one property
    async with running(tmp_path, recallMessageEnable="true") as broker, client_of(broker) as client:
        for special in ("", "TRACE_ON\x01true\x02", "TIMER_DELAY_MS\x0160000\x02"):
            assert (await client.send("T", properties=special + many)).code == 13
            reply = SendHeader("pg", "T", 0, 0, properties=f"REPLY_TO_CLIENT\x01nobody\x02{special}{many}")
            answer = await client.call(Request.SEND_REPLY_MESSAGE_V2, reply.to_ext(), b"reply")
            assert answer.code == 13
        groups = {"topic": "T", "compareGroup": "g", "filterGroups": "," * (256 << 10)}
        assert (await client.call(Request.QUERY_CORRECTION_OFFSET, groups)).code == 0
        groups["filterGroups"] += ","
        assert (await client.call(Request.QUERY_CORRECTION_OFFSET, groups)).code == 29
