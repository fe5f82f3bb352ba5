"""The promise of runtime.tls.queue: whoever floods, other addresses have their turn."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
    assert queue.last().host == "host 0"


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
            queue.pass_over(queue.next(MOST), MOST)
        elif what < 0.85:
            queue.on_ended_well(str(chance.randrange(9)))
        else:
            waiting.remove(taken(queue, 1)[0])
        queue.check_invariants()
        assert len(queue) == len(waiting)
