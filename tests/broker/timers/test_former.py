"""The promise of broker.timers.former: what a former master delivered is found, also where messages that
waited before it cannot be read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.service import Broker
from broker.timers.core import Entry, Note, Rules, entry_of
from broker.timers.former import FormerCopies
from model.errors import DiskError
from model.message import TIMER_TOPIC
from store.files.record import Record
from store.flow.reading import GetStatus, Got
from tests.broker.helpers import client_of, elected, eventually, log_records, running

QUICK = {"timerPrecisionMs": "100"}
COUNT = 5
UNREADABLE = 3


def break_entries(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in a row stand for no record, and no replica can say which: a read passes over one only."""
    queue = broker.store.files.queues.get(TIMER_TOPIC, 0)
    assert queue is not None
    for index in range(UNREADABLE):
        queue.patch(index, 0, 1, 0)
    monkeypatch.setattr(broker.store.reader, "mend_entry", lambda topic, queue_id, index: False)


def drop_entries(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log does not go so far back any more."""
    queue = broker.store.files.queues.get(TIMER_TOPIC, 0)
    assert queue is not None
    queue.min_offset = UNREADABLE


def entry(record: Record, broker: Broker) -> Entry:
    rules = Rules.of(broker.config)
    found = entry_of(record.properties, record.queue_offset, record.store_timestamp_ms, rules)
    assert found is not None
    return found


@pytest.mark.parametrize("lose", [None, break_entries, drop_entries])
async def test_what_was_delivered_is_found_whatever_became_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: object
) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        for number in range(COUNT):
            await client.send("T", b"m%d" % number, properties="TIMER_DELAY_MS\x01200\x02")
        await client.pull_until("T", 0, COUNT)
        waiting = [record for record in log_records(broker) if record.topic == TIMER_TOPIC]
        if callable(lose):
            lose(broker, monkeypatch)
        former = await FormerCopies.of(broker.store, Note(), COUNT, broker.store.log.end)
        for record in waiting[UNREADABLE:]:
            assert await former.has(entry(record, broker), ("T", 0)), "it would be delivered twice"


async def test_what_was_delivered_is_found_though_a_clock_ahead_noted_a_time_behind_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        for number in range(COUNT):
            await client.send("T", b"m%d" % number, properties="TIMER_DELAY_MS\x01200\x02")
        await client.pull_until("T", 0, COUNT)
        waiting = [record for record in log_records(broker) if record.topic == TIMER_TOPIC]
        noted = Note(read_ms=broker.env.now_ms() + 3_600_000)
        former = await FormerCopies.of(broker.store, noted, COUNT, broker.store.log.end)
        for record in waiting:
            assert await former.has(entry(record, broker), ("T", 0)), "it would be delivered twice"


async def test_nothing_is_delivered_while_the_first_cannot_be_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        await client.send("T", b"m", properties="TIMER_DELAY_MS\x01200\x02")
        await client.pull_until("T", 0, 1)
        nothing = Got(GetStatus.OFFSET_FOUND_NULL, 0, 0, 1, [], 0)
        monkeypatch.setattr(broker.store, "get", lambda *_: nothing)
        with pytest.raises(OSError, match="OFFSET_FOUND_NULL at 0"):
            await FormerCopies.of(broker.store, Note(), 1, broker.store.log.end)


async def test_where_none_waits_nothing_is_looked_for(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as broker:
        await FormerCopies.of(broker.store, Note(), 0, broker.store.log.end)


async def test_a_message_of_the_queue_that_cannot_be_read_holds_back_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        await client.send("T", b"timer", properties="TIMER_DELAY_MS\x01600\x02")
        for number in range(COUNT):
            await client.send("T", b"m%d" % number)
        broken = broker.store.place_of("T", 0, 1)
        read = broker.store.log.read

        def fails(offset: int, size: int) -> bytes:
            if broken is not None and offset <= broken < offset + size:
                raise DiskError("EIO")
            return read(offset, size)

        await broker.fence()
        monkeypatch.setattr(broker.store.log, "read", fails)
        await broker.lead(elected(0, 0, (), 0))
        await eventually(lambda: broker.store.max_queue_offset("T", 0) > COUNT, "the timer message")
