"""The promise of runtime.report.slow_requests: what took long is counted and told, at a bounded rate."""

from __future__ import annotations

import logging

import pytest

from runtime.report.complaints import LINES_AT_ONCE
from runtime.report.slow_requests import EVENT, KEPT, SlowRequests
from runtime.report.slow_turns import SlowTurns


def test_what_took_long_is_a_line_with_its_code_client_and_ms(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests("broker-a", lambda: 0.0, 100)
    slow.note("PULL_MESSAGE", "10.0.0.9:5", 99.9)
    slow.note("GET_CONSUME_STATS", "10.0.0.9:6", 250.4)
    assert caplog.messages == [
        "broker-a: event slow_request request=GET_CONSUME_STATS client=10.0.0.9:6 ms=250"
    ]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    fields = {"request": "GET_CONSUME_STATS", "client": "10.0.0.9:6", "ms": 250}
    assert (record.__dict__["event"], record.__dict__["fields"]) == (EVENT, fields)
    assert slow.status() == {"byRequest": {"GET_CONSUME_STATS": 1}, "last": [fields]}


def test_many_are_counted_and_few_are_told(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests("broker-a", lambda: 0.0, 100)
    for number in range(500):
        slow.note("SEND_MESSAGE", f"10.0.0.9:{number}", 100.0)
    assert len(caplog.messages) == LINES_AT_ONCE
    assert slow.by_request == {"SEND_MESSAGE": 500}
    assert [one["client"] for one in slow.status()["last"]] == [
        f"10.0.0.9:{n}" for n in range(500 - KEPT, 500)
    ]


def test_what_waits_on_purpose_is_none() -> None:
    slow = SlowTurns("broker-a", lambda: 0.0, request_ms=100)
    slow.on_answered("KEELMQ_COPY_TABLES", "10.0.0.9:5", 1.0)
    slow.on_answered("SEND_MESSAGE", "10.0.0.9:5", 1.0)
    assert slow.requests.by_request == {"SEND_MESSAGE": 1}


def test_0_tells_nothing() -> None:
    slow = SlowRequests("broker-a", lambda: 0.0, 0)
    slow.note("SEND_MESSAGE", "10.0.0.9:5", 1e9)
    assert slow.status() == {"byRequest": {}, "last": []}
