"""The promise of an epoch: its master's mode, lease and members are those of the broker that was elected."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.elections.lease import DRIFT, Leases, matters
from controller.elections.liveness import Heartbeat, Liveness
from controller.elections.preview import ElectionPreview
from controller.groups.commands import (
    BROKER_ID_INVALID,
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    ElectMaster,
    KeepToLeases,
    RegisterBroker,
)
from controller.groups.elect import Ballot, End, choose, has_every_record
from controller.groups.group import Group, Replica, Rule
from controller.groups.table import ReplicaTable
from model.config import ControllerConfig
from model.leases import DURATION_MAX_MS, duration_ms

G = "broker-a"
ALL = {"all_ack": True, "timeout_ms": 1500}
MAJORITY = {"all_ack": False, "majority_of": 3, "timeout_ms": 1500}
EVERY = (1, 2, 3)


def registers(table: ReplicaTable, broker_id: int, **said: Any) -> dict[str, Any]:
    command = RegisterBroker(group=G, cluster="c", broker_id=broker_id, address="", alive=EVERY, **said)
    answer = table.apply(command)
    assert answer["code"] == 0
    return answer


def started(said: dict[str, Any]) -> ReplicaTable:
    """Brokers 1 to 3 registered with ``said``, all of them in the set of master 1."""
    table = ReplicaTable()
    for broker_id in EVERY:
        table.apply(ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=f"{broker_id};1"))
        registers(table, broker_id, **said)
    assert elect(table, 1)["code"] == 0
    alter(table, EVERY)
    return table


def elect(table: ReplicaTable, broker_id: int = -1, **keywords: Any) -> dict[str, Any]:
    keywords.setdefault("alive", EVERY)
    return table.apply(ElectMaster(group=G, broker_id=broker_id, answered=keywords["alive"], **keywords))


def alter(table: ReplicaTable, members: tuple[int, ...], **keywords: Any) -> int:
    group = table.groups[G]
    assert group.master is not None
    known = {"members_epoch": group.members_epoch, "master_epoch": group.epoch, "master_id": group.master}
    command = AlterSyncStateSet(group=G, members=members, alive=EVERY, **{**known, **keywords})
    code: int = table.apply(command)["code"]
    return code


# Incarnations (Kafka's KIP-903)


@pytest.mark.parametrize(("suspect", "members"), [([], [1, 2]), ([2], [1, 2, 3]), ([1], [1, 2])])
def test_a_member_that_lost_its_end_leaves_the_set_only_where_a_sound_one_lives(
    suspect: list[int], members: list[int]
) -> None:
    table = started(ALL)
    group = table.groups[G]
    group.suspect = suspect
    alive = (2, 3)  # the master is gone
    said: dict[str, Any] = {"address": "", "alive": alive, "suspect": True, **ALL}
    table.apply(RegisterBroker(group=G, cluster="c", broker_id=3, **said))
    assert sorted(group.members) == members


TWO = {"all_ack": False, "timeout_ms": 1500}


@pytest.mark.parametrize(
    ("said", "end", "answered", "elected"),
    [
        (TWO, End(1, 30), (2, 3), 3),  # what only it and the master had, its disk has
        (TWO, End(1, 20), (2, 3), 2),  # it has no more than the one that forgot nothing
        (TWO, End(1, 30), (2,), 2),  # its last heartbeat may be from before it forgot
        (ALL, End(1, 30), (2, 3), 2),  # each member has everything
    ],
)
def test_one_that_left_the_set_as_it_forgot_leads_where_it_has_more_than_any_member_that_counts(
    said: dict[str, Any], end: End, answered: tuple[int, ...], elected: int
) -> None:
    """The master and 3 acknowledged; 3 loses power and is back; the master dies."""
    table = started(said)
    registers(table, 3, suspect=True, **said)
    assert table.groups[G].members == [1, 2]
    ends = {2: End(1, 20), 3: end}
    command = ElectMaster(group=G, alive=(2, 3), answered=answered, ends=ends)
    assert table.apply(command)["ext"]["masterBrokerId"] == str(elected)
    sources = [source.brokers for source in table.groups[G].table_sources]
    assert sources == ([[1, 2]] if elected == 3 else []), "what was answered of the tables since is there"
    assert table.groups[G].left_unasked == []


@pytest.mark.parametrize(
    ("end", "answered", "lacks"),
    [
        (End(1, 30), (2, 3), "broker 2 lacks what broker 3 has"),
        (End(1, 20), (2, 3), None),
        (End(1, 30), (2,), None),  # a suspect that says nothing is not waited for
        (End(1, 30), (3,), "broker 2 of broker-a does not say"),
    ],
)
def test_an_operator_names_no_member_that_lacks_what_one_that_forgot_has(
    end: End, answered: tuple[int, ...], lacks: str | None
) -> None:
    """Two of the members acknowledge; 3 left the set as it may have forgotten, and the master is dead."""
    table = started(TWO)
    registers(table, 3, suspect=True, **TWO)
    preview = ElectionPreview(ControllerConfig(), table, Liveness(), Leases())
    ends = {2: End(1, 20), 3: end}
    wanted = ElectMaster(
        group=G, broker_id=2, designate=True, alive=(2, 3), answered=answered, all_ack=False, ends=ends
    )
    assert (preview.lacks(wanted) or "").startswith(lacks or "")
    assert (preview.lacks(wanted) is None) == (lacks is None)


def test_a_proposal_about_an_earlier_incarnation_admits_nobody() -> None:
    """3 loses power, is level again, is proposed; it loses power again before the proposal arrives."""
    table = started(ALL)
    registers(table, 3, suspect=True)
    base = table.groups[G].members_epoch
    registers(table, 3, suspect=True)
    assert alter(table, EVERY, members_epoch=base) == 2001, "the epoch of the set rose once more"
    assert alter(table, EVERY, incarnations={3: 1}) == 2001, "and the master must know of this incarnation"
    assert table.groups[G].suspect == [3]
    assert alter(table, EVERY, incarnations={2: 0, 3: 2}) == 0
    assert table.groups[G].suspect == []


def test_a_real_master_says_no_incarnations_and_is_fenced_by_the_epoch_of_the_set() -> None:
    table = started(ALL)
    registers(table, 3, suspect=True)
    base = table.groups[G].members_epoch
    registers(table, 3, suspect=True)
    assert alter(table, EVERY, members_epoch=base) == 2001
    assert alter(table, EVERY) == 0


def test_incarnations_are_told_to_brokers_and_survive_a_snapshot() -> None:
    table = started(ALL)
    assert "incarnations" not in table.replica_info(G).ext
    registers(table, 3, suspect=True)
    assert registers(table, 3, suspect=True)["ext"]["incarnations"] == "3:2"
    again = ReplicaTable()
    again.restore(table.snapshot())
    assert again.replica_info(G).ext["incarnations"] == "3:2"


# The rule of an epoch


def test_one_registration_does_not_change_how_the_next_master_is_elected() -> None:
    """Mode all, the set is {1}; 2 is restarted with majorityAck; 1 dies (issue 12, V5)."""
    table = started(ALL)
    alter(table, (1,))
    registers(table, 2, **MAJORITY)
    ends = {1: End(1, 9000), 2: End(1, 100), 3: End(1, 100)}
    assert elect(table, alive=(2, 3), ends=ends)["code"] == 2004
    assert elect(table, alive=EVERY, ends=ends)["ext"]["masterBrokerId"] == "1"


def test_in_majority_mode_a_member_that_was_restarted_in_mode_all_is_not_enough() -> None:
    table = started(MAJORITY)
    registers(table, 2, **ALL)
    assert elect(table, alive=(2,), ends={2: End(1, 9000)})["code"] == 2004


def test_a_master_restarted_with_another_mode_ends_its_epoch() -> None:
    table = started(ALL)
    registers(table, 1, **ALL)
    assert (table.groups[G].master, table.groups[G].epoch) == (1, 1)
    registers(table, 1, **{**ALL, "timeout_ms": 10_000})
    assert (table.groups[G].master, table.groups[G].epoch, table.groups[G].members) == (None, 2, [1, 2, 3])


def test_from_all_to_majority_the_members_decide_until_a_majority_is_among_them() -> None:
    table = started(ALL)
    alter(table, (1,))
    for broker_id in EVERY:
        registers(table, broker_id, **MAJORITY)
    ends = {1: End(1, 9000), 2: End(1, 100), 3: End(1, 100)}
    assert elect(table, 1, ends=ends)["ext"]["masterBrokerId"] == "1"
    assert elect(table, alive=(2, 3), ends=ends)["code"] == 2004, "1 alone has what was acknowledged"
    assert elect(table, alive=EVERY, ends=ends)["ext"]["masterBrokerId"] == "1"
    assert alter(table, (1, 2)) == 0
    assert table.groups[G].majority_of == 3
    level = {2: End(3, 9000), 3: End(1, 100)}
    assert elect(table, alive=(2, 3), ends=level)["ext"]["masterBrokerId"] == "2"
    assert table.groups[G].unclean_elections == 0


def test_from_majority_to_all_the_new_master_is_elected_by_a_majority_and_rules_by_members() -> None:
    table = started(MAJORITY)
    for broker_id in EVERY:
        registers(table, broker_id, **ALL)
    assert table.groups[G].master is None
    assert elect(table, alive=(2,))["code"] == 2004, "a minority, by the rule of the last epoch"
    ends = {2: End(1, 10), 3: End(1, 20)}
    assert elect(table, alive=(2, 3), ends=ends)["ext"]["masterBrokerId"] == "3"
    assert (table.groups[G].majority_of, table.groups[G].members) == (0, [3])


def test_mode_and_lease_are_those_of_the_epoch_whatever_an_old_heartbeat_says() -> None:
    """A new Controllers' leader has a heartbeat from before the broker was restarted as a counted master with
    longer leases (issue 12, V11)."""
    old = Heartbeat(session=1, at_ms=0, timeout_ms=1500, leases=True, all_ack=True)
    rule = Rule(all_ack=False, timeout_ms=10_000)
    assert matters(old, [1, 2], 2, rule)
    assert not matters(old, [1, 2], 2)
    leases = Leases()
    leases.lead(1000)
    assert leases.until_ms((G, 1), old, rule) == 1000 + duration_ms(10_000) * (1 + DRIFT)
    assert leases.until_ms((G, 1), None, Rule()) == 1000 + DURATION_MAX_MS * (1 + DRIFT)
    real = msgspec.structs.replace(Rule(), all_ack=None)
    assert leases.until_ms((G, 1), Heartbeat(session=1, at_ms=0), real) == float("-inf"), "no leases there"


def test_a_group_from_before_rules_were_kept_goes_by_its_registrations() -> None:
    group = Group("c", replicas={1: Replica("a", "c", majority_of=3), 2: Replica("b", "c")}, next_id=3)
    assert group.majority_of == 3


# Invariants


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"members": [2]}, "no member"),
        ({"members": [1, 9]}, "registered"),
        ({"epoch": 0}, "goes back"),
        ({"master": 2}, "two masters"),
        ({"members": [1, 2]}, "under the same epoch"),
        ({"suspect": [7]}, "suspects"),
    ],
)
def test_a_broken_promise_is_named(change: dict[str, Any], text: str) -> None:
    table = started(ALL)
    was = table.groups[G]
    table.groups[G] = replace(was, **change)
    with pytest.raises(AssertionError, match=text):
        table.groups[G].check_invariants(was)


def test_a_command_that_would_break_a_promise_is_refused_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = started(ALL)
    before = table.snapshot()

    def two_masters(self: Group, chosen: int, had_all: list[int], **told: bool) -> None:
        self.master = chosen

    monkeypatch.setattr(Group, "elected", two_masters)
    answer = elect(table, alive=(2, 3))
    assert (answer["code"], answer["changed"]) == (1, False)
    assert "two masters" in answer["remark"]
    assert table.snapshot() == before
    table.check_invariants()
    table.groups[G].members = [2]
    with pytest.raises(AssertionError, match="no member"):
        table.check_invariants()


@pytest.mark.parametrize("error", [KeyError(object()), RecursionError("so deep"), OverflowError("here")])
def test_a_command_that_fails_half_done_changes_nothing_and_is_answered_alike_everywhere(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Each Controller carries it out itself; the answer is part of the state they compare."""

    def half(self: Group, chosen: int, had_all: list[int], *, needs_lease: bool) -> None:
        self.master, self.epoch = chosen, self.epoch + 1
        raise error

    table = started(ALL)
    before = table.snapshot()
    monkeypatch.setattr(Group, "elected", half)
    answer = elect(table, alive=(2, 3))
    assert (answer["code"], answer["changed"]) == (1, False)
    assert answer["remark"] == f"refused, carrying it out failed in {G}: the log says how"
    assert table.snapshot() == before


# The election rules, whatever comes


IDS = st.frozensets(st.integers(1, 5), max_size=5)
ENDS = st.dictionaries(st.integers(1, 5), st.builds(End, st.integers(0, 3), st.integers(0, 9)))
BALLOTS = st.builds(
    lambda voters, members, **rest: Ballot(voters=sorted(voters), members=sorted(members & voters), **rest),
    voters=IDS,
    members=IDS,
    alive=IDS,
    answered=IDS,
    suspect=IDS,
    ends=ENDS,
    all_ack=st.booleans(),
    majority_of=st.sampled_from([0, 0, 3, 5]),
)


@pytest.mark.parametrize(
    ("answered", "enough"), [((2, 3, 4), True), ((3, 4, 5), False), ((1, 2), False), ((1, 2, 5), True)]
)
def test_a_majority_elects_only_while_fewer_holders_are_missing_than_a_record_has_copies(
    answered: tuple[int, ...], enough: bool
) -> None:
    """Records are on 2 of 1, 2, 3 at least; 4 and 5 registered since."""
    ballot = Ballot(members=[1, 2], voters=[1, 2, 3, 4, 5], alive=answered, majority_of=5)
    ballot = replace(ballot, holders=(1, 2, 3), copies=2)
    assert has_every_record(ballot, answered) is enough


def reach(ballot: Ballot, broker_id: int) -> tuple[int, int]:
    end = ballot.ends.get(broker_id, End())
    return end.epoch, end.max_offset


@given(BALLOTS)
def test_a_suspect_leads_only_when_no_replica_has_more(ballot: Ballot) -> None:
    chosen = choose(ballot)
    if chosen is not None and chosen in ballot.suspect:
        assert set(ballot.voters) <= set(ballot.alive) & set(ballot.answered)
        assert len(ballot.voters) >= ballot.majority_of
        assert all(reach(ballot, chosen) >= reach(ballot, other) for other in ballot.voters)


@given(BALLOTS)
def test_who_leads_is_a_sound_member_or_the_furthest_of_enough(ballot: Ballot) -> None:
    chosen = choose(ballot)
    if chosen is None or chosen in ballot.suspect:
        return
    heard = set(ballot.voters) & set(ballot.alive) & set(ballot.answered)
    if ballot.majority_of:
        sound = heard - set(ballot.suspect)
        assert len(heard) > ballot.majority_of // 2
        assert chosen in heard
        assert len(heard) == len(ballot.voters) or all(
            reach(ballot, chosen) >= reach(ballot, other) for other in sound
        )
    elif chosen not in ballot.members:
        assert heard == set(ballot.voters)
        assert all(reach(ballot, chosen) >= reach(ballot, other) for other in ballot.voters)
        assert set(ballot.members) <= set(ballot.suspect), "a sound member would have been there"


@given(BALLOTS, st.integers(1, 5))
def test_a_name_is_elected_or_nobody(ballot: Ballot, wanted: int) -> None:
    assert choose(replace(ballot, preferred=wanted)) in (None, wanted)


@given(BALLOTS)
def test_a_group_that_gets_a_master_gets_one_with_a_suspect_less_too(ballot: Ballot) -> None:
    """More evidence of a whole log never makes the group wait where it did not."""
    if choose(ballot) is not None:
        for cleared in ballot.suspect:
            rest = [b for b in ballot.suspect if b != cleared]
            assert choose(replace(ballot, suspect=rest)) is not None


def outsider_for(table: ReplicaTable) -> int | None:
    """Whom an unclean election finds when only broker 3 lives, and is no member."""
    elect(table, alive=(3,), unclean=True, ends={3: End(1, 100)})
    return table.groups[G].master


@pytest.mark.parametrize("told", ["at its election", "since", "never"])
def test_an_outsider_is_elected_only_after_a_master_that_knew_of_it(told: str) -> None:
    """A master that waits for every member goes on by their word. Cut off before it heard that an outsider
    may be elected, it would acknowledge beside that one."""
    table = started(ALL)
    if told == "at its election":
        elect(table, alive=(2, 3), unclean=True)
    assert alter(table, tuple({1, 2} | {table.groups[G].master or 0})) in (0, 2013)
    alter(table, (1, 2))
    if told == "since":
        assert keeps_to_leases(table, 1, 1) == 0
    assert table.groups[G].master != 3
    needs = table.groups[G].needs_lease
    assert table.replica_info(G).ext.get("electsOutsiders") == ("true" if needs else None)
    assert outsider_for(table) == (None if told == "never" else 3)
    assert table.groups[G].unclean_elections == (0 if told == "never" else 1)


def keeps_to_leases(table: ReplicaTable, master: int, epoch: int) -> int:
    code: int = table.apply(KeepToLeases(group=G, master_id=master, master_epoch=epoch))["code"]
    return code


def test_what_a_master_said_of_its_leases_is_over_with_its_epoch() -> None:
    table = started(ALL)
    assert keeps_to_leases(table, 2, 1) != 0, "not the master"
    assert keeps_to_leases(table, 1, 2) != 0, "not this epoch"
    assert not table.groups[G].needs_lease
    assert keeps_to_leases(table, 1, 1) == 0
    elect(table, alive=(2, 3))
    assert not table.groups[G].needs_lease, "broker 2 has not heard of it"
    alter(table, (2,))
    assert outsider_for(table) is None


@pytest.mark.parametrize("gone", ["not yet", "follows", "removed", "started anew"])
def test_no_outsider_is_elected_while_a_former_master_may_read_old_acknowledgements(gone: str) -> None:
    """Broker 2 acknowledged a record to master 1, was elected, and keeps to leases. Its word is still on its
    way: master 1 would answer OK for what an outsider lacks, as it never heard of one."""
    table = started(ALL)
    alter(table, (1, 2))
    elect(table, alive=(2,))
    assert keeps_to_leases(table, 2, 2) == 0
    if gone == "follows":
        assert alter(table, (1, 2)) == 0
        assert alter(table, (2,)) == 0
    elif gone == "removed":
        table.apply(CleanBrokers(group=G, broker_ids=(1,), living=True))
    elif gone == "started anew":
        registers(table, 1, **ALL)
    else:
        remark = elect(table, 3, alive=(3,), unclean=True)["remark"]
        assert "broker 1 may go on" in remark
    assert outsider_for(table) == (None if gone == "not yet" else 3)


@pytest.mark.parametrize("when", ["before it asks", "before another was elected", "after that"])
def test_a_master_that_was_started_anew_holds_no_outsider_back(when: str) -> None:
    """Broker 1 led, and its process is a new one: nobody reads what members said to the old one. Registered
    alone says nothing of it while it is master: it may have been elected while it was down."""
    table = started(ALL)
    alter(table, (1, 2))
    if when == "after that":
        elect(table, alive=(2,))
    registers(table, 1, **ALL)
    if when == "before it asks":
        assert table.groups[G].may_confirm_without_lease == [1]
        elect(table, 1, alive=(1, 3), restarted=True, log_epoch=1, suspect=True)
        assert table.groups[G].master is None, "the group waits for broker 2"
    elif when == "before another was elected":
        elect(table, 1, alive=(1, 2), restarted=True, log_epoch=1)
    assert 1 not in table.groups[G].may_confirm_without_lease
    if table.groups[G].master == 2:
        assert table.groups[G].may_confirm_without_lease == [2]
        table.apply(CleanBrokers(group=G, broker_ids=(2,), living=True))
        assert table.groups[G].members == []
    assert outsider_for(table) == 3


def test_a_master_elected_while_it_was_down_goes_by_its_members_word() -> None:
    """Its new process may lead the epoch, as the old one never did: it counts, and needs no lease for it."""
    table = started(ALL)
    elect(table, alive=(2, 3))
    registers(table, 2, **ALL)
    assert table.groups[G].may_confirm_without_lease == [1, 2]
    assert not table.groups[G].needs_lease


def test_the_key_of_unclean_elections_is_named_only_where_it_is_set() -> None:
    table, command = started(ALL), ElectMaster(group=G, alive=(3,))

    def why(*, unclean: bool) -> str:
        config = ControllerConfig(elect_unclean_master=unclean)
        return ElectionPreview(config, table, Liveness(), Leases()).why_nobody(command)

    assert "broker 1 may go on by its members' word" in why(unclean=True)
    assert "until it hears of it" in why(unclean=True)
    assert "may go on" not in why(unclean=False)
    elect(table, alive=(2, 3))
    registers(table, 2, **ALL)
    assert "brokers 1 and 2 may go on by their members' word" in why(unclean=True)
    assert "until each of them hears of it" in why(unclean=True)
    assert "may go on" not in why(unclean=False)


def test_members_of_a_majority_lead_for_nobody_that_was_restarted_to_wait_for_all() -> None:
    """What 1 and 2 acknowledged, 3 lacks, though it was a member. Broker 1 is elected in mode all and asks
    for its next epoch before it began this one: it has everything itself."""
    table = started(MAJORITY)
    registers(table, 1, **ALL)
    ends = {1: End(1, 100), 2: End(1, 100), 3: End(1, 0)}
    elect(table, alive=(1, 2), ends=ends)
    assert table.groups[G].master == 1
    elect(table, 1, alive=(1, 3), ends=ends, restarted=True, log_epoch=1)
    assert table.groups[G].master == 1


def test_an_outsider_is_elected_after_a_master_that_was_removed_or_needs_more_than_its_members() -> None:
    removed = started(ALL)
    alter(removed, (1, 2))
    assert outsider_for(removed) is None
    assert "keelmq group forget" in elect(removed, 3, alive=(3,), unclean=True)["remark"]
    removed.apply(CleanBrokers(group=G, broker_ids=(1,), living=True))
    assert outsider_for(removed) == 3
    for said in ({"all_ack": False, "timeout_ms": 1500}, {}):
        table = started(said)
        alter(table, (1, 2))
        assert outsider_for(table) == 3


def test_a_member_that_is_suspect_is_no_reason_not_to_wait_for_a_lease() -> None:
    """What it acknowledged before it forgot may still be on its way to the former master."""
    group = started(ALL).groups[G]
    group.suspect = [2]
    assert not matters(None, group.sound_members, 3, group.rule)
    assert matters(None, group.sound_members, 2, group.rule)


def registration(broker_id: int, starts: int, process: str, nth: int, **said: Any) -> RegisterBroker:
    return RegisterBroker(
        group=G, cluster="c", broker_id=broker_id, address="", starts=starts, process=process, nth=nth, **said
    )


def test_a_registration_of_a_process_that_is_gone_comes_late_and_changes_nothing() -> None:
    table = started(ALL)
    table.apply(registration(2, 1, "first", 1))
    assert table.apply(registration(2, 2, "second", 1, majority_of=3, all_ack=False))["code"] == 0
    kept = table.snapshot()
    late = table.apply(registration(2, 1, "first", 2, suspect=True, learner=True, all_ack=True))
    assert (late["code"], late["ext"]) == (BROKER_ID_INVALID, {"starts": "2", "process": "second"})
    assert table.snapshot() == kept


def test_of_one_process_the_last_registration_counts_and_may_be_repeated() -> None:
    table = started(ALL)
    table.apply(registration(2, 1, "first", 1, suspect=True))
    table.apply(registration(2, 1, "first", 2))
    assert table.apply(registration(2, 1, "first", 1, suspect=True))["code"] == BROKER_ID_INVALID
    assert table.apply(registration(2, 1, "first", 2))["code"] == 0


def test_a_disk_put_back_says_a_number_that_is_taken() -> None:
    table = started(ALL)
    table.apply(registration(2, 5, "before", 1))
    assert table.apply(registration(2, 5, "after", 1))["code"] == BROKER_ID_INVALID
    assert table.apply(registration(2, 6, "after", 2, suspect=True))["code"] == 0
    assert table.groups[G].suspect == [2]


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (("first", "unheard", "second"), 0),  # starts that reached no Controller lie between
        (
            ("first", "unheard"),
            BROKER_ID_INVALID,
        ),  # it was put back, and started more often than was heard of
        ((), BROKER_ID_INVALID),  # it knows of none
        (None, 0),  # an older version names none: the number counts
    ],
)
def test_a_start_that_does_not_know_the_last_one_is_of_an_older_disk_whatever_its_number(
    before: tuple[str, ...] | None, code: int
) -> None:
    table = started(ALL)
    table.apply(registration(2, 5, "second", 1, before=("first",)))
    assert table.apply(registration(2, 9, "now", 1, before=before))["code"] == code


def test_a_start_that_was_registered_by_an_older_version_is_on_no_disk_by_name() -> None:
    """The first starts of an upgraded broker reached no Controller: its disk is not old for that."""
    table = started(ALL)
    table.apply(registration(2, 5, "older version", 1))
    assert table.apply(registration(2, 7, "now", 1, before=("unheard",)))["code"] == 0
    assert table.apply(registration(2, 9, "next", 1, before=("unheard",)))["code"] == BROKER_ID_INVALID


def test_who_says_no_number_is_taken_at_its_word() -> None:
    """A RocketMQ broker, or an older version."""
    table = started(ALL)
    table.apply(registration(2, 5, "before", 1))
    assert table.apply(registration(2, 0, "", 0, all_ack=False))["code"] == 0
    assert table.apply(registration(2, 5, "late", 1))["code"] == BROKER_ID_INVALID, "what was known is kept"
    assert table.apply(registration(2, 6, "newer", 1))["code"] == 0
