"""The promise of broker.tables.resets: a reset stands until it is read from, whoever is master."""

from __future__ import annotations

import json

import pytest

from broker.tables import resets
from broker.tables.offsets import OffsetTable
from broker.tables.resets import AGAIN_MS, GOING_MS, Resets
from remoting import bodies
from runtime.turns import Slice
from tests.broker.turn_meter import counted_slices

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
    made, asked = table(), list[tuple[str, int | None]]()
    made.on_reset.append(lambda group, topic, queue_id: asked.append((topic, queue_id)))
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


class Peer:
    """A connection."""


def test_who_may_not_have_heard_it_is_told_again_and_who_goes_on_as_before_not_without_end() -> None:
    """It counted as told when the answer was made: one that got lost undid the reset half a minute later."""
    made, one, other = table(), Peer(), Peer()
    made.reset("g", "T", 3, 5)
    found = made.resets
    for to, at_ms, told in (
        (one, 0, True),
        (one, AGAIN_MS - 1, False),
        (one, 10 * GOING_MS, True),
        (other, 10 * GOING_MS + 1, True),
        (one, 10 * GOING_MS + 2, False),
    ):
        assert made.reset_stands("g", "T", 3, at_ms) == 5
        assert found.is_to_tell(PAIR, 3, to, at_ms) is told, at_ms
        if told:
            found.on_told(PAIR, 3, to, at_ms)
    assert made.reset_stands("g", "T", 3, 11 * GOING_MS) == 5
    assert made.reset_stands("g", "T", 3, 11 * GOING_MS + 1) is None
    assert made.resets.count == 0


def test_who_reads_from_there_and_commits_something_else_has_half_a_minute() -> None:
    made, one = table(), Peer()
    made.reset("g", "T", 3, 5)
    assert made.reset_stands("g", "T", 3, 10**9) == 5, "nobody was told"
    made.resets.on_told(PAIR, 3, one, 1000)
    made.resets.on_heard(PAIR, 3)
    assert not made.resets.is_to_tell(PAIR, 3, one, 1000 + AGAIN_MS)
    assert made.reset_stands("g", "T", 3, 1000 + GOING_MS - 1) == 5
    assert made.reset_stands("g", "T", 3, 1000 + GOING_MS) is None
    assert made.resets.count == 0


def test_a_connection_that_has_ended_is_not_kept() -> None:
    made = table()
    made.reset("g", "T", 3, 5)
    made.resets.on_told(PAIR, 3, Peer(), 0)
    assert made.resets.is_to_tell(PAIR, 3, Peer(), 1)
    made.resets.on_told(("T", "nobody"), 3, Peer(), 0)


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


@pytest.mark.parametrize("whole", [True, False])
def test_a_reset_that_changes_no_offset_is_written_by_a_slave_and_told_on(whole: bool) -> None:
    """Its file stayed as it was, and was acknowledged as written."""
    master, slave, third = table(), table(), table()
    writes = list[int]()
    slave.on_change.append(lambda: writes.append(slave.mark))

    def copied() -> bool:
        told = master.to_json() if whole else master.changed_since(master.mark - 1)
        changed = slave.adopt(json.loads(json.dumps(told)))
        third.adopt(json.loads(json.dumps(slave.changed_since(third_mark))))
        return changed

    for step, change in enumerate((master.reset, lambda *place: master.end_reset(*place[:3]))):
        third_mark = slave.mark
        change("g", "T", 3, 9)
        assert copied()
        assert (len(writes), slave.mark) == (step + 1, third_mark + 1)
        for one in (slave, third):
            assert (one.get("g", "T", 3), one.resets.get(PAIR, 3)) == (9, None if step else 9)
            one.check_invariants()
        third_mark = slave.mark
        assert not copied(), "nothing is new"
        assert len(writes) == step + 1


@pytest.mark.parametrize("part", [True, False])
async def test_those_of_many_pairs_are_written_one_a_look(
    part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, again = OffsetTable(lambda: 1), OffsetTable(lambda: 1)
    mark = made.mark
    for number in range(300):
        made.reset(f"g{number}", "T", 3, 5)
    slices, written = counted_slices(monkeypatch), list[str]()

    def value(name: str) -> dict[int, int]:
        written.append(name)
        return {3: 5}

    monkeypatch.setattr(made.resets.text, "_value", value)
    turn = Slice(lambda: 0.0)
    await (made.prepare_since(mark, turn) if part else made.prepare(turn))
    assert slices.looks >= 600, "an offset and a reset of each"
    assert len(written) == 300
    text = made.since(mark) if part else made.to_text()
    assert text is not None
    again.adopt(bodies.believed_object(bodies.dumps_dialect(text)))
    assert len(written) == 300
    assert again.to_json()["resetOffsetTable"] == made.to_json()["resetOffsetTable"]
    assert again.resets.count == 300


def test_it_outlives_a_restart() -> None:
    made, again = table(), OffsetTable(lambda: 1)
    assert "resetOffsetTable" not in made.to_json(), "RocketMQ's file, as ever"
    made.reset("g", "T", 3, 5)
    again.load(json.loads(json.dumps(made.to_json())))
    assert again.reset_stands("g", "T", 3, 0) == 5
    again.check_invariants()


def test_up_to_where_offsets_hold_the_pops_goes_with_them_and_is_unknown_of_an_older_version() -> None:
    made, slave, restarted = (OffsetTable(lambda: 1) for _ in range(3))
    assert "popsUpTo" not in made.to_json(), "RocketMQ's file, as ever"
    made.commit("g", "T", 0, 5)
    mark, made.pops_to = made.mark, 1000
    assert slave.adopt(made.to_json())
    restarted.load(json.loads(json.dumps(slave.to_json())))
    assert (slave.pops_to, restarted.pops_to) == (1000, 1000)
    made.pops_to = 2000
    changed: list[int] = []
    slave.on_change.append(lambda: changed.append(1))
    assert slave.adopt(made.changed_since(mark)), "it alone is new, and to be written"
    assert (slave.pops_to, len(changed)) == (2000, 1)
    assert not slave.adopt(made.changed_since(mark))
    slave.clamp_pops(1500)
    assert slave.pops_to == 1500
    slave.adopt({"offsetTable": {"T@g": {"0": 6}}})
    slave.clamp_pops(0)
    assert slave.get("g", "T", 0) == 6
    assert slave.pops_to is None
