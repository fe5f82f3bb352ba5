"""Which finding follows from which, and which rows are one row with a count?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from audit.findings import RANK, Finding, Spans, spans_of
from audit.kinds import entries, index

_UNDER_ENTRIES: Final = (
    "missing_segment",
    "file_unreadable",
    "unreadable_region",
    "divergent_suffix",
    "phys_offset_mismatch",
    "crc_mismatch",
    "bytes_differ",
    "dup_queue_offset",
    "queue_order",
)

_FOLDED: Final = entries.KINDS | index.KINDS

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
    "phantom": ("divergent_suffix", "bytes_differ", "crc_mismatch", "phys_offset_mismatch"),
    "cq_wrong": _UNDER_ENTRIES,
    "cq_missing": _UNDER_ENTRIES,
    "cq_dangling": (*_UNDER_ENTRIES, "short_tail"),
    "index_wrong": _UNDER_ENTRIES,
    "index_missing": _UNDER_ENTRIES,
    "missing_segment": ("file_unreadable",),
    "missing_start": ("file_unreadable",),
    "short_tail": ("file_unreadable",),
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

    What is wrong on every replica (``*``) follows from damage only if every replica is damaged there. A cause
    is no lighter than what follows from it (``_explains``).
    """
    rows = list(findings)
    by_kind: dict[str, list[Finding]] = {}
    for f in rows:
        if not f.caused_by:
            by_kind.setdefault(f.kind, []).append(f)
    spans = {kind: spans_of(causes) for kind, causes in by_kind.items()}
    out = []
    for f in rows:
        # No damage of the log explains these.
        whole_queues = f.kind == "cq_missing" and f.records != 1 and f.found != entries.NO_ENTRY
        apart = f.caused_by or f.phys_offset < 0 or whole_queues
        cause = None if apart else _cause(f, spans, replicas)
        out.append(f.follows(cause) if cause is not None else f)
    return out


def _cause(
    f: Finding, spans: dict[str, dict[str, Spans[Finding]]], replicas: Sequence[str]
) -> Finding | None:
    everywhere: dict[str, Finding] = {}
    for kind in CAUSES.get(f.kind, ()):
        of = spans.get(kind, {})
        for name in (f.replica, "*"):
            cause = of[name].first(f.phys_offset, f.until) if name in of else None
            if cause is not None and _explains(cause, f):
                return cause
        if f.replica == "*":
            for name in replicas:
                cause = of[name].first(f.phys_offset, f.until) if name in of else None
                if cause is not None and _explains(cause, f):
                    everywhere.setdefault(name, cause)
    return next(iter(everywhere.values())) if everywhere and len(everywhere) == len(set(replicas)) else None


def _explains(cause: Finding, f: Finding) -> bool:
    """A consequence is information, whatever it was: so what counts more than its cause is none.

    But in a suffix that a rejoin cuts, all goes with it, and the others have what it lacks."""
    suffix = cause.kind == "divergent_suffix" and cause.phys_offset <= f.phys_offset
    if f.kind == "epoch_mismatch":
        return suffix
    lost = f.kind.startswith("acked_") and f.copies == 0
    return RANK[cause.severity] <= RANK[f.severity] or (suffix and not lost)


def gaps_of_missing(found: list[Finding]) -> list[Finding]:
    """A queue skips a place because its acknowledged message is gone: the message is the cause."""
    gone = {
        (f.topic, f.queue_id, f.queue_offset): f for f in found if f.kind == "acked_missing" and f.copies == 0
    }
    out = []
    for f in found:
        if f.kind == "queue_gap":
            inside = (
                gone.get((f.topic, f.queue_id, f.queue_offset + n)) for n in range(min(f.records, 100_000))
            )
            cause = next((g for g in inside if g is not None), None)
            if cause is not None:
                f = f.follows(cause)
        out.append(f)
    return out


def fold(findings: list[Finding]) -> list[Finding]:
    """One row with a count for the skipped places, and the messages others hold, that follow from one cause.

    A message no replica holds keeps its own row, whatever the cause.
    """
    out: list[Finding] = []
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for f in findings:
        folds = f.kind == "queue_gap" or f.kind in _FOLDED or (f.kind.startswith("acked_") and f.copies > 0)
        if f.caused_by and folds:
            groups.setdefault((f.kind, f.replica, f.caused_by), []).append(f)
        else:
            out.append(f)
    for rows in groups.values():
        first = min(rows, key=lambda f: f.phys_offset)
        if len(rows) == 1:
            out.append(first)
            continue
        out.append(
            replace(
                first,
                until=max(f.until for f in rows),
                copies=min(f.copies for f in rows),
                records=sum(f.records for f in rows),
            )
        )
    return out
