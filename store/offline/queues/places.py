"""Which records of a log stand in their queues where they say?

No CRC covers a record's queue id and queue offset. Within a queue it grows from record to record: one that
says more than what follows it in its queue does not stand there, nor one whose own place the next one leaves
free, nor the only one of a queue, whose place another queue of its topic skips just there. Nothing is made
for it. So a record that is out of the row waits until its queue goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from model.message import INNER_BATCH, INNER_NUM, TRANSACTION_PREPARED, property_of
from store.files.consume_queue import ENTRY_BYTES, FILL_ENTRIES_MAX, is_queue_name
from store.files.record import Record
from store.offline.directory import StoreDirectory

Queue = tuple[str, int]
_SKIPPED_MAX: Final = 1 << 16


class Says(Enum):
    """What a record's queue says of its place."""

    RIGHT = 0
    ALONE = 1
    """It goes on far ahead of its queue, and nothing follows: nobody can tell."""
    WRONG = 2
    CONTRADICTED = 3
    """An entry of its topic names it at another place, and nobody can tell which is right (``misplaced``)."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A record, without its body if it waited. Where it is wrong its place was one of [``before``,
    ``following``), by its queue, or by the one of its topic that is ``queue_id``."""

    record: Record
    says: Says
    before: int = 0
    following: int = 0
    queue_id: int = -1

    @property
    def queue(self) -> Queue:
        """That of its place."""
        return self.record.topic, self.record.queue_id if self.queue_id < 0 else self.queue_id


@dataclass(frozen=True, slots=True)
class _Skipped:
    """One place of a queue that the log lacks, between two records of it."""

    queue_id: int
    before: int  # physical, as ``behind``
    behind: int


class QueuePlaces:
    """Takes the records of a log in their order, and gives each back once its queue has told, in the order
    of each queue. Those that are in no queue are left out."""

    def __init__(self, far: Callable[[Queue], int], unsure: Container[int] = ()) -> None:
        """``unsure``: where the records begin that are contradicted, if nothing else is wrong with them."""
        self._far_of = far
        self._unsure = unsure
        self._next: dict[Queue, int] = {}
        self._far: dict[Queue, int] = {}
        self._held: dict[Queue, Record] = {}
        self._last: dict[Queue, int] = {}  # where its last record lies
        self._skipped: dict[Queue, _Skipped] = {}  # by topic and place

    def take(self, record: Record) -> Iterator[Placed]:
        if record.sys_flag & TRANSACTION_PREPARED or record.queue_offset < 0:
            return
        queue, place = (record.topic, record.queue_id), record.queue_offset
        held = self._held.pop(queue, None)
        if held is not None:
            yield self._judged(queue, held, place)
        elif queue not in self._next and not is_queue_name(*queue):
            return
        self._note_skipped(queue, record)
        if place == self._next.get(queue):
            yield self._right(record)
        else:
            self._far.setdefault(queue, self._far_of(queue))
            self._held[queue] = replace(record, body=b"")

    def _note_skipped(self, queue: Queue, record: Record) -> None:
        ended = self._next.get(queue)
        if ended is not None and record.queue_offset == ended + 1 and len(self._skipped) < _SKIPPED_MAX:
            skipped = _Skipped(queue[1], self._last[queue], record.physical_offset)
            self._skipped[queue[0], ended] = skipped

    def _judged(self, queue: Queue, held: Record, following: int) -> Placed:
        """What waited, by the place of the next record of its queue.

        ended  held  next  says
            7     9     8  WRONG: the next one goes on where its queue ended, before it
            7     3     8  WRONG: the next one leaves a place free where its queue ended: that is its own
            7     9    10  RIGHT: what lay between is damaged
            7     6     7  RIGHT: two records have one place
            7     0     1  RIGHT: the topic was deleted, and made again
            7   far  none  ALONE: nobody can tell
        """
        ended = self._next.get(queue)
        before = max(following - 1, 0) if ended is None else ended
        in_its_place = ended is not None and following == ended + places_of(held)
        if before <= following < held.queue_offset or in_its_place:
            return Placed(held, Says.WRONG, before, following)
        goes_on = held.queue_offset <= following <= self._behind(held) + self._far[queue]
        if goes_on or not self._is_far(queue, held):
            return self._right(held)
        return Placed(held, self._but_for_entries(held, Says.ALONE))

    def _is_far(self, queue: Queue, record: Record) -> bool:
        before = self._next.get(queue)
        return before is not None and record.queue_offset > before + self._far[queue]

    def rest(self) -> Iterator[Placed]:
        """What waits still, at the log's end."""
        for queue, record in self._held.items():
            skipped = self._skipped.get((record.topic, record.queue_offset))
            if queue not in self._next and skipped is not None and _is_of(record, skipped):
                place = record.queue_offset
                yield Placed(record, Says.WRONG, place, place + 1, skipped.queue_id)
            else:
                says = Says.ALONE if self._is_far(queue, record) else Says.RIGHT
                yield Placed(record, self._but_for_entries(record, says))
        self._held.clear()

    def _right(self, record: Record) -> Placed:
        queue = record.topic, record.queue_id
        self._next[queue] = max(self._next.get(queue, 0), self._behind(record))
        self._last[queue] = record.physical_offset
        return Placed(record, self._but_for_entries(record, Says.RIGHT))

    def _but_for_entries(self, record: Record, says: Says) -> Says:
        return Says.CONTRADICTED if record.physical_offset in self._unsure else says

    @staticmethod
    def _behind(record: Record) -> int:
        return record.queue_offset + places_of(record)


def _is_of(record: Record, skipped: _Skipped) -> bool:
    """Is it the record of a place that is skipped, but for a bit of its queue id?"""
    flipped = record.queue_id ^ skipped.queue_id
    return skipped.before < record.physical_offset < skipped.behind and flipped.bit_count() == 1


def far_ahead(store: StoreDirectory) -> Callable[[Queue], int]:
    """How far ahead a queue may go on without beginning anew."""

    def far(queue: Queue) -> int:
        size = max((file.size for file in store.queue_files(*queue)), default=0)
        return max(size // ENTRY_BYTES, FILL_ENTRIES_MAX)

    return far


def placed(store: StoreDirectory, end: int, unsure: Container[int] = ()) -> Iterator[Placed]:
    """All records of a store that are in a queue, up to the log's ``end``, as ``QueuePlaces`` has it."""
    places = QueuePlaces(far_ahead(store), unsure)
    for record in store.records(0, end):
        if isinstance(record, Record):
            yield from places.take(record)
    yield from places.rest()


def right_ones(found: Iterable[Placed]) -> Iterator[Record]:
    """Those that stand where they say, as far as anybody can tell."""
    return (item.record for item in found if item.says not in (Says.WRONG, Says.CONTRADICTED))


def places_of(record: Record) -> int:
    """How many queue offsets the record takes."""
    if not record.sys_flag & INNER_BATCH:
        return 1
    count = property_of(record.properties, INNER_NUM) or ""
    return max(int(count), 1) if count.isascii() and count.isdigit() and len(count) < 6 else 1
