"""Which messages of a queue are copies of such that were delivered at their time, and from where on may it
hold them?

A copy is stored when its message is due, so a search by store time finds where to begin, and passes over all
that came in between. That holds only where store times do not go back: a master whose clock was ahead by more
than ``CLOCK_BACK_MAX_MS`` leaves times that its successor's copies are behind, and one whose clock goes back
by so much stores copies that are older than their messages. The first record of each epoch since tells of
that, the last one of the queue before it, the last ``LAST_MAX`` of the queue, among which copies are that
nobody was told of, and some of those before. Then the search is by place: a copy lies behind its message.
Times that go back by less are a RocketMQ master's: then the search by time begins so much sooner.

Looking at each record since would take longer than an election, where a queue holds those of hours. So a
clock that goes ahead or back by more than that, and is set right again while one master leads, may not be
seen where more messages than those came to one queue since. What is looked at is evidence alone: a record
that cannot be read tells nothing, and holds nothing back.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from broker.requests.moving import destination_of, records_of
from model.errors import DiskError
from model.ids import PhysicalOffset
from model.message import DELAYED_AS, SCHEDULE_TOPIC, TIMER_TOPIC, property_of
from store.files.record import Record
from store.flow.reading import GetStatus
from store.flow.writing import CLOCK_BACK_MAX_MS
from store.message_store import MessageStore

INT64_DIGITS: Final = 20
LAST_MAX: Final = 64
SPREAD_MAX: Final = 64
EARLY_MAX: Final = 16_384
"""Messages of a queue that are looked at for copies that came before their time by our levels."""
READS_AT_ONCE: Final = 16
"""A read of a slow disk takes ms: others have a turn after so many."""


async def copies_begin(
    store: MessageStore,
    queue: tuple[str, int],
    source: PhysicalOffset,
    due_ms: int,
    log_end: PhysicalOffset,
    earliest_ms: int | None = None,
) -> int:
    """The queue offset from which on ``queue`` may hold a copy of the message at ``source``, or of one behind
    it, that a former master delivered; ``due_ms``: when the first of them was due; ``log_end``: where the log
    ended when this one took over. What this one stored behind that says nothing of it.

    ``earliest_ms``: when the first was due at the earliest, whatever the levels of the former master were. It
    is gone back to over ``EARLY_MAX`` messages at most."""
    held = _between(store, queue, source, log_end)
    back_ms = await _went_back_ms(store, queue, source, log_end)
    if back_ms > CLOCK_BACK_MAX_MS:
        return held.start
    # All times behind a copy are at most so much lower than its own, so the search does not pass over it.
    lower_ms = CLOCK_BACK_MAX_MS if back_ms else 0

    def since(time_ms: int) -> int:
        return bisect_left(held, time_ms - lower_ms, key=lambda at: store.queue_store_time(*queue, at) or 0)

    begin = since(due_ms)
    early = begin if earliest_ms is None else min(begin, since(earliest_ms))
    return held.start + (early if begin - early <= EARLY_MAX else begin)


def _between(
    store: MessageStore, queue: tuple[str, int], source: PhysicalOffset, log_end: PhysicalOffset
) -> range:
    """The messages of ``queue`` behind ``source`` that a former master stored."""
    behind = store.reader.offset_behind
    return range(behind(*queue, source), behind(*queue, PhysicalOffset(log_end - 1)))


async def _went_back_ms(
    store: MessageStore, queue: tuple[str, int], source: PhysicalOffset, log_end: PhysicalOffset
) -> int:
    """How far store times went back at the most since the record at ``source``, as far as the epochs,
    messages of the queue behind it, and our clock tell."""
    newest_ms, back_ms = store.reader.store_time(source) or 0, 0
    async for stored_ms in _times(store, queue, source, log_end):
        back_ms = max(back_ms, newest_ms - stored_ms)
        newest_ms = max(newest_ms, stored_ms)
    begun_ms = store.reader.store_time(log_end)
    now_ms = store.stamp_ms() if begun_ms is None else begun_ms  # None: nothing was stored yet
    return max(back_ms, newest_ms - now_ms)


async def _times(
    store: MessageStore, queue: tuple[str, int], source: PhysicalOffset, log_end: PhysicalOffset
) -> AsyncIterator[int]:
    """Store times of some of the records behind ``source``, in the order of the log."""
    reader, held = store.reader, _between(store, queue, source, log_end)
    begins = [entry.start for entry in store.epochs.entries if source < entry.start < log_end]
    offsets = {*held[-LAST_MAX:], *held[:: len(held) // SPREAD_MAX + 1]}
    offsets |= {reader.offset_behind(*queue, PhysicalOffset(begin - 1)) - 1 for begin in begins}
    places = set(begins)
    for number, at in enumerate(at for at in offsets if at in held):
        with suppress(DiskError):
            if (place := store.place_of(*queue, at)) is not None:
                places.add(place)
        if number % READS_AT_ONCE == 0:
            await asyncio.sleep(0)
    for number, place in enumerate(sorted(places)):
        with suppress(DiskError):
            if stored_ms := reader.store_time(place):  # 0: the blank of a segment, or what is lost
                yield stored_ms
        if number % READS_AT_ONCE == 0:
            await asyncio.sleep(0)


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
