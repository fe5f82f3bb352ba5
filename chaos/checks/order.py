"""Do offsets tell the order in which things happened, and does each belong to one message for ever?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from chaos.checks.messages import Begins, by_source
from chaos.checks.violation import Violation
from chaos.history import Read, Send
from client.message import Queue


def _later_but_lower(sends: Sequence[Send]) -> Iterator[tuple[Send, Send]]:
    """Acknowledged sends of one queue: pairs where the second began after the first ended, yet lies lower."""
    acked = [send for send in sends if send.outcome == "ok" and send.ended_ms is not None]
    ended = sorted(acked, key=lambda send: (send.ended_ms or 0.0, send.queue_offset))
    highest: Send | None = None
    at = 0
    for send in sorted(acked, key=lambda send: (send.invoked_ms, send.number)):
        while at < len(ended) and (ended[at].ended_ms or 0.0) < send.invoked_ms:
            if highest is None or ended[at].queue_offset > highest.queue_offset:
                highest = ended[at]
            at += 1
        if highest is not None and highest.queue_offset >= send.queue_offset:
            yield highest, send


def _by_queue(sends: Sequence[Send]) -> dict[Queue, list[Send]]:
    found: dict[Queue, list[Send]] = defaultdict(list)
    for send in sends:
        found[send.queue].append(send)
    return dict(found)


def producer_order(sends: Sequence[Send]) -> Iterator[Violation]:
    """One producer's messages lie in a queue in the order it sent them."""
    for queue, of_queue in _by_queue(sends).items():
        by_process: dict[str, list[Send]] = defaultdict(list)
        for send in of_queue:
            by_process[send.process].append(send)
        for process, own in by_process.items():
            # A sequential producer may begin its next send in the millisecond the last one ended.
            for earlier, later in _later_but_lower(own):
                yield Violation(
                    "producer_order",
                    f"{process} sent {earlier.key} before {later.key}, but they lie at {queue} "
                    f"{earlier.queue_offset} and {later.queue_offset}",
                )


def real_time_order(sends: Sequence[Send]) -> Iterator[Violation]:
    """A send that begins after another's acknowledgement gets a higher offset in the same queue."""
    for queue, of_queue in _by_queue(sends).items():
        for earlier, later in _later_but_lower(of_queue):
            if earlier.process != later.process:
                yield Violation(
                    "real_time_order",
                    f"{earlier.key} was acknowledged at {queue} {earlier.queue_offset} before {later.key} "
                    f"was sent, which got {later.queue_offset}",
                )


def offset_reuse(sends: Sequence[Send], reads: Sequence[Read]) -> Iterator[Violation]:
    """One offset of a queue belongs to one message for ever, whoever tells of it."""
    owners: dict[tuple[Queue, int], tuple[str, str]] = {}
    claims = [
        ((send.queue, send.queue_offset), send.key, f"acknowledged by {send.address or '?'}")
        for send in sends
        if send.outcome == "ok"
    ]
    claims += [((read.queue, read.queue_offset), read.key, f"read in {read.source}") for read in reads]
    told: set[tuple[Queue, int, str]] = set()
    for place, key, how in claims:
        owner, how_owner = owners.setdefault(place, (key, how))
        if owner != key and (*place, key) not in told:
            told.add((*place, key))
            yield Violation(
                "offset_reuse", f"{place[0]} {place[1]} is {owner} ({how_owner}) and {key} ({how})"
            )


def acknowledged_twice(sends: Sequence[Send]) -> Iterator[Violation]:
    """No two messages were acknowledged at one offset of a queue: the two producers would both be told theirs
    is there."""
    owners: dict[tuple[Queue, int], Send] = {}
    for send in sends:
        if send.outcome != "ok":
            continue
        owner = owners.setdefault((send.queue, send.queue_offset), send)
        if owner.key != send.key:
            yield Violation(
                "acknowledged_twice",
                f"{send.queue} {send.queue_offset} was acknowledged as {owner.key} by {owner.address or '?'} "
                f"and as {send.key} by {send.address or '?'}",
            )


def dense_offsets(final: Sequence[Read], begins: Begins | None = None) -> Iterator[Violation]:
    """Each queue is read back from its begin, without a hole, and in order."""
    for source, reads in by_source(final).items():
        last: dict[Queue, int] = {}
        for read in reads:
            begin = (begins or {}).get((source, read.queue), 0)
            before = last.get(read.queue, begin - 1)
            if read.queue_offset != before + 1:
                yield Violation(
                    "dense_offsets", f"{source}: {read.queue} goes from {before} to {read.queue_offset}"
                )
            last[read.queue] = read.queue_offset
