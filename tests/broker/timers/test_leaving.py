"""The promises of broker.timers.leaving: nothing leaves before it is over, and its recalls are read."""

from __future__ import annotations

from broker.timers.leaving import Leaving


def test_a_slot_leaves_when_it_is_over_and_what_was_in_the_log_then_is_read() -> None:
    leaving = Leaving()
    assert not leaving.on_turn(100, 100, 5)
    assert leaving.on_turn(100, 200, 5)
    assert not leaving.may(100, 200, 4, 9)
    assert leaving.on_turn(100, 300, 9)
    assert leaving.may(100, 300, 5, 9), "what comes later keeps none that was over"
    assert not leaving.may(200, 300, 99, 99), "that is over for the next turn"
    assert leaving.on_turn(200, 300, 9)
    assert not leaving.may(200, 300, 8, 9)


def test_a_clock_that_goes_back_keeps_what_it_let_go() -> None:
    leaving = Leaving()
    assert leaving.on_turn(100, 3_600_000, 0)
    assert leaving.may(100, 3_600_000, 0, 0)
    assert not leaving.may(200, 200, 0, 0), "in the same turn"
    assert not leaving.on_turn(200, 200, 0)
    assert leaving.on_turn(200, 300, 7)
    assert not leaving.may(200, 300, 6, 7), "it may have been recalled meanwhile"
    assert leaving.may(200, 300, 7, 7)
    assert not leaving.may(300, 300, 7, 7)


def test_what_rolled_is_read_before_its_slot_leaves_and_keeps_none_before_it() -> None:
    leaving = Leaving()
    assert leaving.on_turn(100, 1000, 5)
    leaving.on_rolled(600)
    leaving.on_rolled(800)
    assert leaving.may(500, 1000, 5, 7)
    assert not leaving.may(600, 1000, 5, 7)
    assert not leaving.may(600, 1000, 6, 8)
    assert leaving.may(600, 1000, 7, 8)
    assert leaving.may(900, 1000, 7, 8)
