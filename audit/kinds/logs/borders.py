"""Offsets that a store's small files name, and that its own log contradicts.

``epoch_mismatch``, ``short_tail``, ``file_corrupt``. An epoch begins where a record does, and not behind the
log's end; so do what is settled and what is indexed end. No other replica has to tell. A confirmOffset may
stand inside a record, as a slave acknowledges bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from audit.compare import Cursor, covering_start
from audit.findings import ERROR, WARN, Finding, spans_of
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import DAMAGE
from audit.reading.layout import CHECKPOINT, Replica, segment_reader
from audit.reading.small.beside import EPOCHS, Beside
from audit.reading.storage import open_storage

_EXPLAINS: Final = DAMAGE | {"bytes_differ", "divergent_suffix"}


class Around(NamedTuple):
    """What stands around an offset that is no border of a record: from ``start`` on."""

    start: int
    filler: bool  # behind a segment's last record

    def __str__(self) -> str:
        return f"inside {'the filler' if self.filler else 'the record'} that begins at {self.start}"


def borders(facts: Facts, looked: Mapping[int, Beside], roots: Sequence[Finding]) -> list[Finding]:
    """``roots``: a replica whose log is wrong at such a place has its row."""
    wrong = spans_of(f for f in roots if f.kind in _EXPLAINS and not f.counted)
    told = {(f.kind, f.replica) for f in roots}
    found: list[Finding] = []
    for at, own in sorted(looked.items()):
        r = facts.replicas[at]
        rows = [*_epochs(facts, at), *_settled(facts, at, own)] if not r.empty else []
        for f in rows:
            explained = r.name in wrong and wrong[r.name].first(f.phys_offset, f.until) is not None
            if not explained and (f.kind, f.replica) not in told:
                found.append(f)
    return [replace(f, phys_offset=-1, until=-1) if f.segment == CHECKPOINT else f for f in found]


def _epochs(facts: Facts, at: int) -> Iterator[Finding]:
    """The first epoch that cannot begin where the epoch file says."""
    r = facts.replicas[at]
    if r.epoch_problem or r.left_over is not None:
        return
    told = contradicted(r)
    if told is not None and told.around is not None:
        span = told.around.start, told.start + 1
        yield _epoch(facts, at, told.epoch, span, f"{told.start} is {told.around}")
    elif told is not None and _is_reached(facts, at, told):  # it is the log that is wrong, not the file
        words = f"epoch {told.epoch}, which begins at {told.start} by {EPOCHS}"
        copies = facts.votes(facts.copies(at, r.end, told.start), r.end)
        yield facts.at(
            "short_tail", ERROR, at, r.end, told.start, expected=words, found=f"end {r.end}", copies=copies
        )
    elif told is not None:
        yield _epoch(facts, at, told.epoch, (r.end, told.start), f"the log ends at {r.end}")


def _is_reached(facts: Facts, at: int, told: Contradicted) -> bool:
    """Does another file tell the same, whose log goes on to there?"""
    others = (r for b, r in enumerate(facts.replicas) if b != at)
    return any((told.epoch, told.start) in r.epochs and r.end >= told.start for r in others)


class Contradicted(NamedTuple):
    epoch: int
    start: int
    around: Around | None  # what stands there; None: it is behind the log's end


def contradicted(r: Replica) -> Contradicted | None:
    """The first epoch of a file that cannot begin where it says, by its own log. One is written down before
    its first record: of a log that may still move, only what was confirmed is asked for. Raises OSError."""
    for epoch, start in r.epochs:
        if start > r.end and r.clean:
            return Contradicted(epoch, start, None)
        if r.start < start < (r.end if r.clean else min(r.end, r.confirmed)):
            around = around_of(r, start)
            if around is not None:
                return Contradicted(epoch, start, around)
    return None


def _epoch(facts: Facts, at: int, epoch: int, span: tuple[int, int], found: str) -> Finding:
    expected = f"epoch {epoch} begins where a record does, by {EPOCHS}"
    return facts.at("epoch_mismatch", ERROR, at, *span, expected=expected, found=found)


def _settled(facts: Facts, at: int, own: Beside) -> Iterator[Finding]:
    """What a stopped broker settled and indexed. Where another one ran since, its notes speak of what was."""
    r = facts.replicas[at]
    if not r.clean or own.written_by_others or r.left_over is not None:
        return
    for name, offset in (("settled", own.settled), ("indexed", own.indexed)):
        words = f"a record's border at {offset}, up to which the log was {name} by {CHECKPOINT}"
        if offset > r.end:
            found, copies = f"end {r.end}", facts.votes(facts.copies(at, r.end, offset), r.end)
            yield facts.at("short_tail", WARN, at, r.end, offset, expected=words, found=found, copies=copies)
            return
        around = around_of(r, offset) if r.start < offset < r.end else None
        if around is None:
            continue
        span = (around.start, offset)
        if around.filler:  # a segment's end was put over records
            copies = facts.votes(facts.copies(at, *span), span[0])
            yield facts.at("short_tail", ERROR, at, *span, expected=words, found=str(around), copies=copies)
        else:
            f = facts.at("file_corrupt", WARN, at, *span, expected=words, found=str(around))
            yield replace(f, segment=CHECKPOINT)
        return


def around_of(r: Replica, offset: int) -> Around | None:
    """None: a record begins there, or what stands there cannot be read. Raises OSError."""
    segment = r.segment_at(offset)
    if segment is None or offset == segment.base:
        return None
    storage = open_storage(r.location)
    try:
        read, end = segment_reader(storage, segment), r.segment_end(segment)
        start = covering_start(read, offset, segment.base, end)
        parsed = Cursor(read, end, end).parse(start)
    finally:
        storage.close()
    if start == offset or start + parsed.size <= offset:
        return None
    if parsed.problem == "blank":
        return Around(start, filler=True)
    return Around(start, filler=False) if parsed.record is not None and parsed.damage is None else None
