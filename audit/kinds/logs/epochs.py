"""Epoch files that cannot be right: ``epoch_file_corrupt``, ``epoch_mismatch``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.logs.borders import contradicted
from audit.kinds.logs.histories import last_epoch, parted_by_epochs
from audit.reading.layout import UNREADABLE, Replica
from audit.reading.small.beside import EPOCHS
from audit.rows.intervals import Interval


def epochs(facts: Facts) -> list[Finding]:
    """Epoch files that cannot be right, or that give another epoch than most for bytes that they hold."""
    corrupt = [
        Finding("file_unreadable", ERROR, r.name, EPOCHS, found=r.epoch_problem.removeprefix(UNREADABLE))
        if r.epoch_problem.startswith(UNREADABLE)
        else facts.at("epoch_file_corrupt", WARN, at, -1, -1, found=r.epoch_problem)
        for at, r in enumerate(facts.replicas)
        if r.epoch_problem
    ]
    return corrupt + _mismatches(facts)


def _mismatches(facts: Facts) -> list[Finding]:
    """One row a replica: where it first tells another epoch than the group's.

    Behind the place where histories part the later one is the group's, whatever most tell. Before it most
    tell; but none is wrong that knows an epoch more than they: a file loses entries, and gains none. What has
    no epoch has no vote."""
    told = _told(facts)
    found: dict[int, Finding] = {}
    undecided: set[int] = set()  # as many say so as say otherwise: what a vote tells farther on says more
    for begin, end, there in _stretches(facts, told):
        if len({facts.replicas[at].epoch_at(begin) for at in there}) < 2:
            continue
        left = [at for at in there if _is_with_group(facts, at, begin, there)]
        if not left:
            continue
        vote = _vote(facts, told, left, begin)
        for at in there:
            row = _row(facts, at, (begin, end), vote)
            if row is not None and (at not in found or (at in undecided and not vote.tied)):
                (undecided.add if vote.tied else undecided.discard)(at)
                found[at] = row
    return list(found.values())


def _is_with_group(facts: Facts, at: int, begin: int, there: list[int]) -> bool:
    """Is a place of a log of the group's history? The reference need not hold it: then a log of a later epoch
    that does tells."""
    own, histories = last_epoch(facts.replicas[at]), facts.histories
    later = (b for b in there if last_epoch(facts.replicas[b]) > own)
    return histories.with_group(at, begin) and not any(histories.parted(at, b) <= begin for b in later)


class _Vote(NamedTuple):
    """Of one place: who votes, which epoch most say, how many do, and whether as many say another."""

    left: list[int]
    best: int
    votes: int
    tied: bool


def _row(facts: Facts, at: int, span: Interval, vote: _Vote) -> Finding | None:
    r, begin = facts.replicas[at], span[0]
    says = r.epoch_at(begin)
    if says == vote.best:
        return None
    most = [other for b in vote.left if (other := facts.replicas[b]).epoch_at(begin) == vote.best]
    open_ = vote.tied or _few_are_later(facts, _told(facts), begin, vote.best) or _knows_more(r, most, begin)
    return facts.at(
        "epoch_mismatch",
        ERROR,
        at,
        *span,
        expected=str(vote.best),
        found=str(says) if says >= 0 else "no epoch",
        ambiguous=open_ and at in vote.left,
        copies=vote.votes,
    )


def _told(facts: Facts) -> list[int]:
    """The replicas that say of which epochs they are; none where only one does, or none has any."""
    told = [at for at, r in enumerate(facts.replicas) if not r.empty and not r.epoch_problem]
    return told if len(told) > 1 and any(facts.replicas[at].epochs for at in told) else []


def _vote(facts: Facts, told: list[int], left: list[int], begin: int) -> _Vote:
    """Where as many say another epoch, those have no vote whose file their own log contradicts."""
    replicas, older = facts.replicas, _of_older(facts, told, begin)
    own = replicas[facts.reference].epoch_at(begin) if facts.reference in left else None
    best, votes, tied = _most([replicas[at].epoch_at(begin) for at in left], older, own)
    if tied:
        proved = [at for at in left if contradicted(replicas[at]) is None]
        if proved and proved != left:
            return _Vote(proved, *_most([replicas[at].epoch_at(begin) for at in proved], older, own))
    return _Vote(left, best, votes, tied)


def _of_older(facts: Facts, told: list[int], begin: int) -> Counter[int]:
    """What files tell of a place that their logs had, and retention took. It proves nothing of the bytes that
    others hold there."""
    gone = (facts.replicas[at] for at in told if facts.replicas[at].start > begin)
    return Counter(r.epoch_at(begin) for r in gone)


def _most(says: list[int], of_older: Counter[int], of_reference: int | None) -> tuple[int, int, bool]:
    """The epoch that most say, how many do, and whether as many say another. Of as many it is that of more of
    the older logs, then the reference's."""
    counts = Counter(epoch for epoch in says if epoch >= 0) or Counter(says)

    def rank(item: tuple[int, int]) -> tuple[int, int, bool, int]:
        epoch, votes = item
        return votes, of_older[epoch], epoch == of_reference, epoch

    best, votes = max(counts.items(), key=rank)
    return best, votes, list(counts.values()).count(votes) > 1


def _few_are_later(facts: Facts, told: list[int], begin: int, best: int) -> bool:
    """Do most tell an earlier epoch than others, of bytes that both have? A file that lacks its last epoch
    says so, and one that has one too many."""
    reference = facts.replicas[facts.reference]
    parted = any(parted_by_epochs(reference, facts.replicas[at]) <= begin for at in told)
    return parted and best < reference.epoch_at(begin)


def _knows_more(r: Replica, most: list[Replica], begin: int) -> bool:
    """Does its file hold the epoch that each of these tells for a place, and one since?"""
    entries = [other.entry_at(begin) for other in most]
    return all(entry in r.epochs for entry in entries)


def _stretches(facts: Facts, told: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """What two hold at least, cut where any of them begins an epoch, or a log begins or ends; and who do."""
    edges = {edge for at in told for edge in (facts.replicas[at].start, facts.replicas[at].end)}
    starts = {start for at in told for _, start in facts.replicas[at].epochs}
    for begin, end in pairwise(sorted(edges | starts)):
        there = [at for at in told if facts.replicas[at].start <= begin and end <= facts.replicas[at].end]
        if len(there) > 1:
            yield begin, end, there
