"""Epoch files that cannot be right: ``epoch_file_corrupt``, ``epoch_mismatch``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.reading.beside import EPOCHS
from audit.reading.layout import UNREADABLE


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
    """One row a replica: where it first tells another epoch than most."""
    replicas = facts.replicas
    told = [at for at, r in enumerate(replicas) if not r.empty and not r.epoch_problem]
    if len(told) < 2 or not any(replicas[at].epochs for at in told):
        return []
    found: dict[int, Finding] = {}
    for begin, end in _stretches(facts, told):
        says = {at: replicas[at].epoch_at(begin) for at in told}
        counts = Counter(says.values())
        best, votes = max(
            counts.items(), key=lambda item: (item[1], item[0] == says.get(facts.reference), item[0])
        )
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
                    ambiguous=list(counts.values()).count(votes) > 1,
                    copies=votes,
                )
    return list(found.values())


def _stretches(facts: Facts, told: list[int]) -> Iterator[tuple[int, int]]:
    """What all hold, cut where any of them begins an epoch."""
    begin = max(facts.replicas[at].start for at in told)
    end = min(facts.replicas[at].end for at in told)
    starts = {start for at in told for _, start in facts.replicas[at].epochs if begin < start < end}
    if begin < end:
        yield from pairwise([*sorted({begin, *starts}), end])
