"""What do differing bytes, tails, epochs and queues amount to? Facts in, findings out; reads nothing itself.

Each fault becomes one row: damage with its replica, a suffix that differs as one suffix, a tail as one tail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from audit.compare import Difference, Interval, Ranges, is_suffix, runs
from audit.findings import ERROR, INFO, WARN, Finding, Spans, merge
from audit.layout import Replica
from audit.queues import Place, explain
from audit.tables import Tail

MERGED = frozenset({"crc_mismatch", "bytes_differ", "phys_offset_mismatch", "unreadable_region"})
SameBytes = Callable[[int, int, Interval], bool]
"""Whether two replicas hold the same bytes over an interval."""


class Facts:
    """The replicas and what is known about where they agree."""

    def __init__(self, replicas: list[Replica], reference: int, ranges: Ranges) -> None:
        self.replicas = replicas
        self.reference = reference
        self.ranges = ranges

    def at(self, kind: str, severity: str, replica: int, begin: int, end: int, **columns: Any) -> Finding:
        r = self.replicas[replica]
        return Finding(
            kind,
            severity,
            r.name,
            r.segment_name(begin),
            r.epoch_at(begin),
            begin,
            end,
            **columns,
        )

    def holders(self, begin: int, end: int) -> list[int]:
        return [at for at, r in enumerate(self.replicas) if not r.empty and r.covers(begin, end)]

    def equal_to_reference(self, replica: int, begin: int, end: int) -> bool:
        return replica == self.reference or any(
            a <= begin and end <= b for a, b in self.ranges.equal.get(replica, [])
        )


def damage(facts: Facts, table: pa.Table) -> list[Finding]:
    """Damage the scans met. What the reference holds, every replica proved equal there holds as well."""
    by_replica: dict[int, dict[tuple[str, int], dict[str, Any]]] = {}
    for row in table.to_pylist():
        by_replica.setdefault(row["replica"], {})[row["kind"], row["offset"]] = row
    for (kind, offset), row in list(by_replica.get(facts.reference, {}).items()):
        for at in range(len(facts.replicas)):
            if at != facts.reference and facts.equal_to_reference(at, offset, row["until"]):
                by_replica.setdefault(at, {}).setdefault((kind, offset), row)
    damaged = {
        at: Spans((offset, int(row["until"]), True) for (_, offset), row in rows.items())
        for at, rows in by_replica.items()
    }
    found = []
    for at, rows in by_replica.items():
        for (kind, offset), row in rows.items():
            until = int(row["until"])
            sound = [
                h
                for h in facts.holders(offset, until)
                if h not in damaged or not damaged[h].first(offset, until)
            ]
            found.append(
                facts.at(
                    kind,
                    ERROR,
                    at,
                    offset,
                    until,
                    topic=row["topic"],
                    queue_id=row["queue_id"],
                    queue_offset=row["queue_offset"],
                    uniq_key=row["uniq_key"],
                    expected=row["expected"],
                    found=row["found"],
                    copies=len(sound),
                    records=row["records"],
                )
            )
    return merge(found, MERGED)


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
    rooted = _spans(roots)
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


def _spans(findings: Iterable[Finding]) -> dict[str, Spans[Finding]]:
    """By replica."""
    of: dict[str, list[Finding]] = {}
    for f in findings:
        of.setdefault(f.replica, []).append(f)
    return {name: Spans((f.phys_offset, f.until, f) for f in rows) for name, rows in of.items()}


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


def tail_target(replicas: list[Replica], acked_end: int) -> int:
    """How far every log should reach: what is confirmed, what was acknowledged, what most of them hold."""
    ends = sorted((r.end for r in replicas if not r.empty), reverse=True)
    if not ends:
        return 0
    confirmed = max((min(r.confirmed, r.end) for r in replicas), default=0)
    settled = confirmed > 0 and all(r.clean for r in replicas)
    most = ends[len(ends) // 2] if len(ends) > 2 else (ends[-1] if settled else ends[0])
    return max(confirmed, acked_end, most, ends[-1])


def tails(
    facts: Facts, tail_of: Callable[[int], Tail], acked_end: int, roots: list[Finding]
) -> list[Finding]:
    """Logs that end before or behind where they should. Lag that nobody was promised is information only."""
    replicas = facts.replicas
    target = tail_target(replicas, acked_end)
    running = not all(r.clean for r in replicas)
    found = []
    for at, r in enumerate(replicas):
        if r.empty and not target and r.confirmed <= r.end:
            continue
        if any(f.kind == "divergent_suffix" and f.replica == r.name for f in roots):
            continue
        if r.end < target:
            acked = tail_of(at)
            copies = sum(1 for o in replicas if o.end >= target)
            severity = INFO if running else WARN
            if any(o.end > r.end and min(o.confirmed, o.end) > r.end for o in replicas):
                severity = WARN
            longer = [o for o in replicas if o.end > r.end]
            if not r.empty and longer and all(o.start >= r.end for o in longer):
                severity = WARN  # they share nothing: no byte of it was compared
            if acked.records or r.confirmed > r.end:
                severity = ERROR
            found.append(
                facts.at(
                    "short_tail",
                    severity,
                    at,
                    r.end,
                    target,
                    uniq_key=acked.uniq_key,
                    expected=f"end {target}",
                    found=f"end {r.end}"
                    + (f", {acked.records} acknowledged behind it" if acked.records else ""),
                    copies=copies,
                    records=acked.records,
                )
            )
        elif r.confirmed > r.end:
            found.append(
                facts.at(
                    "short_tail",
                    ERROR,
                    at,
                    r.end,
                    r.confirmed,
                    expected=f"its own confirmOffset {r.confirmed}",
                    found=f"end {r.end}",
                )
            )
        elif r.end > target:
            found.append(
                facts.at(
                    "extra_tail",
                    INFO if running else WARN,
                    at,
                    target,
                    r.end,
                    expected=f"end {target}",
                    found=f"end {r.end}",
                    copies=1,
                )
            )
    return found


def files(facts: Facts) -> list[Finding]:
    """Files that are missing between others, or shorter than the others."""
    found = []
    for at, r in enumerate(facts.replicas):
        for begin, end in r.holes:
            found.append(
                facts.at("missing_segment", ERROR, at, begin, end, copies=len(facts.holders(begin, end)))
            )
        for segment in r.segments:
            file_end = segment.base + segment.size_bytes
            if segment.size_bytes < r.segment_bytes and r.segment_end(segment) < r.end:
                end = r.segment_end(segment)
                found.append(
                    facts.at(
                        "unreadable_region",
                        ERROR,
                        at,
                        file_end,
                        end,
                        expected=f"{r.segment_bytes} bytes",
                        found=f"{segment.size_bytes} bytes",
                        copies=len([h for h in facts.holders(file_end, end) if h != at]),
                    )
                )
    return found


def epochs(facts: Facts) -> list[Finding]:
    """Epoch files that cannot be right, or that give another epoch than most for bytes all of them hold."""
    found: list[Finding] = []
    replicas = facts.replicas
    for at, r in enumerate(replicas):
        if r.epoch_problem:
            found.append(facts.at("epoch_file_corrupt", WARN, at, -1, -1, found=r.epoch_problem))
    told = [at for at, r in enumerate(replicas) if not r.empty and not r.epoch_problem]
    if len(told) < 2 or not any(replicas[at].epochs for at in told):
        return found
    begin = max(replicas[at].start for at in told)
    end = min(replicas[at].end for at in told)
    edges = sorted({begin, *(s for at in told for _, s in replicas[at].epochs if begin < s < end)})
    wrong: dict[int, tuple[int, int]] = {}
    for edge, until in zip(edges, [*edges[1:], end], strict=True):
        if edge >= until:
            continue
        says = {at: replicas[at].epoch_at(edge) for at in told}
        if len(set(says.values())) == 1:
            continue
        counts = Counter(says.values())
        best, votes = max(
            counts.items(), key=lambda item: (item[1], item[0] == says.get(facts.reference), item[0])
        )
        for at in told:
            if says[at] != best and at not in wrong:
                wrong[at] = (edge, until)
                tie = list(counts.values()).count(votes) > 1
                found.append(
                    facts.at(
                        "epoch_mismatch",
                        ERROR,
                        at,
                        edge,
                        until,
                        expected=str(best),
                        found=str(says[at]) if says[at] >= 0 else "no epoch",
                        ambiguous=tie,
                        copies=votes,
                    )
                )
    return found


Queues = dict[tuple[str, int], list[Place]]


def places(table: pa.Table) -> Queues:
    """The places of every broken queue, in log order."""
    by_queue: Queues = {}
    for row in table.to_pylist():
        by_queue.setdefault((row["topic"], row["queue_id"]), []).append(
            Place(row["offset"], row["queue_offset"], row["advance"], row["uniq_key"])
        )
    return by_queue


def queues(facts: Facts, by_queue: Queues, replica: int, *, whole: bool) -> list[Finding]:
    """Places of queues that are skipped, taken twice or out of order along one replica's log."""
    found = []
    for (topic, queue_id), places in sorted(by_queue.items()):
        for fault in explain(places, whole=whole):
            found.append(
                facts.at(
                    fault.kind,
                    WARN if fault.doubtful else ERROR,
                    replica,
                    fault.offset,
                    fault.until,
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=fault.queue_offset,
                    uniq_key=fault.uniq_key,
                    expected=fault.expected,
                    found=fault.found,
                    records=fault.records,
                )
            )
    return found


def duplicates(facts: Facts, table: pa.Table, replica: int) -> list[Finding]:
    """One row for each further copy of a message: at-least-once senders make them, so a warning."""
    first: dict[tuple[str, str], int] = {}
    found = []
    for row in table.to_pylist():
        key = (row["topic"], row["uniq_key"])
        if key not in first:
            first[key] = row["offset"]
            continue
        found.append(
            facts.at(
                "dup_message",
                WARN,
                replica,
                row["offset"],
                row["until"],
                topic=row["topic"],
                queue_id=row["queue_id"],
                queue_offset=row["queue_offset"],
                uniq_key=row["uniq_key"],
                expected=f"once, at {first[key]}",
                found=f"again at {row['offset']}",
                records=1,
            )
        )
    return found


CAUSES: Final = {
    "queue_gap": (
        "missing_segment",
        "unreadable_region",
        "divergent_suffix",
        "bytes_differ",
        "acked_missing",
    ),
    "dup_queue_offset": ("divergent_suffix", "bytes_differ"),
    "queue_order": ("divergent_suffix", "bytes_differ"),
    "dup_message": ("divergent_suffix", "bytes_differ", "dup_queue_offset"),
    "crc_mismatch": ("missing_segment", "divergent_suffix"),
    "phys_offset_mismatch": ("missing_segment", "divergent_suffix"),
    "unreadable_region": ("missing_segment", "divergent_suffix"),
    "epoch_mismatch": ("divergent_suffix",),
    "acked_missing": (
        "missing_segment",
        "unreadable_region",
        "divergent_suffix",
        "bytes_differ",
        "crc_mismatch",
        "short_tail",
    ),
    "acked_mismatch": (
        "divergent_suffix",
        "crc_mismatch",
        "bytes_differ",
        "phys_offset_mismatch",
        "acked_out_of_order",
    ),
    "acked_out_of_order": ("divergent_suffix", "bytes_differ"),
}
"""Which kinds a kind may follow from, the likeliest first."""


def link(findings: Iterable[Finding], replicas: Sequence[str]) -> list[Finding]:
    """Give each consequence its cause: a row that can cause it, over the same bytes of the same log.

    What is wrong on every replica (``*``) follows from damage only if every replica is damaged there.
    """
    rows = list(findings)
    by_kind: dict[str, list[Finding]] = {}
    for f in rows:
        if not f.caused_by:
            by_kind.setdefault(f.kind, []).append(f)
    spans = {kind: _spans(causes) for kind, causes in by_kind.items()}
    out = []
    for f in rows:
        cause = None if f.caused_by or f.phys_offset < 0 else _cause(f, spans, replicas)
        out.append(f.follows(cause) if cause is not None else f)
    return out


def _cause(
    f: Finding, spans: dict[str, dict[str, Spans[Finding]]], replicas: Sequence[str]
) -> Finding | None:
    everywhere: dict[str, Finding] = {}
    for kind in CAUSES.get(f.kind, ()):
        of = spans.get(kind, {})
        for name in (f.replica, "*"):
            if name in of and (cause := of[name].first(f.phys_offset, f.until)) is not None:
                return cause
        if f.replica == "*":
            for name in replicas:
                if name in of and (cause := of[name].first(f.phys_offset, f.until)) is not None:
                    everywhere.setdefault(name, cause)
    return next(iter(everywhere.values())) if everywhere and len(everywhere) == len(set(replicas)) else None
