"""The promise of majority mode at an election: a record that a majority has survives any minority's death."""

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.groups.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.elect import Ballot, End, choose, is_majority, with_longest_log
from controller.groups.group import Group, Rule
from controller.groups.table import ReplicaTable

G = "broker-a"


def elected(answered: tuple[int, ...], ends: dict[int, End], **known: Any) -> int | None:
    ballot = Ballot(
        members=(1,),
        voters=(1, 2, 3),
        alive=answered,
        answered=answered,
        ends=ends,
        majority_of=3,
        **known,
    )
    return choose(ballot)


@given(st.sampled_from([3, 4, 5]), st.data())
def test_the_furthest_of_a_majority_has_what_any_majority_acknowledged(
    size: int, data: st.DataObject
) -> None:
    brokers = range(1, size + 1)
    ends = {b: End(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 9))) for b in brokers}
    for count in range(1, size + 1):
        for answered in combinations(brokers, count):
            if not is_majority(answered, size):
                continue
            best = with_longest_log(answered, ends)[0]
            reach = (ends[best].epoch, ends[best].max_offset)
            # The newest point that some majority reached is not beyond the one elected.
            everyone = sorted(((e.epoch, e.max_offset) for e in ends.values()), reverse=True)
            assert reach >= everyone[size // 2]


class Table:
    """Commands to one group, in short."""

    def __init__(self, brokers: int, majority_of: int) -> None:
        self.table = ReplicaTable()
        for broker_id in range(1, brokers + 1):
            self.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=f"{broker_id};1"))
            self.register(broker_id, tuple(range(1, brokers + 1)), majority_of)

    @property
    def group(self) -> Group:
        return self.table.groups[G]

    def apply(self, command: Any) -> None:
        self.table.apply(command)
        self.table.check_invariants()

    def register(self, broker_id: int, alive: tuple[int, ...], majority_of: int, **more: Any) -> None:
        given: Any = {
            "majority_of": majority_of,
            "all_ack": not majority_of,
            "timeout_ms": 1500,
            "alive": alive,
        }
        address = f"h{broker_id}"
        self.apply(
            RegisterBroker(group=G, cluster="c", broker_id=broker_id, address=address, **given, **more)
        )

    def alter(self, master: int, members: tuple[int, ...]) -> None:
        told: Any = {"master_epoch": self.group.epoch, "members_epoch": self.group.members_epoch}
        self.apply(AlterSyncStateSet(group=G, alive=members, master_id=master, members=members, **told))

    def elect(self, answered: tuple[int, ...], ends: dict[int, int], **more: Any) -> int | None:
        told = {broker_id: End(self.group.epoch, end) for broker_id, end in ends.items()}
        self.apply(ElectMaster(group=G, alive=answered, answered=answered, ends=told, **more))
        return self.group.master


def test_a_change_to_majority_counts_as_the_master_does_and_asks_all_that_are_registered() -> None:
    """Three that died long ago were never forgotten. The master knows of three, and answers with two."""
    table = Table(6, 0)
    table.elect((4, 5, 6), {}, broker_id=4)
    table.alter(4, (4, 5, 6))
    table.register(5, (4, 5, 6), 3)
    table.register(6, (4, 5, 6), 3)
    table.elect((4, 5, 6), {4: 1, 5: 1, 6: 1}, broker_id=5, designate=True)
    table.register(4, (4, 5, 6), 3)
    table.alter(5, (4, 5, 6))
    assert table.group.majority_of == 6
    assert table.elect((6,), {4: 2, 5: 2, 6: 1}) is None, "a record may be on 4 and 5 alone"
    table.apply(CleanBrokers(group=G, broker_ids=(1, 2, 3), living=True, alive=(4, 6)))
    assert table.elect((4, 6), {4: 2, 6: 1}) == 4, "the dead are forgotten"


def test_one_that_was_taken_out_as_it_had_forgotten_is_a_holder_still_when_it_is_forgotten() -> None:
    """A record is on 1 and 3 when 3 loses power: 2 lacks it, and nobody asked."""
    table = Table(3, 3)
    table.elect((1, 2, 3), {}, broker_id=1)
    table.alter(1, (1, 2, 3))
    table.register(3, (1, 2, 3), 3, suspect=True)
    table.apply(CleanBrokers(group=G, broker_ids=(3,), living=True, alive=(1, 2)))
    table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=4, check_code="4;1"))
    table.register(4, (1, 2, 4), 3)
    assert table.elect((2, 4), {1: 2, 2: 1, 4: 0}) is None
    table.elect((1, 2, 4), {1: 2, 2: 1, 4: 0})
    table.alter(1, (1, 2, 4))
    assert table.group.holders == [1, 2, 4], "what joined has its place"


def test_when_all_but_one_are_given_up_that_one_leads_and_alone_when_its_number_is_lowered() -> None:
    table = Table(3, 3)
    table.elect((1, 2, 3), {}, broker_id=1)
    table.alter(1, (1, 2, 3))
    assert table.elect((3,), {3: 9}) is None
    table.apply(CleanBrokers(group=G, broker_ids=(1,)))
    assert table.elect((3,), {3: 9}) is None, "2 may be back: nobody gave it up"
    table.apply(CleanBrokers(group=G, broker_ids=(2,)))
    assert table.elect((3,), {3: 9}) == 3
    table.register(3, (3,), 1)
    assert table.elect((3,), {3: 9}) == 3
    assert (table.group.rule, table.group.unclean_elections) == (Rule(False, 0, 1500), 0)


def test_a_suspect_counts_when_every_replica_that_was_not_given_up_is_there() -> None:
    """A group of three: 1 is gone for good, 2 lost power, and 3 forgot nothing but is behind."""
    table = Table(3, 3)
    table.elect((1, 2, 3), {}, broker_id=1)
    table.alter(1, (1, 2, 3))
    assert table.elect((), {}) is None
    table.register(2, (3,), 3, suspect=True)
    assert table.elect((2, 3), {2: 8, 3: 7}) is None
    table.apply(CleanBrokers(group=G, broker_ids=(1,)))
    assert table.elect((3,), {3: 7}) is None, "2 is silent"
    assert table.elect((2,), {2: 8}) is None, "3 is silent"
    assert table.elect((2, 3), {2: 8, 3: 7}) == 2


def test_a_holder_that_became_a_learner_is_waited_for_until_it_is_given_up() -> None:
    """It was taken out of the set as it had forgotten: no master was asked whether the others have all."""
    table = Table(3, 3)
    table.elect((1, 2, 3), {}, broker_id=1)
    table.alter(1, (1, 2, 3))
    table.register(3, (1, 2), 3, suspect=True)
    table.register(3, (1, 2), 3, learner=True)
    assert table.elect((), {}) is None
    table.apply(CleanBrokers(group=G, broker_ids=(1,)))
    table.register(2, (), 3, suspect=True)
    assert table.elect((2,), {2: 8}) is None
    assert table.elect((2, 3), {2: 8, 3: 9}) is None, "the learner has more"
    table.apply(CleanBrokers(group=G, broker_ids=(3,)))
    assert table.elect((2,), {2: 8}) == 2


def test_a_minority_elects_nobody_unless_that_was_asked_for() -> None:
    ends = {3: End(1, 10)}
    assert elected((3,), ends) is None
    assert elected((3,), ends, unclean=True) == 3


def test_a_broker_outside_the_set_leads_when_it_is_the_furthest() -> None:
    assert elected((2, 3), {1: End(1, 99), 2: End(1, 10), 3: End(1, 20)}) == 3
    assert elected((2, 3), {2: End(2, 10), 3: End(1, 20)}) == 2, "the epoch of the end comes first"


def test_a_longer_log_outside_of_the_last_set_that_was_a_majority_does_not_lead() -> None:
    ends = {1: End(1, 99), 2: End(1, 10), 3: End(1, 20)}
    assert elected((2, 3), ends, quorum_members=(1, 2)) == 2
    assert elected((2, 3), ends, quorum_members=(1, 2), suspect=(2,)) is None, "no majority is sound"
    assert elected((1, 2, 3), ends, quorum_members=(2,), suspect=(2,)) == 1, (
        "all are there: the furthest leads"
    )


def test_the_last_set_that_was_a_majority_outlives_elections_and_ends_with_the_mode() -> None:
    table = ReplicaTable()
    for broker_id in (1, 2, 3):
        table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=f"{broker_id};1"))
        register(table, broker_id, majority_of=3)
    group = table.groups[G]
    table.apply(ElectMaster(group=G, broker_id=1, alive=(1, 2, 3)))
    assert group.quorum_members == [], "one of three is no majority"
    alter(table, 1, 1, (1, 2))
    assert group.quorum_members == [1, 2]
    ends = {1: End(1, 9), 2: End(1, 9), 3: End(1, 20)}
    table.apply(ElectMaster(group=G, alive=(2, 3), answered=(2, 3), ends=ends))
    assert (group.master, group.members, group.quorum_members) == (2, [2], [1, 2])
    alter(table, 2, 2, (2, 3))
    assert group.quorum_members == [2, 3]
    table.apply(CleanBrokers(group=G, broker_ids=(3,), living=True))
    assert group.quorum_members == [2]
    restored = ReplicaTable()
    restored.restore(table.snapshot())
    assert restored.groups[G].quorum_members == [2]
    register(table, 2, majority_of=0)
    table.apply(ElectMaster(group=G, alive=(1, 2), answered=(1, 2), ends=ends))
    assert (group.master, group.quorum_members) == (2, [])


def register(table: ReplicaTable, broker_id: int, *, majority_of: int) -> None:
    command = RegisterBroker(
        group=G,
        cluster="c",
        broker_id=broker_id,
        address=f"h{broker_id}",
        majority_of=majority_of,
        all_ack=majority_of == 0,
        alive=(1, 2, 3),
    )
    assert table.apply(command)["code"] == 0


def alter(table: ReplicaTable, master: int, epoch: int, members: tuple[int, ...]) -> None:
    now = table.groups[G].members_epoch
    command = AlterSyncStateSet(
        group=G, alive=(1, 2, 3), master_id=master, master_epoch=epoch, members=members, members_epoch=now
    )
    assert table.apply(command)["code"] == 0


def test_only_the_furthest_may_be_asked_for_by_name() -> None:
    ends = {2: End(1, 10), 3: End(1, 20)}
    assert elected((2, 3), ends, preferred=2) is None
    assert elected((2, 3), ends, preferred=3) == 3


def test_an_answer_in_doubt_counts_only_when_every_replica_answered() -> None:
    ends = {1: End(1, 5), 2: End(1, 10), 3: End(1, 20)}
    assert elected((2, 3), ends, suspect=(3,)) is None
    assert elected((1, 2, 3), ends, suspect=(3,)) == 2
    assert elected((1, 2, 3), ends, suspect=(2, 3)) == 3


def test_a_group_knows_its_majority_from_its_brokers_and_learners_are_none() -> None:
    table = ReplicaTable()
    for broker_id in (1, 2, 3):
        table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=f"{broker_id};1"))
    assert table.groups[G].majority_of == 0
    for broker_id in (1, 2, 3):
        table.apply(
            RegisterBroker(
                group=G,
                cluster="c",
                broker_id=broker_id,
                address="",
                majority_of=3,
                learner=broker_id == 3,
            )
        )
    assert (table.groups[G].majority_of, table.groups[G].voters) == (3, (1, 2))
    first = table.apply(ElectMaster(group=G, broker_id=1, alive=(1, 2, 3), answered=(1, 2, 3)))
    assert first["ext"]["masterBrokerId"] == "1"
    lost = table.apply(ElectMaster(group=G, alive=(2, 3), answered=(2, 3)))
    assert lost["code"] == 2004, "one voter and a learner are no majority of three"
    back = table.apply(ElectMaster(group=G, alive=(1, 2), answered=(1, 2), ends={2: End(1, 7)}))
    assert back["ext"]["masterBrokerId"] == "2"
    assert table.groups[G].members == [2], "1 was in the set alone"
    assert table.groups[G].unclean_elections == 0, "a majority spoke: nothing is lost"
