"""The promise for a broker that came back: one that may have lost its end leads nobody who has it."""

from typing import Any

from controller.core import AlterSyncStateSet, ApplyBrokerId, ElectMaster, RegisterBroker, ReplicaTable

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


def test_a_restarted_master_without_living_members_leads_a_new_epoch() -> None:
    table = group()
    answer = elect(table, 1, alive=(1,), restarted=True, log_epoch=1)
    assert (answer["code"], answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == (0, "1", "2")


def test_one_elected_while_it_was_down_gives_way_to_the_members_before_it() -> None:
    table = group()
    assert elect(table, alive=(2, 3))["ext"]["masterBrokerId"] == "2"
    assert table.groups[G].members == [2]
    answer = elect(table, 2, alive=(2, 3), restarted=True, log_epoch=1)
    assert (answer["ext"]["masterBrokerId"], answer["ext"]["masterEpoch"]) == ("3", "3")


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


def test_a_slave_that_may_have_lost_its_end_leaves_the_set_while_others_live() -> None:
    assert register(group(), 2, alive=(1, 3)) == [1, 3]
    assert register(group(), 2, alive=()) == [1, 2, 3]
    assert register(group((1, 3)), 2, alive=(1, 3)) == [1, 3]
    assert register(group(), 1, alive=(1, 2, 3)) == [1, 2, 3]
