"""The stores of bench/audit.py are what a broker writes: the audit reads every record of them."""

from __future__ import annotations

import zlib

from audit.reading.record import parse
from bench.audit import BODY, KEY, QUEUES, RECORD, rows_of


def test_its_records_are_sound() -> None:
    first, base = 5 * QUEUES + 3, 1 << 31
    raw = rows_of(first, 40, base).tobytes()
    for n in range(40):
        parsed = parse(raw, n * len(RECORD), base + n * len(RECORD), 1 << 32)
        assert (parsed.size, parsed.damage) == (len(RECORD), None)
        assert parsed.record is not None
        number = first + n
        assert parsed.record.uniq_key == KEY % number
        assert (parsed.record.queue_id, parsed.record.queue_offset) == (number % QUEUES, number // QUEUES)
        assert parsed.record.body_crc == zlib.crc32(BODY) & 0x7FFFFFFF
