"""Which messages of a queue are copies of such that were delivered at their time, and from where on may it
hold them?

A copy is stored when its message is due, so a search by store time finds where to begin, and passes over all
that came in between. That holds only where store times do not go back: a master whose clock was ahead by more
than ``CLOCK_BACK_MAX_MS`` leaves times that its successor's copies are behind. Clocks change with masters, so
the first record of each epoch since, and the last one of the queue before it, tell of that. Then the search
is by place: a copy lies behind its message in the log.

A clock that goes ahead and back by more than that while one master leads is not seen: looking at each record
since would take longer than an election, where a queue holds those of hours.
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
    """Whether store times went back since the record at ``source``, as far as the epochs, the messages of the
    queue before each, and our clock tell."""
    newest_ms = store.reader.store_time(source) or 0
    begins = [entry.start for entry in store.epochs.entries if source < entry.start < log_end]
    for begin in (*begins, log_end):
        begun_ms = store.reader.store_time(begin)
        if begun_ms is None and begin == log_end:
            begun_ms = store.stamp_ms()  # nothing was stored yet
        newest_ms = max(newest_ms, _last_ms(store, queue, begin))
        if begun_ms is not None and begun_ms < newest_ms:
            return True
        newest_ms = max(newest_ms, begun_ms or 0)
    return False


def _last_ms(store: MessageStore, queue: tuple[str, int], before: PhysicalOffset) -> int:
    """When the last message of a queue that lies before a place was stored; 0 when there is none."""
    last = store.reader.offset_behind(*queue, before - 1) - 1
    return (store.queue_store_time(*queue, last) or 0) if last >= store.min_queue_offset(*queue) else 0


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
