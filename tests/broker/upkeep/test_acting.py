"""Who stands in, and what becomes of the offsets it kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.tables.offsets import OffsetTable
from broker.upkeep.acting import stands_in
from model.codes import Request
from tests.broker.helpers import client_of, eventually, pair, topic


@pytest.mark.parametrize(
    ("own", "registered", "acts"),
    [(2, [2, 3], True), (3, [2, 3], False), (2, [0, 2, 3], False), (2, [], False), (3, [3], True)],
)
def test_the_smallest_id_stands_in_while_there_is_no_master(
    own: int, registered: list[int], acts: bool
) -> None:
    assert stands_in(own, registered) is acts


def table() -> OffsetTable:
    made = OffsetTable(lambda: 1)
    made.commit("g", "t", 0, 5)
    return made


def test_what_is_kept_goes_forwards_only_and_no_copied_table_replaces_it() -> None:
    offsets = table()
    offsets.hold_for_master("g", "t", 0, 9)
    offsets.hold_for_master("g", "t", 0, 7)
    assert offsets.get("g", "t", 0) == 9
    offsets.adopt({"offsetTable": {"t@g": {"0": 6}}})
    assert offsets.get("g", "t", 0) == 9
    offsets.adopt({"offsetTable": {"t@g": {"0": 12}}})
    assert offsets.get("g", "t", 0) == 12


def test_what_was_kept_since_an_entry_left_stays() -> None:
    offsets = table()
    offsets.hold_for_master("g", "t", 0, 9)
    offsets.hold_for_master("g", "t", 0, 11)
    offsets.handed_over("t", "g", 0, 9)
    assert offsets.held_for_master() == [("t", "g", 0, 11)]
    offsets.handed_over("t", "g", 0, 11)
    assert (offsets.held_for_master(), offsets.get("g", "t", 0)) == ([], 5)


def test_a_new_master_takes_what_it_kept_itself_where_it_is_further() -> None:
    offsets = table()
    offsets.commit("g", "t", 1, 20)
    offsets.hold_for_master("g", "t", 0, 9)
    offsets.hold_for_master("g", "t", 1, 10)
    offsets.take_held(lambda topic, queue_id: 100)
    assert (offsets.get("g", "t", 0), offsets.get("g", "t", 1), offsets.held_for_master()) == (9, 20, [])
    assert offsets.to_json()["offsetTable"]["t@g"] == {0: 9, 1: 20}


async def test_an_offset_of_what_the_master_does_not_have_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Its topic was deleted at the master, or its queues are fewer: nobody will ask for it."""

    keys = {"enableSlaveActingMaster": "true"}
    async with pair(tmp_path, **keys) as (one, two), client_of(one) as client:
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await client.send("T")).code == 0
        for name, queue_id in (("Gone", 0), ("T", 99), ("T", 0)):
            two.offsets.hold_for_master("g", name, queue_id, 1)
        two.upkeep.acting.soon()
        await eventually(lambda: one.offsets.get("g", "T", 0) == 1, "the master has what it lacked")
        await eventually(lambda: two.offsets.held_for_master() == [], "nothing is kept to be offered again")
