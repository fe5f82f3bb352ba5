"""Where do findings name each replica? What a copy has anywhere else, as far as anybody can tell, is right.

Where nothing tells which copy is right, all are named. What all replicas have alike (``*``) names none. A
copy that is readable and wrong misleads: a repair, which counts copies, would count it, as it never counts
one that cannot be read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from audit.findings import WARN, Finding, Spans
from audit.reading.layout import Replica
from audit.results.blame.alike import Alike
from audit.results.blame.contradicted import contradicted, of_open_records, of_other_tags
from audit.results.blame.indexes import Indexes, contradicted_by_index
from audit.results.blame.outvoted import Outvoted
from audit.rows.intervals import Interval, joined, without

_UNREADABLE: Final = frozenset(
    {
        "crc_mismatch",
        "unreadable_region",
        "phys_offset_mismatch",
        "file_unreadable",
        "missing_segment",
        "missing_start",
        "short_tail",
    }
)
"""No reader takes bytes that are so for right ones."""
_OWN_WAY: Final = frozenset({"divergent_suffix", "extra_tail"})
"""The replica has there what no other has."""
_OF_THE_LOG: Final = (
    _UNREADABLE
    | _OWN_WAY
    | {
        "bytes_differ",
        "acked_missing",
        "acked_mismatch",
        "acked_out_of_order",
        "dup_queue_offset",
        "queue_gap",
        "queue_order",
        "dup_message",
        "phantom",
    }
)
_BORNE: Final = frozenset({"dup_message", "dup_queue_offset"})
"""As a warning: bytes as they were written, which no step mends and every copy of this log has."""
EVERYWHERE: Final = (0, 1 << 62)


class Named:
    """Of one report. ``misleading``: the replicas that are readable and wrong anywhere; ``mendable``: those
    of which some copy has what is damaged, or where it is no damage; ``linked``: those that have files of
    others; ``contradicted``: the stretches of records that their own store's entries contradict."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self.stretches: dict[str, set[Interval]] = {r.name: set() for r in replicas}
        self._own_way: dict[str, list[Interval]] = {r.name: [] for r in replicas}
        self.misleading: set[str] = set()
        self.mendable: set[str] = set()
        self.linked = {f.replica for f in findings if f.kind == "same_file"}
        self._open: list[Interval] = []
        alike = Alike(findings, replicas)
        for f in findings:
            self._note_of_log(f, alike)
        self._spans = self._spans_of_all()
        # What another has alike, whose entries say so too, is right, and the queue is what is wrong.
        indexes = Indexes()
        told = contradicted(findings, replicas) + of_other_tags(findings, replicas)
        self.contradicted = {(f.replica, f.phys_offset, f.until) for f in told}
        told = [f for f in told if not self._is_confirmed(f)]
        told += contradicted_by_index(findings, replicas, indexes, self.is_right)
        told += of_open_records(findings)
        self.contradicted = {(f.replica, f.phys_offset, f.until) for f in told}
        for f in told:
            self._note(f, f.replica)
            self._open.append((f.phys_offset, f.until))
        self.outvoted = Outvoted(findings, replicas, indexes)
        for name, span in self.outvoted.wrong:
            self.stretches[name].add(span)
            self.misleading.add(name)
            self.mendable.add(name)
            self._open.append(span)
        self._spans = self._spans_of_all()
        self._are_open = Spans((*span, True) for span in self._open)
        self._wrong = {r.name: joined([*self.stretches[r.name], *r.gaps]) for r in replicas}

    def _spans_of_all(self) -> dict[str, Spans[bool]]:
        return {name: Spans((*span, True) for span in told) for name, told in self.stretches.items()}

    def _is_confirmed(self, f: Finding) -> bool:
        """By a copy that is alike: ``f`` follows from no row, as it would where that differs."""
        span = f.phys_offset, f.until
        others = (r for r in self._replicas if (r.name, *span) not in self.contradicted)
        return any(self.is_right(r, *span) for r in others)

    def _note_of_log(self, f: Finding, alike: Alike) -> None:
        borne = f.kind in _BORNE and f.severity == WARN and not f.ambiguous
        if borne or f.kind not in _OF_THE_LOG or _is_beside(f) or (f.kind == "queue_gap" and f.caused_by):
            return  # what a gap follows from names the copy where it is wrong, not from record to record
        for name in self.stretches if f.ambiguous else {f.replica} & self.stretches.keys():
            self._note(f, name)
        for name, (begin, until) in () if f.ambiguous else alike.others(f):
            self._note(replace(f, phys_offset=begin, until=until), name)
            self._open.append((begin, until))  # that it is said by more copies proves nothing any more

    def _note(self, f: Finding, name: str) -> None:
        begin, end = (f.phys_offset, max(f.until, f.phys_offset + 1)) if f.phys_offset >= 0 else EVERYWHERE
        self.stretches[name].add((begin, end))
        if f.ambiguous and f.kind != "acked_missing":  # that is lost, whoever has it
            self._open.append((begin, end))
        if f.copies or f.kind not in _UNREADABLE:
            self.mendable.add(name)
        if f.kind in _OWN_WAY:
            self._own_way[name].append((begin, end))
        its_own = f.replica != "*" and not f.caused_by
        if its_own and f.kind not in _UNREADABLE and f.kind != "extra_tail":
            self.misleading.add(name)

    def is_named(self, r: Replica, begin: int, end: int) -> bool:
        return self._spans[r.name].first(begin, end) is not None

    def is_right(self, r: Replica, begin: int, end: int) -> bool:
        """Does it hold all of [``begin``, ``end``), as a copy of its own, with no finding that names it?"""
        held = not r.empty and r.covers(begin, end) and r.name not in self.linked
        return held and not self.is_named(r, begin, end)

    def is_open(self, begin: int, end: int) -> bool:
        """Are there copies that differ, and nothing tells which is right?"""
        return self._are_open.first(begin, end) is not None

    def unnamed(self, r: Replica, begin: int, end: int) -> list[Interval]:
        """What it holds of a stretch, as a copy of its own, with no finding that names it."""
        held = max(begin, r.start), min(end, r.end)
        if r.name in self.linked or held[0] >= held[1]:
            return []
        wrong = self._wrong[r.name]
        first = max(0, bisect_right(wrong, begin, key=lambda span: span[0]) - 1)
        return without(held, wrong[first : bisect_right(wrong, end, key=lambda span: span[0])])

    def own_way(self, r: Replica) -> Sequence[Interval]:
        """Where it has what no other has."""
        return self._own_way[r.name]

    def goes_its_own_way(self, r: Replica, begin: int, end: int) -> bool:
        return any(a < end and begin < b for a, b in self._own_way[r.name])


def _is_beside(f: Finding) -> bool:
    """Is it about a file beside the log?"""
    return f.kind == "file_unreadable" and f.phys_offset < 0
