"""Would the explorer notice? Bugs to plant, each with the small group in which it must be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

import msgspec

from chaos.model.parts import controllers, handovers, slaves
from chaos.model.rules import AS_KEELMQ, Rules
from chaos.model.world import Budget, Mode, Setting
from controller.elections import preview
from controller.elections.lease import Leases
from controller.elections.preview import ElectionPreview
from controller.groups import elect
from controller.groups.elect import Ballot
from controller.groups.group import Group
from controller.groups.table import ReplicaTable
from ha.master.ack_policy import AckPolicy, Copies


@dataclass(frozen=True, slots=True)
class Plant:
    """``rules``: what the model leaves out; ``owner.name``: what of the real code is replaced."""

    text: str
    setting: Setting
    rules: Rules = AS_KEELMQ
    owner: Any = None
    name: str = ""
    replacement: Callable[[Any], Any] | None = None

    @contextmanager
    def planted(self) -> Iterator[Rules]:
        """The rules to explore by, while the bug is in."""
        forget()
        try:
            if self.replacement is None:
                yield self.rules
            else:
                original = getattr(self.owner, self.name)
                with mock.patch.object(self.owner, self.name, self.replacement(original)):
                    yield self.rules
        finally:
            forget()


def forget() -> None:
    """What was remembered of the real code's answers: it changes when a bug is planted."""
    for remembered in (
        controllers._applied,
        controllers._outcomes,
        controllers._elections,
        controllers._waits,
        handovers._handed_over,
        handovers._successors,
        slaves.agreed,
    ):
        remembered.cache_clear()


def _over(original: Any) -> Any:
    def lease_left_ms(self: ElectionPreview, *asked: Any) -> float:
        return 0.0

    return lease_left_ms


def _granted_to_nobody(original: Any) -> Any:
    def granted_to(self: Leases, group: str) -> list[int]:
        return []

    return granted_to


def _members_alone(original: Any) -> Any:
    def among_survivors(ballot: Ballot) -> int | None:
        heard = [b for b in ballot.members if b in ballot.alive]
        return ballot.best(heard) if len(heard) == len(ballot.members) else None

    return among_survivors


def _furthest_survivor(original: Any) -> Any:
    def among_survivors(ballot: Ballot) -> int | None:
        heard = [b for b in ballot.voters if b in ballot.answered]
        return ballot.best(heard) if len(heard) == len(ballot.voters) else None

    return among_survivors


def _epoch_believed(original: Any) -> Any:
    def peers(self: Group, command: Any) -> list[int]:
        had = self.members if command.log_epoch >= self.epoch else self.before
        return [m for m in had if m != command.broker_id and m in self.replicas]

    return peers


def _one_copy(original: Any) -> Any:
    def copies(self: AckPolicy, replicas_known: int) -> Copies:
        return Copies(1, 1)

    return copies


def _first_of_all(original: Any) -> Any:
    def watermarks(self: AckPolicy, own: Any, slowest: Any, ends: Any, copies: Copies) -> Any:
        readable, replicated = original(self, own, slowest, ends, copies)
        return readable, max(replicated, *ends) if ends else replicated

    return watermarks


def _any_set_epoch(original: Any) -> Any:
    def alter(self: ReplicaTable, command: Any) -> Any:
        now = self.groups[command.group].members_epoch
        return original(self, msgspec.structs.replace(command, members_epoch=now))

    return alter


def _any_epoch(original: Any) -> Any:
    def alter(self: ReplicaTable, command: Any) -> Any:
        now = self.groups[command.group]
        return original(
            self,
            msgspec.structs.replace(
                command, master_id=now.master, master_epoch=now.epoch, members_epoch=now.members_epoch
            ),
        )

    return alter


def _anyone(original: Any) -> Any:
    def by_membership(ballot: Ballot) -> int | None:
        return ballot.best([b for b in ballot.voters if b in ballot.alive])

    return by_membership


def _furthest_of_all(original: Any) -> Any:
    def by_majority(ballot: Ballot) -> int | None:
        chosen: int | None = original(msgspec.structs.replace(ballot, quorum_members=()))
        return chosen

    return by_majority


def _one_too_many(original: Any) -> Any:
    def point(master: Any, slave: Any, master_end: int, slave_end: int) -> int | None:
        found = original(master, slave, master_end, slave_end)
        return found if found is None else min(found + 1, master_end, slave_end)

    return point


def _suspicion_kept_quiet(original: Any) -> Any:
    def register(self: ReplicaTable, command: Any) -> Any:
        group = self.groups[command.group]
        replica = group.replicas[command.broker_id]
        before = group.members_epoch, list(group.members), replica.incarnation
        answer = original(self, command)
        if command.suspect:
            group.members_epoch, group.members, replica.incarnation = before
        return answer

    return register


def _by_an_old_heartbeat(original: Any) -> Any:
    def matters(beat: Any, members: Any, chosen: int, rule: Any = None) -> bool:
        stale = replace(beat, all_ack=True)  # sent before the broker was restarted in another mode
        return bool(original(stale, members, chosen, None))

    return matters


def _the_silent_have_nothing(original: Any) -> Any:
    def why_not_for(group: Group, request: Any, chosen: int | None, answered: Any, full: Any) -> str | None:
        said: str | None = original(group, request, chosen, {*answered, *group.members}, full)
        return said

    return why_not_for


def _always(original: Any) -> Any:
    return property(lambda self: True)


def _last_master_alone(original: Any) -> Any:
    def may_confirm_without_lease(self: Group) -> list[int]:
        found: list[int] = original.fget(msgspec.structs.replace(self, unaware=[]))
        return found

    return property(may_confirm_without_lease)


def _members_had_all(original: Any) -> Any:
    def elected(self: Group, chosen: int, had_all: list[int], **told: bool) -> None:
        original(self, chosen, had_all, **told)
        self.before = [broker_id for broker_id in had_all if broker_id != chosen]

    return elected


def _largest_registered(original: Any) -> Any:
    def majority_of(self: Group) -> int:
        registered = max((replica.majority_of for replica in self.replicas.values()), default=0)
        return max(registered, len(self.voters)) if registered else 0

    return property(majority_of)


def _majority_at_once(original: Any) -> Any:
    def elected(self: Group, chosen: int, had_all: list[int], **told: bool) -> None:
        original(self, chosen, had_all, **told)
        self.rule, self.majority_next = self.replicas[chosen].rule, 0

    return elected


PLANTS: Final[Mapping[str, Plant]] = {
    "open_proposals_ignored": Plant(
        "a member of a set that was proposed, and perhaps decided, holds nothing back",
        Setting(start="alone", budget=Budget(1, 1, proposals=1, leases=1)),
        Rules(open_proposals_count=False),
    ),
    "proposal_forgotten_too_soon": Plant(
        "a proposal is forgotten while it is still on its way",
        Setting(start="alone", budget=Budget(1, 1, proposals=1, leases=1)),
        Rules(proposals_are_held=False),
    ),
    "no_lease_at_broker": Plant(
        "a master that waits for nobody acknowledges without a lease",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
        Rules(lease_at_broker=False),
    ),
    "no_wait_for_lease": Plant(
        "the Controllers elect while the former master's lease runs",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
        Rules(lease_is_waited_for=False),
    ),
    "no_lease_is_left": Plant(
        "the Controllers' own word on how long a lease runs is always: it is over",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
        owner=ElectionPreview,
        name="lease_left_ms",
        replacement=_over,
    ),
    "no_lease_is_left_in_a_majority": Plant(
        "the same in majority mode",
        Setting(wait="majority", budget=Budget(1, 0, leases=1, strands=1)),
        owner=ElectionPreview,
        name="lease_left_ms",
        replacement=_over,
    ),
    "only_the_last_master_holds_a_lease": Plant(
        "one that may have forgotten leads while a lease of an earlier epoch runs",
        Setting(brokers=2, unclean=True, budget=Budget(1, 2, powers=1, proposals=1, leases=1)),
        owner=Leases,
        name="granted_to",
        replacement=_granted_to_nobody,
    ),
    "power_loss_unsaid": Plant(
        "a broker whose machine lost power registers as if it had all it wrote",
        Setting(budget=Budget(1, 1, powers=1)),
        Rules(suspects_register=False),
    ),
    "empty_log_unsaid": Plant(
        "a broker whose log was wiped registers as if it had all it wrote",
        Setting(budget=Budget(1, 1, wipes=1)),
        Rules(empty_log_is_suspect=False),
    ),
    "restarted_leads_on": Plant(
        "a master that was killed leads on in its old epoch",
        Setting(budget=Budget(1, 2, powers=1)),
        Rules(restarted_asks_anew=False),
    ),
    "no_cut": Plant(
        "a slave appends behind a tail its new master lacks",
        Setting(brokers=2, budget=Budget(2, 2, kills=1, proposals=1, leases=1)),
        Rules(cut_before_append=False),
    ),
    "member_without_tables": Plant(
        "a slave joins the SyncStateSet without the tables",
        Setting(start="alone", budget=Budget(0, 1, proposals=1, leases=1, changes=1)),
        Rules(tables_before_membership=False),
    ),
    "table_answered_at_once": Plant(
        "a change of the tables is answered before the members have it",
        Setting(budget=Budget(0, 1, changes=1)),
        Rules(tables_before_answer=False),
    ),
    "read_at_once": Plant(
        "consumers read what only the master has",
        Setting(budget=Budget(1, 1)),
        Rules(confirmed_bounds_reads=False),
    ),
    "counted_read_at_once": Plant(
        "the same where one of the members answers",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
        Rules(confirmed_bounds_reads=False),
    ),
    "counted_by_two_read_at_once": Plant(
        "the same where two answer",
        Setting(wait="count", budget=Budget(1, 1, kills=1, leases=1)),
        Rules(confirmed_bounds_reads=False),
    ),
    "unclean_read_at_once": Plant(
        "the same where outsiders may be elected, and none was",
        Setting(unclean=True, start="two", budget=Budget(1, 1, leases=1)),
        Rules(confirmed_bounds_reads=False),
    ),
    "suspect_among_members": Plant(
        "a suspect leads when the other members are gone, though a replica outside of the set has more",
        Setting(start="alone", budget=Budget(1, 2, powers=1, leases=1)),
        owner=elect,
        name="_among_survivors",
        replacement=_members_alone,
    ),
    "outsider_of_equal_log": Plant(
        "of suspects with equal logs one leads that was no member and lacks a table",
        Setting(start="alone", budget=Budget(0, 1, powers=1, leases=1, changes=1)),
        Rules(tables_are_taken=False),
        owner=elect,
        name="_among_survivors",
        replacement=_furthest_survivor,
    ),
    "outsider_takes_no_tables": Plant(
        "a master from outside of the set, with a longer log than any member, leads without a table",
        Setting(start="alone", budget=Budget(1, 1, powers=1, leases=1, changes=1)),
        Rules(tables_are_taken=False),
    ),
    "suspect_believed": Plant(
        "a suspect master's old log epoch is believed when it comes back",
        Setting(start="elected", budget=Budget(1, 1, powers=1)),
        owner=Group,
        name="peers_of_restarted",
        replacement=_epoch_believed,
    ),
    "old_heartbeat_believed": Plant(
        "a lease is waited for by a heartbeat from before the master was restarted in another mode",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
        owner=preview,
        name="matters",
        replacement=_by_an_old_heartbeat,
    ),
    "one_copy": Plant(
        "minInSyncReplicas is looked at before the write only",
        Setting(copies_min=2, start="full", budget=Budget(1, 0, proposals=2, leases=1)),
        owner=AckPolicy,
        name="copies",
        replacement=_one_copy,
    ),
    "one_member_answers_for_all": Plant(
        "in mode all an answer waits for one member, not for every one",
        Setting(budget=Budget(1, 0)),
        owner=AckPolicy,
        name="watermarks",
        replacement=_first_of_all,
    ),
    "stale_set_applied": Plant(
        "a proposal is applied whatever set it was made for",
        Setting(start="alone", budget=Budget(1, 1, proposals=2, leases=1)),
        owner=ReplicaTable,
        name="_alter",
        replacement=_any_set_epoch,
    ),
    "stale_master_alters": Plant(
        "a former master's proposal is applied in a newer epoch",
        Setting(start="two", budget=Budget(1, 2, proposals=1, leases=1)),
        owner=ReplicaTable,
        name="_alter",
        replacement=_any_epoch,
    ),
    "elects_anyone": Plant(
        "a replica outside of the SyncStateSet is elected",
        Setting(start="alone", budget=Budget(1, 1, leases=1)),
        owner=elect,
        name="_by_membership",
        replacement=_anyone,
    ),
    "cut_one_too_few": Plant(
        "a slave keeps one record more than both logs have in common",
        Setting(brokers=2, start="some", budget=Budget(2, 2, kills=1, proposals=1, leases=1)),
        owner=slaves,
        name="consistent_point",
        replacement=_one_too_many,
    ),
    "old_view_adopted": Plant(
        "a master takes an older SyncStateSet for the newest one",
        Setting(start="two", budget=Budget(1, 1, proposals=1, views=1)),
        Rules(old_views_are_ignored=False),
    ),
    "new_leader_elects_at_once": Plant(
        "a new Controllers' leader does not wait for leases of a former one",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1, leaders=1)),
        Rules(new_leader_waits=False),
    ),
    "deposed_leader_grants": Plant(
        "a Controllers' leader that was deposed grants a lease",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1)),
        Rules(lease_needs_a_majority=False),
    ),
    "uncommitted_answer": Plant(
        "the Controllers answer before a majority of them has it, and their leader dies",
        Setting(budget=Budget(1, 1, proposals=1, leaders=1)),
        Rules(answers_are_committed=False),
    ),
    "lease_by_wall_clock": Plant(
        "a lease is counted by a clock that is set back",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1, clocks=1)),
        Rules(clocks_never_step=False),
    ),
    "unclean_members_count": Plant(
        "where outsiders may be elected, a master goes on by the word of its members",
        Setting(unclean=True, start="two", budget=Budget(1, 1)),
        Rules(unclean_needs_lease=False),
    ),
    "outsider_beside_unaware_master": Plant(
        "an outsider is elected though the master may not know that it needs a lease",
        Setting(unclean=True, start="two", budget=Budget(1, 1, keys=1)),
        owner=Group,
        name="outsiders_may_lead",
        replacement=_always,
    ),
    "late_word_of_a_member": Plant(
        "an outsider is elected while a former master may still read what its members said",
        Setting(unclean=True, start="two", budget=Budget(1, 2, keys=1)),
        owner=Group,
        name="may_confirm_without_lease",
        replacement=_last_master_alone,
    ),
    "news_without_outsiders": Plant(
        "a master that was elected hears with its first lease only that its members' word is not enough",
        Setting(unclean=True, budget=Budget(1, 2, proposals=1)),
        Rules(news_tell_of_outsiders=False),
    ),
    "forgetful_after_the_last_lease": Plant(
        "one that was elected and may have forgotten since leads before the lease of its predecessor is over",
        Setting(brokers=2, unclean=True, budget=Budget(1, 2, powers=1, proposals=1, leases=1)),
        Rules(forgetful_waits_for_all=False),
    ),
    "removed_master_forgotten": Plant(
        "nobody waits for the lease of a master that an operator removed",
        Setting(wait="count", acks=1, budget=Budget(1, 1, leases=1, forgets=1)),
        Rules(forgotten_is_waited_for=False),
    ),
    "outsider_without_tables": Plant(
        "in majority mode the furthest of all leads, though it was no member and lacks a table",
        Setting(wait="majority", start="two", budget=Budget(0, 1, leases=1, changes=1)),
        Rules(tables_are_taken=False),
        owner=elect,
        name="_by_majority",
        replacement=_furthest_of_all,
    ),
    "leaves_before_laggards": Plant(
        "in majority mode a member leaves the set that alone has what was answered",
        Setting(wait="majority", budget=Budget(1, 1, proposals=1, leases=1)),
        Rules(laggards_hold_leavers=False),
    ),
    "counted_leaves_before_laggards": Plant(
        "where two answer, the member that has what was answered leaves before the one that stays has it",
        Setting(wait="count", budget=Budget(1, 0, proposals=1, leases=1, strands=1)),
        Rules(laggards_hold_leavers=False),
    ),
    "target_lacks_the_log": Plant(
        "a master hands over to a member that lacks what was acknowledged",
        Setting(wait="count", acks=1, budget=Budget(1, 0, leases=1, handovers=1)),
        Rules(target_has_all=False),
    ),
    "handed_over_and_leads_on": Plant(
        "a master that handed over goes on acknowledging by the lease it had",
        Setting(wait="majority", budget=Budget(1, 0, leases=1, handovers=1)),
        Rules(lease_is_given_up=False),
    ),
    "lease_during_handover": Plant(
        "the Controllers grant a master a new lease while another is about to be elected for it",
        Setting(wait="majority", budget=Budget(1, 0, leases=1, handovers=1)),
        Rules(handover_stops_leases=False),
    ),
    "stranded_master_and_its_lease": Plant(
        "another is elected for a master that cannot serve while the lease of that one runs",
        Setting(wait="majority", budget=Budget(1, 0, leases=1, strands=1)),
        Rules(lease_is_waited_for=False),
    ),
    "silent_member_outvoted": Plant(
        "a member that does not say how far its log is has more than the one that is elected",
        Setting(wait="count", budget=Budget(1, 0, leases=1, strands=1)),
        owner=handovers,
        name="why_not_for",
        replacement=_the_silent_have_nothing,
    ),
    "change_answered_by_minority": Plant(
        "in majority mode a change of the tables is answered while the set is no majority",
        Setting(wait="majority", start="alone", budget=Budget(0, 1, leases=1, changes=1)),
        Rules(changes_need_a_majority=False, tables_are_taken=False),
    ),
    "registration_changes_rule": Plant(
        "one broker that is restarted with majorityAck changes how its group elects",
        Setting(start="alone", then=Mode("majority"), budget=Budget(1, 1, kills=1, modes=1, leases=1)),
        owner=Group,
        name="majority_of",
        replacement=_largest_registered,
    ),
    "majority_answers_for_all": Plant(
        "a master elected in mode all gives way to a member of the former majority mode's set",
        Setting(wait="majority", then=Mode("all"), budget=Budget(1, 2, kills=1, modes=1, leases=1)),
        owner=Group,
        name="elected",
        replacement=_members_had_all,
    ),
    "majority_at_once": Plant(
        "a majority elects before a majority is in the set of the first master in majority mode",
        Setting(start="alone", then=Mode("majority"), budget=Budget(1, 2, kills=1, modes=1, leases=1)),
        owner=Group,
        name="elected",
        replacement=_majority_at_once,
    ),
    "repeated_set_applied": Plant(
        "a proposal that arrives a second time is applied a second time",
        Setting(budget=Budget(1, 1, proposals=2, twice=1)),
        owner=ReplicaTable,
        name="_alter",
        replacement=_any_set_epoch,
    ),
    "registration_raises_no_epoch": Plant(
        "a proposal made before a power failure takes the broker in that came back",
        Setting(start="suspect", budget=Budget(0, 1, powers=1, proposals=1)),
        owner=ReplicaTable,
        name="_register",
        replacement=_suspicion_kept_quiet,
    ),
}
