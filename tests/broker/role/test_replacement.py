"""The promise of broker.role.replacement: a master asks to be replaced when trouble lasts, not for a moment
of it, and ever more seldom when nobody else can serve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.role.replacement import (
    ASKING_MS,
    PAUSE_MAX_MS,
    PAUSE_MS,
    WAIT_MS,
    MasterFacts,
    Replacement,
    Trouble,
)
from model.ids import BrokerId, Epoch

WELL = MasterFacts(can_be_replaced=True, epoch=Epoch(1), cut_off=False, full=False, target=BrokerId(2))
CUT = WELL._replace(cut_off=True)
FULL = WELL._replace(full=True)


@pytest.mark.parametrize(
    ("facts", "trouble"),
    [
        (WELL, None),
        (CUT, Trouble.CUT_OFF),
        (FULL, Trouble.FULL),
        (FULL._replace(cut_off=True), Trouble.CUT_OFF),
        (FULL._replace(target=None), None),
        (CUT._replace(can_be_replaced=False), None),
    ],
)
def test_what_counts_as_trouble(facts: MasterFacts, trouble: Trouble | None) -> None:
    assert facts.trouble is trouble


@pytest.mark.parametrize("facts", [CUT, FULL])
def test_it_asks_when_trouble_lasted_and_not_before(facts: MasterFacts) -> None:
    decider, wait_ms = Replacement(), WAIT_MS[facts.trouble] if facts.trouble else 0
    assert decider.look(facts, 0) is None
    assert decider.look(facts, wait_ms - 1) is None
    assert decider.look(facts, wait_ms) is facts.trouble


@pytest.mark.parametrize("between", [WELL, CUT._replace(can_be_replaced=False), CUT._replace(epoch=Epoch(2))])
def test_trouble_that_passed_or_another_epoch_begins_anew(between: MasterFacts) -> None:
    decider = Replacement()
    decider.look(CUT, 0)
    decider.look(between, 200)
    assert decider.look(between._replace(cut_off=True, can_be_replaced=True), 300) is None


def test_a_refusal_is_followed_by_pauses_that_grow_up_to_a_bound_and_by_none_when_it_passed() -> None:
    decider, now_ms, pauses = Replacement(), 0.0, []
    decider.look(CUT, now_ms)
    for _ in range(8):
        asked_ms = now_ms
        while decider.look(CUT, now_ms) is None:
            now_ms += 100
        pauses.append(now_ms - asked_ms)
        decider.on_refused(now_ms)
    assert pauses[1:] == [min(PAUSE_MS * 2**n, PAUSE_MAX_MS) for n in range(7)]
    decider.look(WELL, now_ms + PAUSE_MAX_MS + 1)
    decider.look(CUT, now_ms := now_ms + PAUSE_MAX_MS + 2)
    assert decider.look(CUT, now_ms + WAIT_MS[Trouble.CUT_OFF]) is Trouble.CUT_OFF


def test_members_stay_in_the_set_until_it_was_refused_or_time_is_up() -> None:
    epoch = CUT.epoch
    decider = Replacement()
    assert decider.keeps_set(epoch, 0), "asked before the first look"
    assert decider.keeps_set(epoch, WAIT_MS[Trouble.CUT_OFF] + ASKING_MS - 1)
    assert not decider.keeps_set(epoch, WAIT_MS[Trouble.CUT_OFF] + ASKING_MS)
    decider = Replacement()
    decider.look(CUT, 0)
    decider.on_refused(400)
    assert not decider.keeps_set(epoch, 401)


@given(st.lists(st.tuples(st.sampled_from([WELL, CUT, FULL]), st.integers(0, 5000), st.booleans())))
def test_refused_it_never_asks_twice_within_the_shortest_pause(
    looks: list[tuple[MasterFacts, int, bool]],
) -> None:
    decider, now_ms, refused_ms = Replacement(), 0, float("-inf")
    for facts, after_ms, keeps in looks:
        now_ms += after_ms
        if keeps:
            decider.keeps_set(facts.epoch, now_ms)
        if decider.look(facts, now_ms) is not None:
            assert now_ms >= refused_ms + PAUSE_MS
            refused_ms = now_ms
            decider.on_refused(now_ms)
