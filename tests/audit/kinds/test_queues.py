"""The promise of audit.queues: gaps, doubles and disorder are told apart, and a new topic is none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.queues import Run, Runs, begins_again, explain


def runs(*offsets: int, remade: int = -1) -> Runs:
    """Records of one queue in log order, as runs."""
    made: list[Run] = []
    for n, place in enumerate(offsets):
        if made and made[-1].end == place:
            made[-1] = made[-1]._replace(end=place + 1, last=n * 100)
        else:
            made.append(Run(n * 100, place, place + 1, f"K{n}", n * 100))
    return Runs(made, remade=remade)


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
    assert sorted(f.kind for f in explain(runs(*offsets, remade=1 << 62), whole=False)) == sorted(kinds)


@pytest.mark.parametrize(
    ("offsets", "again"),
    [
        ([0, 1, 2, 0, 1], [300]),
        ([0, 1, 2, 0], [300]),
        ([0, 1, 2, 0, 3], []),
        ([0, 0], []),
        ([0, 1, 0, 1, 0, 1], [200, 400]),
    ],
)
@pytest.mark.parametrize("remade", [-1, 200, 1 << 62])
def test_a_queue_that_begins_again_is_told_from_a_double(
    offsets: list[int], again: list[int], remade: int
) -> None:
    """It is lawful where the queue's files know nothing of what was before."""
    of = runs(*offsets, remade=remade)
    assert begins_again(of) == again
    assert [f.offset for f in explain(of, whole=True) if f.doubtful] == [at for at in again if at > remade]


def test_the_places_taken_by_a_queue_that_begins_again_are_counted() -> None:
    (fault,) = explain(runs(*range(50), *range(30)), whole=True)
    assert (fault.kind, fault.queue_offset, fault.records, fault.doubtful) == (
        "dup_queue_offset",
        0,
        30,
        True,
    )


def test_a_log_from_its_beginning_has_queues_from_theirs() -> None:
    (gap,) = explain(runs(2, 3), whole=True)
    assert (gap.kind, gap.queue_offset, gap.records) == ("queue_gap", 0, 2)


def test_a_stretch_that_stands_twice_is_one_fault() -> None:
    (fault,) = explain(runs(*range(5, 40), *range(10, 60)), whole=False)
    assert (fault.kind, fault.queue_offset, fault.records, fault.found) == (
        ("dup_queue_offset", 10, 30, "10 to 39")
    )


def test_a_stretch_that_fills_gaps_in_part_is_told_apart() -> None:
    faults = explain(runs(0, 1, 2, 5, 6, 9, *range(2, 10), 10), whole=False)
    assert [(f.kind, f.queue_offset, f.records) for f in faults] == [
        ("dup_queue_offset", 2, 1),
        ("dup_queue_offset", 5, 2),
        ("dup_queue_offset", 9, 1),
        ("queue_order", 3, 2),
        ("queue_order", 7, 2),
    ]


def test_what_is_wrong_behind_the_runs_that_are_listed_is_counted() -> None:
    listed = runs(0, 1, 5, 3, 2).listed
    faults = explain(Runs(listed, more=7, last=9000), whole=True)
    assert (faults[-1].kind, faults[-1].records, faults[-1].until) == ("queue_order", 7, 9001)
    assert sorted(f.kind for f in faults[:-1]) == ["dup_queue_offset", "queue_order"]


FAR: Final = 1 << 58


@pytest.mark.parametrize(
    ("offsets", "kind", "at", "place", "expected", "whole"),
    [
        ([0, 1, 2, FAR, 4, 5, 6], "queue_order", 3, FAR, "3", True),
        ([0, 1, 2, 40, 4, 5, 6], "queue_order", 3, 40, "3", True),
        ([0, 1, 2, 1, 4, 5, 6], "dup_queue_offset", 3, 1, "3", True),
        ([FAR, 1, 2, 3], "queue_order", 0, FAR, "0", True),
        ([FAR, 8, 9, 10], "queue_order", 0, FAR, "7", False),
        ([0, 1, 2, FAR], "queue_order", 3, FAR, "3", True),
    ],
)
def test_one_wrong_place_is_one_fault_at_its_record(
    offsets: list[int], kind: str, at: int, place: int, expected: str, whole: bool
) -> None:
    """All places behind it looked out of order, and as many were missing as an offset can tell."""
    (fault,) = explain(runs(*offsets), whole=whole)
    assert (fault.kind, fault.offset, fault.until) == (kind, at * 100, at * 100 + 1)
    assert (fault.queue_offset, fault.expected, fault.records) == (place, expected, 1)


def test_a_gap_that_one_fills_late_is_no_wrong_place() -> None:
    faults = explain(runs(0, 1, 4, 5, 2, 7, 8), whole=True)
    assert [(f.kind, f.queue_offset) for f in faults] == [
        ("queue_gap", 3),
        ("queue_gap", 6),
        ("queue_order", 2),
    ]


def with_wrong(*offsets: int, wrong: int) -> Runs:
    """Runs of which the record at place ``wrong`` of the list is another one on the other replicas."""
    of = runs(*offsets)
    return replace(of, listed=[run._replace(wrong=run.offset == wrong * 100) for run in of.listed])


@pytest.mark.parametrize("place", [1 << 28, 0, 2, 6])
def test_a_record_that_others_have_otherwise_tells_no_place(place: int) -> None:
    """A place far ahead made all behind it look out of order, and a real gap there was not named as one."""
    faults = explain(with_wrong(0, 1, 2, place, 4, 5, 8, 9, wrong=3), whole=True)
    assert [(f.kind, f.offset, f.queue_offset, f.records) for f in faults] == [
        ("queue_gap", 200, 3, 1),
        ("queue_gap", 500, 6, 2),
    ]


def test_a_queue_does_not_begin_with_a_record_that_others_have_otherwise() -> None:
    of = with_wrong(1 << 28, 6, 7, 8, wrong=0)
    assert explain(of, whole=False) == []
    (gap,) = explain(of, whole=True)
    assert (gap.kind, gap.offset, gap.until, gap.queue_offset, gap.records) == ("queue_gap", 0, 101, 0, 6)


def test_a_queue_does_not_begin_again_at_a_record_that_others_have_otherwise() -> None:
    assert begins_again(runs(0, 1, 2, 0)) == [300]
    assert begins_again(with_wrong(0, 1, 2, 0, wrong=3)) == []


@given(st.integers(0, 50), st.integers(2, 30), st.data())
def test_the_places_of_a_gap_are_exactly_those_that_are_gone(
    start: int, count: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.integers(start + 1, start + count), max_size=count))
    kept = [q for q in range(start, start + count + 2) if q not in gone]
    faults = explain(runs(*kept), whole=False)
    assert all(f.kind == "queue_gap" for f in faults)
    named = {q for f in faults for q in range(f.queue_offset, f.queue_offset + f.records)}
    assert named == gone


@given(st.lists(st.integers(1, 25), min_size=1, max_size=40))
def test_runs_say_what_a_walk_of_single_records_says(offsets: list[int]) -> None:
    """Places that were skipped and not filled, filled late, or taken twice: counted by a plain walk.

    None is 0: a queue that begins again is another question."""
    expected, twice, late = offsets[0], 0, 0
    follow = offsets[1:3] == [offsets[1], offsets[1] + 1] if len(offsets) > 2 else False
    if follow and offsets[1] - 1 < offsets[0]:
        expected = offsets[1] - 1  # the first one is the one that is wrong
    skipped: set[int] = set()
    for before, place, following in zip([-1, *offsets], offsets, [*offsets[1:], 0], strict=False):
        alone = place != before + 1 and place != expected
        if alone and following == expected + 1 and place not in skipped:
            late, twice = late + (place > expected), twice + (place < expected)
            expected += 1
        elif place >= expected:
            skipped |= set(range(expected, place))
            expected = place + 1
        elif place in skipped:
            late += 1
            skipped.remove(place)
        else:
            twice += 1
    said = dict.fromkeys(("queue_gap", "queue_order", "dup_queue_offset"), 0)
    for fault in explain(runs(*offsets), whole=False):
        said[fault.kind] += fault.records
    assert said == {"queue_gap": len(skipped), "queue_order": late, "dup_queue_offset": twice}
