"""The promises of what the shell's commands decide and show, without a cluster."""

from __future__ import annotations

import dataclasses

import pytest

from admin.commands.messaging.altering import Change, in_words, loss
from admin.commands.messaging.consumer import described, rows_of
from admin.commands.reach import ago
from admin.commands.shown import BODY_CHARS_MAX, in_full, line, received_json, short_line
from client.admin import ConsumeStats
from client.consumer_groups import Member, Online
from client.message import Queue, Received
from model.errors import Refused
from model.topic import TopicConfig
from tests.client.servers import received

HELD = TopicConfig("orders", 8, 8, 6, attributes={"message.type": "FIFO"})


def test_what_a_change_does_not_name_stays() -> None:
    assert Change().is_empty
    assert Change().applied(HELD) == HELD
    after = Change(write_queues=4, perm=4, attributes={"-message.type": "", "+reserve.time": "7"}).applied(
        HELD
    )
    assert (after.read_queues, after.write_queues, after.perm) == (8, 4, 4)
    assert after.attributes == {"reserve.time": "7"}
    assert in_words(after) == "8 queues to read, 4 to write, perm r, reserve.time=7"
    assert in_words(HELD) == "8 queues, perm rw, message.type=FIFO"
    assert HELD.attributes == {"message.type": "FIFO"}
    change = Change(attributes={"-message.type": "", "+reserve.time": "7"})
    assert change.attributes_text == "-message.type,+reserve.time=7"


def test_an_attribute_named_twice_is_refused() -> None:
    with pytest.raises(Refused, match="duplication"):
        Change(attributes={"-message.type": "", "+message.type": "NORMAL"}).applied(HELD)


def stats(queue_id: int, end: int, read_to: int, last_ms: int = 0) -> ConsumeStats:
    return ConsumeStats(Queue("orders", "broker-a", queue_id), end, read_to, last_ms)


def test_a_queue_goes_when_everybody_has_read_it() -> None:
    fewer = dataclasses.replace(HELD, read_queues=4, write_queues=4)
    assert "billing has 3 messages" in loss("broker-a", HELD, fewer, {"billing": [stats(4, 5, 2)]})
    assert loss("broker-a", HELD, fewer, {"billing": [stats(3, 5, 2), stats(4, 5, 5)]}) == ""
    assert loss("broker-a", HELD, HELD, {"billing": [stats(4, 5, 2)]}) == ""


def test_a_queue_that_is_written_to_is_read() -> None:
    assert "--queues changes both" in loss("broker-a", HELD, dataclasses.replace(HELD, write_queues=9), {})
    assert loss("broker-a", HELD, dataclasses.replace(HELD, write_queues=7), {}) == ""
    nobody_reads = dataclasses.replace(HELD, write_queues=9, perm=2)
    assert loss("broker-a", HELD, nobody_reads, {}) == ""


@pytest.mark.parametrize(
    ("past", "text"),
    [
        (0, "-"),
        (1, "2d"),
        (172_800_001 - 7_200_000, "2h"),
        (172_800_001 - 59_999, "59s"),
        (172_900_000, "0s"),
    ],
)
def test_a_time_is_said_in_its_largest_unit(past: int, text: str) -> None:
    assert ago(past, 172_800_001) == text


def test_lag_is_shown_with_its_member_and_how_far_behind_in_time_it_is() -> None:
    every = [stats(0, 9, 9, 5_000), stats(1, 9, 4, 5_000), stats(2, 9, 0)]
    readers = {every[1].queue: "one"}
    rows = rows_of(every, readers, now_ms=65_000)
    assert [row[5:] for row in rows] == [(0, "0s", "-"), (5, "1m", "one"), (9, "-", "-")]
    member = Member("one", "10.0.0.9:5", "JAVA", 479)
    found = described("billing", Online((member,), (("orders", "*"),)), every, readers)
    assert found["lag"] == 14
    assert [q["member"] for q in found["queues"]] == [None, "one", None]  # type: ignore[attr-defined]


def message(body: bytes) -> Received:
    return dataclasses.replace(
        received({"KEYS": "4711 4712", "TAGS": "paid", "UNIQ_KEY": "ID"}),
        queue=Queue("orders", "broker-a", 3),
        queue_offset=17,
        offset_msg_id="OFFSET",
        body=body,
        born_timestamp_ms=1_000,
        store_timestamp_ms=2_500,
        born_host="10.0.0.9:5",
        store_host="10.0.0.1:10911",
        size_bytes=200,
        stored_topic="orders",
    )


def test_a_message_is_shown_without_control_characters() -> None:
    at = "1970-01-01T00:00:02.500+00:00  orders@broker-a/3:17"
    assert line(message(b"a\x1b[2J\n")) == rf"{at}  tag=paid  keys=4711,4712  a\x1b[2J\n"
    assert short_line(message(b"b")) == f"{at}  ID  tag=paid  keys=4711,4712  b"
    long = short_line(message(b"x" * 1000))
    assert long.endswith("x...")
    assert len(long) < BODY_CHARS_MAX + 80
    full = in_full(message(b"\xff\x00"))
    assert "stored       1970-01-01T00:00:02.500+00:00 at 10.0.0.1:10911" in full
    assert full.endswith(r"body         \xff\x00")
    assert received_json(message(b"c"))["keys"] == ["4711", "4712"]
