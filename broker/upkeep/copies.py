"""Which messages of a queue are copies of such that were delivered at their time, and from where on may it
hold them?

A copy is stored when its message is due, so a search by store time finds where to begin, and passes over all
that came in between. That holds only where store times do not go back: a master whose clock was ahead by more
than ``CLOCK_BACK_MAX_MS`` leaves times that its successor's copies are behind, and one whose clock goes back
by so much stores copies that are older than their messages. The first record of each epoch since tells of
that, the last one of the queue before it, the last ``LAST_MAX`` of the queue, among which copies are that
nobody was told of, and some of those before. Then the search is by place: a copy lies behind its message.

Looking at each record since would take longer than an election, where a queue holds those of hours. So a
clock that goes ahead or back by more than that, and is set right again while one master leads, may not be
seen where more messages than those came to one queue since.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from broker.requests.moving import destination_of, records_of
from model.ids import PhysicalOffset
from model.message import DELAYED_AS, SCHEDULE_TOPIC, TIMER_TOPIC, property_of
from store.files.record import Record
from store.flow.reading import GetStatus
from store.message_store import MessageStore

INT64_DIGITS: Final = 20
LAST_MAX: Final = 256
SPREAD_MAX: Final = 64


def copies_begin(
    store: MessageStore,
    queue: tuple[str, int],
    source: PhysicalOffset,
    due_ms: int,
    log_end: PhysicalOffset,
) -> int:
    """The queue offset from which on ``queue`` may hold a copy of the message at ``source``, or of one behind
    it, that a former master delivered; ``due_ms``: when the first of them was due; ``log_end``: where the log
    ended when this one took over. What this one stored behind that says nothing of it."""
    held = _between(store, queue, source, log_end)
    if clock_went_back(store, queue, source, log_end):
        return held.start
    return held.start + bisect_left(held, due_ms, key=lambda at: store.queue_store_time(*queue, at) or 0)


def _between(
    store: MessageStore, queue: tuple[str, int], source: PhysicalOffset, log_end: PhysicalOffset
) -> range:
    """The messages of ``queue`` behind ``source`` that a former master stored."""
    behind = store.reader.offset_behind
    return range(behind(*queue, source), behind(*queue, PhysicalOffset(log_end - 1)))


def clock_went_back(
    store: MessageStore, queue: tuple[str, int], source: PhysicalOffset, log_end: PhysicalOffset
) -> bool:
    """Whether store times went back since the record at ``source``, as far as the epochs, messages of the
    queue behind it, and our clock tell."""
    reader, held = store.reader, _between(store, queue, source, log_end)
    begins = [entry.start for entry in store.epochs.entries if source < entry.start < log_end]
    offsets = {*held[-LAST_MAX:], *held[:: len(held) // SPREAD_MAX + 1]}
    offsets |= {reader.offset_behind(*queue, PhysicalOffset(begin - 1)) - 1 for begin in begins}
    places = {place for at in offsets if at in held and (place := store.place_of(*queue, at)) is not None}
    newest_ms = reader.store_time(source) or 0
    for place in sorted({*places, *begins}):
        stored_ms = reader.store_time(place)
        if stored_ms is not None and stored_ms < newest_ms:
            return True
        newest_ms = max(newest_ms, stored_ms or 0)
    begun_ms = reader.store_time(log_end)
    return (store.stamp_ms() if begun_ms is None else begun_ms) < newest_ms  # None: nothing was stored yet


def is_copy(store: MessageStore, record: Record) -> bool:
    """Whether a message waited for its time to come where it is. Of one whose source is in the log no more
    that cannot be told: False."""
    kind, _, at = (property_of(record.properties, DELAYED_AS) or "").partition(":")
    if not (at.isascii() and at.isdigit() and len(at) < INT64_DIGITS):
        return False
    if kind == "timer":
        queue = (TIMER_TOPIC, 0)
    elif kind.isascii() and kind.isdigit() and len(kind) < INT64_DIGITS:
        queue = (SCHEDULE_TOPIC, int(kind) - 1)
    else:
        return False
    got = store.get(*queue, int(at), 1, 1, None)
    # A message that was popped and comes back by a retry topic has its mark still, and was for another topic.
    wanted = (record.topic, record.queue_id)
    return got.status is GetStatus.FOUND and destination_of(next(records_of(got.chunks))) == wanted
