"""The promise of broker.upkeep.delay: what is due comes, whatever lies before it; no note runs ahead."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from broker.requests.properties import changed
from broker.upkeep.delay import BATCH
from model.codes import Request, Response
from model.message import DELAYED_AS, PROPERTIES_BYTES_MAX, SCHEDULE_TOPIC, property_of
from model.topic import SubscriptionGroupConfig
from remoting.headers import SendBackHeader, SendHeader
from store.files.record import NewMessage, Record
from store.flow.reading import GetStatus, Got
from tests.broker.helpers import Client, client_of, elected, eventually, log_records, pair, running

SOON = "DELAY\x011\x02"


async def send_without_wait(client: Client, body: bytes, properties: str) -> None:
    """The copy of such a message gets a property it did not have."""
    text = f"UNIQ_KEY\x01{body.hex().zfill(32)}\x02{properties}"
    ext = SendHeader("pg", "T", 0, 1_700_000_000_000, properties=text).to_ext()
    answer = await client.call(Request.SEND_MESSAGE_V2, ext, body)
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("spare", [0, 1, 3, 12, 40])
async def test_a_delayed_message_with_the_longest_properties_comes_and_holds_nobody_up(
    tmp_path: Path, spare: int
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await send_without_wait(client, b"probe", SOON)
        (probe,) = log_records(broker)
        room = PROPERTIES_BYTES_MAX - spare - len(probe.properties.encode())
        await send_without_wait(client, b"long!", f"{SOON}f\x01{'x' * (room - 3)}\x02")
        await send_without_wait(client, b"after", SOON)
        async with asyncio.timeout(10):
            found = await client.pull_until("T", 0, 3)
        assert [record.body for record in found] == [b"probe", b"long!", b"after"]
        assert len(property_of(found[1].properties, "f") or "") == room - 3
        assert property_of(found[2].properties, DELAYED_AS) == "1:2"


async def test_the_note_does_not_step_over_entries_without_messages_before_what_lies_before_is_confirmed(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (one, _), client_of(one) as client:
        await client.send("T", b"due", properties=SOON)
        one.store.confirm = lambda offset: None  # type: ignore[method-assign]
        get = one.store.get

        def damaged_behind(topic: str, queue_id: int, offset: int, *rest: object) -> Got:
            if topic == "SCHEDULE_TOPIC_XXXX" and queue_id == 0 and offset > 0:
                status = GetStatus.NO_MATCHED if offset == 1 else GetStatus.OFFSET_OVERFLOW_ONE
                return Got(status, 2, 0, 2, [], 0)
            return get(topic, queue_id, offset, *rest)  # type: ignore[arg-type]

        one.store.get = damaged_behind  # type: ignore[method-assign, assignment]
        await eventually(
            lambda: any(record.topic == "T" for record in log_records(one)), "its copy is written"
        )
        await asyncio.sleep(0.3)
        assert one.delays.table.get(1, 0) == 0, "a failover now may cut the copy"
        del one.store.confirm
        one.store.confirm(one.store.log.end)
        await eventually(lambda: one.delays.table.get(1) == 2, "it steps over them then")


async def test_what_was_delivered_is_not_delivered_again_by_a_successor_whose_clock_is_behind(
    tmp_path: Path,
) -> None:
    behind_ms = 5000
    async with pair(tmp_path) as (one, two), client_of(one) as old, client_of(two) as new:
        one.processors.delay._remember = lambda level, offset: None  # type: ignore[method-assign]
        real_ms = two.env.now_ms
        two.env.now_ms = lambda: real_ms() - behind_ms  # type: ignore[method-assign]
        await old.send("T", b"due", properties=SOON)
        await old.pull_until("T", 0, 1)
        await eventually(lambda: two.store.log.end == one.store.log.end, "the successor has the copy")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await new.send("T", b"next")
        await eventually(lambda: two.store.dispatched == two.store.log.end, "it serves")
        await asyncio.sleep(0.3)
        behind_ms = 0  # time went by
        await eventually(lambda: two.delays.table.get(1) == 1, "it knows that it was delivered")
        found = [record for record in log_records(two) if record.topic == "T"]
        assert [record.body for record in found] == [b"due", b"next"]
        times = [record.store_timestamp_ms for record in found]
        assert times == sorted(times), "a queue is searched by time: its times must not go back"


async def test_what_was_delivered_is_not_delivered_again_by_a_successor_with_longer_levels(
    tmp_path: Path,
) -> None:
    """Of a rolling change of messageDelayLevel: what was due by the old one had come before it is by the new
    (swarm, seed 8831)."""
    async with pair(tmp_path) as (one, two), client_of(one) as old, client_of(two) as new:
        one.processors.delay._remember = lambda level, offset: None  # type: ignore[method-assign]
        two.processors.delay._levels_ms = [0, 2_500]
        await old.send("T", b"due", properties=SOON)
        await old.pull_until("T", 0, 1)
        await eventually(lambda: two.store.log.end == one.store.log.end, "the successor has the copy")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await new.send("T", b"later", properties=SOON)
        await eventually(lambda: two.delays.table.get(1) == 2, "both are delivered")
        found = [record for record in log_records(two) if record.topic == "T"]
        assert [record.body for record in found] == [b"due", b"later"]


async def test_entries_without_messages_end_no_look_for_what_was_delivered(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        one.processors.delay._remember = lambda level, offset: None  # type: ignore[method-assign]
        bodies = [b"0", b"1", b"2", b"3"]
        for body in bodies:
            await client.send("T", body, properties=SOON)
        await client.pull_until("T", 0, 4)
        await eventually(lambda: two.store.log.end == one.store.log.end, "the successor has the copies")
        get = two.store.get

        def damaged(topic: str, queue_id: int, offset: int, count: int, *rest: object) -> Got:
            if topic == SCHEDULE_TOPIC and 0 < offset < 3:
                return Got(GetStatus.NO_MATCHED, 3, 0, 4, [], 0)
            count = 1 if topic == SCHEDULE_TOPIC and offset == 0 else count
            return get(topic, queue_id, offset, count, *rest)  # type: ignore[arg-type]

        two.store.get = damaged  # type: ignore[method-assign, assignment]
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        await eventually(lambda: two.delays.table.get(1) == 4, "it knows that they were delivered")
        found = [record.body for record in log_records(two) if record.topic == "T"]
        assert found == bodies, "each once"


async def test_what_was_delivered_is_not_delivered_again_when_a_former_clock_was_an_hour_ahead(
    tmp_path: Path,
) -> None:
    """The copy's store time lies before the message was due: a search by time would pass over it."""
    async with pair(tmp_path) as (one, two), client_of(one) as old, client_of(two) as new:
        real_ms = one.env.now_ms
        one.store.writer._now_ms = lambda: real_ms() + 3_600_000
        one.processors.delay._deliver = None  # type: ignore[assignment, method-assign]
        await old.send("T", b"before")
        await old.send("T", b"due", properties=SOON)
        await eventually(lambda: two.store.log.end == one.store.log.end, "the successor has the message")
        await one.fence()
        remember = two.processors.delay._remember
        two.processors.delay._remember = lambda level, offset: None  # type: ignore[method-assign]
        await two.lead(elected(2, 2, {2}, 3))
        await new.pull_until("T", 0, 2)
        await new.send("T", b"next")
        await two.fence()
        two.processors.delay._remember = remember  # type: ignore[method-assign]
        await two.lead(elected(2, 3, {2}, 4))
        await eventually(lambda: two.delays.table.get(1) == 1, "it knows that it was delivered")
        found = [record.body for record in log_records(two) if record.topic == "T"]
        assert found == [b"before", b"due", b"next"]


async def test_a_message_stored_by_a_clock_that_was_an_hour_ahead_does_not_wait_for_that_hour(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        real_ms = broker.env.now_ms
        broker.env.now_ms = lambda: real_ms() + 3_600_000  # type: ignore[method-assign]
        await client.send("T", b"early", properties=SOON)
        broker.env.now_ms = real_ms  # type: ignore[method-assign]
        await client.pull_until("T", 0, 1)


async def test_others_have_their_turn_while_very_many_messages_are_due(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        delay = broker.processors.delay
        due, delivered = False, 0
        deliver = delay._deliver

        def counted(record: Record, level: int) -> int:
            nonlocal delivered
            delivered += 1
            return deliver(record, level)

        delay._deliver = counted  # type: ignore[method-assign]
        delay._due = lambda record, level: due  # type: ignore[method-assign]
        for level in (1, 2):
            text = f"DELAY\x01{level}\x02"
            await asyncio.gather(*(client.send("T", properties=text) for _ in range(150)))
        await broker.store.caught_up()
        due, turns = True, [0]
        async with asyncio.timeout(10):
            while delivered < 300:
                await asyncio.sleep(0)
                turns.append(delivered)
        assert max(after - before for before, after in itertools.pairwise(turns)) <= BATCH
        await eventually(lambda: broker.delays.table == {1: 150, 2: 150}, "each once, and noted")
        assert delivered == 300


LONG: str = "g" * 250
"""A consumer group of an older table may be called so, but no folder after its retry topic."""


async def test_a_message_that_could_never_be_delivered_is_not_taken_and_holds_nobody_up(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"first")
        await broker.store.caught_up()
        broker.groups.put(SubscriptionGroupConfig(LONG))
        back = SendBackHeader(0, LONG, 1).to_ext()
        assert (await client.call(Request.CONSUMER_SEND_MSG_BACK, back)).code == Response.MESSAGE_ILLEGAL
        for properties in (SOON, "TRAN_MSG\x01true\x02"):
            answer = await client.send(f"%RETRY%{LONG}", properties=properties)
            assert answer.code == Response.MESSAGE_ILLEGAL
        assert [record.topic for record in log_records(broker)] == ["T"]


@pytest.mark.parametrize(
    ("name", "queue"), [(f"%RETRY%{LONG}", "0"), ("T", str(2**31)), ("T", "\u00b2"), ("a/b", "0")]
)
async def test_a_delayed_message_that_belongs_nowhere_holds_nobody_up(
    tmp_path: Path, name: str, queue: str
) -> None:
    """Such a one may lie in the log of a real broker."""

    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"first")
        (record,) = log_records(broker)
        text = changed(record.properties, {"DELAY": "1", "REAL_TOPIC": name, "REAL_QID": queue})
        forged = NewMessage(
            topic=SCHEDULE_TOPIC,
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            store_host=record.store_host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"nowhere",
            properties=text,
        )
        broker.store.put(forged)
        await client.send("T", b"after", properties=SOON)
        async with asyncio.timeout(10):
            found = await client.pull_until("T", 0, 2)
        assert [record.body for record in found] == [b"first", b"after"]
        # Nor does it keep a successor from seeing what was delivered behind it.
        await broker.fence()
        broker.delays.table[1] = 0
        await broker.lead(elected(0, 0, (), 0))
        await client.send("T", b"later", properties=SOON)
        async with asyncio.timeout(10):
            found = await client.pull_until("T", 0, 3)
        assert [record.body for record in found] == [b"first", b"after", b"later"]


async def test_a_master_tells_of_messages_that_wait_at_a_level_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, messageDelayLevel="1s 1s 2s") as broker, client_of(broker) as client:
        await client.send("T", b"gone", properties="DELAY\x013\x02")
        await client.send("T", b"there", properties=SOON)
        await client.pull_until("T", 0, 1)
        await eventually(lambda: broker.delays.table.get(1) == 1, "it is noted")
    assert "do not come" not in caplog.text
    async with running(tmp_path, messageDelayLevel="1s 1s") as broker:
        await eventually(lambda: "do not come" in caplog.text, "it is told")
        assert "1 delayed messages of level 3 do not come: messageDelayLevel has 2 levels" in caplog.text
        assert "of level 1 " not in caplog.text
    async with running(tmp_path, messageDelayLevel="1s 1s 2s") as broker, client_of(broker) as client:
        found = await client.pull_until("T", 0, 2)
        assert [record.body for record in found] == [b"there", b"gone"]
