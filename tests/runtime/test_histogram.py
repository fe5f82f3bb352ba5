"""The promise of a histogram: each value is counted at its bound, all at the last one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.report.histogram import Histogram


@given(st.lists(st.floats(-1, 100, allow_nan=False)))
def test_counts_are_of_what_is_at_most_the_bound(values: list[float]) -> None:
    histogram = Histogram((0.5, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    found = histogram.to_json()
    assert found["bounds"] == [0.5, 1.0, 10.0]
    assert found["counts"] == [*(sum(v <= bound for v in values) for bound in found["bounds"]), len(values)]
    assert abs(found["sum"] - sum(max(v, 0.0) for v in values)) < 1e-3
