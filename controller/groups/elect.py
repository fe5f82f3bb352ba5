"""Which broker becomes master? (In ``controller/elections``, ``election.py`` says when a group
elects, ``underway.py`` how far it is.)

The rules are RocketMQ's ``DefaultElectPolicy``, with offsets compared as whole numbers (RocketMQ casts a
difference of longs to an int, which is wrong for logs more than 2 GiB apart), with brokers preferred that
answered just now, and with the smallest id winning a tie, so that every Controller comes to the same answer.

A *suspect* may have forgotten the end of its log. The end it reports is true, and may lie below what it
acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

PRIORITY_LAST: Final = 2**31 - 1


class End(msgspec.Struct, frozen=True, array_like=True):
    """How far a broker's log reaches, by its newest heartbeat. Of equal logs the lower ``priority`` wins."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = PRIORITY_LAST


_NOTHING_KNOWN: Final = End()


class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one election is decided by.

    ``members``: the SyncStateSet. Each has every acknowledged record, unless it is in ``suspect``, too.
    ``virgin``: nobody ever led.
    ``voters``: all registered replicas but learners. ``alive``: heard of; ``within_grace``: not heard yet by
    a new Controllers' leader, which must not take them for dead: the master stays, nobody becomes it.
    ``answered``: said for this election how far their logs are. ``ends``: how far that is.
    ``holders``: where an acknowledged record of majority mode may be; it is on ``copies`` of them at least.
    ``given_up``: those of them that an operator removed.
    ``rivals``: suspects that were members when they forgot, and said for this election how far their logs
    are. Where fewer than all members acknowledge, one may have what no member has.
    ``old``: suspects whose disk was put back to an older state of itself, their tables included.
    ``master``: the current master, or None. ``preferred``: the only broker that may be chosen, or None.
    ``all_ack``: an answer to a producer needed every member. ``majority_of``: in majority mode, of how many
    replicas a majority has every acknowledged record; 0 = the members decide. ``quorum_members``: the last
    SyncStateSet that was such a majority: nothing is acknowledged under a smaller one. Empty = not known.
    ``maintenance``: of those that may be chosen with no less of the log, another one is.
    ``unclean``: rather lose acknowledged messages than have no master.
    """

    members: Collection[int]
    voters: Collection[int]
    alive: Collection[int]
    within_grace: Collection[int] = ()
    answered: Collection[int] = ()
    suspect: Collection[int] = ()
    rivals: Collection[int] = ()
    old: Collection[int] = ()
    ends: Mapping[int, End] = {}
    master: int | None = None
    preferred: int | None = None
    virgin: bool = False
    all_ack: bool = False
    majority_of: int = 0
    quorum_members: Collection[int] = ()
    holders: Collection[int] = ()
    given_up: Collection[int] = ()
    copies: int = 1
    maintenance: Collection[int] = ()
    unclean: bool = False

    def best(self, candidates: Collection[int]) -> int | None:
        """The preferred one if it is a candidate, else the one with the longest log."""
        if self.preferred is not None:
            return self.preferred if self.preferred in candidates else None
        return min(candidates, key=self._rank, default=None)

    def _rank(self, broker_id: int) -> tuple[int, int, bool, bool, bool, bool, int, int]:
        end = self.ends.get(broker_id, _NOTHING_KNOWN)
        # Of equal logs one that answered wins: the other may have died a moment ago.
        silent, rests = broker_id not in self.answered, broker_id in self.maintenance
        old, suspect = broker_id in self.old, broker_id in self.suspect
        return -end.epoch, -end.max_offset, old, suspect, rests, silent, end.priority, broker_id


def choose(ballot: Ballot) -> int | None:
    """The id of the broker that shall be master, or None when no broker may be."""
    master = ballot.master
    stays = master in ballot.alive or master in ballot.within_grace
    if master is not None and stays and ballot.preferred in (None, master):
        return master
    chosen = _by_majority(ballot) if ballot.majority_of else _by_membership(ballot)
    if chosen is None and ballot.unclean:
        chosen = ballot.best([b for b in ballot.voters if b in ballot.alive])
    return chosen


def is_majority(answered: Collection[int], replicas: int) -> bool:
    """Whether so many answers share one with every majority of so many replicas."""
    return len(answered) > replicas // 2


def has_every_record(ballot: Ballot, answered: Collection[int]) -> bool:
    """In majority mode: whether one of these has any record that was acknowledged.

    A majority of the replicas there are now is not enough: those that acknowledged may have been replaced,
    or outnumbered by replicas that registered since. Fewer holders may be missing than a record has copies.
    """
    missing = set(ballot.holders).difference(answered)
    return is_majority(answered, ballot.majority_of) and len(missing) < ballot.copies


def with_longest_log(answered: Collection[int], ends: Mapping[int, End]) -> list[int]:
    """Those with the longest log: by the epoch of its end, then by offset. Sorted."""

    def reach(broker_id: int) -> tuple[int, int]:
        end = ends.get(broker_id, _NOTHING_KNOWN)
        return end.epoch, end.max_offset

    last = max(map(reach, answered), default=None)
    return sorted(broker_id for broker_id in answered if reach(broker_id) == last)


def longer_than(broker_id: int, others: Collection[int], ends: Mapping[int, End]) -> int | None:
    """The one of ``others`` with the longest log if that is longer than the broker's; None = it is not."""
    best = with_longest_log({broker_id, *others}, ends)
    return None if broker_id in best else best[0]


def _by_membership(ballot: Ballot) -> int | None:
    """A living member that forgot nothing has all that was acknowledged."""
    able = set(ballot.members).intersection(ballot.voters)
    sound = [b for b in ballot.members if b in able and b in ballot.alive and b not in ballot.suspect]
    if not sound:
        # Where an operator gave up all the members, what only these had is lost: the others go on with what
        # they have. Without members nobody may ever have led, and then the first to ask does.
        return _among_survivors(ballot) if ballot.members or not ballot.virgin else None
    if ballot.preferred is not None:
        return ballot.best(sound)
    return ballot.best(_with_everything(ballot, sound) if ballot.all_ack else _that_compete(ballot, sound))


def _with_everything(ballot: Ballot, sound: list[int]) -> list[int]:
    """Where every member is needed for an acknowledgement, each has all of it, whichever log is the longest.
    One that answered wins over one with a longer log that may have just died."""
    answered = [b for b in sound if b in ballot.answered] or sound
    return [b for b in answered if b not in ballot.maintenance] or answered


def _that_compete(ballot: Ballot, sound: list[int]) -> list[int]:
    """Where fewer members are needed for an acknowledgement, the furthest of them has it.

    A suspect was one of those that acknowledged. What it forgot is gone; but what it has is there, and its
    log may still reach further than any member's: what only it and the master had, its machine may have
    flushed before it lost power. So it competes, by what it said just now. It was a member, so a log that
    reaches further holds all that a shorter one has.
    """
    return sound + [b for b in ballot.rivals if b in ballot.alive and b in ballot.voters]


def _by_majority(ballot: Ballot) -> int | None:
    """Of those that answered and forgot nothing, when one of them has every acknowledged record: the longest
    log of a member of the last set that was a majority. It has all of that, and every change of a table that
    was answered.

    A replica outside of that set may have a longer log, and lack a topic that every member has. Nobody leaves
    the set before those that stay have all that was acknowledged (``SyncSet.desired_members``): so either
    every member has a record, or a majority that is among the members, and one of that was heard.
    """
    sound = [b for b in _heard(ballot) if b not in ballot.suspect]
    able = [b for b in sound if b in ballot.quorum_members] if ballot.quorum_members else sound
    if not able or not has_every_record(ballot, sound):
        return _among_survivors(ballot)
    return ballot.best(with_longest_log(able, ballot.ends))


def _among_survivors(ballot: Ballot) -> int | None:
    """Nobody is known to have all that was acknowledged: the longest log of all replicas leads, once every
    one of them has said how long its log is.

    Members alone will not do: the master's machine loses power just after its slaves were killed and left the
    set; it comes back with a short log as the only member, leads, and cuts the slaves, which have everything.
    But of equal logs a member's leads: every change of a table that was answered is on its disk. On a disk
    that was put back it is not, whatever set the broker was in.

    A member that became a learner may have what nobody else has. It is waited for, and leads no more.

    In majority mode there may be replicas that are not even registered, until the holders are known: then it
    takes each of them that no operator gave up, learner or not.
    """
    heard, needed = _heard(ballot), max(len(ballot.voters), ballot.majority_of)
    learners = set(ballot.members).difference(ballot.voters)
    if ballot.holders and len(heard) < needed:
        needed = len(ballot.voters)
        learners |= set(ballot.holders).difference(ballot.voters, ballot.given_up)
    if len(heard) < needed or learners.difference(_said(ballot)):
        return None
    furthest = with_longest_log({*heard, *learners}, ballot.ends)
    not_old = set(furthest).difference(ballot.old)
    for has_tables in (not_old, ballot.members, ballot.quorum_members):
        furthest = [b for b in furthest if b in has_tables] or furthest
    return ballot.best([b for b in furthest if b in ballot.voters])


def _heard(ballot: Ballot) -> list[int]:
    return sorted(_said(ballot).intersection(ballot.voters))


def _said(ballot: Ballot) -> set[int]:
    return set(ballot.alive).intersection(ballot.answered)
