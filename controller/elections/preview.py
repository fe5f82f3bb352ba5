"""What would an election of a group come to, with all this Controller knows now?

Pure queries over the replica table, what was heard of the brokers, and the leases. Times are monotonic
milliseconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.elections.asking import longest_wait_s
from controller.elections.lease import Leases, matters
from controller.elections.liveness import Liveness
from controller.elections.unable import Unable
from controller.groups.commands import (
    NOBODY,
    ElectMaster,
)
from controller.groups.elect import PRIORITY_LAST, End, longer_than
from controller.groups.group import Group
from controller.groups.table import ReplicaTable, held_back, nobody
from model.config import ControllerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRequest:
    """The election a broker or an operator asks for (``ElectMaster``); the default is the Controller's own.
    ``handed_over_by``: the master that handed over before, and says so; -1 = none. ``steps_down``: the
    master asks, as it cannot serve: another is to lead that can, with ``needed`` copies of each message.
    ``cannot_begin``: with ``restarted``, it was elected and fails to lead: of equal logs another's counts."""

    broker_id: int = NOBODY
    designate: bool = False
    restarted: bool = False
    log_epoch: int = PRIORITY_LAST
    suspect: bool = False
    cannot_begin: bool = False
    master_epoch: int = -1
    handed_over_by: int = -1
    steps_down: bool = False
    needed: int = 1

    @property
    def suspect_id(self) -> int | None:
        """The one that asks, where it says that it may have forgotten."""
        return self.broker_id if self.suspect else None

    def hands_over(self, group: Group) -> bool:
        """The master itself names its successor, and takes no more writes."""
        other = group.master not in (None, self.broker_id)
        return self.designate and other and self.handed_over_by == group.master

    def gives_up(self, group: Group) -> bool:
        """The master itself wants another one, whichever: it is as good as dead."""
        return self.steps_down and not self.designate and self.broker_id == group.master

    def asks_anew(self, group: Group) -> bool:
        """The master was restarted: it asks for its next epoch."""
        return self.restarted and group.master == self.broker_id

    def to_drain(self, group: Group) -> int | None:
        """The master that must step down before the broker named by the operator is elected."""
        if self.designate and self.broker_id in group.members and group.master != self.broker_id:
            return group.master
        return None


OWN: Final = ElectionRequest()


class ElectionPreview:
    """What elections would decide. It changes nothing but what it is told (``note_unable``)."""

    def __init__(self, config: ControllerConfig, table: ReplicaTable, live: Liveness, leases: Leases) -> None:
        self._config = config
        self._table = table
        self._live = live
        self._leases = leases
        self.unable = Unable()

    def group(self, name: str) -> Group | None:
        return self._table.groups.get(name)

    def note_unable(self, name: str, request: ElectionRequest, now_ms: float) -> None:
        """The master asks anew; perhaps as it cannot begin."""
        group = self.group(name)
        if group is not None and request.cannot_begin and request.broker_id == group.master:
            self.unable.note(name, group, request.log_epoch, now_ms)

    def command(
        self,
        name: str,
        request: ElectionRequest,
        answered: Collection[int] | None,
        now_ms: float,
        full: Collection[int] = (),
    ) -> ElectMaster:
        """The election with all that is known now. ``answered``: those that said how far their logs are;
        before any was asked (None), those that could. ``full``: those of them that take no messages. The
        shell adds the request's id and the time."""
        group = self.group(name)
        alive, presumed = self._able(name, request, answered, now_ms)
        confirming = group.master if group is not None and not request.restarted else request.broker_id
        beat = None if confirming is None else self._live.newest(name, confirming)
        command = ElectMaster(
            group=name,
            alive=tuple(alive),
            answered=tuple(sorted(alive if answered is None else answered)),
            within_grace=tuple(presumed),
            broker_id=request.broker_id,
            designate=request.designate,
            restarted=request.restarted,
            log_epoch=request.log_epoch,
            suspect=request.suspect,
            all_ack=beat is not None and beat.all_ack,
            master_epoch=request.master_epoch,
            unclean=group is not None and self._may_be_unclean(group) and not request.steps_down,
        )
        unable = self.unable.brokers(name, group, now_ms)
        if request.cannot_begin:
            unable |= {request.broker_id}
        last = unable.union(full)
        command = msgspec.structs.replace(command, ends=self._ends(name, last))
        command = _without_full(group, command, last)
        return _without_unable(group, command, unable) if request.cannot_begin else command

    def _able(
        self, name: str, request: ElectionRequest, answered: Collection[int] | None, now_ms: float
    ) -> tuple[list[int], list[int]]:
        """Who lives, and who must not be taken for dead yet; a master that gives up is as good as dead."""
        group, alive = self.group(name), self._living(name, answered, now_ms)
        presumed = list(self._live.presumed_alive(name, group.replicas if group else (), now_ms))
        if group is None or not request.gives_up(group):
            return alive, presumed
        return [i for i in alive if i != group.master], [i for i in presumed if i != group.master]

    def _ends(self, name: str, last: Collection[int]) -> dict[int, End]:
        """How far the logs reach; of equal logs those of ``last`` come after any other."""
        ends = self.unable.true_ends(name, self._live.ends(name))
        after = PRIORITY_LAST + 1
        return ends | {i: msgspec.structs.replace(ends[i], priority=after) for i in last if i in ends}

    def _living(self, name: str, answered: Collection[int] | None, now_ms: float) -> list[int]:
        """Who just answered lives, also when its last heartbeat is too long ago: it stood still."""
        return sorted({*self._live.alive(name, now_ms), *(answered or ())})

    def _may_be_unclean(self, group: Group) -> bool:
        """Said in the command, so that one commits to no more than this Controller waited for."""
        return self._config.elect_unclean_master and group.outsiders_may_lead

    def chosen(self, command: ElectMaster) -> int | None:
        group = self.group(command.group)
        return None if group is None else group.choice(command)

    def would_be_elected(self, name: str, group: Group, now_ms: float) -> int | None:
        """The broker that would be elected if all that live answered, in a group without master."""
        alive = tuple(self._live.alive(name, now_ms))
        ends, unclean = self._ends(name, ()), self._may_be_unclean(group)
        return group.choice(ElectMaster(group=name, alive=alive, answered=alive, ends=ends, unclean=unclean))

    def is_in_vain(self, command: ElectMaster) -> bool:
        """Whether this election would find nobody for a group that has nobody, and so change nothing."""
        group = self.group(command.group)
        if group is None or group.master is not None or group.choice(command) is not None:
            return False
        return command.broker_id == NOBODY or command.broker_id in group.replicas

    def why_nobody(self, command: ElectMaster) -> str:
        group = self.group(command.group)
        assert group is not None, "an election of an unknown group is not in vain: the table refuses it"
        text = nobody(command.group, group, command)
        return text + held_back(group) if self._config.elect_unclean_master else text

    def why_not_designated(self, name: str, request: ElectionRequest) -> str | None:
        """Why the broker that an operator names may not lead, or None."""
        group, named = self.group(name), request.broker_id
        # A master that ends names one in maintenance where there is no other.
        if group is None or not request.designate or request.hands_over(group) or named == group.master:
            return None
        return f"broker {named} of {name} is in maintenance" if named in group.maintenance else None

    def to_ask(self, name: str, group: Group, request: ElectionRequest, now_ms: float) -> list[int]:
        """The brokers whose logs an election would compare. A master that restarts or hands over confirms
        nothing any more, so its word counts like the others'."""
        master_too = request.designate or request.restarted
        # A suspect leads only when every replica said how far its log is; one that was elected is none to
        # us any more, but to itself until it has asked anew.
        suspects = bool(group.suspect) or request.suspect
        every = self._config.elect_unclean_master or group.majority_of > 0 or suspects
        # Without members every replica says how far its log is, or nobody leads.
        every = every or not group.members
        # One that just left the set is a copy again as soon as it follows the new master.
        every = every or request.gives_up(group)
        able = group.replicas if every else {*group.members, *group.before}
        alive = self._live.alive(name, now_ms)
        return [i for i in alive if i in able and (i != group.master or master_too)]

    def longest_wait_s(self, name: str, asked: Collection[int], *, ours: bool) -> float:
        """For how long the brokers ``asked`` are waited for at most. ``ours``: nobody asked for this one."""
        group = self.group(name)
        until_dead = ours and group is not None and self.asks_every_living(name, group)
        return longest_wait_s(self._live.timeouts_ms(name, asked), until_dead=until_dead)

    def asks_every_living(self, name: str, group: Group) -> bool:
        """Whether a silent member is waited for until it answers or counts as dead: where fewer than all
        acknowledge, it may be the only one that has the last of it."""
        all_ack = None if group.rule is None else group.rule.all_ack
        if all_ack is None:  # not registered: by an older version, or a RocketMQ broker
            led = group.last_master
            beat = None if led is None else self._live.newest(name, led)
            all_ack = beat is not None and beat.all_ack
        return not group.majority_of and not all_ack

    def why_not_yet(
        self, command: ElectMaster, heard: Collection[int], since_ms: float, now_ms: float
    ) -> str | None:
        """Where every living member is asked: why nobody may be elected before one of them has answered, or
        counts as dead. Its connection may have ended: that proves no death. ``since_ms``: asked since then.
        """
        name, group = command.group, self.group(command.group)
        if group is None or not self.asks_every_living(name, group):
            return None
        restarted = command.restarted and command.broker_id == group.master
        if not restarted and self.chosen(command) in (None, group.master):
            return None  # nobody new leads
        members = group.peers_of_restarted(command) if restarted else group.members
        said = {*heard, group.master}
        # One that may have forgotten may still have more than any other (``elect.py``).
        for member in sorted(group.may_compete(members)):
            beat = self._live.newest(name, member)
            # What it beats counts instead when it was asked for long; of a RocketMQ broker, which is asked on
            # a port that may be shut to us, at once.
            told = beat is not None and beat.at_ms > since_ms
            if beat is not None and beat.ha_address:
                told = told and now_ms - since_ms >= beat.timeout_ms
            if member not in said and not told and self._live.may_live(name, member, now_ms):
                return f"broker {member} of {name} does not say how far its log is, and may be alive"
        return None

    def is_decided(
        self, group: Group, command: ElectMaster, asked: Collection[int], answered: Collection[int]
    ) -> bool:
        """Whether these answers are enough; ``command`` counts with them."""
        missing = ({*asked} & {*command.alive}).difference(answered, {group.master})
        if missing and self.asks_every_living(command.group, group):
            return False
        # The silent count with their heartbeats; but of several that are, one may just have died.
        if not group.majority_of and not answered and len(asked) > 1:
            return False
        if group.members and not group.majority_of and not group.suspect and not command.suspect:
            return True
        # A majority that is slow is better than a minority that is quick.
        return self.chosen(msgspec.structs.replace(command, unclean=False)) is not None

    def lease_left_ms(self, name: str, chosen: int | None, at_ms: float, suspect: int | None = None) -> float:
        """How long from ``at_ms`` on a lease may still let another broker confirm what ``chosen`` lacks;
        0 = elect now. ``suspect``: the one that asks, where it says that it may have forgotten."""
        group = self.group(name)
        if group is None or chosen is None:
            return 0.0
        # Without a master it is one of the members that led, or one that was removed, and it may not know.
        deposed = {*group.members, *group.removed, *self._leases.granted_to(name)}
        if group.virgin and group.epoch > 0:
            # All of it was removed, perhaps under a former leader: it may not know either.
            deposed.add(NOBODY)
        sound = [member for member in group.sound_members if member != suspect]
        if group.master is None:
            possible_masters = sorted(deposed)
        elif chosen in sound:
            possible_masters = [group.master]
        else:
            # The leases before the last election were not waited for: whom it chose acknowledged nothing to
            # them any more. What this one acknowledged before it forgot may still count.
            possible_masters = sorted({*deposed, group.master})
        untils = [0.0]
        for broker_id in possible_masters:
            beat = self._live.newest(name, broker_id)
            if broker_id != chosen and matters(beat, sound, chosen, group.rule):
                untils.append(self._leases.until_ms((name, broker_id), beat, group.rule) - at_ms)
        return max(untils)

    def may_lack(self, wanted: ElectMaster) -> bool:
        """Whether the transfer target an operator names may lack what was acknowledged, although it is a
        member: the former master counted fewer than all of them, and did not say that the transfer target has
        everything."""
        group = self.group(wanted.group)
        if group is None or wanted.all_ack or group.majority_of > 0:
            return False  # in majority mode a majority decides, in mode *all* each member has it
        if wanted.broker_id == group.master or wanted.broker_id not in group.members:
            return False  # it stays, or the table refuses it
        beat = None if group.master is None else self._live.newest(wanted.group, group.master)
        # A RocketMQ master that lives cannot be asked to step down, and writes on: its slaves' ends, told one
        # after the other, cannot be compared. It is deposed as RocketMQ does it.
        return not (beat is not None and not beat.leases and group.master in wanted.alive)

    def lacks(self, wanted: ElectMaster) -> str | None:
        """Why the transfer target an operator names may lack what was acknowledged, or None. The former
        master's lease is over: what its log and the members' have now is all there can be."""
        group = self.group(wanted.group)
        if group is None or not self.may_lack(wanted):
            return None
        target, answered, name = wanted.broker_id, wanted.answered, wanted.group
        # As after a failure: a member that is down is not waited for, a suspect counts by what it says only.
        others = [m for m in sorted(group.may_compete(group.members)) if m in wanted.alive and m != target]
        sound = [member for member in others if member not in group.suspect]
        for member in (target, *sound):
            if member not in answered and member != group.master:
                return f"broker {member} of {name} does not say how far its log is; no master handed over"
        other = longer_than(target, [m for m in others if m in answered], wanted.ends)
        if other is None:
            return None
        mine, its = (wanted.ends.get(i, End()) for i in (target, other))
        return (
            f"broker {target} lacks what broker {other} has: "
            f"its log ends at {mine.max_offset} of epoch"
            f" {mine.epoch}, not at {its.max_offset} of epoch {its.epoch}; no master of {name} handed over"
        )


def _without_full(group: Group | None, command: ElectMaster, full: Collection[int]) -> ElectMaster:
    """Where every member has all that was acknowledged, ``full`` ones are as if they had not answered, as
    long as another has: one whose log is longer would lead, and take no message."""
    if group is None or not full:
        return command
    restarted = command.restarted and command.broker_id == group.master
    members = group.peers_of_restarted(command) if restarted else group.members
    sound = {*members}.difference(group.suspect)
    others = sound.intersection(command.answered, command.alive).difference(full)
    if not (others and group.ballot(command).all_ack) or group.majority_of:
        return command
    return msgspec.structs.replace(command, answered=tuple(i for i in command.answered if i not in full))


def _without_unable(group: Group | None, command: ElectMaster, unable: Collection[int]) -> ElectMaster:
    """In majority mode a master that cannot begin is as good as dead, as long as the others are enough to
    elect one of them: its log may be the longest. Where fewer than all members acknowledge otherwise, it may
    be the only one that has the last of it."""
    asks = command.broker_id
    if group is None or not group.majority_of or not command.restarted or asks != group.master:
        return command
    for gone in ({*unable, asks}, {asks}):
        without = msgspec.structs.replace(
            command,
            restarted=False,
            unclean=False,
            alive=tuple(i for i in command.alive if i not in gone),
            within_grace=tuple(i for i in command.within_grace if i not in gone),
            answered=tuple(i for i in command.answered if i not in gone),
        )
        if group.choice(without) not in (None, asks):
            return without
    return command
