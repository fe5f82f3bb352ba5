"""The promise of runtime.tls.queue: whoever floods, other addresses have their turn."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

from runtime.tls import queue as queues
from runtime.tls.queue import Queue

MOST = 4


@dataclass(frozen=True, eq=False)
class Caller:
    host: str
    number: int = 0


def filled(host: str, count: int) -> Queue[Caller]:
    queue: Queue[Caller] = Queue()
    for number in range(count):
        queue.add(Caller(host, number))
    return queue


def taken(queue: Queue[Caller], count: int) -> list[Caller]:
    found = []
    for _ in range(count):
        found.append(queue.next(MOST))
        queue.take(found[-1], MOST)
        queue.check_invariants()
    return found


def test_an_address_with_a_thousand_that_wait_has_its_turn_as_another() -> None:
    queue = filled("flood", 1000)
    for number in range(3):
        queue.add(Caller("other", number))
    assert [one.host for one in taken(queue, 7)] == ["flood", "other"] * 3 + ["flood"]


def test_few_go_in_order_and_of_a_flood_the_newest_is_first() -> None:
    assert [one.number for one in taken(filled("a", MOST), MOST)] == [0, 1, 2, 3]
    assert [one.number for one in taken(filled("a", 10), 2)] == [9, 8]
    queue: Queue[Caller] = Queue()
    for number in range(10):
        queue.add(Caller(f"host {number}"))
    assert [one.host for one in taken(queue, 2)] == ["host 9", "host 8"]
    assert queue.last(MOST).host == "host 0"


def test_who_has_no_place_to_wait_in_ends_and_it_is_one_of_those_that_have_most() -> None:
    """Of a flood the eldest, whose turn would come last; of few the newest."""
    queue: Queue[Caller] = Queue()
    queue.add(Caller("one"))
    for host, count in (("flood", 1000), ("few", 3)):
        for number in range(count):
            queue.add(Caller(host, number))
    queue.on_ended_well("known")
    queue.add(Caller("known"))
    ended = []
    for _ in range(1005):
        ended.append(queue.last(MOST))
        queue.remove(ended[-1])
        queue.check_invariants()
    assert [(one.host, one.number) for one in ended[:996]] == [("flood", number) for number in range(996)]
    assert [one.host for one in ended[-4:-1]] == ["few", "flood", "one"], "of as many, whose turn is last"
    assert ended[-1].host == "known"


def test_who_is_looked_at_and_finds_no_place_keeps_its_turn() -> None:
    queue: Queue[Caller] = Queue()
    for number in range(10):
        queue.add(Caller(f"host {number}"))
    looked = [queue.look(MOST) for _ in range(MOST + 2)]
    assert [one and one.host for one in looked] == ["host 9", "host 8", "host 7", "host 6", None, "host 9"]
    assert [one.host for one in taken(queue, 2)] == ["host 9", "host 8"]
    assert cast(Caller, queue.look(MOST)).host == "host 7", "since one began"
    queue.look_anew()
    assert cast(Caller, queue.look(MOST)).host == "host 7"
    few = filled("a", 1)
    few.on_ended_well("known")
    for host in ("known", "b"):
        few.add(Caller(host))
    assert [cast(Caller, few.look(MOST)).host for _ in range(3)] == ["known", "a", "b"]
    assert few.look(MOST) is None


def test_addresses_that_ended_one_well_have_every_second_turn() -> None:
    queue: Queue[Caller] = Queue()
    queue.on_ended_well("peer")
    for number in range(1000):
        queue.add(Caller(f"stranger {number}"))
    for number in range(3):
        queue.add(Caller("peer", number))
    assert [one.host == "peer" for one in taken(queue, 7)] == [True, False, True, False, True, False, False]


def test_few_addresses_are_remembered() -> None:
    queue: Queue[Caller] = Queue()
    for number in range(queues.KNOWN_MAX + 10):
        queue.on_ended_well(str(number))
    assert len(queue._known) == queues.KNOWN_MAX
    assert "9" not in queue._known


def test_whatever_comes_and_goes_all_are_counted() -> None:
    chance, queue, waiting = random.Random(5), Queue[Caller](), list[Caller]()
    for _ in range(3000):
        what = chance.random()
        if what < 0.5 or not waiting:
            waiting.append(Caller(str(chance.randrange(9))))
            queue.add(waiting[-1])
        elif what < 0.7:
            queue.remove(waiting.pop(chance.randrange(len(waiting))))
        elif what < 0.8:
            assert (queue.look(MOST) or queue.last(MOST)) in waiting
        elif what < 0.85:
            queue.on_ended_well(str(chance.randrange(9)))
        else:
            waiting.remove(taken(queue, 1)[0])
        queue.check_invariants()
        assert len(queue) == len(waiting)
