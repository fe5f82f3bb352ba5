"""The promises of the scanner: a split finds what a whole walk finds, and no byte makes it fail."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audit.reading.records.record
from audit.reading.records.record import MAGIC_BLANK, Damage, Record, parse
from audit.reading.records.scan import Chunk, digests, scan
from audit.reading.records.search import find_record
from tests.audit.stores import body_crc, record

SEGMENT = 1 << 16


def log_of(bodies: list[bytes]) -> bytes:
    """A segment of records and a blank."""
    out = b""
    for n, body in enumerate(bodies):
        out += record(len(out), n, body, key=f"K{n}")
    return out + struct.pack(">iI", SEGMENT - len(out), MAGIC_BLANK) + b"\xee" * (SEGMENT - len(out) - 8)


def walk(
    data: bytes, start: int = 0, end: int = SEGMENT, log_end: int = SEGMENT
) -> tuple[list[Record], Chunk, list[Damage]]:
    rows: list[Record] = []
    run = scan(lambda o, n: data[o : o + n], start, end, 0, SEGMENT, log_end, plain=True, batch=7)
    while True:
        try:
            rows += next(run)
        except StopIteration as stop:
            return rows, *stop.value


BODIES = [f"body-{n}".encode() * (n % 9 + 1) for n in range(60)]


def test_every_field_is_read() -> None:
    rows, chunk, damage = walk(log_of(BODIES))
    assert [r.queue_offset for r in rows] == list(range(60))
    assert [r.body_crc for r in rows] == [body_crc(b) for b in BODIES]
    assert {r.topic for r in rows} == {"T"}
    assert rows[7].uniq_key == "K7"
    assert (chunk.first, chunk.last_end, chunk.records, damage) == (0, SEGMENT, 60, [])


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, SEGMENT - 1), max_size=6))
def test_any_split_of_a_segment_finds_every_record_once(cuts: list[int]) -> None:
    data = log_of(BODIES)
    edges = [0, *sorted(set(cuts)), SEGMENT]
    rows: list[Record] = []
    chunks = []
    for start, end in pairwise(edges):
        found, chunk, damage = walk(data, start, end)
        rows += found
        chunks.append(chunk)
        assert not damage
    assert rows == walk(data)[0]
    reach = 0
    for chunk in chunks:
        assert chunk.first in (-1, reach)
        reach = max(reach, chunk.last_end)


def test_a_body_that_holds_a_record_is_not_mistaken_for_one() -> None:
    inner = record(5, 0, b"forged")
    data = log_of([b"a" * 50, inner, b"c" * 50])
    second = len(record(0, 0, b"a" * 50, key="K0"))
    assert find_record(lambda o, n: data[o : o + n], second + 1, SEGMENT, SEGMENT) == second + len(
        record(second, 1, inner, key="K1")
    )


def test_the_walk_goes_on_behind_unreadable_bytes() -> None:
    data = bytearray(log_of(BODIES))
    rows, _, _ = walk(bytes(data))
    at, until = rows[10].offset, rows[13].offset
    data[at:until] = bytes(until - at)
    found, _, damage = walk(bytes(data))
    assert [(d.kind, d.offset, d.until) for d in damage] == [("unreadable_region", at, until)]
    assert len(found) == 57


@pytest.mark.parametrize(
    ("at", "kind"),
    [(8, "crc_mismatch"), (90, "crc_mismatch"), (30, "phys_offset_mismatch"), (84, "unreadable_region")],
)
def test_a_damaged_field_is_named_and_the_next_record_found(at: int, kind: str) -> None:
    data = bytearray(log_of(BODIES))
    rows, _, _ = walk(bytes(data))
    data[rows[20].offset + at] ^= 0x41
    _, _, damage = walk(bytes(data))
    assert [(d.kind, d.offset, d.until) for d in damage] == [(kind, rows[20].offset, rows[21].offset)]


def test_long_topics_and_ipv6_hosts_are_read() -> None:
    raw = record(0, 3, b"hello", topic="%RETRY%" + "g" * 200, v2=True, sys_flag=0x30)
    parsed = parse(raw, 0, 0, SEGMENT)
    assert parsed.record is not None
    assert (parsed.size, len(parsed.record.topic), parsed.record.store_timestamp_ms) == (len(raw), 207, 1000)


def test_a_key_inside_another_property_is_not_the_key() -> None:
    raw = record(0, 0, b"x", properties=b"NOT_UNIQ_KEY\x01no\x02UNIQ_KEY\x01yes\x02")
    parsed = parse(raw, 0, 0, SEGMENT)
    assert parsed.record is not None
    assert parsed.record.uniq_key == "yes"


def test_a_compressed_body_has_the_crc_of_what_was_sent() -> None:
    raw = record(0, 0, zlib.compress(b"plain text"), sys_flag=0x301)
    parsed = parse(raw, 0, 0, SEGMENT, plain=True)
    assert parsed.record is not None
    assert parsed.record.plain_crc == body_crc(b"plain text")


def test_a_body_of_many_zeros_is_decompressed_in_pieces() -> None:
    """A message of a megabyte may hold a gigabyte: an audit of all replicas must not need it in memory."""
    zeros = zlib.compress(bytes(64 << 20), 9)
    raw = record(0, 0, zeros, sys_flag=0x301)
    expected = zlib.crc32(bytes(64 << 20)) & 0x7FFFFFFF
    tracemalloc.start()
    try:
        parsed = parse(raw, 0, 0, 1 << 20, plain=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parsed.record is not None
    assert parsed.record.plain_crc == expected
    assert peak_bytes < 8 << 20


@pytest.mark.parametrize("codec", [0x100, 0x200, 0x300])
def test_a_body_that_ends_early_or_becomes_too_long_has_no_plain_crc(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    plain = b"some text " * 1000
    packed = {
        0x100: pyarrow.compress(plain, "lz4", asbytes=True),
        0x200: pyarrow.compress(plain, "zstd", asbytes=True),
        0x300: zlib.compress(plain),
    }
    stored = packed[codec]

    def plain_crc(body: bytes) -> int:
        parsed = parse(record(0, 0, body, sys_flag=codec | 1), 0, 0, SEGMENT, plain=True)
        assert parsed.record is not None
        return parsed.record.plain_crc

    assert plain_crc(stored) == body_crc(plain)
    assert plain_crc(stored[: len(stored) // 2]) == -1
    monkeypatch.setattr(audit.reading.records.record, "_BODY_BYTES_MAX", len(plain) - 1)
    assert plain_crc(stored) == -1


def test_the_crc_of_a_whole_record_finds_damage_outside_its_body() -> None:
    """Digits of the property CRC stand reversed; it covers header and properties."""
    blank = record(0, 0, b"b", properties=b"A\x01B\x02__CRC32#\x010000000000\x02")
    digits = f"{body_crc(blank[:-20]):010d}"[::-1].encode()
    good = bytearray(blank[:-11] + digits + b"\x02")
    assert parse(bytes(good), 0, 0, SEGMENT).problem == ""
    good[16] ^= 1
    assert parse(bytes(good), 0, 0, SEGMENT).problem == "property CRC"


def test_a_crc_property_that_a_client_wrote_is_no_damage() -> None:
    """A store whose own records carry none holds what clients wrote under its name."""
    fake = b"A\x01B\x02__CRC32#\x010000000000\x02"

    def own(offset: int, queue_offset: int) -> bytes:
        blank = record(offset, queue_offset, b"own", properties=fake)
        return blank[:-11] + f"{body_crc(blank[:-20]):010d}"[::-1].encode() + b"\x02"

    planted = record(0, 0, b"planted", properties=fake)
    plain = planted + record(len(planted), 1, b"x")
    rows, _, damage = walk(plain.ljust(2048, b"\0"), log_end=len(plain))
    assert (len(rows), damage) == (2, [])
    carried = planted + own(len(planted), 1)
    rows, _, damage = walk(carried.ljust(2048, b"\0"), log_end=len(carried))
    assert [(d.kind, d.offset) for d in damage] == [("crc_mismatch", 0)]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 80), st.integers(0, 255))
def test_no_bytes_make_the_parser_fail(noise: bytes, at: int, value: int) -> None:
    parse(noise, 0, 0, SEGMENT)
    raw = bytearray(record(0, 0, b"body" * 9))
    raw[at] = value
    parse(bytes(raw), 0, 0, SEGMENT, plain=True)
    walk(noise.ljust(512, b"\0"), log_end=len(noise))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3 << 20), max_size=5))
def test_digests_cover_every_byte_once_whatever_the_cuts(cuts: list[int]) -> None:
    data = bytes(range(256)) * (3 << 12)
    ranges = list(digests(lambda o, n: data[o : o + n], 0, len(data), cuts))
    assert [r.start for r in ranges] == [0, *(r.end for r in ranges)][:-1]
    assert ranges[-1].end == len(data)
    assert {c for c in cuts if 0 < c < len(data)} <= {r.end for r in ranges}
    assert all(r.end - r.start <= 1 << 20 for r in ranges)


@pytest.mark.parametrize("told", ["\u00b2", "9" * 5000, "2147483648", "-1", ""])
def test_a_batch_of_no_possible_size_takes_one_place(told: str) -> None:
    raw = record(0, 0, b"b", sys_flag=0x80, properties=f"INNER_NUM\x01{told}\x02".encode())
    rows, _, damage = walk(raw.ljust(8192, b"\0"), log_end=len(raw))
    assert ([row.advance for row in rows], damage) == ([1], [])
