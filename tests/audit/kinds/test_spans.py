"""The promise of Spans: the same answer as asking every stretch in turn, without asking every one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from audit.findings import Spans

STRETCH = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(STRETCH, max_size=20), STRETCH)
def test_the_first_that_overlaps_is_found(stretches: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    begin, end = asked[0], max(asked[1], asked[0] + 1)
    overlapping = [s for s in sorted(stretches) if s[0] < end and begin < s[1]]
    found = Spans((*s, s) for s in stretches).first(*asked)
    assert found == (overlapping[0] if overlapping else None)
