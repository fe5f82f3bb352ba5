"""How many replicas hold what one lacks? Of any part of it so many at the least; none that is wrong there.

Rows are told while others are not known yet: what the ledger says, or which of two copies was altered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from audit.findings import Finding
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import DAMAGE
from audit.kinds.logs.tails import of_group
from audit.rows.intervals import Interval

_WRONG: Final = DAMAGE | {"bytes_differ", "divergent_suffix", "acked_missing", "acked_mismatch"}
_RECOUNTED: Final = DAMAGE | {"short_tail"}


def recounted(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """``found``, all of it. Rows that only count others say nothing of one place, nor does one of a message
    that no log has: another one may stand there, and be right."""
    wrong: dict[str, list[Interval]] = {r.name: [] for r in facts.replicas}
    for f in found:
        nowhere = f.kind == "acked_missing" and f.replica == "*"
        if f.kind in _WRONG and not nowhere and not f.counted and f.phys_offset >= 0:
            for name in wrong if f.replica == "*" else (f.replica,):
                wrong[name].append((f.phys_offset, max(f.until, f.phys_offset + 1)))
    at = {r.name: at for at, r in enumerate(facts.replicas)}
    return [_again(facts, f, at[f.replica], wrong) if _is_asked(f, at) else f for f in found]


def _is_asked(f: Finding, at: Mapping[str, int]) -> bool:
    told = f.kind in _RECOUNTED and f.copies > 0 and not f.counted
    return told and f.replica in at and 0 <= f.phys_offset < f.until


def _again(facts: Facts, f: Finding, at: int, wrong: Mapping[str, list[Interval]]) -> Finding:
    others = {b: _within(wrong[r.name], f) for b, r in enumerate(facts.replicas) if b != at}
    every = f.kind == "short_tail"
    if not every and not any(others.values()):
        return f
    counts = [f.copies]
    for piece in _pieces(facts, f, others.values()):
        bad = {b for b, spans in others.items() if any(_meets(span, piece) for span in spans)}
        if bad or every:
            counts.append(facts.votes(_holders(facts, f, at, piece) - bad, piece[0]))
    return replace(f, copies=min(counts))


def _pieces(facts: Facts, f: Finding, wrong: Iterable[Sequence[Interval]]) -> Iterator[Interval]:
    """In each of which another replica is wrong or not, and has all or nothing."""
    spans = [*((r.start, r.end) for r in facts.replicas), *(span for own in wrong for span in own)]
    edges = {edge for span in spans for edge in span if f.phys_offset < edge < f.until}
    return pairwise(sorted({f.phys_offset, f.until, *edges}))


def _meets(one: Interval, two: Interval) -> bool:
    return one[0] < two[1] and two[0] < one[1]


def _within(spans: Iterable[Interval], f: Finding) -> list[Interval]:
    return [span for span in spans if f.overlaps(*span)]


def _holders(facts: Facts, f: Finding, at: int, piece: Interval) -> set[int]:
    if f.kind != "short_tail":
        return set(facts.copies(at, *piece))
    return set(facts.holders(*piece)) & set(of_group(facts)) - {at}
