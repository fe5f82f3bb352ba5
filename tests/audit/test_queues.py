"""The promise of audit.queues: gaps, doubles and disorder are told apart, and a new topic is none of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.queues import Place, begins_again, explain


def places(*offsets: int) -> list[Place]:
    return [Place(n * 100, q, 1, f"K{n}") for n, q in enumerate(offsets)]


@pytest.mark.parametrize(
    ("offsets", "kinds"),
    [
        ([0, 1, 2], []),
        ([5, 6, 7], []),
        ([0, 1, 3], ["queue_gap"]),
        ([0, 1, 1, 2], ["dup_queue_offset"]),
        ([0, 0, 3, 3], ["dup_queue_offset", "queue_gap", "dup_queue_offset"]),
        ([0, 2, 1, 3], ["queue_order"]),
        ([0, 1, 2, 0, 1, 2, 3], []),
        ([0, 1, 2, 0, 3], ["dup_queue_offset"]),
    ],
)
def test_each_break_has_its_name(offsets: list[int], kinds: list[str]) -> None:
    assert sorted(f.kind for f in explain(places(*offsets), whole=False)) == sorted(kinds)


@pytest.mark.parametrize(
    ("offsets", "again", "doubtful"),
    [
        ([0, 1, 2, 0, 1], [300], []),
        ([0, 1, 2, 0], [300], [300]),
        ([0, 1, 2, 0, 3], [], []),
        ([0, 0], [], []),
        ([0, 1, 0, 1, 0, 1], [200, 400], []),
    ],
)
def test_a_queue_that_begins_again_is_told_from_a_double(
    offsets: list[int], again: list[int], doubtful: list[int]
) -> None:
    assert begins_again(places(*offsets)) == again
    assert [f.offset for f in explain(places(*offsets), whole=True) if f.doubtful] == doubtful


def test_a_log_from_its_beginning_has_queues_from_theirs() -> None:
    (gap,) = explain(places(2, 3), whole=True)
    assert (gap.kind, gap.queue_offset, gap.records) == ("queue_gap", 0, 2)


def test_a_batch_takes_as_many_places_as_it_has_messages() -> None:
    assert explain([Place(0, 0, 4, ""), Place(1, 4, 1, "")], whole=True) == []


@given(st.integers(0, 50), st.integers(2, 30), st.data())
def test_the_places_of_a_gap_are_exactly_those_that_are_gone(
    start: int, count: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.integers(start + 1, start + count), max_size=count))
    kept = [q for q in range(start, start + count + 2) if q not in gone]
    faults = explain(places(*kept), whole=False)
    assert all(f.kind == "queue_gap" for f in faults)
    named = {q for f in faults for q in range(f.queue_offset, f.queue_offset + f.records)}
    assert named == gone
