"""The promise of broker.tables.resets: a reset stands until it is read from, and they take bounded memory."""

from __future__ import annotations

import pytest

from broker.tables import resets
from broker.tables.offsets import OffsetTable
from broker.tables.resets import Resets


def test_each_stands_until_it_is_read_from() -> None:
    found = Resets()
    found.add("g", "T", 0, 5)
    found.add("g", "T", 1, 6)
    found.add("g", "T", 0, 7)
    assert (found.get("g", "T", 0), found.get("g", "T", 1), found.get("h", "T", 0)) == (7, 6, None)
    found.end("g", "T", 0)
    found.end("g", "T", 0)
    found.end("nobody", "T", 0)
    assert (found.get("g", "T", 0), found.count) == (None, 1)
    found.check_invariants()


def test_of_many_the_oldest_pairs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets, "QUEUES_MAX", 3)
    found = Resets()
    for group in ("a", "b", "c"):
        found.add(group, "T", 0, 1)
        found.add(group, "T", 1, 1)
        found.check_invariants()
    assert [found.get(group, "T", 0) for group in ("a", "b", "c")] == [None, None, 1]


@pytest.mark.parametrize("what", ["group", "topic", "copied", "elected"])
def test_none_outlives_its_group_its_topic_or_the_role(what: str) -> None:
    table = OffsetTable(lambda: 1)
    asked: list[tuple[str, int]] = []
    table.on_reset.append(lambda topic, queue_id: asked.append((topic, queue_id)))
    table.reset("g", "T", 3, 5)
    assert (table.get("g", "T", 3), table.resets.get("g", "T", 3), asked) == (5, 5, [("T", 3)])
    match what:
        case "group":
            table.drop_group("g")
        case "topic":
            table.drop_topic("T")
        case "copied":
            table.adopt({"offsetTable": {"T@g": {"3": 9}}})
        case _:
            table.take_held(lambda topic, queue_id: 100)
    assert table.resets.count == 0
    table.check_invariants()
