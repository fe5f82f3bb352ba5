"""Files that are missing, unreadable or of a wrong size.

``file_unreadable``, ``missing_segment``, ``unreadable_region``, ``cq_missing``, ``same_file``,
``files_unseen``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Final

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import Sound
from audit.reading.aside import OTHERS_MAX
from audit.reading.layout import Replica, is_segment_name
from audit.reading.strays import OTHERS_BYTES_MAX
from audit.rows.intervals import Interval

_UNSEEN: Final = "more, or what cannot be read"
BEHIND: Final = "behind the segment's end"
"""What a file has that is too long."""


def is_behind(f: Finding) -> bool:
    """Is it what stands behind a segment in its file?"""
    return f.kind == "unreadable_region" and f.found.endswith(BEHIND)


def files(facts: Facts, sound: Sound) -> list[Finding]:
    """Files that are missing between others, or shorter than the others."""

    def copies_of(at: int, begin: int, end: int) -> int:
        return facts.votes(sound(facts.copies(at, begin, end), begin, end), begin)

    found = []
    for at, r in enumerate(facts.replicas):
        apart = _of_another_size(r)
        if not r.queues and not r.empty:
            found.append(
                facts.at(
                    "cq_missing", WARN, at, r.start, r.end, expected="consumequeue", found="no such folder"
                )
            )
        for unread, why in r.unread:
            begin, end = unread.base, r.segment_end(unread)
            copies = copies_of(at, begin, _reached(facts, at, begin, end))
            found.append(facts.at("file_unreadable", ERROR, at, begin, end, found=why, copies=copies))
        for file, why in sorted(r.closed.items()):
            found.append(Finding("file_unreadable", ERROR, r.name, file, found=why))
        for begin, end in (piece for hole in r.holes for piece in _held_alike(facts, at, *hole)):
            copies = copies_of(at, begin, end)
            found.append(facts.at("missing_segment", ERROR, at, begin, end, found=apart, copies=copies))
        found += _sizes(facts, at, copies_of)
        found += _strays(r)
    return found + _shared(facts)


def _strays(r: Replica) -> Iterator[Finding]:
    for stray, home in r.stray:
        if is_segment_name(stray.name) and stray.base % max(1, r.segment_bytes):
            expected = f"a segment, which begins at a multiple of {r.segment_bytes}"
            words = f"{stray.size_bytes} bytes from {stray.base} on"
        else:
            expected = "a name that is the place of its first byte"
            words = "records of other places" if home is None else f"records of {home[0]:020d}"
        yield Finding("file_corrupt", WARN, r.name, stray.file, expected=expected, found=words)
    if r.unseen:
        most = f"at most {OTHERS_MAX} files of other names, and {OTHERS_BYTES_MAX >> 30} GiB to read of them"
        yield Finding("files_unseen", WARN, r.name, "commitlog", expected=most, found=_UNSEEN)


def _held_alike(facts: Facts, at: int, begin: int, end: int) -> Iterator[Interval]:
    """Segments in a row that a log lacks, cut where fewer or more others hold them: what nobody has says
    nothing of the rest."""
    size = facts.replicas[at].segment_bytes
    edges = {edge // size * size for r in facts.replicas for edge in (r.start, r.end)}
    pieces = list(pairwise(sorted({begin, end, *(edge for edge in edges if begin < edge < end)})))
    for _, alike in groupby(pieces, key=lambda piece: facts.copies(at, *piece)):
        row = list(alike)
        yield row[0][0], row[-1][1]


def _reached(facts: Facts, at: int, begin: int, end: int) -> int:
    """How much of a file, which may be a log's last one, any other copy of that log holds."""
    others = facts.copies(at, begin, begin + 1)
    return min(end, max((facts.replicas[b].end for b in others), default=end))


def _sizes(facts: Facts, at: int, copies_of: Callable[[int, int, int], int]) -> list[Finding]:
    """Files that are longer than the others, or shorter and not the last."""
    r = facts.replicas[at]
    apart, whole = _of_another_size(r), f"{r.segment_bytes} bytes"
    found = []
    for segment in r.segments:
        begin, end = segment.base + segment.size_bytes, r.segment_end(segment)
        told = {"expected": whole, "found": apart or f"{segment.size_bytes} bytes"}
        if begin > end:
            copies = copies_of(at, segment.base, min(end, max(r.end, segment.base + 1)))
            told["found"] = apart or f"{segment.size_bytes} bytes: {begin - end} {BEHIND}"
            f = facts.at("unreadable_region", ERROR, at, end, end, copies=copies, **told)
            found.append(replace(f, segment=segment.name))
        elif begin < end < r.end:
            for a, b in facts.pieces(at, begin, end):
                copies = copies_of(at, a, b)
                found.append(facts.at("unreadable_region", ERROR, at, a, b, copies=copies, **told))
    return found


def _of_another_size(r: Replica) -> str:
    """In words, where a store's files are all of one size, which is not that of the most."""
    sizes = {segment.size_bytes for segment in r.segments}
    if len(r.segments) < 2 or len(sizes) > 1 or r.segment_bytes in sizes:
        return ""
    return f"segment sizes differ: {sizes.pop()} bytes here, {r.segment_bytes} elsewhere"


def _shared(facts: Facts) -> list[Finding]:
    """Segments of two replicas that are one file by two names, as a hard link or a link makes them: what is
    compared with itself is equal, and its copies are one."""
    shared: dict[tuple[int, int], list[str]] = {}
    for (at, file), owner in facts.owners.items():
        if owner != at:
            shared.setdefault((at, owner), []).append(file)
    return [
        Finding(
            "same_file",
            WARN,
            facts.replicas[at].name,
            names[0],
            expected="segments of its own",
            found=f"{len(names)} that are also those of {facts.replicas[owner].name}",
        )
        for (at, owner), names in shared.items()
    ]
