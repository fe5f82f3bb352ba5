"""The promise of comparing replicas: what queue and index say wins, else what most say, and where nobody can
tell nothing is changed."""

from __future__ import annotations

import pytest

from store.heal.agreement import Copy, decide

MINE, THEIRS, THIRD = b"mine", b"theirs", b"third"


def _copy(data: bytes, whole: bool = True, named: bool = False) -> Copy:
    return Copy(data, whole, named)


@pytest.mark.parametrize(
    ("copies", "winner"),
    [
        ([_copy(MINE), _copy(THEIRS), _copy(THEIRS)], THEIRS),
        ([_copy(MINE, named=True), _copy(THEIRS), _copy(THEIRS)], None),
        ([_copy(MINE, named=True), _copy(MINE, named=True), _copy(THEIRS)], MINE),
        ([_copy(MINE), _copy(MINE), _copy(THEIRS, named=True)], THEIRS),
        ([_copy(MINE, named=True), _copy(THEIRS, named=True), _copy(THEIRS, named=True)], THEIRS),
        ([_copy(MINE), _copy(THEIRS, named=True), _copy(THIRD, named=True)], None),
        ([_copy(MINE, whole=False), _copy(THEIRS, named=True), _copy(THIRD)], THEIRS),
        ([_copy(MINE), _copy(THEIRS), _copy(MINE)], MINE),
        ([_copy(MINE, whole=False), _copy(THEIRS)], THEIRS),
        ([_copy(MINE), _copy(THEIRS, whole=False)], MINE),
        ([_copy(MINE), _copy(THEIRS)], None),
        ([_copy(MINE, named=True), _copy(THEIRS)], MINE),
        ([_copy(MINE), _copy(THEIRS, named=True)], THEIRS),
        ([_copy(MINE, named=True), _copy(THEIRS, named=True)], None),
        ([_copy(MINE), _copy(THEIRS), _copy(THIRD)], None),
        ([_copy(MINE, whole=False), _copy(THEIRS, whole=False)], None),
    ],
)
def test_who_is_right(copies: list[Copy], winner: bytes | None) -> None:
    assert decide(copies) == winner


def test_an_operator_who_names_the_copies_may_outvote_queue_and_index() -> None:
    copies = [_copy(MINE, named=True), _copy(THEIRS), _copy(THEIRS)]
    assert decide(copies, by_operator=True) == THEIRS
    assert decide(copies[:2], by_operator=True) == MINE
