"""The promise of broker.state.pace: what a short request has written waits for replication as a send
does, and upkeep that was cut off goes on where it was. Looks by key go on one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.requests.transactions import Transactions
from broker.state.pace import AHEAD_BYTES_MAX
from model.codes import Request
from model.errors import Refused
from model.message import parse_message_id
from remoting.codec import Command
from remoting.headers import SendHeader
from store.files.record import Record
from store.flow.reading import Reader
from tests.broker.halves import HALVES, begin
from tests.broker.helpers import batch_body, client_of, eventually, running

LONG = b"x" * 1_000_000


class Copies:
    """How far the slaves of a broker are, who has none."""

    def __init__(self, confirmed: int) -> None:
        self.confirmed = confirmed


async def test_messages_that_are_handed_back_wait_for_what_is_not_confirmed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        sent = await client.send("T", LONG)
        offset = parse_message_id(sent.ext["msgId"])[1]
        copies = Copies(broker.store.log.end)
        begun = broker.store.log.end
        broker.context.pace.ahead = lambda: broker.store.log.end - copies.confirmed
        ext = {"offset": str(offset), "group": "cg", "delayLevel": "5", "originTopic": "T"}
        connection = await client.connection()
        back = Command(int(Request.CONSUMER_SEND_MSG_BACK), ext)
        asked = [asyncio.create_task(connection.call(back, 30)) for _ in range(12)]
        await eventually(lambda: broker.store.log.end - begun > AHEAD_BYTES_MAX, "some were written")
        for _ in range(50):
            await asyncio.sleep(0)
        short = await client.send("T", b"short")
        assert short.code == 0, "sends do not wait for them"
        assert broker.store.log.end - begun <= AHEAD_BYTES_MAX + 2 * len(LONG), "the others wait"
        while not all(task.done() for task in asked):
            copies.confirmed = broker.store.log.end
            await asyncio.sleep(0.001)
        assert [task.result().code for task in asked] == [0] * 12


async def test_halves_are_asked_about_as_fast_as_they_are_replicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"slaveTimeout": "50", "transactionCheckInterval": "600000"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        for _ in range(8):
            await begin(client, body=LONG)
        await broker.store.caught_up()
        transactions = broker.processors.transactions
        asked: list[int] = []
        ask = Transactions._ask

        def counted(self: Transactions, half: Record) -> None:
            asked.append(half.queue_offset)
            ask(self, half)

        monkeypatch.setattr(Transactions, "_ask", counted)
        monkeypatch.setattr(Transactions, "_is_due", lambda self, half: half.queue_offset < 8)
        copies = Copies(broker.store.log.end)
        broker.context.pace.ahead = lambda: broker.store.log.end - copies.confirmed
        for passes in range(8):  # each is cut off, as the copies do not come on
            if len(asked) == 8:
                break
            try:
                await transactions.check()
            except Refused:
                assert 1 <= len(asked) - 3 * passes <= 3, "no more than little is written ahead"
            copies.confirmed = broker.store.log.end
        assert asked == list(range(8)), "each once: a pass goes on where the one before was cut off"
        assert passes >= 2
        assert broker.store.next_offset(HALVES, 0) == 16


async def test_one_look_by_key_goes_on_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most, steps = 0, 0, 0
    query = Reader.query

    def counted(self: Reader, *asked: Any) -> Iterator[list[bytes] | None]:
        nonlocal under_way, most, steps
        under_way += 1
        most = max(most, under_way)
        try:
            for found in query(self, *asked):
                steps += 1
                yield found
        finally:
            under_way -= 1

    async with running(tmp_path) as broker, client_of(broker) as client:
        sent = SendHeader("pg", "T", 0, 1_700_000_000_000, batch=True)
        for _ in range(2):
            body = batch_body([(b"x", "KEYS\x01BB\x02", 0)] * 200)
            assert (await client.call(Request.SEND_BATCH_MESSAGE, sent.to_ext(), body)).code == 0
        await broker.store.caught_up()
        await broker.store.indexed()
        monkeypatch.setattr(Reader, "query", counted)
        ext = {"topic": "T", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        connection = await client.connection()
        asked = [
            connection.call(Command(int(Request.QUERY_MESSAGE), ext | {"key": "Aa"}), 20) for _ in range(8)
        ]
        assert [answer.code for answer in await asyncio.gather(*asked)] == [22] * 8
        assert steps >= 8 * 3, "each was made in steps: another key has the same hash"
        assert most == 1


async def test_long_messages_of_another_key_are_a_step_each(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(4):
            await client.send("T", LONG, properties="KEYS\x01BB\x02")
        await broker.store.caught_up()
        await broker.store.indexed()
        steps = list(broker.store.reader.query("T", "Aa", 64, 0, 1 << 62))
        assert steps[:-1] == [None] * 3, "between two of them others have a turn"
        assert steps[-1] == []
