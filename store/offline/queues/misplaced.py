"""Which records say another queue, or another place in it, than all else says?

No CRC covers a record's queue id and queue offset. What a broker entered when it stored the record tells: an
entry of its topic names it, at a place that no record says; and where the record says to be, none does.

    the entries beside it name                  the record
    a record that is not theirs                 is right: entries were moved
    those of theirs, before and behind it       is wrong
    none that the log holds, or there are none
        one bit of its queue offset differs,    is wrong
        and files do not begin as far apart
        a file for its word is there, and they  is right: the files changed places
        do, or it is of another queue
        else                                    nobody can tell: ``unsure``
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from model.message import LMQ_PREFIX
from runtime.env import File
from store.files.consume_queue import ENTRY_BYTES, PRE_BLANK_SIZE
from store.files.record import DispatchParser, Record
from store.offline.directory import StoreDirectory
from store.offline.queues.entries import EntryCheck
from store.offline.queues.places import Says

_QUEUE_ID: Final = struct.Struct(">i")
_QUEUE_ID_AT: Final = 12
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20
"""Of a record's bytes."""
_MANY: Final = 1000
"""More of them are no bits that flipped."""
_BITS: Final = (1 << 64) - 1


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


class Found(NamedTuple):
    """``wrong``: what they say; ``unsure``: where the records begin of which nobody can tell."""

    wrong: list[Misplaced]
    unsure: frozenset[int]


def misplaced(store: StoreDirectory, parser: DispatchParser, size: int, end: int) -> Found:
    """Those of one log, up to ``end``, whose entries are there; ``size``: of a queue's file, bytes, 0:
    nothing tells. The log is read only where there may be one."""
    check = EntryCheck(store, parser)
    found: dict[tuple[str, int, int], tuple[Misplaced, Says]] = {}
    for item in (item for queue in store.queues() for item in _named_elsewhere(store, check, *queue)):
        says = _judged(check, item, size)
        if says is not Says.RIGHT and item.offset + item.size <= end:
            found[item.place] = item, says
    if not 0 < len(found) <= _MANY:
        return Found([], frozenset())
    for record in store.records(0, end):
        if isinstance(record, Record):
            found.pop((record.topic, record.queue_id, record.queue_offset), None)
    wrong = [item for item, says in found.values() if says is Says.WRONG]
    return Found(wrong, frozenset(item.offset for item, says in found.values() if says is not Says.WRONG))


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
        yield Misplaced(offset, size, topic, queue_id, place)


def _judged(check: EntryCheck, item: Misplaced, file_bytes: int) -> Says:
    """Of a record whose entry stands at ``item``'s place, by what stands beside it."""
    said, place = check.says(item.offset, item.size), item.queue_offset
    assert said is not None, "an entry names it"
    beside = _beside(check, (item.topic, item.queue_id), place, item.offset)
    if beside:
        return Says.WRONG if beside > 0 else Says.RIGHT
    flipped = ((said[2] ^ place) & _BITS).bit_count() == 1
    apart = said[2] == place or (file_bytes > 0 and (said[2] - place) * ENTRY_BYTES % file_bytes == 0)
    if flipped:
        return Says.CONTRADICTED if apart else Says.WRONG
    return Says.RIGHT if apart and check.place_of(*said) is not None else Says.CONTRADICTED


def _beside(check: EntryCheck, queue: tuple[str, int], place: int, offset: int) -> int:
    """How many entries beside a place name the records of theirs, before and behind this one; -1: one names
    another record. What retention took, or damage, says nothing."""
    beside = 0
    for near, sign in ((place - 1, -1), (place + 1, 1)):
        entry = check.entry(*queue, near) if near >= 0 else None
        if entry is None or entry[1] <= 0 or entry[1] == PRE_BLANK_SIZE:
            continue
        says = check.says(*entry[:2])
        if says is None:
            continue
        if says != (*queue, near) or (entry[0] - offset) * sign <= 0:
            return -1
        beside += 1
    return beside


def write_place(file: File, at: int, item: Misplaced) -> None:
    """Let the record at ``at`` of a segment say its place. Raises OSError."""
    file.pwrite(_QUEUE_ID.pack(item.queue_id), at + _QUEUE_ID_AT)
    file.pwrite(_QUEUE_OFFSET.pack(item.queue_offset), at + _QUEUE_OFFSET_AT)
