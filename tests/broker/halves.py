"""Transactional messages as their producers begin and end them, for the tests of more than one part."""

from __future__ import annotations

from typing import Any

from broker.service import Broker
from model.codes import Request
from model.message import parse_message_id
from remoting.codec import Command
from remoting.headers import EndTransactionHeader
from store.files.record import Record
from tests.broker.helpers import Client, log_records

HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
SOON = {"transactionTimeOut": "1", "transactionCheckInterval": "20"}


async def begin(client: Client, topic: str = "T", body: bytes = b"half", **header: Any) -> Command:
    answer = await client.send(topic, body, properties=HALF, **header)
    assert answer.code == 0, answer.remark
    return answer


async def end(client: Client, half: Command, decision: int, group: str = "pg") -> Command:
    header = EndTransactionHeader(
        group,
        int(half.ext["queueOffset"]),
        parse_message_id(half.ext["msgId"])[1],
        decision,
        half.ext["transactionId"],
    )
    return await client.call(Request.END_TRANSACTION, header.to_ext())


def of_topic(broker: Broker, topic: str) -> list[Record]:
    return [record for record in log_records(broker) if record.topic == topic]
