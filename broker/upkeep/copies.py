"""From where on may a queue hold the copy of a message that was delivered at its time?

A copy is stored when its message is due, so a search by store time finds where to begin, and passes over all
that came in between. That holds only where store times do not go back: a master whose clock was ahead by more
than ``CLOCK_BACK_MAX_MS`` leaves times that its successor's copies are behind. Clocks change with masters, so
the first record of each epoch since, and the newest one, tell of that. Then the search is by place: a copy
lies behind its message in the log.
"""

from __future__ import annotations

from model.ids import PhysicalOffset
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
