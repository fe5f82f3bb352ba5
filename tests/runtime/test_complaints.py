"""The promise of runtime.complaints: a flood of bad peers is in the log, and does not fill it."""

from __future__ import annotations

import logging

import pytest

from runtime.complaints import LINES_AT_ONCE, Complaints


def test_a_flood_makes_a_few_lines_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    complaints = Complaints(logging.getLogger("flood"), lambda: now[0])
    for _ in range(1000):
        complaints.warn("bad frame of %s", "1.2.3.4")
    assert len(caplog.messages) == LINES_AT_ONCE
    now[0] += 1
    complaints.warn("bad frame of %s", "1.2.3.4")
    assert caplog.messages[-1] == "bad frame of 1.2.3.4 (990 more such lines left out)"
    now[0] += 3600
    for _ in range(100):
        complaints.warn("bad frame of %s", "1.2.3.4")
    assert len(caplog.messages) == 2 * LINES_AT_ONCE + 1
    assert (complaints.total, complaints.left_out) == (1101, 90)
