"""The promise of a producer's timer messages: they come at their time, or are taken back before."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.consuming.pull import PullConsumer
from client.message import Message
from client.sending.producer import Producer
from model.errors import Refused
from model.message import decode_properties
from tests.client.servers import Pair, routed, run
from tests.waiting import until


def test_a_message_says_when_it_is_to_come() -> None:
    at = Message(topic="T", body=b"x", deliver_at_ms=123).wire_properties("ID")
    assert decode_properties(at)["TIMER_DELIVER_MS"] == "123"
    after = Message(topic="T", body=b"x", deliver_after_ms=0).wire_properties("ID")
    assert decode_properties(after)["TIMER_DELAY_MS"] == "0"


def test_two_ways_to_come_later_are_refused() -> None:
    for wrong in (
        Message(topic="T", body=b"x", deliver_at_ms=1, deliver_after_ms=1),
        Message(topic="T", body=b"x", deliver_at_ms=1, delay_level=1),
    ):
        with pytest.raises(ValueError, match="one of delay_level"):
            wrong.wire_properties("ID")


def test_a_message_comes_later_and_a_recalled_one_does_not(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        servers.broker.config.timer_precision_ms = 100
        servers.broker.config.recall_message_enable = True
        async with Producer(servers.env, "pg", servers.namesrv) as producer:
            await producer.send(Message(topic="Later", body=b"now"))
            (queue, *_) = await routed(servers, "Later")
            at_ms = servers.env.now_ms() + 1500
            gone = await producer.send(Message(topic="Later", body=b"gone", deliver_at_ms=at_ms), queue=queue)
            await producer.send(Message(topic="Later", body=b"stays", deliver_at_ms=at_ms), queue=queue)
            assert gone.recall_handle is not None
            assert await producer.recall("Later", gone.recall_handle) == gone.msg_id
            with pytest.raises(ValueError, match="batch"):
                await producer.send_batch([Message(topic="Later", body=b"x", deliver_after_ms=5)])
            timers = servers.broker.processors.timers
            await until(lambda: timers.wheel.count == 3)
            await until(lambda: timers.wheel.count == 0)
            async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
                found = await consumer.read_all(queue)
            assert [m.body for m in found if m.body != b"now"] == [b"stays"]
            with pytest.raises(Refused, match="timestamp invalid"):
                await producer.recall("Later", gone.recall_handle)

    run(tmp_path, work)
