"""The promise of client.consuming.pop.in_flight: no more than was allowed, and nobody starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.consuming.pop.in_flight import Holding, InFlight

SOURCES = "abcd"
STEPS = st.lists(st.tuples(st.sampled_from(["ask", "answer", "end", "open", "close"]), st.integers(0, 99)))


@given(number_max=st.integers(1, 40), bytes_max=st.integers(1, 500), steps=STEPS)
def test_whatever_happens_the_bounds_hold(
    number_max: int, bytes_max: int, steps: list[tuple[str, int]]
) -> None:
    in_hand: InFlight[str] = InFlight(number_max, bytes_max)
    asked: dict[str, tuple[Holding, int]] = {}
    held: list[Holding] = []
    opened: set[str] = set()
    for what, number in steps:
        source = SOURCES[number % 4]
        if what == "open":
            in_hand.open(source)
            opened.add(source)
        elif what == "close" and source in opened:
            in_hand.close(source)
            opened.discard(source)
            if source in asked:  # its pop was broken off
                asked.pop(source)[0].on_answer([])
        elif what == "ask" and source in opened and source not in asked:
            room = in_hand.room(source)
            if room:
                asked[source] = (in_hand.on_asked(source, room), room)
        elif what == "answer" and source in asked:
            holding, count = asked.pop(source)
            sizes = [10] * (number % (count + 1))
            holding.on_answer(sizes)
            held += [holding] * len(sizes)
        elif what == "end" and held:
            held.pop(number % len(held)).on_end(10)
        in_hand.check_invariants()
        assert (in_hand.number, in_hand.bytes) == (len(held), 10 * len(held))


def test_an_idle_source_that_polls_keeps_no_room_of_a_busy_one() -> None:
    in_hand: InFlight[str] = InFlight(8, 1 << 20)
    for source in "ab":
        in_hand.open(source)
    in_hand.on_asked("a", in_hand.room("a"))
    assert in_hand.room("b") == 4


def test_a_source_with_its_share_of_bytes_is_not_asked() -> None:
    in_hand: InFlight[str] = InFlight(8, 1000)
    for source in "ab":
        in_hand.open(source)
    holding = in_hand.on_asked("a", 1)
    holding.on_answer([500])
    assert (in_hand.room("a"), in_hand.room("b")) == (0, 4)
    holding.on_end(500)
    assert in_hand.room("a") == 4
