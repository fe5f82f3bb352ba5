"""Which files of queues are gone, although the log holds messages whose entries stood in them?

A queue has its files from the first message on that the log holds: retention takes a file when its last
message goes. One that goes on far ahead of its former messages begins there, as its broker made it; one whose
topic was deleted begins with places that stand for no message, but where it went on at the first of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.files.consume_queue import ENTRY_BYTES
from store.files.record import Record
from store.offline.directory import SegmentInfo, StoreDirectory
from store.offline.queues.places import Queue, QueuePlaces, far_ahead, places_of

FOLDER: Final = "consumequeue"


class GoneFile(NamedTuple):
    """``path``: below the store; ``physical``: where the queue's first message stands in the log."""

    path: str
    physical: int


@dataclass(slots=True)
class _Begin:
    first: int  # queue offset
    physical: int  # of its message
    following: int  # the queue offset behind the last message
    far: int  # how far ahead the queue may go on without beginning anew


class QueueBegins:
    """Takes the records of a log in their order. What is kept is a few numbers a queue. ``size``: of a file
    of a queue, bytes; 0: nothing tells."""

    def __init__(self, store: StoreDirectory, size: int) -> None:
        self._store = store
        self.size = size
        self._of: dict[Queue, _Begin] = {}
        self._far = far_ahead(store)
        self.places = QueuePlaces(self._far)
        """Which records stand where they say: those are to be taken."""

    def take(self, record: Record) -> None:
        """One that stands in its queue where it says (``queue_places``)."""
        queue, place = (record.topic, record.queue_id), record.queue_offset
        known, following = self._of.get(queue), place + places_of(record)
        if known is not None and place <= known.following + known.far:
            known.following = max(known.following, following)
        else:
            far = known.far if known is not None else self._far(queue)
            self._of[queue] = _Begin(place, record.physical_offset, following, far)

    def gone(self) -> Iterator[GoneFile]:
        """Of queues that have a file, those that lack before it."""
        for queue, begin in self._of.items():
            files, size = self._store.queue_files(*queue), self.size
            if not files or not size or any(file.start % size for file in files):
                continue
            there = {file.start for file in files}
            stop = min(files[-1].start, begin.following * ENTRY_BYTES)
            first = begin.first * ENTRY_BYTES // size * size
            if not self._begin_behind(queue, files, begin.physical):
                first = max(first, files[0].start)
            for start in range(first, stop, size):
                if start not in there:
                    yield GoneFile(f"{FOLDER}/{queue[0]}/{queue[1]}/{start:020}", begin.physical)

    def _begin_behind(self, queue: Queue, files: Sequence[SegmentInfo], physical: int) -> bool:
        """Do its files begin with a later message than the log does, and at once? One that was deleted and
        made again begins with places that stand for no message; and a message that its files name has its
        place there, whatever it says of itself now."""
        first = next(self._store.queue_entries(*queue), None)
        return first is not None and first[0] * ENTRY_BYTES == files[0].start and first[1] > physical


def is_queue_file(path: str) -> bool:
    """Is it the path of a ``GoneFile``, and not of a queue?"""
    return path.startswith(f"{FOLDER}/") and path.count("/") == 3
