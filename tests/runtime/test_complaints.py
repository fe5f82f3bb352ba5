"""The promise of runtime.report.complaints: a flood of bad peers is in the log, and does not fill it."""

from __future__ import annotations

import logging

import pytest

from runtime.report.complaints import LINES_AT_ONCE, Complaints, ComplaintsByKey


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


def test_a_noisy_key_hides_no_other_and_what_was_left_out_is_told_without_another_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    complaints = ComplaintsByKey(logging.getLogger("flood"), lambda: now[0], keys_max=2)
    for _ in range(100):
        complaints.warn("noisy", "about noisy", "of noisy")
    complaints.warn("calm", "about calm", "of calm")
    assert caplog.messages.count("of noisy") == LINES_AT_ONCE
    assert caplog.messages[-1] == "of calm"
    for key in range(100):
        complaints.warn(key, f"about {key}", "of many")
    assert caplog.messages.count("of many") == LINES_AT_ONCE
    now[0] += 2
    complaints.tell_left_out()
    assert caplog.messages[-2:] == [
        "about noisy (90 more such lines left out)",
        "others (90 more such lines left out)",
    ]
    now[0] += 60
    complaints.tell_left_out()
    before = len(caplog.messages)
    for key in (1, 2):  # there is room for keys again
        for _ in range(LINES_AT_ONCE):
            complaints.warn(key, "about", "again")
    assert len(caplog.messages) == before + 2 * LINES_AT_ONCE
