"""Which replicas are right where? Every advice asks this before it reads from a copy, writes over one, or
gives one up.

A copy is right in a stretch that it holds and in which no finding names it. Where nothing tells which copy is
right, all are named. What all replicas have alike (``*``) names none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from audit.findings import INFO, WARN, Finding, Spans
from audit.intervals import Interval
from audit.kinds.borders import around_of
from audit.reading.beside import EPOCHS
from audit.reading.layout import Replica
from audit.results.stretches import common_end

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
_OF_EPOCHS: Final = frozenset({"epoch_mismatch", "epoch_file_corrupt"})
_EVERYWHERE: Final = (0, 1 << 62)
_NEIGHBOUR_BYTES: Final = 256
"""``keelmq store repair`` takes bytes for a damaged stretch only if so much beside it is as here."""


class Right:
    """Of one report."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._stretches: dict[str, set[Interval]] = {r.name: set() for r in replicas}
        self._own_way: dict[str, list[Interval]] = {r.name: [] for r in replicas}
        self._misleading: set[str] = set()
        self._short = _named_by(filter(_is_fault, findings), {"short_tail"})
        self._linked = _named_by(findings, {"same_file"})
        self._plain = {r.name for r in replicas if _is_plain(r)}
        self._epochs_are_open = any(f.kind == "epoch_mismatch" and f.ambiguous for f in findings)
        self._other_epochs = _of_other_epochs(findings, replicas)
        self._wrong_epochs = _named_by((f for f in findings if not f.ambiguous), _OF_EPOCHS)
        for f in findings:
            self._note_of_log(f)
        self._named = {name: Spans((*span, True) for span in told) for name, told in self._stretches.items()}
        self._sources: dict[str, list[Replica]] = {}
        self._left_out = ""

    def is_plain(self, *replicas: Replica) -> bool:
        """Can a command read them?"""
        return all(r.name in self._plain for r in replicas)

    def leave_out(self, r: Replica) -> None:
        """It is made anew: nobody knows what it will hold."""
        self._left_out = r.name
        self._sources.clear()

    def _note_of_log(self, f: Finding) -> None:
        borne = f.kind in _BORNE and f.severity == WARN and not f.ambiguous
        if borne or f.kind not in _OF_THE_LOG or _is_beside(f) or (f.kind == "queue_gap" and f.caused_by):
            return  # what a gap follows from names the copy where it is wrong, not from record to record
        for name in self._stretches if f.ambiguous else {f.replica} & self._stretches.keys():
            self._note(f, name)

    def _note(self, f: Finding, name: str) -> None:
        begin, end = (f.phys_offset, max(f.until, f.phys_offset + 1)) if f.phys_offset >= 0 else _EVERYWHERE
        self._stretches[name].add((begin, end))
        if f.kind in _OWN_WAY:
            self._own_way[name].append((begin, end))
        its_own = f.replica != "*" and not f.caused_by
        if its_own and f.kind not in _UNREADABLE and f.kind != "extra_tail":
            self._misleading.add(name)

    def is_named(self, r: Replica, begin: int, end: int) -> bool:
        return self._named[r.name].first(begin, end) is not None

    def is_right(self, r: Replica, begin: int, end: int) -> bool:
        """Does it hold all of [``begin``, ``end``), as a copy of its own, with no finding that names it?"""
        held = not r.empty and r.covers(begin, end) and r.name not in self._linked
        return held and not self.is_named(r, begin, end)

    def holders(self, own: Replica, begin: int, end: int) -> list[Replica]:
        """Whose bytes ``own`` may take there: those of the others that are right, and of which its epoch file
        tells that they have the same. First those from which a command can read, then those whose epoch files
        are right."""
        able = (r for r in self._others(own) if self.is_right(r, begin, end))
        able = (r for r in able if _of_one_epoch(own, r, begin, end))
        return sorted(able, key=lambda r: (r.name not in self._plain, r.name in self._other_epochs))

    def leaders(self, own: Replica, begin: int, end: int) -> list[Replica]:
        """The others that are right there: first those that a group may follow in its epochs, then the most
        advanced."""
        return self._advanced([r for r in self._others(own) if self.is_right(r, begin, end)])

    def _advanced(self, able: list[Replica]) -> list[Replica]:
        return sorted(able, key=lambda r: (r.name in self._other_epochs, -_last_epoch(r), -r.end))

    def _others(self, own: Replica) -> list[Replica]:
        return [r for r in self._replicas if r is not own and r.name != self._left_out]

    def sources(self, own: Replica) -> list[Replica]:
        """Of whose bytes a repair may take some for ``own``. It asks all that it is given what most of them
        have: none may be named where ``own`` is, or readable and wrong anywhere; and it fails on a file that
        cannot be read, or is compressed."""
        if own.name not in self._sources:
            others = self._others(own)
            self._sources[own.name] = [r for r in others if not r.empty and self._is_source(own, r)]
        return self._sources[own.name]

    def compared(self, own: Replica) -> list[Replica]:
        """Those of ``sources`` with which a repair can compare all of ``own``: by epochs that both tell."""
        told = set() if own.epoch_problem else set(own.epochs)
        able = (r for r in self.sources(own) if told & set(r.epochs) or not (own.of_epochs or r.of_epochs))
        return list(able)

    def _is_source(self, own: Replica, r: Replica) -> bool:
        if r.name in self._misleading | self._linked or r.epoch_problem or not is_repairable(r):
            return False
        if r.name not in self._plain:
            return False
        # Where both have one epoch, a repair puts others' records in the place of what only this one has.
        alone = any(own.entry_at(begin) == r.entry_at(begin) for begin, _ in self._own_way[own.name])
        spans = self._stretches[own.name]
        return not alone and not any(
            self.is_named(r, *span) or not _of_one_epoch(own, r, *span) for span in spans
        )

    def mends(self, own: Replica, begin: int, end: int, *, sized: bool) -> bool:
        """Does a repair from ``sources`` find bytes for what is damaged there? They are whole records, and
        what stands beside them is there as here: not where this file is too short, or this log goes its own
        way or on without the other. ``sized``: records tell where it ends; else a repair looks for them
        behind it, and there are few before a log's end."""
        base = begin // own.segment_bytes * own.segment_bytes
        top = base + own.segment_bytes
        around = max(base, begin - _NEIGHBOUR_BYTES), min(top, end + _NEIGHBOUR_BYTES)
        short = any(a < top and base < b for a, b in own.gaps)
        if short or self._goes_its_own_way(own, *around):
            return False
        reach = max(end, min(around[1], own.end)) if sized else around[1]
        return any(
            r.covers(begin, reach)
            and not self.is_named(r, *around)
            and _is_border(r, begin)
            and _is_border(r, end)
            for r in self.sources(own)
        )

    def outvotes(self, own: Replica, begin: int, end: int) -> bool:
        """Are enough of ``sources`` right there to outnumber ``own``, whose bytes can be read? A repair
        counts those that confirmed the place in the same epoch."""
        if not _counts(own, own, begin, end):
            return False
        return sum(r.covers(begin, end) and _counts(own, r, begin, end) for r in self.sources(own)) > 1

    def span_source(self, own: Replica, begin: int, end: int) -> tuple[Replica, int] | None:
        """Whose bytes may be put in the place of those of ``own``, and up to where, so that nothing is left
        of half a record: of one that is right there. None where the stretch lies in two files, or ``own`` has
        there what no other has."""
        for source in self.span_sources(own, begin, end):
            try:
                until = common_end(own, source, end)
            except OSError:
                continue
            if until == end or source in self.span_sources(own, begin, min(until, source.end)):
                return source, until
        return None

    def span_sources(self, own: Replica, begin: int, end: int) -> list[Replica]:
        """Those that are right there, as ``span_source`` has it."""
        size = own.segment_bytes
        if begin // size != (end - 1) // size or self._goes_its_own_way(own, begin, end):
            return []
        return self.holders(own, begin, end) if own.name not in self._linked else []

    def leader(self, own: Replica) -> Replica | None:
        """One that is right in all that ``own`` holds, so that nothing goes with it, whose epoch file, which
        is copied with it, no finding names, and whom the whole group may follow. None while another is
        readable and wrong: a store that copies it would be one voice more for that."""
        misleading = self._misleading - {own.name}
        if misleading or own.name in self._linked or self._goes_its_own_way(own, *_EVERYWHERE):
            return None
        held = list(_held(own, max(r.end for r in self._replicas)))
        others = [r for r in self._replicas if r is not own and self._epochs_are_right(own, r)]
        able = [r for r in others if held and all(self.is_right(r, *span) for span in held)]
        best = next(iter(self._advanced(able)), None)
        return best if best is not None and not self._is_behind(best, own) else None

    def _is_behind(self, r: Replica, own: Replica) -> bool:
        """Who follows a log is cut to its end: has another one more that is right?"""
        longer = (other for other in self._others(own) if other.end > r.end)
        return r.name in self._short or any(self.is_right(other, r.end, other.end) for other in longer)

    def _epochs_are_right(self, own: Replica, r: Replica) -> bool:
        """Where nothing tells which epoch file is right, no other one may take the place of the own. Nor that
        of an older history: of which epochs the group is also files tell whose logs cannot be read."""
        if r.name in self._other_epochs or (self._epochs_are_open and r.epochs != own.epochs):
            return False
        if _last_epoch(r) < max(map(_last_epoch, self._replicas)):
            return False
        held = own.epochs[own.epochs.index(first) :] if (first := own.entry_at(own.start)) else own.epochs
        return own.name in self._wrong_epochs or set(held) <= set(r.epochs)

    def _goes_its_own_way(self, r: Replica, begin: int, end: int) -> bool:
        return any(a < end and begin < b for a, b in self._own_way[r.name])


def _is_plain(r: Replica) -> bool:
    """Is it a folder of this machine, and no segment compressed? Others no command can read."""
    if "://" in r.location or not os.path.isdir(r.location):
        return False
    return all(os.path.isfile(os.path.join(r.location, s.file)) for s in r.segments)


def is_repairable(r: Replica) -> bool:
    """A repair reads all files of the log and those made of it."""
    return not r.unread and not r.closed


def _of_other_epochs(findings: Sequence[Finding], replicas: Sequence[Replica]) -> set[str]:
    """The replicas whose epoch files may not be the group's."""
    told = {f.replica for f in findings if f.kind in _OF_EPOCHS or f.segment.startswith(EPOCHS)}
    return told | {r.name for r in replicas if r.epoch_problem}


def _is_beside(f: Finding) -> bool:
    """Is it about a file beside the log?"""
    return f.kind == "file_unreadable" and f.phys_offset < 0


def _held(r: Replica, end_of_all: int) -> Iterator[Interval]:
    """What a replica's log has, what files of wrong names and misplaced records do, and what may be in those
    that cannot be read now, or that nobody looked at: up to where any log reaches, or it may have been
    confirmed."""
    yield from (*r.misnamed, *r.elsewhere)
    if r.unseen:
        yield 0, max(end_of_all, r.promised)
    at = r.start
    for begin, until in [*r.gaps, (r.end, r.end)]:
        if at < begin:
            yield at, begin
        at = until
    for segment, _ in r.unread:
        end = min(r.segment_end(segment), max(end_of_all, r.promised))
        if segment.base < end:
            yield segment.base, end


def _is_border(r: Replica, offset: int) -> bool:
    """Does no record of the log reach over a place? Of a log that cannot be read now nothing is taken."""
    try:
        return offset >= r.end or around_of(r, offset) is None
    except OSError:
        return False


def _counts(own: Replica, r: Replica, begin: int, end: int) -> bool:
    confirmed = not r.confirmed or end <= r.confirmed
    return confirmed and not r.epoch_problem and own.entry_at(begin) == r.entry_at(begin)


def _of_one_epoch(own: Replica, r: Replica, begin: int, end: int) -> bool:
    """Do two epoch files tell the same of a stretch, as far as both logs reach? What one of them tells alone
    may be another history, whatever was compared."""
    end = min(end, own.end, r.end)
    begun = ({entry for entry in of.epochs if begin < entry[1] < end} for of in (own, r))
    return end <= begin or (own.entry_at(begin) == r.entry_at(begin) and next(begun) == next(begun))


def _last_epoch(r: Replica) -> int:
    """The last one of its file; -1: that tells none."""
    return r.epochs[-1][0] if r.epochs else -1


def _is_fault(f: Finding) -> bool:
    return f.severity != INFO or bool(f.caused_by)


def _named_by(findings: Iterable[Finding], kinds: Collection[str]) -> set[str]:
    return {f.replica for f in findings if f.kind in kinds}
