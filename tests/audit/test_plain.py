"""The promise of the columns: what they say of a log is what reading record by record says."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audit.reading.scan as scanner
from audit.reading.plain import Plain, take
from audit.reading.record import MAGIC_BLANK, Damage, Record
from audit.reading.scan import Chunk, scan, scan_columns
from audit.tables import LOG, RECORD, Task, run_scan
from tests.audit.stores import record

SEGMENT = 1 << 16
Told = tuple[list[Record], Chunk, list[Damage]]


@pytest.fixture(autouse=True)
def columns_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs are read as columns too."""
    monkeypatch.setattr(scanner, "COLUMNS_MIN", 1)
    monkeypatch.setattr(scanner, "COLUMNS_BYTES_MIN", 0)


def rows_of(found: Plain) -> Iterator[Record]:
    """Times are not kept in columns: 0 stands for them."""
    for at in range(len(found)):
        yield Record(
            int(found.offset[at]),
            int(found.size[at]),
            found.topic[at].as_py(),
            int(found.queue_id[at]),
            int(found.queue_offset[at]),
            found.uniq_key[at].as_py(),
            int(found.body_crc[at]),
            -1,
            int(found.sys_flag[at]),
            0,
            1,
            int(found.tags_code[at]),
        )


def walked(data: bytes, *, fast: bool) -> Told:
    call: Any = scan_columns if fast else scan
    run = call(lambda o, n: data[o : o + n], 0, SEGMENT, 0, SEGMENT, SEGMENT, plain=True)
    rows: list[Record] = []
    while True:
        try:
            found = next(run)
        except StopIteration as stop:
            return [row._replace(store_timestamp_ms=0) for row in rows], *stop.value
        rows += rows_of(found) if isinstance(found, Plain) else found


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
        ]
    ),
    max_size=4,
).map(b"".join)
MESSAGES = st.tuples(
    st.binary(max_size=40),
    PROPERTIES,
    st.sampled_from(["T", "T", "Orders", "thème", "SCHEDULE_TOPIC_XXXX", "%RETRY%group"]),
    st.sampled_from([0, 0, 0, 0, 1, 4, 8, 12, 0x10, 0x20, 0x80]),
    st.booleans(),
)


def log_of(messages: list[tuple[bytes, bytes, str, int, bool]]) -> bytes:
    out = b""
    for n, (body, properties, topic, flag, v2) in enumerate(messages):
        out += record(
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
    left = SEGMENT - len(out)
    return out + struct.pack(">iI", left, MAGIC_BLANK) + bytes(left - 8)


@settings(max_examples=40)
@given(messages=st.lists(MESSAGES, max_size=20))
def test_columns_say_what_reading_record_by_record_says(messages: list[Any]) -> None:
    data = log_of(messages)
    assert walked(data, fast=True) == walked(data, fast=False)


@settings(max_examples=40)
@given(messages=st.lists(MESSAGES, min_size=3, max_size=12), data=st.data())
def test_they_agree_on_damage_too(messages: list[Any], data: st.DataObject) -> None:
    raw = bytearray(log_of(messages))
    end = raw.index(struct.pack(">I", MAGIC_BLANK))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end))
        raw[at] ^= data.draw(st.integers(1, 255))
    assert walked(bytes(raw), fast=True) == walked(bytes(raw), fast=False)


def test_a_long_run_is_taken_at_once() -> None:
    """Were it not, an audit of a whole log would take four times as long."""
    data = log_of(
        [(b"body" * 5, b"UNIQ_KEY\x01K%03d\x02TAGS\x01a\x02" % n, "T", 0, False) for n in range(300)]
    )
    found = take(data, 0, 0, SEGMENT)
    assert found is not None
    assert len(found) == 300
    assert take(data, 0, found.end, SEGMENT) is None
    half = take(data, 0, 0, int(found.offset[150]))
    assert half is not None
    assert (len(half), half.end) == (150, int(found.offset[150]))


def test_where_few_are_plain_columns_are_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying costs as much as reading some records: a log of compressed bodies would take many times that."""
    monkeypatch.setattr(scanner, "COLUMNS_MIN", 64)
    tries = []
    monkeypatch.setattr("audit.reading.scan.columns.take", lambda *given: tries.append(given))
    data = log_of([(b"b", b"", "T", 1 if n % 2 else 0, False) for n in range(600)])
    rows, _, damage = walked(data, fast=True)
    assert (len(rows), damage) == (600, [])
    assert len(tries) <= 4


def test_batches_of_both_have_the_same_schema_and_rows(tmp_path: Path) -> None:
    messages = [(b"body", b"UNIQ_KEY\x01K%03d\x02" % n, "T", 8 if n == 50 else 0, False) for n in range(100)]
    messages[60] = (b"compressed", b"", "T", 1, False)
    (tmp_path / "0").write_bytes(log_of(messages))
    task = Task(3, str(tmp_path), "0", 0, SEGMENT, SEGMENT, 0, SEGMENT)
    batches = list(run_scan(task))
    assert all(batch.schema == LOG for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist() if row["row"] == RECORD]
    assert [row["queue_offset"] for row in rows] == list(range(100))
    assert {row["replica"] for row in rows} == {3}
    assert [row["until"] for row in rows[:-1]] == [row["offset"] for row in rows[1:]]
    assert rows[7]["uniq_key"] == "K007"
