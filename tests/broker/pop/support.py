"""Pop, ack and change the invisible time as a client does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.codes import Request
from model.message import property_of
from model.pop import POP_CK, ExtraInfo, offsets_key, parse_message_offsets, parse_start_offsets, real_topic
from remoting.codec import Command
from remoting.pop_headers import AckHeader, PopAnswer, PopHeader
from store.files.record import Record
from tests.broker.helpers import Client, records


@dataclass
class Popped:
    record: Record
    info: ExtraInfo
    topic: str
    """Where it lies: the topic or the retry topic."""

    @property
    def body(self) -> bytes:
        return self.record.body


def header(topic: str, **how: Any) -> PopHeader:
    values = {
        "group": "pg",
        "topic": topic,
        "queue_id": -1,
        "count_max": 32,
        "invisible_ms": 60_000,
        "poll_ms": 0,
        "born_ms": 0,
        "init_mode": 0,
    }
    return PopHeader(**{**values, **how})


async def pop(client: Client, topic: str, **how: Any) -> Command:
    return await client.call(Request.POP_MESSAGE, header(topic, **how).to_ext(), timeout_s=20)


def popped(answer: Command, topic: str, group: str = "pg", broker: str = "broker-t") -> list[Popped]:
    """The messages of an answer with their extra info, put together as the Java client does."""
    told = PopAnswer.parse(answer.ext)
    starts, offsets = parse_start_offsets(told.start_offsets), parse_message_offsets(told.message_offsets)
    found = []
    for record in records(answer.body):
        text = property_of(record.properties, POP_CK)
        if text is None:
            key = offsets_key(record.topic, record.queue_id)
            assert record.queue_offset in offsets[key]
            info = ExtraInfo(
                starts[key],
                told.pop_time_ms,
                told.invisible_ms,
                told.revive_queue,
                key.partition("@")[0],
                broker,
                record.queue_id,
                record.queue_offset,
            )
        else:
            info = ExtraInfo.parse(text)
        found.append(Popped(record, info, real_topic(topic, group, info.kind)))
    return found


def ack_of(one: Popped, group: str = "pg") -> AckHeader:
    return AckHeader(group, one.topic, one.record.queue_id, one.info.to_text(), one.record.queue_offset)


async def ack(client: Client, one: Popped, group: str = "pg") -> Command:
    return await client.call(Request.ACK_MESSAGE, ack_of(one, group).to_ext())


async def change(
    client: Client, one: Popped, invisible_ms: int, group: str = "pg", *, suspend: bool = False
) -> Command:
    record = one.record
    ext = AckHeader(
        group, one.topic, record.queue_id, one.info.to_text(), record.queue_offset, invisible_ms, suspend
    ).to_ext()
    return await client.call(Request.CHANGE_MESSAGE_INVISIBLETIME, ext)


async def pop_until(client: Client, topic: str, count: int, **how: Any) -> list[Popped]:
    """Pop until so many messages came."""
    found: list[Popped] = []
    while len(found) < count:
        answer = await pop(client, topic, **{"poll_ms": 5000, **how})
        assert answer.code in (0, 210), (answer.code, answer.remark)
        if answer.code == 0:
            found += popped(answer, topic)
    return found
