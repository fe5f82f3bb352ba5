"""The promise of maintenance: another broker is elected while one can be, and nothing is lost for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.elections.preview import ElectionRequest
from controller.groups.commands import (
    BROKER_ID_INVALID,
    INVALID_REQUEST,
    METADATA_NOT_EXIST,
    SUCCESS,
    Answer,
    CleanBrokers,
    ElectMaster,
    SetMaintenance,
)
from controller.groups.elect import Ballot, End, choose
from controller.groups.table import ReplicaTable
from model.codes import Request
from model.errors import Refused
from tests.fakes.controller.decider import G, Lab
from tests.fakes.controller.live import World, run
from tests.fakes.controller.raft_sim import wait_for

IDS = (1, 2, 3)
BALLOT = Ballot(members=IDS, voters=IDS, alive=(2, 3), answered=(2, 3), master=1, ends={}, maintenance=(2,))


def maintain(lab: Lab, broker_id: int, on: bool = True, group: str = G) -> Answer:
    return lab.apply(SetMaintenance(group=group, broker_id=broker_id, on=on))


@pytest.mark.parametrize(
    "more", [{}, {"all_ack": True}, {"majority_of": 3}, {"unclean": True, "members": ()}]
)
def test_of_equal_logs_another_broker_leads(more: dict[str, Any]) -> None:
    assert choose(replace(BALLOT, **{"maintenance": ()} | more)) == 2
    assert choose(replace(BALLOT, **more)) == 3


@pytest.mark.parametrize("more", [{}, {"all_ack": True}, {"majority_of": 1}])
def test_where_there_is_no_other_it_leads_all_the_same(more: dict[str, Any]) -> None:
    assert choose(replace(BALLOT, alive=(2,), answered=(2,), **more)) == 2


def test_a_longer_log_counts_only_where_it_may_have_what_was_acknowledged() -> None:
    longer = replace(BALLOT, ends={2: End(1, 200), 3: End(1, 100)})
    assert choose(longer) == 2, "fewer than all may have acknowledged"
    assert choose(replace(longer, majority_of=3)) == 2
    assert choose(replace(longer, all_ack=True)) == 3, "each member has all that was acknowledged"


@given(
    st.sets(st.sampled_from(IDS)),
    st.sets(st.sampled_from(IDS)),
    st.dictionaries(st.sampled_from(IDS), st.builds(End, st.integers(1, 2), st.integers(0, 2))),
    st.sampled_from([0, 3]),
    st.booleans(),
)
def test_a_group_has_a_master_exactly_where_it_would_have_one(
    resting: set[int], alive: set[int], ends: dict[int, End], majority_of: int, all_ack: bool
) -> None:
    """And its log is as long, unless each member has all that was acknowledged."""
    ballot = replace(
        BALLOT,
        alive=alive,
        answered=alive,
        ends=ends,
        majority_of=majority_of,
        all_ack=all_ack,
        maintenance=(),
    )
    before, now = choose(ballot), choose(replace(ballot, maintenance=resting))
    assert (before is None) == (now is None)
    if before is not None and now is not None and (majority_of or not all_ack):
        one, other = (ends.get(i, End()) for i in (before, now))
        assert (one.epoch, one.max_offset) == (other.epoch, other.max_offset)


def test_it_is_remembered_and_ends_with_the_broker() -> None:
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    assert (maintain(lab, 2).code, maintain(lab, 2).changed) == (SUCCESS, False)
    copy = ReplicaTable()
    copy.restore(lab.table.snapshot())
    assert copy.groups[G].maintenance == [2]
    assert copy.replica_info(G).ext["maintenance"] == "2"
    lab.apply(CleanBrokers(group=G, broker_ids=(2,)))
    assert lab.group().maintenance == []
    assert "maintenance" not in lab.table.replica_info(G).ext


def test_what_cannot_be_is_refused() -> None:
    lab = Lab()
    lab.make_group([1, 2])
    assert maintain(lab, 7).code == BROKER_ID_INVALID
    assert maintain(lab, 1, group="none").code == METADATA_NOT_EXIST
    assert maintain(lab, 1).code == SUCCESS
    last = maintain(lab, 2)
    assert (last.code, lab.group().maintenance) == (INVALID_REQUEST, [1])
    assert "no other broker" in (last.remark or "")
    assert maintain(lab, 1, on=False).changed
    assert maintain(lab, 2).code == SUCCESS


def test_an_operator_hands_over_to_none_in_maintenance_but_a_master_that_ends_may() -> None:
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    for broker_id in IDS:
        lab.beat(broker_id)
    lab.lead(1)
    lab.settle()
    maintain(lab, 2)
    lab.request(ElectionRequest(broker_id=2, designate=True))
    (refused,) = lab.replies.values()
    assert isinstance(refused, Refused)
    assert "broker 2 of g is in maintenance" in str(refused)
    assert not lab.drains, "its master was not even asked"
    lab.request(ElectionRequest(broker_id=2, designate=True, handed_over_by=1))
    assert len(lab.replies) == 1 or not isinstance([*lab.replies.values()][1], Refused)


def test_a_restarted_master_in_maintenance_gives_way() -> None:
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    maintain(lab, 1)
    back = ElectMaster(group=G, broker_id=1, restarted=True, log_epoch=1, alive=IDS, answered=IDS)
    assert lab.apply(back).ext["masterBrokerId"] == "2"


def test_it_is_asked_for_over_the_wire_and_outlives_the_controllers(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        one, two, _ = await world.brokers_up()
        asked = await one.call(Request.KEELMQ_SET_MAINTENANCE, brokerId=2, maintenance="true")
        assert asked.ext["maintenance"] == "2"
        assert world.group()["maintenance"] == [2]
        unknown = await one.call(Request.KEELMQ_SET_MAINTENANCE, brokerId=9, maintenance="true")
        assert unknown.code == BROKER_ID_INVALID
        await world.kill("n0")
        await world.start("n0")
        assert world.group()["maintenance"] == [2]
        for broker in world.brokers:
            await broker.beat_once()
        await one.die()
        await wait_for(lambda: world.group()["master"] == 3)
        await two.call(Request.KEELMQ_SET_MAINTENANCE, brokerId=2, maintenance="false")
        assert world.group()["maintenance"] == []

    run(tmp_path, main)
