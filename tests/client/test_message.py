"""The promises of ids, messages and shares: names, properties, batches, splits."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.consuming.allocate import average
from client.consuming.pull import parse_records
from client.ids import UniqueIds
from client.message import Message, Queue, pack_batch, packed, received
from client.routes import Route
from model.errors import PeerError
from model.message import COMPRESSED, decode_properties, encode_host
from store.files.record import NewMessage, Record, decode, encode
from tests import GOLDEN

FRAMES = GOLDEN / "remoting"


def golden(file: str, name: str, role: str) -> tuple[dict[str, object], bytes]:
    for line in (FRAMES / file).read_text().splitlines():
        vector = json.loads(line)
        if vector["name"] == name and vector["role"] == role:
            raw = bytes.fromhex(vector["hex"])
            return vector["header"], raw[len(raw) - vector["body_len"] :]
    raise LookupError(name)


def at_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_an_id_has_the_layout_of_the_real_clients() -> None:
    ids = UniqueIds(random.Random(1), "192.0.2.2")
    text = ids.next(at_ms("2026-11-03T00:00:01"))
    assert len(text) == 32
    assert text == text.upper()
    raw = bytes.fromhex(text)
    assert raw[:4] == bytes([192, 0, 2, 2])
    assert int.from_bytes(raw[10:14], "big") == 2 * 86_400_000 + 1000
    assert int.from_bytes(raw[14:], "big") == 1


def test_ids_of_one_millisecond_never_repeat_even_beyond_the_counter() -> None:
    ids = UniqueIds(random.Random(1))
    now_ms = at_ms("2026-11-30T23:59:59")
    assert len({ids.next(now_ms) for _ in range(70_000)}) == 70_000


@given(st.lists(st.integers(at_ms("2026-10-30T00:00:00"), at_ms("2026-12-02T00:00:00")), max_size=50))
def test_ids_never_repeat_when_the_clock_jumps(times_ms: list[int]) -> None:
    ids = UniqueIds(random.Random(2))
    assert len({ids.next(t) for t in times_ms}) == len(times_ms)


def test_the_month_after_december_is_january() -> None:
    ids = UniqueIds(random.Random(1))
    ids.next(at_ms("2026-12-31T23:59:59"))
    raw = bytes.fromhex(ids.next(at_ms("2027-01-01T00:00:02")))
    assert int.from_bytes(raw[10:14], "big") == 2000


def test_properties_carry_keys_tags_delay_and_the_users_own() -> None:
    message = Message(
        topic="T", body=b"x", tags="A", keys=["k1", "k2"], properties={"color": "red"}, delay_level=3
    )
    assert decode_properties(message.wire_properties("ID")) == {
        "color": "red",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ID",
        "WAIT": "true",
        "TAGS": "A",
        "DELAY": "3",
    }


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"": "b"}, {"a": "x" * 40_000}])
def test_properties_the_format_cannot_hold_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="propert"):
        Message(topic="T", body=b"x", properties=properties).wire_properties("ID")


def test_a_batch_is_packed_as_the_real_client_packs_it() -> None:
    _, body = golden("send.jsonl", "send_batch", "request")
    parts: list[tuple[Message, str]] = []
    at = 0
    while at < len(body):
        total = int.from_bytes(body[at : at + 4], "big")
        size = int.from_bytes(body[at + 16 : at + 20], "big")
        text = body[at + 22 + size : at + total].decode()
        parts.append((Message(topic="T", body=body[at + 20 : at + 20 + size]), text))
        at += total
    assert len(parts) == 10
    assert pack_batch(parts) == body


def test_a_real_route_is_read() -> None:
    _, body = golden("namesrv.jsonl", "get_route", "response")
    route = Route.parse("cf_send_sync_v1", body)
    assert route.master("vec-a") == "127.0.0.2:20931"
    assert [queue.queue_id for queue in route.writable] == [0, 1, 2, 3]
    assert route.clusters == {"vec-a": "VecCluster"}


def test_a_route_in_fastjsons_dialect_is_read() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1",2:"h:2"},"brokerName":"b","cluster":"c"}],"queueDatas":[]}'
    )
    assert Route.parse("T", body).brokers == {"b": {0: "h:1", 2: "h:2"}}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"brokerDatas":[{}]}', b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"y"}}]}'],
)
def test_a_broken_route_is_a_peer_error(body: bytes) -> None:
    with pytest.raises(PeerError):
        Route.parse("T", body)


def message(body: bytes, sys_flag: int) -> NewMessage:
    host = encode_host("127.0.0.1:10911")
    return NewMessage(
        topic="T",
        queue_id=0,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp_ms=1,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties="",
    )


def record(body: bytes, sys_flag: int) -> Record:
    return decode(encode(message(body, sys_flag), 3, 100, 2))


def test_compression_returns_what_was_packed_and_leaves_small_bodies_alone() -> None:
    body = b"abc" * 1000
    small, flag = packed(body)
    assert len(small) < len(body)
    assert received(record(small, flag), "broker-a").body == body
    assert packed(b"x") == (b"x", 0)


@pytest.mark.parametrize("sys_flag", [COMPRESSED, COMPRESSED | 0x700])
def test_a_body_that_cannot_be_unpacked_keeps_no_other_message_from_the_consumer(sys_flag: int) -> None:
    raw = encode(message(b"not zlib", sys_flag), 3, 100, 2) + encode(message(b"good", 0), 4, 220, 2)
    poisoned, good = parse_records(raw, "broker-a")
    assert (poisoned.body, poisoned.body_unread is None) == (b"not zlib", False)
    assert (good.body, good.body_unread) == (b"good", None)


def test_a_received_message_tells_where_it_lies() -> None:
    found = received(record(b"x", 0), "broker-a")
    assert (found.queue, found.queue_offset, found.physical_offset) == (Queue("T", "broker-a", 0), 3, 100)
    assert found.store_host == "127.0.0.1:10911"
    assert found.msg_id == found.offset_msg_id  # no UNIQ_KEY: the broker's id stands in


@given(queues=st.integers(0, 40), consumers=st.integers(1, 12))
def test_every_queue_goes_to_exactly_one_consumer_and_shares_differ_by_one(
    queues: int, consumers: int
) -> None:
    members = [f"c{i:02}" for i in range(consumers)]
    shares = [average(range(queues), members, me) for me in members]
    assert sorted(q for share in shares for q in share) == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_consumer_the_group_does_not_list_takes_nothing() -> None:
    assert average([1, 2, 3], ["a", "b"], "c") == []


@pytest.mark.parametrize(("stored", "topic"), [("T", "T"), ("%RETRY%g", "sold"), ("%RETRY%g_T", "sold")])
def test_what_a_message_says_of_its_topic_is_believed_in_a_retry_topic_alone(stored: str, topic: str) -> None:
    sent = replace(message(b"x", 0), topic=stored, properties="RETRY_TOPIC\x01sold\x02")
    assert received(decode(encode(sent, 3, 100, 2)), "broker-a").topic == topic
