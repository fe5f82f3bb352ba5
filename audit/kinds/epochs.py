"""Epoch files that cannot be right: ``epoch_file_corrupt``, ``epoch_mismatch``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.histories import parted_by_epochs
from audit.reading.beside import EPOCHS
from audit.reading.layout import UNREADABLE, Replica


def epochs(facts: Facts) -> list[Finding]:
    """Epoch files that cannot be right, or that give another epoch than most for bytes all of them hold."""
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
    replicas, told = facts.replicas, _told(facts)
    found: dict[int, Finding] = {}
    for begin, end in _stretches(facts, told):
        says = {at: replicas[at].epoch_at(begin) for at in told}
        left = [at for at in told if facts.histories.with_group(at, begin)]
        best, votes, tied = _most([says[at] for at in left], says.get(facts.reference))
        open_ = tied or _few_are_later(facts, told, begin, best)
        most = [replicas[at] for at in left if says[at] == best]
        for at in told:
            if says[at] != best and at not in found:
                found[at] = facts.at(
                    "epoch_mismatch",
                    ERROR,
                    at,
                    begin,
                    end,
                    expected=str(best),
                    found=str(says[at]) if says[at] >= 0 else "no epoch",
                    ambiguous=(open_ or _knows_more(replicas[at], most, begin)) and at in left,
                    copies=votes,
                )
    return list(found.values())


def _told(facts: Facts) -> list[int]:
    """The replicas that say of which epochs they are; none where only one does, or none has any."""
    told = [at for at, r in enumerate(facts.replicas) if not r.empty and not r.epoch_problem]
    return told if len(told) > 1 and any(facts.replicas[at].epochs for at in told) else []


def _most(says: list[int], of_reference: int | None) -> tuple[int, int, bool]:
    """The epoch that most say, how many do, and whether as many say another."""
    counts = Counter(epoch for epoch in says if epoch >= 0) or Counter(says)
    best, votes = max(counts.items(), key=lambda item: (item[1], item[0] == of_reference, item[0]))
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


def _stretches(facts: Facts, told: list[int]) -> Iterator[tuple[int, int]]:
    """What all hold, cut where any of them begins an epoch."""
    if not told:
        return
    begin = max(facts.replicas[at].start for at in told)
    end = min(facts.replicas[at].end for at in told)
    starts = {start for at in told for _, start in facts.replicas[at].epochs if begin < start < end}
    if begin < end:
        yield from pairwise([*sorted({begin, *starts}), end])
