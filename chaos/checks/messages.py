"""Is every acknowledged message there, exactly once, and nothing that nobody sent?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from chaos.checks.violation import Violation
from chaos.history import Read, Send
from client.message import Queue

Begins = Mapping[tuple[str, Queue], int]
"""Where a queue of a source begins, when that is not 0: what lay before was deleted with its time."""

ANY: Final = "any final reading"
"""Stands for the sources of a run in which nothing was read, and nobody said what should have been."""


def by_source(reads: Iterable[Read], sources: Sequence[str] = ()) -> dict[str, list[Read]]:
    """Final reads of each source (a consumer, a replica's log), in their order; none of one of ``sources``
    that gave nothing."""
    found: dict[str, list[Read]] = defaultdict(list, {source: [] for source in sources})
    for read in reads:
        found[read.source].append(read)
    return dict(found)


def lost(sends: Sequence[Send], final: Sequence[Read], sources: Sequence[str] = ()) -> Iterator[Violation]:
    """Every acknowledged message is in every full reading, at the offset the answer named."""
    return (Violation("lost", text) for _, text in lacking(sends, final, sources))


def lacking(
    sends: Sequence[Send], final: Sequence[Read], sources: Sequence[str] = ()
) -> Iterator[tuple[Send, str]]:
    """Which acknowledged messages ``lost`` names, and how: once for each reading that lacks them."""
    for source, reads in (by_source(final, sources) or {ANY: []}).items():
        places: dict[str, list[Read]] = defaultdict(list)
        for read in reads:
            places[read.key].append(read)
        for send in sends:
            if send.outcome != "ok":
                continue
            where = f"{send.key} acknowledged by {send.address or '?'} at {send.queue} {send.queue_offset}"
            found = places.get(send.key)
            if not found:
                yield send, f"{where} is not in {source}"
            elif all((r.queue, r.queue_offset) != (send.queue, send.queue_offset) for r in found):
                at = ", ".join(f"{r.queue} {r.queue_offset}" for r in found)
                yield send, f"{where} is in {source} only at {at}"


def phantom(sends: Sequence[Send], reads: Sequence[Read]) -> Iterator[Violation]:
    """Whatever is read was sent, byte for byte, and not answered with a definite no."""
    known = {send.key: send for send in sends}
    told: set[tuple[str, str]] = set()
    for read in reads:
        send = known.get(read.key)
        if send is not None and send.outcome != "fail" and send.body_crc == read.body_crc:
            continue
        if (read.source, read.key) in told:
            continue
        told.add((read.source, read.key))
        where = f"{read.key} in {read.source} at {read.queue} {read.queue_offset}"
        if send is None:
            yield Violation("phantom", f"{where} was never sent")
        elif send.outcome == "fail":
            yield Violation("phantom", f"{where} was refused ({send.error})")
        else:
            yield Violation("phantom", f"{where} has other bytes than were sent")


def duplicates(sends: Sequence[Send], final: Sequence[Read]) -> Iterator[Violation]:
    """No message is stored more often than its attempts allow."""
    allowed = {
        send.key: send.unknown_attempts + 1 if send.outcome == "ok" else max(1, send.unknown_attempts)
        for send in sends
    }
    for source, reads in by_source(final).items():
        counts: dict[str, int] = defaultdict(int)
        for read in reads:
            counts[read.key] += 1
        for key, count in counts.items():
            if count > allowed.get(key, 1):
                yield Violation("duplicates", f"{key} is {count} times in {source}")


def read_then_gone(
    reads: Sequence[Read], final: Sequence[Read], sources: Sequence[str] = (), begins: Begins | None = None
) -> Iterator[Violation]:
    """What a consumer was given while the cluster ran stays from where its queue begins: it was confirmed."""
    given = _by_queue(read for read in reads if not read.final)
    for source, kept in (by_source(final, sources) or {ANY: []}).items():
        found = _by_queue(kept)
        for queue, of_queue in given.items():
            places = {read.queue_offset: read.key for read in found.get(queue, ())}
            start = (begins or {}).get((source, queue), 0)
            for read in of_queue:
                now = places.get(read.queue_offset)
                if now != read.key and read.queue_offset >= start:
                    yield Violation(
                        "read_then_gone",
                        f"{read.source} read {read.key} at {queue} {read.queue_offset}; "
                        f"{source} has {now or 'nothing'} there",
                    )


def _by_queue(reads: Iterable[Read]) -> dict[Queue, list[Read]]:
    found: dict[Queue, list[Read]] = defaultdict(list)
    for read in reads:
        found[read.queue].append(read)
    return found
