"""Readable bytes that two logs hold differently: ``bytes_differ``, ``divergent_suffix``."""

from __future__ import annotations

from collections.abc import Callable

from audit.compare import Difference, is_suffix, runs
from audit.findings import ERROR, WARN, Finding, merge, spans_of
from audit.intervals import Interval
from audit.kinds.damage import MERGED
from audit.kinds.facts import Facts
from audit.reading.layout import Replica

SameBytes = Callable[[int, int, Interval], bool]
"""Whether two replicas hold the same bytes over an interval."""


def differences(
    facts: Facts,
    rows: dict[tuple[int, int], list[Difference]],
    roots: list[Finding],
    confirmed: int,
    body_crc: Callable[[str], int | None],
    acked_in: Callable[[int, int, int], int],
    same_bytes: SameBytes,
) -> list[Finding]:
    """Readable bytes that differ: one row a suffix, one a stretch of damage; a vote says which copy is wrong.

    ``body_crc`` asks the ledger for a message, ``acked_in`` counts a replica's acknowledged messages in a
    stretch.
    """
    found: list[Finding] = []
    rooted = spans_of(roots)
    for (base, other), all_rows in sorted(rows.items()):
        names = (facts.replicas[base].name, facts.replicas[other].name)
        common_end = min(facts.replicas[base].end, facts.replicas[other].end)
        for run in runs(all_rows):
            if is_suffix(run, common_end):
                found.append(_suffix(facts, run, base, other, confirmed, acked_in, same_bytes))
                continue
            for d in run:
                if any(name in rooted and rooted[name].first(d.start, d.until) for name in names):
                    continue  # one of the two is damaged in itself: that row says it all
                found.append(_stretch(facts, d, body_crc, same_bytes))
    return merge(dict.fromkeys(found), MERGED)


def _vote(facts: Facts, base: int, other: int, span: Interval, same: SameBytes) -> tuple[int, int]:
    """How many replicas hold the base's bytes, and how many the other's."""
    holders = facts.holders(*span)
    with_base = sum(h == base or (h != other and same(base, h, span)) for h in holders)
    with_other = sum(h == other or (h != base and same(other, h, span)) for h in holders)
    return max(1, with_base), max(1, with_other)


def _stretch(facts: Facts, d: Difference, body_crc: Callable[[str], int | None], same: SameBytes) -> Finding:
    votes = _vote(facts, d.base, d.replica, (d.start, d.until), same)
    wrong, right, ambiguous = d.replica, d.base, False
    if d.base_sound != d.replica_sound:
        wrong, right = (d.base, d.replica) if d.replica_sound else (d.replica, d.base)
    elif votes[0] != votes[1]:
        wrong, right = (d.base, d.replica) if votes[0] < votes[1] else (d.replica, d.base)
    else:
        told = body_crc(d.uniq_key)
        if d.base_crc != d.replica_crc and told in (d.base_crc, d.replica_crc):
            wrong, right = (d.base, d.replica) if told == d.replica_crc else (d.replica, d.base)
        else:
            ambiguous = True
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
        expected=f"as on {facts.replicas[right].name}",
        ambiguous=ambiguous,
        copies=votes[0] if right == d.base else votes[1],
        records=d.records,
    )


def _suffix(
    facts: Facts,
    run: list[Difference],
    base: int,
    other: int,
    confirmed: int,
    acked_in: Callable[[int, int, int], int],
    same: SameBytes,
) -> Finding:
    """One log went its own way. Later epoch wins, then the majority, then the acknowledged messages."""
    begin, end = run[0].start, run[-1].until
    a, b = facts.replicas[base], facts.replicas[other]
    epochs = (a.epoch_at(a.end - 1), b.epoch_at(b.end - 1))
    votes = _vote(facts, base, other, (begin, min(end, a.end, b.end)), same)
    wrong, ambiguous = other, False
    if epochs[0] != epochs[1]:
        wrong = base if epochs[0] < epochs[1] else other
    elif votes[0] != votes[1]:
        wrong = base if votes[0] < votes[1] else other
    else:
        counts = (acked_in(base, begin, a.end), acked_in(other, begin, b.end))
        wrong = base if counts[0] < counts[1] else other
        ambiguous = counts[0] == counts[1]
    right = base if wrong == other else other
    r = facts.replicas[wrong]
    # Also what this log lacks: the messages that were acknowledged from the other one.
    acked = acked_in(wrong, begin, r.end) + acked_in(right, begin, facts.replicas[right].end)
    unconfirmed = 0 < confirmed <= begin and acked == 0
    common = consistent_point(a, b)
    return facts.at(
        "divergent_suffix",
        WARN if unconfirmed else ERROR,
        wrong,
        begin,
        r.end,
        expected=f"epoch {facts.replicas[right].epoch_at(begin)} as on {facts.replicas[right].name}",
        found=f"epoch {r.epoch_at(begin)}" + (f", consistent up to {common}" if common >= 0 else ""),
        ambiguous=ambiguous,
        copies=votes[0] if right == base else votes[1],
        records=sum(d.records for d in run),
    )


def consistent_point(a: Replica, b: Replica) -> int:
    """How far two logs agree by their epochs: newest shared (epoch, start), the nearer of its ends."""
    ends_a, ends_b = _epoch_ends(a), _epoch_ends(b)
    for entry in sorted(set(ends_a) & set(ends_b), reverse=True):
        return min(ends_a[entry], ends_b[entry])
    return -1


def _epoch_ends(replica: Replica) -> dict[tuple[int, int], int]:
    starts = [start for _, start in replica.epochs[1:]] + [replica.end]
    return dict(zip(replica.epochs, starts, strict=True)) if replica.epochs else {}
