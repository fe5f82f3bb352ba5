"""The promise of controller.groups: one master an epoch, epochs only grow, ids are given once."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.groups.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    Command,
    ElectMaster,
    RegisterBroker,
    encode_command,
)
from controller.groups.elect import Ballot, End, choose
from controller.groups.group import Group
from controller.groups.table import ANSWERS_MAX, ReplicaTable

G = "broker-a"


def table(brokers: int = 3, master: int | None = 1, members: tuple[int, ...] = (1, 2, 3)) -> ReplicaTable:
    """A group with registered brokers 1..n and, unless None, a master with these members."""
    made = ReplicaTable()
    for broker_id in range(1, brokers + 1):
        join(made, broker_id)
    if master is not None:
        assert made.apply(ElectMaster(group=G, broker_id=master))["code"] == 0
        if set(members) != {master}:
            assert alter(made, members, master=master)["code"] == 0
    return made


def join(made: ReplicaTable, broker_id: int) -> None:
    code = f"10.0.0.{broker_id}:10911;17"
    assert made.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=code))["code"] == 0


def alter(made: ReplicaTable, members: tuple[int, ...], **changes: Any) -> dict[str, Any]:
    group = made.groups[G]
    values: dict[str, Any] = {
        "group": G,
        "master_id": changes.get("master", group.master),
        "master_epoch": changes.get("epoch", group.epoch),
        "members": members,
        "members_epoch": changes.get("members_epoch", group.members_epoch),
        "alive": changes.get("alive", tuple(group.replicas)),
        "within_grace": changes.get("within_grace", ()),
    }
    return made.apply(AlterSyncStateSet(**values))


# ALTER_SYNC_STATE_SET


@pytest.mark.parametrize(
    ("members", "changes", "code"),
    [
        ((1, 2, 3), {"master": 9, "epoch": 9, "members_epoch": 9}, 2013),  # equal to the present set
        ((9,), {"master": 9, "epoch": 9, "members_epoch": 9}, 2002),
        ((9,), {"epoch": 9, "members_epoch": 9}, 2000),
        ((9,), {"members_epoch": 9}, 2001),
        ((9,), {"alive": ()}, 2003),
        ((2,), {"alive": ()}, 2013),
        ((2,), {}, 2013),  # without the master
        ((1, 2), {}, 0),
        ((2, 1), {"alive": (), "within_grace": (1, 2)}, 0),
    ],
)
def test_an_alteration_is_refused_for_the_first_reason_that_holds(
    members: tuple[int, ...], changes: dict[str, Any], code: int
) -> None:
    made = table()
    before = made.groups[G].members_epoch
    answer = alter(made, members, **changes)
    assert answer["code"] == code
    assert made.groups[G].members_epoch == before + (code == 0)
    if code == 0:
        assert answer["ext"] == {"newSyncStateSetEpoch": str(before + 1)}
        assert answer["body"] == {"syncStateSet": [1, 2], "syncStateSetEpoch": before + 1}
    else:
        assert answer["remark"]


def test_only_who_joins_must_be_heard() -> None:
    """A master leaves out one that died while another member is cut off from the Controllers alone; RocketMQ
    refuses that (2006), and nothing is confirmed until that one is heard again."""
    made = table()
    assert alter(made, (1, 2), alive=(1,))["code"] == 0
    assert alter(made, (1, 2, 3), alive=(1, 2))["code"] == 2006
    assert alter(made, (1, 2, 3), alive=(3,))["code"] == 0


def test_an_alteration_of_an_unknown_group_is_refused() -> None:
    command = AlterSyncStateSet(group="x", master_id=1, master_epoch=1, members=(1,), members_epoch=1)
    assert ReplicaTable().apply(command)["code"] == 2013


# ELECT_MASTER


def test_the_first_to_ask_becomes_master() -> None:
    made = table(master=None)
    answer = made.apply(ElectMaster(group=G, broker_id=2))
    assert answer["code"] == 0
    assert answer["ext"] == {
        "masterBrokerId": "2",
        "masterAddress": "10.0.0.2:10911",
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert answer["body"] == {
        "brokerMemberGroup": {
            "brokerAddrs": {"1": "10.0.0.1:10911", "2": "10.0.0.2:10911", "3": "10.0.0.3:10911"},
            "brokerName": G,
            "cluster": "c",
        },
        "syncStateSet": [2],
    }


def test_nobody_is_elected_without_being_registered() -> None:
    assert ReplicaTable().apply(ElectMaster(group="x", broker_id=1))["code"] == 2010
    assert table(master=None).apply(ElectMaster(group=G, broker_id=7))["code"] == 2010


def test_a_group_that_never_had_a_master_is_not_spoiled_by_an_election_without_a_winner() -> None:
    made = table(master=None)
    assert made.apply(ElectMaster(group=G, alive=(1, 2, 3)))["code"] == 2004
    assert made.groups[G].epoch == 0
    assert made.apply(ElectMaster(group=G, broker_id=3))["code"] == 0


def test_a_living_master_stays_and_the_answer_says_who_it_is() -> None:
    made = table()
    answer = made.apply(ElectMaster(group=G, broker_id=2, alive=(1, 2, 3)))
    assert answer["code"] == 2011
    assert answer["ext"]["masterBrokerId"] == "1"
    assert answer["body"]["syncStateSet"] == [1, 2, 3]
    assert made.groups[G].epoch == 1


def test_a_master_that_was_only_not_heard_yet_stays() -> None:
    made = table()
    assert made.apply(ElectMaster(group=G, alive=(2, 3), within_grace=(1, 2, 3)))["code"] == 2011


def test_the_most_advanced_member_wins_also_beyond_2_gib() -> None:
    made = table()
    ends = {2: End(1, 5 << 31), 3: End(1, 1), 1: End(9, 9)}
    assert made.apply(ElectMaster(group=G, alive=(2, 3), ends=ends))["ext"]["masterBrokerId"] == "2"


def test_only_members_of_the_sync_state_set_win_unless_it_may_be_unclean() -> None:
    made = table(members=(1, 2))
    assert made.apply(ElectMaster(group=G, broker_id=3, alive=(3,)))["code"] == 2012
    assert made.groups[G].master == 1
    assert made.apply(ElectMaster(group=G, alive=(3,)))["code"] == 2004
    assert (made.groups[G].master, made.groups[G].epoch, made.groups[G].members) == (None, 2, [1, 2])
    assert made.apply(ElectMaster(group=G, alive=(3,)))["code"] == 2004
    assert made.groups[G].epoch == 2  # nothing more to take away
    assert made.apply(ElectMaster(group=G, alive=(3,), unclean=True))["code"] == 0
    assert (made.groups[G].master, made.groups[G].epoch, made.groups[G].members) == (3, 3, [3])


def test_unclean_elections_are_counted_and_others_are_not() -> None:
    made = table(members=(1, 2))
    assert made.apply(ElectMaster(group=G, alive=(2, 3), unclean=True))["ext"]["masterBrokerId"] == "2"
    assert made.groups[G].unclean_elections == 0
    assert made.apply(ElectMaster(group=G, alive=(3,), unclean=True))["ext"]["masterBrokerId"] == "3"
    assert made.apply(ElectMaster(group=G, alive=(1,), unclean=True))["ext"]["masterBrokerId"] == "1"
    again = ReplicaTable()
    again.restore(made.snapshot())
    assert again.groups[G].unclean_elections == 2
    assert table(members=(1, 2)).groups[G].unclean_elections == 0  # the first master of a group is none


def test_a_restarted_master_in_doubt_that_leads_on_uncleanly_is_counted() -> None:
    made = table()
    asks = ElectMaster(group=G, broker_id=1, restarted=True, suspect=True, log_epoch=1, alive=(1,))
    assert made.apply(msgspec.structs.replace(asks, unclean=True))["ext"]["masterBrokerId"] == "1"
    assert made.groups[G].unclean_elections == 1, "2 and 3 may have had more"
    alone = table(brokers=1, members=(1,))
    assert alone.apply(msgspec.structs.replace(asks, unclean=True))["ext"]["masterBrokerId"] == "1"
    assert alone.groups[G].unclean_elections == 0, "it would have been elected without, too"


def test_who_answered_is_elected_before_who_may_just_have_died() -> None:
    def winner(ends: dict[int, End], answered: tuple[int, ...], *, all_ack: bool) -> str:
        lost = ElectMaster(group=G, alive=(2, 3), ends=ends, answered=answered, all_ack=all_ack)
        return str(table().apply(lost)["ext"]["masterBrokerId"])

    equal, behind = {2: End(1, 9), 3: End(1, 9)}, {2: End(1, 9), 3: End(1, 8)}
    assert winner(equal, (3,), all_ack=False) == "3"
    assert winner(behind, (3,), all_ack=False) == "2", "2 may have what was acknowledged without 3"
    assert winner(behind, (3,), all_ack=True) == "3"
    assert winner(behind, (2, 3), all_ack=True) == "2"
    assert winner(behind, (), all_ack=True) == "2", "then somebody has to"


def test_suspects_are_waited_for_until_all_of_them_answered() -> None:
    made = table(members=(1, 2, 3))
    for broker_id in (1, 2, 3):
        doubts = RegisterBroker(group=G, cluster="c", broker_id=broker_id, address="", suspect=True)
        assert made.apply(doubts)["code"] == 0
    made.groups[G].master = None
    ends = {1: End(1, 5), 2: End(1, 9), 3: End(1, 5)}
    back = ElectMaster(group=G, alive=(1, 2, 3), ends=ends, answered=(1, 3), all_ack=True)
    assert made.apply(back)["code"] == 2004, "how far 2 was before it forgot says nothing"
    back = msgspec.structs.replace(back, answered=(1, 2, 3))
    assert made.apply(back)["ext"]["masterBrokerId"] == "2", "of all suspects the furthest"


def test_a_learner_is_elected_by_nobody() -> None:
    made = table(master=None)
    learns = RegisterBroker(group=G, cluster="c", broker_id=3, address="", learner=True)
    assert made.apply(learns)["code"] == 0
    assert made.apply(ElectMaster(group=G, broker_id=3, alive=(1, 2, 3)))["code"] == 2012, "not as the first"
    assert made.apply(ElectMaster(group=G, broker_id=1, alive=(1, 2, 3)))["ext"]["masterBrokerId"] == "1"
    lost = ElectMaster(group=G, alive=(3,), unclean=True, ends={3: End(1, 9)})
    assert made.apply(lost)["code"] == 2004, "not uncleanly"
    named = msgspec.structs.replace(lost, broker_id=3, designate=True)
    assert made.apply(named)["code"] == 2012, "not by name"
    assert made.apply(msgspec.structs.replace(lost, alive=(2, 3)))["ext"]["masterBrokerId"] == "2"


def test_a_designated_broker_becomes_master_or_nobody_does() -> None:
    made = table(members=(1, 2))
    designated = ElectMaster(group=G, broker_id=3, designate=True, alive=(1, 2, 3))
    assert made.apply(designated)["code"] == 2012
    assert made.apply(msgspec.structs.replace(designated, broker_id=2))["ext"]["masterBrokerId"] == "2"


# ids, registration, cleaning


def test_ids_are_given_in_order_and_whoever_asked_may_ask_again() -> None:
    made = ReplicaTable()
    assert made.next_id(G) == 1
    first = ApplyBrokerId(group=G, cluster="c", broker_id=1, check_code="a:1;5")
    assert made.apply(msgspec.structs.replace(first, broker_id=2))["code"] == 2014
    assert made.apply(first)["code"] == 0
    assert made.apply(first)["code"] == 0
    assert made.apply(msgspec.structs.replace(first, check_code="b:1;5"))["code"] == 2014
    assert made.next_id(G) == 2
    assert made.groups[G].replicas[1].address == "a:1"


def test_registration_needs_an_id_notes_the_addresses_and_names_a_living_master() -> None:
    made = table()
    ask = RegisterBroker(group=G, cluster="c", broker_id=2, address="new:1", ha_address="new:2", alive=(1,))
    answer = made.apply(ask)
    assert answer["code"] == 0
    assert answer["ext"] == {
        "clusterName": "c",
        "brokerName": G,
        "masterBrokerId": "1",
        "masterAddress": "10.0.0.1:10911",
        "masterEpoch": "1",
        "syncStateSetEpoch": "2",
    }
    assert answer["body"] == {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": 2}
    assert (made.groups[G].replicas[2].address, made.groups[G].replicas[2].ha_address) == ("new:1", "new:2")
    assert "masterBrokerId" not in made.apply(msgspec.structs.replace(ask, alive=()))["ext"]
    assert made.apply(msgspec.structs.replace(ask, broker_id=8))["code"] == 2010
    assert made.apply(msgspec.structs.replace(ask, group="x"))["code"] == 2010


def test_cleaning_spares_what_lives_unless_told_otherwise() -> None:
    made = table()
    assert made.apply(CleanBrokers(group="x"))["code"] == 2009
    assert made.apply(CleanBrokers(group=G))["code"] == 2009
    assert made.apply(CleanBrokers(group=G, broker_ids=(2, 3), alive=(3,)))["code"] == 2009
    assert made.apply(CleanBrokers(group=G, broker_ids=(3,), alive=(1, 2)))["code"] == 0
    assert sorted(made.groups[G].replicas) == [1, 2]
    assert made.groups[G].members == [1, 2]
    assert made.apply(CleanBrokers(group=G, living=True))["code"] == 0
    assert G not in made.groups


def test_a_group_made_anew_goes_on_with_ids_and_epochs() -> None:
    made = table()
    made.apply(CleanBrokers(group=G, living=True))
    assert made.next_id(G) == 4
    join(made, 4)
    answer = made.apply(ElectMaster(group=G, broker_id=4))
    assert answer["code"] == 0
    assert int(answer["ext"]["masterEpoch"]) > 1


# reading


def test_replica_info_of_an_unknown_group_is_refused() -> None:
    assert ReplicaTable().replica_info("x").code == 2008


def test_sync_state_data_tells_members_from_others() -> None:
    made = table(members=(1, 3))
    body = made.sync_state_data([G, "x"], lambda _group, broker_id: broker_id != 3, lambda _group: {}).body
    found = body["replicasInfoTable"]
    assert list(found) == [G]
    assert [(row["brokerId"], row["alive"]) for row in found[G]["inSyncReplicas"]] == [(1, True), (3, False)]
    assert [row["brokerId"] for row in found[G]["notInSyncReplicas"]] == [2]
    assert found[G]["masterBrokerId"] == 1


# exactly once, total, restorable


def test_a_repeated_request_is_answered_from_memory() -> None:
    made = table(master=None)
    ask = ElectMaster(group=G, broker_id=1, request_id="r1")
    first = made.apply(ask)
    again = made.apply(msgspec.structs.replace(ask, broker_id=2))
    assert again == first
    assert made.groups[G].epoch == 1


def test_the_memory_of_requests_is_bounded() -> None:
    made = table()
    for number in range(ANSWERS_MAX + 10):
        made.apply(ElectMaster(group=G, request_id=str(number), alive=(1,)))
    image = msgspec.msgpack.decode(made.snapshot())
    assert len(image[3]) == ANSWERS_MAX


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.binary(), st.lists) | st.binary()
)
def test_no_command_makes_the_table_raise(junk: Any) -> None:
    made = table()
    before = made.snapshot()
    data = junk if isinstance(junk, bytes) else repr(junk).encode()
    assert msgspec.msgpack.decode(made.apply_bytes(data))["code"] == 2005
    assert made.apply({"op": "elect", "group": junk})["code"] in (2005, 2010)
    assert made.snapshot() == before


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 7"):
        ReplicaTable().restore(msgspec.msgpack.encode([7, {}, {}, {}]))
    with pytest.raises(ValueError, match="not a replica table"):
        ReplicaTable().restore(b"junk")


IDS = st.integers(1, 6)
SETS = st.frozensets(IDS, max_size=5).map(lambda ids: tuple(sorted(ids)))


class Groups(RuleBasedStateMachine):
    """Any commands in any order, two tables that get the same, one of them restored now and then."""

    @initialize()
    def begin(self) -> None:
        self.table, self.twin = ReplicaTable(), ReplicaTable()
        self.masters: dict[int, int] = {}  # epoch -> master
        self.epochs = (0, 0)
        self.owners: dict[int, str] = {}  # id -> check code

    def do(self, command: Command) -> dict[str, Any]:
        answer = self.table.apply(command)
        assert self.twin.apply_bytes(encode_command(command)) == msgspec.msgpack.encode(
            {k: v for k, v in answer.items() if v not in (None, {}, False) and (k, v) != ("code", 0)}
        )
        return answer

    @rule(wanted=IDS, ahead=st.booleans(), who=st.sampled_from("ab"))
    def apply_id(self, wanted: int, ahead: bool, who: str) -> None:
        broker_id = self.table.next_id(G) if ahead else wanted
        code = f"{who}:1;1"
        if self.do(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=code))["code"] == 0:
            assert self.owners.setdefault(broker_id, code) == code

    @rule(
        broker_id=IDS,
        alive=SETS,
        address=st.sampled_from(["", "x:1", "y:1"]),
        unclean=st.booleans(),
        suspect=st.booleans(),
        majority_of=st.sampled_from([0, 0, 0, 3]),
        learner=st.sampled_from([False, False, True]),
    )
    def register(
        self,
        broker_id: int,
        alive: tuple[int, ...],
        address: str,
        unclean: bool,
        suspect: bool,
        majority_of: int,
        learner: bool,
    ) -> None:
        self.do(
            RegisterBroker(
                group=G,
                cluster="c",
                broker_id=broker_id,
                address=address,
                alive=alive,
                unclean=unclean,
                suspect=suspect,
                majority_of=majority_of,
                learner=learner,
            )
        )

    @rule(
        began=st.booleans(), suspect=st.booleans(), all_ack=st.booleans(), unclean=st.booleans(), alive=SETS
    )
    def restart_the_master(
        self, began: bool, suspect: bool, all_ack: bool, unclean: bool, alive: tuple[int, ...]
    ) -> None:
        group = self.table.groups.get(G)
        if group is None or group.master is None:
            return
        answer = self.do(
            ElectMaster(
                group=G,
                broker_id=group.master,
                restarted=True,
                suspect=suspect,
                all_ack=all_ack,
                log_epoch=group.epoch - (not began),
                unclean=unclean,
                alive=alive,
                answered=alive,
            )
        )
        assert answer["code"] in (0, 2012)

    @staticmethod
    def outsider_may_lead(group: Group | None) -> bool:
        """A clean election of a broker that is no member, at equal logs: the first one, or by a majority."""
        return group is None or group.virgin or group.majority_of > 0

    @rule(
        broker_id=IDS | st.just(-1),
        designate=st.booleans(),
        unclean=st.booleans(),
        alive=SETS,
        within_grace=SETS,
    )
    def elect(
        self,
        broker_id: int,
        designate: bool,
        unclean: bool,
        alive: tuple[int, ...],
        within_grace: tuple[int, ...],
    ) -> None:
        group = self.table.groups.get(G)
        before = group.master if group else None
        outsider = self.outsider_may_lead(group)
        members, virgin = (list(group.members), group.virgin) if group else ([], True)
        answer = self.do(
            ElectMaster(
                group=G,
                broker_id=broker_id,
                designate=designate,
                unclean=unclean,
                alive=alive,
                within_grace=within_grace,
                answered=alive,
            )
        )
        if answer["code"] == 0:
            winner = int(answer["ext"]["masterBrokerId"])
            assert winner != before
            assert unclean or outsider or winner in members
            assert winner in alive or virgin

    @rule(members=SETS, master=IDS, right=st.booleans(), behind=st.integers(0, 2), alive=SETS)
    def alter(
        self, members: tuple[int, ...], master: int, right: bool, behind: int, alive: tuple[int, ...]
    ) -> None:
        group = self.table.groups.get(G)
        answer = self.do(
            AlterSyncStateSet(
                group=G,
                master_id=(group.master or 0) if group and right else master,
                master_epoch=group.epoch if group else 0,
                members=members,
                members_epoch=(group.members_epoch if group else 0) - behind,
                alive=alive,
            )
        )
        if behind:
            assert answer["code"] != 0

    @rule(ids=st.none() | SETS, living=st.booleans(), alive=SETS)
    def clean(self, ids: tuple[int, ...] | None, living: bool, alive: tuple[int, ...]) -> None:
        self.do(CleanBrokers(group=G, broker_ids=ids, living=living, alive=alive))

    @rule()
    def restart(self) -> None:
        data = self.twin.snapshot()
        self.twin = ReplicaTable()
        self.twin.restore(data)

    @invariant()
    def promises(self) -> None:
        assert self.twin.snapshot() == self.table.snapshot()
        self.table.check_invariants()
        group = self.table.groups.get(G)
        if group is None:
            return
        assert (group.epoch, group.members_epoch) >= self.epochs
        assert group.epoch >= self.epochs[0]
        assert group.members_epoch >= self.epochs[1]
        self.epochs = (group.epoch, group.members_epoch)
        assert set(group.members) | set(group.suspect) <= set(group.replicas)
        assert all(broker_id < group.next_id for broker_id in group.replicas)
        if group.master is not None:
            assert group.master in group.members
            assert self.masters.setdefault(group.epoch, group.master) == group.master


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_where_the_only_member_may_have_forgotten_the_longest_log_leads_and_of_equal_ones_the_members() -> (
    None
):
    """A topic made at the only member is on its disk alone; an outsider with an equal log lacks it."""
    longer, equal = {1: End(1, 9), 2: End(1, 8)}, {1: End(1, 9), 2: End(1, 9)}
    for ends, leads in ((longer, "1"), (equal, "2"), ({}, "2")):
        made = table(brokers=2, master=2, members=(2,))
        back = ElectMaster(group=G, broker_id=2, restarted=True, suspect=True, ends=ends)
        assert made.apply(back)["code"] == 2012
        assert (made.groups[G].master, made.groups[G].members) == (None, [2])
        lost = ElectMaster(group=G, alive=(1,), answered=(1,), ends=ends)
        assert made.apply(lost)["code"] == 2004, "2 is waited for"
        lost = msgspec.structs.replace(lost, alive=(1, 2), answered=(1, 2))
        assert made.apply(lost)["ext"]["masterBrokerId"] == leads


def test_a_member_becomes_a_learner_only_when_it_has_left_the_set() -> None:
    """What it answered alone may be nowhere else, and nobody elects a learner."""
    made = table(members=(1, 2))
    learns = RegisterBroker(group=G, cluster="c", broker_id=2, address="", learner=True, suspect=True)
    before = made.snapshot()
    assert made.apply(learns)["code"] == 2005
    assert made.apply(msgspec.structs.replace(learns, broker_id=1))["code"] == 2005
    assert made.snapshot() == before
    alter(made, (1,))
    assert made.apply(learns)["code"] == 0
    assert alter(made, (1, 2))["code"] == 2003, "it was level with the master before it became one"


def test_a_member_that_is_a_learner_is_waited_for_and_does_not_lead() -> None:
    """As a group may be that was kept by an older version."""
    ends = {1: End(1, 9), 2: End(1, 5), 3: End(1, 5)}
    alone = Ballot(members=(1,), voters=(2, 3), alive=(2, 3), answered=(2, 3), ends=ends)
    assert choose(alone) is None
    back = msgspec.structs.replace(alone, alive=(1, 2, 3), answered=(1, 2, 3))
    assert choose(back) is None, "nobody else has what it has"
    back = msgspec.structs.replace(back, ends={})
    assert choose(back) is None, "nor may anybody else have its tables"
    assert choose(msgspec.structs.replace(back, members=(1, 2), suspect=(1, 2))) == 2
    beside = Ballot(members=(1, 2), voters=(2, 3), alive=(1, 2, 3), answered=(1, 2, 3), all_ack=True)
    assert choose(beside) == 2
