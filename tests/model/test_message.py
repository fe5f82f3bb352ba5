"""The promise of the message words: they are Java's, to the bit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.message import (
    decode_host,
    decode_properties,
    encode_host,
    encode_properties,
    java_hash,
    message_id,
    parse_message_id,
    property_of,
)

NAMES = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("A", 65), ("TagA", 2598919), ("polygenelubricants", -(2**31)), ("é😀", 1774024)],
)
def test_the_hash_is_javas_string_hash_code(text: str, value: int) -> None:
    units = text.encode("utf-16-be")
    slow = 0
    for at in range(0, len(units), 2):
        slow = (31 * slow + int.from_bytes(units[at : at + 2], "big")) % 2**32
    assert java_hash(text) == (slow - 2**32 if slow >= 2**31 else slow)
    if text not in ("é😀",):
        assert java_hash(text) == value


@given(st.dictionaries(NAMES, NAMES))
def test_properties_survive_and_one_can_be_read_alone(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    for name, value in properties.items():
        assert property_of(text, name) == value
    assert property_of(text, "no\x00such") is None


def test_a_property_is_not_found_inside_the_name_of_another() -> None:
    assert property_of("XTAGS\x01a\x02TAGS\x01b\x02", "TAGS") == "b"
    assert property_of("XTAGS\x01a\x02", "TAGS") is None


def test_entries_without_a_value_are_dropped_as_the_original_does() -> None:
    assert decode_properties("A\x01\x02B\x012\x02\x01C\x02D") == {"B": "2"}


ENTRIES = st.sampled_from(["T\x01v", "T\x01X", "T\x01", "X\x01v", "TX\x01v", "T\x01v\x01", "T", "\x01v", ""])


@given(st.lists(ENTRIES, max_size=6).map("\x02".join))
def test_of_a_property_given_twice_the_last_value_counts_as_in_the_original(text: str) -> None:
    found = decode_properties(text)
    for name in ("T", "X", "TX", "v"):
        assert property_of(text, name) == found.get(name)


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_hosts_and_message_ids_survive(ip: object, port: int, offset: int) -> None:
    address = f"[{ip}]:{port}" if ":" in str(ip) else f"{ip}:{port}"
    host = encode_host(address)
    assert decode_host(host) == address
    text = message_id(host, offset)
    assert text == text.upper()
    assert parse_message_id(text) == (address, offset)


def test_a_message_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 32 or 56"):
        parse_message_id("ABCD")
