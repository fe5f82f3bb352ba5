"""The promise of the properties by which brokers tell each other what to do: no client writes one, whatever
request it sends; and what a send accepted can be sent back, whatever its properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.service import Broker
from model.codes import Request, Response
from model.errors import Refused
from model.message import (
    BROKERS_OWN,
    INNER_NUM,
    OWN_MARKS,
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
    property_of,
)
from model.recall import RecallHandle
from remoting.headers import SendHeader
from tests.broker.helpers import Client, batch_body, client_of, log_records, running
from tests.store.support import message

PLANTED = "planted"
OWN = "".join(f"{name}\x01{PLANTED}\x02" for name in BROKERS_OWN if name != INNER_NUM)  # that one is refused
KINDS = ("", "DELAY\x011\x02", "TIMER_DELAY_MS\x0160000\x02", "TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
RECALLS = {"recallMessageEnable": "true"}


def holds_planted(broker: Broker) -> list[str]:
    """Of the records that are not ``T``'s own plants, those that hold what a client planted."""
    return [
        f"{record.topic}: {name}"
        for record in log_records(broker)
        for name in BROKERS_OWN
        if record.body != b"plant" and property_of(record.properties, name) == PLANTED
    ]


async def send_back(client: Client, offset: int, level: int) -> int:
    ext = {"group": "cg", "originMsgId": "", "offset": str(offset), "delayLevel": str(level)}
    return (await client.call(Request.CONSUMER_SEND_MSG_BACK, ext)).code


def test_each_of_the_brokers_own_names_is_looked_for() -> None:
    assert all(any(mark in name for mark in OWN_MARKS) for name in BROKERS_OWN)


async def test_no_request_that_writes_carries_what_only_brokers_write(tmp_path: Path) -> None:
    async with running(tmp_path, **RECALLS) as broker, client_of(broker) as client:
        for kind in KINDS:
            assert (await client.send("T", b"single", properties=OWN + kind)).code == 0
        header = SendHeader("pg", "T", 0, 0, batch=True)
        body = batch_body([(b"in a batch", f"{OWN}{INNER_NUM}\x01{PLANTED}\x02", 0)])
        assert (await client.call(Request.SEND_BATCH_MESSAGE, header.to_ext(), body)).code == 0
        reply = SendHeader("pg", "T", 0, 0, properties=OWN + "REPLY_TO_CLIENT\x01nobody\x02")
        await client.call(Request.SEND_REPLY_MESSAGE_V2, reply.to_ext(), b"reply")
        [put] = broker.store.put(message("plant", properties=OWN))
        for level in (1, 0, -1):
            assert await send_back(client, put.physical_offset, level) == 0
        before = len(log_records(broker))
        assert before == len(KINDS) + 2 + 4, "all were stored"
        assert holds_planted(broker) == []


@pytest.mark.parametrize(
    ("topic", "uniq_key", "group"),
    [
        ("T", "U", f"x\x02TIMER_OUT_MS\x01{PLANTED}"),
        ("T", "U", "x y"),
        ("T", f"U\x02DELAYED_AS\x01{PLANTED}", "x"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "U", "x"),
        ("SCHEDULE_TOPIC_XXXX", "U", "x"),
        ("rmq_sys_wheel_timer", "U", "x"),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", "U", "x"),
        ("%LMQ%a", "U", "x"),
    ],
)
async def test_a_recall_writes_nothing_but_a_recall(
    tmp_path: Path, topic: str, uniq_key: str, group: str
) -> None:
    async with running(tmp_path, **RECALLS) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        broker.context.topics.ensure(topic, 1)
        at_ms = str(broker.env.now_ms() + 60_000)
        handle = RecallHandle(topic, broker.config.broker_name, at_ms, uniq_key).encode()
        ext = {"topic": topic, "recallHandle": handle, "producerGroup": group}
        answer = await client.call(Request.RECALL_MESSAGE, ext)
        assert answer.code in (Response.NO_PERMISSION, Response.ILLEGAL_OPERATION), answer.remark
        assert len(log_records(broker)) == 1


@pytest.mark.parametrize("pair", [("a", "b\x02REAL_TOPIC\x01T"), ("a\x02b", "c"), ("a\x01b", "c")])
def test_no_value_begins_a_property_of_its_own(pair: tuple[str, str]) -> None:
    with pytest.raises(Refused):
        encode_properties(dict([pair]))


@pytest.mark.parametrize("group", ["cg", "g" * 120])
async def test_what_a_send_accepted_can_be_sent_back(tmp_path: Path, group: str) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        room = PROPERTIES_BYTES_MAX - len(log_records(broker)[0].properties.encode()) - 3
        longest = f"Z\x01{'z' * room}\x02"
        assert (await client.send("T", b"long", properties=longest)).code == 0
        header = SendHeader("pg", "T", 0, 0, batch=True)
        odd = ["TIMER_DELIVER_MS\x01NaN\x02", "TIMER_DELAY_SEC\x01999999999\x02", "DELAY\x019\x02"]
        body = batch_body([(b"odd", text, 0) for text in odd])
        assert (await client.call(Request.SEND_BATCH_MESSAGE, header.to_ext(), body)).code == 0
        sent = log_records(broker)[1:]
        for record in sent:
            for level in (1, 0, -1):
                ext = {"group": group, "offset": str(record.physical_offset), "delayLevel": str(level)}
                answer = await client.call(Request.CONSUMER_SEND_MSG_BACK, {**ext, "originMsgId": ""})
                assert answer.code == 0, (record.properties[:40], level, answer.remark)
        back = log_records(broker)[1 + len(sent) :]
        assert [r.body for r in back] == [r.body for r in sent for _ in range(3)]
        assert [r.topic for r in back[2::3]] == [f"%DLQ%{group}"] * len(sent)
        assert all("TIMER_" not in name for r in back for name in decode_properties(r.properties))


async def test_properties_that_are_no_text_are_refused_on_their_way_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T", properties="A\x01xx\x02")).code == 0
        raw = broker.store.lookup(log_records(broker)[0].physical_offset)
        assert raw is not None
        broken = bytes(raw).replace(b"A\x01xx\x02", b"A\x01\xff\xfe\x02")
        broker.store.lookup = lambda offset: broken  # type: ignore[method-assign, assignment]
        assert await send_back(client, 0, -1) == Response.MESSAGE_ILLEGAL


async def test_a_message_that_is_sent_back_says_where_it_was_not_what_its_sender_wrote(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        forged = "RETRY_TOPIC\x01payments\x02ORIGIN_MESSAGE_ID\x01zz\x02"
        assert (await client.send("T", properties=forged)).code == 0
        assert await send_back(client, log_records(broker)[0].physical_offset, -1) == 0
        dead = log_records(broker)[-1]
        assert property_of(dead.properties, "RETRY_TOPIC") == "T"
        assert property_of(dead.properties, "ORIGIN_MESSAGE_ID") != "zz"
        assert await send_back(client, dead.physical_offset, -1) == 0
        assert property_of(log_records(broker)[-1].properties, "RETRY_TOPIC") == "T", "it came back before"
