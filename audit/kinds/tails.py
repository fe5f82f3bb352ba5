"""Logs that end before or behind where they should: ``short_tail``, ``extra_tail``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from audit.findings import ERROR, INFO, WARN, Finding
from audit.kinds.facts import Facts
from audit.reading.layout import Replica
from audit.tables import Tail


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
    facts: Facts, tail_of: Callable[[int], Tail], acked_end: int, roots: Sequence[Finding]
) -> list[Finding]:
    """Logs that end before or behind where they should. Lag that nobody was promised is information only."""
    target = tail_target(facts.replicas, acked_end)
    diverged = {f.replica for f in roots if f.kind == "divergent_suffix"}
    found = []
    for at, r in enumerate(facts.replicas):
        if (r.empty and not target and r.confirmed <= r.end) or r.name in diverged:
            continue
        if r.end < target:
            found.append(_short(facts, at, target, tail_of(at)))
        elif r.confirmed > r.end:
            expected = f"its own confirmOffset {r.confirmed}"
            found.append(
                facts.at("short_tail", ERROR, at, r.end, r.confirmed, expected=expected, found=f"end {r.end}")
            )
        elif r.end > target:
            expected, found_ = f"end {target}", f"end {r.end}"
            severity = INFO if _running(facts.replicas) else WARN
            found.append(
                facts.at("extra_tail", severity, at, target, r.end, expected=expected, found=found_, copies=1)
            )
    return found


def _short(facts: Facts, at: int, target: int, acked: Tail) -> Finding:
    r = facts.replicas[at]
    behind = f", {acked.records} acknowledged behind it" if acked.records else ""
    return facts.at(
        "short_tail",
        _short_severity(facts.replicas, r, acked),
        at,
        r.end,
        target,
        uniq_key=acked.uniq_key,
        expected=f"end {target}",
        found=f"end {r.end}{behind}",
        copies=sum(1 for other in facts.replicas if other.end >= target),
        records=acked.records,
    )


def _short_severity(replicas: Sequence[Replica], r: Replica, acked: Tail) -> str:
    if acked.records or r.confirmed > r.end:
        return ERROR
    longer = [other for other in replicas if other.end > r.end]
    if any(min(other.confirmed, other.end) > r.end for other in longer):
        return WARN
    if not r.empty and longer and all(other.start >= r.end for other in longer):
        return WARN  # they share nothing: no byte of it was compared
    reached = max((other.end for other in longer), default=r.end)
    if reached - r.end >= r.segment_bytes or (r.empty and reached > r.end):
        return WARN  # a whole segment behind, or nothing at all: that is no lag of a moment
    return INFO if _running(replicas) else WARN


def _running(replicas: Sequence[Replica]) -> bool:
    """Whether some broker was not stopped in order: then its log may still move."""
    return not all(r.clean for r in replicas)
