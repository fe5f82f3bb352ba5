"""Which messages of a queue are copies of such that were delivered at their time, and from where on may it
hold them?

A copy is stored when its message is due, so a search by store time finds where to begin, and passes over all
that came in between. That holds only where store times do not go back: a master whose clock was ahead by more
than ``CLOCK_BACK_MAX_MS`` leaves times that its successor's copies are behind. Clocks change with masters, so
the first record of each epoch since, and the newest one, tell of that. Then the search is by place: a copy
lies behind its message in the log.
"""

from __future__ import annotations

from broker.requests.moving import destination_of, records_of
from model.ids import PhysicalOffset
from model.message import DELAYED_AS, SCHEDULE_TOPIC, TIMER_TOPIC, property_of
from store.files.record import Record
from store.flow.reading import GetStatus
from store.message_store import MessageStore


def copies_begin(store: MessageStore, queue: tuple[str, int], source: PhysicalOffset, due_ms: int) -> int:
    """The queue offset from which on ``queue`` may hold a copy of the message at ``source``, or of one behind
    it; ``due_ms``: when the first of them was due."""
    if clock_went_back(store, source):
        return store.reader.offset_behind(*queue, source)
    return store.offset_by_time(*queue, due_ms)


def clock_went_back(store: MessageStore, source: PhysicalOffset) -> bool:
    """Whether store times went back since the record at ``source``, as far as epochs and our clock tell."""
    newest_ms = store.reader.store_time(source) or 0
    for entry in store.epochs.entries:
        if entry.start <= source:
            continue
        begun_ms = store.reader.store_time(entry.start)
        if begun_ms is not None and begun_ms < newest_ms:
            return True
        newest_ms = max(newest_ms, begun_ms or 0)
    return store.stamp_ms() < newest_ms


def is_copy(store: MessageStore, record: Record) -> bool:
    """Whether a message waited for its time to come where it is. Of one whose source is in the log no more
    that cannot be told: False."""
    kind, _, at = (property_of(record.properties, DELAYED_AS) or "").partition(":")
    if not (at.isascii() and at.isdigit()):
        return False
    if kind == "timer":
        queue = (TIMER_TOPIC, 0)
    elif kind.isascii() and kind.isdigit():
        queue = (SCHEDULE_TOPIC, int(kind) - 1)
    else:
        return False
    got = store.get(*queue, int(at), 1, 1, None)
    # A message that was popped and comes back by a retry topic has its mark still, and was for another topic.
    wanted = (record.topic, record.queue_id)
    return got.status is GetStatus.FOUND and destination_of(next(records_of(got.chunks))) == wanted
