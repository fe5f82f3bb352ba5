"""The promise of admin.handover: whom it names when nobody says who shall be master."""

from __future__ import annotations

import dataclasses

import pytest

from admin.handover import LEVEL_BYTES, CannotHandOver, _best, _choose
from client.admin import SyncState

ADDRESSES = {number: f"10.0.0.{number}:10911" for number in (1, 2, 3)}
STATE = SyncState("g", 1, ADDRESSES[1], 4, 9, ADDRESSES, {}, dict.fromkeys(ADDRESSES, True), {}, {})


def best(**known: object) -> int:
    return _best(dataclasses.replace(STATE, **known), [2, 3])  # type: ignore[arg-type]


def test_of_equals_and_of_those_nothing_is_known_of_it_is_the_smallest_id() -> None:
    assert best() == 2
    assert best(ends={2: (4, 100), 3: (4, 100)}, priorities={2: 5, 3: 5}) == 2


def test_it_happens_after_what_was_seen_or_not_at_all() -> None:
    assert _choose(STATE, "g", 2, (1, 4)) == (1, 2)
    for seen in ((1, 3), (2, 4), (3, 9)):
        with pytest.raises(CannotHandOver, match=r"broker 1 leads g in epoch 4 by now, no more broker"):
            _choose(STATE, "g", 2, seen)


def test_it_is_nobody_dead() -> None:
    assert best(alive={1: True, 2: False, 3: True}) == 3
    with pytest.raises(CannotHandOver, match="is alive"):
        best(alive={1: True, 2: False, 3: False})


def test_the_lower_priority_wins_among_those_that_are_level() -> None:
    level = {2: (4, 100 + LEVEL_BYTES), 3: (4, 100)}
    assert best(ends=level, priorities={2: 7, 3: 1}) == 3
    assert best(ends=level, priorities={3: 1}) == 3


def test_one_that_lacks_much_or_has_not_met_the_master_comes_last() -> None:
    assert best(ends={2: (4, 100), 3: (4, 101 + LEVEL_BYTES)}, priorities={2: 1, 3: 7}) == 3
    assert best(ends={2: (3, 999), 3: (4, 100)}, priorities={2: 1, 3: 7}) == 3
