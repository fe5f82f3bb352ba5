"""The promise of broker.tables.resets: a reset stands until it is read from, whoever is master."""

from __future__ import annotations

import json

import pytest

from broker.tables import resets
from broker.tables.offsets import OffsetTable
from broker.tables.resets import GOING_MS, Resets

PAIR = ("T", "g")


def test_each_stands_until_it_is_read_from() -> None:
    found = Resets()
    found.add(PAIR, 0, 5)
    found.add(PAIR, 1, 6)
    found.add(PAIR, 0, 7)
    assert (found.get(PAIR, 0), found.get(PAIR, 1), found.get(("T", "h"), 0)) == (7, 6, None)
    assert found.end(PAIR, 0)
    assert not found.end(PAIR, 0)
    assert not found.end(("T", "nobody"), 0)
    assert (found.get(PAIR, 0), found.of(PAIR), found.count) == (None, {1: 6}, 1)
    found.check_invariants()


def test_of_many_the_oldest_pairs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets, "QUEUES_MAX", 3)
    found = Resets()
    for group in ("a", "b", "c"):
        found.add(("T", group), 0, 1)
        found.add(("T", group), 1, 1)
        found.check_invariants()
    assert [found.get(("T", group), 0) for group in ("a", "b", "c")] == [None, None, 1]


def table() -> OffsetTable:
    made = OffsetTable(lambda: 1)
    made.commit("g", "T", 3, 9)
    return made


@pytest.mark.parametrize("what", ["group", "topic", "a clone"])
def test_none_outlives_its_group_its_topic_or_a_later_word(what: str) -> None:
    made, asked = table(), list[tuple[str, int]]()
    made.on_reset.append(lambda topic, queue_id: asked.append((topic, queue_id)))
    made.reset("g", "T", 3, 5)
    assert (made.get("g", "T", 3), made.reset_stands("g", "T", 3, 0), asked) == (5, 5, [("T", 3)])
    match what:
        case "group":
            made.drop_group("g")
        case "topic":
            made.drop_topic("T")
        case _:
            made.commit("source", "T", 3, 8)
            made.clone_group("source", "g", "T")
    assert made.resets.count == 0
    made.check_invariants()


def test_who_was_told_has_half_a_minute_to_go_there() -> None:
    made = table()
    made.reset("g", "T", 3, 5)
    assert made.reset_stands("g", "T", 3, 10**9) == 5, "nobody was told"
    made.resets.on_told(PAIR, 3, 1000)
    assert made.reset_stands("g", "T", 3, 1000 + GOING_MS - 1) == 5
    assert made.reset_stands("g", "T", 3, 1000 + GOING_MS) is None
    assert made.resets.count == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_slave_has_those_of_its_master_and_no_other(whole: bool) -> None:
    master, slave = table(), OffsetTable(lambda: 1)

    def copied(mark: int) -> None:
        told = master.to_json() if whole or mark < 0 else master.changed_since(mark)
        slave.adopt(json.loads(json.dumps(told)))
        slave.check_invariants()

    copied(-1)
    mark = master.mark
    master.reset("g", "T", 3, 9)  # where it is: the reset stands all the same
    copied(mark)
    assert (slave.get("g", "T", 3), slave.reset_stands("g", "T", 3, 0)) == (9, 9)
    mark = master.mark
    master.reset("g", "T", 3, 5)
    copied(mark)
    assert (slave.get("g", "T", 3), slave.reset_stands("g", "T", 3, 0)) == (5, 5)
    slave.take_held(lambda topic, queue_id: 100)
    assert slave.reset_stands("g", "T", 3, 0) == 5, "it is master now"
    mark = master.mark
    master.end_reset("g", "T", 3)
    copied(mark)
    assert slave.resets.count == 0


def test_it_outlives_a_restart() -> None:
    made, again = table(), OffsetTable(lambda: 1)
    assert "resetOffsetTable" not in made.to_json(), "RocketMQ's file, as ever"
    made.reset("g", "T", 3, 5)
    again.load(json.loads(json.dumps(made.to_json())))
    assert again.reset_stands("g", "T", 3, 0) == 5
    again.check_invariants()
