"""The promises of broker.timers.codec: RocketMQ's bytes, and what is told from them."""

from __future__ import annotations

import base64
import struct

import pytest

from broker.timers.codec import (
    READ_BYTES,
    decode_check,
    decode_told,
    encode_check,
    encode_told,
)
from broker.timers.core import Note
from model.errors import Refused
from model.recall import RecallHandle
from model.topic import DataVersion

NOTE = Note(read_ms=1_700_000_000_000, queue_offset=9, first=4)
VERSION = DataVersion(2, 1_700_000_000_001, 5)


def test_the_file_says_what_was_written_and_rocketmq_begins_at_the_first_that_waits() -> None:
    data = encode_check(NOTE, VERSION)
    assert len(data) == READ_BYTES
    assert struct.unpack_from(">7q", data) == (NOTE.read_ms, 0, 4, 4, 2, VERSION.timestamp_ms, 5)
    found = decode_check(data.ljust(4096, b"\0"))
    assert found is not None
    assert (found.note, found.version, found.foreign) == (NOTE, VERSION, False)


def test_what_rocketmq_wrote_since_counts_and_nothing_below_our_first_waits() -> None:
    data = struct.pack(">7q", 1_700_000_009_000, 520, 30, 30, 3, 1, 2) + encode_check(NOTE, VERSION)[56:]
    found = decode_check(data)
    assert found is not None
    assert (found.note, found.foreign) == (Note(1_700_000_009_000, 30, 4), True)


def test_a_file_of_rocketmq_alone_says_nothing_of_the_first_that_waits() -> None:
    found = decode_check(struct.pack(">7q", 77, 0, 12, 12, 0, 0, 0).ljust(4096, b"\0"))
    assert found is not None
    assert (found.note, found.foreign) == (Note(77, 12, 0), True)
    empty = decode_check(b"")
    assert empty is not None
    assert (empty.note, empty.foreign) == (Note(), False)


@pytest.mark.parametrize("at", range(64, READ_BYTES))
def test_a_flipped_bit_of_ours_is_not_believed(at: int) -> None:
    data = bytearray(encode_check(NOTE, VERSION))
    data[at] ^= 4
    assert decode_check(bytes(data)) is None


def test_a_slave_is_told_how_far_the_master_is() -> None:
    body = encode_told(NOTE, VERSION)
    assert struct.unpack(">7q", body) == (NOTE.read_ms, 0, 9, 9, 2, VERSION.timestamp_ms, 5)
    assert decode_told(body) == (Note(NOTE.read_ms, 9, 0), VERSION)
    assert decode_told(body[:32]) == (Note(NOTE.read_ms, 9, 0), DataVersion())
    with pytest.raises(ValueError, match="31 bytes"):
        decode_told(body[:31])


def test_a_recall_handle_is_the_originals() -> None:
    # As RecallMessageHandle.HandleV1.buildHandle("topic", "broker-0", "1713700000000", "0A1B") gives it.
    text = "djEgdG9waWMgYnJva2VyLTAgMTcxMzcwMDAwMDAwMCAwQTFC"
    handle = RecallHandle("topic", "broker-0", "1713700000000", "0A1B")
    assert handle.encode() == text
    assert RecallHandle.decode(text, 604) == handle


BLANKS = base64.urlsafe_b64encode(b"v1 topic broker-0 1713700000000 0A1B" + b" " * 50_000).decode()


@pytest.mark.parametrize("text", ["", "%", "djE", "djIgYSBiIGMgZA==", "\u00e4", BLANKS])
def test_what_is_no_recall_handle_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="recall handle is invalid") as refused:
        RecallHandle.decode(text, 604)
    assert refused.value.code == 604
