"""Which records say another queue, or another place in it, than all else says?

No CRC covers a record's queue id and queue offset. What a broker entered when it stored the record tells: an
entry of its topic names it, at a place that no record says, between those of the records before and behind
it; and where the record says to be, no entry names it. Then the record is wrong, by a bit that flipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from model.message import LMQ_PREFIX
from runtime.env import File
from store.files.consume_queue import PRE_BLANK_SIZE
from store.files.record import DispatchParser, Record
from store.offline.directory import StoreDirectory
from store.offline.queues.entries import EntryCheck

_QUEUE_ID: Final = struct.Struct(">i")
_QUEUE_ID_AT: Final = 12
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20
"""Of a record's bytes."""
_MANY: Final = 1000
"""More of them are no bits that flipped."""


class Misplaced(NamedTuple):
    """The record at ``offset``; ``topic``, ``queue_id``, ``queue_offset``: where it stands."""

    offset: int  # physical
    size: int
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset


def misplaced(store: StoreDirectory, parser: DispatchParser, end: int) -> list[Misplaced]:
    """Those of one log, up to ``end``, whose entries are there. The log is read only where there may be
    one."""
    check = EntryCheck(store, parser)
    named = (item for queue in store.queues() for item in _named_elsewhere(store, check, *queue))
    found = {item.place: item for item in named if item.offset + item.size <= end}
    if not 0 < len(found) <= _MANY:
        return []
    for record in store.records(0, end):
        if isinstance(record, Record):
            found.pop((record.topic, record.queue_id, record.queue_offset), None)
    return list(found.values())


def _named_elsewhere(
    store: StoreDirectory, check: EntryCheck, topic: str, queue_id: int
) -> Iterator[Misplaced]:
    if topic.startswith(LMQ_PREFIX):  # its records are of other queues
        return
    for place, offset, size, _ in store.queue_entries(topic, queue_id):
        said = check.says(offset, size)
        if said is None or said[0] != topic or said[1:] == (queue_id, place):
            continue
        if said[1] != queue_id and said[2] != place:
            continue  # two numbers do not flip at once
        other = check.entry(*said)
        if other is not None and other[0] == offset and other[1] == size:
            continue
        if _is_between(check, (topic, queue_id), place, offset):
            yield Misplaced(offset, size, topic, queue_id, place)


def _is_between(check: EntryCheck, queue: tuple[str, int], place: int, offset: int) -> bool:
    """Do the entries beside a place, one at least, name the records of theirs, before and behind this one?"""
    beside = 0
    for near, sign in ((place - 1, -1), (place + 1, 1)):
        entry = check.entry(*queue, near) if near >= 0 else None
        if entry is None or entry[1] <= 0 or entry[1] == PRE_BLANK_SIZE:
            continue
        if check.says(*entry[:2]) != (*queue, near) or (entry[0] - offset) * sign <= 0:
            return False
        beside += 1
    return beside > 0


def write_place(file: File, at: int, item: Misplaced) -> None:
    """Let the record at ``at`` of a segment say its place. Raises OSError."""
    file.pwrite(_QUEUE_ID.pack(item.queue_id), at + _QUEUE_ID_AT)
    file.pwrite(_QUEUE_OFFSET.pack(item.queue_offset), at + _QUEUE_OFFSET_AT)
