"""The promise for a broker that came back: one that may have lost its end leads nobody who has it."""

from pathlib import Path
from typing import Any

import pytest

from controller.groups.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.elect import End
from controller.groups.table import ReplicaTable
from model.codes import Request
from tests.fakes.controller.live import Broker, World, run

G = "broker-a"


def group(members: tuple[int, ...] = (1, 2, 3)) -> ReplicaTable:
    """Brokers 1, 2 and 3; 1 is master of epoch 1."""
    table = ReplicaTable()
    for broker_id in (1, 2, 3):
        code = f"127.0.2.{broker_id}:10911;1"
        table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=code))
    elect(table, 1)
    command = AlterSyncStateSet(
        group=G,
        master_id=1,
        master_epoch=1,
        members=members,
        members_epoch=table.groups[G].members_epoch,
        alive=(1, 2, 3),
    )
    assert table.apply(command)["code"] == 0
    return table


def elect(table: ReplicaTable, broker_id: int = -1, **keywords: Any) -> dict[str, Any]:
    """In mode all, unless said otherwise."""
    keywords.setdefault("all_ack", True)
    return table.apply(ElectMaster(group=G, broker_id=broker_id, **keywords))


def register(table: ReplicaTable, broker_id: int, alive: tuple[int, ...]) -> list[int]:
    address = f"127.0.2.{broker_id}:10911"
    command = RegisterBroker(
        group=G, cluster="c", broker_id=broker_id, address=address, alive=alive, unclean=True
    )
    assert table.apply(command)["code"] == 0
    return table.groups[G].members


def test_a_restarted_master_gives_way_to_a_member_that_lives() -> None:
    table = group()
    answer = elect(table, 1, alive=(1, 2, 3), restarted=True, log_epoch=1)
    assert (answer["code"], answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == (0, "2", "2")


def test_a_restarted_master_gives_way_to_a_member_that_answers() -> None:
    table = group()
    ends = {2: End(1, 9), 3: End(1, 5)}
    answer = elect(table, 1, alive=(1, 2, 3), answered=(3,), ends=ends, restarted=True, log_epoch=1)
    assert answer["ext"]["masterBrokerId"] == "3", (
        "2 may just have died; in mode all it has no more that counts"
    )


def test_a_restarted_master_without_living_members_leads_a_new_epoch() -> None:
    table = group()
    answer = elect(table, 1, alive=(1,), restarted=True, log_epoch=1)
    assert (answer["code"], answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == (0, "1", "2")


def test_where_few_confirm_a_restarted_master_with_the_longest_log_leads_on() -> None:
    """What was acknowledged may be on it and on a member that is away: nobody lost anything, it must not be
    thrown over."""
    ends = {1: End(1, 1000), 3: End(1, 500)}
    table = group()
    answer = elect(table, 1, alive=(1, 3), restarted=True, log_epoch=1, all_ack=False, ends=ends)
    assert (answer["code"], answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == (0, "1", "2")
    assert table.groups[G].unclean_elections == 0


def test_where_few_confirm_a_restarted_master_gives_way_to_a_longer_log_or_when_in_doubt() -> None:
    shorter = {1: End(1, 500), 3: End(1, 1000)}
    answer = elect(group(), 1, alive=(1, 3), restarted=True, log_epoch=1, all_ack=False, ends=shorter)
    assert answer["ext"]["masterBrokerId"] == "3"
    longer = {1: End(1, 1000), 3: End(1, 500)}
    answer = elect(
        group(), 1, alive=(1, 3), restarted=True, log_epoch=1, all_ack=False, suspect=True, ends=longer
    )
    assert answer["ext"]["masterBrokerId"] == "3"


def test_one_elected_while_it_was_down_gives_way_to_the_members_before_it() -> None:
    table = group()
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    assert table.groups[G].members == [2]
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=1)
    assert (answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == ("3", "3")


def elected_deposed_and_elected_again(table: ReplicaTable) -> None:
    """2 leads epoch 2, dies, and leads epoch 4."""
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    assert elect(table, alive=(3,))["ext"] == {}, "only 2 is known to have all"
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"


def test_one_that_was_deposed_meanwhile_and_never_led_gives_way_to_them_too() -> None:
    """A restart of one that cannot begin took them out of the elections: it kept the group."""
    table = group()
    elected_deposed_and_elected_again(table)
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=1)
    assert (answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == ("3", "5")


@pytest.mark.parametrize(("log_epoch", "suspect"), [(2, False), (4, False), (1, True)])
def test_one_that_was_deposed_meanwhile_and_may_have_led_gives_way_to_nobody(
    log_epoch: int, suspect: bool
) -> None:
    """It may have acknowledged alone."""
    table = group()
    elected_deposed_and_elected_again(table)
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=log_epoch, suspect=suspect)
    assert answer["ext"].get("masterBrokerId") != "3"


def test_members_of_an_older_version_are_of_no_known_epoch_and_it_gives_way_to_none_of_them() -> None:
    """2 led epoch 2 and may have acknowledged alone: whose members they were before it, nobody noted."""
    table = group()
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    table.groups[G].before_epoch = 0
    assert elect(table, alive=(3,))["ext"] == {}
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=2)
    assert answer["ext"].get("masterBrokerId") != "3"


def test_one_whose_members_acknowledged_without_all_gives_way_to_none_of_them_in_mode_all() -> None:
    table = group()
    for broker_id in (1, 2, 3):
        assert table.apply(registration(broker_id, all_ack=False))["code"] == 0
    elected_deposed_and_elected_again(table)
    assert table.apply(registration(2, all_ack=True))["code"] == 0
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=1)
    assert answer["ext"]["masterBrokerId"] == "2"


def registration(broker_id: int, *, all_ack: bool) -> RegisterBroker:
    address = f"127.0.2.{broker_id}:10911"
    return RegisterBroker(group=G, cluster="c", broker_id=broker_id, address=address, all_ack=all_ack)


def test_members_before_it_that_were_cleaned_away_are_waited_for_by_nobody() -> None:
    for suspect in (False, True):
        table = group()
        elect(table, alive=(2, 3), ends={2: End(1, 9), 3: End(1, 5)})
        gone = CleanBrokers(group=G, broker_ids=(1, 3), living=True)
        assert table.apply(gone)["code"] == 0
        # 3 beats on, and its log is the longest; 1 is no more.
        ends = {2: End(1, 9), 3: End(1, 99)}
        answer = elect(table, 2, alive=(2, 3), ends=ends, restarted=True, suspect=suspect, log_epoch=1)
        assert (answer["code"], answer["ext"]["masterBrokerId"]) == (0, "2")
        assert table.groups[G].members == [2]


@pytest.mark.parametrize(
    ("alive", "elected"),
    [((1, 3), "3"), ((1,), None)],  # the longest log, once every replica that is left has said its end
)
def test_where_the_only_member_is_given_up_the_others_go_on(
    alive: tuple[int, ...], elected: str | None
) -> None:
    table = group()
    assert elect(table, alive=(2,))["ext"]["masterBrokerId"] == "2"
    assert table.apply(CleanBrokers(group=G, broker_ids=(2,), living=True))["code"] == 0
    assert table.groups[G].members == []
    answer = elect(table, alive=alive, answered=alive, ends={1: End(1, 5), 3: End(1, 9)})
    assert answer["ext"].get("masterBrokerId") == elected


def test_one_that_began_its_epoch_asks_only_members_of_that_epoch() -> None:
    table = group()
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=2)
    assert (answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == ("2", "3")


def test_a_deposed_master_that_asks_changes_nothing() -> None:
    table = group()
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    answer = elect(table, 1, alive=(1, 2, 3), restarted=True, log_epoch=1)
    assert (answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == ("2", "2")


def test_a_slave_whose_process_was_killed_stays_a_member() -> None:
    """Its log is whole: the group may need it when the master's machine loses power."""
    assert register(group(), 2, alive=(1, 3)) == [1, 2, 3]
    assert register(group(), 2, alive=()) == [1, 2, 3]


def test_a_slave_that_may_have_lost_its_end_leaves_the_set_while_others_live() -> None:
    assert doubts(group(), 2, alive=(1, 3)) == [1, 3]
    assert doubts(group(), 2, alive=()) == [1, 2, 3]
    assert doubts(group((1, 3)), 2, alive=(1, 3)) == [1, 3]
    assert doubts(group(), 1, alive=(1, 2, 3)) == [1, 2, 3], "the master asks for its next epoch instead"


# Brokers in doubt: their machine lost its memory


def doubts(table: ReplicaTable, broker_id: int, alive: tuple[int, ...]) -> list[int]:
    command = RegisterBroker(
        group=G, cluster="c", broker_id=broker_id, address="", alive=alive, unclean=True, suspect=True
    )
    assert table.apply(command)["code"] == 0
    return table.groups[G].members


def test_the_last_member_in_doubt_waits_for_one_that_is_not() -> None:
    table = group()
    assert doubts(table, 2, alive=(2,)) == [1, 2, 3], "nobody lives who has everything: it stays"
    assert doubts(table, 3, alive=(2, 3)) == [1, 2, 3]
    ends = {2: End(1, 500), 3: End(1, 400)}
    assert elect(table, alive=(2, 3), ends=ends)["code"] == 2004
    answer = elect(table, alive=(1, 2, 3), ends={**ends, 1: End(1, 100)})
    assert answer["ext"]["masterBrokerId"] == "1", "without a doubt, whatever it has"


def test_when_all_members_are_there_and_in_doubt_the_furthest_leads() -> None:
    table = group()
    for broker_id in (2, 3):
        doubts(table, broker_id, alive=(2, 3))
    ends = {1: End(1, 400), 2: End(1, 450), 3: End(1, 500)}
    doubts(table, 1, alive=(1, 2, 3))
    every = (1, 2, 3)
    answer = elect(
        table, 1, alive=every, answered=every, restarted=True, log_epoch=1, suspect=True, ends=ends
    )
    assert (answer["code"], answer["ext"]["masterBrokerId"]) == (0, "3")
    assert answer["ext"]["doubtful"] == "1;2"


def test_a_restarted_master_in_doubt_waits_for_its_members() -> None:
    table = group(members=(1, 2))
    answer = elect(table, 1, alive=(1,), restarted=True, log_epoch=1, suspect=True)
    assert (answer["code"], answer["changed"]) == (2012, True)
    assert (table.groups[G].master, table.groups[G].members) == (None, [1, 2])
    assert elect(table, 1, alive=(1,))["code"] == 2012
    assert elect(table, alive=(1, 2))["ext"]["masterBrokerId"] == "2"


def shrink(table: ReplicaTable, members: tuple[int, ...]) -> None:
    group = table.groups[G]
    assert group.master is not None
    command = AlterSyncStateSet(
        group=G,
        master_id=group.master,
        master_epoch=group.epoch,
        members=members,
        members_epoch=group.members_epoch,
        alive=(1, 2, 3),
    )
    assert table.apply(command)["code"] == 0


def returns(table: ReplicaTable, alive: tuple[int, ...], ends: dict[int, End]) -> str | None:
    """The master comes back as a suspect and asks anew, with a log that shows no sign of its epoch."""
    group = table.groups[G]
    master, epoch = group.master, group.epoch
    assert master is not None
    doubts(table, master, alive)
    answer = elect(
        table,
        master,
        alive=alive,
        answered=alive,
        ends=ends,
        restarted=True,
        suspect=True,
        log_epoch=epoch - 1,
        master_epoch=epoch,
    )
    return str(answer["ext"]["masterBrokerId"]) if answer["code"] == 0 else None


def test_the_only_member_is_suspect_and_those_that_left_the_set_have_everything() -> None:
    """Slaves are killed and leave the set, the master loses power, all come back (issue 12, V1)."""
    ends = {1: End(1, 500), 2: End(1, 1000), 3: End(1, 900)}
    table = group()
    shrink(table, (1,))
    assert returns(table, (1, 2, 3), ends) == "2"
    early = group()
    shrink(early, (1,))
    assert returns(early, (1,), ends) is None, "first one back: the others are waited for"
    assert (early.groups[G].master, early.groups[G].members) == (None, [1])
    assert elect(early, alive=(1, 3), answered=(1, 3), ends=ends)["code"] == 2004
    assert elect(early, alive=(1, 2, 3), answered=(1, 3), ends=ends)["code"] == 2004, "2 did not answer"
    found = elect(early, alive=(1, 2, 3), answered=(1, 2, 3), ends=ends)
    assert (found["code"], found["ext"]["masterBrokerId"]) == (0, "2")


def test_a_suspect_master_waits_for_nobody_who_was_removed_nor_for_learners() -> None:
    table = group()
    shrink(table, (1,))
    table.apply(RegisterBroker(group=G, cluster="c", broker_id=3, address="", learner=True))
    assert table.apply(CleanBrokers(group=G, broker_ids=(2,), living=True))["code"] == 0
    assert returns(table, (1,), {1: End(1, 500)}) == "1"


def test_who_asked_anew_has_everything_when_its_successor_loses_power() -> None:
    """Of two brokers: 1 is killed and back, 2 is elected instead and loses power (issue 12, V10 a)."""
    table = group((1, 2))
    assert table.apply(CleanBrokers(group=G, broker_ids=(3,), living=True))["code"] == 0
    level = {1: End(1, 1000), 2: End(1, 1000)}
    answer = elect(table, 1, alive=(1, 2), answered=(1, 2), ends=level, restarted=True, log_epoch=1)
    assert (answer["ext"]["masterBrokerId"], table.groups[G].before) == ("2", [1])
    assert returns(table, (1, 2), {1: End(1, 1000), 2: End(1, 400)}) == "1"


def test_an_old_epoch_in_a_suspect_log_does_not_prove_that_the_new_one_never_began() -> None:
    """2 leads epoch 2, 3 joins, both acknowledge; the power failure of 2 takes the beginning of the epoch
    along, and 1, a member before it, is back, too (issue 12, V10 b)."""
    table = group((1, 2))
    elect(table, alive=(2, 3), answered=(2, 3), ends={2: End(1, 1000), 3: End(1, 900)})
    shrink(table, (2, 3))
    ends = {1: End(1, 1000), 2: End(1, 950), 3: End(2, 1100)}
    assert returns(table, (1, 2, 3), ends) == "3"
    alone = group((1, 2))
    elect(alone, alive=(2, 3), answered=(2, 3), ends={2: End(1, 1000), 3: End(1, 900)})
    assert returns(alone, (1, 2), ends) is None, "3 may have copied what 2 acknowledged alone and forgot"
    again = (1, 2, 3)
    assert elect(alone, alive=again, answered=again, ends=ends)["ext"]["masterBrokerId"] == "3"


def test_a_suspect_first_broker_of_a_new_group_leads_only_when_it_is_the_only_one() -> None:
    for others, leads in ((), "1"), ((2,), None):
        table = ReplicaTable()
        for broker_id in (1, *others):
            table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=f"{broker_id}"))
        doubts(table, 1, alive=(1,))
        answer = elect(table, 1, alive=(1,), answered=(1,))
        assert answer["ext"].get("masterBrokerId") == leads
    assert elect(table, 2, alive=(1, 2), answered=(2,))["ext"]["masterBrokerId"] == "2"


def test_a_doubt_ends_when_the_master_has_seen_the_broker_catch_up() -> None:
    table = group()
    assert doubts(table, 3, alive=(1, 2, 3)) == [1, 2]
    assert table.replica_info(G).ext["doubtful"] == "3"
    back = AlterSyncStateSet(
        group=G,
        master_id=1,
        master_epoch=1,
        members=(1, 2, 3),
        members_epoch=table.groups[G].members_epoch,
        alive=(1, 2, 3),
    )
    assert table.apply(back)["code"] == 0
    assert "doubtful" not in table.replica_info(G).ext
    assert elect(table, alive=(3,))["ext"]["masterBrokerId"] == "3"


def test_a_set_proposed_before_a_broker_lost_its_end_is_not_taken_after() -> None:
    table = group(members=(1, 2))
    before = table.groups[G].members_epoch
    doubts(table, 3, alive=(1, 2, 3))
    late = AlterSyncStateSet(
        group=G, master_id=1, master_epoch=1, members=(1, 2, 3), members_epoch=before, alive=(1, 2, 3)
    )
    assert table.apply(late)["code"] == 2001


def test_a_member_in_doubt_is_nobody_to_leave_the_set_for() -> None:
    table = group()
    doubts(table, 2, alive=(2,))
    assert register(table, 3, alive=(2, 3)) == [1, 2, 3]


def test_doubts_survive_a_snapshot() -> None:
    table = group()
    doubts(table, 3, alive=(3,))
    other = ReplicaTable()
    other.restore(table.snapshot())
    assert other.groups[G].suspect == [3]


# Requests of an earlier epoch


@pytest.mark.parametrize("late", [{"restarted": True, "log_epoch": 1}, {"designate": True}])
def test_what_was_asked_in_an_earlier_epoch_deposes_nobody(late: dict[str, Any]) -> None:
    table = group()
    asks = 2 if "designate" in late else 1
    assert elect(table, 1, alive=(1,), restarted=True, log_epoch=1)["ext"]["masterEpoch"] == "2"
    before = table.snapshot()
    assert elect(table, asks, alive=(1, 2, 3), master_epoch=1, **late)["code"] == 2000
    assert table.snapshot() == before
    assert elect(table, asks, alive=(1, 2, 3), master_epoch=2, **late)["code"] != 2000


# Through the service


async def beats(broker: Broker, all_ack: str, end: int) -> None:
    """One last heartbeat; it goes on to answer how far its log is."""
    broker.freeze()
    broker.max_offset = broker.end_now = end
    address = broker.world.leader_address()
    await broker.client.call(address, broker.heartbeat(allAckInSyncStateSet=all_ack, leaseEpoch=-1), 3)


@pytest.mark.parametrize(("all_ack", "successor"), [("true", "2"), ("false", "1")])
def test_the_mode_a_restarted_master_beats_with_is_the_one_that_decides(
    tmp_path: Path, all_ack: str, successor: str
) -> None:
    async def main(world: World) -> None:
        brokers = await world.brokers_up(3, timeout_ms=60_000)
        for broker, end in zip(brokers, (1000, 500, 500), strict=True):
            await beats(broker, all_ack, end)
        answer = await brokers[0].call(
            Request.CONTROLLER_ELECT_MASTER, brokerId=1, restarted="true", logEpoch=1, masterEpoch=1
        )
        assert (answer.code, answer.ext["masterBrokerId"]) == (0, successor)

    run(tmp_path, main)
