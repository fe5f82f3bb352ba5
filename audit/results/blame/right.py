"""Which replicas are right where? Every advice asks this before it reads from a copy, writes over one, or
gives one up.

A copy is right in a stretch that it holds and in which no finding names it (``audit.results.blame.named``).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from audit.findings import INFO, Finding
from audit.kinds.logs.borders import around_of
from audit.reading.derived.queue_files import look
from audit.reading.layout import Replica, record_at
from audit.reading.records.record import RECORD_BYTES_MIN
from audit.reading.small.beside import EPOCHS
from audit.results.blame.named import EVERYWHERE, Named
from audit.results.steps.stretches import common_end
from audit.rows.intervals import Interval, in_both

_OF_EPOCHS: Final = frozenset({"epoch_mismatch", "epoch_file_corrupt"})
PARTS_MAX: Final = 50
"""Of one stretch that are looked at, of one copy."""
_ALIKE_BYTES_MIN: Final = RECORD_BYTES_MIN
_NEIGHBOUR_BYTES: Final = 256
"""``keelmq store repair`` takes bytes for a damaged stretch only if so much beside it is as here."""


class Right:
    """Of one report."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._named = Named(findings, replicas)
        self._linked = self._named.linked
        self._unreadable = _named_by(findings, {"file_unreadable"})
        self._short = _named_by(filter(_is_fault, findings), {"short_tail"})
        self._plain = {r.name for r in replicas if _is_plain(r)}
        self._epochs_are_open = any(f.kind == "epoch_mismatch" and f.ambiguous for f in findings)
        self._other_epochs = _of_other_epochs(findings, replicas)
        self._wrong_epochs = _named_by((f for f in findings if not f.ambiguous), _OF_EPOCHS)
        self._sources: dict[str, list[Replica]] = {}
        self._left_out = ""
        self._has_queues: dict[str, bool] = {}

    def is_plain(self, *replicas: Replica) -> bool:
        """Can a command read them?"""
        return all(r.name in self._plain for r in replicas)

    def has_queue_files(self, r: Replica) -> bool:
        """What nobody can read may be there."""
        if r.name not in self._has_queues:
            try:
                folder = look(r.location) if self.is_plain(r) else None
            except OSError:
                folder = None
            self._has_queues[r.name] = folder is None or bool(folder.files)
        return self._has_queues[r.name]

    def leave_out(self, r: Replica) -> None:
        """It is made anew: nobody knows what it will hold."""
        self._left_out = r.name
        self._sources.clear()

    def is_named(self, r: Replica, begin: int, end: int) -> bool:
        return self._named.is_named(r, begin, end)

    def is_right(self, r: Replica, begin: int, end: int) -> bool:
        """Does it hold all of [``begin``, ``end``), as a copy of its own, with no finding that names it?"""
        return self._named.is_right(r, begin, end)

    def holders(self, own: Replica, begin: int, end: int) -> list[Replica]:
        """Whose bytes ``own`` may take there: those of the others that are right, and of which its epoch file
        tells that they have the same. First those from which a command can read, then those whose epoch files
        are right."""
        able = (r for r in self._others(own) if self.is_right(r, begin, end))
        able = (r for r in able if self._is_of_one_log(own, r, begin, end))
        return self._best_first(able)

    def _best_first(self, able: Iterable[Replica]) -> list[Replica]:
        return sorted(able, key=lambda r: (r.name not in self._plain, r.name in self._other_epochs))

    def partly(
        self, own: Replica, begin: int, end: int, *, sure: bool
    ) -> list[tuple[Replica, list[Interval]]]:
        """As ``holders``, of parts of a stretch of one file: those that are right in some, and in which, as
        whole records. Not ``sure``: that epochs tell nothing else does not do."""
        if own.name in self._linked or self._named.goes_its_own_way(own, begin, end):
            return []
        found = []
        for r in self._best_first(self._others(own)):
            told = sure or (own.epochs and r.epochs) or self._goes_on_alike(own, r, end)
            spans = self._right_in(r, begin, end) if told else []
            if spans := [span for span in spans if self._is_of_one_log(own, r, *span)]:
                found.append((r, spans))
        return found

    def is_held(self, own: Replica, begin: int, end: int) -> bool:
        """Is another one right in some of it, though nothing may be taken from that one now?"""
        return any(self._right_in(r, begin, end) for r in self._replicas if r is not own)

    def is_alone(self, own: Replica) -> bool:
        """Is nobody else right where it is not, nor may be?"""
        spans = self._named.stretches[own.name]
        others = [r for r in self._replicas if r is not own and not r.empty]
        held = (self._named.unnamed(r, *span) for r in others for span in spans)
        return len(spans) <= PARTS_MAX and not any(held) and not any(self.is_open(*span) for span in spans)

    def is_contradicted(self, f: Finding) -> bool:
        """Is it about a record and an entry of one store that contradict each other?"""
        row = f.replica, f.phys_offset, f.until
        return f.kind.startswith("cq_") and row in self._named.contradicted

    def contradicts_entry(self, own: Replica) -> bool:
        """Has it a record that an entry of its own contradicts?"""
        told = {name for name, *_ in self._named.contradicted}
        return own.name in told or any(name == own.name for name, _ in self._named.outvoted.wrong)

    def is_outvoted(self, f: Finding) -> bool:
        """Is it of a record that others outnumber whose own entries speak for it?"""
        return f.kind == "bytes_differ" and any(f.overlaps(*span) for span in self._named.outvoted.spans)

    def is_open(self, begin: int, end: int) -> bool:
        """Are there copies that differ, and nothing tells which is right?"""
        return self._named.is_open(begin, end)

    def _right_in(self, r: Replica, begin: int, end: int) -> list[Interval]:
        """In which whole records of a stretch is it right? The first parts. Of what cannot be read nobody
        knows."""
        if r.empty:
            return []
        spans = self._named.unnamed(r, begin, end)[:PARTS_MAX]
        try:
            whole = [(_border_behind(r, a), b if b == end else border_before(r, b)) for a, b in spans]
        except OSError:
            return []
        return [span for span in whole if span[0] < span[1]]

    def _is_of_one_log(self, own: Replica, r: Replica, begin: int, end: int) -> bool:
        """Have both the same there, for all that epoch files tell? Where the own one tells nothing, what is
        alike behind proves it: a log is written on, and cut, at its end alone."""
        if own.epoch_problem:
            return bool(r.epochs) and self._goes_on_alike(own, r, end)
        return _of_one_epoch(own, r, begin, end)

    def _goes_on_alike(self, own: Replica, r: Replica, end: int) -> bool:
        """Have both a record behind a stretch, in which no finding names any?"""
        reach = min(own.end, r.end)
        if end >= reach:
            return False
        alike = in_both(self._named.unnamed(own, end, reach), self._named.unnamed(r, end, reach))
        return any(b - a >= _ALIKE_BYTES_MIN for a, b in alike)

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
        if r.name in self._named.misleading | self._linked or r.epoch_problem or not is_repairable(r):
            return False
        if r.name not in self._plain:
            return False
        # Where both have one epoch, a repair puts others' records in the place of what only this one has.
        alone = any(own.entry_at(begin) == r.entry_at(begin) for begin, _ in self._named.own_way(own))
        spans = self._named.stretches[own.name]
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
        if short or self._named.goes_its_own_way(own, *around):
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
        if begin // size != (end - 1) // size or self._named.goes_its_own_way(own, begin, end):
            return []
        return self.holders(own, begin, end) if own.name not in self._linked else []

    def leader(self, own: Replica) -> Replica | None:
        """One that is right in all that ``own`` holds, so that nothing goes with it, whose epoch file, which
        is copied with it, no finding names, whom the whole group may follow, and which can start, and is
        right, by all that it holds itself. None while another is readable and wrong: a store that copies it
        would be one voice more for that."""
        able = self.able_to_lead(own)
        whole = (r for r in able if self._is_whole(r, of_all=True))
        return next(whole, None) or next((r for r in able if self._is_whole(r, of_all=False)), None)

    def misleads(self, own: Replica) -> bool:
        """Is another readable and wrong?"""
        return bool(self._named.misleading - {own.name})

    def able_to_lead(self, own: Replica) -> list[Replica]:
        """As ``leader``, whether or not one is right in what it holds itself; the most advanced first."""
        own_way = self._named.goes_its_own_way(own, *EVERYWHERE)
        if self.misleads(own) or own.name in self._linked or own_way:
            return []
        held = list(_held(own, max(r.end for r in self._replicas)))
        others = [r for r in self._replicas if r is not own and self._epochs_are_right(own, r)]
        able = [r for r in others if held and all(self.is_right(r, *span) for span in held)]
        return [r for r in self._advanced(able) if not self._is_behind(r, own)]

    def _is_whole(self, r: Replica, *, of_all: bool) -> bool:
        """Can its broker start, and is it right in its whole log? Not ``of_all``: but for what no copy has,
        which is in the place of nothing right."""
        starts = is_repairable(r) and not r.gaps and not r.epoch_problem and r.name not in self._unreadable
        right = not self.is_named(r, r.start, r.end)
        return starts and (right or (not of_all and r.name not in self._named.mendable))

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


def border_before(r: Replica, offset: int) -> int:
    """The place, or where the record of the log begins that reaches over it. Raises OSError."""
    around = around_of(r, offset) if offset < r.end else None
    return offset if around is None else around.start


def _border_behind(r: Replica, offset: int) -> int:
    """The place, or where the record of the log ends that reaches over it. Raises OSError."""
    around = around_of(r, offset)
    if around is None:
        return offset
    if around.filler:
        return offset // r.segment_bytes * r.segment_bytes + r.segment_bytes
    return around.start + len(record_at(r, around.start))


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
