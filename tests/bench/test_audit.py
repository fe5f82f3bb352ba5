"""The stores of bench/audit.py are what a broker writes: the audit reads every record of them."""

from __future__ import annotations

import json
import zlib

import pytest

from audit.reading.records.record import parse
from bench.audit import BODY, KEY, QUEUES, RECORD, rows_of
from bench.audit_scale import ALL, QUESTION, questions, slope


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


def test_what_a_question_costs_spark_is_read_from_its_event_log() -> None:
    def job(stages: list[int], question: str) -> dict[str, object]:
        return {"Event": "SparkListenerJobStart", "Stage IDs": stages, "Properties": {QUESTION: question}}

    def task(stage: int, shuffled: int) -> dict[str, object]:
        metrics = {"Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled}}
        return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}

    def kept(block: str, size: int) -> dict[str, object]:
        info = {"Block ID": block, "Memory Size": size, "Disk Size": 0}
        return {"Event": "SparkListenerBlockUpdated", "Block Updated Info": info}

    events = [
        {"Event": "SparkListenerApplicationStart"},
        job([0, 1], "keelmq audit: scan"),
        task(0, 10),
        task(1, 20),
        job([2], "keelmq audit: places of queues"),
        task(2, 5),
        kept("rdd_1_0", 100),
        kept("rdd_1_0", 0),  # given back at the end
        kept("broadcast_3", 50),
    ]
    found = questions(map(json.dumps, events))
    assert found["scan"] == {"jobs": 1, "tasks": 2, "shuffled": 30}
    assert found["places of queues"]["shuffled"] == 5
    assert found[ALL] == {"jobs": 2, "tasks": 3, "shuffled": 35, "cached": 100}


def test_what_a_record_costs_is_a_slope_and_a_bend_says_where_there_is_none() -> None:
    runs = [{"records": n} for n in (100, 200, 400)]
    assert slope(runs, [1010, 2010, 4010]) == (10, 0)
    each, bend = slope(runs, [100, 400, 1600])
    assert each == 5
    assert bend == pytest.approx(0.125)
