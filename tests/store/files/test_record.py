"""The promise of store.files.record: what is encoded is decoded, nothing else is taken for a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Refused
from model.message import BORN_HOST_V6, STORE_HOST_V6
from store.files.record import (
    FIXED_V4,
    MAGIC_V1,
    MAGIC_V2,
    PROP_CRC_BYTES,
    BadRecord,
    DispatchParser,
    NewMessage,
    blank,
    decode,
    delay_levels_ms,
    encode,
    measure,
    prop_crc_ok,
    store_timestamp_of,
    walk,
)
from tests.store.support import HOST, message, reencode

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=40)


@st.composite
def messages(draw: st.DrawFn) -> NewMessage:
    flag = draw(st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]))
    return NewMessage(
        topic=draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200)),
        queue_id=draw(INT),
        flag=draw(INT),
        sys_flag=flag | draw(st.sampled_from([0, 1, 8, 0x301])),
        born_timestamp_ms=draw(LONG),
        born_host=draw(st.binary(min_size=20, max_size=20)) if flag & BORN_HOST_V6 else HOST,
        store_host=draw(st.binary(min_size=20, max_size=20)) if flag & STORE_HOST_V6 else HOST,
        reconsume_times=draw(INT),
        prepared_transaction_offset=draw(LONG),
        body=draw(st.binary(max_size=300)),
        properties="".join(
            f"{k}\x01{v}\x02" for k, v in draw(st.dictionaries(TEXT, TEXT, max_size=4)).items()
        ),
    )


@given(messages(), LONG, LONG, LONG, st.booleans())
def test_a_record_decodes_to_what_was_encoded(
    one: NewMessage, queue_offset: int, physical: int, stored_ms: int, with_crc: bool
) -> None:
    raw = encode(one, queue_offset, physical, stored_ms, append_prop_crc=with_crc)
    record = decode(raw)
    assert record.size == len(raw) == measure(raw, 0, physical)
    assert (record.queue_offset, record.physical_offset) == (queue_offset, physical)
    assert record.store_timestamp_ms == stored_ms == store_timestamp_of(raw)
    assert record.version == (1 if len(one.topic.encode()) <= 127 else 2)
    assert prop_crc_ok(raw) is (True if with_crc else None)
    if not with_crc:
        assert record.message() == one
    assert reencode(record) == raw


@given(messages(), st.data())
def test_a_cut_record_is_never_taken_for_a_whole_one(one: NewMessage, data: st.DataObject) -> None:
    raw = encode(one, 1, 2, 3)
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert measure(raw[:cut], 0, 2) == 0


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_flipped_bit_in_the_body_is_noticed(body: bytes, data: st.DataObject) -> None:
    raw = bytearray(encode(message(body), 1, 2, 3))
    raw[88 + data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadRecord) as caught:
        measure(raw, 0, 2)
    assert caught.value.kind == "crc_mismatch"


@given(st.binary(max_size=400))
def test_any_bytes_are_a_record_a_blank_incomplete_or_bad_but_nothing_worse(data: bytes) -> None:
    try:
        size = measure(data, 0, 0)
    except BadRecord:
        return
    assert size <= len(data)


def test_the_layout_is_the_real_one() -> None:
    """Topic T, body hi, properties A=B with the CRC reserve: 118 bytes."""
    one = message(b"hi", properties="A\x01B\x02")
    raw = encode(one, 0, 0, 0, append_prop_crc=True)
    assert len(raw) == 118
    assert raw[-PROP_CRC_BYTES:].startswith(b"__CRC32#\x01")
    assert raw.endswith(b"\x02")
    assert FIXED_V4.unpack_from(encode(one, 5, 6, 7))[:2] == (98, MAGIC_V1)
    assert blank(100) == bytes.fromhex("00000064cbd43194")


def test_crc_digits_are_written_least_significant_first() -> None:
    raw = encode(message(b"hi"), 0, 0, 0, append_prop_crc=True)
    digits = raw[-11:-1]
    assert digits.isdigit()
    flipped = bytearray(raw)
    flipped[20] ^= 1  # the queue offset: no body CRC covers it, this one does
    assert prop_crc_ok(bytes(flipped)) is False


def test_a_long_topic_takes_version_two() -> None:
    raw = encode(message(topic="%RETRY%" + "g" * 130), 0, 0, 0)
    assert FIXED_V4.unpack_from(raw)[1] == MAGIC_V2
    assert decode(raw).topic == "%RETRY%" + "g" * 130


def test_properties_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        encode(message(properties="x" * 32768), 0, 0, 0)
    assert caught.value.code == 13


def test_walk_ends_at_a_blank_and_raises_at_rubbish() -> None:
    one = encode(message(), 0, 0, 0)
    two = encode(message(), 1, len(one), 0)
    assert [r.queue_offset for r in walk(one + two + blank(50) + bytes(42))] == [0, 1]
    with pytest.raises(BadRecord):
        list(walk(one + b"rubbish" * 20))


def test_a_record_at_another_place_is_stale() -> None:
    raw = encode(message(), 0, 4096, 0)
    with pytest.raises(BadRecord) as caught:
        measure(raw, 0, 0)
    assert caught.value.kind == "phys_offset_mismatch"


def test_the_tags_code_of_a_delayed_message_is_when_it_is_due() -> None:
    parser = DispatchParser(delay_levels_ms("1s 5s 10s 30s 1m"))
    assert parser.tags_code("SCHEDULE_TOPIC_XXXX", "DELAY\x013\x02", 1000) == 11_000
    assert parser.tags_code("SCHEDULE_TOPIC_XXXX", "DELAY\x0199\x02", 1000) == 61_000
    assert parser.tags_code("T", "TAGS\x01TagA\x02DELAY\x013\x02", 1000) == 2598919
    for rotten in ("\u00b2", "\u0663", "", "3" * 5000, "-3"):
        assert parser.tags_code("SCHEDULE_TOPIC_XXXX", f"DELAY\x01{rotten}\x02", 1000) == 0
    assert parser.tags_code("T", "", 1000) == 0


@given(st.lists(messages(), min_size=1, max_size=5))
def test_a_slave_parses_what_the_master_remembers(batch: list[NewMessage]) -> None:
    parser = DispatchParser(delay_levels_ms("1s 5s"))
    raw, at = [], 1000
    for number, one in enumerate(batch):
        raw.append(encode(one, number, at, 77))
        at += len(raw[-1])
    found, end = parser.parse(b"".join(raw), 1000, at)
    assert end == at
    assert [(d.topic, d.queue_id, d.queue_offset) for d in found] == [
        (one.topic, one.queue_id, n) for n, one in enumerate(batch)
    ]
    partial, stop = parser.parse(b"".join(raw), 1000, at - 1)
    assert (partial, stop) == (found[:-1], at - len(raw[-1]))


def test_a_record_that_says_it_lies_before_the_log_is_none() -> None:
    raw = bytearray(encode(message(), 0, 0, 1))
    raw[28:36] = b"\xff" * 8
    with pytest.raises(BadRecord):
        decode(bytes(raw))
