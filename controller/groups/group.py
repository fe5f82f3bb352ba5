"""What do the Controllers know of one broker group, and which of its brokers may lead?

Everything here is in Raft: a new Controllers' leader decides by it, not by heartbeats it may have missed.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from controller.groups.commands import FIRST_ID, NOBODY, ElectMaster, RegisterBroker
from controller.groups.elect import Ballot, choose


class Rule(msgspec.Struct, frozen=True):
    """What the master of one epoch waits for before it acknowledges, and how long its leases are, as it
    registered before it was elected. See ``RegisterBroker``."""

    all_ack: bool | None = None
    majority_of: int = 0
    timeout_ms: int = 0


class Replica(msgspec.Struct):
    """``incarnation``: how often it registered as a suspect, and so forgot what it had said before.
    ``starts``, ``process``, ``nth``: of its last registration, see ``RegisterBroker``; ``named``: it said
    which starts its disk knows of."""

    address: str
    check_code: str
    ha_address: str = ""
    majority_of: int = 0
    learner: bool = False
    incarnation: int = 0
    all_ack: bool | None = None
    timeout_ms: int = 0
    starts: int = 0
    process: str = ""
    nth: int = 0
    named: bool = False

    @property
    def rule(self) -> Rule:
        return Rule(self.all_ack, self.majority_of, self.timeout_ms)

    def is_newer_than(self, command: RegisterBroker) -> bool:
        """Whether the last registration is newer than this one: that of a process that is gone came late, or
        the broker's disk was put back to an older state of itself. One without a number is taken as it is.

        Each start is on the disk before it registers, and the next one names those that are. So one that does
        not name the last is of an older state. The number alone tells less: starts that reached no Controller
        raise it, too.
        """
        if not command.starts:
            return False
        if command.process == self.process:
            return command.nth < self.nth
        if command.before is not None and self.named:
            return self.process not in command.before
        return command.starts <= self.starts


class TableSource(msgspec.Struct):
    """These brokers have every change of the tables (topics, groups, users, offsets that an operator set)
    that was answered before ``epoch``. Its master was elected from outside of them."""

    epoch: int
    brokers: list[int]


class Group(msgspec.Struct):
    """``members`` is the SyncStateSet. ``virgin``: no master was ever elected since the group was made.
    ``before``: the other brokers that had all that was acknowledged when ``master`` was elected, the former
    master included; they have it still as long as ``master`` has begun no epoch from ``before_epoch`` on.
    0 = its own, by an older version.
    ``unclean_elections``: how often a broker became master only because the election might be unclean,
    each time with the loss of what others held. ``suspect``: brokers whose log may lack its end, until a
    master has seen them catch up. ``removed``: masters, and members that may have led, removed since the last
    election: they may not know it, and confirm until their lease ends. ``rule``: of the last master's epoch;
    None = it was elected before rules were kept. ``majority_next``: the rule becomes a majority of so many
    replicas as soon as one is in the set.
    ``holders``: in majority mode the brokers that an acknowledged record may be on, those forgotten since
    included; a replica that registered later is none until it was in the set. Each acknowledged record is on
    a majority of ``rule.majority_of`` at least. Empty = nothing was acknowledged by a majority yet.
    ``renews``: a master was elected since one of them was forgotten.
    ``quorum_members``: the last SyncStateSet that was a majority, in majority mode; empty = none was yet.
    ``led``: who was elected last, also when it leads no more; None = nobody, or by an older version.
    ``needs_lease``: since its epoch began, or since it said so, it acknowledges with a lease only, whatever
    its members say; or its process is another one by now.
    ``unaware``: former masters that went by the word of their members, and may still read what these said
    before they followed another one. ``maintenance``: brokers that an operator wants not to lead.
    ``left_unasked``: those that the Controllers took out of the set as they had forgotten; no master was
    asked whether the others have all, and where fewer than all members acknowledge, these may not.
    ``table_sources``: where the master takes tables from before it serves, the newest last; none once a
    master has changed the set: it serves, so it has taken them (or is one that cannot).
    ``old``: suspects whose disk was put back to an older state of itself: it lacks changes of the tables.
    ``life``: any name that no other life of the group has. Where the Controllers lost everything, ids and
    epochs begin anew, and what brokers noted of former ones says nothing. "" = of an older version."""

    cluster: str
    next_id: int = FIRST_ID
    replicas: dict[int, Replica] = {}
    master: int | None = None
    epoch: int = 0
    members: list[int] = []
    members_epoch: int = 0
    virgin: bool = True
    before: list[int] = []
    before_epoch: int = 0
    unclean_elections: int = 0
    suspect: list[int] = msgspec.field(name="doubtful", default_factory=list)
    removed: list[int] = []
    rule: Rule | None = None
    majority_next: int = 0
    quorum_members: list[int] = []
    holders: list[int] = []
    renews: bool = False
    led: int | None = None
    needs_lease: bool = False
    unaware: list[int] = []
    maintenance: list[int] = []
    left_unasked: list[int] = []
    table_sources: list[TableSource] = []
    old: list[int] = []
    life: str = ""

    @property
    def voters(self) -> tuple[int, ...]:
        return tuple(i for i, replica in sorted(self.replicas.items()) if not replica.learner)

    @property
    def majority_of(self) -> int:
        """In majority mode: of how many replicas, registered or not, a majority has every acknowledged
        record. 0 = not in majority mode."""
        if self.rule is not None:
            registered = self.rule.majority_of
        else:
            registered = max((replica.majority_of for replica in self.replicas.values()), default=0)
        return max(registered, len(self.voters)) if registered else 0

    @property
    def _has_majority(self) -> bool:
        """Whether so many members have a vote as an answered record has copies, in majority mode."""
        rule = self.rule
        return bool(rule and rule.majority_of and len(set(self.members) & set(self.voters)) >= self._copies)

    @property
    def _copies(self) -> int:
        """In majority mode: on so many brokers an acknowledged record is at least. The master counts at least
        the ``totalReplicas`` it registered; that it knows of more is not sure."""
        return self.rule.majority_of // 2 + 1 if self.rule is not None else 1

    @property
    def sound_members(self) -> list[int]:
        """Those that forgot nothing. What a suspect said before may still be on its way to the master."""
        return [member for member in self.members if member not in self.suspect]

    @property
    def outsiders_may_lead(self) -> bool:
        """Whether nobody goes on acknowledging when the last lease is over."""
        return not self.may_confirm_without_lease

    @property
    def last_master(self) -> int | None:
        """The master, or, while none leads, the one that led last."""
        return self.master if self.led is None else self.led

    @property
    def may_confirm_without_lease(self) -> list[int]:
        """Masters that may acknowledge without a lease. One that waits for every member does, by their word,
        unless it knows that a broker from outside may be elected: cut off before it heard of that, together
        with a member, it would never stop. A former one may still read what its members said before they
        followed another master; so it counts until it has followed that one, was started anew,
        or an operator gave it up."""
        led = self.last_master
        waits_for_all = self.rule is not None and self.rule.all_ack is True
        if led in self.replicas and waits_for_all and not self.needs_lease:
            return sorted({*self.unaware, led})
        return list(self.unaware)

    def address(self, broker_id: int | None) -> str | None:
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address

    # elections

    def ballot(self, command: ElectMaster) -> Ballot:
        asks, said = command.broker_id, None if self.rule is None else self.rule.all_ack
        return Ballot(
            members=self.members,
            voters=self.voters,
            alive=command.alive,
            within_grace=command.within_grace,
            answered=command.answered,
            suspect=self.suspect,
            rivals=self.rivals(command, self.members),
            ends=command.ends,
            master=self.master,
            old=self.old,
            virgin=self.virgin,
            preferred=asks if command.designate and asks != NOBODY else None,
            all_ack=command.all_ack if said is None else said,
            majority_of=self.majority_of,
            quorum_members=self.quorum_members,
            holders=self.holders,
            given_up=[holder for holder in self.holders if holder not in self.replicas],
            copies=self._copies,
            maintenance=self.maintenance,
            unclean=command.unclean and self.outsiders_may_lead,
        )

    def choice(self, command: ElectMaster) -> int | None:
        """The broker this election makes master, or leaves it; None = nobody may be."""
        asks, ballot = command.broker_id, self.ballot(command)
        if self.virgin and asks in self.voters:
            # The first to ask leads, unless it may have forgotten what another one still has.
            return choose(msgspec.structs.replace(ballot, members=(asks,))) if asks in self.suspect else asks
        if command.restarted and asks == self.master:
            return self._successor_of_restarted(command)
        return choose(ballot)

    def peers_of_restarted(self, command: ElectMaster) -> list[int]:
        """The brokers that have all that was acknowledged when the master came back, besides it.

        One that was elected while its process was down has not begun its epoch: the members before it have
        it all. A suspect one proves nothing by an older epoch in its log, the newer one may be what it lost.
        """
        first = self.before_epoch or self.epoch
        begun = command.log_epoch >= first or command.broker_id in self._suspects(command)
        had = self.members if begun else self.before
        return [m for m in had if m != command.broker_id and m in self.replicas]

    def may_compete(self, members: Collection[int]) -> set[int]:
        """These members, and those that left the set as they had forgotten."""
        return {*members, *self.left_unasked}

    def rivals(self, command: ElectMaster, members: Collection[int]) -> list[int]:
        """See ``Ballot``. What a heartbeat said may be what it had before it forgot."""
        return sorted(self.may_compete(members) & self._suspects(command) & set(command.answered))

    def _suspects(self, command: ElectMaster) -> set[int]:
        return {*self.suspect, *((command.broker_id,) if command.suspect else ())}

    def _successor_of_restarted(self, command: ElectMaster) -> int | None:
        """The master came back, and leads on in a new epoch at best: what slaves have of the old one may
        differ. In mode *all* another member leads rather than it; where fewer acknowledged, the furthest of
        the members and itself. A suspect one is a member like any other suspect."""
        asks, ballot, suspect = command.broker_id, self.ballot(command), self._suspects(command)
        peers = self.peers_of_restarted(command)
        sound = [peer for peer in peers if peer in command.alive and peer not in suspect]
        members = sound if sound and ballot.all_ack else [*peers, asks]
        ballot = msgspec.structs.replace(
            ballot,
            members=members,
            alive={*command.alive, asks},
            answered={*command.answered, asks},
            suspect=suspect,
            rivals=self.rivals(command, members),
            master=None,
            preferred=None,
        )
        return choose(ballot)

    def elected(
        self, chosen: int, had_all: list[int], *, needs_lease: bool = False, unclean: bool = False
    ) -> None:
        """``chosen`` leads a new epoch. ``had_all``: the brokers that have all that was acknowledged so far.
        ``needs_lease``: it hears with the news that its members' word is not enough. ``unclean``: it begins
        with what it has, whatever others have.

        The rule of the new epoch is what ``chosen`` registered. A majority cannot decide yet when another
        rule was in force: what was acknowledged until now is at ``chosen``, and perhaps nowhere else (mode
        all with a set of one, changed to majority: the next election would ask two others). Until a majority
        is in its set the members decide; nothing is acknowledged meanwhile.
        """
        rule = self.replicas[chosen].rule
        self._note_table_sources(chosen, had_all, unclean=unclean)
        self.unaware = _without(self.may_confirm_without_lease, {chosen})
        # Elected, deposed as it died, and elected again: it may not have begun an epoch in between.
        again = self.before_epoch > 0 and chosen == self.last_master
        again = again and self.members == [chosen] == list(had_all)
        if self.rule is not None and self.rule.all_ack is False and rule.all_ack is True:
            had_all, again = [], False  # fewer than all acknowledged: it may give way to none of its members
        same = self.rule is None or self.rule.majority_of == rule.majority_of
        self.majority_next = 0 if same or self.virgin else rule.majority_of
        self.rule = msgspec.structs.replace(rule, majority_of=0) if self.majority_next else rule
        if not again:
            self.before, self.before_epoch = _without(had_all, {chosen}), self.epoch + 1
        self.master, self.epoch, self.virgin = chosen, self.epoch + 1, False
        self.led, self.needs_lease = chosen, needs_lease
        self.members, self.members_epoch = [chosen], self.members_epoch + 1
        self.removed = []
        if not self.rule.majority_of:
            # Members decide; the next majority begins with its set.
            self.holders, self.quorum_members, self.left_unasked = [], [], []
        self.renews = any(holder not in self.replicas for holder in self.holders)
        self._note_holders()
        self._trust({chosen})  # from now on what it has is what the group has

    def _note_table_sources(self, chosen: int, had_all: list[int], *, unclean: bool) -> None:
        """Where every member lost the end of its log, an outsider's may reach further. What was answered of
        the tables is on the members' disks all the same, but on none that was put back to an older state."""
        if unclean:
            self.table_sources = []
            return
        by_majority = self.rule is not None and self.rule.majority_of
        # No change is answered under a set that is no majority.
        members = _without(self.quorum_members if by_majority else had_all, set(self.old))
        if by_majority and self.table_sources and self.table_sources[-1].brokers == members:
            return  # nothing was answered since, as no set was a majority
        if members and chosen not in members:
            self.table_sources = [*self.table_sources, TableSource(self.epoch + 1, list(members))]

    def starts_anew(self, broker_id: int) -> None:
        """Its process is another one than that which led, and leads in a newer epoch at best. What members
        said to the old one ended with it."""
        self.unaware = _without(self.unaware, {broker_id})
        if broker_id == self.last_master:
            self.needs_lease = True

    def set_members(self, members: list[int]) -> None:
        """The SyncStateSet becomes ``members``; new ones were level with the master since they registered."""
        joined = set(members) - set(self.members)
        self.unaware = _without(self.unaware, joined)
        self._trust(joined)
        self.members, self.members_epoch = members, self.members_epoch + 1
        self.left_unasked = _without(self.left_unasked, joined)
        self.table_sources = []  # the master serves, so it has taken them
        counted = len(set(members) & set(self.voters))
        # As its master counts: it may know of fewer than are registered, and answers with most of those.
        if self.majority_next and counted > self.majority_next // 2:
            assert self.rule is not None, "a rule that changes was kept"
            self.rule = msgspec.structs.replace(self.rule, majority_of=self.majority_next)
            self.majority_next = 0
        self._note_holders()

    def distrust(self, broker_id: int, *, old: bool) -> None:
        if broker_id not in self.suspect:
            self.suspect.append(broker_id)
        if old and broker_id not in self.old:
            self.old.append(broker_id)

    def _trust(self, brokers: set[int]) -> None:
        self.suspect, self.old = _without(self.suspect, brokers), _without(self.old, brokers)

    def _note_holders(self) -> None:
        """Members have all that was acknowledged before the set changed to hold them, former epochs included
        (``SyncSet``). So a new one may stand for one that was forgotten."""
        if self.rule is None or not self.rule.majority_of:
            return
        majority = self._has_majority
        if majority:
            self.quorum_members = list(self.members)
        if not self.holders:
            # The first majority: until now nothing was acknowledged by one.
            self.holders = sorted({*self.voters, *self.members}) if majority else []
        elif self.renews and majority:
            # Nothing was acknowledged in this epoch, and all of the former ones is on all of these.
            self.holders = sorted({h for h in self.holders if h in self.replicas} | set(self.members))
            self.renews = False
        else:
            for member in self.members:
                if member not in self.holders:
                    gone = next((h for h in self.holders if h not in self.replicas), None)
                    self.holders = sorted({*self.holders, member} - {gone})

    def depose(self) -> None:
        """Nobody leads. The set stays: only its members may hold all that was acknowledged."""
        self.master, self.epoch = None, self.epoch + 1

    def remove(self, gone: set[int]) -> None:
        """Forget these brokers. Their ids are never given again.

        A holder that left the set before ceases to be one where the set is a majority: those that stayed had
        all that was answered when it left (``SyncSet._leave_too_early``), those that joined since had it too,
        and what was answered later is on members alone. One that is a member stays a holder: it leaves by
        the operator's word, whatever the others have; and one that left as it had forgotten, when no master
        was asked. What joins then takes their place.
        """
        if self._has_majority and not gone & set(self.members):
            self.holders = _without(self.holders, gone - set(self.left_unasked))
        self.left_unasked = _without(self.left_unasked, gone)
        self.replicas = {number: replica for number, replica in self.replicas.items() if number not in gone}
        self._trust(gone)
        self.quorum_members = _without(self.quorum_members, gone)
        self.unaware = _without(self.unaware, gone)
        self.maintenance = _without(self.maintenance, gone)
        left = [TableSource(source.epoch, _without(source.brokers, gone)) for source in self.table_sources]
        self.table_sources = [source for source in left if source.brokers]
        if gone & set(self.members):
            if self.master is None or self.master in gone:
                led = gone & set(self.members if self.master is None else (self.master,))
                self.removed = sorted({*self.removed, *led})
            self.members = _without(self.members, gone)
            self.members_epoch += 1
        if self.master in gone:
            self.depose()

    def maintain(self, broker_id: int, on: bool) -> bool:
        """It is in maintenance from now on, or is no more; whether that is new."""
        was, others = list(self.maintenance), _without(self.maintenance, {broker_id})
        self.maintenance = sorted([*others, broker_id]) if on else others
        return self.maintenance != was

    def changes_mode(self, broker_id: int) -> bool:
        """Whether this broker leads by another rule than it registered now: it was restarted with another
        configuration, so its epoch is over."""
        if broker_id != self.master or self.rule is None:
            return False
        ruled = msgspec.structs.replace(self.rule, majority_of=self.rule.majority_of or self.majority_next)
        return ruled != self.replicas[broker_id].rule

    # what always holds

    def check_invariants(self, was: Group | None = None) -> None:
        """Raise AssertionError if the state is wrong, or cannot follow the state it ``was`` before."""
        _check_members(self)
        _check_master(self)
        if was is not None:
            _check_epochs(was, self)
            _check_one_master_an_epoch(was, self)
            _check_suspects(was, self)


def _without(ids: list[int], gone: set[int]) -> list[int]:
    return [broker_id for broker_id in ids if broker_id not in gone]


def _check_members(group: Group) -> None:
    registered, members = set(group.replicas), set(group.members)
    assert members <= registered, f"members {group.members} are not all registered"
    assert len(members) == len(group.members), f"members {group.members} are named twice"
    sources = {broker_id for source in group.table_sources for broker_id in source.brokers}
    assert sources <= registered, f"table sources {sources} are not all registered"
    assert set(group.maintenance) <= registered, f"maintenance of {group.maintenance}, not all registered"
    assert set(group.suspect) <= registered, f"suspects {group.suspect} are not all registered"
    assert set(group.old) <= set(group.suspect), f"old disks {group.old} that are not suspect"
    assert max(registered, default=-1) < group.next_id, "an id that was not given yet"


def _check_master(group: Group) -> None:
    if group.master is not None:
        assert group.master in group.members, f"master {group.master} is no member"
        assert not group.virgin, "a master of a group that never elected one"


def _check_epochs(was: Group, group: Group) -> None:
    assert group.epoch >= was.epoch, f"the epoch goes back from {was.epoch} to {group.epoch}"
    assert group.members_epoch >= was.members_epoch, "the epoch of the SyncStateSet goes back"
    assert group.next_id >= was.next_id, "an id could be given twice"
    if group.members_epoch == was.members_epoch:
        assert group.members == was.members, "another SyncStateSet under the same epoch"


def _check_one_master_an_epoch(was: Group, group: Group) -> None:
    if group.epoch == was.epoch:
        assert group.master == was.master, f"epoch {group.epoch} has two masters"


def _check_suspects(was: Group, group: Group) -> None:
    """Within an epoch a suspect is cleared by joining the SyncStateSet, or by its removal."""
    if group.epoch == was.epoch and group.master is not None:
        cleared = set(was.suspect) - set(group.suspect)
        removed = set(was.replicas) - set(group.replicas)
        assert cleared <= set(group.members) | removed, "a suspect was cleared without reason"
