"""Readable bytes that two logs hold differently: ``bytes_differ``, ``divergent_suffix``."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from audit.compare import Difference, Run, drill_between, runs
from audit.findings import ERROR, WARN, Finding, Merging, spans_of
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import DAMAGE, MERGED
from audit.kinds.logs.histories import consistent_point, last_epoch
from audit.kinds.logs.witnesses import Weighed
from audit.reading.layout import Replica
from audit.rows.bounded import NO_REST, Rest
from audit.rows.intervals import Interval

_PARTS_MAX: Final = 1000
"""Of a stretch that one copy lacks, in which the others differ: with more it is one row."""

AckedIn = Callable[[int, int, int | None], int]
"""How many acknowledged messages a replica's log has from an offset on; with another replica, those that its
log lacks."""
SameBytes = Callable[[int, int, Interval], bool]
"""Whether two replicas hold the same bytes over an interval."""


Weigh = Callable[[list[list[int]], Interval], Weighed]
"""Of replicas grouped by what they hold over a stretch."""

Damaged = Callable[[str, int, int], bool]
"""Whether a replica's own bytes are damaged somewhere in a stretch."""


@dataclass(frozen=True, slots=True)
class Asked:
    damaged: Damaged
    acked_in: AckedIn
    same_bytes: SameBytes
    weigh: Weigh = lambda groups, span: Weighed(groups)


def differences(
    facts: Facts,
    pairs: Iterable[tuple[int, int, Iterable[Difference]]],
    roots: Iterable[Finding],
    asked: Asked,
    rest: Rest = NO_REST,
) -> list[Finding]:
    """Readable bytes that differ: one row a suffix, one a stretch of damage; evidence says which copy is
    wrong, and a vote where none does.

    ``pairs``: two replicas and where they differ, in log order. What is not listed one by one goes to
    ``rest``."""
    rooted = spans_of(f for f in roots if f.kind in DAMAGE and not f.counted)

    def damaged(replica: str, begin: int, end: int) -> bool:
        listed = replica in rooted and rooted[replica].first(begin, end) is not None
        return listed or asked.damaged(replica, begin, end)

    told = replace(asked, damaged=damaged)
    of_pairs = [_of_pair(facts, base, other, found, told) for base, other, found in pairs]
    rows = rest.bounded("stretches that differ", by=(), each_replica=True)
    merging = Merging(MERGED)
    for f in _once(heapq.merge(*of_pairs, key=lambda f: f.phys_offset)):
        for whole in merging.take(f):
            rows.add(whole.phys_offset, whole)
    for whole in merging.rest():
        rows.add(whole.phys_offset, whole)
    return list(rows.findings())


def _of_pair(
    facts: Facts, base: int, other: int, found: Iterable[Difference], asked: Asked
) -> Iterator[Finding]:
    common_end = min(facts.replicas[base].end, facts.replicas[other].end)
    parted = facts.histories.parted(base, other)
    for run in runs(found, parted):
        if run.start >= parted or run.is_suffix(common_end):
            yield from _suffix(facts, run, base, other, asked)
            continue
        undecided = run.reaches(common_end) and facts.histories.untold(base, other)
        for d in run:
            yield from _stretch(facts, d, asked, undecided=undecided)


def _once(found: Iterable[Finding]) -> Iterator[Finding]:
    """Every pair of logs names the copy that is wrong: once is enough. In log order."""
    told: set[tuple[str, str, int]] = set()
    at = -1
    for f in found:
        if f.phys_offset != at:
            told.clear()
            at = f.phys_offset
        about = (f.kind, f.replica, f.until)
        if about not in told:
            told.add(about)
            yield f


def _voters(facts: Facts, base: int, other: int, span: Interval) -> list[int]:
    """The replicas that hold a stretch, of the history a pair has there; of either, where it has two."""
    parted = facts.histories.parted
    enough = any if parted(base, other) <= span[0] else all
    return [at for at in facts.holders(*span) if enough(parted(one, at) >= span[1] for one in (base, other))]


def _vote(facts: Facts, base: int, other: int, span: Interval, same: SameBytes) -> tuple[int, int]:
    """How many replicas hold the base's bytes, and how many the other's."""
    holders = _voters(facts, base, other, span)
    with_base = (h for h in holders if h == base or (h != other and same(base, h, span)))
    with_other = (h for h in holders if h == other or (h != base and same(other, h, span)))
    return max(1, facts.votes(with_base, span[0])), max(1, facts.votes(with_other, span[0]))


def _stretch(facts: Facts, d: Difference, asked: Asked, *, undecided: bool) -> list[Finding]:
    """The pair's copies that evidence, or else most of the undamaged ones, contradict; a copy damaged in
    itself has its row. ``undecided``: no majority tells, as they may be of two histories."""
    span, same = (d.start, d.until), asked.same_bytes
    damaged = {at for at, r in enumerate(facts.replicas) if asked.damaged(r.name, *span)}
    pair = [at for at in (d.base, d.replica) if at not in damaged]
    voters = _voters(facts, d.base, d.replica, span)
    if len(pair) == 2 and d.base_sound != d.replica_sound:
        unsound = d.base if d.replica_sound else d.replica
        return [_unsound(facts, d, unsound, {*voters} - damaged, same)]
    groups = _groups(sorted({*voters, *pair} - damaged), span, same)
    if not pair or len(groups) < 2:
        return []
    if len(pair) == 1 and (parts := _by_record(facts, span, groups)):
        return [f for part in parts for f in _stretch(facts, part, asked, undecided=undecided)]
    return _of_groups(facts, d, groups, pair, asked, undecided=undecided)


def _of_groups(
    facts: Facts, d: Difference, groups: list[list[int]], pair: list[int], asked: Asked, *, undecided: bool
) -> list[Finding]:
    """Two at least, of which one has the pair's copies that can be read."""
    weighed = asked.weigh(groups, (d.start, d.until))
    untold = undecided or not weighed.told
    best = weighed.groups if untold else _largest(facts, weighed.groups, d.start)
    if len(best) > 1:
        return [_tied(facts, d, pair, best)]
    by = weighed.by if best[0] not in _largest(facts, groups, d.start) else ""
    return [_wrong(facts, d, at, best[0], by, ambiguous=False) for at in _contradicted(groups, best[0], pair)]


def _by_record(facts: Facts, span: Interval, groups: list[list[int]]) -> list[Difference]:
    """Where copies differ in a stretch that another one, which is damaged, has no borders in: whole records
    that they have alike are in none. Empty: their records tell nothing of it."""
    first = groups[0][0]
    found = (d for group in groups[1:] for d in drill_between(facts.replicas, first, group[0], span))
    parts = sorted(islice(found, _PARTS_MAX + 1), key=lambda d: d.start)
    whole = len(parts) <= _PARTS_MAX and all(d.base_sound and d.replica_sound for d in parts)
    return parts if whole else []


def _contradicted(groups: list[list[int]], best: list[int], pair: list[int]) -> list[int]:
    """Of the pair, with those that are equal to them: these are in no other pair."""
    return [at for group in groups if group is not best and set(group) & set(pair) for at in group]


def _largest(facts: Facts, groups: list[list[int]], offset: int) -> list[list[int]]:
    """By the copies that they are there: one file of several replicas is one."""
    votes = [facts.votes(group, offset) for group in groups]
    return [group for group, own in zip(groups, votes, strict=True) if own == max(votes)]


def _unsound(facts: Facts, d: Difference, wrong: int, voters: set[int], same: SameBytes) -> Finding:
    """One copy of the pair cannot be read as records, the other can: no vote is needed."""
    other = d.base if wrong == d.replica else d.replica
    span = (d.start, d.until)
    sound = sorted(voters | {other} - {wrong})
    right = next(group for group in _groups(sound, span, same) if other in group)
    return _wrong(facts, d, wrong, right, ambiguous=False)


def _tied(facts: Facts, d: Difference, pair: list[int], best: list[list[int]]) -> Finding:
    """No vote decides, nor the ledger: nothing does."""
    wrong = pair[-1]
    others = [group for group in best if wrong not in group]
    right = next((group for group in others if set(pair) & set(group)), others[0])
    return _wrong(facts, d, wrong, right, ambiguous=True)


def _groups(holders: list[int], span: Interval, same: SameBytes) -> list[list[int]]:
    """The replicas by what they hold."""
    groups: list[list[int]] = []
    for at in holders:
        group = next((group for group in groups if same(group[0], at, span)), None)
        if group is None:
            groups.append([at])
        else:
            group.append(at)
    return groups


def _wrong(
    facts: Facts, d: Difference, wrong: int, right: list[int], by: str = "", *, ambiguous: bool
) -> Finding:
    """``by``: what speaks for the right copies although they are fewer."""
    return facts.at(
        "bytes_differ",
        ERROR,
        wrong,
        d.start,
        d.until,
        topic=d.topic,
        queue_id=d.queue_id,
        queue_offset=d.queue_offset,
        uniq_key=d.uniq_key,
        expected=f"as on {facts.replicas[d.base if d.base in right else right[0]].name}",
        found=f"what {by} contradicts" if by else "",
        ambiguous=ambiguous,
        copies=facts.votes(right, d.start),
        records=d.records,
    )


def _suffix(
    facts: Facts,
    run: Run,
    base: int,
    other: int,
    asked: Asked,
) -> Iterator[Finding]:
    """One log went its own way. Later epoch wins, then the acknowledged messages, then what queues say of
    both, then the majority."""
    same, parted = asked.same_bytes, facts.histories.parted(base, other)
    a, b = facts.replicas[base], facts.replicas[other]
    later = run.start >= parted
    begin = parted if later else run.start  # a blank that both have there is the first of each
    span = (begin, min(run.until, a.end, b.end))
    votes = _vote(facts, base, other, span, same)
    if later:
        wrong, ambiguous = (base if last_epoch(a) < last_epoch(b) else other), False
    else:
        untold = facts.histories.untold(base, other)
        wrong, ambiguous = _of_one_epoch(base, other, (begin, run.until), votes, asked, untold=untold)
    right = base if wrong == other else other
    voters = _voters(facts, base, other, span)
    alike = [at for at in voters if at not in (base, other)] if wrong == base else []
    copies = votes[0] if right == base else votes[1]
    for at in (wrong, *(at for at in alike if same(base, at, span))):  # they are in no pair of their own
        yield _of_suffix(
            facts, (begin, run.records), at, right, asked, ambiguous=ambiguous, later=later, copies=copies
        )


def _of_one_epoch(
    base: int, other: int, span: Interval, votes: tuple[int, int], asked: Asked, *, untold: bool
) -> tuple[int, bool]:
    """Which of two logs is the wrong one, and whether nothing tells. ``untold``: no majority does, as their
    epochs may differ."""
    counts = (asked.acked_in(base, span[0], other), asked.acked_in(other, span[0], base))
    if counts[0] != counts[1]:
        return (base if counts[0] < counts[1] else other), False
    weighed = asked.weigh([[base], [other]], span)
    if len(weighed.groups) == 1:
        return (base if weighed.groups == [[other]] else other), False
    ambiguous = untold or not weighed.told or votes[0] == votes[1]
    return (base if votes[0] < votes[1] else other), ambiguous


def _of_suffix(
    facts: Facts,
    suffix: tuple[int, int],
    wrong: int,
    right: int,
    asked: Asked,
    *,
    ambiguous: bool,
    later: bool,
    copies: int,
) -> Finding:
    """``suffix``: where it begins, and its records."""
    r, (begin, records) = facts.replicas[wrong], suffix
    lost = _confirmed(r, begin, later=later) or asked.acked_in(wrong, begin, right) > 0
    common = consistent_point(facts.replicas[right], r)
    return facts.at(
        "divergent_suffix",
        ERROR if lost else WARN,
        wrong,
        begin,
        r.end,
        expected=f"{_epoch(facts.replicas[right], begin)} as on {facts.replicas[right].name}",
        found=_epoch(r, begin) + (f", consistent up to {common}" if common >= 0 else ""),
        ambiguous=ambiguous,
        copies=copies,
        records=records,
    )


def _confirmed(r: Replica, begin: int, *, later: bool) -> bool:
    """Does a log's own confirmOffset say that somebody was promised what it has from here on? Without one,
    only a ``later`` epoch of the others tells that an election went before."""
    return r.promised > begin or (r.confirmed == 0 and not later)


def _epoch(r: Replica, offset: int) -> str:
    return f"epoch {r.epoch_at(offset)}" if r.epoch_at(offset) >= 0 else "no known epoch"
