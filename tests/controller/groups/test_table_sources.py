"""A master from outside of the SyncStateSet is told who has the last changes of the tables."""

import msgspec

from controller.groups.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.elect import End
from controller.groups.group import Rule
from controller.groups.table import ReplicaTable

G = "broker-a"
ALL = (1, 2, 3)


class Table:
    """A group of three; broker 1 leads, and is the set alone."""

    def __init__(self) -> None:
        self.table = ReplicaTable()
        for i in ALL:
            self.table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=i, check_code=f"h{i}:1;1"))
        self.table.apply(ElectMaster(group=G, broker_id=1, alive=ALL, answered=ALL))

    @property
    def told(self) -> str | None:
        return self.table.replica_info(G).ext.get("tablesAt")

    def loses_power(self, broker_id: int) -> None:
        self.table.apply(
            RegisterBroker(
                group=G, cluster="c", broker_id=broker_id, address=f"h{broker_id}:1", suspect=True, alive=ALL
            )
        )

    def elect(self, furthest: int, restarted: int) -> None:
        """The master is back as a suspect, and asks anew; the log of ``furthest`` reaches further."""
        ends = {i: End(1, 9 if i == furthest else 5) for i in ALL}
        asks = ElectMaster(group=G, broker_id=restarted, restarted=True, suspect=True, ends=ends)
        self.table.apply(msgspec.structs.replace(asks, alive=ALL, answered=ALL))
        assert self.table.groups[G].master == furthest


def test_an_outsider_is_told_of_the_members_until_the_set_changes() -> None:
    table = Table()
    assert table.told is None
    table.loses_power(1)
    table.elect(2, restarted=1)
    assert table.told == "2@1=h1:1"
    group = table.table.groups[G]
    table.table.apply(
        AlterSyncStateSet(
            group=G, alive=ALL, master_id=2, master_epoch=2, members=(2, 3), members_epoch=group.members_epoch
        )
    )
    assert table.told is None, "it serves, so it has taken them"


def test_one_that_died_before_it_took_them_leaves_them_to_the_next() -> None:
    table = Table()
    table.loses_power(1)
    table.elect(2, restarted=1)
    table.loses_power(2)
    table.elect(3, restarted=2)
    assert table.told == "2@1=h1:1;3@2=h2:1"


def three_lost_power(old: int) -> Table:
    """Every one was a member, and the disk of ``old`` was put back to an older state."""
    table = Table()
    group = table.table.groups[G]
    every = AlterSyncStateSet(
        group=G,
        alive=ALL,
        members=ALL,
        master_id=1,
        master_epoch=group.epoch,
        members_epoch=group.members_epoch,
    )
    assert table.table.apply(every)["code"] == 0
    table.table.apply(ElectMaster(group=G))  # all are dead
    for i in ALL:
        said = RegisterBroker(
            group=G, cluster="c", broker_id=i, address=f"h{i}:1", suspect=True, old=i == old
        )
        assert table.table.apply(said)["code"] == 0
    return table


def test_of_equal_logs_an_old_disk_does_not_lead() -> None:
    """Its id is the smallest, and it was a member like the others."""
    table = three_lost_power(old=1)
    ends = dict.fromkeys(ALL, End(1, 5))
    table.table.apply(ElectMaster(group=G, alive=ALL, answered=ALL, ends=ends))
    assert (table.table.groups[G].master, table.told) == (2, None)


def test_an_old_disk_with_the_longest_log_takes_the_tables_of_the_members() -> None:
    table = three_lost_power(old=1)
    ends = {1: End(1, 9), 2: End(1, 5), 3: End(1, 5)}
    table.table.apply(ElectMaster(group=G, alive=ALL, answered=ALL, ends=ends))
    group = table.table.groups[G]
    assert (group.master, table.told) == (1, f"{group.epoch}@2=h2:1,3=h3:1")
    assert group.old == [], "what it has is what the group has from now on"


def test_who_was_removed_is_asked_no_more() -> None:
    table = Table()
    table.loses_power(1)
    table.elect(2, restarted=1)
    table.table.apply(CleanBrokers(group=G, broker_ids=(1,), living=True))
    assert table.told is None


def test_a_member_and_the_first_master_need_nobody() -> None:
    table = Table()
    group = table.table.groups[G]
    table.table.apply(
        AlterSyncStateSet(
            group=G, alive=ALL, master_id=1, master_epoch=1, members=ALL, members_epoch=group.members_epoch
        )
    )
    table.table.apply(ElectMaster(group=G, alive=(2, 3), answered=(2, 3)))
    assert (group.master, table.told) == (2, None)


def test_an_unclean_master_begins_with_what_it_has() -> None:
    table = Table()
    table.table.apply(ElectMaster(group=G, alive=(), answered=()))  # the master is lost
    table.table.apply(ElectMaster(group=G, alive=(2, 3), answered=(2, 3), unclean=True))
    group = table.table.groups[G]
    assert (group.unclean_elections, group.master, table.told) == (1, 2, None)


def test_in_majority_mode_a_restart_names_the_same_brokers_once() -> None:
    table = Table()
    group = table.table.groups[G]
    group.rule, group.quorum_members = Rule(majority_of=3), [1, 3]
    for epoch in (2, 3, 4):
        group.elected(2, [2])
        assert group.epoch == epoch
    assert table.told == "2@1=h1:1,3=h3:1"
