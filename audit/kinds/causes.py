"""Which finding follows from which, and which rows are one row with a count?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from audit.findings import RANK, Finding, spans_of
from audit.kinds.made import entries, index
from audit.rows.intervals import Interval, joined
from audit.rows.numbers import LAST

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

_TOLD_APART: Final = frozenset(
    {"dup_message", "phantom", "acked_missing", "acked_unknown", "acked_mismatch", "acked_out_of_order"}
)
"""Kinds whose rows got their causes before they were counted: those with one, and those without."""

_FOLDED: Final = entries.KINDS | index.KINDS
_MISPLACED: Final = "phys_offset_mismatch"
_LOST: Final = ("acked_missing",)
"""What explains a gap of its own place, or beside it."""

CAUSES: Final = {
    "queue_gap": (
        "missing_segment",
        "unreadable_region",
        "divergent_suffix",
        "bytes_differ",
        "phys_offset_mismatch",
        "acked_missing",
    ),
    "dup_queue_offset": ("divergent_suffix", "bytes_differ"),
    "queue_order": ("divergent_suffix", "bytes_differ"),
    "dup_message": ("divergent_suffix", "bytes_differ", "dup_queue_offset"),
    "phantom": ("divergent_suffix", "bytes_differ", "crc_mismatch", "phys_offset_mismatch"),
    "cq_wrong": _UNDER_ENTRIES,
    "cq_missing": _UNDER_ENTRIES,
    "cq_dangling": (*_UNDER_ENTRIES, "short_tail"),
    "index_wrong": (*_UNDER_ENTRIES, "short_tail"),
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
        "phys_offset_mismatch",
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


Hidden = Callable[[str, str, int, int], bool]
"""Whether a row that is only counted, of a kind and replica, overlaps a stretch."""


Gap = tuple[str, int, int, str, int, int]
"""Which gap of which replica's log."""
NO_GAPS: Final = frozenset[Gap]()


def gap_of(f: Finding, replica: str) -> Gap:
    return replica, f.phys_offset, f.until, f.topic, f.queue_id, f.queue_offset


def link(
    findings: Iterable[Finding],
    replicas: Sequence[str],
    hidden: Hidden = lambda *place: False,
    apart: frozenset[Gap] = NO_GAPS,
) -> list[Finding]:
    """Give each consequence its cause: a row that can cause it, over the same bytes of the same log. No
    damage explains the gaps that are ``apart``."""
    rows = list(findings)
    links = Links(rows, replicas, hidden)
    return [links.linked(f, apart) for f in rows]


class Links:
    """What may be the cause of others.

    What is wrong on every replica (``*``) follows from damage only if every replica is damaged there. A cause
    is no lighter than what follows from it (``_explains``). A row that counts others stands for a cause where
    one of them is.
    """

    def __init__(
        self, findings: Iterable[Finding], replicas: Sequence[str], hidden: Hidden = lambda *place: False
    ) -> None:
        self._replicas = replicas
        self._causes = _Causes((f for f in findings if not f.caused_by), hidden)

    def linked(self, f: Finding, without: frozenset[Gap] = NO_GAPS) -> Finding:
        """With its cause, if it has one; as a gap that no damage explains, if it is one of these."""
        # No damage of the log explains these.
        whole_queues = f.kind == "cq_missing" and f.records != 1 and f.found != entries.NO_ENTRY
        told_apart = f.counted and f.kind in _TOLD_APART
        apart = f.caused_by or f.phys_offset < 0 or whole_queues or told_apart
        kinds = _LOST if f.kind == "queue_gap" and gap_of(f, f.replica) in without else CAUSES.get(f.kind, ())
        cause = None if apart else _cause(f, kinds, self._causes, self._replicas)
        return f.follows(cause) if cause is not None else f

    def of_read(self, f: Finding, names: Iterable[str], apart: frozenset[Gap] = NO_GAPS) -> Finding:
        """A place that is skipped, told of the log whose damage explains it, of those that were read."""
        if f.kind != "queue_gap":
            return f
        told = [replace(f, replica=name) for name in (f.replica, *names)]
        return next((own for own in told if self.linked(own, apart).caused_by), f)

    def altered(self, replica: str, offset: int) -> bool:
        """Have the others another record there, and is it this one that is wrong? Or does it say itself that
        it stands elsewhere?"""
        cause = self._causes.first("bytes_differ", replica, offset, offset + 1)
        return (cause is not None and not cause.ambiguous) or self.misplaced(replica, offset)

    def misplaced(self, replica: str, offset: int) -> bool:
        return self._causes.first(_MISPLACED, replica, offset, offset + 1) is not None

    def wrong(self, replica: str) -> tuple[Interval, ...]:
        """What is ``altered``, as far as it is listed."""
        rows = [*self._causes.listed("bytes_differ", replica), *self._causes.listed(_MISPLACED, replica)]
        spans = (f for f in rows if f.kind == _MISPLACED or not f.ambiguous)
        return tuple(joined((f.phys_offset, f.until) for f in spans))


class _Causes:
    def __init__(self, findings: Iterable[Finding], hidden: Hidden) -> None:
        self._hidden = hidden
        listed: dict[str, list[Finding]] = {}
        self._counted: dict[tuple[str, str], list[Finding]] = {}
        for f in findings:
            if f.counted:
                self._counted.setdefault((f.kind, f.replica), []).append(f)
            else:
                listed.setdefault(f.kind, []).append(f)
        self._listed = listed
        self._spans = {kind: spans_of(rows) for kind, rows in listed.items()}

    def listed(self, kind: str, replica: str) -> Iterator[Finding]:
        return (f for f in self._listed.get(kind, ()) if f.replica == replica)

    def first(self, kind: str, replica: str, begin: int, end: int) -> Finding | None:
        """The first row of that kind and replica that overlaps a stretch, or counts one that does."""
        of = self._spans.get(kind, {})
        found = of[replica].first(begin, end) if replica in of else None
        counted = self._counted.get((kind, replica), ())
        if found is not None or not counted or not self._hidden(kind, replica, begin, end):
            return found
        return next((f for f in counted if f.overlaps(begin, end)), None)


def _cause(f: Finding, kinds: Sequence[str], causes: _Causes, replicas: Sequence[str]) -> Finding | None:
    everywhere: dict[str, Finding] = {}
    for kind in kinds:
        for name in (f.replica, "*"):
            cause = causes.first(kind, name, f.phys_offset, f.until)
            if cause is not None and _explains(cause, f):
                return cause
        if f.replica == "*":
            for name in replicas:
                cause = causes.first(kind, name, f.phys_offset, f.until)
                if cause is not None and _explains(cause, f):
                    everywhere.setdefault(name, cause)
    return next(iter(everywhere.values())) if everywhere and len(everywhere) == len(set(replicas)) else None


def _explains(cause: Finding, f: Finding) -> bool:
    """A consequence is information, whatever it was: so what counts more than its cause is none.

    But in a suffix that a rejoin cuts, all goes with it, and the others have what it lacks."""
    if f.counted and (cause.counted or not (cause.phys_offset <= f.phys_offset and f.until <= cause.until)):
        return False  # some of those it counts stand elsewhere, or between those that the cause counts
    if f.kind == "queue_gap" and cause.kind in _LOST and not _is_of_gap(cause, f):
        return False
    suffix = cause.kind == "divergent_suffix" and cause.phys_offset <= f.phys_offset
    if f.kind == "epoch_mismatch":
        return suffix
    lost = f.kind.startswith("acked_") and f.copies == 0
    return RANK[cause.severity] <= RANK[f.severity] or (suffix and not lost)


def _is_of_gap(lost: Finding, gap: Finding) -> bool:
    """Is a message that is not there one of those whose places are skipped? Or does a record around the gap
    stand in its place, which is none of that queue then?"""
    if lost.phys_offset in (gap.phys_offset, gap.until - 1):
        return True
    there = lost.counted or gap.queue_offset <= lost.queue_offset < gap.queue_offset + gap.records
    return there and (lost.topic, lost.queue_id) == (gap.topic, gap.queue_id)


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
                records=min(sum(f.records for f in rows), LAST),
            )
        )
    return out
