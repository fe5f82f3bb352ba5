"""When is a delayed message due, as its queue entry should say?

A broker enters when the message was stored, and the delay of its level behind that. Which delay a level has
stands in no store: what the neighbours of an entry have tells. A level has one until its broker gets another
one: that begins anywhere, and goes on. ``audit.engines.entries`` judges by the same rule; a test holds the
two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from model.ids import is_number
from model.message import DELAY, SCHEDULE_TOPIC, property_of
from store.offline.directory import StoreDirectory
from store.offline.queues.entries import EntryCheck

STORED_FROM: Final = 1 << 31
"""A clock that says less was not set, and a number from here on is no hash of TAGS."""


class Due(NamedTuple):
    """Of the entry at a place: when its message was stored, and when it is due, as it says. ms."""

    place: int
    offset: int  # physical, of the record
    size: int
    stored_ms: int
    due_ms: int

    @property
    def delay_ms(self) -> int:
        return self.due_ms - self.stored_ms


def odd_dues(dues: Iterable[Due]) -> Iterator[tuple[Due, int]]:
    """Of a queue's entries in their order those that are due before they were stored, or otherwise than both
    their neighbours, which agree; and when they should be: -1, nothing tells.

    delays        odd              should be
    5 5 7 5 5     7                5
    5 5 7 7 7     none: another delay begins
    5 7           none: nobody can tell
    5 -2 7        -2               5, as before it
    -2 7 7        -2               7, as behind it
    -2            -2               nothing tells
    """
    before: Due | None = None
    this: Due | None = None
    for following in chain(dues, (None,)):
        if this is not None:
            yield from _judged(before, this, following)
            before = this
        this = following


def _judged(before: Due | None, this: Due, following: Due | None) -> Iterator[tuple[Due, int]]:
    agree = before is not None and following is not None and before.delay_ms == following.delay_ms
    if this.delay_ms < 0 or (agree and before is not None and this.delay_ms != before.delay_ms):
        delays = (near.delay_ms for near in (before, following) if near is not None)
        delay = next((delay for delay in delays if delay >= 0), None)
        yield this, -1 if delay is None else this.stored_ms + delay


def dues_of(store: StoreDirectory, check: EntryCheck, queue_id: int) -> Iterator[Due]:
    """The entries of a queue of delayed messages that name the record of their place."""
    for place, offset, size, due_ms in store.queue_entries(SCHEDULE_TOPIC, queue_id):
        if check.says(offset, size) != (SCHEDULE_TOPIC, queue_id, place):
            continue
        record = store.record_at(offset)
        level = property_of(record.properties, DELAY) if record is not None else None
        if record is None or not level or not is_number(level) or not level.strip("0"):
            continue
        if record.store_timestamp_ms >= STORED_FROM:
            yield Due(place, offset, size, record.store_timestamp_ms, due_ms)
