"""The promise of store.files.entry_sizes: each record counts once, at its bound, whichever path counts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.files.compiled import compiled
from store.files.consume_queue import ENTRY, PRE_BLANK_SIZE
from store.files.entry_sizes import counted, counted_slowly

BOUNDS = (100, 1024, 70_000)
SIZES = st.sampled_from([0, PRE_BLANK_SIZE, 100, 101, 1024, 1025, 70_000, 70_001, -7, -(2**31)])


def _entries(sizes: list[int]) -> bytes:
    return b"".join(ENTRY.pack(number << 40, size, -number) for number, size in enumerate(sizes))


def test_a_record_counts_at_the_first_bound_that_is_not_below_it() -> None:
    sizes = [1, 100, 101, 1024, 70_000, 70_001, PRE_BLANK_SIZE - 1, 0, PRE_BLANK_SIZE]
    total = sum(sizes) - PRE_BLANK_SIZE
    for count in (counted, counted_slowly):
        assert count(_entries(sizes), BOUNDS) == ([2, 2, 1, 2], total)
        assert count(b"", BOUNDS) == ([0, 0, 0, 0], 0)
        assert count(_entries(sizes), ()) == ([7], total)


@pytest.mark.skipif(compiled() is None, reason="nothing is compiled here")
@given(st.lists(SIZES | st.integers(-(2**31), 2**31 - 1)), st.sets(st.integers(0, 2**31), max_size=16))
def test_both_paths_count_the_same(sizes: list[int], bounds: set[int]) -> None:
    entries, ordered = _entries(sizes), sorted(bounds)
    assert counted(entries, ordered) == counted_slowly(entries, ordered)


@pytest.mark.skipif(compiled() is None, reason="nothing is compiled here")
def test_more_bounds_than_the_compiled_path_has_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match="17"):
        counted(b"", range(17))
