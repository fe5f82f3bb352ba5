"""The promise of many timer messages due at once: each comes once, and the loop goes round all the while."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker.requests.properties import changed
from broker.service import Broker
from broker.timers.delivery import BATCH, BATCH_BYTES
from model.message import TIMER_TOPIC, UNIQ_KEY
from store.files.record import NewMessage
from store.flow.writing import Put
from tests.broker.helpers import client_of, log_records, running
from tests.waiting import until

MANY = 20_000
AT_ONCE = 500
BIG_BYTES = 700_000


class Turns:
    """What the timers put into the log between two turns of the loop."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages_max = self.bytes_max = 0
        self.bodies: Counter[bytes] = Counter()
        self.turns = 0
        self._messages = self._bytes = 0
        sender = broker.processors.timers._sender
        put = sender.put

        def counted(messages: list[NewMessage], **how: Any) -> list[Put]:
            if not self._messages:
                asyncio.get_running_loop().call_soon(self._next)
            self.bodies.update(bytes(message.body) for message in messages)
            self._messages += len(messages)
            self._bytes += sum(len(message.body) for message in messages)
            self.messages_max = max(self.messages_max, self._messages)
            self.bytes_max = max(self.bytes_max, self._bytes)
            return put(messages, **how)

        monkeypatch.setattr(sender, "put", counted)

    def _next(self) -> None:
        self.turns += 1
        self._messages = self._bytes = 0


async def fill(broker: Broker, count: int, body_bytes: int) -> list[bytes]:
    """So many messages that wait for the second of the one that is there, each with a body of its own."""
    (one,) = (record for record in log_records(broker) if record.topic == TIMER_TOPIC)
    bodies = [b"%d" % number + b"." * body_bytes for number in range(count)]
    for begin in range(0, count, AT_ONCE if not body_bytes else 1):
        part = bodies[begin : begin + (AT_ONCE if not body_bytes else 1)]
        messages = [
            dataclasses.replace(
                one.message(),
                body=body,
                properties=changed(one.properties, {UNIQ_KEY: f"K{begin + number}"}),
            )
            for number, body in enumerate(part)
        ]
        broker.store.put(messages)
        await asyncio.sleep(0)
    return bodies


@pytest.mark.slow
@pytest.mark.parametrize(("count", "body_bytes"), [(MANY, 0), (12, BIG_BYTES)])
async def test_each_comes_once_and_no_turn_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, body_bytes: int
) -> None:
    keys = {"timerPrecisionMs": "1000", "timerStopDequeue": "true"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        at_ms = broker.env.now_ms() + 2000
        await client.send("T", b"first", properties=f"TIMER_DELIVER_MS\x01{at_ms}\x02")
        sent = await fill(broker, count, body_bytes)
        timers = broker.processors.timers
        await until(lambda: timers.wheel.count == count + 1, "all are in the wheel", 100)
        assert len({slot for _, slot in timers.wheel.offsets()}) == 1, "all in one second"
        turns = Turns(broker, monkeypatch)
        broker.config.timer_stop_dequeue = False
        await until(lambda: not timers.wheel.count, "all are delivered", 100)
        assert turns.bodies == Counter([b"first", *sent])
        assert turns.messages_max <= BATCH
        assert turns.bytes_max <= BATCH_BYTES + BIG_BYTES
        assert turns.turns >= count // BATCH
        timers.check_invariants()
        await until(lambda: broker.store.max_queue_offset("T", 0) == count + 1, "all are in the queue", 10)
