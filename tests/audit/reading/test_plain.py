"""The promise of the columns, numpy's and the compiled ones: what they say of a log is what reading record by
record says, of a damaged one as well.

``KEELMQ_COLUMNS_LOGS`` logs of each kind are made.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audit.reading.records.scan as scanner
from audit.reading.records import compiled
from audit.reading.records.plain import take
from audit.reading.records.record import MAGIC_BLANK
from audit.tables import LOG, RECORD, Task, run_scan
from tests.audit.stores import body_crc, record
from tests.audit.ways import HAS_COMPILED, SEGMENT, WAYS, only, walked

LOGS: Final = int(os.environ.get("KEELMQ_COLUMNS_LOGS", "40"))


@pytest.fixture(autouse=True)
def columns_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs are read as columns too."""
    monkeypatch.setattr(scanner, "COLUMNS_MIN", 1)
    monkeypatch.setattr(scanner, "COLUMNS_BYTES_MIN", 0)


CRC_PROPERTY = b"__CRC32#\x01right_crc.\x02"
"""At the end of properties it becomes the record's."""
PROPERTIES = st.lists(
    st.sampled_from(
        [
            b"UNIQ_KEY\x017F00000100010000AAAA\x02",
            b"UNIQ_KEY\x01short\x02",
            b"UNIQ_KEY\x01",
            b"UNIQ_KEY\x01\xc3\xa9t\xc3\xa9\x02",
            b"UNIQ_KEY\x01\xff\xfe\x02",
            b"NOT_UNIQ_KEY\x01no\x02",
            b"TAGS\x01a\x02",
            b"TAGS\x01\x02",
            b"TAGS\x01seven77\x02",
            b"TAGS\x01eight888\x02",
            b"TAGS\x01a longer tag\x02",
            b"TAGS\x01\xe4\xb8\xad\x02",
            b"TAGS\x01end",
            b"MY_TAGS\x01no\x02",
            b"DELAY\x013\x02",
            b"DELAY\x010\x02",
            b"KEYS\x01k1 k2\x02",
            b"__CRC32#\x010123456789\x02",
            b"INNER_NUM\x0112\x02",
            b"INNER_NUM\x010\x02",
            b"NAME\x01open\0\0",
            b"NAME\x01lost" + bytes(8),
            b"INNER_NUM\x01\xc2\xb2\x02",
            b"INNER_NUM\x0199999999999\x02",
            b"DELAY\x01\xc2\xb2\x02",
            CRC_PROPERTY,
        ]
    ),
    max_size=4,
).map(b"".join)
MESSAGES = st.tuples(
    st.binary(max_size=40),
    PROPERTIES,
    st.sampled_from(["T", "T", "Orders", "thème", "SCHEDULE_TOPIC_XXXX", "%RETRY%group"]),
    st.sampled_from([0, 0, 0, 0, 1, 4, 8, 12, 0x10, 0x20, 0x30, 0x80, -0x80000000]),
    st.booleans(),
)


def log_of(messages: list[tuple[bytes, bytes, str, int, bool]]) -> bytes:
    out = b""
    for n, (body, properties, topic, flag, v2) in enumerate(messages):
        one = record(
            len(out),
            n,
            body,
            topic=topic,
            queue_id=n % 3,
            sys_flag=flag,
            stamp=1 << 40,
            properties=properties,
            v2=v2 and n % 5 == 4,
        )
        if properties.endswith(CRC_PROPERTY):
            one = one[:-11] + f"{body_crc(one[:-20]):010d}"[::-1].encode() + b"\x02"
        out += one
    left = SEGMENT - len(out)
    return out + struct.pack(">iI", left, MAGIC_BLANK) + bytes(left - 8)


@settings(max_examples=LOGS)
@given(messages=st.lists(MESSAGES, max_size=20), plain=st.booleans(), batch=st.sampled_from([3, 65536]))
def test_columns_say_what_reading_record_by_record_says(messages: list[Any], plain: bool, batch: int) -> None:
    data = log_of(messages)
    expected = walked(data, plain=plain)
    for way in WAYS:
        assert walked(data, way, plain=plain, batch=batch) == expected, way


@settings(max_examples=LOGS)
@given(messages=st.lists(MESSAGES, min_size=3, max_size=12), data=st.data())
def test_they_agree_on_damage_too(messages: list[Any], data: st.DataObject) -> None:
    raw = bytearray(log_of(messages))
    end = raw.index(struct.pack(">I", MAGIC_BLANK))
    place = st.integers(0, end)
    for _ in range(data.draw(st.integers(1, 3))):
        at, until = sorted((data.draw(place), data.draw(place)))
        match data.draw(st.sampled_from(["flip", "flip", "zeros", "twice", "size"])):
            case "flip":
                raw[at] ^= data.draw(st.integers(1, 255))
            case "zeros":
                raw[at:until] = bytes(until - at)
            case "twice":
                raw[at:until] = (raw[: until - at]).ljust(until - at, b"\0")
            case _:
                size = data.draw(st.sampled_from([0, 90, 91, 1 << 15, 1 << 25, 0x7FFFFFFF, 0xFFFFFFFF]))
                raw[at : at + 4] = struct.pack(">I", size)
    log_end = data.draw(st.sampled_from([SEGMENT, data.draw(place)]))
    span = (data.draw(st.sampled_from([0, data.draw(place)])), SEGMENT)
    expected = walked(bytes(raw), span=span, log_end=log_end)
    for way in WAYS:
        assert walked(bytes(raw), way, span=span, log_end=log_end, batch=5) == expected, way


@pytest.mark.skipif(not HAS_COMPILED, reason="not compiled")
def test_compiled_columns_leave_only_what_is_damaged() -> None:
    """Were compressed bodies, IPv6 hosts or batches left, a log of them would take ten times as long."""
    odd = [
        (b"packed", b"UNIQ_KEY\x01K\x02", "T", 1, False),
        (b"hosts", b"", "T", 0x30, False),
        (b"batch", b"INNER_NUM\x013\x02", "T", 0x80, False),
        (b"delayed", b"DELAY\x013\x02", "SCHEDULE_TOPIC_XXXX", 0, False),
        (b"long", b"A\x01B\x02" + CRC_PROPERTY, "T" * 120, 0, True),
    ]
    data = log_of(odd)
    found = compiled.columns(100)
    assert found is not None
    end = found.take(data, 0, 0, SEGMENT, True)
    assert (len(found), end) == (5, data.index(struct.pack(">I", MAGIC_BLANK)) - 4)
    assert found.carries_crc


@pytest.mark.skipif(not HAS_COMPILED, reason="not compiled")
def test_long_keys_do_not_wait_in_memory() -> None:
    """Properties of 60 KB each: 65,536 rows of them would be four gigabytes."""
    found = compiled.columns(65536)
    assert found is not None
    one = record(0, 0, b"", properties=b"UNIQ_KEY\x01" + b"k" * 60000 + b"\x02")
    while not found.full:
        assert found.take(one, 0, 0, len(one), True) == len(one)
    assert len(found) < 200


def test_a_long_run_is_taken_at_once() -> None:
    """Were it not, an audit of a whole log would take four times as long."""
    data = log_of(
        [(b"body" * 5, b"UNIQ_KEY\x01K%03d\x02TAGS\x01a\x02" % n, "T", 0, False) for n in range(300)]
    )
    found = take(data, 0, 0, SEGMENT)
    assert found is not None
    assert len(found) == 300
    assert take(data, 0, int(found.until[-1]), SEGMENT) is None
    half = take(data, 0, 0, int(found.offset[150]))
    assert half is not None
    assert (len(half), int(half.until[-1])) == (150, int(found.offset[150]))


def test_where_few_are_plain_columns_are_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying costs as much as reading some records: a log of compressed bodies would take many times that."""
    monkeypatch.setattr(scanner, "COLUMNS_MIN", 64)
    tries = []
    monkeypatch.setattr("audit.reading.records.scan.columns.take", lambda *given: tries.append(given))
    data = log_of([(b"b", b"", "T", 1 if n % 2 else 0, False) for n in range(600)])
    rows, _, damage = walked(data, "numpy")
    assert (len(rows), damage) == (600, [])
    assert len(tries) <= 4


@pytest.mark.parametrize("way", WAYS)
def test_batches_have_one_schema_and_all_rows(tmp_path: Path, way: str) -> None:
    messages = [(b"body", b"UNIQ_KEY\x01K%03d\x02" % n, "T", 8 if n == 50 else 0, False) for n in range(100)]
    messages[60] = (b"compressed", b"", "T", 1, False)
    (tmp_path / "0").write_bytes(log_of(messages))
    task = Task(3, str(tmp_path), "0", 0, SEGMENT, SEGMENT, 0, SEGMENT)
    with only(way):
        batches = list(run_scan(task))
    assert all(batch.schema == LOG for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist() if row["row"] == RECORD]
    assert [row["queue_offset"] for row in rows] == list(range(100))
    assert {row["replica"] for row in rows} == {3}
    assert [row["until"] for row in rows[:-1]] == [row["offset"] for row in rows[1:]]
    assert rows[7]["uniq_key"] == "K007"
