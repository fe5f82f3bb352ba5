"""The promise of the pop texts and bodies: they are the original's, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.consumers.pop.codec import Ack, Checkpoint
from model import pop
from model.errors import PeerError
from model.pop import ExtraInfo
from remoting.pop_acks import BatchAck


def test_retry_topics_are_named_as_the_original_does() -> None:
    # KeyBuilderTest
    assert pop.pop_retry_topic("test-topic", "test-group", v2=True) == "%RETRY%test-group+test-topic"
    assert pop.pop_retry_topic("test-topic", "test-group", v2=False) == "%RETRY%test-group_test-topic"
    assert pop.normal_topic("%RETRY%test-group+test-topic", "test-group") == "test-topic"
    assert pop.normal_topic("%RETRY%test-group_test-topic", "test-group") == "test-topic"
    assert pop.normal_topic("test-topic", "test-group") == "test-topic"
    assert pop.retry_kind("test-topic") == "0"
    assert pop.retry_kind("%RETRY%test-group_test-topic") == "1"
    assert pop.retry_kind("%RETRY%test-group+test-topic") == "2"
    assert pop.revive_topic("DefaultCluster") == "rmq_sys_REVIVE_LOG_DefaultCluster"


def test_order_counts_are_found_by_queue_and_by_offset() -> None:
    # ExtraInfoUtilTest.testOrderCountInfo
    text = pop.order_counts_text("TOPIC", 0, {1234: 2}, 1)
    assert text == "0 qo0%1234 2;0 0 1"
    found = pop.parse_start_offsets(text)
    assert found[pop.offsets_key("TOPIC", 0)] == 1
    assert found[pop.order_key("TOPIC", 0, 1234)] == 2


def test_extra_info_has_a_blank_between_its_parts() -> None:
    info = ExtraInfo(10, 1670212915531, 60000, 3, "0", "broker-a", 2, 11)
    assert info.to_text() == "10 1670212915531 60000 3 0 broker-a 2 11"
    assert ExtraInfo.parse(info.to_text()) == info
    assert ExtraInfo.parse("10 1670212915531 60000 999 1 broker-a 2").in_order


@pytest.mark.parametrize("more", ["123098", "-1", "x y"])
def test_what_a_proxy_writes_behind_the_offset_is_passed_over(more: str) -> None:
    # ReceiptHandle.encode of the proxy: where the message lies in the CommitLog is the ninth part
    assert ExtraInfo.parse(f"1 2 3 4 0 b 6 7 {more}") == ExtraInfo.parse("1 2 3 4 0 b 6 7")


@pytest.mark.parametrize(
    "text", ["", "1", "1 2 3 4 0 b", "1 2 3 4 5 b 6", "x 2 3 4 0 b 6", "-1 2 3 4 0 b 6", "1 2 3 4 0 b 6 x 8"]
)
def test_what_is_no_extra_info_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ExtraInfo.parse(text)


def test_offsets_of_several_queues_stand_in_one_text() -> None:
    rows = [("T", 0, [5, 7]), ("%RETRY%g_T", 0, [1])]
    assert pop.message_offsets_text(rows) == "0 0 5,7;1 0 1"
    assert pop.parse_message_offsets("0 0 5,7;1 0 1") == {"0@0": [5, 7], "1@0": [1]}
    assert pop.start_offsets_text([("T", 0, 5), ("%RETRY%g+T", 0, 1)]) == "0 0 5;2 0 1"
    with pytest.raises(ValueError):
        pop.parse_start_offsets("0 0 5;0 0 6")


def test_a_checkpoint_has_the_members_of_the_original() -> None:
    point = Checkpoint(5, 1000, 60000, 2, "T", "g", "broker-a", [0, 2])
    assert point.encode() == (
        b'{"bm":0,"bn":"broker-a","c":"g","d":[0,2],"it":60000,"n":2,"pt":1000,"q":2,'
        b'"reviveTime":61000,"ro":0,"so":5,"t":"T"}'
    )
    assert Checkpoint.parse(point.encode()) == point
    assert point.unique_id() == "T@2@5@g@1000@broker-a@ck"
    point.ack(7)
    assert point.unacked() == [5]
    point.ack(6)
    assert point.unacked() == [5], "6 was not popped"


def test_a_checkpoint_of_what_was_put_off_says_so() -> None:
    point = Checkpoint(5, 1000, 60000, 2, "T", "g", "broker-a", [0], suspended=True)
    assert b'"sp":true' in point.encode()
    assert Checkpoint.parse(point.encode()) == point
    assert Checkpoint.parse(point.encode().replace(b'"sp"', b'"suspend"')) == point


def test_a_checkpoint_of_the_first_versions_names_no_offsets() -> None:
    found = Checkpoint.parse(b'{"so":5,"pt":1,"it":2,"bm":0,"n":3,"q":0,"t":"T","c":"g"}')
    assert found.unacked() == [5, 6, 7]


def test_a_checkpoint_is_read_by_long_names() -> None:
    # as the classes of 5.5.0 write it where their annotations are not seen
    long = (
        b'{"bitMap":0,"brokerName":"broker-a","cId":"g","invisibleTime":60000,"num":2,"popTime":1000,"queueId":2,'
        b'"queueOffsetDiff":[0,2],"reviveOffset":0,"reviveTime":61000,"startOffset":5,"suspend":false,"topic":"T"}'
    )
    assert Checkpoint.parse(long) == Checkpoint(5, 1000, 60000, 2, "T", "g", "broker-a", [0, 2])


def test_acks_are_read_by_long_and_short_names() -> None:
    # AckMsgTest, BatchAckMsgTest
    long = (
        b'{"ackOffset":100,"brokerName":"brokerName","consumerGroup":"group","popTime":1670212915531,'
        b'"queueId":3,"startOffset":200,"topic":"topic"}'
    )
    ack = Ack([100], 200, "group", "topic", 3, 1670212915531, "brokerName")
    assert Ack.parse(long, batch=False) == ack
    assert Ack.parse(ack.encode(), batch=False) == ack
    assert json.loads(ack.encode()) == {
        "ao": 100, "bn": "brokerName", "c": "group", "pt": 1670212915531, "q": 3, "so": 200, "t": "topic",
    }  # fmt: skip
    many = (
        b'{"ackOffsetList":[100, 101],"consumerGroup":"group","popTime":1679454922000,"queueId":3,'
        b'"startOffset":200,"topic":"topic"}'
    )
    acks = Ack([100, 101], 200, "group", "topic", 3, 1679454922000, "", batch=True)
    assert Ack.parse(many, batch=True) == acks
    assert Ack.parse(acks.encode(), batch=True) == acks


def test_a_batch_names_its_offsets_by_bits() -> None:
    # BatchAckTest: the offsets 101, 103 and 105 of a pop that began at 100
    ack = BatchAck("DEFAULT_CONSUMER", "myTopic", "0", 100, 1, 2, 1679454922000, 5000, [1, 3, 5])
    assert ack.to_json()["b"] == "Kg=="
    assert BatchAck.parse(ack.to_json(), 4096, 32) == ack
    with pytest.raises(PeerError):
        BatchAck.parse({**ack.to_json(), "b": "A" * 8192}, 4096, 32)


def test_a_bit_set_beyond_ascii_is_refused() -> None:
    """The fuzzer found it: Python names another error for such text than for bad base64."""
    whole = BatchAck("g", "T", "0", 100, 1, 2, 1, 5000, [1]).to_json()
    with pytest.raises(PeerError, match="not base64"):
        BatchAck.parse({**whole, "b": "Kg=\U0001f600="}, 4096, 32)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(body: bytes) -> None:
    for parse in (Checkpoint.parse, lambda raw: Ack.parse(raw, batch=True)):
        try:
            parse(body)
        except PeerError:
            continue


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=32, unique=True), st.integers(0, 2**62))
def test_a_checkpoint_survives_its_bytes(diffs: list[int], start: int) -> None:
    point = Checkpoint(start, 1, 2, 3, "T", "g", "b", diffs)
    for diff in diffs:
        point.ack(start + diff)
    found = Checkpoint.parse(point.encode())
    assert found == point
    assert found.unacked() == []
