"""The promise of a histogram: each value is counted at its bound, all at the last one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.codes import UNKNOWN
from runtime.report.histogram import ANSWERS_S, RPC_MS, SHORT_S, SIZES_BYTES, Histogram
from runtime.report.slow_turns import Answers
from store.files.consume_queue import ENTRY
from store.files.entry_sizes import counted


@given(st.lists(st.floats(-1, 100, allow_nan=False)))
def test_counts_are_of_what_is_at_most_the_bound(values: list[float]) -> None:
    histogram = Histogram((0.5, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    found = histogram.to_json()
    assert found["bounds"] == [0.5, 1.0, 10.0]
    assert found["counts"] == [*(sum(v <= bound for v in values) for bound in found["bounds"]), len(values)]
    assert abs(found["sum"] - sum(max(v, 0.0) for v in values)) < 1e-3


@given(st.lists(st.lists(st.integers(0, 9 << 20) | st.sampled_from(SIZES_BYTES))))
def test_many_at_once_count_as_one_by_one(parts: list[list[int]]) -> None:
    at_once, one_by_one = Histogram(SIZES_BYTES), Histogram(SIZES_BYTES)
    for part in parts:
        entries = b"".join(ENTRY.pack(0, value, 0) for value in part)
        at_once.observe_counted(*counted(entries, SIZES_BYTES))
        for value in filter(None, part):
            one_by_one.observe(value)
    assert at_once.to_json() == one_by_one.to_json()


@given(st.lists(st.integers(0, 10**6)), st.integers(0, 10**6))
def test_how_long_ago_counts_as_one_by_one(at_ms: list[int], now_ms: int) -> None:
    at_once, one_by_one = Histogram(), Histogram()
    at_once.observe_since(at_ms, now_ms)
    for one_ms in at_ms:
        one_by_one.observe((now_ms - one_ms) / 1000)
    assert at_once.to_json() == one_by_one.to_json()


def test_answers_are_told_by_request_and_by_their_codes() -> None:
    answers = Answers()
    for code, took_s in ((0, 0.002), (0, 0.5), (1, 0.0065), (31_337, 4.0), (31_338, 4.0)):
        answers.of("PULL_MESSAGE", code).observe(took_s)
    told = answers.to_json()["PULL_MESSAGE"]
    assert (told["counts"][-1], round(told["sum"], 4)) == (5, 8.5085)
    assert told["counts"][told["bounds"].index(0.007)] == 2
    rows = {row["answer"]: row for row in answers.by_answer()}
    assert {name: row["counts"][-1] for name, row in rows.items()} == {
        "success": 2,
        "system_error": 1,
        UNKNOWN: 2,
    }, "a code that somebody made up has no row of its own"
    assert {row["request"] for row in rows.values()} == {"pull_message"}
    assert rows["success"]["counts"] == [0, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert rows["success"]["sum"] == pytest.approx(502)
    assert rows["success"]["bounds"] == list(RPC_MS)
    assert set(SHORT_S) | {bound / 1000 for bound in RPC_MS} == set(ANSWERS_S)
    assert list(ANSWERS_S) == sorted(ANSWERS_S)
