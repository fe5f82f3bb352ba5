"""The promise of Sql and from_time_ms: brokers choose, and a new group begins where it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.admin import AdminClient
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.consuming.pull import PullConsumer
from client.consuming.subscriptions import FROM_FIRST, FROM_LAST, FROM_TIME, Sql, consumer_data
from client.message import Message, Queue, Received
from client.sending.producer import Producer
from tests.client.servers import Pair, run
from tests.waiting import until

DEAR = Sql("amount > 100")
TOPIC = "Bills"


class Took:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, messages: list[Received]) -> None:
        self.bodies.extend(message.body for message in messages)


def test_a_heartbeat_says_the_kind_of_an_expression_and_where_the_group_begins() -> None:
    said = consumer_data("g", {"A": DEAR, "B": "x||y"}, 1, begin=ConsumeOptions(from_time_ms=5).begin)
    sql, tags = said["subscriptionDataSet"]
    assert (sql["expressionType"], sql["subString"], sql["tagsSet"], sql["codeSet"]) == (
        "SQL92",
        DEAR,
        [],
        [],
    )
    assert (tags["expressionType"], tags["tagsSet"]) == ("TAG", ["x", "y"])
    assert said["consumeFromWhere"] == FROM_TIME
    assert (ConsumeOptions().begin, ConsumeOptions(from_first=True).begin) == (FROM_LAST, FROM_FIRST)
    with pytest.raises(ValueError, match="one place"):
        ConsumeOptions(from_time_ms=5, from_first=True)


def test_push_and_pop_get_what_sql_chooses_and_a_group_begins_at_a_time(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        env, namesrv = servers.env, servers.namesrv
        async with AdminClient(env, namesrv) as admin:
            await admin.create_topic(TOPIC, 1)
        async with Producer(env, "pg", namesrv) as producer:
            for amount in ("50", "150", "70", "250"):
                await producer.send(Message(topic=TOPIC, body=amount.encode(), properties={"amount": amount}))
        async with PullConsumer(env, "reader", namesrv) as reader:
            stored = await reader.read_all(Queue(TOPIC, "broker-a", 0))
            from_third_ms = stored[2].store_timestamp_ms
            begin = await reader.offset_by_time(stored[0].queue, from_third_ms)
        pushed, popped, late = Took(), Took(), Took()
        first, lately = ConsumeOptions(from_first=True), ConsumeOptions(from_time_ms=from_third_ms)
        async with (
            PushConsumer(env, "g1", namesrv, pushed, subscriptions={TOPIC: DEAR}, options=first),
            PopConsumer(
                env, "g2", namesrv, popped, subscriptions={TOPIC: DEAR}, options=PopOptions(from_first=True)
            ),
            PushConsumer(env, "g3", namesrv, late, subscriptions={TOPIC: "*"}, options=lately),
        ):
            expected = [one.body for one in stored[begin:]]
            await until(lambda: len(pushed.bodies) == len(popped.bodies) == 2 and late.bodies == expected)
        assert pushed.bodies == [b"150", b"250"]
        assert sorted(popped.bodies) == [b"150", b"250"]
        assert expected[-2:] == [b"70", b"250"]

    run(tmp_path, work)
