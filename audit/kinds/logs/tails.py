"""Logs that end before or behind where they should: ``short_tail``, ``extra_tail``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from audit.findings import ERROR, INFO, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.logs.histories import tells
from audit.reading.layout import Replica, bytes_at, record_at
from audit.reading.records.record import RECORD_BYTES_MIN
from audit.reading.small.beside import WAS_LONGER
from audit.tables import Tail

FEW_BYTES: Final = 8
FEW_BITS: Final = 12
PLACE_AT: Final = 28
"""Of a record: its physical offset stands there."""
BLOCK_BYTES: Final = 512
"""A disk writes no less."""


def tail_target(replicas: Sequence[Replica], acked_end: int) -> int:
    """How far every log of one history should reach: what is confirmed, what was acknowledged, what most of
    them hold. Most may lack more than a live log lags: then the longest tells. A log that lost its end was
    promised what it had: that counts as far as any log reaches."""
    held = [r for r in replicas if not r.empty]
    ends = sorted((r.end for r in held), reverse=True)
    if not ends:
        return 0
    confirmed = max((min(promise(replicas, at), ends[0]) for at in range(len(replicas))), default=0)
    settled = confirmed > 0 and all(r.clean for r in replicas)
    most = ends[len(ends) // 2] if len(ends) > 2 else (ends[-1] if settled else ends[0])
    target = max(confirmed, acked_end, most, ends[-1])
    longer = [r for r in held if r.end > target]
    return ends[0] if any(_is_far(r, longer) for r in held if r.end == most) else target


def rotten(own: Replica, others: Sequence[Replica]) -> bool:
    """Is what stands behind this log's end no write under way, but the others' record there, changed? It is
    compared as far as the shortest of them reaches: a size that was changed tells nothing."""
    held = [found for r in others if r.end > own.end and (found := record_at(r, own.end))]
    size = min(map(len, held), default=0)
    mine = bytes_at(own, own.end, size) if size else b""
    cut = len(own.epochs) > 1 and own.end >= own.epochs[1][1]
    segment = own.segment_at(own.end)
    begin = own.end - segment.base if segment is not None else 0
    return bool(held) and all(is_rot(mine, other[:size], begin, cut=cut) for other in held)


def is_rot(own: bytes, other: bytes, begin: int = 0, *, cut: bool = False) -> bool:
    """Did bytes of ``own``, at ``begin`` of their file, change after they were written? ``other``: a record
    another replica holds there. A write that is under way, or was cut short, leaves zeros to the end of the
    record or of a block; ``cut``: or what stood there before, of a log that was cut."""
    differing = [at for at, (a, b) in enumerate(zip(own, other, strict=False)) if a != b]
    if not differing or not any(own):
        return False
    few = len(differing) < FEW_BYTES
    if not any(own[at] for at in differing):
        return (few and own[-1:] == other[-1:]) or not _unwritten(own, differing, begin)
    same_end = own[-FEW_BYTES:] == other[-FEW_BYTES:]
    return not cut or (_is_of(own, other) and (few or same_end))


def _unwritten(own: bytes, differing: Sequence[int], begin: int) -> bool:
    """Does each run of zeros reach the end, or that of a block?"""
    ends: dict[int, int] = {}
    for at in differing:
        end = len(own) - len(own[at:].lstrip(b"\0")) if own[at:].strip(b"\0") else len(own)
        ends[end] = at
    borders = {end: -(-(begin + last + 1) // BLOCK_BYTES) * BLOCK_BYTES for end, last in ends.items()}
    return all(end == len(own) or borders[end] <= begin + end for end in ends)


def _is_of(own: bytes, other: bytes) -> bool:
    """Are these bytes that record's? Its head but for a few bits, its place or its end tell."""
    bits = sum((a ^ b).bit_count() for a, b in zip(own[:PLACE_AT], other[:PLACE_AT], strict=False))
    place = slice(PLACE_AT, PLACE_AT + 8)
    placed = len(other) >= PLACE_AT + 8 and own[place] == other[place]
    return bits <= FEW_BITS or placed or own[-2 * FEW_BYTES :] == other[-2 * FEW_BYTES :]


def tails(
    facts: Facts,
    tail_of: Callable[[int], Tail],
    acked_end: int,
    roots: Sequence[Finding],
    rotten: Callable[[int], bool] = lambda at: False,
    noted: Callable[[int], int] = lambda at: 0,
) -> list[Finding]:
    """Logs that end before or behind where they should. Lag that nobody was promised is information only.

    ``noted``: where a replica's own note says that its log ended before it lost its end. A log that went its
    own way lacks what stands behind its end as well, but for one that a later epoch left: it will be cut.
    """
    group = of_group(facts)
    kept = [at for at in group if left_by_election(facts.replicas, at) < 0] or group
    target = tail_target([facts.replicas[at] for at in kept], acked_end)
    diverged = {f.replica for f in roots if f.kind == "divergent_suffix"}
    found = []
    for at, r in enumerate(facts.replicas):
        if r.left_over is not None:
            begin, end = r.left_over
            words = {"expected": f"end {begin}", "found": f"records behind unreadable bytes, up to {end}"}
            found.append(facts.at("extra_tail", WARN, at, begin, end, **words))
        own_way = r.name in diverged and (at not in group or r.end >= target)
        if own_way or _is_new(r, target, noted(at)):
            continue
        if r.end < target:
            cut = noted(at) if noted(at) > r.end else -1
            found.append(_short(facts, at, target, tail_of(at), rotten(at), cut))
        else:
            found += _far_enough(facts, at, target, noted(at))
    return found


def _far_enough(facts: Facts, at: int, target: int, noted: int) -> list[Finding]:
    """Of a log that ends where the others do, or behind: its own notes may say that it was longer."""
    r = facts.replicas[at]
    if r.confirmed > r.end:
        expected, until = f"its own confirmOffset {r.confirmed}", r.confirmed
        severity = ERROR
    elif noted > r.end:
        expected, until = f"end {noted}, where it was before by {WAS_LONGER}", noted
        severity = WARN
    elif r.end > target:
        lags = _running(facts.replicas) and left_by_election(facts.replicas, at) < 0
        severity = INFO if lags else WARN
        words = {"expected": f"end {target}", "found": f"end {r.end}"}
        return [facts.at("extra_tail", severity, at, target, r.end, copies=1, **words)]
    else:
        return []
    copies = facts.votes(facts.copies(at, r.end, until), r.end)
    found = f"end {r.end}"
    return [facts.at("short_tail", severity, at, r.end, until, expected=expected, found=found, copies=copies)]


def _is_new(r: Replica, target: int, noted: int) -> bool:
    """Has a log without a record no need of any?"""
    return r.empty and not target and max(r.confirmed, noted) <= r.end


def of_group(facts: Facts) -> list[int]:
    """The replicas whose logs are of the group's history to their ends."""
    return [at for at, r in enumerate(facts.replicas) if facts.histories.with_group(at, r.end)]


def left_by_election(replicas: Sequence[Replica], at: int) -> int:
    """From where on a later epoch, of which no log has anything, cuts a log; -1: none does. The log that
    began it may have lost its end since. What may have been promised is not cut without a word."""
    begin = _cut_by_election(replicas, at)
    return begin if replicas[at].promised <= begin else -1


def _cut_by_election(replicas: Sequence[Replica], at: int) -> int:
    """The same, whatever was promised."""
    r = replicas[at]
    starts = [
        start
        for other in replicas
        if tells(other) and tells(r)
        for epoch, start in other.epochs[-1:]
        if epoch > r.epochs[-1][0] and other.end <= start < r.end
    ]
    return min(starts, default=-1)


def promise(replicas: Sequence[Replica], at: int) -> int:
    """Up to where a log's own note asks the others to reach. One that may have said anything forbids a cut:
    that of an election, or of a stopped group's next start. It makes no lag of a running group wrong, which
    the others' notes do not tell."""
    r = replicas[at]
    cut = not _running(replicas) or _cut_by_election(replicas, at) >= 0
    return r.promised if cut else r.confirmed


def nothing(records: int) -> list[Finding]:
    """Where no log holds a record, nothing was looked at: a group that begins, or one that lost all."""
    if records:
        return []
    return [Finding("short_tail", WARN, "*", expected="a log with records", found="no record on any replica")]


def _short(facts: Facts, at: int, target: int, acked: Tail, rotten: bool, cut: int) -> Finding:
    """``cut``: where the log ended before it lost its end, by its own note; -1: no note says that."""
    r = facts.replicas[at]
    behind = f", {acked.records} acknowledged behind it" if acked.records else ""
    behind += ", then a record that was changed" if rotten else ""
    behind += f", end {cut} before by {WAS_LONGER}" if cut >= 0 else ""
    behind += f", its own confirmOffset {r.confirmed}" if r.confirmed > target else ""
    others = [facts.replicas[b] for b in of_group(facts)]
    severity = _short_severity(others, r, acked, running=_running(facts.replicas))
    return facts.at(
        "short_tail",
        WARN if (rotten or cut >= 0) and severity == INFO else severity,
        at,
        _lacks_from(r, target),
        target,
        uniq_key=acked.uniq_key,
        expected=f"end {target}",
        found=f"end {r.end}{behind}",
        copies=sum(1 for other in others if other.end >= target),
        records=acked.records,
    )


def _lacks_from(r: Replica, target: int) -> int:
    """Where the first record may stand that a log lacks: what is left of its segment may be a blank only,
    which no other log has to hold."""
    border = (r.end // r.segment_bytes + 1) * r.segment_bytes if r.segment_bytes else target
    return border if border < target and border - r.end < RECORD_BYTES_MIN else r.end


def _short_severity(replicas: Sequence[Replica], r: Replica, acked: Tail, *, running: bool) -> str:
    if acked.records or r.confirmed > r.end:
        return ERROR
    longer = [other for other in replicas if other.end > r.end]
    told = ((promise(replicas, at), other.end) for at, other in enumerate(replicas))
    if any(min(promised, end) > r.end for promised, end in told):
        return WARN
    if _is_far(r, longer):
        return WARN
    return INFO if running else WARN


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
