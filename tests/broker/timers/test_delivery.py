"""The promises of timer messages on one broker and on a pair: at their time, once, or refused."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from broker.service import Broker
from broker.timers.codec import decode_told
from broker.timers.core import Rules
from broker.timers.delivery import BATCH
from model.codes import Request, Response
from model.message import DELAYED_AS, TIMER_TOPIC, property_of
from model.recall import RecallHandle
from remoting import bodies
from store.files.record import Record
from tests.broker.halves import COMMIT
from tests.broker.helpers import (
    Client,
    batch_body,
    client_of,
    elected,
    eventually,
    log_records,
    pair,
    running,
    topic,
)

QUICK = {"timerPrecisionMs": "100", "recallMessageEnable": "true"}


def after(ms: int) -> str:
    return f"TIMER_DELAY_MS\x01{ms}\x02"


def delivered(broker: Broker, name: str = "T") -> list[Record]:
    return [record for record in log_records(broker) if record.topic == name]


async def recall(client: Client, handle: str, name: str = "T") -> Any:
    ext = {"topic": name, "recallHandle": handle, "producerGroup": "pg"}
    return await client.call(Request.RECALL_MESSAGE, ext)


@pytest.mark.parametrize("how", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
async def test_a_message_comes_at_its_time(tmp_path: Path, how: str) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        begun_ms = broker.env.now_ms()
        value = {"TIMER_DELAY_MS": 500, "TIMER_DELAY_SEC": 1, "TIMER_DELIVER_MS": begun_ms + 500}[how]
        wanted_ms = begun_ms + (1000 if how == "TIMER_DELAY_SEC" else 500)
        answer = await client.send("T", b"later", queue_id=2, properties=f"{how}\x01{value}\x02TAGS\x01a\x02")
        assert answer.code == 0, answer.remark
        sent_ms = broker.env.now_ms()
        (waiting,) = log_records(broker)
        assert (waiting.topic, waiting.queue_id) == (TIMER_TOPIC, 0)
        out_ms = int(property_of(waiting.properties, "TIMER_OUT_MS") or "")
        assert out_ms % 100 == 0
        assert wanted_ms - 100 <= out_ms <= wanted_ms + (sent_ms - begun_ms)
        assert property_of(waiting.properties, "REAL_TOPIC") == "T"
        assert property_of(waiting.properties, "REAL_QID") == "2"
        handle = RecallHandle.decode(answer.ext["recallHandle"], 0)
        assert handle == ("T", "broker-t", str(out_ms + 1), property_of(waiting.properties, "UNIQ_KEY"))
        (found,) = await client.pull_until("T", 0, 1, queue_id=2, tags="a")
        assert wanted_ms <= found.store_timestamp_ms <= out_ms + 100 + 2000
        assert found.store_timestamp_ms >= out_ms + 100
        assert property_of(found.properties, how) == str(value)
        assert int(property_of(found.properties, "TIMER_ENQUEUE_MS") or "") <= waiting.store_timestamp_ms
        dequeued_ms = int(property_of(found.properties, "TIMER_DEQUEUE_MS") or "")
        assert out_ms + 100 <= dequeued_ms <= found.store_timestamp_ms
        assert property_of(found.properties, "REAL_TOPIC") == "T", "it stays, as the original leaves it"
        assert found.body == b"later"


async def test_a_clock_that_goes_back_while_a_slot_leaves_keeps_the_rest_until_it_is_over_again(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        back_ms, count, real_ms, one = 0, 4 * BATCH, broker.env.now_ms, broker.processors.timers._one
        broker.env.now_ms = lambda: real_ms() - back_ms  # type: ignore[method-assign]

        async def and_then_back(record: Record, slot_ms: int, rules: Rules) -> None:
            nonlocal back_ms
            await one(record, slot_ms, rules)
            back_ms = 3_600_000

        broker.processors.timers._one = and_then_back  # type: ignore[method-assign]
        at = f"TIMER_DELIVER_MS\x01{real_ms() + 1500}\x02"
        await asyncio.gather(*(client.send("T", b"%d" % number, properties=at) for number in range(count)))
        await eventually(lambda: len(delivered(broker)) > 0, "the slot is over")
        await asyncio.sleep(0.5)
        came = len(delivered(broker))
        assert came <= BATCH, "the others are early by the clock of now"
        broker.processors.timers._one = one  # type: ignore[method-assign]
        back_ms = 0
        await eventually(lambda: len(delivered(broker)) == count, "it is over again")
        assert len({bytes(record.body) for record in delivered(broker)}) == count
        broker.processors.timers.check_invariants()


@pytest.mark.parametrize("properties", [after(0), after(-5), "TIMER_DELIVER_MS\x0112345\x02"])
async def test_a_message_whose_time_is_over_comes_at_once(tmp_path: Path, properties: str) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        answer = await client.send("T", b"now", properties=properties)
        assert answer.code == 0
        assert "recallHandle" not in answer.ext
        assert [record.topic for record in log_records(broker)] == ["T"]


ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms;"
    " or if set del msg, the delay time should be bigger than the current time"
)


@pytest.mark.parametrize(
    "properties",
    [
        after(259_200_000 + 1),
        "TIMER_DELAY_SEC\x01259201\x02",
        "TIMER_DELAY_SEC\x01tomorrow\x02",
        "TIMER_DELIVER_MS\x019223372036854775807\x02",
        "TIMER_DELIVER_MS\x01100\x02TIMER_DEL_UNIQKEY\x01T+k\x02",
    ],
)
async def test_a_time_that_cannot_be_is_refused_in_the_originals_words(
    tmp_path: Path, properties: str
) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        answer = await client.send("T", properties=properties)
        assert (answer.code, answer.remark) == (Response.MESSAGE_ILLEGAL, ILLEGAL)
        assert log_records(broker) == []
        assert (await client.send("T", properties=after(259_200_000))).code == 0


async def test_where_there_are_no_timer_messages_they_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, timerWheelEnable="false") as broker, client_of(broker) as client:
        answer = await client.send("T", properties=after(500))
        text = "accurate timer message is not enabled, timerWheelEnable is false"
        assert (answer.code, answer.remark) == (Response.SYSTEM_ERROR, text)
        assert (await client.send("T", properties=after(500) + "DELAY\x011\x02")).code == 0
        for code in (Request.GET_TIMER_CHECK_POINT, Request.GET_TIMER_METRICS):
            assert (await client.call(code)).code == Response.SYSTEM_ERROR


async def test_a_delay_level_goes_before_a_time_which_is_taken_out(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T", properties="DELAY\x011\x02" + after(50))).code == 0
        (record,) = log_records(broker)
        assert record.topic == "SCHEDULE_TOPIC_XXXX"
        assert "TIMER" not in record.properties
        assert (await client.send("T", properties="DELAY\x010\x02" + after(5000))).code == 0
        assert log_records(broker)[1].topic == TIMER_TOPIC


async def test_a_batch_for_a_time_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        answer = await client.send("T", batch_body([(b"x", "", 0)]), properties=after(500), batch=True)
        assert answer.code == Response.MESSAGE_ILLEGAL
        assert log_records(broker) == []


async def test_a_slot_takes_no_more_than_twice_its_bound(tmp_path: Path) -> None:
    async with running(tmp_path, timerCongestNumEachSlot="5") as broker, client_of(broker) as client:
        at = f"TIMER_DELIVER_MS\x01{broker.env.now_ms() + 60_000}\x02"
        refused = 0
        for _ in range(200):
            before = broker.processors.timers.read
            answer = await client.send("T", properties=at)
            if answer.code:
                refused += 1
                assert answer.code == Response.SYSTEM_ERROR
                assert (answer.remark or "").startswith(
                    "timer message is under flow control, max num limit is 10"
                )
            else:
                timers = broker.processors.timers
                await eventually(lambda: timers.read > before, "it is in the wheel")  # noqa: B023
            if broker.processors.timers.wheel.count == 10:
                break
        assert broker.processors.timers.wheel.count == 10
        assert (await client.send("T", properties=at)).code == Response.SYSTEM_ERROR
        assert refused > 0, "some of those between"


async def test_a_send_takes_nothing_back_where_recalls_are_not_allowed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        at = f"TIMER_DELIVER_MS\x01{broker.env.now_ms() + 60_000}\x02"
        for half in ("", "TRAN_MSG\x01true\x02"):
            answer = await client.send("T", properties=f"{at}{half}TIMER_DEL_UNIQKEY\x01T+k\x02")
            told = (answer.code, answer.remark)
            assert told == (Response.NO_PERMISSION, "recall failed, operation is forbidden")
        assert log_records(broker) == []


async def test_another_topics_sender_takes_no_timer_message_away(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        at_ms = broker.env.now_ms() + 900
        at = f"TIMER_DELIVER_MS\x01{at_ms}\x02"
        first = await client.send("T", b"stays", properties=at)
        uniq_key = RecallHandle.decode(first.ext["recallHandle"], 0).uniq_key
        for named in (uniq_key, f"T+{uniq_key}"):
            text = f"{at}TIMER_DEL_UNIQKEY\x01{named}\x02"
            assert (await client.send("S", b"mine", properties=text)).code == 0
        forged = RecallHandle("S", "broker-t", str(at_ms), uniq_key).encode()
        assert (await recall(client, forged, "S")).code == 0
        assert [record.body for record in await client.pull_until("T", 0, 1)] == [b"stays"]


@pytest.mark.parametrize("names_topic", [False, True])
async def test_a_recalled_message_does_not_come_and_others_of_its_slot_do(
    tmp_path: Path, names_topic: bool
) -> None:
    keys = {**QUICK, "appendTopicForTimerDeleteKey": str(names_topic).lower()}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        at = f"TIMER_DELIVER_MS\x01{broker.env.now_ms() + 900}\x02"
        first = await client.send("T", b"gone", properties=at)
        await client.send("T", b"stays", properties=at)
        answer = await recall(client, first.ext["recallHandle"])
        assert answer.code == 0, answer.remark
        assert answer.ext["msgId"] == RecallHandle.decode(first.ext["recallHandle"], 0).uniq_key
        (named,) = [property_of(r.properties, "TIMER_DEL_UNIQKEY") for r in log_records(broker)][2:]
        assert (named or "").startswith("T+") is names_topic
        timers = broker.processors.timers
        await eventually(lambda: timers.wheel.count == 3, "all are in the wheel")
        counts = bodies.loads((await client.call(Request.GET_TIMER_METRICS)).body)["timingCount"]
        assert counts["T"]["count"] == 1
        found = await client.pull_until("T", 0, 1)
        await eventually(lambda: timers.wheel.count == 0, "the slot is over")
        assert [record.body for record in found] == [b"stays"]
        assert [record.body for record in delivered(broker)] == [b"stays"]
        counts = bodies.loads((await client.call(Request.GET_TIMER_METRICS)).body)["timingCount"]
        assert counts["T"]["count"] == 0
        assert (await recall(client, first.ext["recallHandle"])).remark == "recall failed, timestamp invalid"


async def test_a_recall_that_names_nothing_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        await client.send("T")
        at = str(broker.env.now_ms() + 5000)
        good = RecallHandle("T", "broker-t", at, "K")
        for handle, name, code, remark in [
            ("nonsense", "T", 604, "recall handle is invalid"),
            (good.encode(), "S", 17, "recall failed, the topic[S] not exist"),
            (good._replace(topic="S").encode(), "T", 604, "recall failed, topic not match"),
            (
                good._replace(broker_name="b").encode(),
                "T",
                604,
                "recall failed, broker service not available",
            ),
            (good._replace(deliver_ms="1").encode(), "T", 604, "recall failed, timestamp invalid"),
            (good._replace(deliver_ms="x").encode(), "T", 604, "recall failed, timestamp invalid"),
            (good._replace(deliver_ms="9" * 15).encode(), "T", 604, "recall failed, timestamp invalid"),
            (good._replace(deliver_ms="9" * 5000).encode(), "T", 604, "recall failed, timestamp invalid"),
        ]:
            answer = await recall(client, handle, name)
            assert (answer.code, answer.remark) == (code, remark)
        broker.config.recall_message_enable = False
        answer = await recall(client, good.encode())
        assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")


async def test_nobody_writes_to_the_timer_topic_or_deletes_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send(TIMER_TOPIC, properties="TIMER_OUT_MS\x010\x02")).code == 16
        answer = await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": TIMER_TOPIC})
        assert answer.code != 0
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(TIMER_TOPIC, 4))).code != 0
        assert broker.topics.table[TIMER_TOPIC].write_queues == 1


async def test_the_runtime_view_tells_how_many_came_and_left_by_second(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        stats, now_ms = broker.context.stats.counters, broker.env.monotonic_ms
        for number in range(2):
            await client.send("T", b"m%d" % number, properties=after(200))
        await client.pull_until("T", 0, 2)
        broker.processors.admin._context.stats.counters.sample(now_ms() + 10_000)
        assert stats.tps("TIMER_DEQUEUE_NUMS", "rmq_sys_wheel_timer") > 0
        view = bodies.loads_object((await client.call(Request.GET_BROKER_RUNTIME_INFO)).body)["table"]
        assert float(view["timerDequeueTps"]) > 0


async def test_how_long_messages_are_to_wait_and_how_late_they_came_is_told_once_each(tmp_path: Path) -> None:
    def told(broker: Broker) -> tuple[dict[str, tuple[int, int]], int]:
        status = broker.processors.timers.status()
        delays = {row["topic"]: (row["counts"][0], row["counts"][-1]) for row in status["delays"]}
        return delays, status["late"]["counts"][-1]

    keys = {**QUICK, "timerRollWindowSlot": "9"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.send("T", b"soon", properties=after(200))
        await client.send("T", b"rolls", properties=after(1500))
        await client.send("T", b"late", properties=after(3_600_000))
        never = await client.send("T", b"never", properties=after(900_000))
        assert (await recall(client, never.ext["recallHandle"])).code == 0
        await client.pull_until("T", 0, 2)
        assert told(broker) == ({"T": (2, 4)}, 2), "a roll is no second message, a recall is none"
        await broker.upkeep.sampling.sample()
        figures = broker.upkeep.sampling.status()
        assert (figures["timersIn"], figures["timersOut"]) == ({"T": 4}, {"T": 2})
        assert broker.processors.timers.status()["behindMessages"] == 0
    async with running(tmp_path, **keys) as broker:
        await eventually(lambda: broker.processors.timers.begun, "the wheel is filled again")
        assert told(broker) == ({}, 0), "the broker before counted them"


async def test_a_restart_delivers_what_waits_and_nothing_twice(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        for number in range(3):
            await client.send("T", b"m%d" % number, properties=after(200))
        await client.send("T", b"late", properties=after(2500))
        await client.pull_until("T", 0, 3)
        await eventually(lambda: broker.tables.timed.note.first == 3, "it is noted")
        told, _ = decode_told((await client.call(Request.GET_TIMER_CHECK_POINT)).body)
        assert told.queue_offset == 4
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        assert broker.tables.timed.note.first == 3
        found = await client.pull_until("T", 0, 4)
        assert [record.body for record in found] == [b"m0", b"m1", b"m2", b"late"]
        assert len(delivered(broker)) == 4


async def test_a_restart_without_its_note_finds_what_was_delivered_in_the_log(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        for number in range(3):
            await client.send("T", b"m%d" % number, properties=after(200))
        await client.pull_until("T", 0, 3)
        await client.send("T", b"late", properties=after(2500))
    (tmp_path / "config" / "timercheck").unlink()
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        found = await client.pull_until("T", 0, 4)
        assert [record.body for record in found] == [b"m0", b"m1", b"m2", b"late"]
        assert [property_of(record.properties, DELAYED_AS) for record in delivered(broker)] == [
            f"timer:{number}" for number in range(4)
        ]


async def test_a_store_of_rocketmq_goes_on_where_its_checkpoint_says(tmp_path: Path) -> None:
    async with running(tmp_path, timerStopDequeue="true", **QUICK) as broker, client_of(broker) as client:
        for body, after_ms in ((b"delivered", 100), (b"waits", 3000), (b"unread", 100)):
            await client.send("T", body, properties=after(after_ms))
        await eventually(lambda: broker.processors.timers.read == 3, "all are in the wheel")
        read_ms = broker.env.now_ms() + 1000
    await asyncio.sleep(0.3)  # what is unread is due before the next start
    check = struct.pack(">7q", read_ms, 104, 2, 2, 0, 0, 0).ljust(4096, b"\0")
    (tmp_path / "config" / "timercheck").write_bytes(check)
    (tmp_path / "timerwheel").write_bytes(bytes(64))
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "timerlog" / f"{0:020}").write_bytes(bytes(104))
    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        found = await client.pull_until("T", 0, 2)
        assert [record.body for record in found] == [b"unread", b"waits"]
        unread, waits = (property_of(record.properties, "TIMER_ENQUEUE_MS") for record in found)
        assert unread == str(2**63 - 1), "it was late when it was taken up"
        assert waits != unread
        await eventually(lambda: broker.tables.timed.note.first == 3, "it is noted")
    assert not (tmp_path / "timerwheel").exists(), "out of date"
    assert not (tmp_path / "timerlog").exists()


@pytest.mark.parametrize("times", ["9" * 4300, "9" * 20, "\u0663"])
async def test_what_a_client_says_of_its_rolls_stops_no_other_message(tmp_path: Path, times: str) -> None:
    """Python makes no text of a number of more than 4,300 digits: delivery failed at it for ever."""
    async with running(tmp_path, **QUICK, timerRollWindowSlot="3") as broker, client_of(broker) as client:
        odd = after(800) + f"TIMER_ROLL_TIMES\x01{times}\x02"
        assert (await client.send("T", b"odd", properties=odd)).code == 0
        assert (await client.send("T", b"calm", properties=after(800))).code == 0
        found = await client.pull_until("T", 0, 2)
        assert {record.body for record in found} == {b"odd", b"calm"}


async def test_a_message_rolls_on_until_its_time(tmp_path: Path) -> None:
    keys = {**QUICK, "timerRollWindowSlot": "9"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        begun_ms = broker.env.now_ms()
        first = await client.send("T", b"far", properties=after(2600))
        second = await client.send("T", b"never", properties=after(2600))
        assert first.code == 0
        assert (await recall(client, second.ext["recallHandle"])).code == 0
        (found,) = await client.pull_until("T", 0, 1)
        assert found.store_timestamp_ms - begun_ms >= 2600
        assert int(property_of(found.properties, "TIMER_ROLL_TIMES") or "") >= 2
        await asyncio.sleep(0.3)
        assert [record.body for record in delivered(broker)] == [b"far"]


@pytest.mark.parametrize(
    ("slots", "keys"),
    [
        (30, {"timerRollWindowSlot": "3000"}),
        (30, {"timerPrecisionMs": "1000"}),
        (3000, {"timerRollWindowSlot": "6"}),
    ],
)
async def test_messages_that_wait_come_once_after_a_restart_with_another_window_or_precision(
    tmp_path: Path, slots: int, keys: dict[str, str]
) -> None:
    """What had rolled was taken for waiting where it had been, too, and came twice; so did what had not, and
    was delivered, as it should have rolled by a smaller window."""
    quick = {**QUICK, "timerRollWindowSlot": str(slots)}
    async with running(tmp_path, **quick) as broker, client_of(broker) as client:
        begun_ms = broker.env.now_ms()
        sent = {b"held": 2800, b"m0": 3300, b"m1": 3300, b"noted": 700, b"over": 1200, b"last": 1700}
        for body, after_ms in sent.items():  # what is held keeps the note from going behind the others
            assert (await client.send("T", body, properties=after(after_ms))).code == 0
        rolled = 8 if slots == 30 else 6
        store = broker.store
        await eventually(lambda: store.max_queue_offset(TIMER_TOPIC, 0) == rolled, "they rolled, if they do")
        await eventually(lambda: len(delivered(broker)) == 3, "the others came")
        await eventually(lambda: broker.tables.timed.note.read_ms > begun_ms + 1100, "it is noted")
        assert broker.tables.timed.note.first == 0
    async with running(tmp_path, **{**quick, **keys}) as broker, client_of(broker) as client:
        await client.pull_until("T", 0, 6)
        await eventually(lambda: broker.processors.timers.wheel.count == 0, "nothing waits")
        found = delivered(broker)
        assert sorted(record.body for record in found) == sorted(sent)
        assert all(record.store_timestamp_ms >= begun_ms + sent[record.body] for record in found)


async def test_a_successor_delivers_once_what_the_former_master_delivered_unnoted_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = "3600000"
    async with pair(tmp_path, slaveSyncMetadataPeriod=never, **QUICK) as (one, two), client_of(one) as client:
        await eventually(lambda: two.topics.version == one.topics.version, "the first copy")
        monkeypatch.setattr(one.context.copies, "changed", lambda name: None)
        for number in range(3):
            answer = await client.send("T", b"m%d" % number, properties=after(300))
            assert answer.code == 0, answer.remark
        late = await client.send("T", b"m3", properties=after(2500))
        gone = await client.send("T", b"gone", properties=after(2500))
        assert late.code == 0
        assert (await recall(client, gone.ext["recallHandle"])).code == 0
        await client.pull_until("T", 0, 3)
        await eventually(lambda: two.store.log.end == one.store.log.end, "the copies are on the slave")
        assert two.tables.timed.note.queue_offset == 0
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        async with client_of(two) as other:
            found = await other.pull_until("T", 0, 4)
            assert [record.body for record in found] == [b"m0", b"m1", b"m2", b"m3"]
            await eventually(lambda: two.processors.timers.wheel.count == 0, "nothing waits")
            await eventually(lambda: two.tables.timed.note.first == 6, "it is noted")
            assert two.store.max_queue_offset("T", 0) == 4


async def test_a_client_marks_no_timer_message_as_delivered(tmp_path: Path) -> None:
    """A successor looks for the marks of copies; those of a client, alone or in a batch, are none."""
    async with pair(tmp_path, **QUICK) as (one, two), client_of(one) as client:
        for number in range(2):
            answer = await client.send("T", b"timer%d" % number, properties=after(2000))
            assert answer.code == 0
        marks = [f"{DELAYED_AS}\x01timer:{number}\x02" for number in range(2)]
        assert (await client.send("T", b"forged", properties=marks[0])).code == 0
        batch = batch_body([(b"forged", marks[1], 0)])
        assert (await client.send("T", batch, batch=True)).code == 0
        await eventually(lambda: two.store.log.end == one.store.log.end, "all is on the slave")
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        async with client_of(two) as other:
            found = await other.pull_until("T", 0, 4)
            assert {record.body for record in found} == {b"forged", b"timer0", b"timer1"}


async def test_a_slave_has_the_note_of_its_master(tmp_path: Path) -> None:
    async with pair(tmp_path, **QUICK) as (one, two), client_of(one) as client:
        assert (await client.send("T", properties=after(300))).code == 0
        await client.pull_until("T", 0, 1)
        await eventually(lambda: one.tables.timed.note.first == 1, "the master notes it")
        await eventually(lambda: two.tables.timed.note == one.tables.timed.note, "and its slave")
        path = tmp_path / "two" / "config" / "timercheck"
        await eventually(path.exists, "on its disk, too")


async def test_the_note_does_not_move_before_the_copy_is_confirmed(tmp_path: Path) -> None:
    async with pair(tmp_path, **QUICK) as (one, _), client_of(one) as client:
        assert (await client.send("T", properties=after(300))).code == 0
        await eventually(lambda: one.tables.timed.note.queue_offset == 1, "it is in the wheel")
        one.store.confirm = lambda offset: None  # type: ignore[method-assign]
        await eventually(lambda: len(delivered(one)) == 1, "its copy is written")
        await asyncio.sleep(0.3)
        assert one.tables.timed.note.first == 0, "a failover now may cut the copy"
        del one.store.confirm
        one.store.confirm(one.store.log.end)
        await eventually(lambda: one.tables.timed.note.first == 1, "it is noted")
        one.processors.timers.check_invariants()


async def test_a_transaction_comes_at_its_time_once_it_is_committed(tmp_path: Path) -> None:

    async with running(tmp_path, **QUICK) as broker, client_of(broker) as client:
        half = await client.send("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02" + after(600))
        assert half.code == 0, half.remark
        from model.message import parse_message_id
        from remoting.headers import EndTransactionHeader

        offset = parse_message_id(half.ext["msgId"])[1]
        end = EndTransactionHeader(
            "pg", int(half.ext["queueOffset"]), offset, COMMIT, half.ext["transactionId"]
        )
        begun_ms = broker.env.now_ms()
        answer = await client.call(Request.END_TRANSACTION, end.to_ext())
        assert answer.code == 0, answer.remark
        (found,) = await client.pull_until("T", 0, 1)
        assert found.store_timestamp_ms >= begun_ms + 600
