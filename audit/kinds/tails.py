"""Logs that end before or behind where they should: ``short_tail``, ``extra_tail``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from audit.findings import ERROR, INFO, WARN, Finding
from audit.kinds.facts import Facts
from audit.reading.beside import WAS_LONGER
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


def is_rot(own: bytes, other: bytes) -> bool:
    """Did bytes of ``own``, a damaged last record, change after they were written? ``other``: what another
    replica holds there. A write that is under way, or was cut short, leaves zeros to the end of a block."""
    differing = [at for at, (a, b) in enumerate(zip(own, other, strict=False)) if a != b]
    few = 0 < len(differing) < 8 and own[-1:] == other[-1:]
    return few or any(own[at] for at in differing)


def tails(
    facts: Facts,
    tail_of: Callable[[int], Tail],
    acked_end: int,
    roots: Sequence[Finding],
    rotten: Callable[[int], bool] = lambda at: False,
    noted: Callable[[int], int] = lambda at: 0,
) -> list[Finding]:
    """Logs that end before or behind where they should. Lag that nobody was promised is information only.

    ``noted``: where a replica's own note says that its log ended before it lost its end.
    """
    target = tail_target(facts.replicas, acked_end)
    diverged = {f.replica for f in roots if f.kind == "divergent_suffix"}
    found = []
    for at, r in enumerate(facts.replicas):
        if r.name in diverged or (r.empty and not target and max(r.confirmed, noted(at)) <= r.end):
            continue
        if r.end < target:
            found.append(_short(facts, at, target, tail_of(at), rotten(at)))
        elif r.confirmed > r.end:
            expected = f"its own confirmOffset {r.confirmed}"
            found.append(
                facts.at("short_tail", ERROR, at, r.end, r.confirmed, expected=expected, found=f"end {r.end}")
            )
        elif noted(at) > r.end:
            expected = f"end {noted(at)}, where it was before by {WAS_LONGER}"
            found.append(
                facts.at("short_tail", WARN, at, r.end, noted(at), expected=expected, found=f"end {r.end}")
            )
        elif r.end > target:
            expected, found_ = f"end {target}", f"end {r.end}"
            severity = INFO if _running(facts.replicas) else WARN
            found.append(
                facts.at("extra_tail", severity, at, target, r.end, expected=expected, found=found_, copies=1)
            )
    return found


def _short(facts: Facts, at: int, target: int, acked: Tail, rotten: bool) -> Finding:
    r = facts.replicas[at]
    behind = f", {acked.records} acknowledged behind it" if acked.records else ""
    behind += ", then a record that was changed" if rotten else ""
    severity = _short_severity(facts.replicas, r, acked)
    return facts.at(
        "short_tail",
        WARN if rotten and severity == INFO else severity,
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
    if _is_far(r, longer):
        return WARN
    return INFO if _running(replicas) else WARN


def _is_far(r: Replica, longer: Sequence[Replica]) -> bool:
    """Does the log lack more than a live one lags? Then it shares nothing with the others, so that no byte
    of it was compared, or it is a whole segment behind, or has nothing at all."""
    if not r.empty and longer and all(other.start >= r.end for other in longer):
        return True
    reached = max((other.end for other in longer), default=r.end)
    return reached - r.end >= r.segment_bytes or (r.empty and reached > r.end)


def _running(replicas: Sequence[Replica]) -> bool:
    """Whether some broker was not stopped in order: then its log may still move."""
    return not all(r.clean for r in replicas)
